//! The gated delta rule over a packed row: a matrix-valued state per head that decays, is corrected towards
//! each new value and is read by each query; zero at the start of every packed example (SPEC.md 2.4 to 2.6).

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use burn::backend::Flex;
use burn::tensor::{DType, Device, Tensor};
use burn_flex::FlexTensor;
pub use cpu::Dims;
use cpu::{InputGradients, Inputs, OutputGradients};

use crate::cpu::{dims, slice, tensor};
#[cfg(feature = "cuda")]
use crate::op::all_into_tensors;
use crate::op::{joined, on_cpu, primitive};
use crate::{Op, Table, apply};

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct GatedDeltaRule {
    pub dims: Dims,
    pub cu_seqlens: Table,
}

/// `qkv [T, 2·Nk·dk + Nv·dv]` (after convolution, q and k not yet normalised), `g, beta [T, Nv]` → `[T,
/// Nv·dv]`.
///
/// Normalises q and k per head and scales q by `dk^-1/2` itself. `cu_seqlens` are the borders `[0, …, T]`.
pub fn gated_delta_rule(
    dims: Dims,
    qkv: Tensor<2>,
    g: Tensor<2>,
    beta: Tensor<2>,
    cu_seqlens: &Table,
) -> Tensor<2> {
    apply(GatedDeltaRule { dims, cu_seqlens: cu_seqlens.clone() }, [qkv, g, beta])
}

/// Returns the state in front of an example's first token, zeros `[Nv·dk, dv]` in f32: on the device, if its
/// kernels take heads of this width, otherwise on the CPU.
pub fn empty_state(dims: Dims, device: &Device) -> Tensor<2> {
    let shape = [dims.value_heads * dims.key_dim, dims.value_dim];
    #[cfg(feature = "cuda")]
    if cuda::fits(dims) {
        return Tensor::zeros(shape, (device, DType::F32));
    }
    let _ = device;
    Tensor::zeros(shape, &Device::flex())
}

/// Continues one example from `state [Nv·dk, dv]`, which is [`empty_state`] or what this returned. Returns
/// the outputs `[n, Nv·dv]` and the new state; forward only. On a device, what a token gives has the same
/// bits whether the tokens come one by one or together.
pub fn continue_delta_rule(
    dims: Dims,
    qkv: Tensor<2>,
    g: Tensor<2>,
    beta: Tensor<2>,
    state: Tensor<2>,
) -> (Tensor<2>, Tensor<2>) {
    let rows = qkv.dims()[0];
    let (out, mut states) = continue_delta_rules(dims, [qkv, g, beta], vec![(rows, state)], false);
    (out, states.remove(0).remove(0))
}

/// Continues several examples like [`continue_delta_rule`], each by so many of the rows of `qkv`, `g` and
/// `beta` and from a state of its own. Returns the outputs, and for each example its state behind its last
/// row, or with `each` behind each of its rows. Then a row has the same bits whatever else is computed with
/// it; on a device it always has.
pub fn continue_delta_rules(
    dims: Dims,
    [qkv, g, beta]: [Tensor<2>; 3],
    examples: Vec<(usize, Tensor<2>)>,
    each: bool,
) -> (Tensor<2>, Vec<Vec<Tensor<2>>>) {
    #[cfg(feature = "cuda")]
    if examples.iter().all(|(_, state)| !on_cpu(state)) {
        let (counts, states): (Vec<_>, Vec<_>) = examples.into_iter().unzip();
        let states: Vec<_> = states.into_iter().map(crate::cuda::primitive).collect();
        let inputs = [qkv, g, beta].map(crate::cuda::primitive);
        let (out, after) = cuda::steps(dims, inputs, &states, &counts, each);
        return (crate::cuda::into_tensor(out), all_into_tensors(after));
    }
    let (mut outs, mut states, mut first) = (Vec::new(), Vec::new(), 0);
    for (rows, mut state) in examples {
        let count = if each { 1 } else { rows };
        let mut of_example = Vec::new();
        for from in (first..first + rows).step_by(count) {
            let inputs = [&qkv, &g, &beta].map(|x| x.clone().narrow(0, from, count));
            let (out, after) = steps_on_host(dims, inputs, state);
            outs.push(out);
            of_example.push(after.clone());
            state = after;
        }
        first += rows;
        states.push(of_example);
    }
    (joined(outs), states)
}

fn steps_on_host(dims: Dims, [qkv, g, beta]: [Tensor<2>; 3], state: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let ([rows, _], device, dtype) = (qkv.dims(), qkv.device(), qkv.dtype());
    let [qkv, g, beta, state] = [qkv, g, beta, state].map(|x| primitive(on_host(x)));
    let mut out = vec![0.0; rows * dims.value_heads * dims.value_dim];
    let mut after = vec![0.0; slice(&state).len()];
    // Below a chunk the recurrence does less work than the chunked form.
    let step = if rows < 16 { cpu::recurrent } else { cpu::forward };
    let inputs = Inputs {
        dims,
        qkv: slice(&qkv),
        g: slice(&g),
        beta: slice(&beta),
        cu_seqlens: &[0, rows as u32],
        initial_state: Some(slice(&state)),
    };
    step(inputs, &mut out, Some(&mut after));
    let after = tensor(after, dims.value_heads * dims.key_dim);
    let out: Tensor<2> = Tensor::from_primitive::<Flex>(tensor(out, rows));
    (out.cast(dtype).to_device(&device), Tensor::from_primitive::<Flex>(after))
}

fn on_host(tensor: Tensor<2>) -> Tensor<2> {
    if on_cpu(&tensor) { tensor } else { tensor.to_device(&Device::flex()).cast(DType::F32) }
}

/// Computes outputs and final state of one example token by token in plain tensor operations.
fn recurrence(
    dims: Dims,
    qkv: Tensor<2>,
    g: Tensor<2>,
    beta: Tensor<2>,
    state: Tensor<2>,
) -> (Tensor<2>, Tensor<2>) {
    let Dims { key_heads, value_heads, key_dim, value_dim } = dims;
    let (t, keys) = (qkv.dims()[0], key_heads * key_dim);
    let normalised = |x: Tensor<2>| {
        let x = x.reshape([t, key_heads, key_dim]);
        let norm = (x.clone() * x.clone()).sum_dim(2).add_scalar(1e-6).sqrt();
        // Consecutive value heads share a key head.
        let x = (x / norm).reshape([t, key_heads, 1, key_dim]);
        x.repeat_dim(2, value_heads / key_heads).reshape([t, value_heads, key_dim])
    };
    let q = normalised(qkv.clone().narrow(1, 0, keys)).mul_scalar(1.0 / (key_dim as f64).sqrt());
    let k = normalised(qkv.clone().narrow(1, keys, keys));
    let v = qkv.narrow(1, 2 * keys, value_heads * value_dim).reshape([t, value_heads, value_dim]);
    let mut state = state.reshape([value_heads, key_dim, value_dim]);
    let mut outputs = Vec::with_capacity(t);
    for i in 0..t {
        let at = |x: &Tensor<3>| x.clone().narrow(0, i, 1).swap_dims(0, 1);
        let gate = |x: &Tensor<2>| x.clone().narrow(0, i, 1).reshape([value_heads, 1, 1]);
        let (q_i, k_i, v_i) = (at(&q), at(&k), at(&v));
        state = state * gate(&g).exp();
        let error = (v_i - k_i.clone().matmul(state.clone())) * gate(&beta);
        state = state + k_i.swap_dims(1, 2).matmul(error);
        outputs.push(q_i.matmul(state.clone()).reshape([1, value_heads * value_dim]));
    }
    (Tensor::cat(outputs, 0), state.reshape([value_heads * key_dim, value_dim]))
}

impl GatedDeltaRule {
    fn inputs<'a>(&'a self, qkv: &'a FlexTensor, g: &'a FlexTensor, beta: &'a FlexTensor) -> Inputs<'a> {
        Inputs {
            dims: self.dims,
            qkv: slice(qkv),
            g: slice(g),
            beta: slice(beta),
            cu_seqlens: &self.cu_seqlens,
            initial_state: None,
        }
    }
}

impl Op<3> for GatedDeltaRule {
    fn reference(&self, [qkv, g, beta]: [Tensor<2>; 3]) -> [Tensor<2>; 1] {
        let state = [self.dims.value_heads * self.dims.key_dim, self.dims.value_dim];
        let parts = self
            .cu_seqlens
            .windows(2)
            .map(|border| {
                let (from, length) = (border[0] as usize, (border[1] - border[0]) as usize);
                let part = |x: &Tensor<2>| x.clone().narrow(0, from, length);
                let start = Tensor::zeros(state, &qkv.device());
                recurrence(self.dims, part(&qkv), part(&g), part(&beta), start).0
            })
            .collect();
        [Tensor::cat(parts, 0)]
    }

    fn forward(
        &self,
        [qkv, g, beta]: [FlexTensor; 3],
        wanted: [bool; 3],
    ) -> ([FlexTensor; 1], Vec<FlexTensor>) {
        let rows = dims(&qkv).0;
        let mut out = vec![0.0; rows * self.dims.value_heads * self.dims.value_dim];
        cpu::forward(self.inputs(&qkv, &g, &beta), &mut out, None);
        let saved = if wanted.contains(&true) { vec![qkv, g, beta] } else { Vec::new() };
        ([tensor(out, rows)], saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        [d_output]: [FlexTensor; 1],
        _: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let [qkv, g, beta] = &saved[..] else { unreachable!("forward saves three tensors") };
        let rows = dims(qkv).0;
        let [mut d_qkv, mut d_g, mut d_beta] = [qkv, g, beta].map(|x| vec![0.0; slice(x).len()]);
        cpu::backward(
            self.inputs(qkv, g, beta),
            OutputGradients { out: slice(&d_output), final_state: None },
            InputGradients { qkv: &mut d_qkv, g: &mut d_g, beta: &mut d_beta, initial_state: None },
        );
        [d_qkv, d_g, d_beta].map(|gradient| Some(tensor(gradient, rows)))
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::activation;

    use super::*;
    use crate::check::{agrees_with_reference, distance, random};

    fn inputs(dims: Dims, rows: usize) -> [Tensor<2>; 3] {
        let width = 2 * dims.key_heads * dims.key_dim + dims.value_heads * dims.value_dim;
        [
            random(1, rows, width),
            activation::softplus(random(2, rows, dims.value_heads), 1.0).neg(),
            activation::sigmoid(random(3, rows, dims.value_heads)),
        ]
    }

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices_across_borders() {
        for (key_heads, value_heads, key_dim, value_dim) in [(1, 1, 8, 8), (2, 4, 16, 16), (1, 3, 4, 12)] {
            let dims = Dims { key_heads, value_heads, key_dim, value_dim };
            for borders in [&[0, 1][..], &[0, 63], &[0, 65], &[0, 1, 3, 67, 131]] {
                let op = GatedDeltaRule { dims, cu_seqlens: borders.into() };
                agrees_with_reference(op, inputs(dims, borders[borders.len() - 1] as usize), 5e-5);
            }
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn steps_on_device_agree_with_the_cpu_and_have_the_same_bits_one_by_one() {
        let Some(device) = crate::testing::cuda_device() else { return };
        let dims = Dims { key_heads: 2, value_heads: 4, key_dim: 16, value_dim: 16 };
        let [qkv, g, beta] = inputs(dims, 40);
        let qkv = qkv.cast(DType::BF16).cast(DType::F32);
        let expected = gated_delta_rule(dims, qkv.clone(), g.clone(), beta.clone(), &[0, 40].into());
        let here = |x: Tensor<2>| x.to_device(&Device::flex()).cast(DType::F32);
        let mut results = Vec::new();
        for steps in [vec![40], vec![30, 1, 1, 8]] {
            let (mut state, mut parts, mut from) = (empty_state(dims, &device), Vec::new(), 0);
            for n in steps {
                let part = |x: &Tensor<2>| x.clone().narrow(0, from, n).to_device(&device);
                let (out, after) = continue_delta_rule(dims, part(&qkv), part(&g), part(&beta), state);
                assert!(!on_cpu(&after), "the state stays there");
                parts.push(here(out));
                (state, from) = (after, from + n);
            }
            results.push((Tensor::cat(parts, 0), here(state)));
        }
        assert!(distance(&results[0].0, &expected) < 5e-3);
        let [(together, state), (in_parts, their_state)] = &results[..] else { unreachable!("two ways") };
        assert_eq!(together.clone().into_data(), in_parts.clone().into_data());
        assert_eq!(state.clone().into_data(), their_state.clone().into_data());
    }

    #[test]
    fn examples_that_are_continued_together_on_devices_have_the_bits_that_they_have_alone() {
        let dims = Dims { key_heads: 2, value_heads: 4, key_dim: 16, value_dim: 16 };
        let here = |x: Tensor<2>| x.to_device(&Device::flex()).cast(DType::F32).into_data();
        // More than a launch takes.
        let counts = [1, 3, 1, 2, 1, 1, 4, 1, 2, 1];
        for device in crate::check::devices() {
            let all = inputs(dims, counts.iter().sum()).map(|x| x.to_device(&device));
            let state = |i: usize| {
                if i == 0 {
                    empty_state(dims, &device)
                } else {
                    random(9 + i as u64, 4 * 16, 16).to_device(&device)
                }
            };
            let examples = counts.iter().enumerate().map(|(i, count)| (*count, state(i))).collect();
            let (out, states) = continue_delta_rules(dims, all.clone(), examples, true);
            let mut first = 0;
            for (i, (count, states)) in counts.iter().zip(states).enumerate() {
                assert_eq!(states.len(), *count);
                let mut before = state(i);
                for (row, after) in (first..).zip(states) {
                    let [qkv, g, beta] = all.clone().map(|x| x.narrow(0, row, 1));
                    let (alone, next) = continue_delta_rule(dims, qkv, g, beta, before);
                    assert_eq!(here(alone), here(out.clone().narrow(0, row, 1)), "example {i}, row {row}");
                    assert_eq!(here(next.clone()), here(after), "example {i}, row {row}");
                    before = next;
                }
                first += count;
            }
        }
    }

    #[test]
    fn continuing_from_a_state_agrees_with_the_whole_example() {
        let dims = Dims { key_heads: 2, value_heads: 4, key_dim: 16, value_dim: 16 };
        let [qkv, g, beta] = inputs(dims, 90);
        let whole = gated_delta_rule(dims, qkv.clone(), g.clone(), beta.clone(), &[0, 90].into());
        let mut state = Tensor::zeros([4 * 16, 16], &qkv.device());
        let mut parts = Vec::new();
        for (from, n) in [(0, 70), (70, 1), (71, 3), (74, 16)] {
            let part = |x: &Tensor<2>| x.clone().narrow(0, from, n);
            let (out, after) = continue_delta_rule(dims, part(&qkv), part(&g), part(&beta), state);
            parts.push(out);
            state = after;
        }
        assert!(distance(&Tensor::cat(parts, 0), &whole) < 1e-5);
    }
}
