//! A value that was said, and by whom.

use serde::{Deserialize, Serialize};

/// Where a value comes from; a later origin overrules an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The plan's own rule.
    BuiltIn,
    /// A preset, shipped or by path.
    Preset,
    /// The user's own settings file.
    UserFile,
    /// A `SPARKTUNE_*` variable.
    Environment,
    /// A flag, or an answer given on a screen.
    Flag,
}

impl Origin {
    /// As it is written in tables and in TOML.
    pub const fn word(self) -> &'static str {
        match self {
            Self::BuiltIn => "built-in",
            Self::Preset => "preset",
            Self::UserFile => "user-file",
            Self::Environment => "environment",
            Self::Flag => "flag",
        }
    }
}

/// A value with its origin.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer<T> {
    /// The value of the answer.
    pub value: T,
    /// By whom.
    pub origin: Origin,
}

impl<T> Answer<T> {
    /// An answer of the given origin.
    pub const fn new(value: T, origin: Origin) -> Self {
        Self { value, origin }
    }

    /// An answer from a flag or a screen.
    pub const fn flag(value: T) -> Self {
        Self::new(value, Origin::Flag)
    }
}
