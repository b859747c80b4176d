//! What is known of the machine, the model, the data and past speeds. Gathered by the binary; this crate only
//! reads.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sparktune_base::held_out;

use crate::choices::MethodKind;
use crate::error::PlanError;
use crate::measured::{Measured, Probe};
use crate::model_config::{ConfigError, ConfigOptions, ModelConfig};

/// Everything the plan is made from, beside the answers.
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
}

/// The machine that will train.
#[derive(Debug, Clone, Default)]
pub struct MachineFacts {
    /// All of the system's memory, bytes.
    pub mem_total_bytes: u64,
    /// What the system says can be had without swapping (MemAvailable), bytes.
    pub mem_available_bytes: u64,
    /// Cores that may be used.
    pub cores: usize,
    /// Free bytes where the runs are kept, when known.
    pub disk_free_bytes: Option<u64>,
    /// GPUs that this build can train on; the first is used.
    pub gpus: Vec<Gpu>,
    /// Why there is none, for messages ("this build has no CUDA").
    pub no_gpu_because: Option<String>,
    /// The measured speed of the first GPU, if it was measured.
    pub probe: Option<Probe>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    /// As the driver names it.
    pub name: String,
    /// Its memory.
    pub memory: GpuMemory,
    /// Compute capability, `(12, 1)`, where the driver says it.
    pub compute_capability: Option<(u32, u32)>,
}

/// Memory of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuMemory {
    /// Shared with the processor (GB10): the system's figures count.
    Unified,
    /// Its own, with this much free, bytes.
    Dedicated {
        /// All of it, bytes.
        total_bytes: u64,
        /// Free now, bytes.
        free_bytes: u64,
    },
}

/// The model, from its `config.json` and whatever else is known before a weight is read.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFacts {
    /// Its shape.
    pub config: ModelConfig,
    /// Folder of the checkpoint when it is on this machine.
    pub path: Option<PathBuf>,
    /// Size of the published weights, bytes: the files themselves, the index, the catalog, or computed.
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

    /// The same, with what the user says about the config.
    ///
    /// # Errors
    /// As [`ModelConfig::from_json_with`].
    pub fn from_config_json_with(text: &str, options: &ConfigOptions) -> Result<Self, ConfigError> {
        Ok(Self::from_config(ModelConfig::from_json_with(text, options)?))
    }

    /// From a config; the size of the weights is computed from it (text model and MTP head, no vision tower).
    pub fn from_config(config: ModelConfig) -> Self {
        let bytes = match config.dtype.as_deref() {
            Some("float32") => 4,
            _ => 2,
        };
        let parameters = config.text_parameters().saturating_add(config.mtp_parameters());
        Self { path: None, checkpoint_bytes: parameters.saturating_mul(bytes), config }
    }

    /// Parameters of the text model, without MTP head and vision tower.
    pub fn text_parameters(&self) -> u64 {
        self.config.text_parameters()
    }

    /// Parameters of the MTP head, 0 without one.
    pub fn mtp_parameters(&self) -> u64 {
        self.config.mtp_parameters()
    }

    /// Whether the config declares an MTP head.
    pub fn has_mtp(&self) -> bool {
        self.config.mtp_num_hidden_layers > 0
    }

    /// Bytes of the text model's weights at this width (4 for fp32, 2 for bf16).
    pub fn weight_bytes(&self, bytes_per_parameter: u64) -> u64 {
        self.text_parameters().saturating_mul(bytes_per_parameter)
    }
}

/// The data as tokens: what the length report says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DataFacts {
    /// Accepted examples.
    pub examples: u64,
    /// Tokens of all examples.
    pub total_tokens: u64,
    /// Tokens that carry loss.
    pub target_tokens: u64,
    /// Median length, tokens.
    pub p50: u32,
    /// Length that 90 % of the examples do not exceed.
    pub p90: u32,
    /// Length that 99 % of the examples do not exceed.
    pub p99: u32,
    /// Longest example, tokens.
    pub max: u32,
    /// Lengths by bucket, ascending and without gaps; empty when only the quantiles are known.
    pub histogram: Vec<LengthBucket>,
}

/// Examples with a length in `(previous bucket's up_to, up_to]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LengthBucket {
    /// Longest length counted here, tokens.
    pub up_to: u32,
    /// How many.
    pub count: u64,
}

impl DataFacts {
    /// Mean length, tokens; 0 without examples.
    pub fn mean(&self) -> f64 {
        if self.examples == 0 { 0.0 } else { self.total_tokens as f64 / self.examples as f64 }
    }

    /// Share of the tokens that carry loss, 0 to 1.
    pub fn target_share(&self) -> f64 {
        if self.total_tokens == 0 {
            0.0
        } else {
            (self.target_tokens as f64 / self.total_tokens as f64).min(1.0)
        }
    }

    /// Share of the examples that the data stage holds out for evaluation where no answer says how many.
    pub fn held_out_share(&self) -> f64 {
        held_out::expected_share(self.examples)
    }
}

/// Speeds that were measured. Those of this machine are kept by the binary as TOML, one `[[rate]]` a finished
/// run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// On this machine in earlier runs, oldest first.
    #[serde(default, rename = "rate")]
    pub rates: Vec<Rate>,
    /// By the GPU tests on machines of any kind; not part of the rates file.
    #[serde(skip)]
    pub measured: Measured,
}

/// Speed of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Model id as given.
    pub model: String,
    /// Name of the device.
    pub device: String,
    /// Which parameters were trained.
    pub method: MethodKind,
    /// Tokens (of examples, without padding) per second of training.
    pub tokens_per_s: f64,
    /// FLOPs a token of that run took by the plan's count, so that the rate carries over to other settings.
    pub flops_per_token: f64,
}

impl Rates {
    /// Reads the rates file.
    ///
    /// # Errors
    /// Text that is not TOML or has other fields.
    pub fn from_toml(text: &str, source: &str) -> Result<Self, PlanError> {
        toml::from_str(text).map_err(|error| PlanError::NotToml {
            source_name: source.into(),
            problem: error.to_string().trim_end().into(),
        })
    }

    /// Writes the rates file.
    ///
    /// # Errors
    /// Never in practice; the encoder's words if it refuses.
    pub fn to_toml(&self) -> Result<String, PlanError> {
        toml::to_string(self).map_err(|error| PlanError::NotWritable(error.to_string()))
    }

    /// The newest usable rate of this model and method on this device.
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
