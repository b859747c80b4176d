//! Every device op at the sizes of a model, the ones that take most of a training step first.

use std::collections::HashSet;

use burn::backend::Flex;
use burn::tensor::DType::{BF16, F32};
use burn::tensor::{DType, Device, Tensor, activation};
use sparktune_kernels::adamw::{AdamW, Clip, Moments, Weights, accumulate, zeros_like};
use sparktune_kernels::causal_conv1d_silu::CausalConv1dSilu;
use sparktune_kernels::delta_gates::DeltaGates;
use sparktune_kernels::embedding::Embedding;
use sparktune_kernels::gated_delta_rule::{self, GatedDeltaRule};
use sparktune_kernels::gated_rms_norm::GatedRmsNorm;
use sparktune_kernels::gelu_mul::GeluMul;
use sparktune_kernels::linear::Linears;
use sparktune_kernels::linear_cross_entropy::{LinearCrossEntropy, Targets};
use sparktune_kernels::lora_linear::LoraLinears;
use sparktune_kernels::measuring::{
    CudaTensor, OnCuda, copy, dims, distance, host_primitive as on_host, into_tensor, primitive as on_device,
    random_through,
};
use sparktune_kernels::norm_rope::NormRope;
use sparktune_kernels::packed_attention::{self, PackedAttention};
use sparktune_kernels::rms_norm::RmsNorm;
use sparktune_kernels::rope::{Rope, RopeTable};
use sparktune_kernels::seed_gradient::SeedGradient;
use sparktune_kernels::sigmoid_gate::SigmoidGate;
use sparktune_kernels::silu_mul::SiluMul;
use sparktune_kernels::work::{self, Launch, Work};
use sparktune_kernels::{Op, Table};

use super::meter::{Measured, Meter, Pace, bytes};

/// The largest allowed relative L2 distance of bf16 results (`kernels/NOTES.md`, "Tolerances"): of values,
/// and of gradients.
const VALUE: f64 = 1e-2;
const GRADIENT: f64 = 2e-2;
/// The largest allowed distance of results whose operands were rounded to e4m3.
const FP8: f64 = 6e-2;
/// The FLOPs that one comparison may take on the CPU: an op that takes more is compared with fewer tokens.
const CPU_FLOPS: f64 = 4e10;
/// The duration of measuring each direction of an op.
const PACE: Pace = Pace { queue_s: 0.03, times: 5 };

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

type Measure = Box<dyn FnOnce(&Meter) -> Vec<Measured>>;

/// An op at a shape, still to be measured.
pub(super) struct Case {
    /// The op.
    pub(super) name: &'static str,
    /// At which sizes.
    pub(super) shape: String,
    measure: Measure,
}

impl Case {
    fn new(
        name: &'static str,
        shape: String,
        measure: impl FnOnce(&Meter) -> Vec<Measured> + 'static,
    ) -> Self {
        Self { name, shape, measure: Box::new(measure) }
    }

    /// Compares and times it, forward and backward.
    pub(super) fn measure(self, meter: &Meter) -> Vec<Measured> {
        (self.measure)(meter)
    }
}

/// How the passes of an op move bytes.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Usual,
    /// Reads as many numbers of its input as it writes.
    Gather,
    /// Its result is one number; the gradient is formed in the forward pass.
    Scalar,
}

/// The borders of a pack that is timed: one example, the most work there can be.
fn alone(tokens: usize) -> Vec<u32> {
    vec![0, tokens as u32]
}

/// The borders of a pack that is compared: several examples, one of them a single token.
fn packed(tokens: usize) -> Vec<u32> {
    let mut borders = vec![0, tokens / 5, tokens / 5 + 1, tokens / 2, tokens];
    borders.dedup();
    borders.into_iter().map(|border| border as u32).collect()
}

fn positions(borders: &[u32]) -> Vec<u32> {
    borders.windows(2).flat_map(|border| 0..border[1] - border[0]).collect()
}

/// Makes the op and its inputs, on the CPU, for a pack with these borders.
type Make<O, const N: usize> = Box<dyn Fn(&[u32]) -> (O, [Tensor<2>; N])>;

/// An op of [`Op`], forward and backward.
struct Timed<O, const N: usize, const M: usize> {
    kind: Kind,
    tokens: usize,
    /// The types that the inputs have in training.
    dtypes: [DType; N],
    /// The gradients that are computed.
    wanted: [bool; N],
    /// FLOPs that both passes cannot do without; those of `work` where the kernels do no others.
    useful_flops: Option<[f64; 2]>,
    work: Work,
    make: Make<O, N>,
}

impl<O: Op<N, M>, const N: usize, const M: usize> Timed<O, N, M> {
    /// FLOPs of both passes.
    fn flops(&self) -> [f64; 2] {
        let Work { forward, backward } = &self.work;
        self.useful_flops.unwrap_or([forward, backward].map(|launches| work::flops(launches)))
    }

    /// Returns the number of tokens that the CPU can compute in acceptable time.
    fn compared_tokens(&self) -> usize {
        let share = CPU_FLOPS / self.flops().iter().sum::<f64>().max(CPU_FLOPS);
        let tokens = (share * self.tokens as f64) as usize;
        tokens.clamp(self.tokens.min(64), self.tokens)
    }

    /// Distance of the value and the worst of the gradients from the CPU's.
    fn errors(&self, meter: &Meter, tokens: usize) -> [f64; 2] {
        let (op, inputs) = (self.make)(&packed(tokens));
        let fits = op.fits(inputs.each_ref().map(Tensor::dims));
        assert!(fits, "the kernels do not take these sizes");
        let (values, saved) = Op::forward(&op, inputs.clone().map(on_host), self.wanted);
        let values = values.map(Tensor::from_primitive::<Flex>);
        let (found, found_saved) = OnCuda::forward(&op, self.upload(meter, inputs), self.wanted);
        // NaN counts as the largest error.
        let worse = |worst: f64, error: f64| if error <= worst { worst } else { error };
        let distances = found
            .iter()
            .zip(&values)
            .map(|(found, value)| f64::from(distance(&to_host(found.clone()), value)));
        let value_error = distances.fold(0.0, worse);

        let d_values = values.map(|value| random(99, value.dims()[0], value.dims()[1]));
        let expected = Op::backward(&op, saved, d_values.clone().map(on_host), self.wanted);
        let mut dtypes = found.iter().map(|found| found.dtype);
        let d_found = d_values.map(|d_value| meter.upload(d_value, dtypes.next().expect("a type for each")));
        let gradients = OnCuda::backward(&op, found_saved, d_found, self.wanted);
        let mut worst: f64 = 0.0;
        for (i, (found, expected)) in gradients.into_iter().zip(expected).enumerate() {
            if self.wanted[i] {
                let found = to_host(found.expect("a gradient that was asked for"));
                let expected =
                    Tensor::from_primitive::<Flex>(expected.expect("a gradient that was asked for"));
                worst = worse(worst, f64::from(distance(&found, &expected)));
            }
        }
        [value_error, worst]
    }

    fn upload(&self, meter: &Meter, inputs: [Tensor<2>; N]) -> [CudaTensor; N] {
        let mut dtypes = self.dtypes.into_iter();
        inputs.map(|input| meter.upload(input, dtypes.next().expect("a type for each input")))
    }

    fn measure(self, meter: &Meter, name: &str, shape: String, tolerances: [f64; 2]) -> Vec<Measured> {
        let compared = self.compared_tokens();
        let [value_error, gradient_error] = self.errors(meter, compared);
        meter.clean();

        let (op, inputs) = (self.make)(&alone(self.tokens));
        let inputs = self.upload(meter, inputs);
        let sum = |tensors: &[CudaTensor]| tensors.iter().map(bytes).sum::<f64>();
        let input_bytes = sum(&inputs);
        let places: Vec<[CudaTensor; N]> = (0..meter.places(input_bytes))
            .map(|i| if i == 0 { inputs.clone() } else { inputs.each_ref().map(copy) })
            .collect();
        let place = |turn: usize| &places[turn % places.len()];
        let forward = |turn: usize| OnCuda::forward(&op, place(turn).clone(), self.wanted);
        let (values, saved) = forward(0);
        let value_bytes = sum(&values);
        let forward_s = meter.seconds(PACE, |turn| drop(forward(turn)));

        let d_values = values.map(|value| {
            let (rows, columns) = dims(&value);
            meter.upload(random(98, rows, columns), value.dtype)
        });
        let gradients = OnCuda::backward(&op, saved, d_values.clone(), self.wanted);
        let gradient_bytes = sum(&gradients.into_iter().flatten().collect::<Vec<_>>());
        let (mut forward_bytes, mut backward_bytes) =
            (input_bytes + value_bytes, input_bytes + value_bytes + gradient_bytes);
        let mut backward_s = None;
        match self.kind {
            Kind::Scalar => forward_bytes += gradient_bytes,
            kind => {
                if kind == Kind::Gather {
                    (forward_bytes, backward_bytes) = (2.0 * value_bytes, value_bytes + gradient_bytes);
                }
                let states: Vec<_> =
                    (0..places.len()).map(|turn| (forward(turn).1, d_values.each_ref().map(copy))).collect();
                backward_s = Some(meter.seconds(PACE, |turn| {
                    let (saved, d_values) = &states[turn % states.len()];
                    drop(OnCuda::backward(&op, saved.clone(), d_values.clone(), self.wanted));
                }));
            }
        }
        let note =
            if compared < self.tokens { format!("compared with {compared} tokens") } else { String::new() };
        let [forward_flops, backward_flops] = self.flops();
        let Work { forward: forward_work, backward: backward_work } = self.work;
        let forward = Measured {
            name: name.to_owned(),
            shape: shape.clone(),
            error: value_error,
            tolerance: tolerances[0],
            seconds: Some(forward_s),
            bytes: forward_bytes,
            flops: forward_flops,
            work: forward_work,
            note: note.clone(),
        };
        let in_forward = if backward_s.is_none() { "formed in the forward pass" } else { "" };
        let backward = Measured {
            name: format!("{name} backward"),
            shape,
            error: gradient_error,
            tolerance: tolerances[1],
            seconds: backward_s,
            bytes: backward_bytes,
            flops: backward_flops,
            work: backward_work,
            note: [in_forward, &note]
                .into_iter()
                .filter(|words| !words.is_empty())
                .collect::<Vec<_>>()
                .join("; "),
        };
        vec![forward, backward]
    }

    fn case(self, name: &'static str, shape: String) -> Case
    where
        O: 'static,
    {
        self.case_within([VALUE, GRADIENT], name, shape)
    }

    /// Adds a case whose values and gradients may differ more from the CPU's.
    fn case_within(self, tolerances: [f64; 2], name: &'static str, shape: String) -> Case
    where
        O: 'static,
    {
        let words = shape.clone();
        Case::new(name, shape, move |meter| self.measure(meter, name, words, tolerances))
    }
}

/// Numbers around zero that bf16 has, so that both sides start from the same.
fn random(seed: u64, rows: usize, columns: usize) -> Tensor<2> {
    scaled(1.0, seed, rows, columns)
}

/// The same numbers times `by`, truncated to bf16. Large weights are generated this way, because tensor
/// operations on them would take long.
fn scaled(by: f32, seed: u64, rows: usize, columns: usize) -> Tensor<2> {
    random_through(seed, rows, columns, |x| f32::from_bits((x * by).to_bits() & 0xFFFF_0000))
}

fn to_host(tensor: CudaTensor) -> Tensor<2> {
    Tensor::from_data(into_tensor(tensor).into_data().convert::<f32>(), &Device::flex())
}

/// Ids spread over the vocabulary.
fn ids(count: usize, vocabulary: usize) -> Table {
    (0..count).map(|t| ((t * t * 31 + t * 7919 + 5) % vocabulary) as u32).collect()
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

/// The widest linear, with an adapter and without, and the same with operands rounded to e4m3. The latter are
/// compared with the floor of bf16, and include the time of rounding.
fn linears(shape: Shape) -> Vec<Case> {
    let Shape { tokens, hidden_size: width, intermediate_size: out, rank, .. } = shape;
    let with_adapter = {
        let Work { mut forward, mut backward } = work::adapters(tokens, width, &[out], rank, false);
        let base = work::lora_linears(tokens, width, &[out], rank);
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
    let lora = |fp8: bool| Timed::<_, 4, 1> {
        kind: Kind::Usual,
        tokens,
        dtypes: [BF16; 4],
        wanted: [true, false, true, true],
        useful_flops: None,
        work: with_adapter.clone(),
        make: Box::new(move |borders| {
            let t = borders[borders.len() - 1] as usize;
            let (a, b) = (scaled(0.02, 3, rank, width), scaled(0.02, 4, out, rank));
            let op = LoraLinears { scale: 2.0, a_sums: vec![None], b_sums: vec![None], fp8 };
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
        lora(false).case("lora_linear", with_rank.clone()),
        lora(true).case_within([FP8, FP8], "lora_linear fp8", with_rank),
        linear(false).case("linear", words.clone()),
        linear(true).case_within([FP8, FP8], "linear fp8", words),
    ]
}

/// Head with cross-entropy, frozen and trained; the embedding at the other end.
fn heads(shape: Shape) -> Vec<Case> {
    let Shape { tokens, vocab_size, hidden_size, .. } = shape;
    let head = |is_trained: bool| Timed {
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
    vec![
        head(false).case("linear_cross_entropy", words.clone()),
        head(true).case("linear_cross_entropy trained", words.clone()),
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

fn usual<O: Op<N, M>, const N: usize, const M: usize>(
    tokens: usize,
    dtypes: [DType; N],
    work: Work,
    make: impl Fn(&[u32]) -> (O, [Tensor<2>; N]) + 'static,
) -> Timed<O, N, M> {
    let make = Box::new(make);
    Timed { kind: Kind::Usual, tokens, dtypes, wanted: [true; N], useful_flops: None, work, make }
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
