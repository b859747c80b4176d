//! The secret that the ranks of a job share.

use std::fmt;

use sparktune_ndp::{ServerKey, Token};

use crate::error::Error;

/// The fewest characters of a token: those of 16 random bytes in hexadecimal.
const FEWEST: usize = 32;
/// What the token of the channel and the key of every rank are derived for.
const TOKEN: &str = "sparktune 2026-11-27 token of a cluster job";
const KEY: &str = "sparktune 2026-11-27 key of the ranks of a cluster job";
/// What stands for a token between ranks of one machine that have none.
const LOOPBACK: &str = "no token, on the loopback interface only";

/// The token of a job. It cannot be printed.
#[derive(Clone)]
pub struct JobToken {
    text: String,
}

impl JobToken {
    /// The variable that holds the token.
    pub const VARIABLE: &'static str = "SPARKTUNE_CLUSTER_TOKEN";

    /// Reads a token.
    ///
    /// # Errors
    /// It is so short that it could be guessed.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        if text.len() < FEWEST { Err(Error::ShortToken) } else { Ok(Self { text: text.to_owned() }) }
    }

    /// Stands for a token between ranks of one machine, where any process can know it.
    pub(crate) fn of_loopback() -> Self {
        Self { text: LOOPBACK.to_owned() }
    }

    /// Returns what a rank proves that it knows when it connects.
    pub(crate) fn proof(&self) -> Token {
        Token::from_bytes(blake3::derive_key(TOKEN, self.text.as_bytes()))
    }

    /// Returns another secret that follows from the token and a public number.
    pub(crate) fn derived(&self, purpose: &str, number: &[u8; 16]) -> [u8; 32] {
        blake3::derive_key(purpose, &[&number[..], self.text.as_bytes()].concat())
    }

    /// Returns the key pair of every rank's listener: only who knows the token can be connected to.
    pub(crate) fn key(&self) -> ServerKey {
        ServerKey::from_seed(blake3::derive_key(KEY, self.text.as_bytes()))
    }
}

impl fmt::Debug for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_enough_hidden_and_gives_different_secrets() {
        assert!(matches!(JobToken::parse(" short \n"), Err(Error::ShortToken)));
        let [one, other] = ["0123456789abcdef0123456789abcdef", "1123456789abcdef0123456789abcdef"]
            .map(|text| JobToken::parse(text).unwrap());
        assert_eq!(format!("{one:?}"), "[redacted]");
        assert_ne!(one.key().public(), other.key().public());
        assert_ne!(one.key().public(), JobToken::of_loopback().key().public());
        assert_eq!(one.key().public(), JobToken::parse(&format!("{}\n", one.text)).unwrap().key().public());
    }
}
