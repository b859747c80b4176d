//! The decay of the delta rule's state: `g = -exp(A_log) · softplus(a + dt_bias)` (QWEN35_SPEC 2.4 step 6).

#[cfg(feature = "cuda")]
mod cuda;

use crate::cpu::{dims, fill_rows, slice, sum_rows, tensor};
use crate::{Op, apply};
use burn::tensor::{Tensor, activation};
use burn_flex::FlexTensor;

#[derive(Clone, Debug)]
pub(crate) struct DecayGate;

/// Log decay `g [T, Nv]`, never positive, from `a [T, Nv]`, `a_log [1, Nv]` and `dt_bias [1, Nv]`.
pub fn decay_gate(a: Tensor<2>, a_log: Tensor<2>, dt_bias: Tensor<2>) -> Tensor<2> {
    apply(DecayGate, [a, a_log, dt_bias])
}

/// `ln(1 + eˣ)` without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

impl Op<3> for DecayGate {
    const F32_RESULT: bool = true;

    fn reference(&self, [a, a_log, dt_bias]: [Tensor<2>; 3]) -> [Tensor<2>; 1] {
        [(activation::softplus(a + dt_bias, 1.0) * a_log.exp()).neg()]
    }

    fn forward(
        &self,
        [a, a_log, dt_bias]: [FlexTensor; 3],
        wanted: [bool; 3],
    ) -> ([FlexTensor; 1], Vec<FlexTensor>) {
        let (rows, heads) = dims(&a);
        let (xs, log, bias) = (slice(&a), slice(&a_log), slice(&dt_bias));
        let out = fill_rows(rows, heads, |row, chunk| {
            for (out, x) in chunk.chunks_exact_mut(heads).zip(xs[row * heads..].chunks_exact(heads)) {
                for h in 0..heads {
                    out[h] = -log[h].exp() * softplus(x[h] + bias[h]);
                }
            }
        });
        let saved = if wanted.contains(&true) { vec![a, a_log, dt_bias] } else { Vec::new() };
        ([tensor(out, rows)], saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        [d_output]: [FlexTensor; 1],
        _: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let (rows, heads) = dims(&d_output);
        let (xs, log, bias, dg) = (slice(&saved[0]), slice(&saved[1]), slice(&saved[2]), slice(&d_output));
        let d_a = fill_rows(rows, heads, |row, chunk| {
            for (i, out) in chunk.chunks_exact_mut(heads).enumerate() {
                let at = (row + i) * heads;
                for h in 0..heads {
                    out[h] = -dg[at + h] * log[h].exp() * sigmoid(xs[at + h] + bias[h]);
                }
            }
        });
        let d_log = sum_rows(rows, heads, |row, total| {
            for h in 0..heads {
                let at = row * heads + h;
                total[h] -= dg[at] * log[h].exp() * softplus(xs[at] + bias[h]);
            }
        });
        let d_bias = sum_rows(rows, heads, |row, total| {
            for h in 0..heads {
                total[h] += d_a[row * heads + h];
            }
        });
        [Some(tensor(d_a, rows)), Some(tensor(d_log, 1)), Some(tensor(d_bias, 1))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};

    #[test]
    fn value_and_gradients_agree_with_the_reference() {
        for rows in [1, 17, 130] {
            agrees_with_reference(DecayGate, [random(1, rows, 5), random(2, 1, 5), random(3, 1, 5)], 1e-5);
        }
    }

    #[test]
    fn extreme_inputs_neither_overflow_nor_turn_into_nan() {
        assert_eq!(softplus(200.0), 200.0);
        assert_eq!(softplus(-200.0), 0.0);
    }
}
