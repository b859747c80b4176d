//! Low-rank adapters: attaching them to a model, and PEFT's file format (SPEC.md 5).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use burn::tensor::Device;
use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::Number;
use sparktune_base::files::{sync, write_and_sync};
use sparktune_plan::architecture::clipped_rank;

use crate::checkpoint::Checkpoint;
use crate::decoder::Model;
use crate::error::ModelError;
use crate::linear::Lora;
use crate::numbers::uniform;
use crate::param::Param;
use crate::weight_writer::{Described, write_header, write_numbers};

/// The rank and scale of all adapters of a model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LoraConfig {
    /// The inner width of each adapter.
    pub rank: usize,
    /// The numerator of the scale.
    pub alpha: f64,
    /// Whether the scale is `alpha / sqrt(rank)` instead of `alpha / rank`.
    pub rslora: bool,
    /// Whether the inner width of an adapter is at most the width of its layer. The scale remains that of
    /// `rank`, so that it is the same for all adapters.
    #[serde(default)]
    pub clipped: bool,
}

impl LoraConfig {
    /// Returns the factor on the adapter's output.
    pub fn scale(&self) -> f64 {
        self.alpha / self.divisor(self.rank)
    }

    /// Returns the inner width of the adapter of a weight of this shape, `[out, in]`.
    fn rank_of(&self, shape: [usize; 2]) -> usize {
        if self.clipped { clipped_rank(self.rank, shape) } else { self.rank }
    }

    /// Returns what PEFT divides an alpha by to get the scale of an adapter of this rank.
    fn divisor(&self, rank: usize) -> f64 {
        let rank = rank as f64;
        if self.rslora { rank.sqrt() } else { rank }
    }
}

/// The class of transformers that loads the base below an adapter. It decides the names of the modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BaseClass {
    /// The class named in the base's `config.json`, whose names vLLM uses too.
    OfConfig,
    /// The class that `AutoModelForCausalLM` chooses, where its modules have other names.
    CausalLm,
}

impl BaseClass {
    /// Returns the classes for which adapters of this base have different names.
    pub fn all_of(base: &Checkpoint) -> &'static [Self] {
        if base.is_wrapper() && base.config().architecture.causal_lm_is_text_only() {
            &[Self::OfConfig, Self::CausalLm]
        } else {
            &[Self::OfConfig]
        }
    }

    /// Returns the name of the folder for an adapter on this class.
    pub const fn folder(self) -> &'static str {
        match self {
            Self::OfConfig => "adapter",
            Self::CausalLm => "adapter-causal-lm",
        }
    }

    /// Returns what PEFT writes before the path of a module of the decoder.
    fn prefix(self, base: &Checkpoint) -> &'static str {
        match self {
            // The published wrapper has its decoder as `language_model`; a text-only class does not,
            // independent of the keys in its weight file.
            Self::OfConfig if base.is_wrapper() => "base_model.model.model.language_model.",
            Self::OfConfig | Self::CausalLm => "base_model.model.model.",
        }
    }
}

const ADAPTER_FILE: &str = "adapter_model.safetensors";
const CONFIG_FILE: &str = "adapter_config.json";

impl Model {
    /// Attaches a new, trainable adapter to every linear layer and freezes everything else.
    ///
    /// `A ~ U(-1/sqrt(in), 1/sqrt(in))` from a generator keyed by `seed` and the module's path, `B = 0`, so
    /// that the model computes the same as before.
    pub fn attach_lora(&mut self, config: LoraConfig, seed: u64) {
        self.set_trainable(false);
        let device = self.device().clone();
        for linear in self.linears_mut() {
            let [out, input] = [linear.weight.shape()[0], linear.weight.shape()[1]];
            let path = linear.path().to_owned();
            let rank = config.rank_of([out, input]);
            let a = uniform(&path, seed, rank * input, 1.0 / (input as f64).sqrt());
            let b = vec![0.0; out * rank];
            linear.lora = Some(adapter(&path, config, [out, input], a, b, &device));
        }
    }

    /// Writes the adapter as `adapter_model.safetensors` (f32) and `adapter_config.json` into an existing
    /// folder, for a base that this class loads from `base_model`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn save_lora(
        &self,
        dir: &Path,
        config: LoraConfig,
        base: &Checkpoint,
        base_model: &str,
        class: BaseClass,
    ) -> Result<(), ModelError> {
        let prefix = class.prefix(base);
        let (mut rank_pattern, mut alpha_pattern) = (BTreeMap::new(), BTreeMap::new());
        let mut params: BTreeMap<String, &Param> = BTreeMap::new();
        let mut targets: Vec<String> = Vec::new();
        for linear in self.linears() {
            let Some(lora) = &linear.lora else { continue };
            targets.extend(linear.path().rsplit('.').next().map(str::to_owned));
            let rank = lora.a.shape()[0];
            if rank != config.rank {
                rank_pattern.insert(linear.path().to_owned(), rank);
                // PEFT divides by the adapter's own rank; this alpha gives the scale of all others.
                alpha_pattern.insert(linear.path().to_owned(), number(config.scale() * config.divisor(rank)));
            }
            for param in [&lora.a, &lora.b] {
                params.insert(format!("{prefix}{}", param.name()), param);
            }
        }
        targets.sort();
        targets.dedup();
        let path = dir.join(ADAPTER_FILE);
        write_f32(&params, &path).map_err(ModelError::io(&path))?;
        let text = serde_json::to_string_pretty(&PeftConfig {
            alpha_pattern,
            base_model_name_or_path: base_model.to_owned(),
            bias: "none".to_owned(),
            fan_in_fan_out: false,
            inference_mode: true,
            lora_alpha: number(config.alpha),
            lora_dropout: 0.0,
            peft_type: "LORA".to_owned(),
            r: config.rank,
            rank_pattern,
            target_modules: targets,
            task_type: "CAUSAL_LM".to_owned(),
            use_rslora: config.rslora,
        })
        .expect("plain fields serialise");
        let path = dir.join(CONFIG_FILE);
        write_and_sync(&path, text + "\n").map_err(ModelError::io(&path))?;
        sync(dir).map_err(ModelError::io(dir))
    }
}

/// Writes parameters by name as f32, one at a time, and flushes the file.
fn write_f32(params: &BTreeMap<String, &Param>, path: &Path) -> io::Result<()> {
    let described: Vec<Described> = params
        .iter()
        .map(|(name, param)| {
            let shape = param.shape();
            let length = shape.iter().product::<usize>() * size_of::<f32>();
            Described { name, dtype: Dtype::F32, shape, length }
        })
        .collect();
    let mut file = BufWriter::new(File::create(path)?);
    // Tensors of one type are in a file in the order of their names, like here.
    write_header(&described, &mut file)?;
    for param in params.values() {
        write_numbers(&param.to_vec(), Dtype::F32, &mut file)?;
    }
    file.flush()?;
    file.get_ref().sync_all()
}

/// The relevant fields of PEFT's `adapter_config.json`; the others take PEFT's defaults.
#[derive(Serialize, Deserialize)]
struct PeftConfig {
    /// The alpha of each module whose rank differs from `r`. Keys are regular expressions for the end of a
    /// module's path, so that they hold for every class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    alpha_pattern: BTreeMap<String, Number>,
    #[serde(default)]
    base_model_name_or_path: String,
    #[serde(default)]
    bias: String,
    #[serde(default)]
    fan_in_fan_out: bool,
    #[serde(default)]
    inference_mode: bool,
    lora_alpha: Number,
    #[serde(default)]
    lora_dropout: f64,
    #[serde(default)]
    peft_type: String,
    r: usize,
    /// The rank of each module whose rank differs from `r`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    rank_pattern: BTreeMap<String, usize>,
    #[serde(default)]
    target_modules: Vec<String>,
    #[serde(default)]
    task_type: String,
    #[serde(default)]
    use_rslora: bool,
}

/// Returns a finite alpha as PEFT writes it: a whole number without a fraction, which is its type there.
fn number(alpha: f64) -> Number {
    if alpha.fract() == 0.0 {
        Number::from(alpha as i64)
    } else {
        Number::from_f64(alpha).expect("settings are finite")
    }
}

fn adapter(
    path: &str,
    config: LoraConfig,
    [out, input]: [usize; 2],
    a: Vec<f32>,
    b: Vec<f32>,
    device: &Device,
) -> Lora {
    let param = |part: &str, shape: [usize; 2], data: Vec<f32>| {
        let mut param = Param::new(format!("{path}.{part}.weight"), &shape, data, device);
        param.set_trainable(true);
        param
    };
    let rank = config.rank_of([out, input]);
    Lora { a: param("lora_A", [rank, input], a), b: param("lora_B", [out, rank], b), scale: config.scale() }
}

/// Reads an adapter folder, for comparison with those written by PEFT. A run cannot start from one.
#[cfg(test)]
mod loading {
    use safetensors::SafeTensors;
    use safetensors::tensor::TensorView;

    use super::*;
    use crate::numbers::widen;

    impl Model {
        /// Attaches the adapters of a PEFT folder to the model, trainable.
        ///
        /// # Errors
        /// When the files are missing or damaged, or lack an adapter for one of the model's linear layers.
        pub(crate) fn load_lora(&mut self, dir: &Path) -> Result<LoraConfig, ModelError> {
            let config_path = dir.join(CONFIG_FILE);
            let text = std::fs::read_to_string(&config_path).map_err(ModelError::io(&config_path))?;
            let wrong = |reason: String| ModelError::Adapter { path: dir.to_owned(), reason };
            let stored: PeftConfig =
                serde_json::from_str(&text).map_err(|e| wrong(format!("adapter_config.json: {e}")))?;
            let config = LoraConfig {
                rank: stored.r,
                alpha: stored.lora_alpha.as_f64().expect("a JSON number is a float"),
                rslora: stored.use_rslora,
                clipped: !stored.rank_pattern.is_empty(),
            };
            let path = dir.join(ADAPTER_FILE);
            let bytes = std::fs::read(&path).map_err(ModelError::io(&path))?;
            let tensors = SafeTensors::deserialize(&bytes)
                .map_err(|e| ModelError::Damaged { path: path.clone(), reason: e.to_string() })?;
            // The key is the module path relative to the decoder, independent of the class that the adapter
            // was trained on.
            let mut by_path: BTreeMap<String, TensorView> = BTreeMap::new();
            for (name, view) in tensors.tensors() {
                let short = name.trim_start_matches("base_model.model.");
                let short = short.strip_prefix("model.language_model.").or(short.strip_prefix("model."));
                by_path.insert(short.unwrap_or(&name).to_owned(), view);
            }
            self.set_trainable(false);
            let device = self.device().clone();
            for linear in self.linears_mut() {
                let [out, input] = [linear.weight.shape()[0], linear.weight.shape()[1]];
                let module = linear.path().to_owned();
                let mut read = |part: &str, shape: [usize; 2]| {
                    let name = format!("{module}.{part}.weight");
                    let view = by_path.remove(&name).ok_or_else(|| wrong(format!("`{name}` is missing")))?;
                    if view.shape() != shape {
                        return Err(wrong(format!(
                            "`{name}` has the shape {:?}, not {shape:?}",
                            view.shape()
                        )));
                    }
                    widen(view.data(), view.dtype())
                        .ok_or_else(|| wrong(format!("`{name}` is stored as {:?}", view.dtype())))
                };
                let rank = config.rank_of([out, input]);
                let (a, b) = (read("lora_A", [rank, input])?, read("lora_B", [out, rank])?);
                linear.lora = Some(adapter(&module, config, [out, input], a, b, &device));
            }
            match by_path.keys().next() {
                Some(name) => Err(wrong(format!("`{name}` belongs to no linear layer of this model"))),
                None => Ok(config),
            }
        }
    }
}
