//! The work of a training step in FLOPs, and the seconds a machine takes for it.
//!
//! Counted: matrix products of linears, adapters, head, attention and delta rule; a multiply-add is two. Not
//! counted: norms, convolution, elementwise. Every constant of a machine is an assumption unless its comment
//! says where it was measured.

use sparktune_base::units::counted;

use crate::architecture::{AttentionSpec, LayerSpec, MixerSpec, clipped_rank};
use crate::choices::MethodKind;
use crate::facts::{Gpu, MachineFacts};
use crate::model_config::ModelConfig;
use crate::targets::TargetModules;

/// The number of tokens of a chunk of the delta rule (`CHUNK` in `kernels/gated_delta_rule`).
pub(crate) const DELTA_CHUNK: u32 = 64;

/// The work of a model, by part.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// The number of weights in all linear layers of the decoder.
    pub linear_parameters: f64,
    /// The number of weights of the head.
    pub head_parameters: f64,
    /// The names and shapes `[out, in]` of the linear layers of the decoder, each with its number of
    /// occurrences.
    linears: Vec<(&'static str, [usize; 2], usize)>,
    /// The distinct attention layers, each with its number of occurrences.
    attention: Vec<(AttentionSpec, usize)>,
    /// The forward FLOPs of the delta rule per token.
    delta: f64,
    /// The number of weights of the MTP head's layer.
    mtp_parameters: f64,
}

/// The settings that the work per token depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Treatment {
    /// Which parameters are trained.
    pub method: MethodKind,
    /// The rank of the adapters; 0 for full fine-tuning.
    pub rank: u32,
    /// The layers that have adapters.
    pub targets: TargetModules,
    /// Whether layers are computed again in the backward pass.
    pub recompute: bool,
    /// The share of the tokens that pass through the output head.
    pub target_share: f64,
    /// The mean length, in tokens, of the example that a token belongs to.
    pub context: f64,
}

impl Work {
    /// Counts the work of a model.
    pub fn from_config(config: &ModelConfig) -> Self {
        let sum = |of: fn(&LayerSpec) -> f64| config.layers.iter().map(of).sum::<f64>();
        Self {
            linear_parameters: sum(|layer| {
                layer.linears().map(|linear| linear.output as f64 * linear.input as f64).sum()
            }),
            head_parameters: config.vocab_size as f64 * config.hidden_size as f64,
            linears: config
                .layer_kinds()
                .into_iter()
                .flat_map(|(layer, count)| {
                    layer.linears().map(move |linear| (linear.name(), [linear.output, linear.input], count))
                })
                .collect(),
            attention: config
                .layer_kinds()
                .into_iter()
                .filter_map(|(layer, count)| match &layer.mixer {
                    MixerSpec::Attention(attention) => Some((attention.clone(), count)),
                    MixerSpec::GatedDeltaNet(_) => None,
                })
                .collect(),
            delta: sum(|layer| match &layer.mixer {
                MixerSpec::Attention(_) => 0.0,
                MixerSpec::GatedDeltaNet(of) => {
                    let (dk, dv) = (of.key_head_dim as f64, of.value_head_dim as f64);
                    // Per token and head: K Kᵀ, Q Kᵀ and T K (2·C·dk each), T V and the masked product
                    // (2·C·dv each), and three products with the state (2·dk·dv each).
                    of.num_value_heads as f64
                        * (f64::from(DELTA_CHUNK) * (6.0 * dk + 4.0 * dv) + 6.0 * dk * dv)
                }
            }),
            mtp_parameters: config.mtp_parameters() as f64,
        }
    }

    /// Returns the number of parameters of adapters of this rank, clipped to the width of each layer, on the
    /// layers of these names.
    pub fn adapter_parameters(&self, rank: u32, targets: TargetModules) -> f64 {
        let of_layers = |(_, shape, layers): &(&str, [usize; 2], usize)| {
            let [output, input] = shape.map(|width| width as f64);
            clipped_rank(rank as usize, *shape) as f64 * (output + input) * *layers as f64
        };
        self.linears.iter().filter(|(name, ..)| targets.contains(name)).map(of_layers).sum()
    }

    /// Returns the numbers per token that dropout reads and writes for adapters on the layers of these names:
    /// it copies the input of each forward and again backward, and adds the gradient of each copy to the sum.
    pub(crate) fn dropout_numbers(&self, targets: TargetModules) -> f64 {
        let adapted = self.linears.iter().filter(|(name, ..)| targets.contains(name));
        adapted.map(|(_, [_, input], layers)| 7.0 * (*input * *layers) as f64).sum()
    }

    /// Returns the forward FLOPs of attention per token in examples of this mean length.
    fn attention_flops(&self, length: f64) -> f64 {
        let of_layers = |(of, layers): &(AttentionSpec, usize)| {
            // Q Kᵀ and P V take 2·heads·head_dim each for every token attended to.
            let width = (of.num_attention_heads * of.head_dim * layers) as f64;
            4.0 * width * of.mean_context(length)
        };
        self.attention.iter().map(of_layers).sum()
    }

    /// Returns the FLOPs per token of a forward pass through the layers, without the head.
    pub fn forward_flops(&self, how: &Treatment) -> f64 {
        2.0 * self.linear_parameters
            + 2.0 * self.adapter_parameters(how.rank, how.targets)
            + self.attention_flops(how.context)
            + self.delta
    }

    /// Returns the FLOPs of training per token: forward, backward (without weight gradients if the base is
    /// frozen), the head for trained tokens, and the second forward pass of recompute.
    pub fn training_flops(&self, how: &Treatment) -> f64 {
        let forward = self.forward_flops(how);
        let (dense, head) = match how.method {
            MethodKind::Lora => (2.0, 4.0),
            MethodKind::Full => (4.0, 6.0),
        };
        let backward = dense * self.linear_parameters
            + 4.0 * self.adapter_parameters(how.rank, how.targets)
            // The kernels' operation counts are 2.5 and 2.6 times the forward pass.
            + 2.5 * self.attention_flops(how.context)
            + 2.6 * self.delta;
        let again = if how.recompute { forward } else { 0.0 };
        forward + backward + again + head * self.head_parameters * how.target_share
    }

    /// Returns the FLOPs per token of one epoch of MTP training: the frozen main model forward, and for each
    /// drafted token the MTP layer forward and backward, and the head.
    pub fn mtp_flops(&self, how: &Treatment, draft_tokens: u32) -> f64 {
        let step = 6.0 * self.mtp_parameters + 4.0 * self.head_parameters * how.target_share;
        self.forward_flops(how) + f64::from(draft_tokens) * step
    }

    /// Returns the FLOPs of a drafted token: the MTP layer forward, and the head for this share of them.
    pub(crate) fn draft_flops(&self, target_share: f64) -> f64 {
        2.0 * (self.mtp_parameters + self.head_parameters * target_share)
    }
}

/// Published measurements of chips: name, FLOP/s of bf16 matrix products, bytes per second of memory.
pub const PUBLISHED: [(&str, f64, f64); 2] = [("GB10", 96e12, 218e9), ("H200", 785e12, 4.3e12)];

/// The speed that the estimate assumes of a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Speed {
    /// Name of the device, as in the rates file.
    pub device: String,
    /// FLOP/s reached in training.
    pub flops_per_s: f64,
    /// Bytes per second of memory.
    pub bytes_per_s: f64,
    /// Seconds that a pack costs in each layer, independent of its length.
    pub seconds_per_layer: f64,
    /// The source of the figures; `None` if they only serve to compare pack lengths.
    pub basis: Option<String>,
}

/// The hidden size from which on the matrix products take nearly all of a step on the CPU.
const WIDE: f64 = 512.0;
/// The FLOP/s in fp32 that are assumed of a core in training such a model.
pub(crate) const WIDE_CPU_FLOPS: f64 = 40e9;

impl Speed {
    /// Assumes a speed of the CPU for a model of this hidden size: 40 GFLOP/s in fp32 per core, and less if
    /// the model is narrow.
    pub fn from_cpu(machine: &MachineFacts, hidden_size: usize) -> Self {
        let cores = machine.cores.max(1) as f64;
        // Measured on two cores of an AMD EPYC: 44 GFLOP/s per core at a hidden size of 512, 21 at 192,
        // whatever the length of the packs. Between them a power of the width is assumed.
        let flops = WIDE_CPU_FLOPS * (hidden_size as f64 / WIDE).clamp(0.1, 1.0).powf(0.63);
        Self {
            device: format!("cpu-{}", machine.cores.max(1)),
            flops_per_s: flops * cores,
            bytes_per_s: 20e9,
            seconds_per_layer: 50e-6,
            basis: Some(format!(
                "{} × {:.0} GFLOP/s assumed in fp32",
                counted(cores as u64, "core"),
                flops / 1e9
            )),
        }
    }

    /// Assumes the speed of a GPU by its name. The figures for unknown ones only serve to compare pack
    /// lengths.
    pub fn from_gpu(gpu: &Gpu) -> Self {
        let found = PUBLISHED.iter().find(|(name, ..)| gpu.name.contains(name));
        let (_, flops, bytes) = found.copied().unwrap_or(("", 100e12, 500e9));
        // The Qwen3.5 recipe reached 30 %.
        Self {
            device: gpu.name.clone(),
            flops_per_s: 0.3 * flops,
            bytes_per_s: bytes,
            seconds_per_layer: 60.0 * 4e-6, // about 60 launches of 4 µs
            basis: found.map(|_| format!("30 % of {:.0} TFLOP/s bf16 assumed", flops / 1e12)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;

    fn two_b() -> Work {
        let catalog = Catalog::shipped();
        Work::from_config(&catalog.model_facts(catalog.find("Qwen/Qwen3.5-2B").unwrap()).config)
    }

    #[test]
    fn the_2b_costs_what_its_kernels_were_counted_to_cost() {
        let work = two_b();
        let close = |x: f64, to: f64| assert!((x / to - 1.0).abs() < 0.03, "{x:e} is not {to:e}");
        // kernels/NOTES.md, "Floors and machine limits": 2.75 GF forward in linears; a layer of attention at
        // 3000 tokens takes 12 MF, one of the delta rule 2.9 MF.
        close(2.0 * work.linear_parameters, 2.75e9);
        close(work.attention_flops(3000.0), 6.0 * 12e6);
        close(work.delta, 18.0 * 2.9e6);
        // Adapters of rank 128 on all layers would take 0.27 GF; those with 16 outputs have rank 16.
        close(2.0 * work.adapter_parameters(128, TargetModules::ALL), 0.252e9);
        let of_rank = |rank| work.adapter_parameters(rank, TargetModules::ALL);
        assert_eq!(of_rank(8), of_rank(1) * 8.0);
        let narrow = 18.0 * 2.0 * (16.0 + 2048.0);
        let [wide, wider] = [16, 17].map(of_rank);
        assert_eq!(wider - wide, of_rank(1) - narrow, "the narrow ones do not grow");
        let mlp = TargetModules::of_names(["gate_proj", "up_proj", "down_proj"]).unwrap();
        assert_eq!(work.adapter_parameters(1, mlp), 24.0 * 3.0 * (2048.0 + 6144.0));
        close(4.0 * work.head_parameters, 2.03e9);
    }

    #[test]
    fn a_window_bounds_what_attention_costs_and_longer_examples_add_nothing_behind_it() {
        let text = include_str!("architecture/published/mistral-7b-v0.1.json");
        let mut case: serde_json::Value = serde_json::from_str(text).unwrap();
        let mut of = |window: Option<usize>| {
            case["config"]["sliding_window"] = window.into();
            Work::from_config(&ModelConfig::from_json(&case["config"].to_string()).unwrap())
        };
        let (free, windowed) = (of(None), of(Some(100)));
        assert_eq!(
            windowed.attention_flops(100.0),
            free.attention_flops(100.0),
            "all of it is in the window"
        );
        // Tokens 1 to 100 attend to 50 on average, the other 900 to 100.
        assert_eq!(windowed.attention_flops(1000.0), free.attention_flops(2.0 * 95.0));
        let each = 4.0 * (32 * 32 * 128) as f64;
        assert_eq!(free.attention_flops(1000.0), each * 500.0);
    }

    #[test]
    fn lora_computes_no_weight_gradients_and_recompute_adds_a_third() {
        let work = two_b();
        let lora = Treatment {
            method: MethodKind::Lora,
            rank: 128,
            targets: TargetModules::ALL,
            recompute: false,
            target_share: 1.0,
            context: 3000.0,
        };
        let full = Treatment { method: MethodKind::Full, rank: 0, ..lora };
        // kernels/NOTES.md, "Floors and machine limits": 8.5 GF a token for LoRA and 11.8 for full
        // fine-tuning, both without some of the small parts.
        assert!((8.2e9..9.2e9).contains(&work.training_flops(&lora)), "{:e}", work.training_flops(&lora));
        assert!((11.0e9..12.4e9).contains(&work.training_flops(&full)), "{:e}", work.training_flops(&full));
        let again = Treatment { recompute: true, ..lora };
        let share = work.training_flops(&again) / work.training_flops(&lora) - 1.0;
        assert!((0.3..0.4).contains(&share), "{share}");
    }
}
