//! Errors of token files. Each message says what is wrong, where, and what to do.

use std::io;
use std::path::{Path, PathBuf};

use sparktune_base::program_name;

use super::damage::Defect;

/// Any failure of this module.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is described by its message")]
pub enum TokenFileError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },

    #[error("{}: not a v2 token file: {found}. {fix}", path.display())]
    NotTokenFile { path: PathBuf, found: &'static str, fix: String },

    #[error("{}: {found}. {fix}", path.display())]
    NotConvertible { path: PathBuf, found: &'static str, fix: String },

    #[error(
        "{}: token file format version {version}; this program reads version 2. Create the file again from its source",
        path.display()
    )]
    UnsupportedVersion { path: PathBuf, version: u32 },

    #[error(
        "{}: truncated: {what}. Create the file again from its source, or save the intact examples with `{program} verify FILE --rebuild OUT`",
        path.display(),
        program = program_name()
    )]
    Truncated { path: PathBuf, what: String },

    #[error(
        "{}: damaged: {defect}. `{program} verify FILE` lists every defect. Create the file again from its source, or save the intact examples with `{program} verify FILE --rebuild OUT`",
        path.display(),
        program = program_name()
    )]
    Damaged { path: PathBuf, defect: Box<Defect> },

    #[error("{}: another process is writing this file. Wait until it is done, or choose another output", path.display())]
    BeingWritten { path: PathBuf },

    #[error(
        "{}: this is not an unfinished output, and one is kept under this name until it is whole. Move the file away, or choose another output",
        path.display()
    )]
    InTheWay { path: PathBuf },

    #[error("example {example} ({origin}): {reason}")]
    BadExample { example: u64, origin: String, reason: &'static str },

    #[error(
        "example {example} ({origin}) has {tokens} tokens; a v1 packet holds at most {}. Export JSON Lines instead, or remove the example",
        super::v1::MAX_TOKENS
    )]
    TooLongForV1 { example: u64, origin: String, tokens: u32 },

    #[error("{}:{line}: {field}: {reason}. Each line is an object with input_ids and, optionally, loss_mask and source_line", path.display())]
    BadJsonLine { path: PathBuf, line: u64, field: &'static str, reason: String },

    #[error("{}: the header would take {bytes} bytes, but at most {} are allowed. Use fewer source files", path.display(), super::v2::MAX_HEADER)]
    HeaderTooLarge { path: PathBuf, bytes: usize },

    #[error("{}: {examples} examples, but at most {} are supported. Split the data", path.display(), u32::MAX)]
    TooManyExamples { path: PathBuf, examples: u64 },
}

impl TokenFileError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }

    pub(super) fn damaged(path: &Path, defect: Defect) -> Self {
        Self::Damaged { path: path.to_path_buf(), defect: Box::new(defect) }
    }
}
