//! `silu(gate) ⊙ up`, the middle of the MLP. Both inputs and the result are `[T, I]`.

#[cfg(feature = "cuda")]
mod cuda;

use burn::tensor::{Tensor, activation};
use burn_flex::FlexTensor;

use crate::cpu::{dims, fill_rows, for_rows2, slice, tensor};
use crate::simd::sigmoid;
use crate::{Op, apply};

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct SiluMul;

/// `silu(gate) ⊙ up` over `[T, I]`.
pub fn silu_mul(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    apply(SiluMul, [gate, up])
}

impl Op<2> for SiluMul {
    fn reference(&self, [gate, up]: [Tensor<2>; 2]) -> [Tensor<2>; 1] {
        [activation::silu(gate) * up]
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
                    *out = g * sigmoid(*g) * u;
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
                    let s = sigmoid(*g);
                    *d_gate = dy * u * s * (1.0 + g * (1.0 - s));
                    *d_up = dy * g * s;
                }
            },
        );
        [Some(tensor(d_gate, rows)), Some(tensor(d_up, rows))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices() {
        for rows in [1, 17, 130] {
            agrees_with_reference(SiluMul, [random(1, rows, 70), random(2, rows, 70)], 1e-5);
        }
    }
}
