//! Converts between token files and their exchange formats: v1 packets and JSON Lines of token ids.
//!
//! Information that a format cannot represent is listed in [`Conversion::notes`]. Damaged input stops the
//! conversion, unless the caller chooses to skip it; it is then listed.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::regular_file::open_regular;
use sparktune_base::units::counted;

use super::damage::{Defect, Part};
use super::detect::json_text;
use super::error::TokenFileError;
use super::partial::PartialFile;
use super::reader::TokenFile;
use super::v1::{self, Unfit};
use super::v2::{FILE_MAGIC, Header, Origin, Source};
use super::writer::TokenFileWriter;
use crate::packets::codes::{CodeField, Route};

/// The longest line of token ids in bytes, the same as of text. A line is held in memory as a whole.
const MAX_LINE_BYTES: usize = 64 << 20;

/// A format to export to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// v1 packets, which contain only tokens.
    V1,
    /// One object per line: `input_ids`, `loss_mask` (0 or 1), `source_file`, `source_line`, and `src` and
    /// `dst` if they are known. Only the hashes are lost.
    JsonLines,
}

/// The treatment of damaged input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnDamage {
    /// Stop at the first defect and write nothing.
    #[default]
    Stop,
    /// Leave out the damaged examples and list them.
    Skip,
}

/// Metadata that the input of [`pack_file`] does not contain.
#[derive(Debug, Clone, Default)]
pub struct PackFileOptions {
    /// The hash of the tokenizer of the ids, if known; see [`Header::tokenizer`].
    pub tokenizer: Option<String>,
    /// The hash of the chat template, if known.
    pub template: Option<String>,
    /// The treatment of damaged v1 input.
    pub on_damage: OnDamage,
}

/// The result of a conversion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Conversion {
    /// The number of examples written.
    pub examples: u64,
    /// The number of tokens in them.
    pub tokens: u64,
    /// The number of targets in the output.
    pub target_tokens: u64,
    /// Sentences about changes by the conversion: masks assumed, masks lost.
    pub notes: Vec<String>,
    /// The first 1,000 defects that were left out.
    pub left_out: Vec<Defect>,
    /// The number of all defects that were left out.
    pub left_out_count: u64,
}

impl Conversion {
    fn leave_out(&mut self, path: &Path, on_damage: OnDamage, defect: Defect) -> Result<(), TokenFileError> {
        if on_damage == OnDamage::Stop {
            return Err(TokenFileError::damaged(path, defect));
        }
        self.left_out_count += 1;
        if self.left_out.len() < 1000 {
            self.left_out.push(defect);
        }
        Ok(())
    }
}

/// Writes a v2 token file from v1 packets or from JSON Lines of token ids, which are distinguished by their
/// content.
pub fn pack_file(
    input: &Path,
    output: &Path,
    options: &PackFileOptions,
) -> Result<Conversion, TokenFileError> {
    let mut start = Vec::new();
    open(input)?.take(1 << 20).read_to_end(&mut start).map_err(TokenFileError::io(input))?;
    let refuse = |found, fix: &str| {
        Err(TokenFileError::NotConvertible { path: input.to_path_buf(), found, fix: fix.into() })
    };
    if start.starts_with(&FILE_MAGIC) {
        refuse(
            "it is a token file of version 2 already, so there is nothing to convert",
            &format!("Use it as it is; `{} unpack` converts it to other formats", program_name()),
        )
    } else if json_text(&start).starts_with(b"{") {
        import_json_lines(input, output, options)
    } else if v1::looks_like(&start) {
        import_v1(input, output, options)
    } else {
        refuse("it contains neither v1 packets nor JSON Lines", "Give a file of one of these kinds")
    }
}

fn open(path: &Path) -> Result<File, TokenFileError> {
    open_regular(path).map_err(TokenFileError::io(path))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Returns the mask for data without one: every token but the first.
pub(crate) fn all_but_first(tokens: usize) -> Vec<bool> {
    let mut mask = vec![true; tokens];
    mask[..tokens.min(1)].fill(false);
    mask
}

fn import_v1(input: &Path, output: &Path, options: &PackFileOptions) -> Result<Conversion, TokenFileError> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(open(input)?).map_err(TokenFileError::io(input))?;
    let header = Header {
        tokenizer: options.tokenizer.clone(),
        template: options.template.clone(),
        policy: "v1 import: every token but the first is a target".into(),
        sources: vec![Source {
            name: file_name(input),
            blake3: Some(hasher.finalize().to_hex().to_string()),
            set: None,
        }],
    };
    let mut writer = TokenFileWriter::create(output, header)?;
    let mut done = Conversion::default();
    let (mut others, mut empty) = (BTreeMap::<u8, u64>::new(), 0u64);
    let mut reader = v1::Reader::new(open(input)?);
    while let Some(item) = reader.next_item().map_err(TokenFileError::io(input))? {
        match item {
            v1::Item::Damage(damage) => {
                let defect = Defect::new(Part::Packet, damage.offset as usize, damage.to_string());
                done.leave_out(input, options.on_damage, defect.of_example(damage.packets_before, None))?;
            }
            v1::Item::Packet(packet) if packet.kind != v1::TOKEN_IDS => {
                *others.entry(packet.kind).or_default() += 1;
            }
            v1::Item::Packet(packet) => match packet.token_ids() {
                Ok(tokens) if tokens.is_empty() => empty += 1,
                Ok(tokens) => {
                    let origin = Origin { file: 0, line: packet.number + 1 };
                    let mask = all_but_first(tokens.len());
                    writer.push_routed(&tokens, &mask, origin, 0, Some(packet.route))?;
                }
                Err(reason) => {
                    let defect = Defect::new(Part::Packet, packet.offset as usize, reason);
                    done.leave_out(input, options.on_damage, defect.of_example(packet.number, None))?;
                }
            },
        }
    }
    done.notes.push("v1 has no loss mask, so every token of an example except the first is trained".into());
    done.notes.push("v1 has no source lines, so packets of the v1 file are counted instead".into());
    for (typ, packets) in others {
        done.notes.push(format!(
            "skipped {} of TYP {}, which hold no token ids; `{} packet show` lists what a file carries",
            counted(packets, "packet"),
            CodeField::Typ.describe(typ),
            program_name()
        ));
    }
    if empty > 0 {
        done.notes.push(format!("skipped {}", counted(empty, "empty packet")));
    }
    finish(writer, done)
}

fn finish(writer: TokenFileWriter, done: Conversion) -> Result<Conversion, TokenFileError> {
    let written = writer.finish()?;
    Ok(Conversion {
        examples: written.examples,
        tokens: written.total_tokens,
        target_tokens: written.target_tokens,
        ..done
    })
}

/// One line of the JSON Lines format. Unknown fields are refused, because one might be the mask under another
/// name.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonLine<'a> {
    input_ids: Cow<'a, [u32]>,
    #[serde(default)]
    loss_mask: Option<Vec<Bit>>,
    #[serde(default, borrow)]
    source_file: Option<Cow<'a, str>>,
    #[serde(default)]
    source_line: Option<u64>,
    /// SRC and DST of the packet that the example came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    src: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dst: Option<u8>,
}

/// Written as 0 or 1; true and false are accepted too.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "BitText", into = "u8")]
struct Bit(bool);

#[derive(Deserialize)]
#[serde(untagged)]
enum BitText {
    Word(bool),
    Digit(u8),
}

impl TryFrom<BitText> for Bit {
    type Error = &'static str;

    fn try_from(text: BitText) -> Result<Self, Self::Error> {
        match text {
            BitText::Word(bit) => Ok(Self(bit)),
            BitText::Digit(0) => Ok(Self(false)),
            BitText::Digit(1) => Ok(Self(true)),
            BitText::Digit(_) => Err("a loss mask must consist of 0 and 1"),
        }
    }
}

impl From<Bit> for u8 {
    fn from(bit: Bit) -> Self {
        bit.0.into()
    }
}

/// Calls `each` with every line that is not blank, parsed, and its number counted from 1.
fn for_each_json_line(
    input: &Path,
    mut each: impl FnMut(u64, JsonLine<'_>) -> Result<(), TokenFileError>,
) -> Result<(), TokenFileError> {
    let mut reader = BufReader::with_capacity(1 << 20, open(input)?);
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let mut of_line = reader.by_ref().take(MAX_LINE_BYTES as u64 + 1);
        if of_line.read_until(b'\n', &mut bytes).map_err(TokenFileError::io(input))? == 0 {
            break;
        }
        let bad =
            |reason| TokenFileError::BadJsonLine { path: input.to_path_buf(), line, field: "line", reason };
        if bytes.len() > MAX_LINE_BYTES && !bytes.ends_with(b"\n") {
            return Err(bad(format!("it has more than {} MiB", MAX_LINE_BYTES >> 20)));
        }
        let text = json_text(&bytes);
        if text.is_empty() {
            continue;
        }
        let parsed = serde_json::from_slice(text).map_err(|e| bad(escape(&e.to_string()).into_owned()))?;
        each(line, parsed)?;
    }
    Ok(())
}

fn import_json_lines(
    input: &Path,
    output: &Path,
    options: &PackFileOptions,
) -> Result<Conversion, TokenFileError> {
    // The header with the source names is written first, so the names are collected in a separate pass.
    let own_name = file_name(input);
    let mut places: HashMap<String, u32> = HashMap::new();
    let mut sources = Vec::new();
    for_each_json_line(input, |_, line| {
        let name = line.source_file.as_deref().unwrap_or(&own_name);
        if !places.contains_key(name) {
            places.insert(name.to_owned(), sources.len() as u32);
            sources.push(Source { name: name.to_owned(), ..Source::default() });
        }
        Ok(())
    })?;
    let header = Header {
        tokenizer: options.tokenizer.clone(),
        template: options.template.clone(),
        policy: "JSON Lines import: loss masks as given".into(),
        sources,
    };
    let mut writer = TokenFileWriter::create(output, header)?;
    let (mut unmasked, mut first_cleared) = (0u64, 0u64);
    for_each_json_line(input, |number, line| {
        let bad = |field, reason: &str| TokenFileError::BadJsonLine {
            path: input.to_path_buf(),
            line: number,
            field,
            reason: reason.into(),
        };
        let tokens = line.input_ids.len();
        if tokens == 0 {
            return Err(bad("input_ids", "no tokens"));
        }
        let mut mask = match line.loss_mask {
            Some(bits) => bits.into_iter().map(|bit| bit.0).collect(),
            None => {
                unmasked += 1;
                all_but_first(tokens)
            }
        };
        if mask.len() != tokens {
            return Err(bad("loss_mask", &format!("{} entries for {tokens} tokens", mask.len())));
        }
        first_cleared += u64::from(std::mem::replace(&mut mask[0], false));
        let file = places.get(line.source_file.as_deref().unwrap_or(&own_name)).copied();
        let file = file.ok_or_else(|| bad("source_file", "the file was changed while it was read"))?;
        let origin = Origin { file, line: line.source_line.unwrap_or(number) };
        let route = match (line.src, line.dst) {
            (Some(src), Some(dst)) => Some(Route { src, dst }),
            (None, None) => None,
            _ => return Err(bad("src", "src and dst are given together or not at all")),
        };
        writer.push_routed(&line.input_ids, &mask, origin, 0, route)
    })?;
    let mut done = Conversion::default();
    if unmasked > 0 {
        done.notes.push(format!(
            "{} without loss_mask: every token except the first is trained there",
            counted(unmasked, "line")
        ));
    }
    if first_cleared > 0 {
        done.notes.push(format!(
            "{} whose first token is marked as trained: it is not, because no earlier token predicts it",
            counted(first_cleared, "line")
        ));
    }
    finish(writer, done)
}

/// Writes a v2 token file in an exchange format. The file `output` appears only if all of it could be
/// written.
pub fn unpack(
    input: &Path,
    output: &Path,
    format: Exchange,
    on_damage: OnDamage,
) -> Result<Conversion, TokenFileError> {
    let file = TokenFile::open(input)?;
    let too_long = |i: usize, tokens: u32| TokenFileError::TooLongForV1 {
        example: i as u64,
        origin: file.origin_text(i),
        tokens,
    };
    if format == Exchange::V1
        && let Some((i, &tokens)) =
            file.lengths().iter().enumerate().find(|(_, len)| **len as usize > v1::MAX_TOKENS)
    {
        return Err(too_long(i, tokens));
    }

    let begins_with = match format {
        Exchange::V1 => &[v1::SYNC][..],
        Exchange::JsonLines => br#"{"input_ids":["#,
    };
    let partial = PartialFile::create(output, "partial", begins_with)?;
    let mut out = BufWriter::with_capacity(1 << 20, partial.file());
    let mut done = Conversion::default();
    let mut bytes = Vec::new();
    let mut in_memory = 0;
    for i in 0..file.len() {
        in_memory += 4 * file.lengths()[i] as usize;
        if in_memory > 64 << 20 {
            file.release_pages();
            in_memory = 0;
        }
        let example = match file.example(i) {
            Ok(example) => example,
            Err(TokenFileError::Damaged { defect, .. }) => {
                done.leave_out(input, on_damage, *defect)?;
                continue;
            }
            Err(other) => return Err(other),
        };
        bytes.clear();
        match format {
            Exchange::V1 => v1::encode(example.tokens, file.route(i).unwrap_or_default(), &mut bytes)
                .map_err(|unfit| match unfit {
                    Unfit::TooLong => too_long(i, example.tokens.len() as u32),
                    Unfit::TokenId(_) => TokenFileError::BadExample {
                        example: i as u64,
                        origin: file.origin_text(i),
                        reason: "it has a token id above 2147483647, which v1 cannot represent",
                    },
                })?,
            Exchange::JsonLines => {
                let origin = file.origin(i);
                let line = JsonLine {
                    input_ids: example.tokens.into(),
                    loss_mask: Some(example.mask.iter().map(Bit).collect()),
                    source_file: file
                        .header()
                        .sources
                        .get(origin.file as usize)
                        .map(|source| source.name.as_str().into()),
                    source_line: Some(origin.line),
                    src: file.route(i).map(|route| route.src),
                    dst: file.route(i).map(|route| route.dst),
                };
                serde_json::to_writer(&mut bytes, &line).expect("numbers and strings always serialise");
                bytes.push(b'\n');
            }
        }
        out.write_all(&bytes).map_err(TokenFileError::io(output))?;
        done.examples += 1;
        done.tokens += example.tokens.len() as u64;
        done.target_tokens += example.mask.count() as u64;
    }
    out.flush().map_err(TokenFileError::io(output))?;
    drop(out);
    partial.commit()?;

    if format == Exchange::V1 {
        let lost = done.tokens - done.examples - done.target_tokens;
        done.notes.push(format!(
            "v1 has no loss mask: programs that read these packets will also train on {} that would not be trained here",
            counted(lost, "token")
        ));
        done.notes.push("v1 has no source lines and no hashes of tokenizer, template and policy, so they are not in the output".into());
        done.target_tokens = done.tokens - done.examples;
    } else if !file.header().policy.is_empty() {
        done.notes.push("JSON Lines have no hashes of tokenizer, template and policy, so they are not in the output: a token file that is packed from it does not know with which settings its tokens were made".into());
    }
    Ok(done)
}
