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

use crate::cpu::{add_product, dims, matrix, product, product_with, slice, tensor};
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

/// The number of columns from which on a product with [`FEWEST_ROWS`] has more than 256 numbers: `gemm` sums
/// smaller ones in another order. Narrower products are computed by row.
const FEWEST_COLUMNS: usize = 4;

/// Returns `x Wᵀ`, `[T, out]`, of `x [T, in]` and a weight `[out, in]` on the CPU.
pub(crate) fn result_on_cpu(x: &FlexTensor, weight: &FlexTensor) -> Vec<f32> {
    let (rows, width) = dims(x);
    if dims(weight).0 < FEWEST_COLUMNS {
        by_row::products(slice(x), rows, width, weight)
    } else {
        product_with(x, weight)
    }
}

/// Computes `y += scale · u Bᵀ` on the CPU, of `u [T, r]` and `B [out, r]`.
pub(crate) fn add_adapter(y: &mut [f32], scale: f32, u: &FlexTensor, b: &FlexTensor) {
    let (rows, rank) = dims(u);
    if dims(b).0 < FEWEST_COLUMNS {
        let added = by_row::products(slice(u), rows, rank, b);
        y.iter_mut().zip(added).for_each(|(y, added)| *y += scale * added);
    } else {
        add_product(y, scale, matrix(u), matrix(b).t());
    }
}

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
        let y = |weight| tensor(result_on_cpu(&x, weight), dims(&x).0);
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
    use crate::lora_linear::{Adapted, Adapter, lora_linears};

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices() {
        let one = || Linears { sums: vec![None], fp8: false };
        for (rows, input, output) in [(1, 3, 5), (17, 64, 70), (130, 33, 64), (1, 64, 16), (130, 72, 200)] {
            agrees_with_reference::<_, 2, 1>(one(), [random(1, rows, input), random(2, output, input)], 1e-5);
        }
    }

    #[test]
    fn a_row_has_the_same_bits_among_any_number_of_others_from_the_fewest_on() {
        for (input, output) in
            [(900, 16), (900, 700), (33, 64), (3000, 30), (900, 1), (900, 2), (900, 3), (900, 4)]
        {
            let x = random(1, 600, input);
            for weight in [random(2, output, input), random(2, output, input).cast(DType::BF16)] {
                same_among_others(&format!("{input} → {output}"), &x, &|x| linear(x, weight.clone()));
            }
        }
        for (rank, output) in [(1, 200), (2, 200), (3, 200), (4, 200), (8, 200), (8, 1), (5, 3)] {
            let (x, weight) = (random(1, 600, 900), random(2, output, 900));
            let [a, b] = [random(3, rank, 900), random(4, output, rank)].map(Weight::from);
            same_among_others(&format!("rank {rank} → {output}"), &x, &|x| {
                let adapter = Some(Adapter { a: a.clone(), b: b.clone(), mask: None });
                lora_linears(x, vec![Adapted { weight: weight.clone(), adapter }], 0.5, false).remove(0)
            });
        }
    }

    /// Asserts that some of the rows of `x` have the same bits in `of` as among all.
    fn same_among_others(what: &str, x: &Tensor<2>, of: &dyn Fn(Tensor<2>) -> Tensor<2>) {
        let all = of(x.clone());
        for (first, rows) in [(0, FEWEST_ROWS), (100, 66), (3, 130), (80, 512)] {
            let some = of(x.clone().narrow(0, first, rows));
            let same = all.clone().narrow(0, first, rows);
            assert_eq!(some.into_data(), same.into_data(), "{rows} rows of {what}");
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
