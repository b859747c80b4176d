//! The token: a random secret in a file that only this user can read, the same for all of the user's
//! servers and after a restart.
//!
//! A program sends it as `Authorization: Bearer`. A browser gets it once as part of a URL, and from then on
//! as a cookie, which no script can read and no other site can make the browser send.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use axum::http::header::{AUTHORIZATION, COOKIE};
use axum::http::{HeaderMap, HeaderValue};
use rustix::rand::{GetRandomFlags, getrandom};
use sparktune_app::failure::{Exit, Failure};
use sparktune_base::files::{create_private_folder, is_private_file};
use sparktune_base::regular_file::read_regular;

/// The name of the file.
const FILE: &str = "serve-token";
/// The number of random bytes.
const BYTES: usize = 32;
/// The time that a browser keeps the cookie.
const COOKIE_S: u32 = 30 * 24 * 60 * 60;

/// The secret.
#[derive(Clone)]
pub(crate) struct Token {
    text: String,
    hash: blake3::Hash,
}

impl Token {
    /// Reads the token from the file in this folder, or creates it.
    ///
    /// # Errors
    /// The file cannot be written or read, others can read it, or it is damaged.
    pub(crate) fn kept_in(folder: &Path) -> Result<(Self, PathBuf), Failure> {
        let path = folder.join(FILE);
        if fs::symlink_metadata(&path).is_err() {
            Self::create(folder, &path).map_err(|error| Failure::io("write", &path, &error))?;
        }
        let hint = "Delete it; the next start makes a new one";
        let refused = |why: &str| Failure::new(Exit::Usage, format!("{} {why}", path.display())).hint(hint);
        let file = fs::symlink_metadata(&path).map_err(|error| Failure::io("read", &path, &error))?;
        if !is_private_file(&file) {
            return Err(refused("is not a private file of yours, so others may know the token in it"));
        }
        let bytes = read_regular(&path, 1024).map_err(|error| Failure::io("read", &path, &error))?;
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        if text.len() != 2 * BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refused("does not hold a token"));
        }
        Ok((Self::from_text(text), path))
    }

    /// Returns a token that is not kept, for a disk that is full.
    pub(crate) fn random() -> Self {
        let mut bytes = [0_u8; BYTES];
        let filled = getrandom(&mut bytes[..], GetRandomFlags::empty());
        assert_eq!(filled, Ok(BYTES), "the kernel's generator gives this many bytes at once");
        Self::from_text(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn from_text(text: String) -> Self {
        Self { hash: blake3::hash(text.as_bytes()), text }
    }

    /// Writes a new token, unless another server does so first.
    fn create(folder: &Path, path: &Path) -> io::Result<()> {
        create_private_folder(folder)?;
        // Temporary files are private from the beginning.
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        io::Write::write_all(&mut file, format!("{}\n", Self::random().text).as_bytes())?;
        file.as_file().sync_all()?;
        match file.persist_noclobber(path) {
            Err(refused) if refused.error.kind() != io::ErrorKind::AlreadyExists => Err(refused.error),
            _ => Ok(()),
        }
    }

    /// Returns the token as text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether this is the token. The time that this takes does not depend on how much of it is
    /// right, because hashes are compared, and those in constant time.
    pub(crate) fn is(&self, text: &str) -> bool {
        blake3::hash(text.as_bytes()) == self.hash
    }

    /// Returns whether the headers of a request hold the token: as a bearer token, or in the cookie.
    pub(crate) fn is_in(&self, headers: &HeaderMap, port: u16) -> bool {
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
        });
        if let Some(token) = bearer {
            return self.is(token);
        }
        let name = cookie_name(port);
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(key, value)| key == name && self.is(value))
    }

    /// Returns the cookie that a browser keeps.
    pub(crate) fn cookie(&self, port: u16) -> HeaderValue {
        let (name, text) = (cookie_name(port), &self.text);
        header(format!("{name}={text}; Path=/; HttpOnly; SameSite=Strict; Max-Age={COOKIE_S}"))
    }
}

/// Returns the header that makes a browser forget the cookie.
pub(crate) fn forgotten_cookie(port: u16) -> HeaderValue {
    header(format!("{}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0", cookie_name(port)))
}

/// Returns the name of the cookie. Cookies do not distinguish ports, so that of another server on this
/// machine must have another name.
fn cookie_name(port: u16) -> String {
    format!("sparktune-{port}")
}

fn header(text: String) -> HeaderValue {
    HeaderValue::from_str(&text).expect("a cookie of letters and digits is a header")
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_token_is_private_random_and_the_same_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let (first, path) = Token::kept_in(&state).unwrap();
        assert_eq!(first.text().len(), 64);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Token::kept_in(&state).unwrap().0.text(), first.text());
        let (other, _) = Token::kept_in(&folder.path().join("other")).unwrap();
        assert_ne!(other.text(), first.text());
    }

    #[test]
    fn a_token_that_others_may_know_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (_, path) = Token::kept_in(folder.path()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let refused = |why: &str| {
            let text = Token::kept_in(folder.path()).err().unwrap().to_string();
            assert!(text.contains(why) && text.contains("Delete it"), "{text}");
        };
        refused("others may know");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        refused("others may know");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "short").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        refused("does not hold a token");
    }

    #[test]
    fn only_the_whole_token_in_the_cookie_of_this_port_or_as_bearer_counts() {
        let token = Token::random();
        let with =
            |name, value: String| HeaderMap::from_iter([(name, HeaderValue::from_str(&value).unwrap())]);
        let text = token.text().to_owned();
        assert!(token.is_in(&with(AUTHORIZATION, format!("Bearer {text}")), 1));
        assert!(token.is_in(&with(COOKIE, format!("a=b; sparktune-1={text}")), 1));
        assert!(!token.is_in(&with(COOKIE, format!("sparktune-2={text}")), 1));
        for wrong in [String::new(), text[1..].to_owned(), format!("{text}0"), text.to_ascii_uppercase()] {
            assert!(!token.is_in(&with(AUTHORIZATION, format!("Bearer {wrong}")), 1), "{wrong}");
        }
        assert!(!token.is_in(&with(AUTHORIZATION, format!("Basic {text}")), 1));
        assert!(!token.is_in(&HeaderMap::new(), 1));
    }
}
