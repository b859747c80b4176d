//! One line of a diagnosis.

use serde::{Deserialize, Serialize};

/// How something stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// In order.
    Ok,
    /// Not looked at, for the reason that is given.
    Skipped,
    /// The machine does not say.
    Unknown,
    /// It works, but something could be better.
    Note,
    /// It does not work, or far slower than it could.
    Problem,
}

/// One line of a diagnosis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// What was looked at.
    pub what: String,
    /// How it stands.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do.
    pub advice: Option<String>,
}

impl Line {
    /// Creates a line without advice.
    pub fn new(what: &str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { what: what.to_owned(), verdict, found: found.into(), advice: None }
    }

    /// Adds what to do.
    #[must_use]
    pub fn advice(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }
}
