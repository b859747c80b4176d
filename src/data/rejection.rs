//! The reasons why lines are rejected, and the file that keeps such lines.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sparktune_base::files::leads_to_a_device;
use sparktune_base::regular_file::open_regular;
use tempfile::NamedTempFile;

use crate::error::DataError;

/// The kind of a rejection, by which reports count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The bytes are not UTF-8.
    InvalidUtf8,
    /// The line is not one JSON value.
    InvalidJson,
    /// The row of a table does not fit its header, or ends in the middle of a quoted field.
    InvalidTable,
    /// The line is JSON but not an object.
    NotAnObject,
    /// The line's fields belong to no known format, or not to the format of its file.
    UnknownFormat,
    /// A field that the format requires is missing or null.
    MissingField,
    /// A field has a type that the format does not allow.
    WrongType,
    /// A role that no chat template knows.
    UnknownRole,
    /// There are no messages, or there is no text where text is required.
    Empty,
    /// There is no assistant turn to train.
    NothingToTrain,
    /// The content is an image, audio, video or another part that is not text.
    UnsupportedContent,
    /// The line exceeds the length one line may have.
    LineTooLong,
    /// The checkpoint's chat template refused the conversation.
    TemplateRefused,
    /// The rendered text could not be divided into turns with certainty.
    UncertainMask,
    /// The tokenizer failed.
    TokenizerFailed,
    /// The tokenizer gives a token that the model does not have.
    UnknownToken,
    /// The example has more tokens than the limit. Such examples are left out, but not counted as rejected.
    TooManyTokens,
}

/// Formats the kind in words, for reports.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidUtf8 => "not UTF-8",
            Self::InvalidJson => "not JSON",
            Self::InvalidTable => "not a row of the table",
            Self::NotAnObject => "not a JSON object",
            Self::UnknownFormat => "unknown format",
            Self::MissingField => "missing field",
            Self::WrongType => "wrong type",
            Self::UnknownRole => "unknown role",
            Self::Empty => "empty",
            Self::NothingToTrain => "nothing to train",
            Self::UnsupportedContent => "unsupported content",
            Self::LineTooLong => "line too long",
            Self::TemplateRefused => "rejected by the chat template",
            Self::UncertainMask => "unclear what to train",
            Self::TokenizerFailed => "tokenizer failed",
            Self::UnknownToken => "unknown token",
            Self::TooManyTokens => "too many tokens",
        })
    }
}

/// A rejected example: where in it, what is wrong, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    /// The kind, by which reports count.
    pub kind: Kind,
    /// The field, as a path: `messages[2].content`. Empty when the line as a whole is the cause.
    pub field: String,
    /// The problem.
    pub reason: String,
    /// The suggested remedy.
    pub fix: String,
}

impl Rejection {
    pub(crate) fn new(
        kind: Kind,
        field: impl Into<String>,
        reason: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { kind, field: field.into(), reason: reason.into(), fix: fix.into() }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "{}. {}", self.reason, self.fix)
    }
}

/// A rejected line with its place and its text: one line of `rejected.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// The input file.
    pub file: String,
    /// The line, counted from 1.
    pub line: u64,
    /// Whether the line does not count as rejected: it is only too long, or only some of its turns were left
    /// out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_counted: bool,
    /// The reason.
    #[serde(flatten)]
    pub rejection: Rejection,
    /// The original line. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub text: String,
}

/// Writes `rejected.jsonl` under a temporary name first, and renames it when it is complete. Only an earlier
/// list of rejected lines is ever replaced or removed; any other file of this name is an error once a line
/// has to be written, and stays as it is.
pub(crate) struct RejectedFile {
    path: PathBuf,
    /// The file at the path is not a list of rejected lines.
    is_taken: bool,
    file: Option<BufWriter<NamedTempFile>>,
}

impl RejectedFile {
    /// Refuses to write the list of rejected lines to one of these data files, which would replace or remove
    /// it.
    ///
    /// # Errors
    /// The list is one of them.
    pub(crate) fn refuse_input<'a>(
        list: Option<&Path>,
        mut files: impl Iterator<Item = &'a Path>,
    ) -> Result<(), DataError> {
        let Some(list) = list.and_then(|path| path.canonicalize().ok()) else { return Ok(()) };
        if files.any(|file| file.canonicalize().is_ok_and(|path| path == list)) {
            let problem = "is read as data, so the list of rejected lines cannot be written there";
            return Err(DataError::input(list, problem, "Choose another path with --rejected"));
        }
        Ok(())
    }

    pub(crate) fn create(path: &Path) -> Result<Self, DataError> {
        if leads_to_a_device(path) {
            let problem = "leads to a device or an open file, which no list of rejected lines replaces";
            return Err(DataError::input(path, problem, "Name a file with --rejected"));
        }
        let is_taken = match open_regular(path) {
            Ok(file) => !is_list(&file),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
            Err(e) => return Err(DataError::io("read", path)(e)),
        };
        Ok(Self { path: path.to_owned(), is_taken, file: None })
    }

    pub(crate) fn push(&mut self, rejected: &Rejected) -> Result<(), DataError> {
        if self.is_taken {
            let problem = "exists and is not a list of rejected lines, so they are not written there";
            return Err(DataError::input(&self.path, problem, "Choose another path with --rejected"));
        }
        if self.file.is_none() {
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            let file = NamedTempFile::with_prefix_in(".rejected-", folder);
            self.file = Some(BufWriter::new(file.map_err(DataError::io("write into", folder))?));
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        serde_json::to_writer(&mut *file, rejected)
            .map_err(std::io::Error::from)
            .and_then(|()| file.write_all(b"\n"))
            .map_err(DataError::io("write", &self.path))
    }

    /// Moves the list to its final name and returns the path if there is one. Without rejected lines an
    /// earlier list is removed.
    pub(crate) fn finish(self) -> Result<Option<PathBuf>, DataError> {
        let Some(file) = self.file else {
            let is_empty = || std::fs::metadata(&self.path).is_ok_and(|file| file.len() == 0);
            if self.is_taken || is_empty() {
                return Ok(None);
            }
            return match std::fs::remove_file(&self.path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    Err(DataError::io("remove", self.path)(e))
                }
                _ => Ok(None),
            };
        };
        let file = file.into_inner().map_err(|e| DataError::io("write", &self.path)(e.into_error()))?;
        file.persist(&self.path).map_err(|e| DataError::io("write", &self.path)(e.error))?;
        Ok(Some(self.path))
    }
}

/// Returns whether the file is a list of rejected lines that sparktune wrote.
pub fn is_list_of_rejected(path: &Path) -> bool {
    open_regular(path).is_ok_and(|file| is_list(&file))
}

/// Returns whether a file is empty or begins with a line that [`RejectedFile`] wrote.
fn is_list(file: &File) -> bool {
    let mut first = String::new();
    // A line of the list may contain a very long line of the user's data, so the read is limited.
    let read = BufReader::new(file.take(256 << 20)).read_line(&mut first);
    read.is_ok() && (first.is_empty() || serde_json::from_str::<Rejected>(&first).is_ok())
}
