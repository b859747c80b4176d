//! The fourth layer: who takes a packet.
//!
//! Contract: each packet goes to the one part that takes its codes, or is refused with the names of its
//! codes; nothing is guessed, and no payload is looked at. The codes of token ids are the published ones
//! of the Neural Datagram Protocol. Those of a token file's opening and closing and of the channel itself
//! are ours, at the end of the range of TYP, where nothing is published.

use crate::frame::{CONTROL, Codes};

/// The header of a token file.
pub const OPENING: Codes = Codes { src: 0, dst: 0, typ: 0xF1 };
/// The index and the footer of a token file.
pub const CLOSING: Codes = Codes { src: 0, dst: 0, typ: 0xF2 };
/// Token ids of text for the embedding, which an example of a token file is.
pub const TOKENS: Codes = Codes { src: 1, dst: 1, typ: 1 };

/// Returns the codes with their names.
fn named(codes: Codes) -> String {
    let Codes { src, dst, typ } = codes;
    let src_name = match src {
        0 => " (none)",
        1 => " (text)",
        2 => " (code)",
        5 => " (gradient)",
        _ => "",
    };
    let dst_name = match dst {
        0 => " (none)",
        1 => " (embedding)",
        2 => " (attention)",
        3 => " (feed-forward)",
        5 => " (LoRA)",
        _ => "",
    };
    let typ_name = match typ {
        1 => " (token ids)",
        3 => " (float16)",
        6 => " (bfloat16)",
        _ => "",
    };
    format!("SRC {src}{src_name}, DST {dst}{dst_name}, TYP {typ}{typ_name}")
}

/// The parts that take packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taker {
    /// The channel.
    Channel,
    /// The token file, as its header.
    Opening,
    /// The token file, as an example. Code is text to a model, so both sources are taken.
    Example,
    /// The token file, as its index and footer.
    Closing,
}

/// Nobody takes packets of these codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a packet with {} arrived, which no part of this program takes from another machine", named(*.0))]
pub struct Unroutable(pub Codes);

/// Returns who takes packets of these codes.
///
/// # Errors
/// Nobody does.
pub fn taker_of(codes: Codes) -> Result<Taker, Unroutable> {
    match codes {
        CONTROL => Ok(Taker::Channel),
        OPENING => Ok(Taker::Opening),
        CLOSING => Ok(Taker::Closing),
        Codes { src: 1 | 2, dst: 1, typ: 1 } => Ok(Taker::Example),
        _ => Err(Unroutable(codes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_all_codes_exactly_the_known_ones_are_taken() {
        let all = (0..=u8::MAX)
            .flat_map(|src| (0..=u8::MAX).flat_map(move |dst| (0..=u8::MAX).map(move |typ| (src, dst, typ))));
        let taken = all.filter_map(|(src, dst, typ)| taker_of(Codes { src, dst, typ }).ok());
        let taken: Vec<Taker> = taken.collect();
        assert_eq!(taken, [Taker::Channel, Taker::Opening, Taker::Closing, Taker::Example, Taker::Example]);
    }

    #[test]
    fn what_nobody_takes_is_named() {
        let refused = taker_of(Codes { src: 5, dst: 5, typ: 6 }).unwrap_err().to_string();
        assert!(refused.contains("SRC 5 (gradient), DST 5 (LoRA), TYP 6 (bfloat16)"), "{refused}");
        let unknown = taker_of(Codes { src: 9, dst: 1, typ: 1 }).unwrap_err().to_string();
        assert!(unknown.contains("SRC 9, DST 1 (embedding)"), "{unknown}");
    }
}
