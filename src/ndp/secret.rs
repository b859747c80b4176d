//! What the two sides know: the server's key pair, and the token that both share.
//!
//! Both are 32 random bytes in hexadecimal digits, in files that only this user can read. Neither is ever
//! printed, sent, or part of a command line: of the key the public half is in the address, and of the
//! token a proof travels that holds for one connection only.

use std::fmt;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};
use sparktune_base::files::{create_private_folder, is_private_file};
use sparktune_base::program_name;
use sparktune_base::regular_file::read_regular;

use crate::address::{from_hex, to_hex};
use crate::error::Error;

/// The name of the file with the token.
const TOKEN_FILE: &str = "ndp-token";
/// The name of the file with the private key.
const KEY_FILE: &str = "ndp-key";
/// The context of the key that proofs are made with.
const PROOF: &str = "sparktune 2026-11-24 proof of an ndp token";

/// The secret that both sides share. It cannot be printed.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl Token {
    /// The variable that holds the token. It takes precedence over the file.
    pub const VARIABLE: &'static str = "SPARKTUNE_NDP_TOKEN";

    /// Reads the token from the variable's value, or else from the file in this folder.
    ///
    /// # Errors
    /// There is none, it is malformed, or others can read the file.
    pub fn find(variable: Option<&str>, folder: Option<&Path>) -> Result<Self, Error> {
        let program = program_name();
        let fix = format!("`{program} data serve` on the other machine says where its token is");
        if let Some(text) = variable.map(str::trim).filter(|text| !text.is_empty()) {
            let what = format!("{} does not hold a token, which has 64 hexadecimal digits", Self::VARIABLE);
            return from_hex(text).map(Self).ok_or(Error::BadToken { what, fix });
        }
        let path = folder.map(|folder| folder.join(TOKEN_FILE));
        match path.filter(|path| fs::symlink_metadata(path).is_ok()) {
            Some(path) => read_secret(&path).map(Self),
            None => {
                let place = folder.map_or(TOKEN_FILE.into(), |folder| folder.join(TOKEN_FILE));
                let what = format!(
                    "data of another machine needs the token of its server, in the variable {} or in the file {}",
                    Self::VARIABLE,
                    place.display()
                );
                Err(Error::BadToken { what, fix })
            }
        }
    }

    /// Reads the token from the file in this folder, or makes one. Also returns the path of the file.
    ///
    /// # Errors
    /// The file cannot be written or read, others can read it, or it is damaged.
    pub fn kept_in(folder: &Path) -> Result<(Self, PathBuf), Error> {
        let path = folder.join(TOKEN_FILE);
        kept(folder, &path).map(|secret| (Self(secret), path))
    }

    /// Returns the token with these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the proof that this side knows the token. `binding` are bytes that only the two ends of one
    /// connection know, so the proof is worthless anywhere else. Comparing two proofs takes the same time
    /// whatever they are.
    pub(crate) fn proof(&self, binding: &[u8; 32]) -> blake3::Hash {
        blake3::keyed_hash(&blake3::derive_key(PROOF, &self.0), binding)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// The server's key pair (Ed25519). The private half cannot be printed.
#[derive(Clone)]
pub struct ServerKey([u8; 32]);

impl ServerKey {
    /// Reads the key from the file in this folder, or makes one, so that the address stays the same.
    ///
    /// # Errors
    /// The file cannot be written or read, others can read it, or it is damaged.
    pub fn kept_in(folder: &Path) -> Result<Self, Error> {
        kept(folder, &folder.join(KEY_FILE)).map(Self)
    }

    /// Returns the key pair of this seed.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(seed)
    }

    pub(crate) fn seed(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// Reads a secret, or makes one unless another process does so first.
fn kept(folder: &Path, path: &Path) -> Result<[u8; 32], Error> {
    if fs::symlink_metadata(path).is_err() {
        create_private_folder(folder).map_err(Error::io(folder))?;
        let mut secret = [0_u8; 32];
        let filled = getrandom(&mut secret[..], GetRandomFlags::empty());
        assert_eq!(filled, Ok(secret.len()), "the kernel's generator gives this many bytes at once");
        // Temporary files are private from the beginning, and one that is renamed is whole.
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(Error::io(folder))?;
        let written = writeln!(file, "{}", to_hex(&secret)).and_then(|()| file.as_file().sync_all());
        written.map_err(Error::io(path))?;
        match file.persist_noclobber(path) {
            Err(refused) if refused.error.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::io(path)(refused.error));
            }
            _ => {}
        }
    }
    read_secret(path)
}

fn read_secret(path: &Path) -> Result<[u8; 32], Error> {
    let fix = "Delete it; `data serve` makes a new one, which the other machines then need".to_owned();
    let refused = |why: &str| Error::BadToken { what: format!("{} {why}", path.display()), fix: fix.clone() };
    let file = fs::symlink_metadata(path).map_err(Error::io(path))?;
    if !is_private_file(&file) {
        return Err(refused(
            "is not a private file of yours (mode 0600), so others may know the secret in it",
        ));
    }
    let bytes = read_regular(path, 1024).map_err(Error::io(path))?;
    from_hex(String::from_utf8_lossy(&bytes).trim()).ok_or_else(|| refused("does not hold a secret"))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn token_and_key_are_private_random_and_the_same_after_a_restart() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("state");
        let (token, path) = Token::kept_in(&folder).unwrap();
        let key = ServerKey::kept_in(&folder).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(folder.join(KEY_FILE)).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Token::kept_in(&folder).unwrap().0.0, token.0);
        assert_eq!(Token::find(None, Some(&folder)).unwrap().0, token.0);
        assert_eq!(ServerKey::kept_in(&folder).unwrap().0, key.0);
        assert_ne!(token.0, key.0);
        let printed = format!("{token:?} {key:?} {:?}", Some(&token));
        assert_eq!(printed, "[redacted] [redacted] Some([redacted])");
    }

    #[test]
    fn a_token_that_is_missing_malformed_or_readable_by_others_is_refused_without_being_shown() {
        let home = tempfile::tempdir().unwrap();
        let missing = Token::find(None, Some(home.path())).unwrap_err().to_string();
        assert!(missing.contains("SPARKTUNE_NDP_TOKEN") && missing.contains("ndp-token"), "{missing}");
        let malformed = Token::find(Some("secret"), None).unwrap_err().to_string();
        assert!(malformed.contains("64 hexadecimal") && !malformed.contains("secret"), "{malformed}");
        let (_, path) = Token::kept_in(home.path()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let open = Token::find(None, Some(home.path())).unwrap_err().to_string();
        assert!(open.contains("others may know"), "{open}");
        let given = to_hex(&[5; 32]);
        assert_eq!(Token::find(Some(&format!(" {given}\n")), Some(home.path())).unwrap().0, [5; 32]);
    }

    #[test]
    fn a_proof_holds_for_one_token_and_one_connection() {
        let [one, other] = [Token([1; 32]), Token([2; 32])];
        assert_eq!(one.proof(&[0; 32]), one.proof(&[0; 32]));
        assert_ne!(one.proof(&[0; 32]), other.proof(&[0; 32]));
        assert_ne!(one.proof(&[0; 32]), one.proof(&[3; 32]));
    }
}
