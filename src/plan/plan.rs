//! The plan: every value the trainer needs, and the advice that explains it.
//!
//! Written once as `plan.toml` into the run folder and never changed. Values are grouped as in a preset, so
//! that the plan of an old run can be used as `--preset`.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sparktune_base::choices::{Overlong, PackStrategy, Think, TrainOn};
use sparktune_base::field_map::FieldMap;
use sparktune_base::units::{count, counted, duration as time_in_words};

use crate::answer::Origin;
use crate::choices::{
    Architecture, CombineRanks, DataFormat, Device, Exported, MethodKind, Mtp, OnDamage, Products, Sentry,
};
use crate::error::PlanError;
use crate::facts::{Rate, is_zero};
use crate::fit::CostPoint;
pub use crate::length::{DurationPlan, EarlierLength, steps_in_part};
use crate::memory::Memory;
use crate::model_config::ConfigOptions;
use crate::settings::Answers;
use crate::sync::SyncPlan;
use crate::targets::TargetModules;
use crate::template_kwargs::TemplateKwargs;
use crate::values::Texts;
use crate::weights::Weights;

/// Every value of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The preset that the plan started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// The seed of shuffling and adapter initialisation.
    pub seed: u64,
    /// The device used for training.
    pub device: Device,
    /// Whether layers are computed again in the backward pass.
    pub recompute: bool,
    /// Whether sufficiently wide linear layers multiply numbers rounded to e4m3 in training; not lossless.
    #[serde(default)]
    pub fp8: bool,
    /// By whom matrix products on a GPU are computed. Plans without this field have our kernels.
    #[serde(default, skip_serializing_if = "Products::is_own")]
    pub products: Products,
    /// The treatment of the MTP head.
    pub mtp: Mtp,
    /// The number of token ids that drafts are chosen from; `None` means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_vocab: Option<u32>,
    /// Which weights the outputs contain.
    #[serde(default = "Exported::of_old_plans")]
    pub export: Exported,
    /// The user's own prompts, which are answered at each evaluation.
    #[serde(default, skip_serializing_if = "Texts::is_empty")]
    pub sample_prompts: Texts,
    /// The folder of the runs.
    pub runs_dir: PathBuf,
    /// The name of the run's folder, if the user chose one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The base model.
    pub model: ModelPlan,
    /// The data.
    pub data: DataPlan,
    /// Which tokens are trained.
    pub method: Method,
    /// How examples are packed.
    pub pack: PackPlan,
    /// The number of packs of a micro-batch and of an optimizer step.
    pub batch: BatchPlan,
    /// AdamW, schedule, clipping.
    pub optimizer: OptimizerPlan,
    /// The length of training.
    pub duration: DurationPlan,
    /// How the MTP head is trained. `None` where none is, and in old plans, which mean [`HeadPlan::OLD`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<HeadPlan>,
    /// Checkpoints.
    pub checkpoint: CheckpointPlan,
    /// Evaluation.
    pub eval: EvalPlan,
    /// How several ranks train together.
    #[serde(default)]
    pub ranks: RanksPlan,
    /// What is logged in addition to the events.
    #[serde(default)]
    pub log: LogPlan,
    /// Reasons and estimates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
}

/// The base model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPlan {
    /// The Hugging Face id or folder, as given.
    pub id: String,
    /// The commit, tag or branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The folder of the checkpoint, if it is known at planning time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The known family that a model of an unknown family is treated as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// Fields of the config that are ignored although they are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored_fields: Vec<String>,
    /// The chat template to use instead of the model's own. A run has a copy of it in its folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<PathBuf>,
    /// The model that the MTP head is taken from, if it is not the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtp_from: Option<String>,
    /// The folder with the weights of that head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtp_path: Option<PathBuf>,
    /// Whether the template's variables are written into the exported template as its defaults.
    #[serde(default)]
    pub write_template_default: bool,
    /// The folder of the run or of the adapter whose weights the run starts from. The run has a copy of an
    /// adapter; a model is that of `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

impl ModelPlan {
    /// Returns the model as other programs find it, wherever they run: its id on the hub, or the absolute
    /// path of its folder.
    pub fn reference(&self) -> Cow<'_, str> {
        let in_cache = format!("models--{}", self.id.replace('/', "--"));
        let is_of_hub = |path: &Path| path.iter().any(|part| part == in_cache.as_str());
        match &self.path {
            Some(path) if path.is_absolute() && !is_of_hub(path) => path.to_string_lossy(),
            _ => Cow::Borrowed(&self.id),
        }
    }

    /// Returns the user's options for reading the model's config.
    pub fn config_options(&self) -> ConfigOptions {
        ConfigOptions { computed_as: self.architecture, ignored_fields: self.ignored_fields.clone() }
    }
}

impl Answers {
    /// Returns the options of these answers for reading the model's config.
    pub fn config_options(&self) -> ConfigOptions {
        let Self { architecture, ignore_config_field, .. } = self;
        ConfigOptions {
            computed_as: architecture.as_ref().map(|answer| answer.value),
            ignored_fields: ignore_config_field
                .as_ref()
                .map(|answer| answer.value.clone())
                .unwrap_or_default(),
        }
    }
}

/// The data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataPlan {
    /// The sets of training data: files, folders, or data sets of the hub with their commit.
    pub train: Vec<PathBuf>,
    /// The same of the eval set; empty when it is a share of `train`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub eval: Vec<PathBuf>,
    /// The share of the examples in the eval set, 0 to 0.5; 0 when `eval` is given.
    pub eval_fraction: f64,
    /// The format of the lines.
    pub format: DataFormat,
    /// What the columns of foreign data stand for. Plans of older versions have none.
    #[serde(default, skip_serializing_if = "FieldMap::is_empty")]
    pub map: FieldMap,
    /// Whether an inserted empty think block contributes to the loss.
    pub think: Think,
    /// The assistant turns that are trained.
    #[serde(default)]
    pub train_on: TrainOn,
    /// Whether each trained turn is an example of its own.
    #[serde(default)]
    pub split_turns: bool,
    /// The length in tokens above which an example is too long.
    pub max_example_tokens: u32,
    /// What becomes of examples that are too long.
    #[serde(default)]
    pub overlong: Overlong,
    /// The share of rejected lines above which the data is refused.
    pub max_rejected: f64,
    /// What becomes of damaged examples in token files. Plans of older versions stop.
    #[serde(default)]
    pub on_damage: OnDamage,
    /// The share of the examples left out of each epoch at random, from 0 to below 1.
    pub crc_drop: f64,
    /// The variables with which the chat template is rendered. Plans of older versions set none.
    #[serde(default)]
    pub template_kwargs: TemplateKwargs,
    /// How often an epoch trains each example of a set, by its name in `train`.
    #[serde(default, skip_serializing_if = "Weights::is_empty")]
    pub weights: Weights,
}

impl DataPlan {
    /// The default for the share of rejected lines above which the data is refused.
    pub const MAX_REJECTED: f64 = 0.01;

    /// Returns the weight of each set of training data, in order.
    pub fn weights_in_order(&self) -> Vec<f64> {
        let names: Vec<String> = self.train.iter().map(|set| set.display().to_string()).collect();
        self.weights.of(names.iter().map(String::as_str))
    }
}

/// One set of training data and what an epoch has of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetShare {
    /// The name that the user gave.
    pub name: String,
    /// How often an epoch trains each of its examples.
    pub weight: f64,
    /// Its training examples.
    pub examples: u64,
    /// Their tokens.
    pub tokens: u64,
    /// The number of examples in an epoch.
    pub epoch_examples: u64,
    /// The number of tokens in an epoch.
    pub epoch_tokens: u64,
}

/// Which tokens are trained.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Method {
    /// LoRA adapters on linear layers.
    Lora {
        /// The inner dimension.
        rank: u32,
        /// Numerator of the scale: adapters are scaled by `alpha / rank`.
        alpha: f64,
        /// Whether adapters are scaled by `alpha / sqrt(rank)` instead.
        rslora: bool,
        /// Whether the rank of each adapter is at most the width of its layer, as in every new plan. Plans of
        /// older versions do not say so, and their checkpoints have adapters of the full rank everywhere.
        #[serde(default)]
        clipped: bool,
        /// The linear layers that have adapters. Plans of older versions name none: they have adapters on
        /// all.
        #[serde(default, skip_serializing_if = "TargetModules::is_all")]
        target_modules: TargetModules,
        /// The share of an adapter's input that is set to 0 in training, from 0 to below 1.
        #[serde(default, skip_serializing_if = "is_zero")]
        dropout: f64,
    },
    /// Every text parameter.
    Full,
    /// No parameter of the text model: only the MTP head, in a run of `head` on a model.
    Head,
}

impl Method {
    /// Returns the method without its parameters. A run of the head alone counts as LoRA, whose text model is
    /// frozen too.
    pub const fn kind(self) -> MethodKind {
        match self {
            Self::Lora { .. } | Self::Head => MethodKind::Lora,
            Self::Full => MethodKind::Full,
        }
    }

    /// Returns the method in one word, for the names of runs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Lora { .. } | Self::Full => self.kind().word(),
            Self::Head => "head",
        }
    }

    /// Returns the rank of the adapters, or 0 if there are none.
    pub const fn rank(self) -> u32 {
        match self {
            Self::Lora { rank, .. } => rank,
            Self::Full | Self::Head => 0,
        }
    }

    /// Returns the layers that have adapters; without meaning for full fine-tuning.
    pub(crate) const fn target_modules(self) -> TargetModules {
        match self {
            Self::Lora { target_modules, .. } => target_modules,
            Self::Full | Self::Head => TargetModules::ALL,
        }
    }

    /// Returns the share of the adapters' inputs that is set to 0 in training.
    pub const fn dropout(self) -> f64 {
        match self {
            Self::Lora { dropout, .. } => dropout,
            Self::Full | Self::Head => 0.0,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(is: &bool) -> bool {
    !is
}

/// How examples are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackPlan {
    /// The pack length in tokens.
    pub length: u32,
    /// The pack length in tokens while the MTP head is trained. `None`, as in old plans, means `length`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtp_length: Option<u32>,
    /// The packing algorithm.
    pub strategy: PackStrategy,
}

impl PackPlan {
    /// Returns the packs and the batch of the MTP head's stage, given the batch of the main training.
    pub(crate) fn for_head(self, batch: BatchPlan) -> (Self, BatchPlan) {
        let Some(length) = self.mtp_length else { return (self, batch) };
        let step = batch.packs_per_step() as f64 * f64::from(self.length);
        let rows = (step / f64::from(length.max(1))).round().max(1.0);
        (
            Self { length, ..self },
            BatchPlan { micro_batch_packs: 1, grad_accum_steps: rows as u32, sync: SyncPlan::Step },
        )
    }
}

/// The number of packs of a micro-batch and of an optimizer step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchPlan {
    /// The number of packs in a micro-batch, which pass through the model together.
    pub micro_batch_packs: u32,
    /// The number of micro-batches per optimizer step.
    pub grad_accum_steps: u32,
    /// When several ranks exchange. Plans of older versions mean every step.
    #[serde(default, skip_serializing_if = "SyncPlan::is_step")]
    pub sync: SyncPlan,
}

impl BatchPlan {
    /// Returns the number of packs per optimizer step.
    pub const fn packs_per_step(self) -> u64 {
        self.micro_batch_packs as u64 * self.grad_accum_steps as u64
    }
}

/// AdamW, schedule, clipping.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    missing_docs,
    reason = "the names are AdamW's and the schedule's own; `answers` says what each decides"
)]
pub struct OptimizerPlan {
    pub learning_rate: f64,
    pub min_lr_ratio: f64,
    pub warmup_ratio: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub clip_norm: f64,
}

/// How the MTP head is trained.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadPlan {
    /// The peak learning rate.
    pub learning_rate: f64,
    /// The number of passes over the data.
    pub epochs: u32,
    /// The number of tokens that it learns to draft in a row.
    pub draft_tokens: u32,
    /// Whether nothing else is trained, because the text model is finished, as in a run of `head`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub alone: bool,
}

impl HeadPlan {
    /// The training of every head before there were settings for it.
    pub const OLD: Self = Self { learning_rate: 2e-4, epochs: 1, draft_tokens: 1, alone: false };
}

/// Checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointPlan {
    /// The number of steps between checkpoints.
    pub save_steps: u64,
    /// The number of minutes after which a checkpoint is due in any case.
    pub save_minutes: u32,
    /// The number of checkpoints at planned steps that are kept, each with the one that was best by then. The
    /// newest of all is always kept.
    pub keep: u32,
}

/// Evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalPlan {
    /// The number of optimizer steps between evaluations.
    pub every_steps: u64,
    /// The number of evaluations without a better loss after which the run ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stop_patience: Option<u32>,
    /// The number of sample generations at each evaluation.
    pub sample_count: u32,
    /// The length of the longest sample generation in tokens.
    pub sample_max_tokens: u32,
}

/// How several ranks train together. Without effect in a process that trains alone. Plans written before a
/// setting existed have its default.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RanksPlan {
    /// What becomes of a gradient that differs from the others'.
    pub sentry: Sentry,
    /// The deviations beyond which it does.
    pub sentry_sigma: f64,
    /// How the gradients become that of the step.
    pub combine: CombineRanks,
    /// Whether the ranks go on without one that is gone.
    pub swarm: bool,
    /// The seconds after which a silent rank is gone, for those.
    pub silence_s: u32,
}

impl RanksPlan {
    /// The deviations by default.
    pub const SIGMA: f64 = 3.5;
    /// The seconds of silence by default.
    pub const SILENCE_S: u32 = 5;
}

impl Default for RanksPlan {
    fn default() -> Self {
        Self {
            sentry: Sentry::default(),
            sentry_sigma: Self::SIGMA,
            combine: CombineRanks::default(),
            swarm: false,
            silence_s: Self::SILENCE_S,
        }
    }
}

/// What is logged in addition to the events. Plans written before this setting existed have the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogPlan {
    /// Whether TensorBoard event files are written.
    pub tensorboard: bool,
}

impl Default for LogPlan {
    fn default() -> Self {
        Self { tensorboard: true }
    }
}

/// The reasons for the plan's values, and the estimated costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Advice {
    /// The pack length by the Qwen3.5 recipe's rule: the mean length rounded to a multiple of 128.
    pub recipe_pack_length: u32,
    /// The recommended peak learning rate. Plans of older versions do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recommended_learning_rate: Option<f64>,
    /// Answers that are far from what is recommended, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The sets of training data, if there are several or one has a weight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<SetShare>,
    /// The memory by part, for the stage that needs most.
    pub memory: Memory,
    /// Steps, speed and duration.
    pub time: Time,
    /// One row for each value of the plan.
    pub explain: Vec<Explained>,
    /// The cost of each pack length.
    pub curve: Vec<CostPoint>,
}

/// A value with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explained {
    /// The dotted key in `plan.toml`.
    pub key: String,
    /// The value as text; empty if it is not set.
    pub value: String,
    /// The origin of the value.
    pub origin: Origin,
    /// The reason, with figures.
    pub reason: String,
}

/// Steps, speed and duration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Time {
    /// The number of tokens in one epoch, without padding.
    pub tokens_per_epoch: u64,
    /// The average number of tokens in one optimizer step.
    pub tokens_per_step: u64,
    /// The number of optimizer steps in one epoch.
    pub steps_per_epoch: u64,
    /// The number of optimizer steps in the run.
    pub steps: u64,
    /// FLOPs of training per token.
    pub flops_per_token: f64,
    /// The seconds that dropout takes for each token of the text model's training; 0 without dropout.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropout_s_per_token: f64,
    /// The device's name in the rates file.
    pub device: String,
    /// Tokens per second without dropout, if there is a basis for an estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_s: Option<f64>,
    /// The duration in seconds of loading the model, and of what the first step takes longer than the others.
    /// Plans of older versions do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_s: Option<f64>,
    /// The duration of the optimizer steps in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_s: Option<f64>,
    /// The duration of all evaluations in seconds: of the base, of the text model between the steps, and the
    /// sample answers. Plans of older versions do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_s: Option<f64>,
    /// The duration of the MTP head's epoch in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtp_s: Option<f64>,
    /// The duration in seconds of what follows: the head is measured, and the outputs are written and
    /// checked. Plans of older versions do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_s: Option<f64>,
    /// The basis of the speed.
    pub basis: RateBasis,
    /// The formula with its figures.
    pub formula: String,
}

impl Time {
    /// Returns the duration of the text model's training with its evaluations in seconds.
    pub fn text_model_s(&self) -> Option<f64> {
        Some(self.train_s? + self.eval_s.unwrap_or(0.0))
    }

    /// Returns the duration of the whole run in seconds.
    pub fn total_s(&self) -> Option<f64> {
        Some(self.start_s.unwrap_or(0.0) + self.text_model_s()? + self.after_s())
    }

    /// Returns the seconds from the last step of the text model to the end of the run.
    pub fn after_s(&self) -> f64 {
        self.mtp_s.unwrap_or(0.0) + self.finish_s.unwrap_or(0.0)
    }
}

/// The basis of a speed estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RateBasis {
    /// Measured by an earlier run on this machine.
    MeasuredHere,
    /// Measured by the GPU tests with this model on such a device.
    Measured,
    /// Measured with the Qwen3.5 recipe, another program, on such a machine.
    OriginalRecipe,
    /// FLOPs divided by an assumed speed of the device.
    Estimate,
    /// The speed of this device is unknown until the first steps have been measured.
    Unknown,
}

impl Plan {
    /// The folder of runs where no answer names another, below the working directory.
    pub const RUNS_DIR: &str = "runs";

    /// Returns the text of `plan.toml`.
    ///
    /// # Errors
    /// [`PlanError::NotWritable`] when a path is not UTF-8.
    pub fn to_toml(&self) -> Result<String, PlanError> {
        toml::to_string(self).map_err(|error| PlanError::NotWritable(error.to_string()))
    }

    /// Reads a `plan.toml`; `source` names it in messages.
    ///
    /// # Errors
    /// [`PlanError::NotToml`] when the text is not a plan, with line and column.
    pub fn from_toml(text: &str, source: &str) -> Result<Self, PlanError> {
        toml::from_str(text).map_err(|error| PlanError::NotToml {
            source_name: source.into(),
            problem: error.to_string().trim_end().into(),
        })
    }

    /// Returns the entry of the rates file for a run of this plan with this speed, which the next plan of the
    /// same model, method and device then uses. Returns `None` for a plan without advice, and for one with
    /// fp8, whose speed differs from that of the others.
    pub fn measured(&self, tokens_per_s: f64) -> Option<Rate> {
        let time = &self.advice.as_ref().filter(|_| !self.fp8)?.time;
        Some(Rate {
            tokens_per_s,
            flops_per_token: time.flops_per_token,
            dropout_s_per_token: time.dropout_s_per_token,
            model: self.model.id.clone(),
            device: time.device.clone(),
            method: self.method.kind(),
        })
    }

    /// Returns the predicted memory of training in bytes, which a measured peak is compared with. `None` for
    /// a plan without advice.
    pub fn predicted_bytes(&self) -> Option<u64> {
        Some(self.advice.as_ref()?.memory.training_bytes())
    }

    /// Returns the plan of the same run with another length, which comes to `steps`.
    #[must_use]
    pub fn lasting(&self, duration: DurationPlan, steps: u64) -> Self {
        let mut plan = Self { duration, ..self.clone() };
        let Some(advice) = &mut plan.advice else { return plan };
        let time = &mut advice.time;
        let (before, share) = (time.steps, steps as f64 / time.steps.max(1) as f64);
        time.steps = steps;
        time.train_s = time.train_s.map(|seconds| seconds * share);
        time.eval_s = time.eval_s.map(|seconds| seconds * share);
        time.formula = format!("as for {}: {}", counted(before, "step"), time.formula);
        let max_steps = plan.duration.max_steps.map_or(String::new(), |steps| steps.to_string());
        let total = time.total_s().map_or(String::new(), time_in_words);
        let changed = [
            ("duration.epochs", plan.duration.epochs.to_string(), Origin::Flag),
            ("duration.max_steps", max_steps, Origin::Flag),
            ("steps", count(steps), Origin::BuiltIn),
            ("time", total, Origin::BuiltIn),
        ];
        for (key, value, origin) in changed {
            for row in advice.explain.iter_mut().filter(|row| row.key == key && row.value != value) {
                let was = if row.value.is_empty() { "not set" } else { &row.value };
                let reason = format!("changed by `resume`; it was {was}");
                *row = Explained { key: row.key.clone(), value: value.clone(), origin, reason };
            }
        }
        plan
    }

    /// Returns the warnings about the plan's values, one sentence each.
    pub fn warnings(&self) -> &[String] {
        self.advice.as_ref().map_or(&[][..], |advice| &advice.warnings)
    }

    /// Replaces the folders of the models by those in which another machine than the one that planned has
    /// them.
    pub fn move_models(&mut self, base: PathBuf, head: Option<PathBuf>) {
        self.model.path = Some(base);
        self.model.mtp_path = self.model.mtp_path.take().and(head);
    }

    /// Returns whether only the MTP head is trained.
    pub fn is_of_head_alone(&self) -> bool {
        self.head.is_some_and(|head| head.alone)
    }

    /// Returns the same plan with the packs, the learning rate and the epochs of the MTP head's stage. Its
    /// optimizer steps have as many tokens as those of the main training.
    #[must_use]
    pub fn for_head(&self) -> Self {
        let (pack, batch) = self.pack.for_head(self.batch);
        let HeadPlan { learning_rate, epochs, .. } = self.head.unwrap_or(HeadPlan::OLD);
        let optimizer = OptimizerPlan { learning_rate, ..self.optimizer };
        let duration = DurationPlan { epochs: epochs.into(), ..self.duration.clone() };
        Self { pack, batch, optimizer, duration, ..self.clone() }
    }
}
