//! The address of a token file on another machine: `ndp://HOST:PORT/NAME#KEY`.
//!
//! KEY is the server's Ed25519 public key in 64 hexadecimal digits, which the connection must prove. A key
//! of this kind is as short as its fingerprint, so it needs none. After the key, `:HASH` may name the
//! content, the file hash of the token file: such an address means the same bytes for ever.

use std::fmt;

use sparktune_base::escape::escape;

use crate::error::Error;

/// The beginning of every address.
const SCHEME: &str = "ndp://";
/// The longest name of a file, and of a host (RFC 1035).
const LONGEST_NAME: usize = 255;
/// Digits of a key and of a hash.
const DIGITS: usize = 64;

/// The place of a token file, and the identity of its server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// A name or an IP address; an IPv6 address without its brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// The name of the file at the server.
    pub name: String,
    /// The server's public key.
    pub key: [u8; 32],
    /// The hash of the file, if only this content is meant.
    pub hash: Option<[u8; 32]>,
}

impl Address {
    /// Returns whether this is meant as an address and not as a path.
    pub fn is_meant_by(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Reads an address.
    ///
    /// # Errors
    /// The part that is missing or malformed.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |why: &'static str| Error::BadAddress { given: escape(text).into_owned(), why };
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| bad("it does not begin with ndp://"))?;
        let (place, identity) = rest.split_once('#').ok_or_else(|| {
            bad("the server's key is missing after '#', without which nobody knows who answers")
        })?;
        let (authority, name) = place.split_once('/').ok_or_else(|| bad("the name of a file is missing"))?;
        let (host, port) = authority.rsplit_once(':').ok_or_else(|| bad("the port is missing"))?;
        let host = match host.strip_prefix('[') {
            Some(bracketed) => bracketed.strip_suffix(']').filter(|inside| is_ip_v6(inside)),
            None => Some(host).filter(|host| is_host(host)),
        };
        let host = host.ok_or_else(|| bad("the host is neither a name nor an IP address"))?;
        let port = Some(port)
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok())
            .filter(|port| *port != 0)
            .ok_or_else(|| bad("the port is not a number from 1 to 65,535"))?;
        if !is_name(name) {
            return Err(bad(
                "the name of the file has other characters than letters, digits, '.', '-' and '_'",
            ));
        }
        let (key, hash) = match identity.split_once(':') {
            Some((key, hash)) => (key, Some(hash)),
            None => (identity, None),
        };
        let key = from_hex(key).ok_or_else(|| bad("the server's key is not 64 hexadecimal digits"))?;
        let hash = match hash {
            Some(hash) => Some(from_hex(hash).ok_or_else(|| bad("the hash is not 64 hexadecimal digits"))?),
            None => None,
        };
        Ok(Self { host: host.to_owned(), port, name: name.to_owned(), key, hash })
    }

    /// Returns the address for messages: without the key, which is long.
    pub fn short(&self) -> String {
        format!("{SCHEME}{}/{}", self.authority(), self.name)
    }

    /// Returns the address that means this content.
    #[must_use]
    pub fn pinned(&self, hash: [u8; 32]) -> Self {
        Self { hash: Some(hash), ..self.clone() }
    }

    fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.short(), to_hex(&self.key))?;
        self.hash.iter().try_for_each(|hash| write!(f, ":{}", to_hex(hash)))
    }
}

/// Returns whether this can be the name of a served file.
pub(crate) fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=LONGEST_NAME).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(is_plain)
}

fn is_host(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(is_plain)
}

fn is_ip_v6(text: &str) -> bool {
    text.parse::<std::net::Ipv6Addr>().is_ok()
}

/// Returns lower-case hexadecimal digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads 64 hexadecimal digits.
pub(crate) fn from_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != DIGITS || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; DIGITS / 2];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    #[test]
    fn an_address_is_read_and_written_alike() {
        for place in ["spark-a:7272/train", "10.0.0.2:1/a.b_c", "[fe80::1]:65535/x"] {
            for identity in [KEY.to_owned(), format!("{KEY}:{KEY}")] {
                let text = format!("ndp://{place}#{identity}");
                let address = Address::parse(&text).unwrap();
                assert_eq!(address.to_string(), text);
                assert_eq!(address.short(), format!("ndp://{place}"));
                assert_eq!(Address::parse(&address.pinned([7; 32]).to_string()).unwrap().hash, Some([7; 32]));
            }
        }
    }

    #[test]
    fn an_address_without_one_of_its_parts_says_which() {
        for (text, why) in [
            ("ndp://a:1/x", "key is missing"),
            ("ndp://a:1#", "name of a file is missing"),
            ("ndp://a/x#", "port is missing"),
            ("ndp://a:0/x#", "from 1 to 65,535"),
            ("ndp://a:+1/x#", "from 1 to 65,535"),
            ("ndp://:1/x#", "neither a name nor"),
            ("ndp://[a]:1/x#", "neither a name nor"),
            ("ndp://me@a:1/x#", "neither a name nor"),
            ("ndp://a:1/../x#", "other characters"),
            ("ndp://a:1/#", "other characters"),
            ("ndp://a:1/x#12", "64 hexadecimal"),
            (&format!("ndp://a:1/x#{KEY}:\u{1b}"), "the hash is not"),
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("data serve"), "{text}: {error}");
            assert!(!error.contains('\u{1b}'), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_a_reason(text in "(ndp://)?[ -~]{0,90}(#[0-9a-f:]{0,130})?") {
            if let Ok(address) = Address::parse(&text) {
                prop_assert_eq!(Address::parse(&address.to_string()).unwrap(), address);
            }
        }
    }
}
