//! The hash by which the hub names the content of a file.

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The algorithm of a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    /// SHA-256 of the content.
    Sha256,
    /// Git's name of the content: SHA-1 of `blob SIZE`, a zero byte, and the content.
    Git,
    /// The content is not hashed.
    None,
}

/// The hash of the part of a file that has arrived.
#[derive(Clone)]
pub(crate) enum FileHash {
    Sha256(Sha256),
    Git(Sha1),
    None,
}

impl FileHash {
    /// Begins the hash of a file of `size` bytes.
    pub(crate) fn new(algorithm: Algorithm, size: u64) -> Self {
        match algorithm {
            Algorithm::Sha256 => Self::Sha256(Sha256::new()),
            Algorithm::Git => Self::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
            Algorithm::None => Self::None,
        }
    }

    /// Appends bytes of the content.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Git(hash) => hash.update(bytes),
            Self::None => {}
        }
    }

    /// Returns the hash of the bytes so far in hexadecimal.
    pub(crate) fn finish(&self) -> Option<String> {
        match self {
            Self::Sha256(hash) => Some(hex(&hash.clone().finalize())),
            Self::Git(hash) => Some(hex(&hash.clone().finalize())),
            Self::None => None,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_name_that_git_gives_it() {
        let mut hash = FileHash::new(Algorithm::Git, 6);
        hash.update(b"hel");
        hash.update(b"lo\n");
        // `printf 'hello\n' | git hash-object --stdin`
        assert_eq!(hash.finish().unwrap(), "ce013625030ba8dba906f756967f9e9ca394464a");
    }
}
