//! What a setting is: its names, what values it takes, and where interfaces show it.
//!
//! The rows themselves are in `settings`. Everything here is known without a model or data: flags, help,
//! completions, the wizard's list and the reference in presets/README.md are made from it.

use std::fmt;

use sparktune_base::choices::one_of;

use crate::answer::Origin;

/// One setting of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    /// Dotted place in a preset and in `plan.toml`: `method.rank`.
    pub key: &'static str,
    /// Name on the command line (`rank`); the variable is made from it.
    pub name: &'static str,
    /// What it decides, as a sentence.
    pub about: &'static str,
    /// What kind of value it takes.
    pub kind: Kind,
    /// The range of a number, and how an arrow key moves it; `None` for everything else.
    pub number: Option<Number>,
    /// The group that help lists it in.
    pub heading: Heading,
    /// Where the wizard asks for it.
    pub page: Page,
    /// Whether `--help` lists it; `--help-all` lists all settings.
    pub is_common: bool,
    /// What a shell completes its value with, besides the words of [`Kind::Choice`].
    pub completes: Completes,
    /// Names of the same setting in other programs, which are taken as this one.
    pub aliases: &'static [&'static str],
    /// Names in other programs of something that this setting comes nearest to, but is not.
    pub nearest_to: &'static [&'static str],
    /// Whether it decides what becomes tokens, or where they are kept, so that data has to be read again
    /// when it changes.
    pub reads_data: bool,
    /// Whether it says what a run is made from, not how: presets of the user leave it out.
    pub of_one_run: bool,
    /// Whether `check` takes it: it says which data is read, and how.
    pub of_check: bool,
    /// Whether there is no plan without it, because no rule can supply it.
    pub is_required: bool,
}

/// The kind of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// A path.
    Path,
    /// One or several paths.
    Paths,
    /// One or several names.
    Names,
    /// A whole number.
    Whole,
    /// A number.
    Number,
    /// Yes or no: `true` or `false`.
    Switch,
    /// One of these words, in the order they are offered.
    Choice(&'static [&'static str]),
}

/// The range of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Number {
    /// The lowest value.
    pub min: f64,
    /// The highest value.
    pub max: f64,
    /// What of the model lowers `max`.
    pub limit: Option<Limit>,
    /// How far an arrow key moves it.
    pub step: Step,
    /// Where an arrow key starts when nothing is set.
    pub start: Option<&'static str>,
}

/// What of a model limits a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The tokens that it can take at once.
    Context,
    /// The width of its hidden states.
    HiddenSize,
    /// The entries of its vocabulary.
    Vocabulary,
}

/// How an arrow key moves a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// To the next multiple.
    By(f64),
    /// Twice, half.
    Double,
    /// 1, 2, 5, 10, ….
    OneTwoFive,
}

/// The groups of settings, in the order that help lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heading {
    /// The model.
    Model,
    /// The data.
    Data,
    /// LoRA or full fine-tuning.
    Method,
    /// Packs, and how many make a step.
    Batch,
    /// AdamW and its schedule.
    Optimizer,
    /// How long training lasts.
    Duration,
    /// Evaluation and samples.
    Evaluation,
    /// Checkpoints.
    Checkpoints,
    /// The multi-token-prediction head.
    Mtp,
    /// The device, memory and speed.
    Device,
    /// The run and its folder.
    Run,
}

/// Where the wizard asks for a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Page {
    /// Among the essential settings of the plan's page, at this place.
    Essential(u8),
    /// On the plan's page when all settings are shown.
    AllSettings,
    /// On a page of its own: the model, the data, the presets.
    Own,
}

/// What a shell completes a value with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completes {
    /// Nothing that is known.
    Nothing,
    /// Files and folders.
    Files,
    /// Folders.
    Folders,
    /// Names of presets, and files.
    Presets,
    /// Ids of the catalog, and folders.
    Models,
}

/// The prefix of the variables that hold settings.
pub(crate) const ENV_PREFIX: &str = "SPARKTUNE_";

impl Setting {
    /// The name of its variable, `SPARKTUNE_RANK`.
    pub fn env(&self) -> String {
        format!("{ENV_PREFIX}{}", self.name.to_uppercase().replace('-', "_"))
    }

    /// Where a value of this origin stands, for messages: `--rank`, `SPARKTUNE_RANK`, `method.rank in the
    /// preset`.
    pub fn place(&self, origin: Origin) -> String {
        match origin {
            Origin::Flag => format!("--{}", self.name),
            Origin::Environment => self.env(),
            Origin::UserFile => format!("`{}` in the user file", self.key),
            Origin::Preset => format!("`{}` in the preset", self.key),
            Origin::BuiltIn => format!("`{}`, built in", self.key),
        }
    }

    /// What to type to set it.
    pub fn how(&self, value: impl fmt::Display) -> String {
        format!("--{} {value}", self.name)
    }

    /// The words it takes where there are only these, in the order they are offered; else empty.
    pub const fn choices(&self) -> &'static [&'static str] {
        match self.kind {
            Kind::Switch => &["true", "false"],
            Kind::Choice(words) => words,
            _ => &[],
        }
    }

    /// Whether several values make one answer.
    pub const fn is_list(&self) -> bool {
        matches!(self.kind, Kind::Paths | Kind::Names)
    }

    /// What values it takes, as the end of the sentence "expected …".
    pub fn expects(&self) -> String {
        let range = self.number.map_or(String::new(), |number| format!(" {}", number.range()));
        match self.kind {
            Kind::Text => "text".into(),
            Kind::Path => "a path".into(),
            Kind::Paths => "a path, or a list of them: [\"a.jsonl\", \"b.jsonl\"]".into(),
            Kind::Names => "a name, or several with commas in between".into(),
            Kind::Whole => format!("a whole number{range}"),
            Kind::Number => format!("a number{range}"),
            Kind::Switch | Kind::Choice(_) => one_of(self.choices()),
        }
    }

    /// Whether a number is in the range, as far as that is known without the model.
    pub(crate) fn allows(&self, value: Option<f64>) -> bool {
        match (self.number, value) {
            // A small model lowers the least value too; the plan looks again when the model is known.
            (Some(Number { min, max, limit: Some(_), .. }), Some(value)) => {
                (min.min(1.0)..=max).contains(&value)
            }
            (Some(Number { min, max, limit: None, .. }), Some(value)) => (min..=max).contains(&value),
            _ => true,
        }
    }

    /// The same setting, if its row is complete; the table is built with it, so that a row which is not does
    /// not compile.
    pub(crate) const fn checked(self) -> Self {
        let is_number = matches!(self.kind, Kind::Whole | Kind::Number);
        assert!(is_number == self.number.is_some(), "every number, and nothing else, has a range and a step");
        let is_path = matches!(self.kind, Kind::Path | Kind::Paths);
        assert!(!is_path || !matches!(self.completes, Completes::Nothing), "paths complete files or folders");
        self
    }
}

impl Number {
    /// A range whose ends belong to it.
    pub(crate) const fn between(min: f64, max: f64, step: Step) -> Self {
        Self { min, max, limit: None, step, start: None }
    }

    /// The same, where the model may lower the highest value.
    pub(crate) const fn within(self, limit: Limit) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// The same, where an arrow key begins here.
    pub(crate) const fn starting_at(self, start: &'static str) -> Self {
        Self { start: Some(start), ..self }
    }

    /// The range as the end of a sentence: "from 0 to 1".
    pub fn range(&self) -> String {
        format!("from {} to {}", bound(self.min), bound(self.max))
    }
}

/// The end of a range as people write it: 65536, 1e-12, 2^40.
fn bound(value: f64) -> String {
    let is_large_power_of_two = value >= 2f64.powi(30) && value.log2().fract() == 0.0;
    if is_large_power_of_two {
        format!("2^{}", value.log2())
    } else if value != 0.0 && value < 1e-3 {
        format!("{value:e}")
    } else {
        value.to_string()
    }
}

impl Limit {
    /// What it is, for messages.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Context => "the tokens that the model takes at once",
            Self::HiddenSize => "the model's hidden size",
            Self::Vocabulary => "the size of the model's vocabulary",
        }
    }
}

impl Heading {
    /// As help prints it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Model => "Model",
            Self::Data => "Data",
            Self::Method => "Method",
            Self::Batch => "Packs and batches",
            Self::Optimizer => "Optimizer and schedule",
            Self::Duration => "Duration",
            Self::Evaluation => "Evaluation and samples",
            Self::Checkpoints => "Checkpoints",
            Self::Mtp => "MTP head",
            Self::Device => "Device, memory and speed",
            Self::Run => "Run",
        }
    }
}
