//! The secret that the members of a cluster share, and what is derived from it.

use std::fmt;
use std::fmt::Write;

use rustix::rand::{GetRandomFlags, getrandom};
use sparktune_ndp::{ServerKey, Token};

use crate::error::Error;
use crate::token::JobToken;

/// Digits of a token that this program makes: 256 bits.
const DIGITS: usize = 64;
/// What the secrets of the agents' channel and of the calls on the link are derived for. A job of ranks has
/// others, so what is said in one place proves nothing in another.
const TOKEN: &str = "sparktune 2026-11-27 token of the members of a cluster";
const KEY: &str = "sparktune 2026-11-27 key of the agents of a cluster";
const CALL: &str = "sparktune 2026-11-27 tags of calls on the link";

/// The token of a cluster. It cannot be printed by accident: only [`ClusterToken::reveal`] shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterToken {
    text: String,
}

impl ClusterToken {
    /// Makes a new token of 256 random bits.
    pub fn generate() -> Self {
        Self { text: random_hex::<{ DIGITS / 2 }>() }
    }

    /// Reads a token.
    ///
    /// # Errors
    /// It is so short that it could be guessed.
    pub fn parse(text: &str) -> Result<Self, Error> {
        JobToken::parse(text)?;
        Ok(Self { text: text.trim().to_owned() })
    }

    /// Returns the text, to be kept in a private file or shown once to who starts the cluster.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// Returns what a side proves that it knows when it connects to an agent.
    pub(crate) fn proof(&self) -> Token {
        Token::from_bytes(blake3::derive_key(TOKEN, self.text.as_bytes()))
    }

    /// Returns the key pair of every agent: only who knows the token can be connected to.
    pub(crate) fn key(&self) -> ServerKey {
        ServerKey::from_seed(blake3::derive_key(KEY, self.text.as_bytes()))
    }

    /// Returns the key of the tags of calls.
    pub(crate) fn call_key(&self) -> [u8; 32] {
        blake3::derive_key(CALL, self.text.as_bytes())
    }
}

impl fmt::Debug for ClusterToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// Returns so many random bytes.
pub(crate) fn random<const BYTES: usize>() -> [u8; BYTES] {
    let mut bytes = [0_u8; BYTES];
    let filled = getrandom(&mut bytes[..], GetRandomFlags::empty());
    assert_eq!(filled, Ok(BYTES), "the kernel's generator gives this many bytes at once");
    bytes
}

/// Returns so many random bytes in hexadecimal digits: the name of a member, or the token of a job.
pub fn random_hex<const BYTES: usize>() -> String {
    random::<BYTES>().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_random_long_hidden_and_has_secrets_of_its_own_for_each_use() {
        let [one, other] = [ClusterToken::generate(), ClusterToken::generate()];
        assert_ne!(one, other);
        assert_eq!(one.reveal().len(), DIGITS);
        assert_eq!(format!("{one:?}"), "[redacted]");
        assert_eq!(ClusterToken::parse(&format!(" {}\n", one.reveal())).unwrap(), one);
        assert!(matches!(ClusterToken::parse("0123456789abcdef"), Err(Error::ShortToken)));
        let of_a_job = JobToken::parse(one.reveal()).unwrap();
        assert_ne!(one.key().public(), of_a_job.key().public());
        assert_ne!(one.call_key(), other.call_key());
    }
}
