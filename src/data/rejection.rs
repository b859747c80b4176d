//! Why a line was not accepted, and the file in which such lines are kept.

use std::{
    fmt,
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::DataError;

/// The kind of a rejection: what reports count by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The bytes are not UTF-8.
    InvalidUtf8,
    /// The line is not one JSON value.
    InvalidJson,
    /// The line is JSON but not an object.
    NotAnObject,
    /// The line's fields belong to no known format, or to another one than its file's.
    UnknownFormat,
    /// A field the format needs is absent or null.
    MissingField,
    /// A field has a type the format does not allow.
    WrongType,
    /// A role that no chat template knows.
    UnknownRole,
    /// No messages, or no text where text is needed.
    Empty,
    /// No assistant turn that could be trained.
    NothingToTrain,
    /// Images, audio, video and other parts that are not text.
    UnsupportedContent,
    /// The line exceeds the length one line may have.
    LineTooLong,
    /// The checkpoint's chat template refused the conversation.
    TemplateRefused,
    /// The rendering could not be divided into turns with certainty.
    UncertainMask,
    /// The tokenizer failed.
    TokenizerFailed,
    /// More tokens than the model's limit.
    TooManyTokens,
}

/// Why an example was not accepted: where in it, what is wrong, what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    /// What reports count by.
    pub kind: Kind,
    /// The field, as a path: `messages[2].content`. Empty when the line as a whole is at fault.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
    /// What to do about it.
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
    /// Why.
    #[serde(flatten)]
    pub rejection: Rejection,
    /// The line as it stood. Bytes that are not UTF-8 appear as U+FFFD.
    pub text: String,
}

/// Writes `rejected.jsonl`. The file exists only once there is a first rejected line, and an old one is removed first.
pub(crate) struct RejectedFile {
    path: PathBuf,
    file: Option<BufWriter<File>>,
}

impl RejectedFile {
    pub fn create(path: &Path) -> Result<Self, DataError> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(DataError::io("replace", path)(e)),
            _ => Ok(Self { path: path.to_owned(), file: None }),
        }
    }

    pub fn push(&mut self, rejected: &Rejected) -> Result<(), DataError> {
        if self.file.is_none() {
            let file = File::create(&self.path).map_err(DataError::io("write", &self.path))?;
            self.file = Some(BufWriter::new(file));
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        serde_json::to_writer(&mut *file, rejected)
            .map_err(std::io::Error::from)
            .and_then(|()| file.write_all(b"\n"))
            .map_err(DataError::io("write", &self.path))
    }

    /// Flushes; the path if anything was written.
    pub fn finish(self) -> Result<Option<PathBuf>, DataError> {
        match self.file {
            None => Ok(None),
            Some(mut file) => {
                file.flush().map_err(DataError::io("write", &self.path))?;
                Ok(Some(self.path))
            }
        }
    }
}
