//! `gelu(gate) ⊙ up`, the middle of Gemma's MLP. Both inputs and the result are `[T, I]`.
//!
//! The GELU is the approximation by a hyperbolic tangent that configs call `gelu_pytorch_tanh`:
//! `gelu(x) = x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))`. Because `(1 + tanh u)/2` is `sigmoid(2u)`, it is
//! computed as `x · sigmoid(2u)`.

#[cfg(feature = "cuda")]
mod cuda;

use burn::tensor::{Tensor, activation};
use burn_flex::FlexTensor;

use crate::gated_mul::{Activation, backward, forward};
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

impl Activation for GeluMul {
    #[inline(always)]
    fn share(x: f32) -> f32 {
        sigmoid(SLOPE * (x + CUBIC * x * x * x))
    }

    #[inline(always)]
    fn slope(x: f32, share: f32) -> f32 {
        let slope = SLOPE * (1.0 + 3.0 * CUBIC * x * x);
        1.0 + x * (1.0 - share) * slope
    }
}

impl Op<2> for GeluMul {
    fn reference(&self, [gate, up]: [Tensor<2>; 2]) -> [Tensor<2>; 1] {
        [activation::gelu_approximate(gate) * up]
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
        // The values of torch.nn.functional.gelu(x, approximate="tanh") in double precision.
        let expected =
            [(-1e4, 0.0), (-1.0, -0.158_808), (0.0, 0.0), (1.0, 0.841_192), (3.0, 2.996_363), (1e4, 1e4)];
        for (x, y) in expected {
            let [x, one] = [x, 1.0].map(|number: f32| Tensor::<2>::from_floats([[number]], &Device::flex()));
            let found: f32 = gelu_mul(x, one).into_scalar();
            assert!((found - y).abs() <= 1e-5 * y.abs().max(1.0), "{found} for {y}");
        }
    }
}
