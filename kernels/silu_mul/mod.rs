//! `silu(gate) ⊙ up`, the middle of the MLP. Both inputs and the result are `[T, I]`.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use burn::tensor::{Tensor, activation};
use burn_flex::FlexTensor;

use crate::gated_mul::{Activation, backward, forward};
use crate::simd::sigmoid;
use crate::{Op, apply};

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct SiluMul;

/// `silu(gate) ⊙ up` over `[T, I]`.
pub fn silu_mul(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    apply(SiluMul, [gate, up])
}

impl Activation for SiluMul {
    #[inline(always)]
    fn share(x: f32) -> f32 {
        sigmoid(x)
    }

    #[inline(always)]
    fn slope(x: f32, share: f32) -> f32 {
        1.0 + x * (1.0 - share)
    }
}

impl Op<2> for SiluMul {
    fn reference(&self, [gate, up]: [Tensor<2>; 2]) -> [Tensor<2>; 1] {
        [activation::silu(gate) * up]
    }

    fn forward(&self, inputs: [FlexTensor; 2], wanted: [bool; 2]) -> ([FlexTensor; 1], Vec<FlexTensor>) {
        forward::<Self>(inputs, wanted)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        [d_output]: [FlexTensor; 1],
        _: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        backward::<Self>(saved, d_output)
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
