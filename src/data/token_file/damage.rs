//! Describes damage: the part of the file, the example, and the source line.

use std::fmt;

use serde::Serialize;

/// The part of a token file that contains a defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The block at the start: format, hashes, source names.
    Header,
    /// An example: its packet header, tokens, mask or padding.
    Packet,
    /// The columns with offsets, lengths and source lines.
    Index,
    /// The block at the end: counts and hashes.
    Footer,
    /// The hash over the whole file.
    FileHash,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Header => "header",
            Self::Packet => "packet",
            Self::Index => "index",
            Self::Footer => "footer",
            Self::FileHash => "file hash",
        })
    }
}

/// A place where a file differs from what its writer wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Defect {
    /// The part of the file.
    pub part: Part,
    /// The first byte of the damaged part.
    pub offset: u64,
    /// The affected example, counted from 0, if there is one.
    pub example: Option<u64>,
    /// The source of that example, such as `train.jsonl:812`, escaped for printing.
    pub origin: Option<String>,
    /// The problem.
    pub what: String,
}

impl Defect {
    pub(super) fn new(part: Part, offset: usize, what: impl Into<String>) -> Self {
        Self { part, offset: offset as u64, example: None, origin: None, what: what.into() }
    }

    pub(super) fn of_example(mut self, example: u64, origin: Option<String>) -> Self {
        self.example = Some(example);
        self.origin = origin;
        self
    }
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.part, self.offset)?;
        if let Some(example) = self.example {
            write!(f, ", example {example}")?;
        }
        if let Some(origin) = &self.origin {
            write!(f, " ({origin})")?;
        }
        write!(f, ": {}", self.what)
    }
}
