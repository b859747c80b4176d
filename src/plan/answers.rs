//! What the user said: every answer optional, each with its origin, and how layers of them are joined.
//!
//! One table at the end of this file names each answer once: its field, its place in TOML (the same as in
//! `plan.toml`, so that the plan of an old run is itself a preset), its flag and its environment variable.
//! Enters: TOML text, environment pairs, single words from flags or a screen. Leaves: [`Answers`], and TOML
//! text again for drafts and presets. No file is opened here; how values look as text is in `values`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sparktune_base::choices::{PackStrategy, Think};

use crate::choices::{Architecture, DataFormat, DeviceChoice, MethodKind, Mtp};
use crate::error::PlanError;
use crate::values::{Value, spoken, written};

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
    /// What was said.
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

/// One answer's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Dotted place in a preset and in `plan.toml`: `method.rank`.
    pub key: &'static str,
    /// Name on the command line (`rank`); the variable is made from it.
    pub name: &'static str,
    /// Whether the command line has it.
    pub has_flag: bool,
    /// What it decides.
    pub about: &'static str,
    /// What values it takes.
    pub expects: &'static str,
    /// The words it takes where there are only these, in the order they are offered; else empty.
    pub choices: &'static [&'static str],
}

impl Setting {
    /// The setting at this place in TOML.
    pub fn of(key: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.key == key)
    }

    /// The setting of this command-line name.
    pub fn named(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// The name of its variable, `SPARKTUNE_RANK`.
    pub fn env(&self) -> String {
        format!("{ENV_PREFIX}{}", self.name.to_uppercase().replace('-', "_"))
    }

    /// Where a value of this origin stands, for messages: `--rank`, `SPARKTUNE_RANK`, `method.rank in the
    /// preset`.
    pub fn place(&self, origin: Origin) -> String {
        match origin {
            Origin::Flag if self.has_flag => format!("--{}", self.name),
            Origin::Flag => format!("{} as answered", self.key),
            Origin::Environment => self.env(),
            Origin::UserFile => format!("`{}` in the user file", self.key),
            Origin::Preset => format!("`{}` in the preset", self.key),
            Origin::BuiltIn => format!("`{}`, built in", self.key),
        }
    }

    /// What to type to set it: the flag, or the variable where there is no flag.
    pub fn how(&self, value: impl std::fmt::Display) -> String {
        if self.has_flag { format!("--{} {value}", self.name) } else { format!("{}={value}", self.env()) }
    }
}

const ENV_PREFIX: &str = "SPARKTUNE_";

/// The one table of an existing `plan.toml` that holds no answers, so that a plan can serve as a preset.
const ADVICE: &str = "advice";

fn stronger<T>(below: Option<Answer<T>>, above: Option<Answer<T>>) -> Option<Answer<T>> {
    match (below, above) {
        (Some(below), Some(above)) if below.origin > above.origin => Some(below),
        (below, above) => above.or(below),
    }
}

fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<(usize, &'a str)> {
    known.map(|name| (strsim::damerau_levenshtein(word, name), name)).min()
}

fn unknown(source: &str, key: &str) -> PlanError {
    // A lone word is compared with the last part too: `rank` at the top level means `method.rank`.
    let tail = key.rsplit('.').next().unwrap_or(key);
    let exact =
        SETTINGS.iter().find(|s| s.name.replace('-', "_") == tail || s.key.ends_with(&format!(".{tail}")));
    let near = exact
        .map(|setting| setting.key)
        .or_else(|| nearest(key, SETTINGS.iter().map(|s| s.key)).map(|(_, name)| name))
        .unwrap_or("model.id");
    PlanError::UnknownKey { source_name: source.into(), key: key.into(), nearest: near.into() }
}

impl Answers {
    /// Reads a preset, a user file, or the `plan.toml` of an earlier run (whose `[advice]` is passed over).
    ///
    /// `source` names the text in messages (a file name).
    ///
    /// # Errors
    /// Text that is not TOML, a key that is not known (the nearest known one is named), a value of the wrong
    /// type.
    pub fn from_toml(text: &str, origin: Origin, source: &str) -> Result<Self, PlanError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| PlanError::NotToml {
            source_name: source.into(),
            problem: error.to_string().trim_end().into(),
        })?;
        let mut answers = Self::default();
        for (name, value) in &table {
            match value {
                toml::Value::Table(_) if name == ADVICE => {}
                toml::Value::Table(group) => {
                    for (field, value) in group {
                        answers.set_toml(&format!("{name}.{field}"), value, origin, source)?;
                    }
                }
                value => answers.set_toml(name, value, origin, source)?,
            }
        }
        Ok(answers)
    }

    fn set_toml(
        &mut self,
        key: &str,
        value: &toml::Value,
        origin: Origin,
        source: &str,
    ) -> Result<(), PlanError> {
        let Some(setting) = Setting::of(key) else { return Err(unknown(source, key)) };
        if self.store(key, Given::Toml(value), origin) {
            return Ok(());
        }
        let value = value.to_string();
        Err(PlanError::BadValue {
            key: setting.key,
            place: format!("{source}: `{key}`"),
            value: value.chars().take(80).collect(),
            expects: setting.expects.into(),
        })
    }

    /// Takes the `SPARKTUNE_*` variables of an environment.
    ///
    /// Other variables are passed over, also unknown ones with this prefix, except where the name is within
    /// two letters of a known one: that is a typing error that would silently change the run.
    ///
    /// # Errors
    /// A mistyped name, or a value that cannot be read.
    pub fn from_env(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self, PlanError> {
        let mut answers = Self::default();
        for (variable, text) in pairs {
            if !variable.starts_with(ENV_PREFIX) {
                continue;
            }
            if let Some(setting) = SETTINGS.iter().find(|setting| setting.env() == variable) {
                answers.set(setting.name, &text, Origin::Environment)?;
                continue;
            }
            let known: Vec<String> = SETTINGS.iter().map(Setting::env).collect();
            if let Some((1..=2, near)) = nearest(&variable, known.iter().map(String::as_str)) {
                return Err(PlanError::UnknownKey {
                    source_name: "environment".into(),
                    key: variable,
                    nearest: near.into(),
                });
            }
        }
        Ok(answers)
    }

    /// Sets one answer from text, by its command-line name (`pack-length`).
    ///
    /// # Errors
    /// An unknown name or a value that cannot be read.
    pub fn set(&mut self, name: &str, text: &str, origin: Origin) -> Result<(), PlanError> {
        let Some(setting) = Setting::named(name) else { return Err(unknown("settings", name)) };
        if self.store(setting.key, Given::Text(text), origin) {
            return Ok(());
        }
        Err(PlanError::BadValue {
            key: setting.key,
            place: setting.place(origin),
            value: text.chars().take(80).collect(),
            expects: setting.expects.into(),
        })
    }

    /// The answer of this command-line name, as text that [`set`](Self::set) reads back the same, and where
    /// it comes from. `None` where there is no answer, or one that no text can hold (a path that is not
    /// UTF-8); [`origin`](Self::origin) tells the two apart.
    pub fn get(&self, name: &str) -> Option<(String, Origin)> {
        let setting = Setting::named(name)?;
        self.text(setting.key).zip(self.origin(setting.key))
    }

    /// Takes one answer back, by its command-line name: the plan decides again.
    pub fn clear(&mut self, name: &str) {
        if let Some(setting) = Setting::named(name) {
            self.forget(setting.key);
        }
    }

    /// The answers but for those that `is_out` says by their origin and name.
    #[must_use]
    pub fn without(&self, is_out: impl Fn(Origin, &str) -> bool) -> Self {
        let mut kept = self.clone();
        for setting in SETTINGS {
            if self.origin(setting.key).is_some_and(|origin| is_out(origin, setting.name)) {
                kept.forget(setting.key);
            }
        }
        kept
    }

    /// The answers of one origin alone: what was said on the command line and on screens, for a draft.
    #[must_use]
    pub fn only(&self, origin: Origin) -> Self {
        self.without(|other, _| other != origin)
    }

    /// As the text of a preset, grouped like `plan.toml`, with what was answered and nothing else. Origins
    /// are not written: [`from_toml`](Self::from_toml) gives every answer the origin of the file.
    ///
    /// # Errors
    /// [`PlanError::NotWritable`] naming the answer that TOML cannot hold: a path that is not UTF-8, an
    /// infinite number.
    pub fn to_toml(&self) -> Result<String, PlanError> {
        let mut groups: Vec<(&str, String)> = Vec::new();
        for setting in SETTINGS.iter().filter(|setting| self.origin(setting.key).is_some()) {
            let value = self.toml(setting.key).ok_or_else(|| {
                PlanError::NotWritable(format!("the answer to `{}` has no text", setting.key))
            })?;
            let (group, field) = setting.key.rsplit_once('.').unwrap_or(("", setting.key));
            let at = groups.iter().position(|(name, _)| *name == group).unwrap_or_else(|| {
                groups.push((group, String::new()));
                groups.len() - 1
            });
            groups[at].1.push_str(&format!("{field} = {value}\n"));
        }
        // What belongs to no group must stand before all of them.
        groups.sort_by_key(|(name, _)| !name.is_empty());
        let text = |(name, lines): &(&str, String)| match *name {
            "" => lines.clone(),
            name => format!("[{name}]\n{lines}"),
        };
        Ok(groups.iter().map(text).collect::<Vec<_>>().join("\n"))
    }

    /// Joins layers: for each answer the highest origin wins, and among equals the later layer.
    pub fn layered(layers: impl IntoIterator<Item = Self>) -> Self {
        layers.into_iter().fold(Self::default(), Self::merge)
    }
}

enum Given<'a> {
    Toml(&'a toml::Value),
    Text(&'a str),
}

impl Given<'_> {
    fn read<T: Value>(&self) -> Option<T> {
        match self {
            Self::Toml(value) => T::from_toml(value),
            Self::Text(text) => T::from_text(text),
        }
    }
}

macro_rules! answers {
    ($($about:literal $field:ident: $type:ty = $key:literal, $name:literal, $has_flag:literal;)+) => {
        /// Everything a user may say. What is not said, the plan decides.
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct Answers { $(#[doc = $about] pub $field: Option<Answer<$type>>,)+ }

        /// Every answer there is, in the order of `plan.toml`.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            key: $key, name: $name, has_flag: $has_flag, about: $about, expects: <$type as Value>::EXPECTS,
            choices: <$type as Value>::CHOICES,
        },)+];

        impl Answers {
            /// Lays `above` over these answers: the higher origin wins, and `above` wins among equals.
            #[must_use]
            pub fn merge(self, above: Self) -> Self {
                Self { $($field: stronger(self.$field, above.$field),)+ }
            }

            /// Where the answer at this place comes from, when there is one.
            pub fn origin(&self, key: &str) -> Option<Origin> {
                match key { $($key => self.$field.as_ref().map(|answer| answer.origin),)+ _ => None }
            }

            fn text(&self, key: &str) -> Option<String> {
                match key { $($key => spoken(&self.$field.as_ref()?.value),)+ _ => None }
            }

            fn toml(&self, key: &str) -> Option<toml::Value> {
                match key { $($key => written(&self.$field.as_ref()?.value),)+ _ => None }
            }

            fn forget(&mut self, key: &str) {
                match key { $($key => self.$field = None,)+ _ => {} }
            }

            fn store(&mut self, key: &str, given: Given<'_>, origin: Origin) -> bool {
                match key {
                    $($key => match given.read::<$type>() {
                        Some(value) => self.$field = Some(Answer::new(value, origin)),
                        None => return false,
                    },)+
                    _ => return false,
                }
                true
            }
        }
    };
}

answers! {
    "Preset to start from: a name from the list, or a path." preset: String = "preset", "preset", true;
    "Seed of shuffling and adapter init; the held-out share is the same for every seed." seed: u64 = "seed", "seed", true;
    "Where to train." device: DeviceChoice = "device", "device", true;
    "Compute activations of a layer again in the backward pass instead of keeping them." recompute: bool = "recompute", "recompute", false;
    "Round what linear layers multiply in training to fp8 (e4m3), on GPUs of compute 8.9 and newer; not lossless." fp8: bool = "fp8", "fp8", true;
    "What becomes of the multi-token-prediction head." mtp: Mtp = "mtp", "mtp", true;
    "Token ids that drafts are chosen from, the most frequent of the training data; all where it is not given." draft_vocab: u32 = "draft_vocab", "draft-vocab", true;
    "Folder that holds the runs." runs_dir: PathBuf = "runs_dir", "runs-dir", true;
    "Name of the run's folder." name: String = "name", "name", true;
    "Hugging Face id or local folder of the model." model: String = "model.id", "model", true;
    "Commit, tag or branch of the model." revision: String = "model.revision", "revision", false;
    "Folder of the checkpoint, where the id alone does not say it." model_path: PathBuf = "model.path", "model-path", false;
    "Family whose layers a model of an unknown family has; known ones are told by config.json." architecture: Architecture = "model.architecture", "architecture", true;
    "Field of config.json that is ignored although it is not known; several may be given." ignore_config_field: Vec<String> = "model.ignored_fields", "ignore-config-field", true;
    "Training data: files or a folder." data: Vec<PathBuf> = "data.train", "data", true;
    "Evaluation data, instead of a share held out." eval_data: Vec<PathBuf> = "data.eval", "eval-data", true;
    "Share of the examples held out for evaluation." eval_fraction: f64 = "data.eval_fraction", "eval-fraction", false;
    "Shape of the data's lines." format: DataFormat = "data.format", "format", true;
    "Whether the empty think block that a template inserts carries loss." think: Think = "data.think", "think", true;
    "Examples over this many tokens are rejected." max_example_tokens: u32 = "data.max_example_tokens", "max-example-tokens", false;
    "Share of rejected lines that ends the run." max_rejected: f64 = "data.max_rejected", "max-rejected", true;
    "Share of packets dropped at random, as augmentation." crc_drop: f64 = "data.crc_drop", "crc-drop", false;
    "What is trained: adapters or everything." method: MethodKind = "method.kind", "method", true;
    "Rank of the adapters." rank: u32 = "method.rank", "rank", true;
    "Scale of the adapters: alpha / rank." alpha: f64 = "method.alpha", "alpha", true;
    "Scale by alpha / sqrt(rank) instead." rslora: bool = "method.rslora", "rslora", false;
    "Tokens of a packed row." pack_length: u32 = "pack.length", "pack-length", true;
    "Tokens of a packed row while the MTP head is trained." mtp_pack_length: u32 = "pack.mtp_length", "mtp-pack-length", true;
    "How examples share a row." pack_strategy: PackStrategy = "pack.strategy", "pack-strategy", true;
    "Packed rows that pass through the model together." micro_batch_packs: u32 = "batch.micro_batch_packs", "micro-batch-packs", false;
    "Micro-batches of one optimizer step." grad_accum_steps: u32 = "batch.grad_accum_steps", "grad-accum-steps", false;
    "Highest learning rate." learning_rate: f64 = "optimizer.learning_rate", "learning-rate", true;
    "Where the cosine ends, as a share of the highest learning rate." min_lr_ratio: f64 = "optimizer.min_lr_ratio", "min-lr-ratio", false;
    "Share of the steps that warm up." warmup_ratio: f64 = "optimizer.warmup_ratio", "warmup-ratio", false;
    "AdamW's decay of the first moment." beta1: f64 = "optimizer.beta1", "beta1", false;
    "AdamW's decay of the second moment." beta2: f64 = "optimizer.beta2", "beta2", false;
    "AdamW's epsilon." eps: f64 = "optimizer.eps", "eps", false;
    "Weight decay, on matrices only." weight_decay: f64 = "optimizer.weight_decay", "weight-decay", false;
    "Largest global gradient norm." clip_norm: f64 = "optimizer.clip_norm", "clip-norm", false;
    "Passes over the data." epochs: u32 = "duration.epochs", "epochs", true;
    "Optimizer steps at most." max_steps: u64 = "duration.max_steps", "max-steps", true;
    "Steps between checkpoints." save_steps: u64 = "checkpoint.save_steps", "save-steps", true;
    "Minutes after which a checkpoint is due in any case." save_minutes: u32 = "checkpoint.save_minutes", "save-minutes", false;
    "Checkpoints kept, beside the best." keep: u32 = "checkpoint.keep", "keep", false;
    "Steps between evaluations." eval_every_steps: u64 = "eval.every_steps", "eval-every-steps", false;
    "Stop after this many evaluations without a better loss." early_stop_patience: u32 = "eval.early_stop_patience", "early-stop-patience", false;
    "Sample generations at each evaluation." sample_count: u32 = "eval.sample_count", "sample-count", false;
    "Longest sample generation, in tokens." sample_max_tokens: u32 = "eval.sample_max_tokens", "sample-max-tokens", false;
    "Write TensorBoard's event files beside the events." tensorboard: bool = "log.tensorboard", "tensorboard", true;
}
