//! What a training step asks of a CUDA device, op by op, and how long it takes if each op reaches a share of
//! its floor.
//!
//! Enters: a model's config and how it is trained. Leaves: [`Part`]s, whose launches
//! `sparktune_kernels::work` counted, and their serial sum. Which linear layers and norms a layer has, its
//! family's table says; the ops of a mixer are listed here in the order of its code. Arithmetic, nothing is
//! measured.

use serde_json::{Value, json};
use sparktune_kernels::work::{self, Ceilings, Launch, Work};
use sparktune_plan::architecture::{Activation, LayerSpec, LinearSpec, MixerSpec, Place};
use sparktune_plan::cost::PUBLISHED;
use sparktune_plan::products::{PACK, RANK, shapes};
use sparktune_plan::{MethodKind, ModelConfig};

/// The machine that speeds are promised for, in the table of published rates.
pub const PROMISED_FOR: &str = "GB10";

/// Seconds that lie between two launches at least, where shares are assumed; a guess.
pub const GAP_S: f64 = 2e-6;

/// How a step is made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// What is trained.
    pub method: MethodKind,
    /// Of the adapters; 0 for full.
    pub rank: usize,
    /// Of a pack.
    pub tokens: usize,
    /// Tokens of each example.
    pub length: f64,
    /// Share of the tokens that are targets.
    pub target_share: f64,
    /// Packs of an optimizer step.
    pub packs: usize,
    /// Packs that pass through the model together.
    pub micro_batch_packs: usize,
}

impl Step {
    /// Tokens of an optimizer step.
    pub fn tokens_of_all(&self) -> usize {
        self.tokens * self.packs
    }
}

/// Calls of one pass of an op at the same sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The op, with `backward` behind it where it is that.
    pub op: String,
    /// The row of `bench --gpu kernels` whose share of its floor counts for this op.
    pub measured_as: String,
    /// Calls in an optimizer step.
    pub calls: usize,
    /// Of one call.
    pub launches: Vec<Launch>,
    /// Share of its floor that the op is assumed to reach.
    pub share: f64,
}

impl Part {
    /// Seconds of all calls where each launch takes its floor over `share`, and a gap.
    pub fn seconds(&self, ceilings: Ceilings, share: f64, gap_s: f64) -> f64 {
        self.calls as f64 * (ceilings.floors_s(&self.launches) / share + gap_s * self.launches.len() as f64)
    }
}

/// Shares of their floors that ops are assumed to reach until a run has measured them. All are guesses; the
/// reasons are of paper.
mod share {
    /// Large products: of the rate that the vendor's library reaches, which the ceiling is. NOTES.md counts
    /// 18 to 27 % of the issue slots and half of the shared memory's rate.
    pub(super) const PRODUCT: f64 = 0.9;
    /// Small ones wait for memory, in few blocks.
    pub(super) const ADAPTER: f64 = 0.8;
    /// NOTES.md, "Packed attention".
    pub(super) const ATTENTION: [f64; 2] = [0.75, 0.7];
    /// 32 to 64 blocks walk 84 steps, and wait for memory and barriers in each.
    pub(super) const DELTA_RULE: f64 = 0.65;
    /// One pass over large matrices, as a copy.
    pub(super) const STREAM: f64 = 0.9;
}

struct Parts {
    parts: Vec<Part>,
}

impl Parts {
    fn add_as(&mut self, op: &str, measured_as: &str, calls: usize, work: Work, shares: [f64; 2]) {
        let passes = [(work.forward, shares[0], ""), (work.backward, shares[1], " backward")];
        for (launches, share, which) in passes {
            if launches.is_empty() || calls == 0 {
                continue;
            }
            let [op, measured_as] = [op, measured_as].map(|name| format!("{name}{which}"));
            self.parts.push(Part { op, measured_as, calls, launches, share });
        }
    }

    fn add(&mut self, op: &str, calls: usize, work: Work, share: f64) {
        self.add_as(op, op, calls, work, [share; 2]);
    }
}

/// The ops of an optimizer step without recompute, in the order of the model.
pub fn parts(config: &ModelConfig, step: &Step) -> Vec<Part> {
    let mut parts = Parts { parts: Vec::new() };
    let micro_batches = step.packs.div_ceil(step.micro_batch_packs);
    let tokens = step.tokens * step.micro_batch_packs.min(step.packs);
    let (hidden, trained) = (config.hidden_size, step.method == MethodKind::Full);
    // The gradient of a matrix is written by the first micro-batch and added to by those behind it.
    let in_turn = [(1, false), (micro_batches - 1, true)];

    for (layer, layers) in config.layer_kinds() {
        let calls = layers * micro_batches;
        for group in layer.input_groups() {
            let (width, outputs) = (group[0].input, outputs_of(&group));
            if trained {
                let work = work::linears(tokens, width, &outputs);
                parts.add_as("linear", "linear", calls, work, [share::PRODUCT; 2]);
                for (times, added) in in_turn {
                    let work = work::weight_gradients(tokens, width, &outputs, added);
                    parts.add_as("linear weight", "linear", layers * times, work, [share::PRODUCT; 2]);
                }
            } else {
                let work = work::lora_linears(tokens, width, &outputs, step.rank);
                parts.add_as("lora_linear", "lora_linear", calls, work, [share::PRODUCT; 2]);
                for (times, added) in in_turn {
                    let work = work::adapters(tokens, width, &outputs, step.rank, added);
                    parts.add_as("adapter", "lora_linear", layers * times, work, [share::ADAPTER; 2]);
                }
            }
        }
        mixer(&mut parts, layer, calls, tokens, step.length);
        let width = layer.intermediate_size;
        match layer.activation {
            Activation::Silu => parts.add("silu_mul", calls, work::silu_mul(tokens, width), share::STREAM),
            Activation::GeluTanh => {
                parts.add("gelu_mul", calls, work::gelu_mul(tokens, width), share::STREAM)
            }
        }
        // All but the model's first add what was computed before to the residual stream.
        let norms = |places: [Place; 2]| layer.norms().filter(|norm| places.contains(&norm.place)).count();
        let of_sum = work::add_rms_norm(tokens, hidden);
        let before = norms([Place::BeforeMixer, Place::BeforeMlp]) * calls;
        parts.add_as("add_rms_norm", "rms_norm", before, of_sum, [share::STREAM; 2]);
        let after = norms([Place::AfterMixer, Place::AfterMlp]) * calls;
        parts.add("rms_norm", after, work::rms_norm(tokens, hidden), share::STREAM);
    }

    parts.add("rms_norm", micro_batches, work::rms_norm(tokens, hidden), share::STREAM);
    // No more ids than tokens: an upper bound.
    let table = work::embedding(tokens, hidden, tokens.min(config.vocab_size), trained);
    parts.add("embedding", micro_batches, table, share::STREAM);
    let targets = ((tokens as f64 * step.target_share) as usize).max(1);
    let head = if trained { "linear_cross_entropy trained" } else { "linear_cross_entropy" };
    for (times, added) in in_turn {
        let work = work::head([tokens, targets], hidden, config.vocab_size, trained, added);
        let sum = Work { forward: work.backward, backward: Vec::new() };
        parts.add("adamw accumulate", times, sum, share::STREAM);
        parts.add(head, times, Work { forward: work.forward, backward: Vec::new() }, share::PRODUCT);
    }
    optimizer(&mut parts, config, step);
    parts.parts
}

/// The widths of what these linear layers compute.
fn outputs_of(group: &[&LinearSpec]) -> Vec<usize> {
    group.iter().map(|linear| linear.output).collect()
}

/// The ops between the projections of a layer.
fn mixer(parts: &mut Parts, layer: &LayerSpec, calls: usize, tokens: usize, length: f64) {
    match &layer.mixer {
        MixerSpec::GatedDeltaNet(delta) => {
            let (heads, d) = (delta.num_value_heads, delta.value_head_dim);
            let rule = work::gated_delta_rule(tokens, delta.num_key_heads, heads, d);
            parts.add("gated_delta_rule", calls, rule, share::DELTA_RULE);
            let convolution = work::causal_conv1d_silu(tokens, delta.conv_dim());
            parts.add("causal_conv1d_silu", calls, convolution, share::STREAM);
            parts.add("gated_rms_norm", calls, work::gated_rms_norm(tokens, heads * d), share::STREAM);
            parts.add("delta_gates", calls, work::delta_gates(tokens, heads), share::STREAM);
        }
        MixerSpec::Attention(of) => {
            let (heads, kv_heads, d) = (of.num_attention_heads, of.num_key_value_heads, of.head_dim);
            // An example without a window in which tokens see as many tokens.
            let length = 2.0 * of.mean_context(length);
            let attention = work::packed_attention(tokens, length, heads, kv_heads, d);
            parts.add_as("packed_attention", "packed_attention", calls, attention, share::ATTENTION);
            let gated = of.output_gate;
            for (place, heads, joint) in [(Place::Queries, heads, gated), (Place::Keys, kv_heads, false)] {
                if layer.norm(place).is_some() {
                    let work = work::norm_rope(tokens, heads * d, joint);
                    parts.add("norm_rope", calls, work, share::STREAM);
                } else {
                    parts.add("rope", calls, work::rope(tokens, heads * d), share::STREAM);
                }
            }
            if gated {
                parts.add("sigmoid_gate", calls, work::sigmoid_gate(tokens, heads * d), share::STREAM);
                // The joint projection feeds both the queries' norm and the gate.
                let twice = work::add_gradients(tokens, 2 * heads * d);
                parts.add_as("add", "silu_mul", calls, twice, [share::STREAM; 2]);
            }
        }
    }
}

fn optimizer(parts: &mut Parts, config: &ModelConfig, step: &Step) {
    let (parameters, matrices) = match step.method {
        MethodKind::Lora => {
            let linears = || config.layers.iter().flat_map(LayerSpec::linears);
            let parameters =
                linears().map(|linear| step.rank * (linear.output + linear.input)).sum::<usize>();
            (parameters, 2 * linears().count())
        }
        MethodKind::Full => (config.text_parameters() as usize, config.tensors().len()),
    };
    let each = parameters as f64 / matrices as f64;
    let mut add = |op: &str, calls: usize, launch: Launch| {
        let work = Work { forward: vec![launch], backward: Vec::new() };
        parts.add(op, calls, work, share::STREAM);
    };
    add("adamw", matrices, work::adamw(each));
    add("adamw clip", matrices, work::clip(each));
}

/// A step of a model of the catalog.
#[derive(Debug, Clone, PartialEq)]
pub struct Predicted {
    /// Size, method and whatever is not as `bench --gpu steps` has it.
    pub name: String,
    /// Size of the model.
    pub size: &'static str,
    /// How it is made.
    pub step: Step,
    /// What it consists of.
    pub parts: Vec<Part>,
}

/// Published rates of [`PROMISED_FOR`].
pub fn promised_for() -> Ceilings {
    let known = PUBLISHED.iter().find(|(name, ..)| *name == PROMISED_FOR);
    let (_, flops_per_s, bytes_per_s) = *known.expect("it is in the table");
    Ceilings { bytes_per_s, flops_per_s }
}

impl Predicted {
    /// One document of a pack's length, as `bench --gpu steps` trains on: one pack a step, all tokens
    /// targets.
    fn as_measured(size: &'static str, config: &ModelConfig, method: MethodKind) -> Self {
        let rank = if method == MethodKind::Lora { RANK } else { 0 };
        let (tokens, length) = (PACK, PACK as f64);
        let step = Step { method, rank, tokens, length, target_share: 1.0, packs: 1, micro_batch_packs: 1 };
        Self { name: format!("{size} {method}"), size, step, parts: parts(config, &step) }
    }

    /// The batch of the Qwen3.5 recipe, 16 packs, of which so many pass together.
    fn as_trained(&self, config: &ModelConfig, micro_batch_packs: usize, target_share: f64) -> Self {
        let step = Step { packs: 16, micro_batch_packs, target_share, ..self.step };
        let targets = if target_share < 1.0 { ", half of the tokens targets" } else { "" };
        let name = format!("{}, 16 packs a step, {micro_batch_packs} together{targets}", self.name);
        Self { name, parts: parts(config, &step), step, ..*self }
    }

    /// Tokens per second at the floors of all launches, and at the shares that are assumed with gaps between
    /// launches.
    pub fn tokens_per_s(&self, ceilings: Ceilings) -> [f64; 2] {
        let floors: f64 = self.parts.iter().map(|part| part.seconds(ceilings, 1.0, 0.0)).sum();
        let assumed: f64 = self.parts.iter().map(|part| part.seconds(ceilings, part.share, GAP_S)).sum();
        [floors, assumed].map(|seconds| self.step.tokens_of_all() as f64 / seconds)
    }

    /// As a row of `bench --gpu model`; `tests/gpu/README.md` says what its fields mean.
    pub fn row(&self) -> Value {
        let Ceilings { bytes_per_s, flops_per_s } = promised_for();
        let [floors, assumed] = self.tokens_per_s(promised_for());
        let part = |part: &Part| {
            let work: Vec<[f64; 2]> =
                part.launches.iter().map(|launch| [launch.bytes, launch.flops]).collect();
            json!({
                "op": part.op, "measured_as": part.measured_as, "calls": part.calls, "share": part.share, "work": work,
            })
        };
        json!({
            "name": self.name,
            "size": self.size,
            "method": self.step.method.to_string(),
            "tokens": self.step.tokens_of_all(),
            "device": PROMISED_FOR,
            "bytes_per_s": bytes_per_s,
            "flops_per_s": flops_per_s,
            "tokens_per_s_at_floors": floors,
            "tokens_per_s_at_shares": assumed,
            "parts": self.parts.iter().map(part).collect::<Vec<_>>(),
        })
    }
}

/// The steps whose speed is predicted, those that `bench --gpu steps` measures first for each size and
/// method.
pub fn predictions() -> Vec<Predicted> {
    let mut predictions = Vec::new();
    let all = shapes();
    for wanted in ["2B", "0.8B"] {
        let (size, config) = all.iter().find(|(size, _)| *size == wanted).expect("it is in the catalog");
        for method in [MethodKind::Lora, MethodKind::Full] {
            let measured = Predicted::as_measured(size, config, method);
            let together: &[usize] = if method == MethodKind::Full { &[1, 4] } else { &[1] };
            let trained: Vec<_> = together
                .iter()
                .flat_map(|packs| [1.0, 0.5].map(|share| measured.as_trained(config, *packs, share)))
                .collect();
            predictions.push(measured);
            // Nothing is promised for the smaller size.
            predictions.extend(trained.into_iter().filter(|_| wanted == "2B"));
        }
    }
    predictions
}

#[cfg(test)]
mod tests {
    use sparktune_plan::cost::{Treatment, Work as Counted};

    use super::*;

    fn named(name: &str) -> Predicted {
        predictions().into_iter().find(|step| step.name == name).expect("is predicted")
    }

    #[test]
    fn flops_are_those_the_plan_counts_and_what_the_backward_kernels_do_twice() {
        for (size, config) in shapes() {
            for method in [MethodKind::Lora, MethodKind::Full] {
                let step = Predicted::as_measured(size, &config, method).step;
                let how = Treatment {
                    method,
                    rank: step.rank as u32,
                    recompute: false,
                    target_share: 1.0,
                    context: step.length,
                };
                let plan = Counted::from_config(&config).training_flops(&how) * PACK as f64;
                let of_part = |part: &Part| part.calls as f64 * work::flops(&part.launches);
                let here: f64 = parts(&config, &step).iter().map(of_part).sum();
                // Attention's backward forms eight products for five: most in the smallest model.
                assert!((0.0..0.06).contains(&(here / plan - 1.0)), "{size} {method}: {here:e} and {plan:e}");
            }
        }
    }

    /// What the floors allow on GB10, and what is left of it: the figures of NOTES.md, "A step, predicted".
    #[test]
    fn the_promised_speeds_of_the_2b_are_within_the_floors_and_say_what_they_ask_of_the_kernels() {
        let of = |name: &str| named(name).tokens_per_s(promised_for()).map(|speed| speed.round() as u32);
        let lora = of("2B lora, 16 packs a step, 1 together");
        let half = of("2B lora, 16 packs a step, 1 together, half of the tokens targets");
        assert!(lora[0] >= 6300 && half[0] >= 6300, "{lora:?} {half:?}");
        // With all tokens targets the kernels would have to reach 94 % of their floors, which is not assumed.
        assert!(lora[1] < 6300, "{lora:?}");
        let full = of("2B full, 16 packs a step, 4 together");
        let half = of("2B full, 16 packs a step, 4 together, half of the tokens targets");
        assert!(full[0] >= 5000 && half[0] >= 5000 && half[1] >= 5000, "{full:?} {half:?}");
        // AdamW moves 64 GB a step: with a single pack to share it the floors themselves are below what is
        // promised.
        assert!(of("2B full")[0] < 5000);
    }

    #[test]
    fn linears_that_read_the_same_input_are_one_group() {
        let (_, config) = shapes().into_iter().find(|(size, _)| *size == "2B").unwrap();
        let groups = |layer: &LayerSpec| -> Vec<(usize, Vec<usize>)> {
            layer.input_groups().iter().map(|group| (group[0].input, outputs_of(group))).collect()
        };
        let [(linear, 18), (full, 6)] = config.layer_kinds()[..] else { panic!("two kinds of layer") };
        let linear = groups(linear);
        assert_eq!(linear[0], (2048, vec![6144, 2048, 16, 16]));
        assert_eq!(linear[1..], [(2048, vec![2048]), (2048, vec![6144, 6144]), (6144, vec![2048])]);
        assert_eq!(groups(full)[..2], [(2048, vec![4096, 512, 512]), (2048, vec![2048])]);
    }

    #[test]
    fn a_row_holds_what_its_sum_is_made_of() {
        let row = named("2B lora").row();
        let ceilings = promised_for();
        let number = |value: &Value| value.as_f64().expect("a number");
        let seconds: f64 = row["parts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|part| {
                let work = part["work"].as_array().unwrap();
                let floors = work.iter().map(|of| ceilings.floor_s(number(&of[0]), number(&of[1])));
                number(&part["calls"]) * floors.sum::<f64>()
            })
            .sum();
        let found = number(&row["tokens"]) / seconds;
        assert!((found / number(&row["tokens_per_s_at_floors"]) - 1.0).abs() < 1e-9, "{row}");
    }
}
