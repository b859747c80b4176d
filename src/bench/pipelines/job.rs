//! What a measuring process is asked, in a file, and what it answers, in lines of JSON.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sparktune_paper::{Arrangement, Loading, Pipeline, Training};

/// Exit codes of the program: wrong usage, and a defect of its own.
pub(crate) const USAGE: i32 = 2;
pub(crate) const BUG: i32 = 70;

/// A measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) arrangement: Arrangement,
    pub(crate) pipeline: Pipeline,
    pub(crate) seed: u64,
    pub(crate) steps: u64,
    pub(crate) batch: u64,
    pub(crate) row_tokens: u64,
    /// The share of the examples that the pipeline leaves out, if it does.
    pub(crate) drop: f64,
    /// The plan as TOML.
    pub(crate) plan: PathBuf,
    /// The JSON Lines, which [`Work::Lines`] writes.
    pub(crate) lines: PathBuf,
    /// The token files.
    pub(crate) tokens: PathBuf,
    pub(crate) eval: PathBuf,
    /// The files that the token file was made of.
    pub(crate) sources: Vec<PathBuf>,
}

/// What is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    /// The JSON Lines are written and compared with the token file.
    Lines,
    /// Loading is measured in so many rounds.
    Load { rounds: u64 },
    /// A model is trained, and its adapter is written into this folder, if there is one.
    Train { adapter: Option<PathBuf> },
}

/// What the two files have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Written {
    pub(crate) examples: u64,
    pub(crate) tokens: u64,
    pub(crate) target_tokens: u64,
    /// Examples with more tokens than a row.
    pub(crate) cut_examples: u64,
    pub(crate) jsonl_bytes: u64,
    pub(crate) token_file_bytes: u64,
}

/// A line of the answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// So many steps have been taken.
    Step(u64),
    Written(Written),
    Loading(Box<Loading>),
    Training(Box<Training>),
    /// It failed, with what the exit code would be.
    Failed {
        message: String,
        exit_code: i32,
    },
}

impl Job {
    /// Returns the share of the examples that the pipeline leaves out.
    pub(crate) fn dropped_share(&self) -> f64 {
        if self.pipeline.drops() { self.drop } else { 0.0 }
    }
}
