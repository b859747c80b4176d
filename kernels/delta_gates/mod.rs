//! The gates of the delta rule: the log decay of its state, `g = -exp(A_log) · softplus(a + dt_bias)`, and
//! the strength of a write, `beta = sigmoid(b)` (SPEC.md 2.4 step 6).

#[cfg(feature = "cuda")]
mod cuda;

use burn::tensor::{Tensor, activation};
use burn_flex::FlexTensor;

use crate::cpu::{dims, fill_rows, slice, sum_rows, tensor};
use crate::{Op, apply_all};

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct DeltaGates;

/// `g`, never positive, and `beta`, both `[T, Nv]` f32, from `a` and `b [T, Nv]`, `a_log` and `dt_bias [1,
/// Nv]`.
pub fn delta_gates(a: Tensor<2>, b: Tensor<2>, a_log: Tensor<2>, dt_bias: Tensor<2>) -> [Tensor<2>; 2] {
    apply_all(DeltaGates, [a, b, a_log, dt_bias])
}

/// `ln(1 + eˣ)` without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

impl Op<4, 2> for DeltaGates {
    const F32_RESULT: bool = true;

    fn reference(&self, [a, b, a_log, dt_bias]: [Tensor<2>; 4]) -> [Tensor<2>; 2] {
        [(activation::softplus(a + dt_bias, 1.0) * a_log.exp()).neg(), activation::sigmoid(b)]
    }

    fn forward(
        &self,
        [a, b, a_log, dt_bias]: [FlexTensor; 4],
        wanted: [bool; 4],
    ) -> ([FlexTensor; 2], Vec<FlexTensor>) {
        let (rows, heads) = dims(&a);
        let (xs, log, bias) = (slice(&a), slice(&a_log), slice(&dt_bias));
        let g = fill_rows(rows, heads, |row, chunk| {
            for (out, x) in chunk.chunks_exact_mut(heads).zip(xs[row * heads..].chunks_exact(heads)) {
                for h in 0..heads {
                    out[h] = -log[h].exp() * softplus(x[h] + bias[h]);
                }
            }
        });
        let bs = slice(&b);
        let beta = fill_rows(rows, heads, |row, chunk| {
            chunk.iter_mut().zip(&bs[row * heads..]).for_each(|(out, b)| *out = sigmoid(*b));
        });
        let beta = tensor(beta, rows);
        let saved = if wanted.contains(&true) { vec![a, beta.clone(), a_log, dt_bias] } else { Vec::new() };
        ([tensor(g, rows), beta], saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        [d_g, d_beta]: [FlexTensor; 2],
        _: [bool; 4],
    ) -> [Option<FlexTensor>; 4] {
        let (rows, heads) = dims(&d_g);
        let [xs, betas, log, bias] = [0, 1, 2, 3].map(|i| slice(&saved[i]));
        let (dg, d_beta) = (slice(&d_g), slice(&d_beta));
        let d_a = fill_rows(rows, heads, |row, chunk| {
            for (i, out) in chunk.chunks_exact_mut(heads).enumerate() {
                let at = (row + i) * heads;
                for h in 0..heads {
                    out[h] = -dg[at + h] * log[h].exp() * sigmoid(xs[at + h] + bias[h]);
                }
            }
        });
        let d_b = fill_rows(rows, heads, |row, chunk| {
            for (i, out) in chunk.iter_mut().enumerate() {
                let beta = betas[row * heads + i];
                *out = d_beta[row * heads + i] * beta * (1.0 - beta);
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
        [(d_a, rows), (d_b, rows), (d_log, 1), (d_bias, 1)].map(|(numbers, rows)| Some(tensor(numbers, rows)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};

    #[test]
    fn values_and_gradients_agree_with_the_reference_on_devices() {
        for (rows, heads) in [(1, 5), (17, 5), (130, 5), (33, 4)] {
            let [a, b] = [1, 2].map(|seed| random(seed, rows, heads));
            agrees_with_reference(DeltaGates, [a, b, random(3, 1, heads), random(4, 1, heads)], 1e-5);
        }
    }

    #[test]
    fn extreme_inputs_neither_overflow_nor_turn_into_nan() {
        assert_eq!(softplus(200.0), 200.0);
        assert_eq!(softplus(-200.0), 0.0);
        assert_eq!([sigmoid(200.0), sigmoid(-200.0)], [1.0, 0.0]);
    }
}
