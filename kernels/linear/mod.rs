//! `y = x Wᵀ`. A frozen weight costs no gradient and keeps no input alive.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(feature = "cuda")]
pub(crate) mod tile;

use crate::cpu::{dims, matrix, product, tensor};
use crate::{Op, apply};
use burn::tensor::Tensor;
use burn_flex::FlexTensor;

#[derive(Clone, Debug)]
pub(crate) struct Linear;

/// `x [T, in]`, `weight [out, in]` → `[T, out]`.
pub fn linear(x: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
    apply(Linear, [x, weight])
}

impl Op<2> for Linear {
    fn reference(&self, [x, weight]: [Tensor<2>; 2]) -> Tensor<2> {
        x.matmul(weight.transpose())
    }

    fn forward(&self, [x, weight]: [FlexTensor; 2], wanted: [bool; 2]) -> (FlexTensor, Vec<FlexTensor>) {
        let rows = dims(&x).0;
        let y = tensor(product(1.0, matrix(&x), matrix(&weight).t()), rows);
        let saved = match wanted {
            [false, false] => Vec::new(),
            // The input is needed for the gradient of the weight alone.
            [true, false] => vec![weight],
            [_, true] => vec![weight, x],
        };
        (y, saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        d_output: FlexTensor,
        wanted: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let (weight, dy) = (&saved[0], matrix(&d_output));
        let d_x = wanted[0].then(|| tensor(product(1.0, dy, matrix(weight)), dims(&d_output).0));
        let d_weight = wanted[1].then(|| tensor(product(1.0, dy.t(), matrix(&saved[1])), dims(weight).0));
        [d_x, d_weight]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};

    #[test]
    fn value_and_gradients_agree_with_the_reference() {
        for (rows, input, output) in [(1, 3, 5), (17, 64, 70), (130, 33, 64), (1, 64, 16), (130, 72, 200)] {
            agrees_with_reference(Linear, [random(1, rows, input), random(2, output, input)], 1e-5);
        }
    }
}
