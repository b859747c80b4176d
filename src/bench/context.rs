//! What every section measures with: the tools, how much of everything, and where files may lie.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The tools that the sections measure with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program itself: it is started to measure its start time, and trains in processes of its own.
    pub program: PathBuf,
    /// Folder with the tokenizer that is measured; without one that section says that it is skipped.
    pub tokenizer: Option<PathBuf>,
    /// A `tokenizer.json` and text that are measured instead of a model's tokenizer on chats.
    pub plain_text: Option<PlainText>,
    /// A Python in which the peers run.
    pub peers: Option<PathBuf>,
    /// Less of everything: a few seconds in all, and less exact.
    pub quick: bool,
}

/// What is measured: a `tokenizer.json`, and a folder of text.
#[derive(Debug, Clone)]
pub struct PlainText {
    /// The `tokenizer.json`.
    pub tokenizer: PathBuf,
    /// The folder whose files are the text; those that are not UTF-8 are left out.
    pub text: PathBuf,
}

/// The amount of work in each measurement.
pub(crate) struct Size {
    pub(crate) starts: usize,
    pub(crate) validation_bytes: u64,
    pub(crate) validation_passes: usize,
    pub(crate) tokenising_bytes: u64,
    pub(crate) plain_text_bytes: u64,
    pub(crate) tokens: u64,
    pub(crate) loading_rounds: usize,
    pub(crate) logged_steps: u64,
    pub(crate) follow: Duration,
    /// Tokens of the one example that a training step is made on.
    pub(crate) train_tokens: usize,
    /// Rounds in which training alternates with its peer, and optimizer steps of each in a round.
    pub(crate) rounds: usize,
    pub(crate) steps_per_round: usize,
}

/// As much as the figures in `README.md` are made with.
pub(crate) const WHOLE: Size = Size {
    starts: 21,
    validation_bytes: 512 << 20,
    validation_passes: 3,
    tokenising_bytes: 16 << 20,
    plain_text_bytes: 57 << 20,
    tokens: 32 << 20,
    loading_rounds: 9,
    logged_steps: 1_000_000,
    follow: Duration::from_secs(5),
    train_tokens: 1024,
    rounds: 5,
    steps_per_round: 2,
};
/// Enough to see that everything works.
pub(crate) const QUICK: Size = Size {
    starts: 5,
    validation_bytes: 32 << 20,
    validation_passes: 1,
    tokenising_bytes: 1 << 20,
    plain_text_bytes: 2 << 20,
    tokens: 2 << 20,
    loading_rounds: 3,
    logged_steps: 20_000,
    follow: Duration::from_secs(1),
    train_tokens: 64,
    rounds: 1,
    steps_per_round: 1,
};

/// The input of every section.
pub(crate) struct Context<'a> {
    pub(crate) options: &'a Options,
    pub(crate) size: &'a Size,
    /// A folder for temporary files.
    pub(crate) folder: &'a Path,
    /// Receives what is being measured, or why it is not.
    pub(crate) note: &'a dyn Fn(&str),
}
