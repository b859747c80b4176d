//! Takes one packet apart: its fields byte by byte, and what each of its checks says. The packet may be
//! damaged in any way: the fields are then where an intact packet with these bytes would have them.

use serde::Serialize;
use sparktune_base::escape::escape;
use sparktune_base::units::{count, counted};

use super::checks::{Check, checks_of};
use super::codes::{BFLOAT16, CodeField, FLOAT16, TENSOR, TOKEN_IDS};
use super::dtype::Dtype;
use super::format::{Format, Layer};
use super::typed;
use crate::token_file::v2::packet_len;

/// The most characters of a value that are shown.
const SHOWN: usize = 120;

/// One field of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// The layer that reads it.
    pub layer: Layer,
    /// Its first byte.
    pub offset: usize,
    /// Its bytes, as far as they are there.
    pub len: usize,
    /// Its value, escaped.
    pub value: String,
    /// What it is for, in a sentence.
    pub about: &'static str,
}

/// A packet in its parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Anatomy {
    /// Its format.
    pub format: Format,
    /// The name of the format.
    pub format_name: &'static str,
    /// The bytes that are there.
    pub bytes: usize,
    /// The bytes of the payload that are there.
    pub payload_bytes: usize,
    /// The fields, in order and without gaps.
    pub fields: Vec<Field>,
    /// What each check says.
    pub checks: Vec<Check>,
    /// Whether all of them pass.
    pub is_intact: bool,
}

/// Takes the packet at the start of `bytes` apart.
pub fn inspect(bytes: &[u8]) -> Anatomy {
    inspect_as(Format::of(bytes), bytes)
}

/// Takes a packet apart whose format is known, because its first bytes may be damaged.
pub fn inspect_as(format: Format, bytes: &[u8]) -> Anatomy {
    let mut cut = Cut { bytes, at: 0, fields: Vec::new() };
    match format {
        Format::V1 => v1_fields(&mut cut),
        Format::V2Tokens => v2_token_fields(&mut cut),
        Format::V2Typed => v2_typed_fields(&mut cut),
    }
    cut.rest();
    let fields = cut.fields;
    let checks = checks_of(format, bytes);
    let payload = |field: &&Field| ["payload", "tokens"].contains(&field.name);
    Anatomy {
        format,
        format_name: format.name(),
        bytes: bytes.len(),
        payload_bytes: fields.iter().filter(payload).map(|field| field.len).sum(),
        is_intact: checks.iter().all(|check| check.passes),
        fields,
        checks,
    }
}

/// Cuts fields off, one after the other.
struct Cut<'a> {
    bytes: &'a [u8],
    at: usize,
    fields: Vec<Field>,
}

impl<'a> Cut<'a> {
    fn take(
        &mut self,
        name: &'static str,
        layer: Layer,
        len: usize,
        about: &'static str,
        value: impl FnOnce(&'a [u8]) -> String,
    ) {
        let end = self.at.saturating_add(len).min(self.bytes.len());
        let field = &self.bytes[self.at..end];
        if field.is_empty() {
            return;
        }
        let value = if field.len() < len { "cut off".to_owned() } else { value(field) };
        self.fields.push(Field { name, layer, offset: self.at, len: field.len(), value, about });
        self.at = end;
    }

    fn rest(&mut self) {
        let left = self.bytes.len() - self.at;
        self.take("after", Layer::Frame, left, "Bytes behind the packet.", |bytes| {
            counted(bytes.len() as u64, "byte")
        });
    }
}

/// Returns a little-endian number of up to eight bytes.
fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn number(bytes: &[u8]) -> String {
    count(little(bytes))
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().take(SHOWN / 2).map(|byte| format!("{byte:02x}")).collect();
    if bytes.len() > SHOWN / 2 { format!("{digits}…") } else { digits }
}

fn little_hex(bytes: &[u8]) -> String {
    format!("0x{:0width$x}", little(bytes), width = 2 * bytes.len())
}

/// Joins the first numbers of a list.
fn list(numbers: impl Iterator<Item = String>) -> String {
    let mut text = String::new();
    for (place, number) in numbers.enumerate() {
        if text.len() > SHOWN {
            return format!("{text}, …");
        }
        text.push_str(if place > 0 { ", " } else { "" });
        text.push_str(&number);
    }
    text
}

/// Shows a payload by its TYP.
fn payload(typ: u8, dtype: Option<Dtype>, bytes: &[u8], is_big_endian: bool) -> String {
    let ordered = |chunk: &[u8]| {
        if is_big_endian { chunk.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)) } else { little(chunk) }
    };
    match (typ, dtype.unwrap_or(Dtype::F32)) {
        (TOKEN_IDS, _) => list(bytes.chunks(4).map(|id| (ordered(id) as u32).cast_signed().to_string())),
        (FLOAT16, _) => list(bytes.chunks(2).map(|half| float16(ordered(half) as u16).to_string())),
        (BFLOAT16, _) => {
            list(bytes.chunks(2).map(|half| f32::from_bits((ordered(half) as u32) << 16).to_string()))
        }
        (TENSOR, Dtype::F32) if dtype.is_some() => {
            list(bytes.chunks(4).map(|number| f32::from_bits(ordered(number) as u32).to_string()))
        }
        _ => match std::str::from_utf8(bytes) {
            Ok(text) if !text.is_empty() => {
                let start: String = text.chars().take(SHOWN).collect();
                format!("“{}”{}", escape(&start), if start.len() < text.len() { "…" } else { "" })
            }
            _ => hex(bytes),
        },
    }
}

/// Returns the value of a float16.
fn float16(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1F), f32::from(bits & 0x3FF));
    match exponent {
        0 => sign * fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1024.0 + fraction) * 2f32.powi(exponent - 25),
    }
}

fn code(cut: &mut Cut<'_>, name: &'static str, field: CodeField) {
    let (layer, about) = match field {
        CodeField::Src => (Layer::Routing, "Where the data comes from."),
        CodeField::Dst => (Layer::Routing, "The part of a model that it is meant for."),
        CodeField::Typ => (Layer::Payload, "How the payload is encoded."),
    };
    cut.take(name, layer, 1, about, |byte| field.describe(byte[0]));
}

fn v1_fields(cut: &mut Cut<'_>) {
    let bytes = cut.bytes;
    cut.take("sync", Layer::Frame, 1, "Every packet begins with 0xAA.", little_hex);
    code(cut, "SRC", CodeField::Src);
    code(cut, "DST", CodeField::Dst);
    code(cut, "TYP", CodeField::Typ);
    let len = bytes.get(4..6).map_or(0, |len| usize::from(u16::from_be_bytes([len[0], len[1]])));
    cut.take("LEN", Layer::Frame, 2, "The bytes of the payload; at most 65,535.", |_| count(len as u64));
    let typ = bytes.get(3).copied().unwrap_or_default();
    cut.take("payload", Layer::Payload, len, "What the packet carries.", |bytes| {
        payload(typ, None, bytes, true)
    });
    cut.take("CRC-16", Layer::Frame, 2, "The checksum of everything before it.", |crc| {
        format!("0x{:02x}{:02x}", crc[0], crc[1])
    });
}

fn v2_token_fields(cut: &mut Cut<'_>) {
    let bytes = cut.bytes;
    let tokens = bytes.get(4..8).map_or(0, |n| little(n) as usize);
    cut.take("magic", Layer::Frame, 4, "Every packet of tokens begins with QPKT.", |text| {
        escape(&String::from_utf8_lossy(text)).into_owned()
    });
    cut.take("token_count", Layer::Frame, 4, "The number of tokens, from which the length follows.", number);
    cut.take("example", Layer::Frame, 8, "The place of the example in its file, from 0.", number);
    cut.take("source_line", Layer::Payload, 8, "The line that it was made of; 0 is unknown.", number);
    cut.take("source_file", Layer::Payload, 4, "The place of its file among the sources.", number);
    cut.take("target_count", Layer::Payload, 4, "How many of the tokens are trained.", number);
    cut.take("payload_crc", Layer::Frame, 4, "CRC-32C of everything behind the header.", little_hex);
    cut.take("content_hash", Layer::Payload, 8, "The hash of the line, which decides the split.", little_hex);
    cut.take("route", Layer::Routing, 1, "1 if SRC and DST are known.", number);
    code(cut, "SRC", CodeField::Src);
    code(cut, "DST", CodeField::Dst);
    cut.take("zero", Layer::Frame, 13, "Without a meaning so far.", hex);
    cut.take("header_crc", Layer::Frame, 4, "CRC-32C of the 60 bytes before it.", little_hex);
    cut.take("tokens", Layer::Payload, tokens.saturating_mul(4), "Token ids, u32.", |bytes| {
        payload(TOKEN_IDS, None, bytes, false)
    });
    cut.take(
        "mask",
        Layer::Payload,
        tokens.div_ceil(8),
        "One bit per token: whether it is trained.",
        |bytes| {
            let bits = bytes.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1));
            let shown: String =
                bits.take(tokens.min(SHOWN)).map(|bit| if bit == 1 { '1' } else { '0' }).collect();
            if tokens > SHOWN { format!("{shown}…") } else { shown }
        },
    );
    let len = packet_len(u32::try_from(tokens).unwrap_or(u32::MAX)) as usize;
    cut.take("padding", Layer::Frame, len.saturating_sub(cut.at), "Zeros up to a multiple of 64.", |zeros| {
        counted(zeros.len() as u64, "byte")
    });
}

fn v2_typed_fields(cut: &mut Cut<'_>) {
    let bytes = cut.bytes;
    let at = |from: usize, len: usize| bytes.get(from..from + len).map_or(0, little) as usize;
    let (payload_len, name_len, rank) = (at(16, 8), at(44, 2), at(46, 1));
    let (typ, dtype) = (at(6, 1) as u8, Dtype::of_code(at(7, 1) as u8));
    cut.take("magic", Layer::Frame, 4, "Every typed packet begins with QTPK.", |text| {
        escape(&String::from_utf8_lossy(text)).into_owned()
    });
    code(cut, "SRC", CodeField::Src);
    code(cut, "DST", CodeField::Dst);
    code(cut, "TYP", CodeField::Typ);
    cut.take("dtype", Layer::Payload, 1, "The dtype of the tensor; 0 is no tensor.", |byte| {
        match (byte[0], Dtype::of_code(byte[0])) {
            (0, _) => "no tensor (0)".to_owned(),
            (code, Some(dtype)) => format!("{} ({code})", dtype.name()),
            (code, None) => format!("unknown ({code})"),
        }
    });
    cut.take("number", Layer::Frame, 8, "The place of the packet in its file, from 0.", number);
    cut.take("payload_len", Layer::Frame, 8, "The bytes of the payload; at most 16 MiB.", number);
    cut.take("part", Layer::Payload, 4, "Which part of the tensor this is, from 0.", number);
    cut.take("of", Layer::Payload, 4, "How many parts the tensor has.", number);
    cut.take("state", Layer::Payload, 8, "The hash of all tensors that were written together.", little_hex);
    cut.take("tensors", Layer::Payload, 4, "The number of these tensors.", number);
    cut.take("name_len", Layer::Frame, 2, "The bytes of the tensor's name.", number);
    cut.take("rank", Layer::Frame, 1, "The dimensions of the tensor.", number);
    cut.take("zero", Layer::Frame, 9, "Without a meaning so far.", hex);
    cut.take("body_crc", Layer::Frame, 4, "CRC-32C of everything behind the header.", little_hex);
    cut.take("header_crc", Layer::Frame, 4, "CRC-32C of the 60 bytes before it.", little_hex);
    cut.take("shape", Layer::Payload, 8 * rank, "The shape of the whole tensor, u64.", |bytes| {
        list(bytes.chunks(8).map(number))
    });
    cut.take("name", Layer::Routing, name_len, "The tensor's name, from which its layer follows.", |name| {
        escape(&String::from_utf8_lossy(name)).into_owned()
    });
    pad(cut, "The payload begins at a multiple of 64.");
    cut.take("payload", Layer::Payload, payload_len, "What the packet carries.", |bytes| {
        payload(typ, dtype, bytes, false)
    });
    pad(cut, "Zeros up to a multiple of 64.");
}

fn pad(cut: &mut Cut<'_>, about: &'static str) {
    let zeros = cut.at.next_multiple_of(typed::ALIGN) - cut.at;
    cut.take("padding", Layer::Frame, zeros, about, |zeros| counted(zeros.len() as u64, "byte"));
}
