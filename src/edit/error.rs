//! Errors of edits. Each message says what is wrong, where, and what to do.

use std::io;
use std::path::{Path, PathBuf};

use sparktune_data::packets::PacketError;
use sparktune_data::{DataError, Rejection};
use sparktune_infer::InferError;
use sparktune_model::ModelError;

/// The reasons why facts cannot be written into a model, or patches not be applied.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// A file could not be read or written.
    #[error("{}: {source}. Check that it exists and is readable, and that the disk is not full", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The message of the system.
        source: io::Error,
    },
    /// A fact cannot be used.
    #[error("{place}: {what}. {fix}")]
    Fact {
        /// The file with the number of the line or the item.
        place: String,
        /// What is wrong.
        what: String,
        /// What to do.
        fix: &'static str,
    },
    /// A patch, a stack of patches or the base of one cannot be used.
    #[error("{}: {what}. {fix}", path.display())]
    Patch {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        what: String,
        /// What to do.
        fix: &'static str,
    },
    /// The request cannot be carried out with this model or these settings.
    #[error("{what}. {fix}")]
    Request {
        /// What is wrong.
        what: String,
        /// What to do.
        fix: &'static str,
    },
    /// Somebody asked to stop.
    #[error("the edit was stopped; nothing was changed")]
    Stopped,
    /// The weights cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Decoding failed.
    #[error(transparent)]
    Infer(#[from] InferError),
    /// The tokenizer cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The tokenizer refuses a text.
    #[error("{}: {}. {}", .0.field, .0.reason, .0.fix)]
    Text(Rejection),
    /// A file of packets is damaged or cannot be written.
    #[error(transparent)]
    Packets(#[from] PacketError),
}

impl EditError {
    /// Returns whether somebody asked to stop.
    pub fn is_stop(&self) -> bool {
        matches!(self, Self::Stopped | Self::Model(ModelError::Stopped))
    }

    /// Returns the file and what the system says of it, if that is what is wrong.
    pub fn of_file(&self) -> Option<(&Path, &io::Error)> {
        match self {
            Self::Io { path, source }
            | Self::Model(ModelError::Io { path, source })
            | Self::Packets(PacketError::Io { path, source }) => Some((path, source)),
            _ => None,
        }
    }

    /// Returns what is wrong and where, without what to do ([`fix`](Self::fix)).
    pub fn what(&self) -> String {
        match self {
            Self::Fact { place, what, .. } => format!("{place}: {what}"),
            Self::Patch { path, what, .. } => format!("{}: {what}", path.display()),
            Self::Request { what, .. } => what.clone(),
            Self::Text(rejection) => format!("{}: {}", rejection.field, rejection.reason),
            other => other.to_string(),
        }
    }

    /// Returns what to do, if the message does not say it.
    pub fn fix(&self) -> Option<&str> {
        match self {
            Self::Fact { fix, .. } | Self::Patch { fix, .. } | Self::Request { fix, .. } => Some(fix),
            Self::Text(rejection) => Some(&rejection.fix),
            _ => None,
        }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }

    pub(crate) fn patch(path: &Path, what: impl Into<String>, fix: &'static str) -> Self {
        Self::Patch { path: path.to_owned(), what: what.into(), fix }
    }

    pub(crate) fn request(what: impl Into<String>, fix: &'static str) -> Self {
        Self::Request { what: what.into(), fix }
    }
}
