//! The result of a check: its verdict, what was found, and what to do.

use serde::Serialize;

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The checked part of the machine, in a word or two.
    pub name: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The finding. It may contain names of files, which have to be escaped for a terminal.
    pub found: String,
    /// The suggested remedy.
    pub fix: Option<String>,
}

/// The verdict of a check, from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Everything is in order.
    Ok,
    /// Not checked, for the reason in `found`.
    Skipped,
    /// Checked without a result: this machine does not say, for the reason in `found`.
    Unknown,
    /// Training works, but the user should know something.
    Warning,
    /// The problem prevents training on the GPU.
    Failed,
}

impl Verdict {
    /// Returns the word for the verdict.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Skipped => "skipped",
            Verdict::Unknown => "unknown",
            Verdict::Warning => "warning",
            Verdict::Failed => "failed",
        }
    }
}

impl Check {
    /// Creates the result of a check without problems.
    pub fn ok(name: &str, found: impl Into<String>) -> Self {
        Check { name: name.to_owned(), verdict: Verdict::Ok, found: found.into(), fix: None }
    }

    /// Creates the result of a check that was skipped, with the reason.
    pub fn skipped(name: &str, why: impl Into<String>) -> Self {
        Check { verdict: Verdict::Skipped, ..Check::ok(name, why) }
    }

    /// Creates the result of a check that had none, with the reason.
    pub fn unknown(name: &str, why: impl Into<String>) -> Self {
        Check { verdict: Verdict::Unknown, ..Check::ok(name, why) }
    }

    /// Creates a warning about something that works, with a suggestion.
    pub fn warning(name: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Check { verdict: Verdict::Warning, fix: Some(fix.into()), ..Check::ok(name, found) }
    }

    /// Creates a failure with its remedy.
    pub fn failed(name: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Check { verdict: Verdict::Failed, fix: Some(fix.into()), ..Check::ok(name, found) }
    }
}
