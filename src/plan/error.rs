//! Why there is no plan. Each message says what is wrong, where it was said, and what to do.

use std::fmt::Write as _;

use sparktune_base::program_name;
use sparktune_base::units::bytes;

use crate::setting::Setting;

/// One answer that nobody gave and that no rule can supply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Its place in `plan.toml`.
    pub key: &'static str,
    /// The flag that supplies it, `--model`.
    pub flag: String,
    /// The variable that supplies it.
    pub env: String,
    /// The effect of the setting, in one sentence.
    pub about: &'static str,
}

/// A change that would make a plan fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Remedy {
    /// What the user types, and its meaning.
    pub change: String,
    /// Memory the plan would then need, bytes.
    pub needed_bytes: u64,
}

/// The memory that a plan needs, where that is more than there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// All of it, bytes.
    pub needed_bytes: u64,
    /// Available memory, bytes.
    pub available_bytes: u64,
    /// Which memory of the machine that is, in words.
    pub budget: String,
    /// The need by part: `weights 4.4 GB, optimizer 107 GB`.
    pub parts: String,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Answers that only the user can give; all of them at once.
    #[error("{}", missing_text(.0))]
    Missing(Vec<Missing>),
    /// A key or variable that does not exist.
    #[error(
        "{source_name}: `{key}` is not a known setting. The most similar one is `{nearest}`: correct the name or remove it"
    )]
    UnknownKey {
        /// File, or "environment".
        source_name: String,
        /// As written.
        key: String,
        /// The known name most like it.
        nearest: String,
    },
    /// A value of the wrong kind or out of its range.
    #[error(
        "{place} is `{value}`: expected {expects}. Correct the value, or omit it to use the recommended one"
    )]
    BadValue {
        /// The setting, by its place in `plan.toml`.
        key: &'static str,
        /// Flag, variable or TOML place.
        place: String,
        /// As given.
        value: String,
        /// The accepted values.
        expects: String,
    },
    /// The text is not TOML.
    #[error("{source_name} is not valid TOML: {problem}")]
    NotToml {
        /// File.
        source_name: String,
        /// The parser's words, with line and column.
        problem: String,
    },
    /// Two answers that cannot both hold.
    #[error("{what}. {fix}")]
    Conflict {
        /// The setting to change, by its place in `plan.toml`.
        key: &'static str,
        /// The two, with their places.
        what: String,
        /// How to resolve it.
        fix: String,
    },
    /// No preset of that name.
    #[error(
        "{place}: there is no preset `{name}`. The presets are {known}; the path of a TOML file also works"
    )]
    UnknownPreset {
        /// Where the name was given.
        place: String,
        /// As given.
        name: String,
        /// Names that exist.
        known: String,
    },
    /// The device asked for cannot be used.
    #[error(
        "{place} asks for cuda, but {why}. Use --device cpu (or auto), or run `{program} doctor` to see what is missing",
        program = program_name()
    )]
    Device {
        /// Where it was asked for.
        place: String,
        /// The obstacle.
        why: String,
    },
    /// The data cannot be trained on.
    #[error("{what}. {fix}")]
    Data {
        /// The setting to change, by its place in `plan.toml`.
        key: &'static str,
        /// The problem with the data.
        what: String,
        /// The suggested remedy.
        fix: String,
    },
    /// More memory than there is, with everything tried.
    #[error("{}", does_not_fit_text(.what, .memory, .remedies))]
    DoesNotFit {
        /// The setting that asks for most, by its place in `plan.toml`.
        key: &'static str,
        /// The plan in a few words.
        what: String,
        /// The memory that it would need.
        memory: Box<Shortage>,
        /// Changes that would make it fit.
        remedies: Vec<Remedy>,
    },
    /// Too little room for checkpoints and outputs.
    #[error("the run needs {} on disk ({parts}), and {} are free. Free some space, point --runs-dir at a larger disk, or use --method lora",
        bytes(*.needed_bytes), bytes(*.free_bytes))]
    Disk {
        /// The setting to change, by its place in `plan.toml`.
        key: &'static str,
        /// Needed with one checkpoint kept.
        needed_bytes: u64,
        /// Free where the runs are kept.
        free_bytes: u64,
        /// The parts that need the space.
        parts: String,
    },
    /// The plan could not be written as TOML.
    #[error("the plan cannot be written as TOML: {0}. All paths must be valid UTF-8")]
    NotWritable(String),
    /// A shipped file of this build is broken.
    #[error("the included {file} is invalid: {problem}. This is a bug in sparktune")]
    Shipped {
        /// Name of the file.
        file: &'static str,
        /// The problem.
        problem: String,
    },
}

impl PlanError {
    /// The setting it concerns, where a screen may put it: the answer to correct, or the first that is
    /// missing. `None` where no single answer is at fault.
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

    /// The exit code of the program: 2 wrong usage, 3 data, 4 device or memory, 70 our fault.
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
