//! Every device op at the sizes of a model, the ones that take most of a training step first.
//!
//! Enters: a [`Shape`]. Leaves: the cases to measure, each with the op's inputs and what it needs at least
//! (bytes, FLOPs, launches). How a case is compared and timed is in `timed`. This file must not choose a
//! device: a meter comes with each measurement.

use std::collections::HashSet;

use burn::tensor::DType::{BF16, F32};
use burn::tensor::{Tensor, activation};
use sparktune_kernels::Table;
use sparktune_kernels::adamw::{AdamW, Clip, Moments, Weights, accumulate, zeros_like};
use sparktune_kernels::causal_conv1d_silu::CausalConv1dSilu;
use sparktune_kernels::delta_gates::DeltaGates;
use sparktune_kernels::dropout::Dropout;
use sparktune_kernels::embedding::Embedding;
use sparktune_kernels::gated_delta_rule::{self, GatedDeltaRule};
use sparktune_kernels::gated_rms_norm::GatedRmsNorm;
use sparktune_kernels::gelu_mul::GeluMul;
use sparktune_kernels::linear::Linears;
use sparktune_kernels::linear_cross_entropy::{LinearCrossEntropy, Targets};
use sparktune_kernels::lora_linear::LoraLinears;
use sparktune_kernels::measuring::{distance, into_tensor, primitive as on_device};
use sparktune_kernels::norm_rope::NormRope;
use sparktune_kernels::packed_attention::{self, PackedAttention};
use sparktune_kernels::rms_norm::RmsNorm;
use sparktune_kernels::rope::{Rope, RopeTable};
use sparktune_kernels::seed_gradient::SeedGradient;
use sparktune_kernels::sigmoid_gate::SigmoidGate;
use sparktune_kernels::silu_mul::SiluMul;
use sparktune_kernels::work::{self, Launch, Work};

use super::meter::{Measured, Meter};
use super::timed::{Case, Kind, PACE, Timed, random, scaled, to_host, usual};

/// The largest allowed distance of results whose operands were rounded to e4m3.
const FP8: f64 = 6e-2;

/// Sizes of a model and of a row, by their Hugging Face names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) tokens: usize,
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) num_attention_heads: usize,
    pub(super) num_key_value_heads: usize,
    pub(super) head_dim: usize,
    pub(super) rotary_dim: usize,
    pub(super) linear_num_key_heads: usize,
    pub(super) linear_num_value_heads: usize,
    pub(super) linear_head_dim: usize,
    pub(super) linear_conv_kernel_dim: usize,
    pub(super) rank: usize,
}

/// Ids spread over the vocabulary.
fn ids(count: usize, vocabulary: usize) -> Table {
    (0..count).map(|t| ((t * t * 31 + t * 7919 + 5) % vocabulary) as u32).collect()
}

fn positions(borders: &[u32]) -> Vec<u32> {
    borders.windows(2).flat_map(|border| 0..border[1] - border[0]).collect()
}

/// All ops at a shape, in the order in which they are to be measured.
pub(super) fn cases(shape: Shape) -> Vec<Case> {
    let mut cases = mixers(shape);
    cases.extend(linears(shape));
    cases.extend(heads(shape));
    cases.extend(norms_and_gates(shape));
    cases.extend(optimizer(shape));
    cases
}

/// Gated delta rule and attention.
fn mixers(shape: Shape) -> Vec<Case> {
    let Shape { tokens, num_attention_heads, num_key_value_heads, head_dim, .. } = shape;
    let (key_heads, value_heads, d) =
        (shape.linear_num_key_heads, shape.linear_num_value_heads, shape.linear_head_dim);
    let dims = gated_delta_rule::Dims { key_heads, value_heads, key_dim: d, value_dim: d };
    // The same count as in src/plan/cost.rs.
    let flops = tokens as f64 * value_heads as f64 * (64.0 * 10.0 * d as f64 + 6.0 * (d * d) as f64);
    let rule = Timed {
        kind: Kind::Usual,
        tokens,
        dtypes: [BF16, F32, F32],
        wanted: [true; 3],
        useful_flops: Some([flops, 2.6 * flops]),
        work: work::gated_delta_rule(tokens, key_heads, value_heads, d),
        make: Box::new(move |borders| {
            let t = borders[borders.len() - 1] as usize;
            let qkv = random(1, t, (2 * key_heads + value_heads) * d);
            let decay = random(2, t, value_heads).abs().mul_scalar(-0.1);
            let strength = activation::sigmoid(random(3, t, value_heads));
            (GatedDeltaRule { dims, cu_seqlens: borders.into() }, [qkv, decay, strength])
        }),
    };
    let dims = packed_attention::Dims { heads: num_attention_heads, kv_heads: num_key_value_heads, head_dim };
    let flops = 2.0 * (num_attention_heads * head_dim) as f64 * (tokens as f64).powi(2);
    let attention = Timed {
        kind: Kind::Usual,
        tokens,
        dtypes: [BF16; 3],
        wanted: [true; 3],
        useful_flops: Some([flops, 2.5 * flops]),
        work: work::packed_attention(
            tokens,
            tokens as f64,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
        ),
        make: Box::new(move |borders| {
            let t = borders[borders.len() - 1] as usize;
            let scale = 1.0 / (head_dim as f32).sqrt();
            let op = PackedAttention { dims, scale, cu_seqlens: borders.into(), sliding_window: None };
            let input = |seed, heads: usize| random(seed, t, heads * head_dim);
            (
                op,
                [input(1, num_attention_heads), input(2, num_key_value_heads), input(3, num_key_value_heads)],
            )
        }),
    };
    let words = format!("{tokens}, {num_attention_heads}/{num_key_value_heads}×{head_dim}, one document");
    vec![
        rule.case("gated_delta_rule", format!("{tokens}, {key_heads}/{value_heads}×{d}, one document")),
        attention.case("packed_attention", words),
    ]
}

/// The widest linear, with an adapter, with one that has dropout and without, and the same with operands
/// rounded to e4m3. The latter are
/// compared with the floor of bf16, and include the time of rounding.
fn linears(shape: Shape) -> Vec<Case> {
    let Shape { tokens, hidden_size: width, intermediate_size: out, rank, .. } = shape;
    let with_adapter = {
        let Work { mut forward, mut backward } = work::adapters(tokens, width, &[(out, rank)], false);
        let base = work::lora_linears(tokens, width, &[(out, rank)]);
        forward.extend(base.forward);
        backward.extend(base.backward);
        Work { forward, backward }
    };
    let trained = {
        let Work { forward, mut backward } = work::linears(tokens, width, &[out]);
        backward.extend(work::weight_gradients(tokens, width, &[out], false).backward);
        Work { forward, backward }
    };
    let weight = move || scaled(0.02, 2, out, width);
    let with_dropout = {
        let Work { mut forward, mut backward } = work::dropout(tokens, width, 1);
        forward.extend(with_adapter.forward.iter().copied());
        backward.extend(with_adapter.backward.iter().copied());
        Work { forward, backward }
    };
    // A share of a half, so that the factor of the kept numbers is 2 and rounds nothing.
    let mask = Dropout::new(0.5, 7);
    let lora = |fp8: bool, masks: Vec<Dropout>| Timed::<_, 4, 1> {
        kind: Kind::Usual,
        tokens,
        dtypes: [BF16; 4],
        wanted: [true, false, true, true],
        useful_flops: None,
        work: if masks.is_empty() { with_adapter.clone() } else { with_dropout.clone() },
        make: Box::new(move |borders| {
            let t = borders[borders.len() - 1] as usize;
            let (a, b) = (scaled(0.02, 3, rank, width), scaled(0.02, 4, out, rank));
            let op = LoraLinears {
                scale: 2.0,
                adapted: vec![true],
                a_sums: vec![None],
                b_sums: vec![None],
                masks: masks.clone(),
                fp8,
            };
            (op, [random(1, t, width), weight(), a, b])
        }),
    };
    let linear = |fp8: bool| Timed::<_, 2, 1> {
        kind: Kind::Usual,
        tokens,
        dtypes: [BF16; 2],
        wanted: [true; 2],
        useful_flops: None,
        work: trained.clone(),
        make: Box::new(move |borders| {
            let t = borders[borders.len() - 1] as usize;
            (Linears { sums: vec![None], fp8 }, [random(1, t, width), weight()])
        }),
    };
    let words = format!("{tokens}×{out}×{width}");
    let with_rank = format!("{words}, rank {rank}");
    vec![
        lora(false, Vec::new()).case("lora_linear", with_rank.clone()),
        lora(true, Vec::new()).case_within([FP8, FP8], "lora_linear fp8", with_rank.clone()),
        lora(false, vec![mask]).case("lora_linear dropout", with_rank),
        linear(false).case("linear", words.clone()),
        linear(true).case_within([FP8, FP8], "linear fp8", words),
    ]
}

/// Head with cross-entropy, frozen and trained; the embedding at the other end.
fn heads(shape: Shape) -> Vec<Case> {
    let Shape { tokens, vocab_size, hidden_size, .. } = shape;
    // So narrow that the CPU can compute every token: then all slabs of the vocabulary and all chunks of rows
    // are compared, of which the CPU's share of a wide head has one.
    const NARROW: usize = 16;
    let head = |hidden_size: usize, is_trained: bool| Timed {
        kind: Kind::Scalar,
        tokens,
        dtypes: [BF16; 2],
        wanted: [true, is_trained],
        useful_flops: None,
        work: work::head([tokens; 2], hidden_size, vocab_size, is_trained, false),
        make: Box::new(move |borders| {
            let t = borders[borders.len() - 1] as usize;
            let targets = Targets { rows: (0..t as u32).collect(), tokens: ids(t, vocab_size) };
            let weight = scaled(0.02, 2, vocab_size, hidden_size);
            let op = LinearCrossEntropy { targets, scale: 1.0 / t as f32, sum: None };
            (op, [random(1, t, hidden_size), weight])
        }),
    };
    let distinct = ids(tokens, vocab_size).iter().collect::<HashSet<_>>().len();
    let embedding = Timed {
        kind: Kind::Gather,
        tokens,
        dtypes: [BF16],
        wanted: [true],
        useful_flops: None,
        work: work::embedding(tokens, hidden_size, distinct, true),
        make: Box::new(move |borders| {
            let input_ids = ids(borders[borders.len() - 1] as usize, vocab_size);
            (Embedding { input_ids, sum: None }, [random(1, vocab_size, hidden_size)])
        }),
    };
    let words = format!("{tokens}×{vocab_size}×{hidden_size}");
    let narrow = format!("{tokens}×{vocab_size}×{NARROW}");
    vec![
        head(hidden_size, false).case("linear_cross_entropy", words.clone()),
        head(hidden_size, true).case("linear_cross_entropy trained", words.clone()),
        head(NARROW, false).case_whole("linear_cross_entropy narrow", narrow.clone()),
        head(NARROW, true).case_whole("linear_cross_entropy narrow trained", narrow),
        embedding.case("embedding", words),
    ]
}

/// Launches that move bytes and compute little.
fn norms_and_gates(shape: Shape) -> Vec<Case> {
    let Shape {
        tokens,
        hidden_size,
        intermediate_size,
        num_attention_heads: heads,
        head_dim,
        rotary_dim,
        ..
    } = shape;
    let (value_heads, d) = (shape.linear_num_value_heads, shape.linear_head_dim);
    let channels = (2 * shape.linear_num_key_heads + value_heads) * d;
    let taps = shape.linear_conv_kernel_dim;
    let rope = move |borders: &[u32]| {
        let frequencies: Vec<f32> = (0..rotary_dim / 2).map(|j| 0.9f32.powi(j as i32)).collect();
        Rope { table: RopeTable::new(&positions(borders), &frequencies), head_dim }
    };
    let length = |borders: &[u32]| borders[borders.len() - 1] as usize;
    vec![
        usual(tokens, [BF16; 2], work::silu_mul(tokens, intermediate_size), move |b| {
            (SiluMul, [1, 2].map(|seed| random(seed, length(b), intermediate_size)))
        })
        .case("silu_mul", format!("{tokens}×{intermediate_size}")),
        usual(tokens, [BF16; 2], work::gelu_mul(tokens, intermediate_size), move |b| {
            (GeluMul, [1, 2].map(|seed| random(seed, length(b), intermediate_size)))
        })
        .case("gelu_mul", format!("{tokens}×{intermediate_size}")),
        usual(tokens, [BF16, F32], work::rms_norm(tokens, hidden_size), move |b| {
            let op = RmsNorm::new(hidden_size, 1e-6, true);
            (op, [random(1, length(b), hidden_size), random(2, 1, hidden_size)])
        })
        .case("rms_norm", format!("{tokens}×{hidden_size}")),
        usual(tokens, [BF16, BF16], work::causal_conv1d_silu(tokens, channels), move |b| {
            let op = CausalConv1dSilu { position_ids: positions(b).into() };
            (op, [random(1, length(b), channels), random(2, channels, taps)])
        })
        .case("causal_conv1d_silu", format!("{tokens}×{channels}, {taps} taps")),
        usual(tokens, [BF16, BF16, F32], work::gated_rms_norm(tokens, value_heads * d), move |b| {
            let [x, z] = [1, 2].map(|seed| random(seed, length(b), value_heads * d));
            (GatedRmsNorm { eps: 1e-6 }, [x, z, random(3, 1, d)])
        })
        .case("gated_rms_norm", format!("{tokens}, {value_heads}×{d}")),
        usual(tokens, [BF16, F32], work::norm_rope(tokens, heads * head_dim, true), move |b| {
            let op = NormRope { norm: RmsNorm::new(2 * head_dim, 1e-6, true), rope: rope(b) };
            (op, [random(1, length(b), heads * 2 * head_dim), random(2, 1, head_dim)])
        })
        .case("norm_rope", format!("{tokens}, {heads}×{head_dim} of twice that")),
        usual(tokens, [BF16; 2], work::sigmoid_gate(tokens, heads * head_dim), move |b| {
            let attention = random(1, length(b), heads * head_dim);
            (SigmoidGate { head_dim }, [attention, random(2, length(b), heads * 2 * head_dim)])
        })
        .case("sigmoid_gate", format!("{tokens}, {heads}×{head_dim}")),
        usual(tokens, [BF16], work::rope(tokens, heads * head_dim), move |b| {
            (rope(b), [random(1, length(b), heads * head_dim)])
        })
        .case("rope", format!("{tokens}, {heads}×{head_dim}")),
        usual(tokens, [BF16, BF16, F32, F32], work::delta_gates(tokens, value_heads), move |b| {
            let of_tokens = |seed| random(seed, length(b), value_heads);
            let vector = |seed| random(seed, 1, value_heads);
            (DeltaGates, [of_tokens(1), of_tokens(2), vector(3), vector(4)])
        })
        .case("delta_gates", format!("{tokens}×{value_heads}")),
        Timed {
            kind: Kind::Scalar,
            wanted: [true, false],
            ..usual(tokens, [BF16; 2], work::seed_gradient(tokens, hidden_size), move |b| {
                (SeedGradient, [1, 2].map(|seed| random(seed, length(b), hidden_size)))
            })
        }
        .case("seed_gradient", format!("{tokens}×{hidden_size}")),
    ]
}

/// The ops after the backward pass, on the weights of one linear.
fn optimizer(shape: Shape) -> Vec<Case> {
    let Shape { hidden_size, intermediate_size, .. } = shape;
    let size = [intermediate_size, hidden_size];
    let words = format!("{intermediate_size}×{hidden_size}");
    let row = move |name: &str, error: f32, seconds, work: fn(f64) -> Launch| Measured {
        name: name.into(),
        shape: format!("{}×{}", size[0], size[1]),
        error: f64::from(error),
        worst: None,
        tolerance: 1e-5,
        seconds: Some(seconds),
        bytes: work((size[0] * size[1]) as f64).bytes,
        flops: 0.0,
        work: vec![work((size[0] * size[1]) as f64)],
        note: String::new(),
    };
    let up = move |meter: &Meter, seed| into_tensor(meter.upload(random(seed, size[0], size[1]), F32));
    let host = |tensor: Tensor<2>| to_host(on_device(tensor));
    let adamw = move |meter: &Meter| {
        let settings =
            AdamW { learning_rate: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.01, step: 1 };
        let step = |master: Tensor<2>, narrow: Option<Tensor<2>>, gradient: Tensor<2>| {
            let clip = Clip::new(&[&gradient], 1.0);
            let moments: Moments = (zeros_like(&gradient), zeros_like(&gradient));
            settings.update(Weights { master, narrow }, moments, gradient, &clip)
        };
        let gradient = up(meter, 2);
        let [expected_master, expected_gradient] = [1, 2].map(|seed| random(seed, size[0], size[1]));
        let (expected, _) = step(expected_master, None, expected_gradient);
        let narrow = into_tensor(meter.upload(random(1, size[0], size[1]), BF16));
        let (weights, moments) = step(up(meter, 1), Some(narrow), gradient.clone());
        let error = distance(&host(weights.master.clone()), &expected.master);

        let clip = Clip::new(&[&gradient], 1.0);
        let norm_error = (clip.norm() / Clip::new(&[&random(2, size[0], size[1])], 1.0).norm() - 1.0).abs();
        let mut state = Some((weights, moments));
        let update_s = meter.seconds(PACE, |_| {
            let (weights, moments) = state.take().expect("is put back each time");
            state = Some(settings.update(weights, moments, gradient.clone(), &clip));
        });
        let clip_s = meter.seconds(PACE, |_| drop(Clip::new(&[&gradient], 1.0)));
        vec![
            row("adamw", error, update_s, work::adamw),
            row("adamw clip", norm_error as f32, clip_s, work::clip),
        ]
    };
    let accumulated = move |meter: &Meter| {
        let addend = up(meter, 2);
        let mut total = Some(accumulate(up(meter, 1), addend.clone()));
        let expected = accumulate(random(1, size[0], size[1]), random(2, size[0], size[1]));
        let found = host(total.clone().expect("was just made"));
        let error = distance(&found, &expected);
        let seconds = meter.seconds(PACE, |_| {
            total = Some(accumulate(total.take().expect("is put back each time"), addend.clone()));
        });
        vec![row("adamw accumulate", error, seconds, work::accumulate)]
    };
    vec![Case::new("adamw", words.clone(), adamw), Case::new("adamw accumulate", words, accumulated)]
}
