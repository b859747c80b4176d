//! The reasons why there is no plan. Each message says what is wrong, where the value was given, and what to
//! do.

use std::fmt::Write as _;

use sparktune_base::program_name;
use sparktune_base::units::bytes;

use crate::setting::Setting;

/// An answer that is missing and that no rule can supply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Its key in `plan.toml`.
    pub key: &'static str,
    /// The flag that sets it, such as `--model`.
    pub flag: String,
    /// The environment variable that sets it.
    pub env: String,
    /// The effect of the setting, in one sentence.
    pub about: &'static str,
}

/// A change that would make a plan fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Remedy {
    /// The text to type, and its meaning.
    pub change: String,
    /// The memory that the changed plan would need, in bytes.
    pub needed_bytes: u64,
}

/// The memory of a plan that needs more than is available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// The total in bytes.
    pub needed_bytes: u64,
    /// The available memory in bytes.
    pub available_bytes: u64,
    /// A description of the memory that is too small.
    pub budget: String,
    /// The needed memory by part: `weights 4.4 GB, optimizer 107 GB`.
    pub parts: String,
}

/// The reasons why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// All the answers that are missing and that only the user can give.
    #[error("{}", missing_text(.0))]
    Missing(Vec<Missing>),
    /// A key or variable that does not exist.
    #[error(
        "{source_name}: `{key}` is not a known setting. The most similar one is `{nearest}`: correct the name or remove it"
    )]
    UnknownKey {
        /// The file name, or "environment".
        source_name: String,
        /// The key as written.
        key: String,
        /// The most similar known name.
        nearest: String,
    },
    /// A value has the wrong type or is out of its range.
    #[error("{place} is `{value}`: expected {expects}. Correct the value, or omit it")]
    BadValue {
        /// The setting, by its key in `plan.toml`.
        key: &'static str,
        /// The flag, variable or TOML key that was used.
        place: String,
        /// The value as given.
        value: String,
        /// The accepted values.
        expects: String,
    },
    /// The text is not TOML.
    #[error("{source_name} is not valid TOML: {problem}")]
    NotToml {
        /// The file name.
        source_name: String,
        /// The parser's message with line and column.
        problem: String,
    },
    /// Two answers contradict each other.
    #[error("{what}. {fix}")]
    Conflict {
        /// The setting to change, by its key in `plan.toml`.
        key: &'static str,
        /// The two answers and their origins.
        what: String,
        /// How to resolve the conflict.
        fix: String,
    },
    /// There is no preset of that name.
    #[error(
        "{place}: there is no preset `{name}`. The presets are {known}; the path of a TOML file also works"
    )]
    UnknownPreset {
        /// The flag, variable or TOML key that named it.
        place: String,
        /// The name as given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// The requested device cannot be used.
    #[error(
        "{place} asks for cuda, but {why}. Use --device cpu (or auto), or run `{program} doctor` to see what is missing",
        program = program_name()
    )]
    Device {
        /// The flag, variable or TOML key that requested it.
        place: String,
        /// The reason why it cannot be used.
        why: String,
    },
    /// The data cannot be trained on.
    #[error("{what}. {fix}")]
    Data {
        /// The setting to change, by its key in `plan.toml`.
        key: &'static str,
        /// The problem with the data.
        what: String,
        /// The suggested remedy.
        fix: String,
    },
    /// The plan needs more memory than is available, even after everything was tried.
    #[error("{}", does_not_fit_text(.what, .memory, .remedies))]
    DoesNotFit {
        /// The setting with the largest effect on memory, by its key in `plan.toml`.
        key: &'static str,
        /// The plan in a few words.
        what: String,
        /// The needed memory.
        memory: Box<Shortage>,
        /// Changes that would make it fit.
        remedies: Vec<Remedy>,
    },
    /// The disk has too little space for checkpoints and outputs.
    #[error("the run needs {} on disk ({parts}), and {} are free. Free some space, point --runs-dir at a larger disk, or use --method lora",
        bytes(*.needed_bytes), bytes(*.free_bytes))]
    Disk {
        /// The setting to change, by its key in `plan.toml`.
        key: &'static str,
        /// The bytes needed if one checkpoint is kept.
        needed_bytes: u64,
        /// The free bytes in the folder of the runs.
        free_bytes: u64,
        /// The files that need the space.
        parts: String,
    },
    /// The plan could not be written as TOML.
    #[error("the plan cannot be written as TOML: {0}. All paths must be valid UTF-8")]
    NotWritable(String),
    /// A file shipped with this build is invalid.
    #[error("the included {file} is invalid: {problem}. This is a bug in sparktune")]
    Shipped {
        /// Name of the file.
        file: &'static str,
        /// The problem.
        problem: String,
    },
}

impl PlanError {
    /// Returns the setting that a screen should move to: the answer to correct, or the first that is missing.
    /// `None` if no single answer is the cause.
    pub fn setting(&self) -> Option<&'static Setting> {
        Setting::of(match self {
            Self::Missing(missing) => missing.first()?.key,
            Self::BadValue { key, .. }
            | Self::Conflict { key, .. }
            | Self::Data { key, .. }
            | Self::DoesNotFit { key, .. }
            | Self::Disk { key, .. } => key,
            Self::UnknownPreset { .. } => "preset",
            Self::Device { .. } => "device",
            Self::UnknownKey { .. } | Self::NotToml { .. } | Self::NotWritable(_) | Self::Shipped { .. } => {
                return None;
            }
        })
    }

    /// Returns the exit code of the program: 2 for wrong usage, 3 for data, 4 for device or memory, 70 for a
    /// bug.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Data { .. } => 3,
            Self::Device { .. } | Self::DoesNotFit { .. } | Self::Disk { .. } => 4,
            Self::Shipped { .. } => 70,
            _ => 2,
        }
    }
}

fn missing_text(missing: &[Missing]) -> String {
    let mut text = match missing.len() {
        1 => "an answer is missing:".to_owned(),
        n => format!("{n} answers are missing:"),
    };
    for answer in missing {
        let _ = write!(text, "\n  {} (or {}): {}", answer.flag, answer.env, answer.about);
    }
    text
}

fn does_not_fit_text(what: &str, memory: &Shortage, remedies: &[Remedy]) -> String {
    let mut text = format!(
        "{what} does not fit: it needs {}, but only {} are {}. By part: {}.",
        bytes(memory.needed_bytes),
        bytes(memory.available_bytes),
        memory.budget,
        memory.parts,
    );
    if remedies.is_empty() {
        text.push_str(
            " No model in the catalog fits this machine: free some memory or use a larger machine.",
        );
    } else {
        text.push_str(" What would fit:");
        for remedy in remedies {
            let _ = write!(text, "\n  {} ({})", remedy.change, bytes(remedy.needed_bytes));
        }
    }
    text
}
