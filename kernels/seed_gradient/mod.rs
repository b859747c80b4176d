//! A scalar whose gradient with respect to `y` is a given `dy`. With recompute, each layer's backward pass
//! starts from it, where the next layer's ended.

#[cfg(feature = "cuda")]
mod cuda;

use burn::tensor::Tensor;
use burn_flex::FlexTensor;

use crate::cpu::{dims, slice, tensor};
use crate::simd::{dispatch, dot};
use crate::{Op, apply};

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct SeedGradient;

/// Returns `Σ y ⊙ dy` as `[1, 1]`; `dy` has the shape of `y` and is a constant.
pub fn seed_gradient(y: Tensor<2>, dy: Tensor<2>) -> Tensor<2> {
    apply(SeedGradient, [y, dy])
}

impl Op<2> for SeedGradient {
    const F32_RESULT: bool = true;

    fn reference(&self, [y, dy]: [Tensor<2>; 2]) -> [Tensor<2>; 1] {
        [(y * dy).sum().reshape([1, 1])]
    }

    fn forward(&self, [y, dy]: [FlexTensor; 2], wanted: [bool; 2]) -> ([FlexTensor; 1], Vec<FlexTensor>) {
        let total = dispatch(
            #[inline(always)]
            || dot(slice(&y), slice(&dy)),
        );
        let saved = match wanted {
            [_, true] => vec![dy, y],
            _ => vec![dy],
        };
        ([tensor(vec![total], 1)], saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        [d_output]: [FlexTensor; 1],
        wanted: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let factor = slice(&d_output)[0];
        // The factor is usually exactly one, and the given gradient is then passed through unchanged.
        let scaled = |gradient: &FlexTensor| {
            if factor == 1.0 {
                return gradient.clone();
            }
            tensor(slice(gradient).iter().map(|x| x * factor).collect(), dims(gradient).0)
        };
        [wanted[0].then(|| scaled(&saved[0])), wanted[1].then(|| scaled(&saved[1]))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices() {
        agrees_with_reference(SeedGradient, [random(1, 17, 9), random(2, 17, 9)], 1e-5);
    }
}
