//! The product `y = x Wᵀ` of one layer, or of several with the same `x`. A frozen weight needs no gradient
//! and does not keep the input.

pub mod by_row;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(feature = "cuda")]
mod layers;
#[cfg(feature = "cuda")]
mod product;
#[cfg(feature = "cuda")]
pub(crate) mod tile;
#[cfg(feature = "cuda")]
mod timing;
#[cfg(feature = "cuda")]
pub mod tuning;

use burn::tensor::Tensor;
use burn_flex::FlexTensor;

use crate::cpu::{add_product, dims, matrix, product, product_with, tensor};
use crate::group::{Group, apply_group};
use crate::weight::{GradientSum, Weight, add_on_cpu};

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct Linears {
    /// The destination of each layer's weight gradient.
    pub sums: Vec<Option<GradientSum>>,
    /// Whether `x`, `W` and the gradient of `y` are rounded to e4m3 on CUDA devices where possible. The
    /// gradient of `W` is not affected.
    pub fp8: bool,
}

/// The number of rows from which on, on the CPU, the bits of a row of a product do not depend on the number
/// of rows: those with fewer may be blocked in another way.
pub const FEWEST_ROWS: usize = 65;

/// Maps `x [T, in]` and `weight [out, in]` to `[T, out]`.
pub fn linear(x: Tensor<2>, weight: impl Into<Weight>) -> Tensor<2> {
    linears(x, vec![weight.into()], false).remove(0)
}

/// Computes the results `[T, out]` of one to four layers. The gradient of `x [T, in]` is computed in one pass
/// over all of them. With `fp8`, operands are rounded to e4m3 on CUDA devices, which is not lossless.
pub fn linears(x: Tensor<2>, weights: Vec<Weight>, fp8: bool) -> Vec<Tensor<2>> {
    let (tensors, sums): (Vec<_>, Vec<_>) =
        weights.into_iter().map(|weight| (weight.tensor, weight.sum)).unzip();
    let layers = sums.len();
    apply_group(Linears { sums, fp8 }, std::iter::once(x).chain(tensors).collect(), layers)
}

impl Group for Linears {
    fn reference(&self, inputs: &[Tensor<2>]) -> Vec<Tensor<2>> {
        let (x, weights) = inputs.split_first().expect("an input");
        weights.iter().map(|weight| x.clone().matmul(weight.clone().transpose())).collect()
    }

    fn forward(&self, mut inputs: Vec<FlexTensor>, wanted: &[bool]) -> (Vec<FlexTensor>, Vec<FlexTensor>) {
        let x = inputs.remove(0);
        let y = |weight| tensor(product_with(&x, weight), dims(&x).0);
        let outputs = inputs.iter().map(y).collect();
        // The input is only needed for the gradients of weights.
        inputs.extend(wanted[1..].contains(&true).then_some(x));
        (outputs, if wanted.contains(&true) { inputs } else { Vec::new() })
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        d_outputs: &[FlexTensor],
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let (weights, x) = saved.split_at(d_outputs.len());
        let d_x = wanted[0].then(|| {
            let mut layers = d_outputs.iter().map(matrix).zip(weights.iter().map(matrix));
            let (d_y, weight) = layers.next().expect("a layer");
            let mut d_x = product(1.0, d_y, weight);
            layers.for_each(|(d_y, weight)| add_product(&mut d_x, 1.0, d_y, weight));
            tensor(d_x, dims(&d_outputs[0]).0)
        });
        let d_weight = |layer: usize| {
            let (rows, columns) = dims(&weights[layer]);
            add_on_cpu(self.sums[layer].as_ref(), [rows, columns], |total| {
                add_product(total, 1.0, matrix(&d_outputs[layer]).t(), matrix(&x[0]));
            })
        };
        let d_weights = (0..weights.len()).map(|layer| wanted[1 + layer].then(|| d_weight(layer)).flatten());
        std::iter::once(d_x).chain(d_weights).collect()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::*;
    use crate::check::{agrees_with_reference, random};

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices() {
        let one = || Linears { sums: vec![None], fp8: false };
        for (rows, input, output) in [(1, 3, 5), (17, 64, 70), (130, 33, 64), (1, 64, 16), (130, 72, 200)] {
            agrees_with_reference::<_, 2, 1>(one(), [random(1, rows, input), random(2, output, input)], 1e-5);
        }
    }

    #[test]
    fn a_row_has_the_same_bits_among_any_number_of_others_from_the_fewest_on() {
        for (input, output) in [(900, 16), (900, 700), (33, 64), (3000, 30)] {
            let x = random(1, 600, input);
            for weight in [random(2, output, input), random(2, output, input).cast(DType::BF16)] {
                let all = linear(x.clone(), weight.clone());
                for (first, rows) in [(0, FEWEST_ROWS), (100, 66), (3, 130), (80, 512)] {
                    let some = linear(x.clone().narrow(0, first, rows), weight.clone());
                    let same = all.clone().narrow(0, first, rows);
                    assert_eq!(some.into_data(), same.into_data(), "{rows} rows of {input} → {output}");
                }
            }
        }
    }

    #[test]
    fn layers_that_share_an_input_agree_with_the_reference_on_devices() {
        let weight = |seed, outputs| random(seed, outputs, 72);
        let x = || random(1, 33, 72);
        let of = |layers| Linears { sums: vec![None; layers], fp8: false };
        agrees_with_reference::<_, 3, 2>(of(2), [x(), weight(2, 48), weight(3, 200)], 1e-5);
        agrees_with_reference::<_, 4, 3>(of(3), [x(), weight(2, 64), weight(3, 16), weight(4, 16)], 1e-5);
        let four = [x(), weight(2, 200), weight(3, 64), weight(4, 12), weight(5, 4)];
        agrees_with_reference::<_, 5, 4>(of(4), four, 1e-5);
    }
}
