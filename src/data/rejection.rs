//! The reasons why lines are rejected.

use std::fmt;

use serde::{Deserialize, Serialize};

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
