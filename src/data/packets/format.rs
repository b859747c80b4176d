//! The formats of a single packet, and the layers that read its fields.

use serde::Serialize;

use super::typed;
use crate::token_file::v1;
use crate::token_file::v2::PACKET_MAGIC;

/// The formats of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A packet of version 1.
    V1,
    /// An example in a token file of version 2.
    V2Tokens,
    /// A typed packet of version 2.
    V2Typed,
}

impl Format {
    /// Recognises a packet by its first bytes. If none fits, it is the one with the most bits in common, so
    /// that a packet whose first byte is damaged is still shown as what it was.
    pub fn of(bytes: &[u8]) -> Self {
        let starts = |magic: &[u8]| bytes.starts_with(magic);
        if starts(&PACKET_MAGIC) {
            return Self::V2Tokens;
        }
        if starts(&typed::MAGIC) {
            return Self::V2Typed;
        }
        if starts(&[v1::SYNC]) {
            return Self::V1;
        }
        let differing = |magic: &[u8]| -> u32 {
            let both = bytes.iter().zip(magic);
            both.map(|(one, other)| (one ^ other).count_ones()).sum()
        };
        let (tokens, typed) = (differing(&PACKET_MAGIC), differing(&typed::MAGIC));
        // Eight bits in 32 are what one damaged byte may change.
        if bytes.len() < 4 || tokens.min(typed) > 8 {
            Self::V1
        } else if tokens <= typed {
            Self::V2Tokens
        } else {
            Self::V2Typed
        }
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "packet of version 1",
            Self::V2Tokens => "packet of version 2 with tokens",
            Self::V2Typed => "typed packet of version 2",
        }
    }
}

/// The layer that reads a field. The two others, medium and stream, are outside of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Where a packet begins and ends, and whether its bytes are those that were written.
    Frame,
    /// Where it comes from and where it goes.
    Routing,
    /// What it carries.
    Payload,
}
