//! An algorithm of the library as it is recorded: in one word of a line of text.

use std::fmt;
use std::str::FromStr;

use super::sys::{ALGORITHM_WORDS, WORKSPACE_BYTES};

/// An algorithm for products of one shape, as the library's heuristic described it. The description is opaque
/// and belongs to one version of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Algorithm {
    /// The version of the library, `130002`.
    pub(super) version: usize,
    pub(super) workspace_bytes: usize,
    pub(super) words: [u64; ALGORITHM_WORDS],
}

impl Algorithm {
    /// The version of the library that it is an algorithm of, `130002`.
    pub(crate) fn version(&self) -> usize {
        self.version
    }
}

/// Formats `130002:33554432:` and the description in hexadecimal digits.
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}:{}:", self.version, self.workspace_bytes)?;
        self.words.iter().try_for_each(|word| write!(f, "{word:016x}"))
    }
}

/// The text is no algorithm.
#[derive(Debug, PartialEq, Eq)]
pub struct NoAlgorithm;

impl FromStr for Algorithm {
    type Err = NoAlgorithm;

    fn from_str(text: &str) -> Result<Self, NoAlgorithm> {
        let fields: Vec<&str> = text.split(':').collect();
        let [version, workspace_bytes, digits] = fields[..] else { return Err(NoAlgorithm) };
        let (version, workspace_bytes) = (number(version)?, number(workspace_bytes)?);
        let is_hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        if workspace_bytes > WORKSPACE_BYTES || digits.len() != 16 * ALGORITHM_WORDS || !is_hexadecimal {
            return Err(NoAlgorithm);
        }
        let mut words = [0; ALGORITHM_WORDS];
        for (i, word) in words.iter_mut().enumerate() {
            *word = u64::from_str_radix(&digits[16 * i..][..16], 16).map_err(|_| NoAlgorithm)?;
        }
        Ok(Self { version, workspace_bytes, words })
    }
}

fn number(text: &str) -> Result<usize, NoAlgorithm> {
    text.parse().map_err(|_| NoAlgorithm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_algorithm_is_read_back_and_nothing_else() {
        let words = [1, u64::MAX, 0, 0xfeed, 4, 5, 6, 7];
        let algorithm = Algorithm { version: 130_002, workspace_bytes: 1 << 25, words };
        let text = algorithm.to_string();
        assert!(text.starts_with("130002:33554432:0000000000000001ffffffffffffffff0"), "{text}");
        assert_eq!(text.parse(), Ok(algorithm));
        let too_much = text.replace("33554432", "33554433");
        for bad in ["", "own", "130002", &text[1..text.len() - 1], &text.replace("feed", "fe-d"), &too_much] {
            assert_eq!(bad.parse::<Algorithm>(), Err(NoAlgorithm), "{bad}");
        }
        assert_eq!(text.replace("feed", "fe+d").parse::<Algorithm>(), Err(NoAlgorithm));
    }
}
