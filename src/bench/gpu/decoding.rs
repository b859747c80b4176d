//! The ops of a decoding step, one token of one example: their time beside that of the bytes they move.

use burn::tensor::DType::{self, BF16, F32};
use burn::tensor::{Tensor, activation};
use sparktune_kernels::gated_delta_rule::{Dims, continue_delta_rule};
use sparktune_kernels::largest::{MOST, largest};
use sparktune_kernels::linear::by_row::linears_by_row;
use sparktune_kernels::lora_linear::{Adapted, Adapter};
use sparktune_kernels::measuring::{distance, into_tensor, primitive as on_device};
use sparktune_kernels::packed_attention::cache::KeyValueCache;
use sparktune_kernels::packed_attention::{self, CachedAttention};
use sparktune_kernels::work::{Launch, decoding};

use super::cases::Shape;
use super::meter::{Measured, Meter};
use super::timed::{Case, PACE, random, scaled, to_host};

/// The allowed distance of a result in bf16 from that of the CPU on the same bf16 numbers.
const TOLERANCE: f64 = 1e-2;

/// Numbers of this precision, in f32 on the CPU, or on the device.
fn put(meter: Option<&Meter>, x: Tensor<2>, dtype: DType) -> Tensor<2> {
    let rounded = x.cast(dtype).cast(F32);
    meter.map_or(rounded.clone(), |meter| into_tensor(meter.upload(rounded, dtype)))
}

/// A case that compares the result of `step` on the device with that on the CPU, and times it. `inputs` makes
/// its inputs, on the CPU or, with a meter, on the device: there so many times that none is in the L2 when
/// its turn comes again.
fn case<Inputs>(
    name: &'static str,
    shape: String,
    work: Vec<Launch>,
    inputs: impl Fn(Option<&Meter>) -> Inputs + 'static,
    step: impl Fn(&Inputs) -> Tensor<2> + 'static,
) -> Case {
    let words = shape.clone();
    Case::new(name, words, move |meter| {
        let bytes = work.iter().map(|launch| launch.bytes).sum();
        let places: Vec<_> = (0..meter.places(bytes)).map(|_| inputs(Some(meter))).collect();
        let error = distance(&to_host(on_device(step(&places[0]))), &step(&inputs(None)));
        vec![Measured {
            name: name.into(),
            shape: shape.clone(),
            error: f64::from(error),
            worst: None,
            tolerance: TOLERANCE,
            seconds: Some(meter.seconds(PACE, |call| drop(step(&places[call % places.len()])))),
            bytes,
            flops: 0.0,
            work: work.clone(),
            note: String::new(),
        }]
    })
}

/// The choice of the largest of a token's logits, until they are on the host. Its error is the number of
/// tokens that are not those of a sort.
fn largest_logits(vocabulary: usize) -> Case {
    let (name, shape) = ("largest logits", format!("1×{vocabulary}"));
    Case::new(name, shape.clone(), move |meter| {
        let work = decoding::largest_logits(1, vocabulary);
        let bytes = work.iter().map(|launch| launch.bytes).sum();
        let logits = random(1, 1, vocabulary);
        let places: Vec<_> =
            (0..meter.places(bytes)).map(|_| put(Some(meter), logits.clone(), F32)).collect();
        let numbers: Vec<f32> = logits.into_data().try_to_vec().expect("random numbers are f32");
        let mut sorted: Vec<u32> = (0..vocabulary as u32).collect();
        sorted.sort_by(|a, b| numbers[*b as usize].total_cmp(&numbers[*a as usize]));
        let chosen = largest(&places[0]).expect("these logits are on a device").remove(0);
        let wrong = chosen.iter().zip(&sorted).filter(|((token, _), sorted)| token != *sorted).count();
        let missing = MOST.min(vocabulary) - chosen.len();
        vec![Measured {
            name: name.into(),
            shape: shape.clone(),
            error: (wrong + missing) as f64,
            worst: None,
            tolerance: 0.0,
            seconds: Some(meter.seconds(PACE, |call| drop(largest(&places[call % places.len()])))),
            bytes,
            flops: 0.0,
            work,
            note: String::new(),
        }]
    })
}

/// A linear layer with an adapter, a step of the delta rule, one of attention over as many tokens as a row of
/// the shape has, and the choice of the largest logits.
pub(super) fn cases(shape: Shape) -> Vec<Case> {
    let Shape { tokens, hidden_size: width, intermediate_size: out, rank, .. } = shape;
    let linear = move |meter: Option<&Meter>| {
        [
            random(1, 1, width),
            scaled(0.02, 2, out, width),
            scaled(0.02, 3, rank, width),
            scaled(0.02, 4, out, rank),
        ]
        .map(|x| put(meter, x, BF16))
    };
    let apply = |[x, weight, a, b]: &[Tensor<2>; 4]| {
        let [weight, a, b] = [weight, a, b].map(Clone::clone);
        let adapter = Some(Adapter { a: a.into(), b: b.into(), mask: None });
        linears_by_row(x.clone(), vec![Adapted { weight, adapter }], 2.0).remove(0)
    };
    let (key_heads, value_heads, d) =
        (shape.linear_num_key_heads, shape.linear_num_value_heads, shape.linear_head_dim);
    let rule = move |meter: Option<&Meter>| {
        let qkv = random(1, 1, (2 * key_heads + value_heads) * d);
        let decay = random(2, 1, value_heads).abs().mul_scalar(-0.1);
        let strength = activation::sigmoid(random(3, 1, value_heads));
        let f32s = [decay, strength, random(4, value_heads * d, d)].map(|x| put(meter, x, F32));
        (put(meter, qkv, BF16), f32s)
    };
    let dims = Dims { key_heads, value_heads, key_dim: d, value_dim: d };
    let steps = move |(qkv, f32s): &(Tensor<2>, [Tensor<2>; 3])| {
        let [g, beta, state] = f32s.clone();
        continue_delta_rule(dims, qkv.clone(), g, beta, state).0
    };
    let (heads, kv_heads, head_dim) = (shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim);
    let attention = move |meter: Option<&Meter>| {
        let rows = |seed, count, heads| put(meter, random(seed, count, heads * head_dim), BF16);
        let mut cache = KeyValueCache::default();
        cache.append(rows(2, tokens, kv_heads), rows(3, tokens, kv_heads));
        (rows(1, 1, heads), cache)
    };
    let dims = packed_attention::Dims { heads, kv_heads, head_dim };
    let op = CachedAttention { dims, scale: 1.0 / (head_dim as f32).sqrt(), sliding_window: None };
    let attend = move |(q, cache): &(Tensor<2>, KeyValueCache)| cache.attend_by_row(op, q.clone());
    // Appending is not timed, so it does not count.
    let attended = decoding::cached_attention(1, tokens, heads, kv_heads, head_dim).split_off(1);
    vec![
        case(
            "linear by row",
            format!("1×{out}×{width}, rank {rank}"),
            decoding::linear_by_row(1, width, out, rank),
            linear,
            apply,
        ),
        case(
            "delta_rule step",
            format!("1, {key_heads}/{value_heads}×{d}"),
            vec![decoding::delta_rule_steps(1, key_heads, value_heads, d)],
            rule,
            steps,
        ),
        case(
            "attention step",
            format!("1 of {tokens}, {heads}/{kv_heads}×{head_dim}"),
            attended,
            attention,
            attend,
        ),
        largest_logits(shape.vocab_size),
    ]
}
