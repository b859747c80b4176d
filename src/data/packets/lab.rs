//! Makes single packets, damages them, and tells what their checks and their size are: for `packet` on the
//! command line, and for the page.

use std::fmt::Write;

use serde::Serialize;

use super::checks::checks_of;
use super::codes::{BYTES, Route, TOKEN_IDS};
use super::dtype::Dtype;
use super::error::PacketError;
use super::format::Format;
use super::typed::{self, StateId, TensorPart, TypedHeader};
use crate::token_file::all_but_first;
use crate::token_file::v1::{self, Unfit};
use crate::token_file::v2::{PacketHeader, encode_packet, packet_len};

/// What a packet is to carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Token ids.
    Ids(Vec<u32>),
    /// Bytes of any kind.
    Bytes(Vec<u8>),
    /// A whole tensor.
    Tensor {
        /// Its name.
        name: String,
        /// The encoding of its numbers.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<u64>,
        /// Its numbers, little-endian.
        bytes: Vec<u8>,
    },
}

impl Content {
    /// Returns the TYP that belongs to it.
    pub fn typ(&self) -> u8 {
        match self {
            Self::Ids(_) => TOKEN_IDS,
            Self::Bytes(_) => BYTES,
            Self::Tensor { dtype, .. } => dtype.typ(),
        }
    }
}

/// The versions of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The published one.
    V1,
    /// Ours.
    V2,
}

/// Makes one packet. Token ids become a packet of a token file in version 2, of which every token but the
/// first is trained, unless another TYP is given.
///
/// # Errors
/// The packet cannot hold the content.
pub fn encode(
    version: Version,
    route: Route,
    typ: Option<u8>,
    content: &Content,
) -> Result<Vec<u8>, PacketError> {
    let typ = typ.unwrap_or_else(|| content.typ());
    let mut out = Vec::new();
    match (version, content) {
        (Version::V1, Content::Ids(ids)) if typ == TOKEN_IDS => {
            v1::encode(ids, route, &mut out).map_err(|unfit| unfit_in_v1(unfit, ids.len() * 4))?;
        }
        (Version::V1, Content::Ids(ids)) => {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_be_bytes()).collect();
            v1::encode_bytes(route, typ, &bytes, &mut out)
                .map_err(|unfit| unfit_in_v1(unfit, bytes.len()))?;
        }
        (Version::V1, Content::Bytes(bytes) | Content::Tensor { bytes, .. }) => {
            v1::encode_bytes(route, typ, bytes, &mut out).map_err(|unfit| unfit_in_v1(unfit, bytes.len()))?;
        }
        (Version::V2, Content::Ids(ids)) if typ == TOKEN_IDS => {
            if ids.is_empty() || ids.len() as u64 > typed::MAX_PAYLOAD / 4 {
                return Err(PacketError::unfit(
                    "a packet of tokens has at least one token, and here at most 4,194,304",
                    "Give some token ids",
                ));
            }
            if ids.iter().any(|id| i32::try_from(*id).is_err()) {
                return Err(PacketError::unfit(
                    "a token id is above 2,147,483,647",
                    "Give ids of a tokenizer",
                ));
            }
            let header = PacketHeader { route: Some(route), ..PacketHeader::default() };
            encode_packet(header, ids, &all_but_first(ids.len()), &mut out);
        }
        (Version::V2, content) => {
            let (tensor, bytes) = match content {
                Content::Ids(ids) => (None, ids.iter().flat_map(|id| id.to_le_bytes()).collect()),
                Content::Bytes(bytes) => (None, bytes.clone()),
                Content::Tensor { name, dtype, shape, bytes } => {
                    let (name, shape) = (name.clone(), shape.clone());
                    let state = StateId { hash: 0, tensors: 1 };
                    (Some(TensorPart { name, dtype: *dtype, shape, part: 0, of: 1, state }), bytes.clone())
                }
            };
            TypedHeader { route, typ, number: 0, tensor }.encode(&bytes, &mut out)?;
        }
    }
    Ok(out)
}

fn unfit_in_v1(unfit: Unfit, bytes: usize) -> PacketError {
    match unfit {
        Unfit::TooLong => PacketError::unfit(
            format!(
                "{bytes} bytes do not fit a packet of version 1, whose length has 16 bits: at most 65,535"
            ),
            "Use version 2, or cut the content",
        ),
        Unfit::TokenId(id) => PacketError::unfit(
            format!("{id} does not fit the signed 32-bit numbers of version 1"),
            "Give ids of a tokenizer",
        ),
    }
}

/// Flips a bit. Bit 0 is the lowest bit of the first byte.
///
/// # Errors
/// The packet has fewer bits.
pub fn flip(bytes: &mut [u8], bit: usize) -> Result<(), PacketError> {
    let bits = 8 * bytes.len();
    match bytes.get_mut(bit / 8) {
        Some(byte) => {
            *byte ^= 1 << (bit % 8);
            Ok(())
        }
        None => Err(PacketError::unfit(
            format!("there is no bit {bit}: the packet has {bits}, counted from 0"),
            "Give a smaller number",
        )),
    }
}

/// What the checks say when each bit of a packet is flipped alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EveryFlip {
    /// The number of bits.
    pub bits: usize,
    /// Those of which at least one check notices the flip.
    pub noticed: usize,
    /// The first of those that no check notices.
    pub missed: Vec<usize>,
    /// How many each check notices.
    pub by_check: Vec<(&'static str, usize)>,
}

/// Flips each bit of an intact packet alone.
pub fn every_flip(packet: &[u8]) -> EveryFlip {
    const LISTED: usize = 64;
    let format = Format::of(packet);
    let mut bytes = packet.to_vec();
    let names = checks_of(format, packet).into_iter().map(|check| (check.name, 0)).collect();
    let mut found = EveryFlip { bits: 8 * bytes.len(), noticed: 0, missed: Vec::new(), by_check: names };
    for bit in 0..found.bits {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let failing = checks_of(format, &bytes).into_iter().filter(|check| !check.passes);
        let mut is_noticed = false;
        for check in failing {
            is_noticed = true;
            if let Some((_, noticed)) = found.by_check.iter_mut().find(|(name, _)| *name == check.name) {
                *noticed += 1;
            }
        }
        if is_noticed {
            found.noticed += 1;
        } else if found.missed.len() < LISTED {
            found.missed.push(bit);
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    found
}

/// The bytes of packets with a payload of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Overhead {
    /// The payload: token ids of four bytes each.
    pub payload_bytes: u64,
    /// A packet of version 1; `None` if none can hold it.
    pub v1_bytes: Option<u64>,
    /// A packet of a token file of version 2, with its mask.
    pub v2_token_bytes: u64,
    /// A typed packet of version 2 without a name. Above 16 MiB it is `None`.
    pub v2_typed_bytes: Option<u64>,
}

/// Returns what packets of `tokens` token ids take.
pub fn overhead(tokens: u32) -> Overhead {
    let payload = 4 * u64::from(tokens);
    let fits = tokens as usize <= v1::MAX_TOKENS;
    Overhead {
        payload_bytes: payload,
        v1_bytes: fits.then_some(payload + v1::HEADER as u64 + 2),
        v2_token_bytes: packet_len(tokens),
        v2_typed_bytes: (payload <= typed::MAX_PAYLOAD)
            .then(|| typed::HEADER as u64 + payload.next_multiple_of(typed::ALIGN as u64)),
    }
}

/// Returns bytes as hex digits.
pub fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a text takes any text");
    }
    text
}

/// Reads hex digits in pairs, with white space anywhere between them and 0x at the beginning. `None` if there
/// is anything else, or nothing.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let text = text.trim();
    let text = text.strip_prefix("0x").unwrap_or(text);
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let value = |digit: u8| char::from(digit).to_digit(16);
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() || pairs.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some((value(*high)? << 4 | value(*low)?) as u8)).collect()
}
