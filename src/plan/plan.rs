//! The plan: every value the trainer needs, and beside it the advice that led there.
//!
//! Written once as `plan.toml` into the run folder and never changed. The grouping is that of a preset, so
//! that the plan of an old run can be given as `--preset`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sparktune_base::choices::{PackStrategy, Think};

use crate::answer::Origin;
use crate::choices::{Architecture, DataFormat, Device, MethodKind, Mtp};
use crate::error::PlanError;
use crate::facts::Rate;
use crate::fit::CostPoint;
use crate::memory::Memory;
use crate::model_config::ConfigOptions;
use crate::settings::Answers;

/// Every value of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Preset it started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Seed of shuffling and adapter init.
    pub seed: u64,
    /// Where it is trained.
    pub device: Device,
    /// Layers are computed again in the backward pass.
    pub recompute: bool,
    /// Linear layers multiply numbers rounded to e4m3 in training, where they are wide enough; not lossless.
    #[serde(default)]
    pub fp8: bool,
    /// How the MTP head is treated.
    pub mtp: Mtp,
    /// How many token ids drafts are chosen from; all where there is no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_vocab: Option<u32>,
    /// Folder that holds the runs.
    pub runs_dir: PathBuf,
    /// Name of the run's folder, when the user chose one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The base model.
    pub model: ModelPlan,
    /// The data.
    pub data: DataPlan,
    /// Which parameters are trained.
    pub method: Method,
    /// How examples share rows.
    pub pack: PackPlan,
    /// How rows make an optimizer step.
    pub batch: BatchPlan,
    /// AdamW, schedule, clipping.
    pub optimizer: OptimizerPlan,
    /// How long.
    pub duration: DurationPlan,
    /// Checkpoints.
    pub checkpoint: CheckpointPlan,
    /// Evaluation.
    pub eval: EvalPlan,
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
    /// Hugging Face id or folder, as given.
    pub id: String,
    /// Commit, tag or branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Folder of the checkpoint, when it is known at planning time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Family it is computed as, where its own is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// Fields of its config that are ignored although they are not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored_fields: Vec<String>,
}

impl ModelPlan {
    /// The user's options for reading the model's config.
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
    /// Files or folders.
    pub train: Vec<PathBuf>,
    /// Files or folders of the evaluation data; empty when a share of `train` is held out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub eval: Vec<PathBuf>,
    /// Share of the examples held out, 0 to 0.5; 0 when `eval` is given.
    pub eval_fraction: f64,
    /// Shape of the lines.
    pub format: DataFormat,
    /// Whether an inserted empty think block carries loss.
    pub think: Think,
    /// Longer examples are rejected, tokens.
    pub max_example_tokens: u32,
    /// Share of rejected lines that ends the run.
    pub max_rejected: f64,
    /// Share of packets dropped at random.
    pub crc_drop: f64,
}

impl DataPlan {
    /// What is trained of an inserted empty think block where no answer says it.
    pub const THINK: Think = Think::Skip;
    /// The share of rejected lines above which data is refused where no answer names another.
    pub const MAX_REJECTED: f64 = 0.01;
}

/// Which parameters are trained.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Method {
    /// Adapters on every linear of every layer.
    Lora {
        /// Inner width.
        rank: u32,
        /// Scale: `alpha / rank`.
        alpha: f64,
        /// Scale by `alpha / sqrt(rank)` instead.
        rslora: bool,
    },
    /// Every text parameter.
    Full,
}

impl Method {
    /// Without its parameters.
    pub const fn kind(self) -> MethodKind {
        match self {
            Self::Lora { .. } => MethodKind::Lora,
            Self::Full => MethodKind::Full,
        }
    }

    /// Rank of the adapters, 0 for full.
    pub const fn rank(self) -> u32 {
        match self {
            Self::Lora { rank, .. } => rank,
            Self::Full => 0,
        }
    }
}

/// How examples share rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackPlan {
    /// Tokens of a row.
    pub length: u32,
    /// Tokens of a row while the MTP head is trained; as `length` where there is no number, as in plans of
    /// old.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtp_length: Option<u32>,
    /// How examples are put into rows.
    pub strategy: PackStrategy,
}

/// How rows make an optimizer step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchPlan {
    /// Rows that pass through the model together.
    pub micro_batch_packs: u32,
    /// Micro-batches of one optimizer step.
    pub grad_accum_steps: u32,
}

impl BatchPlan {
    /// Rows of one optimizer step.
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

/// How long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DurationPlan {
    /// Passes over the data.
    pub epochs: u32,
    /// Optimizer steps at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u64>,
}

/// Checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointPlan {
    /// Steps between checkpoints.
    pub save_steps: u64,
    /// Minutes after which one is due in any case.
    pub save_minutes: u32,
    /// How many are kept, beside the best.
    pub keep: u32,
}

/// Evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalPlan {
    /// Optimizer steps between evaluations.
    pub every_steps: u64,
    /// Evaluations without a better loss that end the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stop_patience: Option<u32>,
    /// Sample generations at each evaluation.
    pub sample_count: u32,
    /// Longest sample generation, tokens.
    pub sample_max_tokens: u32,
}

/// What is logged beside the events. Plans written before there was a choice have the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogPlan {
    /// TensorBoard's event files.
    pub tensorboard: bool,
}

impl Default for LogPlan {
    fn default() -> Self {
        Self { tensorboard: true }
    }
}

/// Why the plan is as it is, and what it will take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Advice {
    /// Pack length by the Qwen3.5 recipe's rule: mean length rounded to a multiple of 128.
    pub recipe_pack_length: u32,
    /// Memory by part, of the stage that needs most.
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
    /// Dotted place in `plan.toml`.
    pub key: String,
    /// The value as text; empty where nothing is set.
    pub value: String,
    /// Where it comes from.
    pub origin: Origin,
    /// Why, with figures.
    pub reason: String,
}

/// Steps, speed and duration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Time {
    /// Tokens of one epoch of training, without padding.
    pub tokens_per_epoch: u64,
    /// Tokens of one optimizer step, on average.
    pub tokens_per_step: u64,
    /// Optimizer steps of one epoch.
    pub steps_per_epoch: u64,
    /// Optimizer steps of the run.
    pub steps: u64,
    /// FLOPs of training for each token.
    pub flops_per_token: f64,
    /// Device by the name the rates file uses.
    pub device: String,
    /// Tokens per second, when there is a basis for a figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_s: Option<f64>,
    /// Seconds of training, without evaluation and export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_s: Option<f64>,
    /// Seconds of the MTP head's epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtp_s: Option<f64>,
    /// The basis of this figure.
    pub basis: RateBasis,
    /// The formula with its figures.
    pub formula: String,
}

/// The basis of a speed estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RateBasis {
    /// An earlier run on this machine.
    MeasuredHere,
    /// The GPU tests with this model on such a device.
    Measured,
    /// Measured by the Qwen3.5 recipe, another program, on such a machine.
    OriginalRecipe,
    /// FLOPs divided by an assumed speed of the device.
    Estimate,
    /// The speed of this device is unknown until the first steps have been measured.
    Unknown,
}

impl Plan {
    /// The folder of runs where no answer names another, below the working directory.
    pub const RUNS_DIR: &str = "runs";

    /// The text of `plan.toml`.
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

    /// The entry of the rates file for a run of this plan that reached this speed, so that the next plan of
    /// the same model, method and device rests on it. `None` for a plan without advice, and for one with
    /// fp8, whose speed is not that of the others.
    pub fn measured(&self, tokens_per_s: f64) -> Option<Rate> {
        let time = &self.advice.as_ref().filter(|_| !self.fp8)?.time;
        Some(Rate {
            model: self.model.id.clone(),
            device: time.device.clone(),
            method: self.method.kind(),
            tokens_per_s,
            flops_per_token: time.flops_per_token,
        })
    }

    /// Memory that training is predicted to take, bytes; what a measured peak is held against. `None` for a
    /// plan without advice.
    pub fn predicted_bytes(&self) -> Option<u64> {
        Some(self.advice.as_ref()?.memory.training_bytes())
    }

    /// The same plan with the rows of the MTP head's stage: its optimizer steps have as many tokens as those
    /// of the main training.
    #[must_use]
    pub fn for_head(&self) -> Self {
        let Some(length) = self.pack.mtp_length else { return self.clone() };
        let step = self.batch.packs_per_step() as f64 * f64::from(self.pack.length);
        let rows = (step / f64::from(length.max(1))).round().max(1.0);
        Self {
            pack: PackPlan { length, ..self.pack },
            batch: BatchPlan { micro_batch_packs: 1, grad_accum_steps: rows as u32 },
            ..self.clone()
        }
    }
}
