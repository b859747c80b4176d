//! The checks of a packet, each with what it says of these bytes.

use serde::Serialize;
use sparktune_base::units::count;

use super::codes::{BFLOAT16, FLOAT16, TOKEN_IDS};
use super::format::{Format, Layer};
use super::typed::{self, PacketFault, TypedPacket};
use crate::token_file::v1;
use crate::token_file::v2::{PACKET_HEADER, PACKET_MAGIC, packet_len};

/// What a check says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// The layer that it belongs to.
    pub layer: Layer,
    /// Whether the bytes pass.
    pub passes: bool,
    /// What it found, in words.
    pub says: String,
    /// The first byte that it covers.
    pub from: usize,
    /// The byte after the last that it covers.
    pub to: usize,
}

/// Runs every check of a packet. A reader stops at the first that fails; here each has its say.
pub fn checks_of(format: Format, bytes: &[u8]) -> Vec<Check> {
    match format {
        Format::V1 => v1_checks(bytes),
        Format::V2Tokens => v2_token_checks(bytes),
        Format::V2Typed => v2_typed_checks(bytes),
    }
}

fn check(
    name: &'static str,
    layer: Layer,
    covers: std::ops::Range<usize>,
    found: Result<String, String>,
) -> Check {
    let passes = found.is_ok();
    let (Ok(says) | Err(says)) = found;
    Check { name, layer, passes, says, from: covers.start, to: covers.end.max(covers.start) }
}

fn start(bytes: &[u8], magic: &[u8], shown: &str) -> Check {
    let found = if bytes.starts_with(magic) {
        Ok(format!("it is {shown}"))
    } else {
        Err(format!("it is not {shown}"))
    };
    check("start", Layer::Frame, 0..magic.len().min(bytes.len()), found)
}

/// Whether as many bytes are there as the packet states.
fn length(bytes: &[u8], field: std::ops::Range<usize>, stated: u64) -> Check {
    let there = bytes.len() as u64;
    let found = if there < stated {
        Err(format!("the packet states {} bytes, and {} are there", count(stated), count(there)))
    } else if there > stated {
        Ok(format!("{} bytes; behind them are {} more", count(stated), count(there - stated)))
    } else {
        Ok(format!("{} bytes, and all are there", count(stated)))
    };
    check("length", Layer::Frame, field.start.min(bytes.len())..field.end.min(bytes.len()), found)
}

fn compared(stored: String, computed: String) -> Result<String, String> {
    if stored == computed {
        Ok(format!("{stored} is stored and computed"))
    } else {
        Err(format!("{stored} is stored, and {computed} computed"))
    }
}

/// A CRC-32C over a range, stored at `at`.
fn crc32c_check(name: &'static str, bytes: &[u8], covers: std::ops::Range<usize>, at: usize) -> Check {
    let found = match (bytes.get(covers.clone()), bytes.get(at..at + 4)) {
        (Some(covered), Some(stored)) => {
            let stored = u32::from_le_bytes(stored.try_into().expect("four bytes"));
            compared(format!("0x{stored:08x}"), format!("0x{:08x}", crc32c::crc32c(covered)))
        }
        _ => Err("the bytes that it covers are not all there".to_owned()),
    };
    let end = covers.end.min(bytes.len());
    check(name, Layer::Frame, covers.start.min(end)..end, found)
}

/// Whether a payload is a whole number of what its TYP says.
fn whole_values(typ: u8, payload: &[u8], id: fn([u8; 4]) -> i32) -> Result<String, String> {
    let (width, what) = match typ {
        TOKEN_IDS => (4, "token ids"),
        FLOAT16 | BFLOAT16 => (2, "numbers"),
        _ => return Ok(format!("{} bytes, whose meaning TYP leaves open", count(payload.len() as u64))),
    };
    if !payload.len().is_multiple_of(width) {
        return Err(format!("{} bytes are not a whole number of {what}", count(payload.len() as u64)));
    }
    if typ == TOKEN_IDS {
        let (ids, _) = payload.as_chunks::<4>();
        if let Some(negative) = ids.iter().map(|bytes| id(*bytes)).find(|id| *id < 0) {
            return Err(format!("{negative} is not a token id"));
        }
    }
    Ok(format!("{} {what}", count((payload.len() / width) as u64)))
}

fn v1_checks(bytes: &[u8]) -> Vec<Check> {
    let header = v1::HEADER;
    let mut checks = vec![start(bytes, &[v1::SYNC], "0xAA")];
    let Some(len) = bytes.get(4..6).map(|len| usize::from(u16::from_be_bytes([len[0], len[1]]))) else {
        checks.push(length(bytes, 0..bytes.len(), header as u64 + 2));
        return checks;
    };
    let end = header + len;
    checks.push(length(bytes, 4..6, end as u64 + 2));
    let crc = match bytes.get(end..end + 2) {
        Some(stored) => compared(
            format!("0x{:02x}{:02x}", stored[0], stored[1]),
            format!("0x{:04x}", v1::checksum(&bytes[..end])),
        ),
        None => Err("the bytes that it covers are not all there".to_owned()),
    };
    checks.push(check("CRC-16", Layer::Frame, 0..end.min(bytes.len()), crc));
    let payload = &bytes[header..end.min(bytes.len())];
    let content = whole_values(bytes[3], payload, i32::from_be_bytes);
    checks.push(check("content", Layer::Payload, header..header + payload.len(), content));
    checks
}

fn v2_token_checks(bytes: &[u8]) -> Vec<Check> {
    let mut checks = vec![start(bytes, &PACKET_MAGIC, "QPKT")];
    if bytes.len() < PACKET_HEADER {
        checks.push(length(bytes, 0..bytes.len(), PACKET_HEADER as u64));
        return checks;
    }
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let (tokens, targets) = (number(4), number(28));
    let len = packet_len(tokens);
    checks.push(crc32c_check("header CRC-32C", bytes, 0..60, 60));
    checks.push(length(bytes, 4..8, len));
    let end = usize::try_from(len).unwrap_or(usize::MAX);
    checks.push(crc32c_check("payload CRC-32C", bytes, PACKET_HEADER..end, 32));
    let ids = PACKET_HEADER..PACKET_HEADER + 4 * tokens as usize;
    let mask = bytes.get(ids.end..ids.end + tokens.div_ceil(8) as usize);
    let content = match mask {
        None => Err("tokens and mask are not all there".to_owned()),
        Some(_) if tokens == 0 => Err("there are no tokens".to_owned()),
        Some(mask) => {
            let found: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
            if found != targets {
                let (found, targets) = (count(found.into()), count(targets.into()));
                Err(format!("the mask marks {found} tokens as trained, and the header states {targets}"))
            } else if mask[0] & 1 == 1 {
                Err("the first token is marked as trained, but no earlier one predicts it".to_owned())
            } else {
                Ok(format!("{} token ids, {} of them trained", count(tokens.into()), count(targets.into())))
            }
        }
    };
    let covers = ids.start.min(bytes.len())..end.min(bytes.len());
    checks.push(check("content", Layer::Payload, covers, content));
    checks
}

fn v2_typed_checks(bytes: &[u8]) -> Vec<Check> {
    let mut checks = vec![start(bytes, &typed::MAGIC, "QTPK")];
    if bytes.len() < typed::HEADER {
        checks.push(length(bytes, 0..bytes.len(), typed::HEADER as u64));
        return checks;
    }
    let end = typed::stated_len(bytes);
    checks.push(crc32c_check("header CRC-32C", bytes, 0..60, 60));
    checks.push(length(bytes, 16..24, end as u64));
    checks.push(crc32c_check("body CRC-32C", bytes, typed::HEADER..end, 56));
    // A reader looks at the content only behind correct checksums.
    let content = match TypedPacket::decode(bytes) {
        Ok((packet, _)) => match packet.header.tensor {
            Some(tensor) => Ok(format!(
                "part {} of {} of a tensor of {}, shape {:?}",
                u64::from(tensor.part) + 1,
                tensor.of,
                tensor.dtype.name(),
                tensor.shape
            )),
            None => whole_values(packet.header.typ, packet.payload, i32::from_le_bytes),
        },
        Err(PacketFault::Content { what }) => Err(what),
        Err(_) => Err("it is not read, because an earlier check fails".to_owned()),
    };
    checks.push(check("content", Layer::Payload, typed::HEADER..end.min(bytes.len()), content));
    checks
}
