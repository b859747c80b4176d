//! The codes of a packet: where its data comes from (SRC), the part of a model that it is meant for (DST),
//! and how its payload is encoded (TYP).
//!
//! The codes below 0x80 are those that the public description of the protocol names, and no others; those
//! from 0x80 on are ours, for what it has no code for. A code that is in neither list is carried as it is.

use serde::{Deserialize, Serialize};

/// SRC: a text corpus.
pub const TEXT: u8 = 0x01;
/// SRC: code.
pub const CODE: u8 = 0x02;
/// SRC: gradients.
pub const GRADIENT: u8 = 0x05;
/// SRC: the weights of a model or an adapter. Ours.
pub const WEIGHTS: u8 = 0x80;

/// DST: the embedding.
pub const EMBEDDING: u8 = 0x01;
/// DST: an attention layer, of either kind.
pub const ATTENTION: u8 = 0x02;
/// DST: a feed-forward layer.
pub const FFN: u8 = 0x03;
/// DST: a LoRA factor.
pub const LORA: u8 = 0x05;
/// DST: a tensor of another part, which its name tells. Ours.
pub const OTHER_PART: u8 = 0x80;

/// TYP: token ids. Signed 32-bit numbers, big-endian in v1 and little-endian in v2.
pub const TOKEN_IDS: u8 = 0x01;
/// TYP: numbers in float16.
pub const FLOAT16: u8 = 0x03;
/// TYP: numbers in bfloat16.
pub const BFLOAT16: u8 = 0x06;
/// TYP: numbers of another dtype, which the packet names. Ours.
pub const TENSOR: u8 = 0x80;
/// TYP: bytes without a meaning that the packet knows. Ours.
pub const BYTES: u8 = 0x81;

/// Where the data of a packet comes from, and what it is meant for. Any codes are carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Route {
    /// The source.
    pub src: u8,
    /// The part of a model.
    pub dst: u8,
}

impl Default for Route {
    /// Text for the embedding, as converters of text write it.
    fn default() -> Self {
        Self { src: TEXT, dst: EMBEDDING }
    }
}

/// A byte of a packet's header that holds a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CodeField {
    /// SRC.
    Src,
    /// DST.
    Dst,
    /// TYP.
    Typ,
}

/// A code with its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Code {
    /// The number.
    pub code: u8,
    /// The word for a command line.
    pub word: &'static str,
    /// What it means.
    pub name: &'static str,
}

const fn code(code: u8, word: &'static str, name: &'static str) -> Code {
    Code { code, word, name }
}

const SOURCES: [Code; 4] = [
    code(TEXT, "text", "text corpus"),
    code(CODE, "code", "code"),
    code(GRADIENT, "gradient", "gradient"),
    code(WEIGHTS, "weights", "weights"),
];
const DESTINATIONS: [Code; 5] = [
    code(EMBEDDING, "embedding", "embedding"),
    code(ATTENTION, "attention", "attention"),
    code(FFN, "ffn", "feed-forward"),
    code(LORA, "lora", "LoRA"),
    code(OTHER_PART, "other", "other part"),
];
const TYPES: [Code; 5] = [
    code(TOKEN_IDS, "token-ids", "token ids"),
    code(FLOAT16, "float16", "float16"),
    code(BFLOAT16, "bfloat16", "bfloat16"),
    code(TENSOR, "tensor", "tensor"),
    code(BYTES, "bytes", "bytes"),
];

impl CodeField {
    /// Returns the codes that have a name.
    pub const fn codes(self) -> &'static [Code] {
        match self {
            Self::Src => &SOURCES,
            Self::Dst => &DESTINATIONS,
            Self::Typ => &TYPES,
        }
    }

    /// Returns what a code means; `None` if it is unknown.
    pub fn name_of(self, code: u8) -> Option<&'static str> {
        self.codes().iter().find(|known| known.code == code).map(|known| known.name)
    }

    /// Returns a code in words, such as `code (2)`, or `unknown (42)`.
    pub fn describe(self, code: u8) -> String {
        format!("{} ({code})", self.name_of(code).unwrap_or("unknown"))
    }

    /// Reads a code: its word, or any number up to 255, also as `0x2a`.
    ///
    /// # Errors
    /// A sentence that names the words.
    pub fn parse(self, text: &str) -> Result<u8, String> {
        let text = text.trim();
        let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(digits) => u8::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let named = || self.codes().iter().find(|known| known.word.eq_ignore_ascii_case(text));
        number.or_else(|| named().map(|known| known.code)).ok_or_else(|| {
            let words: Vec<_> = self.codes().iter().map(|known| known.word).collect();
            format!("use a number from 0 to 255, or one of {}", words.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_codes_hold_and_unknown_ones_are_named_as_unknown() {
        for (field, code, name) in [
            (CodeField::Src, 1, "text corpus (1)"),
            (CodeField::Src, 2, "code (2)"),
            (CodeField::Src, 5, "gradient (5)"),
            (CodeField::Dst, 1, "embedding (1)"),
            (CodeField::Dst, 2, "attention (2)"),
            (CodeField::Dst, 3, "feed-forward (3)"),
            (CodeField::Dst, 5, "LoRA (5)"),
            (CodeField::Typ, 1, "token ids (1)"),
            (CodeField::Typ, 3, "float16 (3)"),
            (CodeField::Typ, 6, "bfloat16 (6)"),
            (CodeField::Src, 0, "unknown (0)"),
            (CodeField::Dst, 4, "unknown (4)"),
            (CodeField::Typ, 255, "unknown (255)"),
        ] {
            assert_eq!(field.describe(code), name);
        }
    }

    #[test]
    fn codes_are_read_as_words_and_numbers() {
        assert_eq!(CodeField::Dst.parse("LoRA"), Ok(LORA));
        assert_eq!(CodeField::Src.parse(" 7 "), Ok(7));
        assert_eq!(CodeField::Typ.parse("0x81"), Ok(BYTES));
        let refused = CodeField::Typ.parse("256").unwrap_err();
        assert_eq!(
            refused,
            "use a number from 0 to 255, or one of token-ids, float16, bfloat16, tensor, bytes"
        );
        assert!(CodeField::Src.parse("0x").is_err() && CodeField::Src.parse("-1").is_err());
    }
}
