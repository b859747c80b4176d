//! The answers of one model to all prompts, and what they come to.

use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::summary::Summary;

/// Which model answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRef {
    /// Its id on this machine: `run:NAME`, `hub:OWNER/NAME`, `dir:NAME`. With `@base` behind a run, the model
    /// that the run started from.
    pub id: String,
    /// Its name, which is unique in the comparison.
    pub name: String,
}

/// The answers of one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelAnswers {
    /// The model.
    #[serde(flatten)]
    pub model: ModelRef,
    /// The answers, in the order of the prompts.
    pub answers: Vec<Answer>,
    /// The time during which it generated answers, in milliseconds, without loading.
    pub generating_ms: f64,
    /// The time to load it, in milliseconds.
    pub load_ms: f64,
    /// What the answers come to.
    pub summary: Summary,
}
