//! A value with its origin.

use serde::{Deserialize, Serialize};

/// The origin of a value. A later variant overrides an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// A rule of the plan.
    BuiltIn,
    /// A preset, shipped or by path.
    Preset,
    /// The user's settings file.
    UserFile,
    /// An environment variable `SPARKTUNE_*`.
    Environment,
    /// A flag, or an answer given on a screen.
    Flag,
}

impl Origin {
    /// Returns the word for the origin in tables and in TOML.
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
    /// The origin of the value.
    pub origin: Origin,
}

impl<T> Answer<T> {
    /// Creates an answer of the given origin.
    pub const fn new(value: T, origin: Origin) -> Self {
        Self { value, origin }
    }

    /// Creates an answer from a flag or a screen.
    pub const fn flag(value: T) -> Self {
        Self::new(value, Origin::Flag)
    }
}
