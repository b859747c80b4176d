//! Linear layers on the few rows of a decoding step: each row of a result has the same bits whatever the
//! other rows are, so that a sequence does not depend on those that are decoded beside it.
//!
//! Every number is one dot product in the fixed order of `simd::dot`. A product of so few rows is limited
//! by reading the weights, so each weight is read once for all rows, and as bf16 if it is stored so: its
//! numbers are the same. Forward only.

#[cfg(feature = "cuda")]
mod cuda;

use burn::backend::Flex;
use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::linears;
use crate::cpu::{Numbers, dims, numbers, slice, tensor, widen};
#[cfg(feature = "cuda")]
use crate::cuda::{as_bf16, into_tensor, primitive as on_device};
use crate::lora_linear::{Adapted, Adapter, lora_linears};
use crate::op::{on_cpu, primitive};
use crate::simd::{self, Stored};

/// The number of a weight's numbers that one parallel task reads.
const TASK: usize = 1 << 16;

/// Maps `x [n, in]` to the results `[n, out]` of one to four layers, each by row; `scale` is that of their
/// adapters. On a device, more than 32 rows are the usual products, whose bits may depend on `n`.
pub fn linears_by_row(x: Tensor<2>, layers: Vec<Adapted>, scale: f64) -> Vec<Tensor<2>> {
    #[cfg(feature = "cuda")]
    if !on_cpu(&x) && x.dims()[0] <= cuda::FEW {
        let x = as_bf16(on_device(x));
        let layer = |Adapted { weight, adapter }: Adapted| {
            let adapter = adapter.map(|Adapter { a, b, .. }| [a, b].map(|matrix| on_device(matrix.tensor)));
            into_tensor(cuda::layer(&x, on_device(weight), adapter, scale as f32))
        };
        return layers.into_iter().map(layer).collect();
    }
    if !on_cpu(&x) {
        return if layers.iter().any(|layer| layer.adapter.is_some()) {
            lora_linears(x, layers, scale, false)
        } else {
            linears(x, layers.into_iter().map(|layer| layer.weight.into()).collect(), false)
        };
    }
    let x = primitive(x);
    let (n, width) = dims(&x);
    let result = |Adapted { weight, adapter }: Adapted| {
        let mut y = products(slice(&x), n, width, &primitive(weight));
        if let Some(Adapter { a, b, .. }) = adapter {
            let a = primitive(a.tensor);
            let u = products(slice(&x), n, width, &a);
            let added = products(&u, n, dims(&a).0, &primitive(b.tensor));
            y.iter_mut().zip(added).for_each(|(y, added)| *y += scale as f32 * added);
        }
        Tensor::from_primitive::<Flex>(tensor(y, n))
    };
    layers.into_iter().map(result).collect()
}

/// Maps `x [n, in]` to `x Wᵀ [n, out]` by row like [`linears_by_row`], in f32 also on a device: in bf16, the
/// largest of many logits would often be the same number as the next one.
pub fn logits_by_row(x: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
    #[cfg(feature = "cuda")]
    if !on_cpu(&x) {
        let weight = on_device(weight);
        let of_some = |first| {
            let rows = cuda::FEW.min(x.dims()[0] - first);
            into_tensor(cuda::wide(&as_bf16(on_device(x.clone().narrow(0, first, rows))), weight.clone()))
        };
        return Tensor::cat((0..x.dims()[0]).step_by(cuda::FEW).map(of_some).collect(), 0);
    }
    linears_by_row(x, vec![Adapted { weight, adapter: None }], 0.0).remove(0)
}

/// Returns `x Wᵀ`, `[n, out]`, of the rows `x [n, in]` and the weight `[out, in]`.
pub(super) fn products(x: &[f32], n: usize, width: usize, weight: &FlexTensor) -> Vec<f32> {
    let (outputs, columns) = dims(weight);
    assert_eq!(columns, width, "x is not [n, in]");
    match numbers(weight) {
        Numbers::F32(weight) => products_of(x, n, width, weight, outputs),
        Numbers::Bf16(weight) => products_of(x, n, width, weight, outputs),
    }
}

fn products_of<W: Stored>(x: &[f32], n: usize, width: usize, weight: &[W], outputs: usize) -> Vec<f32> {
    // `[out, n]`, so that a task writes consecutive numbers.
    let mut by_output = vec![0.0; outputs * n];
    let rows_of_task = (TASK / width.max(1)).max(1);
    let weights = weight.par_chunks((rows_of_task * width).max(1));
    by_output.par_chunks_mut((rows_of_task * n).max(1)).zip(weights).for_each(|(out, weights)| {
        simd::dispatch(
            #[inline(always)]
            || {
                let mut wide = Vec::new();
                for (out, row) in out.chunks_exact_mut(n).zip(weights.chunks_exact(width)) {
                    if n <= 2 || size_of::<W>() == size_of::<f32>() {
                        products_of_row(out, row, x);
                    } else {
                        // Widened once for all rows.
                        widen(row, &mut wide);
                        products_of_row(out, &wide, x);
                    }
                }
            },
        );
    });
    if n == 1 {
        return by_output;
    }
    (0..n).flat_map(|row| by_output.iter().skip(row).step_by(n).copied()).collect()
}

/// Writes the products of one row of a weight and all rows of `x`.
#[inline(always)]
fn products_of_row<W: Stored>(out: &mut [f32], weight: &[W], x: &[f32]) {
    for (out, x) in out.iter_mut().zip(x.chunks_exact(weight.len())) {
        *out = simd::dot(weight, x);
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::*;
    use crate::check::{distance, random};

    fn adapted(weight: Tensor<2>, adapter: Option<(Tensor<2>, Tensor<2>)>) -> Adapted {
        let adapter = adapter.map(|(a, b)| Adapter { a: a.into(), b: b.into(), mask: None });
        Adapted { weight, adapter }
    }

    #[test]
    fn a_weight_stored_as_bf16_gives_the_bits_that_it_gives_as_f32() {
        for (input, output) in [(1, 3), (33, 70), (1000, 700)] {
            let narrow = random(2, output, input).cast(DType::BF16);
            let wide = narrow.clone().cast(DType::F32);
            for rows in 1..5 {
                let x = random(1, rows, input);
                let of = |weight: &Tensor<2>| {
                    linears_by_row(x.clone(), vec![adapted(weight.clone(), None)], 1.0).remove(0)
                };
                assert_eq!(
                    of(&narrow).into_data(),
                    of(&wide).into_data(),
                    "{rows} rows of {input} → {output}"
                );
                // Many rows at once have the usual rounding.
                let many = linears(x.clone(), vec![narrow.clone().into()], false).remove(0);
                assert!(distance(&many, &of(&wide)) < 1e-5, "{rows} rows of {input} → {output}");
            }
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn rows_on_device_agree_with_the_cpu_and_have_the_same_bits_alone() {
        let Some(device) = crate::testing::cuda_device() else { return };
        let rounded = |seed, rows, columns| random(seed, rows, columns).cast(DType::BF16).cast(DType::F32);
        let there = |x: Tensor<2>| x.to_device(&device);
        let here = |x: Tensor<2>| x.to_device(&burn::tensor::Device::flex()).cast(DType::F32);
        let weights = [rounded(2, 70, 72), rounded(3, 8, 72), rounded(4, 70, 8)];
        let layers = |put: &dyn Fn(Tensor<2>) -> Tensor<2>| {
            let [weight, a, b] = weights.clone().map(put);
            vec![adapted(weight.clone(), None), adapted(weight, Some((a, b)))]
        };
        for rows in [1, 2, 3, 7, 20, cuda::FEW + 1] {
            let x = rounded(1, rows, 72);
            let expected = linears_by_row(x.clone(), layers(&|x| x), 0.5);
            let together = linears_by_row(there(x.clone()), layers(&there), 0.5);
            for (expected, together) in expected.iter().zip(&together) {
                assert!(distance(&here(together.clone()), expected) < 5e-3, "{rows} rows");
            }
            let logits = here(logits_by_row(there(x.clone()), there(weights[0].clone())));
            assert!(distance(&logits, &expected[0]) < 1e-5, "{rows} rows: the logits are f32");
            for row in (0..rows).filter(|_| rows <= cuda::FEW) {
                let alone = linears_by_row(there(x.clone().narrow(0, row, 1)), layers(&there), 0.5);
                for (alone, together) in alone.into_iter().zip(&together) {
                    let same = here(together.clone()).narrow(0, row, 1);
                    assert_eq!(here(alone).into_data(), same.into_data(), "row {row} of {rows}");
                }
            }
        }
    }

    #[test]
    fn rows_have_the_same_bits_alone_and_among_others_and_agree_with_the_usual_product() {
        for (input, output) in [(1, 3), (33, 70), (256, 16), (1000, 700)] {
            let layers = || {
                let adapter = (random(3, 8, input), random(4, output, 8));
                vec![
                    adapted(random(2, output, input), None),
                    adapted(random(5, output, input), Some(adapter)),
                ]
            };
            let x = random(1, 7, input);
            let together = linears_by_row(x.clone(), layers(), 0.5);
            for (row, count) in [(0, 1), (3, 1), (6, 1), (2, 2), (1, 5)] {
                let alone = linears_by_row(x.clone().narrow(0, row, count), layers(), 0.5);
                for (alone, together) in alone.into_iter().zip(&together) {
                    let same = together.clone().narrow(0, row, count);
                    assert_eq!(alone.into_data(), same.into_data(), "row {row} of {input} → {output}");
                }
            }
            for (one, usual) in together.iter().zip(lora_linears(x, layers(), 0.5, false)) {
                assert!(distance(one, &usual) < 1e-5, "{input} → {output}");
            }
        }
    }
}
