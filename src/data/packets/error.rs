//! Errors of typed packets. Each message says what is wrong, where, and what to do.

use std::io;
use std::path::{Path, PathBuf};

use crate::token_file::TokenFileError;

/// Any failure of this module.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is described by its message")]
pub enum PacketError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },

    #[error(transparent)]
    TokenFile(#[from] TokenFileError),

    /// Something that no packet can hold.
    #[error("{what}. {fix}")]
    Unfit { what: String, fix: &'static str },

    /// A file that is damaged, or of another kind.
    #[error("{}: {what}. {fix}", path.display())]
    File { path: PathBuf, what: String, fix: &'static str },

    /// Packets that do not make up whole tensors.
    #[error("{what}. {fix}")]
    Parts { what: String, fix: &'static str },
}

impl PacketError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }

    pub(super) fn file(path: &Path, what: impl Into<String>, fix: &'static str) -> Self {
        Self::File { path: path.to_path_buf(), what: what.into(), fix }
    }

    pub(super) fn unfit(what: impl Into<String>, fix: &'static str) -> Self {
        Self::Unfit { what: what.into(), fix }
    }

    pub(super) fn parts(what: impl Into<String>) -> Self {
        Self::Parts { what: what.into(), fix: "Get the file again from where it was made" }
    }
}
