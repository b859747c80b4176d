//! Adapters in PEFT's format: what their `adapter_config.json` and the names and shapes of their tensors say.
//!
//! Enters: the text of the config, then the list of tensors and the model. Leaves: rank, scale and layers of
//! an adapter that training can go on from, or the reason why it cannot. The folder is untrusted. It belongs
//! to this crate because a plan needs it before weights are read; the model uses the same rules.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use sparktune_base::escape::shortened;

use crate::architecture::clipped_rank;
use crate::model_config::ModelConfig;
use crate::targets::TargetModules;

/// The name of the config in an adapter's folder.
pub const CONFIG_FILE: &str = "adapter_config.json";
/// The name of the tensors in an adapter's folder.
pub const TENSOR_FILE: &str = "adapter_model.safetensors";
/// The tensors as a pickle, which is not read.
pub const PICKLE_FILE: &str = "adapter_model.bin";

/// The largest ranks of adapters that vLLM can be started for (`vllm/config/lora.py`).
const VLLM_RANKS: [u32; 9] = [1, 8, 16, 32, 64, 128, 256, 320, 512];

/// Returns the `--max-lora-rank` with which vLLM serves an adapter of this rank; `None` if it serves none so
/// large.
pub fn max_lora_rank(rank: u64) -> Option<u32> {
    VLLM_RANKS.into_iter().find(|most| u64::from(*most) >= rank)
}

/// The largest rank that vLLM serves.
pub const MOST_VLLM_RANK: u32 = VLLM_RANKS[VLLM_RANKS.len() - 1];

/// The largest rank that can be trained.
const MOST_RANK: u64 = 65_536;

/// The fields that say nothing about what the adapter computes.
const HARMLESS: [&str; 20] = [
    "auto_mapping",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "kasa_config",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "monteclora_config",
    "peft_version",
    "qalora_group_size",
    "runtime_config",
    "target_modules",
    "task_type",
    "velora_config",
];

/// Initialisations that leave the weights of the base as they are.
const PLAIN_INITIALISATIONS: [&str; 3] = ["gaussian", "orthogonal", "eva"];

/// The reasons why an adapter cannot be trained further. The caller names its folder.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AdapterError {
    /// The config is not JSON.
    #[error("{CONFIG_FILE} cannot be read ({0}). Save the adapter again")]
    NotJson(String),
    /// A field of the config is missing or has an impossible value.
    #[error("{CONFIG_FILE}: `{field}` is {value}, but must be {expected}. Save the adapter again")]
    Field {
        /// Its name.
        field: &'static str,
        /// Its value.
        value: String,
        /// The possible values.
        expected: &'static str,
    },
    /// The config asks for something that sparktune does not compute.
    #[error(
        "{CONFIG_FILE}: `{field}` is {value}, which sparktune does not support. Merge the adapter into its base with PEFT (merge_and_unload), and give the merged model as --model"
    )]
    Unsupported {
        /// The name of the field.
        field: String,
        /// Its value.
        value: String,
    },
    /// A tensor is no part of an adapter on this model.
    #[error("the tensor `{}` belongs to no linear layer of this model. {OTHER_MODEL}", shortened(.0))]
    Foreign(String),
    /// A tensor is missing.
    #[error(
        "the tensor `{0}` is missing. sparktune adapts a layer of a name in all decoder layers or in none; if files are incomplete, copy the adapter again"
    )]
    Missing(String),
    /// A tensor has another shape.
    #[error("the tensor `{name}` has the shape {found:?}, but {expected:?} is needed. {OTHER_MODEL}")]
    Shape {
        /// Its name.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that config and model ask for.
        expected: [usize; 2],
    },
    /// The adapters do not have the same scale.
    #[error(
        "the adapter of `{module}` has the scale {found}, and others have {expected}, which sparktune does not support. Merge the adapter into its base with PEFT (merge_and_unload), and give the merged model as --model"
    )]
    Scale {
        /// The path of the layer.
        module: String,
        /// Its scale.
        found: f64,
        /// The scale by `lora_alpha` and `r`.
        expected: f64,
    },
    /// There are no tensors.
    #[error("{TENSOR_FILE} contains no tensors. Save the adapter again")]
    Empty,
}

const OTHER_MODEL: &str = "The adapter was made for another model: give its own base as --model";

/// The contents of an `adapter_config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterConfig {
    /// The rank of all layers without one of their own.
    pub rank: u32,
    /// The numerator of the scale of those layers.
    pub alpha: f64,
    /// Whether a scale is `alpha / sqrt(rank)` instead of `alpha / rank`.
    pub rslora: bool,
    /// The model that it was made for, an id or a folder, if it says so.
    pub base_model: Option<String>,
    /// The revision of that model.
    pub revision: Option<String>,
    /// The share of its inputs that was set to 0 in its training.
    dropout: f64,
    /// The ranks of single layers, by the end of their path.
    ranks: BTreeMap<String, f64>,
    /// The alphas of single layers.
    alphas: BTreeMap<String, f64>,
}

/// What a plan needs to know about an adapter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdapterFacts {
    /// The rank of all layers without one of their own.
    pub rank: u32,
    /// The numerator of the scale of those layers.
    pub alpha: f64,
    /// Whether the scale is `alpha / sqrt(rank)` instead of `alpha / rank`.
    pub rslora: bool,
    /// Whether narrow layers have the rank that [`clipped_rank`] gives them.
    pub clipped: bool,
    /// The layers that have adapters.
    pub targets: TargetModules,
    /// The share of its inputs that was set to 0 in its training.
    pub dropout: f64,
}

/// An adapter that fits a model.
#[derive(Debug, Clone, PartialEq)]
pub struct FittedAdapter {
    /// Its rank, scale and layers.
    pub facts: AdapterFacts,
    /// The names of the tensors `A [r, in]` and `B [out, r]` by the path of their layer.
    pub modules: BTreeMap<String, [String; 2]>,
}

/// Returns what an alpha is divided by to get the scale of an adapter of this rank.
pub fn divisor(rank: f64, rslora: bool) -> f64 {
    if rslora { rank.sqrt() } else { rank }
}

impl AdapterConfig {
    /// Reads the text of an `adapter_config.json`.
    ///
    /// # Errors
    /// [`AdapterError`] when it describes no adapter that can be trained further.
    pub fn from_json(text: &str) -> Result<Self, AdapterError> {
        let fields: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| AdapterError::NotJson(error.to_string()))?;
        let of = |field: &str| fields.get(field).unwrap_or(&Value::Null);
        let wrong = |field, expected| AdapterError::Field { field, value: shown(of(field)), expected };
        let text = |field: &str| of(field).as_str().map(str::to_owned).filter(|text| !text.is_empty());
        for (field, value) in &fields {
            if !is_supported(field, value) {
                return Err(AdapterError::Unsupported { field: field.clone(), value: shown(value) });
            }
        }
        let rank = of("r").as_u64().filter(|rank| (1..=MOST_RANK).contains(rank));
        let alpha = of("lora_alpha").as_f64().filter(|alpha| (1e-6..=1e6).contains(alpha));
        let dropout = match of("lora_dropout") {
            Value::Null => Some(0.0),
            value => value.as_f64().filter(|share| (0.0..1.0).contains(share)),
        };
        let rslora = match of("use_rslora") {
            Value::Null => Some(false),
            value => value.as_bool(),
        };
        const PATTERN: &str = "numbers by the ends of module paths";
        let pattern = |field: &'static str| {
            let pattern = match of(field) {
                Value::Null => return Ok(BTreeMap::new()),
                value => value.as_object().ok_or_else(|| wrong(field, PATTERN))?,
            };
            let number = |(key, value): (&String, &Value)| {
                let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
                let is_possible = |number: &f64| match field {
                    "rank_pattern" => number.fract() == 0.0 && (1.0..=MOST_RANK as f64).contains(number),
                    _ => (1e-6..=1e6).contains(number),
                };
                let number = value.as_f64().filter(is_possible);
                number.filter(|_| key.chars().all(is_plain)).map(|number| (key.clone(), number))
            };
            let numbers: Option<BTreeMap<_, _>> = pattern.iter().map(number).collect();
            numbers.ok_or_else(|| wrong(field, PATTERN))
        };
        Ok(Self {
            rank: rank.ok_or_else(|| wrong("r", "a whole number from 1 to 65,536"))? as u32,
            alpha: alpha.ok_or_else(|| wrong("lora_alpha", "a number from 1e-6 to 1e6"))?,
            rslora: rslora.ok_or_else(|| wrong("use_rslora", "true or false"))?,
            base_model: text("base_model_name_or_path"),
            revision: text("revision"),
            dropout: dropout.ok_or_else(|| wrong("lora_dropout", "a share from 0 to below 1"))?,
            ranks: pattern("rank_pattern")?,
            alphas: pattern("alpha_pattern")?,
        })
    }

    /// Returns rank and scale of the adapter of a layer.
    fn of_module(&self, module: &str) -> (f64, f64) {
        // PEFT takes the first pattern that matches the end of a path.
        let of = |pattern: &BTreeMap<String, f64>| {
            let is_end = |key: &str| {
                module.strip_suffix(key).is_some_and(|start| start.is_empty() || start.ends_with('.'))
            };
            pattern.iter().find(|(key, _)| is_end(key)).map(|(_, number)| *number)
        };
        let rank = of(&self.ranks).unwrap_or(f64::from(self.rank));
        (rank, of(&self.alphas).unwrap_or(self.alpha) / divisor(rank, self.rslora))
    }

    /// Checks the adapter's tensors, by name and shape, against a model.
    ///
    /// # Errors
    /// [`AdapterError`] with the first tensor or layer that does not fit.
    pub fn fit<'a>(
        &self,
        tensors: impl IntoIterator<Item = (&'a str, &'a [usize])>,
        model: &ModelConfig,
    ) -> Result<FittedAdapter, AdapterError> {
        // The stored name and the shape by path and matrix.
        let mut stored: BTreeMap<(String, char), (&str, &[usize])> = BTreeMap::new();
        for (name, shape) in tensors {
            let Some(place) = place_of(name) else { return Err(AdapterError::Foreign(name.to_owned())) };
            if stored.insert(place, (name, shape)).is_some() {
                return Err(AdapterError::Foreign(name.to_owned()));
            }
        }
        let names: BTreeSet<String> =
            stored.keys().filter_map(|(path, _)| Some(path.rsplit('.').next()?.to_owned())).collect();
        if names.is_empty() {
            return Err(AdapterError::Empty);
        }
        let all = self.alpha / divisor(f64::from(self.rank), self.rslora);
        let (mut modules, mut is_clipped) = (BTreeMap::new(), true);
        for (i, layer) in model.layers.iter().enumerate() {
            for linear in layer.linears().filter(|linear| names.contains(linear.name())) {
                let (module, shape) = (format!("layers.{i}.{}", linear.path), [linear.output, linear.input]);
                let (rank, scale) = self.of_module(&module);
                if (scale / all - 1.0).abs() > 1e-9 {
                    return Err(AdapterError::Scale { module, found: scale, expected: all });
                }
                let rank = rank as usize;
                is_clipped &= rank == clipped_rank(self.rank as usize, shape);
                let mut take = |matrix: char, expected: [usize; 2]| {
                    let (name, found) = stored
                        .remove(&(module.clone(), matrix))
                        .ok_or_else(|| AdapterError::Missing(format!("{module}.lora_{matrix}.weight")))?;
                    if found != expected {
                        let (name, found) = (name.to_owned(), found.to_vec());
                        return Err(AdapterError::Shape { name, found, expected });
                    }
                    Ok(name.to_owned())
                };
                let pair = [take('A', [rank, shape[1]])?, take('B', [shape[0], rank])?];
                modules.insert(module, pair);
            }
        }
        if let Some((name, _)) = stored.into_values().next() {
            return Err(AdapterError::Foreign(name.to_owned()));
        }
        let targets = TargetModules::of_names(names.iter().map(String::as_str))
            .map_err(|name| AdapterError::Foreign(name.to_owned()))?;
        let targets = targets.in_model(model);
        let Self { rank, alpha, rslora, dropout, .. } = *self;
        Ok(FittedAdapter {
            facts: AdapterFacts { rank, alpha, rslora, clipped: is_clipped, targets, dropout },
            modules,
        })
    }
}

/// Returns whether an adapter with this field computes what sparktune computes.
fn is_supported(field: &str, value: &Value) -> bool {
    let is_unset = match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    };
    match field {
        "r"
        | "lora_alpha"
        | "lora_dropout"
        | "rank_pattern"
        | "alpha_pattern"
        | "use_rslora"
        | "base_model_name_or_path"
        | "revision" => true,
        "peft_type" => value == "LORA",
        "bias" => is_unset || value == "none",
        "init_lora_weights" => {
            value.is_boolean() || value.as_str().is_some_and(|name| PLAIN_INITIALISATIONS.contains(&name))
        }
        _ => is_unset || HARMLESS.contains(&field),
    }
}

/// Returns the path of the layer, relative to the decoder, and the matrix that a stored name belongs to. The
/// class that the adapter was made on does not matter.
fn place_of(name: &str) -> Option<(String, char)> {
    let name = name.strip_prefix("base_model.model.").unwrap_or(name);
    // The last ones are those of classes without an output head.
    let prefixes = ["model.language_model.", "language_model.model.", "model.", "language_model.", ""];
    let mut prefixes = prefixes.into_iter();
    let path = prefixes.find_map(|prefix| name.strip_prefix(prefix))?;
    ['A', 'B'].into_iter().find_map(|matrix| {
        let module = path.strip_suffix(&format!(".lora_{matrix}.weight"))?;
        Some((module.to_owned(), matrix))
    })
}

/// Formats a value of the untrusted config for a message.
fn shown(value: &Value) -> String {
    if value.is_null() { "missing".to_owned() } else { value.to_string().chars().take(80).collect() }
}

#[cfg(test)]
mod tests;
