//! One thing worth knowing about the machine, as `doctor` and the wizard show it.

use serde::Serialize;

/// One thing about the machine. Its words may come from outside: escape them for a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A word or two: `GPU`, `CUDA headers`.
    pub what: String,
    /// What was found: `NVIDIA GB10, compute 12.1`.
    pub found: String,
    /// What to do about it, where something is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// How bad it is.
    pub severity: Severity,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As it should be, or only a fact.
    Good,
    /// Not looked at, for the reason that was found.
    Skipped,
    /// Training works, but something is worth knowing or could be better.
    Note,
    /// In the way of training, or of training on the GPU.
    Problem,
}

impl Finding {
    /// Something as it should be.
    pub fn good(what: &str, found: impl Into<String>) -> Self {
        Self { what: what.into(), found: found.into(), advice: None, severity: Severity::Good }
    }

    /// The same, but with something to be done about it.
    #[must_use]
    pub fn but(self, severity: Severity, advice: impl Into<String>) -> Self {
        Self { severity, advice: Some(advice.into()), ..self }
    }
}
