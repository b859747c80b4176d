//! `packet`: single packets made, taken apart and damaged, and what a file of packets carries.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;
use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::escape;
use sparktune_base::files::write_shared;
use sparktune_base::regular_file::read_regular;
use sparktune_base::units::{bytes, counted};
use sparktune_data::packets::anatomy::{Anatomy, inspect, inspect_as};
use sparktune_data::packets::checks::Check;
use sparktune_data::packets::codes::{CodeField, Route};
use sparktune_data::packets::contents::contents_of;
use sparktune_data::packets::lab::{Content, Version, encode, every_flip, flip, from_hex, to_hex};
use sparktune_data::packets::pick::packet_of;
use sparktune_data::packets::state::{TensorOptions, TensorsDone, pack_tensors, unpack_tensors};
use sparktune_data::packets::typed::MAX_PAYLOAD;
use sparktune_data::token_file::{OnDamage, v1};
use sparktune_tui::output::{print, print_json};

use crate::outputs::{refuse_same_file, refuse_to_replace_another};
use crate::packet_in_words::{anatomy_in_words, checks_in_words, contents_in_words, flips_in_words};

/// The most bytes of a packet whose bits are flipped one by one, which takes a time that grows with its
/// square.
const MOST_FLIPPED: usize = 16 << 10;

/// What `packet` is asked for.
#[derive(Debug, Clone)]
pub enum PacketRequest {
    /// Make a packet, or packets of all tensors of a file.
    Encode {
        /// What it carries.
        content: PacketContent,
        /// SRC, as a word or a number.
        src: Option<String>,
        /// DST, as a word or a number.
        dst: Option<String>,
        /// TYP, as a word or a number.
        typ: Option<String>,
        /// Whether the packet is one of version 1.
        is_v1: bool,
        /// The file to write.
        output: Option<PathBuf>,
    },
    /// Take a packet apart.
    Decode {
        /// Hex digits, or a file.
        input: String,
        /// The place in the file.
        packet: u64,
    },
    /// Write the tensors of a file of packets as safetensors.
    Tensors {
        /// The file of packets.
        input: PathBuf,
        /// The file to write.
        output: PathBuf,
        /// Whether damaged packets are left out.
        drop_damaged: bool,
    },
    /// Flip a bit, or each bit alone.
    Flip {
        /// Hex digits, or a file.
        input: String,
        /// The place in the file.
        packet: u64,
        /// The bit; without it, each.
        bit: Option<usize>,
        /// The file to write.
        output: Option<PathBuf>,
    },
    /// List what a file carries.
    Show(PathBuf),
}

/// What a packet is to carry.
#[derive(Debug, Clone)]
pub enum PacketContent {
    /// Token ids.
    Ids(Vec<u32>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Hex digits.
    Hex(String),
    /// The bytes of a file.
    File(PathBuf),
    /// All tensors of a safetensors file.
    Tensors(PathBuf),
}

/// Runs `sparktune packet`. The exit code of decoding and listing is 3 if there is damage.
///
/// # Errors
/// The input cannot be read, or a packet cannot hold it.
pub fn packet(request: &PacketRequest, json: bool) -> Result<Exit, Failure> {
    match request {
        PacketRequest::Encode { content, src, dst, typ, is_v1, output } => {
            let codes = Codes {
                src: code(CodeField::Src, src)?,
                dst: code(CodeField::Dst, dst)?,
                typ: code(CodeField::Typ, typ)?,
            };
            make(content, codes, *is_v1, output.as_deref(), json)
        }
        PacketRequest::Decode { input, packet } => {
            let anatomy = inspect(&given(input, *packet)?);
            if json {
                print_json(&anatomy)?
            } else {
                print(&anatomy_in_words(&anatomy))?
            }
            Ok(if anatomy.is_intact { Exit::Done } else { Exit::Data })
        }
        PacketRequest::Tensors { input, output, drop_damaged } => {
            refuse_same_file(input, output)?;
            // Weights may be all that the user has.
            refuse_to_replace_another(output, |_| Ok(false))?;
            let on_damage = if *drop_damaged { OnDamage::Skip } else { OnDamage::Stop };
            show_tensors(&unpack_tensors(input, output, on_damage)?, output, json)
        }
        PacketRequest::Flip { input, packet, bit: Some(bit), output } => {
            output.as_deref().map_or(Ok(()), |output| refuse_same_file(Path::new(input), output))?;
            damage(&given(input, *packet)?, *bit, output.as_deref(), json)
        }
        PacketRequest::Flip { input, packet, bit: None, .. } => {
            let packet = given(input, *packet)?;
            if packet.len() > MOST_FLIPPED {
                let text = format!("{} are too many to flip bit by bit", bytes(packet.len() as u64));
                return Err(Failure::usage(text)
                    .hint(format!("Use a packet of at most {}", bytes(MOST_FLIPPED as u64))));
            }
            let found = every_flip(&packet);
            if json {
                print_json(&found)?
            } else {
                print(&flips_in_words(&found))?
            }
            Ok(Exit::Done)
        }
        PacketRequest::Show(file) => {
            let contents = contents_of(file)?;
            if json {
                print_json(&contents)?
            } else {
                print(&contents_in_words(file, &contents))?
            }
            let is_whole = contents.damaged == 0 && contents.incomplete.is_none();
            Ok(if is_whole { Exit::Done } else { Exit::Data })
        }
    }
}

/// The codes that were given.
#[derive(Debug, Clone, Copy)]
struct Codes {
    src: Option<u8>,
    dst: Option<u8>,
    typ: Option<u8>,
}

fn code(field: CodeField, text: &Option<String>) -> Result<Option<u8>, Failure> {
    let name = match field {
        CodeField::Src => "--src",
        CodeField::Dst => "--dst",
        CodeField::Typ => "--typ",
    };
    let read = |text: &String| {
        field.parse(text).map_err(|fix| {
            Failure::usage(format!("{name}: `{}` is no code", escape(text)))
                .hint(format!("For {name}, {fix}"))
        })
    };
    text.as_ref().map(read).transpose()
}

fn file_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    read_regular(path, MAX_PAYLOAD).map_err(|error| {
        Failure::usage(format!("{}: {error}", escape(&path.display().to_string())))
            .hint("Name a file of at most 16 MiB, which is what a packet holds")
    })
}

fn digits(text: &str) -> Result<Vec<u8>, Failure> {
    from_hex(text).ok_or_else(|| {
        let start: String = text.chars().take(40).collect();
        Failure::usage(format!("`{}` is neither a file nor hex digits in pairs", escape(&start)))
            .hint("Give the packet as hex, as `packet encode` prints it, or the name of a file")
    })
}

/// Returns the packet that hex digits or a file give.
fn given(input: &str, packet: u64) -> Result<Vec<u8>, Failure> {
    let path = Path::new(input);
    if path.is_file() { Ok(packet_of(path, packet)?) } else { digits(input) }
}

#[derive(Serialize)]
struct Made<'a> {
    hex: String,
    #[serde(flatten)]
    anatomy: &'a Anatomy,
}

/// Returns whether a file begins like a packet, or like a file of them.
fn is_packets(path: &Path) -> Result<bool, Failure> {
    let mut start = [0; 3];
    let unreadable = |error: std::io::Error| Failure::io("read", path, &error);
    let read = std::fs::File::open(path).and_then(|mut file| file.read(&mut start)).map_err(unreadable)?;
    Ok(start[..read].starts_with(&[v1::SYNC]) || matches!(&start[..read], b"QPK" | b"QUB"))
}

/// Writes a packet as a whole.
fn write_packet(path: &Path, packet: &[u8]) -> Result<(), Failure> {
    refuse_to_replace_another(path, is_packets)?;
    write_shared(path, packet).map_err(|error| {
        Failure::usage(format!("{}: {error}", escape(&path.display().to_string())))
            .hint("Name another file with --output")
    })
}

fn make(
    content: &PacketContent,
    codes: Codes,
    is_v1: bool,
    output: Option<&Path>,
    json: bool,
) -> Result<Exit, Failure> {
    let content = match content {
        PacketContent::Tensors(input) => return make_of_tensors(input, codes, is_v1, output, json),
        PacketContent::Ids(ids) => Content::Ids(ids.clone()),
        PacketContent::Bytes(bytes) => Content::Bytes(bytes.clone()),
        PacketContent::Hex(text) => Content::Bytes(digits(text)?),
        PacketContent::File(path) => {
            output.map_or(Ok(()), |output| refuse_same_file(path, output))?;
            Content::Bytes(file_bytes(path)?)
        }
    };
    let given = Route::default();
    let route = Route { src: codes.src.unwrap_or(given.src), dst: codes.dst.unwrap_or(given.dst) };
    let version = if is_v1 { Version::V1 } else { Version::V2 };
    let packet = encode(version, route, codes.typ, &content)?;
    output.map_or(Ok(()), |path| write_packet(path, &packet))?;
    let anatomy = inspect(&packet);
    if json {
        print_json(&Made { hex: to_hex(&packet), anatomy: &anatomy })?;
    } else if let Some(path) = output {
        let size = counted(packet.len() as u64, "byte");
        print(&format!("{}: {}, {size}\n", escape(&path.display().to_string()), anatomy.format_name))?;
    } else {
        print(&format!("{}\n", to_hex(&packet)))?;
    }
    Ok(Exit::Done)
}

fn make_of_tensors(
    input: &Path,
    codes: Codes,
    is_v1: bool,
    output: Option<&Path>,
    json: bool,
) -> Result<Exit, Failure> {
    let Some(output) = output else {
        return Err(Failure::usage("no file to write was named").hint("Name it with --output FILE"));
    };
    if is_v1 {
        return Err(Failure::usage("version 1 has no names of tensors, and a length of 16 bits")
            .hint("Omit --to v1: typed packets of version 2 hold tensors"));
    }
    refuse_same_file(input, output)?;
    refuse_to_replace_another(output, is_packets)?;
    let default = TensorOptions::default();
    let options = TensorOptions { src: codes.src.unwrap_or(default.src), dst: codes.dst, ..default };
    show_tensors(&pack_tensors(input, output, &options)?, output, json)
}

fn show_tensors(done: &TensorsDone, output: &Path, json: bool) -> Result<Exit, Failure> {
    if json {
        print_json(done)?;
        return Ok(Exit::Done);
    }
    let mut text = format!(
        "{}: {} in {}, {} of numbers in {} of packets\n",
        escape(&output.display().to_string()),
        counted(done.tensors, "tensor"),
        counted(done.packets, "packet"),
        bytes(done.tensor_bytes),
        bytes(done.file_bytes)
    );
    if done.damaged > 0 {
        text.push_str(&format!("left out: {}\n", counted(done.damaged, "damaged place")));
    }
    if done.other_packets > 0 {
        let others = counted(done.other_packets, "packet");
        text.push_str(&format!("note: {others} without a tensor are not in the output\n"));
    }
    print(&text)?;
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Flipped<'a> {
    bit: usize,
    hex: String,
    before: &'a [Check],
    after: &'a [Check],
    is_noticed: bool,
}

fn damage(packet: &[u8], bit: usize, output: Option<&Path>, json: bool) -> Result<Exit, Failure> {
    let before = inspect(packet);
    let mut damaged = packet.to_vec();
    flip(&mut damaged, bit)?;
    let after = inspect_as(before.format, &damaged);
    output.map_or(Ok(()), |path| write_packet(path, &damaged))?;
    if json {
        print_json(&Flipped {
            bit,
            hex: to_hex(&damaged),
            before: &before.checks,
            after: &after.checks,
            is_noticed: !after.is_intact,
        })?;
        return Ok(Exit::Done);
    }
    let byte = bit / 8;
    let field = before.fields.iter().find(|field| (field.offset..field.offset + field.len).contains(&byte));
    let place = field.map_or("", |field| field.name);
    let mut text = format!(
        "bit {} of byte {byte}, in {place}: 0x{:02x} becomes 0x{:02x}\n",
        bit % 8,
        packet[byte],
        damaged[byte]
    );
    text.push_str(&checks_in_words(&after.checks));
    let verdict = if after.is_intact { "no check notices it" } else { "the damage is noticed" };
    text.push_str(&format!("{verdict}\n"));
    if output.is_none() {
        text.push_str(&format!("{}\n", to_hex(&damaged)));
    }
    print(&text)?;
    Ok(Exit::Done)
}
