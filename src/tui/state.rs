//! The state of a run as a word, a glyph and a role, the same in every table and on every screen.

use sparktune_runlog::{Liveness, Outcome};

use crate::screen::{Role, Theme};

/// A state for display. Its role is never shown without its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    /// A word or two.
    pub word: &'static str,
    /// The role of its colour.
    pub role: Role,
    /// The glyph, and the one for terminals without Unicode.
    glyph: (&'static str, &'static str),
}

impl State {
    /// The state while nothing is known yet.
    pub(crate) const READING: Self = Self::new("reading", ("◌", "."), Role::Dim);

    const fn new(word: &'static str, glyph: (&'static str, &'static str), role: Role) -> Self {
        Self { word, role, glyph }
    }

    /// Returns the state of a run; `None` stands for one that cannot be read.
    pub(crate) fn of(liveness: Option<Liveness>) -> Self {
        match liveness {
            None => Self::new("unreadable", ("▲", "!"), Role::Bad),
            Some(Liveness::NotStarted) => Self::new("not started", ("◌", "."), Role::Dim),
            Some(Liveness::Running) => Self::new("running", ("●", "*"), Role::Good),
            Some(Liveness::Stalled { .. }) => Self::new("stalled", ("▲", "!"), Role::Warn),
            Some(Liveness::Crashed) => Self::new("crashed", ("✖", "X"), Role::Bad),
            Some(Liveness::Gone) => Self::new("gone", ("✖", "X"), Role::Bad),
            Some(Liveness::Finished { outcome }) => {
                let (glyph, role) = match outcome {
                    Outcome::Completed => (("✔", "+"), Role::Good),
                    Outcome::Diverged => (("▲", "!"), Role::Bad),
                    Outcome::Failed => (("✖", "X"), Role::Bad),
                    Outcome::Stopped | Outcome::Unknown => (("■", "="), Role::Warn),
                };
                Self::new(outcome_word(outcome), glyph, role)
            }
        }
    }

    /// Returns the glyph and the word: `● running`.
    pub(crate) fn label(self, theme: &Theme) -> String {
        format!("{} {}", theme.glyph(self.glyph.0, self.glyph.1), self.word)
    }
}

/// Returns the outcome of a run as a word.
pub(crate) fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "completed",
        Outcome::Diverged => "diverged",
        Outcome::Stopped => "stopped",
        Outcome::Failed => "failed",
        Outcome::Unknown => "ended",
    }
}
