//! Qwen3.5's output gate: the attention result times the sigmoid of the gate that `q_proj` computes along
//! with the query.
//!
//! The output of `q_proj` has, for each head, `D` numbers of query and then `D` of gate (SPEC.md 2.3), so the
//! gate is read in place from the second half of each head.

#[cfg(feature = "cuda")]
mod cuda;

use burn::tensor::{Tensor, activation};
use burn_flex::FlexTensor;

use crate::cpu::{dims, fill_rows, for_rows2, slice, tensor};
use crate::simd::sigmoid;
use crate::{Op, apply};

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct SigmoidGate {
    pub head_dim: usize,
}

/// Returns `attention ⊙ sigmoid(gate)` for `attention [T, N·D]` and `query_and_gate [T, N·2D]`, the output of
/// `q_proj`.
pub fn sigmoid_gate(attention: Tensor<2>, query_and_gate: Tensor<2>, head_dim: usize) -> Tensor<2> {
    apply(SigmoidGate { head_dim }, [attention, query_and_gate])
}

impl Op<2> for SigmoidGate {
    fn reference(&self, [attention, query_and_gate]: [Tensor<2>; 2]) -> [Tensor<2>; 1] {
        let [t, width] = attention.dims();
        let heads = width / self.head_dim;
        let gate = query_and_gate.reshape([t, heads, 2, self.head_dim]).narrow(2, 1, 1).reshape([t, width]);
        [attention * activation::sigmoid(gate)]
    }

    fn forward(
        &self,
        [attention, gate]: [FlexTensor; 2],
        wanted: [bool; 2],
    ) -> ([FlexTensor; 1], Vec<FlexTensor>) {
        let (rows, width) = dims(&attention);
        let (o, g, d) = (slice(&attention), slice(&gate), self.head_dim);
        let out = fill_rows(
            rows * (width / d),
            d,
            #[inline(always)]
            |head, chunk| {
                for (i, out) in chunk.chunks_exact_mut(d).enumerate() {
                    let o = &o[(head + i) * d..][..d];
                    let g = &g[(head + i) * 2 * d + d..][..d];
                    for ((out, o), g) in out.iter_mut().zip(o).zip(g) {
                        *out = o * sigmoid(*g);
                    }
                }
            },
        );
        let saved = if wanted.contains(&true) { vec![attention, gate] } else { Vec::new() };
        ([tensor(out, rows)], saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        [d_output]: [FlexTensor; 1],
        _: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let (rows, width) = dims(&d_output);
        let (o, g, dy, d) = (slice(&saved[0]), slice(&saved[1]), slice(&d_output), self.head_dim);
        let (mut d_o, mut d_g) = (vec![0.0; rows * width], vec![0.0; rows * width * 2]);
        for_rows2(
            &mut d_o,
            d,
            &mut d_g,
            2 * d,
            #[inline(always)]
            |head, d_o, d_g| {
                for (i, (d_o, d_g)) in d_o.chunks_exact_mut(d).zip(d_g.chunks_exact_mut(2 * d)).enumerate() {
                    let o = &o[(head + i) * d..][..d];
                    let dy = &dy[(head + i) * d..][..d];
                    let g = &g[(head + i) * 2 * d + d..][..d];
                    for ((((d_o, d_g), o), g), dy) in d_o.iter_mut().zip(&mut d_g[d..]).zip(o).zip(g).zip(dy)
                    {
                        let s = sigmoid(*g);
                        *d_o = dy * s;
                        *d_g = dy * o * s * (1.0 - s);
                    }
                }
            },
        );
        [Some(tensor(d_o, rows)), Some(tensor(d_g, rows))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices() {
        for (rows, heads, head_dim) in [(1, 1, 2), (17, 4, 32), (130, 3, 6)] {
            let inputs = [random(1, rows, heads * head_dim), random(2, rows, heads * 2 * head_dim)];
            agrees_with_reference(SigmoidGate { head_dim }, inputs, 1e-5);
        }
    }
}
