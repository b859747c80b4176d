//! The work of a training step on a CUDA device, op by op, and its duration if each op reaches a share of its
//! floor (the shortest time that the hardware allows).
//!
//! Enters: a model's config and how it is trained. Leaves: [`Part`]s, whose launches
//! `sparktune_kernels::work` counted, and their serial sum. The family's table defines the linear layers and
//! norms of a layer; the ops of a mixer are listed here in the order of its code. This is arithmetic only; it
//! must not measure anything.

use serde_json::{Value, json};
use sparktune_kernels::work::{self, Ceilings, Launch, Work};
use sparktune_plan::architecture::{Activation, LayerSpec, LinearSpec, MixerSpec, Place, Reads};
use sparktune_plan::cost::PUBLISHED;
use sparktune_plan::products::{PACK, RANK, shapes};
use sparktune_plan::{MethodKind, ModelConfig};

/// The device that speeds are promised for, by its name in the table of published rates.
pub const PROMISED_FOR: &str = "GB10";

/// The assumed shortest gap between two launches in seconds; a guess.
pub const GAP_S: f64 = 2e-6;

/// The parameters of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// The trained parameters: adapters or everything.
    pub method: MethodKind,
    /// The rank of the adapters; 0 for full fine-tuning.
    pub rank: usize,
    /// The number of tokens in a pack.
    pub tokens: usize,
    /// The number of tokens in each example.
    pub length: f64,
    /// The share of the tokens that are targets.
    pub target_share: f64,
    /// The number of packs per optimizer step.
    pub packs: usize,
    /// The number of packs per micro-batch.
    pub micro_batch_packs: usize,
}

impl Step {
    /// Returns the number of tokens in an optimizer step.
    pub fn tokens_of_all(&self) -> usize {
        self.tokens * self.packs
    }
}

/// The calls of one pass of an op with the same sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The name of the op, followed by `backward` for its backward pass.
    pub op: String,
    /// The row of `bench --gpu kernels` whose measured share of the floor applies to this op.
    pub measured_as: String,
    /// The number of calls per optimizer step.
    pub calls: usize,
    /// The launches of one call.
    pub launches: Vec<Launch>,
    /// The assumed share of its floor that the op reaches.
    pub share: f64,
}

impl Part {
    /// Returns the duration of all calls in seconds, if each launch takes its floor divided by `share`, plus
    /// a gap.
    pub fn seconds(&self, ceilings: Ceilings, share: f64, gap_s: f64) -> f64 {
        self.calls as f64 * (ceilings.floors_s(&self.launches) / share + gap_s * self.launches.len() as f64)
    }
}

/// The assumed shares of their floors that ops reach, until a run has measured them. All are guesses with
/// theoretical reasons.
mod share {
    /// Large products, relative to the rate of the vendor's library, which is the ceiling. NOTES.md counts 18
    /// to 27 % of the issue slots and half of the shared memory's rate.
    pub(super) const PRODUCT: f64 = 0.9;
    /// Small products, which wait for memory in few blocks.
    pub(super) const ADAPTER: f64 = 0.8;
    /// Attention; see NOTES.md, "Packed attention".
    pub(super) const ATTENTION: [f64; 2] = [0.75, 0.7];
    /// The delta rule: 32 to 64 blocks take 84 steps, and wait for memory and barriers in each.
    pub(super) const DELTA_RULE: f64 = 0.65;
    /// One pass over large matrices, like a copy.
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

/// Returns the ops of an optimizer step without recompute, in the order of the model.
pub fn parts(config: &ModelConfig, step: &Step) -> Vec<Part> {
    let mut parts = Parts { parts: Vec::new() };
    let micro_batches = step.packs.div_ceil(step.micro_batch_packs);
    let tokens = step.tokens * step.micro_batch_packs.min(step.packs);
    let (hidden, trained) = (config.hidden_size, step.method == MethodKind::Full);
    // The first micro-batch writes the gradient of a matrix; later ones add to it.
    let in_turn = [(1, false), (micro_batches - 1, true)];

    for (layer, layers) in config.layer_kinds() {
        let calls = layers * micro_batches;
        for group in layer.input_groups() {
            let (width, outputs) = (group[0].input, outputs_of(&group));
            // The launch of up also writes `silu(gate) ⊙ up`, and that of the input gradient of the layer
            // behind makes the gradients of gate and up of it.
            let is_up = group[0].reads == Reads::MlpInput && layer.activation == Activation::Silu;
            let is_gated = group[0].reads == Reads::MlpHidden && layer.activation == Activation::Silu;
            if trained {
                let mut work = work::linears(tokens, width, &outputs);
                if is_up {
                    work.forward[1] = work::gated_forward(tokens, outputs[1], width);
                }
                if is_gated {
                    gated(
                        &mut parts,
                        "linear",
                        calls,
                        &mut work,
                        work::gated_backward(tokens, width, outputs[0]),
                    );
                }
                parts.add_as("linear", "linear", calls, work, [share::PRODUCT; 2]);
                for (times, added) in in_turn {
                    let work = work::weight_gradients(tokens, width, &outputs, added);
                    parts.add_as("linear weight", "linear", layers * times, work, [share::PRODUCT; 2]);
                }
            } else {
                let adapted = group.iter().map(|linear| (linear.output, linear.adapter_rank(step.rank)));
                let adapted: Vec<_> = adapted.collect();
                let mut work = work::lora_linears(tokens, width, &adapted);
                if is_up {
                    let (output, rank) = adapted[1];
                    work.forward[1] = work::gated_forward(tokens, output, width + rank);
                }
                if is_gated {
                    let (output, rank) = adapted[0];
                    let backward = work::gated_backward(tokens, width, output + rank);
                    gated(&mut parts, "lora_linear", calls, &mut work, backward);
                }
                parts.add_as("lora_linear", "lora_linear", calls, work, [share::PRODUCT; 2]);
                for (times, added) in in_turn {
                    let work = work::adapters(tokens, width, &adapted, added);
                    parts.add_as("adapter", "lora_linear", layers * times, work, [share::ADAPTER; 2]);
                }
            }
        }
        mixer(&mut parts, layer, calls, tokens, step.length);
        if layer.activation == Activation::GeluTanh {
            let work = work::gelu_mul(tokens, layer.intermediate_size);
            parts.add("gelu_mul", calls, work, share::STREAM);
        }
        // All norms except the model's first one also add the previous result to the residual stream.
        let norms = |places: [Place; 2]| layer.norms().filter(|norm| places.contains(&norm.place)).count();
        let of_sum = work::add_rms_norm(tokens, hidden);
        let before = norms([Place::BeforeMixer, Place::BeforeMlp]) * calls;
        parts.add_as("add_rms_norm", "rms_norm", before, of_sum, [share::STREAM; 2]);
        let after = norms([Place::AfterMixer, Place::AfterMlp]) * calls;
        parts.add("rms_norm", after, work::rms_norm(tokens, hidden), share::STREAM);
    }

    parts.add("rms_norm", micro_batches, work::rms_norm(tokens, hidden), share::STREAM);
    // There are at most as many distinct ids as tokens; this is an upper bound.
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

/// Adds the backward pass of a layer that ends in the gradients of gate and up, in place of that of `work`,
/// measured as an op of this name.
fn gated(parts: &mut Parts, measured_as: &str, calls: usize, work: &mut Work, backward: Launch) {
    work.backward.clear();
    let work = Work { forward: Vec::new(), backward: vec![backward] };
    parts.add_as("gated_linear", measured_as, calls, work, [share::PRODUCT; 2]);
}

/// Returns the output widths of these linear layers.
fn outputs_of(group: &[&LinearSpec]) -> Vec<usize> {
    group.iter().map(|linear| linear.output).collect()
}

/// Adds the ops between the projections of a layer.
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
            // This is the length of an example without a window in which tokens attend to as many tokens.
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
            let of_adapter =
                |linear: &LinearSpec| linear.adapter_rank(step.rank) * (linear.output + linear.input);
            let parameters = linears().map(of_adapter).sum::<usize>();
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
    /// The size, the method, and everything that differs from `bench --gpu steps`.
    pub name: String,
    /// The size of the model.
    pub size: &'static str,
    /// The parameters of the step.
    pub step: Step,
    /// The ops of the step.
    pub parts: Vec<Part>,
}

/// Returns the published rates of [`PROMISED_FOR`].
pub fn promised_for() -> Ceilings {
    let known = PUBLISHED.iter().find(|(name, ..)| *name == PROMISED_FOR);
    let (_, flops_per_s, bytes_per_s) = *known.expect("it is in the table");
    Ceilings { bytes_per_s, flops_per_s }
}

impl Predicted {
    /// Predicts the step that `bench --gpu steps` measures: one pack of a single document per step, with all
    /// tokens as targets.
    fn as_measured(size: &'static str, config: &ModelConfig, method: MethodKind) -> Self {
        let rank = if method == MethodKind::Lora { RANK } else { 0 };
        let (tokens, length) = (PACK, PACK as f64);
        let step = Step { method, rank, tokens, length, target_share: 1.0, packs: 1, micro_batch_packs: 1 };
        Self { name: format!("{size} {method}"), size, step, parts: parts(config, &step) }
    }

    /// Predicts a step with the batch of the Qwen3.5 recipe, 16 packs, with this many per micro-batch.
    fn as_trained(&self, config: &ModelConfig, micro_batch_packs: usize, target_share: f64) -> Self {
        let step = Step { packs: 16, micro_batch_packs, target_share, ..self.step };
        let targets = if target_share < 1.0 { ", half of the tokens targets" } else { "" };
        let name = format!("{}, 16 packs a step, {micro_batch_packs} together{targets}", self.name);
        Self { name, parts: parts(config, &step), step, ..*self }
    }

    /// Returns tokens per second at the floors of all launches, and at the assumed shares with gaps between
    /// launches.
    pub fn tokens_per_s(&self, ceilings: Ceilings) -> [f64; 2] {
        let floors: f64 = self.parts.iter().map(|part| part.seconds(ceilings, 1.0, 0.0)).sum();
        let assumed: f64 = self.parts.iter().map(|part| part.seconds(ceilings, part.share, GAP_S)).sum();
        [floors, assumed].map(|seconds| self.step.tokens_of_all() as f64 / seconds)
    }

    /// Returns the prediction as a row of `bench --gpu model`; `tests/gpu/README.md` describes the fields.
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

/// Returns the predicted steps, which are those that `bench --gpu steps` measures first for each size and
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
            // The smaller size has no published target.
            predictions.extend(trained.into_iter().filter(|_| wanted == "2B"));
        }
    }
    predictions
}

#[cfg(test)]
mod tests {
    use sparktune_plan::TargetModules;
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
                    targets: TargetModules::ALL,
                    recompute: false,
                    target_share: 1.0,
                    context: step.length,
                };
                let plan = Counted::from_config(&config).training_flops(&how) * PACK as f64;
                let of_part = |part: &Part| part.calls as f64 * work::flops(&part.launches);
                let here: f64 = parts(&config, &step).iter().map(of_part).sum();
                // The backward pass of attention computes eight products instead of five, which matters most
                // in the smallest model.
                assert!((0.0..0.06).contains(&(here / plan - 1.0)), "{size} {method}: {here:e} and {plan:e}");
            }
        }
    }

    /// The floors on GB10 and the margin below them, with the figures of NOTES.md, "A step, predicted".
    #[test]
    fn the_promised_speeds_of_the_2b_are_within_the_floors_and_say_what_they_ask_of_the_kernels() {
        let of = |name: &str| named(name).tokens_per_s(promised_for()).map(|speed| speed.round() as u32);
        let lora = of("2B lora, 16 packs a step, 1 together");
        let half = of("2B lora, 16 packs a step, 1 together, half of the tokens targets");
        assert!(lora[0] >= 6300 && half[0] >= 6300, "{lora:?} {half:?}");
        // If all tokens are targets, the kernels have to reach 86 % of their floors, which is not assumed.
        assert!(lora[1] < 6300 && half[1] >= 6300, "{lora:?} {half:?}");
        let full = of("2B full, 16 packs a step, 4 together");
        let half = of("2B full, 16 packs a step, 4 together, half of the tokens targets");
        assert!(full[1] >= 5000 && half[1] >= 5000, "{full:?} {half:?}");
        // AdamW moves 64 GB per step: with only one pack per step, the floors themselves are below the
        // target.
        assert!(of("2B full")[0] < 5000);
    }

    /// The seconds of a token on GB10 in one document of this length, without and with attention.
    fn of_a_token(config: &ModelConfig, method: MethodKind, tokens: usize) -> [f64; 2] {
        let rank = if method == MethodKind::Lora { RANK } else { 0 };
        let length = tokens as f64;
        let step = Step { method, rank, tokens, length, target_share: 1.0, packs: 1, micro_batch_packs: 1 };
        let of = |is_counted: &dyn Fn(&Part) -> bool| {
            let parts = parts(config, &step);
            let counted = parts.iter().filter(|part| is_counted(part));
            counted.map(|part| part.seconds(promised_for(), part.share, GAP_S)).sum::<f64>() / length
        };
        let is_attention = |part: &Part| part.op.starts_with("packed_attention");
        let is_update = |part: &Part| part.op.starts_with("adamw");
        [of(&|part| !is_attention(part) && !is_update(part)), of(&|part| !is_update(part))]
    }

    #[test]
    fn a_token_of_a_long_document_costs_more_by_attention_alone() {
        let (_, config) = shapes().into_iter().find(|(size, _)| *size == "2B").unwrap();
        for method in [MethodKind::Lora, MethodKind::Full] {
            let [usual, long, longest] =
                [5376, 32_768, 131_072].map(|tokens| of_a_token(&config, method, tokens));
            for [rest, _] in [long, longest] {
                assert!((rest / usual[0] - 1.0).abs() < 0.01, "{method}: {rest} s and {} s", usual[0]);
            }
            // Attention reads half of the tokens before, so its share of a token grows with the length.
            let attention = |[rest, all]: [f64; 2]| all - rest;
            let growth = attention(longest) / attention(long);
            assert!((growth / 4.0 - 1.0).abs() < 0.01, "{method}: {growth}");
        }
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
