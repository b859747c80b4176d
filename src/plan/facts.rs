//! Facts about the machine, the model, the data and past speeds. The caller gathers them; this crate only
//! reads them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sparktune_base::choices::{Overlong, Think, TrainOn};
use sparktune_base::held_out;
use sparktune_base::thinking::Thinking;
use sparktune_base::units::counted;

use crate::adapter::AdapterFacts;
use crate::choices::{DataFormat, MethodKind};
use crate::error::PlanError;
use crate::measured::{Measured, Probe};
use crate::model_config::{ConfigError, ConfigOptions, ModelConfig};
use crate::template_kwargs::TemplateKwargs;

/// Everything the plan is made from, in addition to the answers.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The machine that will train.
    pub machine: MachineFacts,
    /// The model chosen.
    pub model: ModelFacts,
    /// The data chosen, as tokens of that model.
    pub data: DataFacts,
    /// Speeds that were measured, here and elsewhere.
    pub rates: Rates,
    /// The run or adapter to start from, once it was looked up.
    pub parent: Option<ParentFacts>,
}

/// The run or adapter whose weights a run starts from.
#[derive(Debug, Clone, PartialEq)]
pub struct ParentFacts {
    /// The answer that was looked up.
    pub given: String,
    /// The folder of the run or of the adapter.
    pub folder: String,
    /// The step of its weights, if it is a run.
    pub step: Option<u64>,
    /// What it trained.
    pub weights: ParentWeights,
}

/// The weights that a run starts from.
#[derive(Debug, Clone, PartialEq)]
pub enum ParentWeights {
    /// An adapter, which is trained further.
    Adapter {
        /// Its rank, scale and layers.
        adapter: AdapterFacts,
        /// The merged model of the same run, if there is one, for messages.
        merged: Option<PathBuf>,
    },
    /// All weights, in the folder of an exported model.
    Model(PathBuf),
}

/// The machine that will train.
#[derive(Debug, Clone, Default)]
pub struct MachineFacts {
    /// The size of the system's memory in bytes.
    pub mem_total_bytes: u64,
    /// The memory that can be used without swapping (MemAvailable), in bytes.
    pub mem_available_bytes: u64,
    /// Cores that may be used.
    pub cores: usize,
    /// The speed of these cores together, if it was measured.
    pub cpu_speed: Option<CpuSpeed>,
    /// The free bytes on the disk of the run folders, if known.
    pub disk_free_bytes: Option<u64>,
    /// The GPUs that this build can train on; the first is used.
    pub gpus: Vec<Gpu>,
    /// The reason why there is no GPU, for messages ("this build has no CUDA").
    pub no_gpu_because: Option<String>,
    /// The measured speed of the first GPU, if there is a measurement.
    pub probe: Option<Probe>,
}

/// The measured speed of all cores of a CPU together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuSpeed {
    /// The FLOP/s that products of fp32 matrices reach.
    pub flops_per_s: f64,
    /// The bytes per second at which weights are read from memory for one token.
    pub bytes_per_s: f64,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    /// The name reported by the driver.
    pub name: String,
    /// Its memory.
    pub memory: GpuMemory,
    /// The compute capability, such as `(12, 1)`, if the driver reports it.
    pub compute_capability: Option<(u32, u32)>,
}

/// Memory of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuMemory {
    /// Memory shared with the CPU (GB10). The system's figures apply.
    Unified,
    /// Separate memory.
    Dedicated {
        /// The total size in bytes.
        total_bytes: u64,
        /// The free memory in bytes.
        free_bytes: u64,
    },
}

/// The model, from its `config.json` and everything else that is known before weights are read.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFacts {
    /// Its shape.
    pub config: ModelConfig,
    /// The folder of the checkpoint, if it is on this machine.
    pub path: Option<PathBuf>,
    /// The size of the published weights in bytes, from the files themselves, the index or the catalog, or
    /// computed.
    pub checkpoint_bytes: u64,
}

impl ModelFacts {
    /// Checks a model from the text of its `config.json` alone.
    ///
    /// # Errors
    /// [`ConfigError`] when sparktune cannot train it.
    pub fn from_config_json(text: &str) -> Result<Self, ConfigError> {
        Ok(Self::from_config(ModelConfig::from_json(text)?))
    }

    /// Like [`from_config_json`](Self::from_config_json), with the user's options for reading the config.
    ///
    /// # Errors
    /// The same as for [`ModelConfig::from_json_with`].
    pub fn from_config_json_with(text: &str, options: &ConfigOptions) -> Result<Self, ConfigError> {
        Ok(Self::from_config(ModelConfig::from_json_with(text, options)?))
    }

    /// Creates the facts from a config. The size of the weights is computed for text model and MTP head,
    /// without a vision tower.
    pub fn from_config(config: ModelConfig) -> Self {
        let bytes = match config.dtype.as_deref() {
            Some("float32") => 4,
            _ => 2,
        };
        let parameters = config.text_parameters().saturating_add(config.mtp_parameters());
        Self { path: None, checkpoint_bytes: parameters.saturating_mul(bytes), config }
    }

    /// Returns the number of parameters of the text model, without MTP head and vision tower.
    pub fn text_parameters(&self) -> u64 {
        self.config.text_parameters()
    }

    /// Returns the number of parameters of the MTP head, or 0 if there is none.
    pub fn mtp_parameters(&self) -> u64 {
        self.config.mtp_parameters()
    }

    /// Returns whether the config declares an MTP head.
    pub fn has_mtp(&self) -> bool {
        self.config.mtp_num_hidden_layers > 0
    }

    /// Returns the size of the text model's weights in bytes, with this many bytes per parameter (4 for fp32,
    /// 2 for bf16).
    pub fn weight_bytes(&self, bytes_per_parameter: u64) -> u64 {
        self.text_parameters().saturating_mul(bytes_per_parameter)
    }
}

/// The lengths of the data in tokens, from the length report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DataFacts {
    /// Accepted examples.
    pub examples: u64,
    /// Tokens of all examples.
    pub total_tokens: u64,
    /// Tokens that contribute to the loss.
    pub target_tokens: u64,
    /// Median length, tokens.
    pub p50: u32,
    /// Length that 90 % of the examples do not exceed, tokens.
    pub p90: u32,
    /// Length that 99 % of the examples do not exceed, tokens.
    pub p99: u32,
    /// Longest example, tokens.
    pub max: u32,
    /// The lengths by bucket, ascending and without gaps; empty if only the quantiles are known.
    pub histogram: Vec<LengthBucket>,
    /// Lines with examples over the limit on tokens.
    #[serde(default)]
    pub too_long: TooLong,
    /// The variables with which the chat template was rendered: those of the answers, or else those that the
    /// data asks for.
    #[serde(default)]
    pub template_kwargs: TemplateKwargs,
    /// The eval set, if it is known.
    #[serde(default)]
    pub eval_set: Option<EvalSetFacts>,
    /// What the chat template does about thinking with these variables.
    #[serde(default)]
    pub thinking: Thinking,
    /// Examples with answers to earlier questions that the chat template renders otherwise than a server does
    /// that is asked for them.
    #[serde(default)]
    pub earlier_unlike_served: u64,
    /// The sets of training data in order; empty if nothing is known about them.
    #[serde(default)]
    pub sets: Vec<SetFacts>,
    /// The names with the commit of the data sets of the hub, by the names that the user gave. The plan
    /// records them, so that it means the same files for ever.
    #[serde(default)]
    pub pinned: BTreeMap<String, String>,
    /// How the data was packed, if it is token files. Their settings are used instead of those of answers.
    #[serde(default)]
    pub packed: Option<PackedFacts>,
}

/// The size of the eval set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvalSetFacts {
    /// Examples.
    pub examples: u64,
    /// Tokens of all examples.
    pub total_tokens: u64,
    /// Tokens that contribute to the loss.
    pub target_tokens: u64,
}

/// What token files say about how they were made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PackedFacts {
    /// The settings, if the files say so. Files of version 1 do not.
    pub settings: Option<PackedSettings>,
}

/// The settings that made the tokens of a token file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PackedSettings {
    /// The format of the text.
    pub format: DataFormat,
    /// Whether an inserted empty think block is trained.
    pub think: Think,
    /// The assistant turns that are trained.
    pub train_on: TrainOn,
    /// Whether each trained turn is an example of its own.
    pub split_turns: bool,
    /// What became of examples that were too long.
    pub overlong: Overlong,
    /// The length in tokens above which an example was too long.
    pub max_example_tokens: Option<u32>,
    /// The variables of the chat template.
    pub template_kwargs: TemplateKwargs,
}

/// The number of lines with examples over the limit on tokens, by what became of these.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TooLong {
    /// Left out.
    pub left_out: u64,
    /// Cut at the limit.
    pub cut: u64,
    /// Split into whole turns, or raw text into pieces.
    pub split: u64,
}

/// Formats the numbers that are not 0: `12 examples left out, 3 examples cut`.
impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = [(self.left_out, "left out"), (self.cut, "cut"), (self.split, "split")];
        let some: Vec<_> = numbers.into_iter().filter(|(n, _)| *n > 0).collect();
        if some.is_empty() {
            return f.write_str("no example is too long");
        }
        let words = some.iter().map(|(n, what)| format!("{} {what}", counted(*n, "example")));
        write!(f, "{}", words.collect::<Vec<_>>().join(", "))
    }
}

/// The number of examples with a length in `(previous bucket's up_to, up_to]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LengthBucket {
    /// Longest length counted here, tokens.
    pub up_to: u32,
    /// The number of examples.
    pub count: u64,
}

/// One set of training data: what the user named once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SetFacts {
    /// The name that the user gave.
    pub name: String,
    /// The lengths of its training examples, without the eval set.
    pub lengths: DataFacts,
}

impl DataFacts {
    /// Returns the mean length in tokens, or 0 without examples.
    pub fn mean(&self) -> f64 {
        if self.examples == 0 { 0.0 } else { self.total_tokens as f64 / self.examples as f64 }
    }

    /// Returns about how many examples have more tokens than this. A bucket that contains the limit counts as
    /// longer, because the longest example is known and such a bucket would else hide it.
    pub fn longer_than(&self, limit: u32) -> u64 {
        if self.max <= limit {
            return 0;
        }
        let longer = self.histogram.iter().filter(|bucket| bucket.up_to > limit);
        longer.map(|bucket| bucket.count).sum::<u64>().max(1)
    }

    /// Returns the share of the tokens that contribute to the loss, 0 to 1.
    pub fn target_share(&self) -> f64 {
        if self.total_tokens == 0 {
            0.0
        } else {
            (self.target_tokens as f64 / self.total_tokens as f64).min(1.0)
        }
    }

    /// Returns the share of the examples that the data stage puts into the eval set if no answer says how
    /// many.
    pub fn held_out_share(&self) -> f64 {
        held_out::expected_share(self.examples)
    }
}

/// Measured speeds. The program keeps those of this machine as TOML, one `[[rate]]` per finished run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// The speeds of earlier runs on this machine, oldest first.
    #[serde(default, rename = "rate")]
    pub rates: Vec<Rate>,
    /// The speeds measured by the GPU tests on various machines; not part of the rates file.
    #[serde(skip)]
    pub measured: Measured,
}

/// The speed of one run. Texts are last, so that an entry that a full disk has cut off is not TOML, instead
/// of an entry whose number has fewer digits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Tokens per second of training, counted without padding.
    pub tokens_per_s: f64,
    /// FLOPs per token of that run as counted by the plan, so that the rate can be converted to other
    /// settings.
    pub flops_per_token: f64,
    /// The seconds per token that the plan counted for the dropout of that run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropout_s_per_token: f64,
    /// Model id as given.
    pub model: String,
    /// Name of the device.
    pub device: String,
    /// Which parameters were trained.
    pub method: MethodKind,
}

pub(crate) fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

impl Rate {
    /// Returns the tokens per second without the time for dropout. This time is an estimate, so at most half
    /// of the measured time is subtracted.
    pub(crate) fn without_dropout(&self) -> f64 {
        let measured_s = 1.0 / self.tokens_per_s;
        1.0 / (measured_s - self.dropout_s_per_token.max(0.0)).max(measured_s / 2.0)
    }
}

impl Rates {
    /// Reads the rates file. If it is not TOML, each entry is read by itself, so that an invalid one does not
    /// make the others unusable. Also returns what is wrong with the first invalid one.
    pub fn from_toml(text: &str, source: &str) -> (Self, Option<PlanError>) {
        if let Ok(rates) = toml::from_str(text) {
            return (rates, None);
        }
        let starts = text.match_indices("\n[").map(|(at, _)| at + 1);
        let borders: Vec<usize> = [0].into_iter().chain(starts).chain([text.len()]).collect();
        let (mut read, mut wrong) = (Self::default(), None);
        for border in borders.windows(2) {
            match toml::from_str::<Self>(&text[border[0]..border[1]]) {
                Ok(entry) => read.rates.extend(entry.rates),
                Err(error) => {
                    let (source_name, problem) = (source.into(), error.message().into());
                    wrong.get_or_insert(PlanError::NotToml { source_name, problem });
                }
            }
        }
        (read, wrong)
    }

    /// Writes the rates file.
    ///
    /// # Errors
    /// Never in practice; the encoder's message if it fails.
    pub fn to_toml(&self) -> Result<String, PlanError> {
        toml::to_string(self).map_err(|error| PlanError::NotWritable(error.to_string()))
    }

    /// Returns the newest usable rate of this model and method on this device.
    pub fn newest(&self, model: &str, device: &str, method: MethodKind) -> Option<&Rate> {
        self.rates.iter().rev().find(|rate| {
            rate.model == model
                && rate.device == device
                && rate.method == method
                && rate.tokens_per_s.is_finite()
                && rate.tokens_per_s > 0.0
                && rate.flops_per_token.is_finite()
                && rate.flops_per_token > 0.0
        })
    }
}
