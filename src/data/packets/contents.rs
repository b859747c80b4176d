//! What a file of packets carries, and where it would go. Damage is counted and never stops this.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::codes::{CodeField, Route, TOKEN_IDS};
use super::error::PacketError;
use super::file::{PacketDefect, PacketFile, is_packet_file};
use super::names::place_of;
use super::state::tensors_of;
use super::typed::TypedPacket;
use crate::token_file::{Contents as Kind, Defect, OnDamage, TokenFile, TokenFileError, contents, v1};

/// The most different routes and tensors that are listed.
const LISTED: usize = 10_000;
/// The most defects that are listed.
const DEFECTS: usize = 1000;

/// What a file carries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Contents {
    /// The kind of file.
    pub kind: &'static str,
    /// Its size.
    pub bytes: u64,
    /// The number of intact packets.
    pub packets: u64,
    /// The bytes of their payloads.
    pub payload_bytes: u64,
    /// The packets by their codes.
    pub routes: Vec<Routed>,
    /// Packets whose codes are not listed, because there are too many different ones.
    pub packets_not_listed: u64,
    /// The tensors by name.
    pub tensors: Vec<Tensor>,
    /// The number of tensors that are not listed.
    pub tensors_not_listed: u64,
    /// Why the tensors are not whole, in a sentence.
    pub incomplete: Option<String>,
    /// The file that it was made of, if it says so.
    pub made_of: Option<String>,
    /// Names and values that the packets do not have.
    pub metadata: BTreeMap<String, String>,
    /// The number of damaged places.
    pub damaged: u64,
    /// The first 1,000 of them.
    pub defects: Vec<PacketDefect>,
}

/// Packets with the same codes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Routed {
    /// SRC; `None` if it is not known.
    pub src: Option<u8>,
    /// DST; `None` if it is not known.
    pub dst: Option<u8>,
    /// TYP.
    pub typ: u8,
    /// SRC in words.
    pub from: String,
    /// DST in words.
    pub to: String,
    /// TYP in words.
    pub encoding: String,
    /// The number of packets.
    pub packets: u64,
    /// The bytes of their payloads.
    pub payload_bytes: u64,
}

/// A tensor in a file, as far as its parts are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tensor {
    /// Its name. Anyone may have written it: escape it before it is shown.
    pub name: String,
    /// The encoding of its numbers.
    pub dtype: &'static str,
    /// Its shape.
    pub shape: Vec<u64>,
    /// The number of parts that are there.
    pub parts: u64,
    /// The number of parts that it has.
    pub of: u32,
    /// DST in words.
    pub to: String,
    /// The number of the layer, if its name has one.
    pub layer: Option<u32>,
    /// The module that it belongs to, by its name.
    pub module: String,
}

/// SRC and DST, if they are given, and TYP.
type Codes = (Option<(u8, u8)>, u8);

/// Counts packets by their codes.
#[derive(Default)]
struct Routes {
    /// The number of packets and the bytes of their payloads.
    found: BTreeMap<Codes, (u64, u64)>,
    others: u64,
    packets: u64,
    payload_bytes: u64,
}

impl Routes {
    fn add(&mut self, route: Option<Route>, typ: u8, payload_bytes: u64) {
        self.packets += 1;
        self.payload_bytes += payload_bytes;
        let key = (route.map(|route| (route.src, route.dst)), typ);
        if self.found.len() >= LISTED && !self.found.contains_key(&key) {
            self.others += 1;
            return;
        }
        let (packets, bytes) = self.found.entry(key).or_default();
        *packets += 1;
        *bytes += payload_bytes;
    }

    fn into_contents(self, kind: &'static str, bytes: u64) -> Contents {
        let in_words = |field: CodeField, code: Option<u8>| {
            code.map_or_else(|| "not given".to_owned(), |code| field.describe(code))
        };
        let routes = self.found.into_iter().map(|((route, typ), (packets, payload_bytes))| {
            let (src, dst) = (route.map(|route| route.0), route.map(|route| route.1));
            Routed {
                src,
                dst,
                typ,
                from: in_words(CodeField::Src, src),
                to: in_words(CodeField::Dst, dst),
                encoding: CodeField::Typ.describe(typ),
                packets,
                payload_bytes,
            }
        });
        Contents {
            kind,
            bytes,
            packets: self.packets,
            payload_bytes: self.payload_bytes,
            packets_not_listed: self.others,
            routes: routes.collect(),
            ..Contents::default()
        }
    }
}

/// Lists what a file of packets carries: packets of version 1, a token file, or typed packets.
///
/// # Errors
/// The file cannot be read, or is none of these; a token file is damaged outside of its packets.
pub fn contents_of(path: &Path) -> Result<Contents, PacketError> {
    if is_packet_file(path)? {
        return of_packet_file(path);
    }
    match contents(path)? {
        Kind::V1 => of_v1(path),
        Kind::V2 => of_token_file(path),
        Kind::IdLines | Kind::Other => Err(PacketError::file(
            path,
            "no packet of any format was found",
            "Give a file of v1 packets, a token file, or a file that `packet encode --tensors` wrote",
        )),
    }
}

fn note(contents: &mut Contents, offset: u64, what: String) {
    contents.damaged += 1;
    if contents.defects.len() < DEFECTS {
        contents.defects.push(PacketDefect { offset, what });
    }
}

/// Says which example is damaged and how; the place stands beside it.
fn of_example(defect: &Defect) -> String {
    let origin = defect.origin.as_ref().map_or(String::new(), |origin| format!(" ({origin})"));
    let example = defect.example.map_or(String::new(), |example| format!("example {example}{origin}: "));
    format!("{example}{}", defect.what)
}

fn of_v1(path: &Path) -> Result<Contents, PacketError> {
    let file = sparktune_base::regular_file::open_regular(path).map_err(PacketError::io(path))?;
    let bytes = file.metadata().map_err(PacketError::io(path))?.len();
    let mut routes = Routes::default();
    let mut damage = Contents::default();
    let mut reader = v1::Reader::new(file);
    while let Some(item) = reader.next_item().map_err(PacketError::io(path))? {
        match item {
            v1::Item::Packet(packet) => {
                routes.add(Some(packet.route), packet.kind, packet.payload.len() as u64);
            }
            v1::Item::Damage(found) => note(&mut damage, found.offset, found.to_string()),
        }
    }
    let Contents { damaged, defects, .. } = damage;
    Ok(Contents { damaged, defects, ..routes.into_contents("packets of version 1", bytes) })
}

fn of_token_file(path: &Path) -> Result<Contents, PacketError> {
    let file = TokenFile::open(path)?;
    let bytes = std::fs::metadata(path).map_err(PacketError::io(path))?.len();
    let mut routes = Routes::default();
    let mut damage = Contents::default();
    for example in 0..file.len() {
        match file.example(example) {
            Ok(found) => routes.add(file.route(example), TOKEN_IDS, 4 * found.tokens.len() as u64),
            Err(TokenFileError::Damaged { defect, .. }) => {
                note(&mut damage, defect.offset, of_example(&defect));
            }
            Err(other) => return Err(other.into()),
        }
        if example.is_multiple_of(1 << 16) {
            file.release_pages();
        }
    }
    let Contents { damaged, defects, .. } = damage;
    let made_of = file.header().sources.first().map(|source| source.name.clone());
    let metadata = [("policy", Some(&file.header().policy)), ("tokenizer", file.header().tokenizer.as_ref())];
    let metadata = metadata.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.clone())));
    Ok(Contents {
        damaged,
        defects,
        made_of,
        metadata: metadata.collect(),
        ..routes.into_contents("token file of version 2", bytes)
    })
}

fn of_packet_file(path: &Path) -> Result<Contents, PacketError> {
    let file = PacketFile::open(path, OnDamage::Skip)?;
    let mut routes = Routes::default();
    let mut tensors: BTreeMap<String, Tensor> = BTreeMap::new();
    let mut not_listed = 0;
    for TypedPacket { header, payload } in file.packets() {
        routes.add(Some(header.route), header.typ, payload.len() as u64);
        let Some(tensor) = header.tensor else { continue };
        if let Some(known) = tensors.get_mut(&tensor.name) {
            known.parts += 1;
        } else if tensors.len() < LISTED {
            let place = place_of(&tensor.name);
            let row = Tensor {
                name: tensor.name.clone(),
                dtype: tensor.dtype.name(),
                shape: tensor.shape,
                parts: 1,
                of: tensor.of,
                to: CodeField::Dst.describe(header.route.dst),
                layer: place.layer,
                module: place.module,
            };
            tensors.insert(tensor.name, row);
        } else {
            not_listed += u64::from(tensor.part == 0);
        }
    }
    let incomplete = tensors_of(&file).err().map(|error| match error {
        PacketError::Parts { what, .. } => what,
        other => other.to_string(),
    });
    Ok(Contents {
        tensors: tensors.into_values().collect(),
        tensors_not_listed: not_listed,
        incomplete,
        made_of: file.about().made_of.clone(),
        metadata: file.about().metadata.clone(),
        damaged: file.defect_count(),
        defects: file.defects().to_vec(),
        ..routes.into_contents("typed packets of version 2", file.bytes())
    })
}
