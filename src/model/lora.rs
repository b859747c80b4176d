//! Low-rank adapters: attaching new ones to a model, and writing PEFT's file format (SPEC.md 5). `adapter`
//! reads it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use burn::tensor::Device;
use safetensors::Dtype;
use serde::Serialize;
use serde_json::Number;
use sparktune_base::files::{sync, write_and_sync};
use sparktune_plan::TargetModules;
use sparktune_plan::adapter::{CONFIG_FILE, TENSOR_FILE, divisor};
use sparktune_plan::architecture::clipped_rank;

use crate::checkpoint::Checkpoint;
use crate::decoder::Model;
use crate::error::ModelError;
use crate::linear::Lora;
use crate::numbers::uniform;
use crate::param::Param;
use crate::weight_writer::{Described, write_header, write_numbers};

/// The adapters of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoraConfig {
    /// The inner width of each adapter.
    pub rank: usize,
    /// The numerator of the scale.
    pub alpha: f64,
    /// Whether the scale is `alpha / sqrt(rank)` instead of `alpha / rank`.
    pub rslora: bool,
    /// Whether the inner width of an adapter is at most the width of its layer. The scale remains that of
    /// `rank`, so that it is the same for all adapters.
    pub clipped: bool,
    /// The layers that have adapters.
    pub targets: TargetModules,
    /// The share of an adapter's input that is set to 0 in training.
    pub dropout: f64,
}

impl LoraConfig {
    /// Describes adapters of this rank and alpha on all layers, without dropout.
    pub const fn new(rank: usize, alpha: f64) -> Self {
        Self { rank, alpha, rslora: false, clipped: false, targets: TargetModules::ALL, dropout: 0.0 }
    }

    /// Returns the factor on the adapter's output.
    pub fn scale(&self) -> f64 {
        self.alpha / divisor(self.rank as f64, self.rslora)
    }

    /// Returns the inner width of the adapter of a weight of this shape, `[out, in]`.
    fn rank_of(&self, shape: [usize; 2]) -> usize {
        if self.clipped { clipped_rank(self.rank, shape) } else { self.rank }
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

impl Model {
    /// Attaches new, trainable adapters to linear layers and freezes everything else.
    ///
    /// `A ~ U(-1/sqrt(in), 1/sqrt(in))` from a generator keyed by `seed` and the module's path, `B = 0`, so
    /// that the model computes the same as before.
    pub fn attach_lora(&mut self, config: LoraConfig, seed: u64) {
        self.set_trainable(false);
        let device = self.device().clone();
        for linear in self.linears_mut().into_iter().filter(|linear| config.targets.contains(linear.name())) {
            let [out, input] = [linear.weight.shape()[0], linear.weight.shape()[1]];
            let path = linear.path().to_owned();
            let rank = config.rank_of([out, input]);
            let a = uniform(&path, seed, rank * input, 1.0 / (input as f64).sqrt());
            let b = vec![0.0; out * rank];
            linear.lora = Some(Lora::new(&path, config.scale(), rank, [a, b], &device));
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
            targets.push(linear.name().to_owned());
            let rank = lora.a.shape()[0];
            if rank != config.rank {
                rank_pattern.insert(linear.path().to_owned(), rank);
                alpha_pattern.insert(linear.path().to_owned(), number(alpha_for(config, rank)));
            }
            for param in [&lora.a, &lora.b] {
                params.insert(format!("{prefix}{}", param.name()), param);
            }
        }
        targets.sort();
        targets.dedup();
        let path = dir.join(TENSOR_FILE);
        write_f32(&params, &path).map_err(ModelError::io(&path))?;
        let text = serde_json::to_string_pretty(&PeftConfig {
            alpha_pattern,
            base_model_name_or_path: base_model.to_owned(),
            bias: "none".to_owned(),
            fan_in_fan_out: false,
            inference_mode: true,
            lora_alpha: number(config.alpha),
            lora_dropout: config.dropout,
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
#[derive(Serialize)]
struct PeftConfig {
    /// The alpha of each module whose rank differs from `r`. Keys are regular expressions for the end of a
    /// module's path, so that they hold for every class.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    alpha_pattern: BTreeMap<String, Number>,
    base_model_name_or_path: String,
    bias: String,
    fan_in_fan_out: bool,
    inference_mode: bool,
    lora_alpha: Number,
    lora_dropout: f64,
    peft_type: String,
    r: usize,
    /// The rank of each module whose rank differs from `r`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    rank_pattern: BTreeMap<String, usize>,
    target_modules: Vec<String>,
    task_type: String,
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

/// Returns the alpha with which PEFT, which divides by the adapter's own rank, gets the scale of all others.
fn alpha_for(config: LoraConfig, rank: usize) -> f64 {
    config.scale() * divisor(rank as f64, config.rslora)
}

impl Lora {
    /// Creates a trainable adapter of the layer at `path` from the numbers of `A [rank, in]` and `B [out,
    /// rank]`, row-major.
    pub(crate) fn new(path: &str, scale: f64, rank: usize, [a, b]: [Vec<f32>; 2], device: &Device) -> Self {
        let param = |part: &str, shape: [usize; 2], data: Vec<f32>| {
            let mut param = Param::new(format!("{path}.{part}.weight"), &shape, data, device);
            param.set_trainable(true);
            param
        };
        let (input, out) = (a.len() / rank, b.len() / rank);
        Self { a: param("lora_A", [rank, input], a), b: param("lora_B", [out, rank], b), scale, mask: None }
    }
}
