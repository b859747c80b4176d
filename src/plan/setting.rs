//! The description of a setting: its names, its values, and its place in the interfaces.
//!
//! The rows themselves are in `settings`. Nothing here depends on a model or data. Flags, help, completions,
//! the wizard's list and the reference in presets/README.md are made from it.

use std::fmt;

use sparktune_base::choices::one_of;
use sparktune_base::field_map::FIELDS;

use crate::answer::Origin;

/// One setting of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    /// The dotted key in a preset and in `plan.toml`: `method.rank`.
    pub key: &'static str,
    /// The name on the command line (`rank`), from which the variable's name is made.
    pub name: &'static str,
    /// What the setting decides, as a sentence.
    pub about: &'static str,
    /// The type of its value.
    pub kind: Kind,
    /// The range of a number, and the step of an arrow key; `None` for other types.
    pub number: Option<Number>,
    /// The heading under which help lists it.
    pub heading: Heading,
    /// The wizard's page for it.
    pub page: Page,
    /// Whether `--help` lists it; `--help-all` lists all settings.
    pub is_common: bool,
    /// What a shell completes its value with, in addition to the words of [`Kind::Choice`].
    pub completes: Completes,
    /// Names of the same setting in other programs, which are accepted too.
    pub aliases: &'static [&'static str],
    /// Names of similar but different settings in other programs, for which this one is suggested.
    pub nearest_to: &'static [&'static str],
    /// Whether it affects tokenisation or where tokens are kept, so that data has to be read again when it
    /// changes.
    pub reads_data: bool,
    /// Whether it describes what a run is made from and not how; such settings are left out of the user's
    /// presets.
    pub of_one_run: bool,
    /// Whether `check` takes it: it says which data is read, and how.
    pub of_check: bool,
    /// Whether there is no plan without it, because no rule can supply it.
    pub is_required: bool,
}

/// The type of a setting's value.
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
    /// One or several texts.
    Texts,
    /// A whole number.
    Whole,
    /// A number.
    Number,
    /// Named values: a JSON object, or a table in TOML.
    Object,
    /// One or several names, each with a number.
    Weights,
    /// Columns and the fields that they stand for.
    Map,
    /// When several ranks exchange: `step`, or `diloco:H`.
    Sync,
    /// Yes or no: `true` or `false`.
    Switch,
    /// One of these words, in display order.
    Choice(&'static [&'static str]),
}

/// The range of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Number {
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The property of the model that may lower `max`.
    pub limit: Option<Limit>,
    /// The step of an arrow key.
    pub step: Step,
    /// The value from which an arrow key starts when nothing is set.
    pub start: Option<&'static str>,
}

/// A property of a model that limits a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The longest context.
    Context,
    /// The width of the hidden states.
    HiddenSize,
    /// The size of the vocabulary.
    Vocabulary,
}

/// The step of an arrow key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// To the next multiple.
    By(f64),
    /// Doubling and halving.
    Double,
    /// The series 1, 2, 5, 10, ….
    OneTwoFive,
}

/// The groups of settings, in the order in which help lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heading {
    /// The name of the model.
    Model,
    /// The data.
    Data,
    /// LoRA or full fine-tuning.
    Method,
    /// Packs, and the number of packs in a step.
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

/// The wizard's place for a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Page {
    /// Among the essential settings on the plan's page, at this position.
    Essential(u8),
    /// On the plan's page if all settings are shown.
    AllSettings,
    /// On a page of its own: the model, the data or the presets.
    Own,
}

/// What a shell completes a value with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completes {
    /// No completion.
    Nothing,
    /// Files and folders.
    Files,
    /// Folders.
    Folders,
    /// Names of presets, and files.
    Presets,
    /// Ids of the catalog's models, and folders.
    Models,
}

/// The prefix of the variables that hold settings.
pub const ENV_PREFIX: &str = "SPARKTUNE_";

impl Setting {
    /// Returns the name of its environment variable, `SPARKTUNE_RANK`.
    pub fn env(&self) -> String {
        format!("{ENV_PREFIX}{}", self.name.to_uppercase().replace('-', "_"))
    }

    /// Returns the place of a value of this origin for messages: `--rank`, `SPARKTUNE_RANK`, `method.rank in
    /// the preset`.
    pub fn place(&self, origin: Origin) -> String {
        match origin {
            Origin::Flag => format!("--{}", self.name),
            Origin::Environment => self.env(),
            Origin::UserFile => format!("`{}` in the user file", self.key),
            Origin::Preset => format!("`{}` in the preset", self.key),
            Origin::BuiltIn => format!("`{}`, built in", self.key),
        }
    }

    /// Returns the text to type to set it.
    pub fn how(&self, value: impl fmt::Display) -> String {
        format!("--{} {value}", self.name)
    }

    /// Returns the words it accepts, in display order; empty if it accepts other values.
    pub const fn choices(&self) -> &'static [&'static str] {
        match self.kind {
            Kind::Switch => &["true", "false"],
            Kind::Choice(words) => words,
            _ => &[],
        }
    }

    /// Returns whether the answer is a list of values.
    pub const fn is_list(&self) -> bool {
        matches!(self.kind, Kind::Paths | Kind::Names | Kind::Texts | Kind::Weights)
    }

    /// Describes the accepted values, as the end of the sentence "expected …".
    pub fn expects(&self) -> String {
        let range = self.number.map_or(String::new(), |number| format!(" {}", number.range()));
        match self.kind {
            Kind::Text => "text".into(),
            Kind::Path => "a path".into(),
            Kind::Paths => "a path, or a list of them: [\"a.jsonl\", \"b.jsonl\"]".into(),
            Kind::Texts => "a text, or a list of them: [\"one\", \"another\"]".into(),
            Kind::Names => "a name, or several with commas in between".into(),
            Kind::Weights => {
                "a data set with a number from 0.000001 to 1000, or several with commas in between, each once: a.jsonl=2, b.jsonl=0.5".into()
            }
            Kind::Object => {
                "a JSON object whose names a template can read and without null: {\"enable_thinking\": false}"
                    .into()
            }
            Kind::Map => format!(
                "columns and what each stands for, as in question=instruction,answer=output; they can stand for {}",
                one_of(&FIELDS)
            ),
            Kind::Sync => "step, or diloco:H with the number H of steps between two exchanges, from 1 to 10000".into(),
            Kind::Whole => format!("a whole number{range}"),
            Kind::Number => format!("a number{range}"),
            Kind::Switch | Kind::Choice(_) => one_of(self.choices()),
        }
    }

    /// Describes the values like [`expects`](Self::expects), as the answer to text that was refused. If
    /// separators may be the reason, it says how to write the number.
    pub fn expects_instead_of(&self, text: &str) -> String {
        let how = match self.kind {
            Kind::Whole if digits(text).is_none() => {
                "; a comma or an underscore may only separate groups of three digits, as in 10,000"
            }
            Kind::Number if text.contains([',', '_']) => "; use a point for decimals, and no other separator",
            _ => "",
        };
        self.expects() + how
    }

    /// Returns whether a number is in the range, as far as that is known without the model.
    pub(crate) fn allows(&self, value: Option<f64>) -> bool {
        match (self.number, value) {
            // A small model lowers the smallest value too; the plan checks again when the model is known.
            (Some(Number { min, max, limit: Some(_), .. }), Some(value)) => {
                (min.min(1.0)..=max).contains(&value)
            }
            (Some(Number { min, max, limit: None, .. }), Some(value)) => (min..=max).contains(&value),
            _ => true,
        }
    }

    /// Returns the same setting if its row is complete. The table uses this in a const context, so that an
    /// incomplete row does not compile.
    pub(crate) const fn checked(self) -> Self {
        let is_number = matches!(self.kind, Kind::Whole | Kind::Number);
        assert!(is_number == self.number.is_some(), "every number, and nothing else, has a range and a step");
        let is_path = matches!(self.kind, Kind::Path | Kind::Paths);
        assert!(!is_path || !matches!(self.completes, Completes::Nothing), "paths complete files or folders");
        self
    }
}

impl Number {
    /// Creates a range that includes both ends.
    pub(crate) const fn between(min: f64, max: f64, step: Step) -> Self {
        Self { min, max, limit: None, step, start: None }
    }

    /// Returns the same range with an upper limit from the model.
    pub(crate) const fn within(self, limit: Limit) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Returns the same range with a start value for arrow keys.
    pub(crate) const fn starting_at(self, start: &'static str) -> Self {
        Self { start: Some(start), ..self }
    }

    /// Describes the range as the end of a sentence: "from 0 to 1".
    pub fn range(&self) -> String {
        format!("from {} to {}", bound(self.min), bound(self.max))
    }
}

/// Removes the separators of a whole number. Commas or underscores may stand between groups of three digits
/// and nowhere else: `1,5` is not 15, and `0,500` is not 500.
pub(crate) fn digits(text: &str) -> Option<String> {
    let text = text.trim();
    let Some(separator) = text.chars().find(|c| matches!(c, ',' | '_')) else { return Some(text.to_owned()) };
    let are_digits = |group: &str| group.bytes().all(|byte| byte.is_ascii_digit());
    let mut groups = text.split(separator);
    let first = groups.next()?;
    let is_first = (1..=3).contains(&first.len()) && are_digits(first) && !first.starts_with('0');
    let is_grouped = is_first && groups.all(|group| group.len() == 3 && are_digits(group));
    is_grouped.then(|| text.replace(separator, ""))
}

/// Formats the end of a range: 65536, 1e-12, 2^40.
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
    /// Describes the limit for messages.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Context => "the tokens that the model takes at once",
            Self::HiddenSize => "the model's hidden size",
            Self::Vocabulary => "the size of the model's vocabulary",
        }
    }
}

impl Heading {
    /// Returns the heading as printed in help.
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
