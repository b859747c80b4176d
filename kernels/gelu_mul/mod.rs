//! `gelu(gate) ⊙ up`, the middle of Gemma's MLP. Both inputs and the result are `[T, I]`.
//!
//! The GELU is the approximation by a hyperbolic tangent that configs call `gelu_pytorch_tanh`:
//! `gelu(x) = x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))`. Because `(1 + tanh u)/2` is `sigmoid(2u)`, it is
//! computed as `x · sigmoid(2u)`.

#[cfg(feature = "cuda")]
mod cuda;

use burn::tensor::{Tensor, activation};
use burn_flex::FlexTensor;

use crate::cpu::{dims, fill_rows, for_rows2, slice, tensor};
use crate::simd::sigmoid;
use crate::{Op, apply};

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct GeluMul;

/// `gelu(gate) ⊙ up` over `[T, I]`.
pub fn gelu_mul(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    apply(GeluMul, [gate, up])
}

/// `2 √(2/π)`
const SLOPE: f32 = 1.595_769_2;
const CUBIC: f32 = 0.044715;

/// `gelu(x) / x`, a number between 0 and 1.
#[inline(always)]
fn share(x: f32) -> f32 {
    sigmoid(SLOPE * (x + CUBIC * x * x * x))
}

impl Op<2> for GeluMul {
    fn reference(&self, [gate, up]: [Tensor<2>; 2]) -> [Tensor<2>; 1] {
        [activation::gelu_approximate(gate) * up]
    }

    fn forward(&self, [gate, up]: [FlexTensor; 2], wanted: [bool; 2]) -> ([FlexTensor; 1], Vec<FlexTensor>) {
        let (rows, width) = dims(&gate);
        let (g, u) = (slice(&gate), slice(&up));
        let out = fill_rows(
            rows,
            width,
            #[inline(always)]
            |row, chunk| {
                let from = row * width;
                let (g, u) = (&g[from..from + chunk.len()], &u[from..from + chunk.len()]);
                for ((out, g), u) in chunk.iter_mut().zip(g).zip(u) {
                    *out = g * share(*g) * u;
                }
            },
        );
        let saved = if wanted.contains(&true) { vec![gate, up] } else { Vec::new() };
        ([tensor(out, rows)], saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        [d_output]: [FlexTensor; 1],
        _: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let (rows, width) = dims(&d_output);
        let (g, u, dy) = (slice(&saved[0]), slice(&saved[1]), slice(&d_output));
        let (mut d_gate, mut d_up) = (vec![0.0; rows * width], vec![0.0; rows * width]);
        for_rows2(
            &mut d_gate,
            width,
            &mut d_up,
            width,
            #[inline(always)]
            |row, d_gate, d_up| {
                let range = row * width..row * width + d_gate.len();
                let (g, u, dy) = (&g[range.clone()], &u[range.clone()], &dy[range]);
                for ((((d_gate, d_up), g), u), dy) in d_gate.iter_mut().zip(d_up).zip(g).zip(u).zip(dy) {
                    let s = share(*g);
                    let slope = SLOPE * (1.0 + 3.0 * CUBIC * g * g);
                    *d_gate = dy * u * s * (1.0 + g * (1.0 - s) * slope);
                    *d_up = dy * g * s;
                }
            },
        );
        [Some(tensor(d_gate, rows)), Some(tensor(d_up, rows))]
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::check::{agrees_with_reference, random};

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices() {
        for rows in [1, 17, 130] {
            agrees_with_reference(GeluMul, [random(1, rows, 70), random(2, rows, 70)], 1e-5);
        }
    }

    #[test]
    fn values_are_those_of_pytorch_and_both_ends_are_finite() {
        // torch.nn.functional.gelu(x, approximate="tanh") in double precision.
        let expected =
            [(-1e4, 0.0), (-1.0, -0.158_808), (0.0, 0.0), (1.0, 0.841_192), (3.0, 2.996_363), (1e4, 1e4)];
        for (x, y) in expected {
            let [x, one] = [x, 1.0].map(|number: f32| Tensor::<2>::from_floats([[number]], &Device::flex()));
            let found: f32 = gelu_mul(x, one).into_scalar();
            assert!((found - y).abs() <= 1e-5 * y.abs().max(1.0), "{found} for {y}");
        }
    }
}
