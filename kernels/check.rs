//! The comparison that every op's tests make: fused path against reference, value and all gradients.

use burn::tensor::Tensor;

pub(crate) use crate::compare::{distance, random};
use crate::{Op, apply_all};

/// Returns the subsets of tracked inputs: all of them, then each alone.
fn subsets<const N: usize>() -> Vec<[bool; N]> {
    let mut subsets: Vec<[bool; N]> = vec![[true; N]];
    subsets.extend((0..N).map(|i| std::array::from_fn(|j| i == j)));
    subsets
}

/// Returns a random gradient for each result.
fn seeds<const M: usize>(results: &[Tensor<2>; M]) -> [Tensor<2>; M] {
    std::array::from_fn(|result| {
        let [rows, columns] = results[result].dims();
        random(99 + result as u64, rows, columns)
    })
}

/// Returns a scalar whose gradients with respect to `results` are the seeds.
fn seeded<const M: usize>(results: [Tensor<2>; M], seeds: [Tensor<2>; M]) -> Tensor<1> {
    let parts = results.into_iter().zip(seeds).map(|(result, seed)| (result * seed.autodiff()).sum());
    parts.reduce(|all, part| all + part).expect("an op has a result")
}

/// Runs `op` fused and as its reference under autodiff with a random output gradient. Asserts that the values
/// and the gradients of every input agree to `tolerance` (relative L2), with all inputs tracked and with each
/// alone tracked. Does the same on a CUDA device if there is one.
pub(crate) fn agrees_with_reference<O: Op<N, M>, const N: usize, const M: usize>(
    op: O,
    inputs: [Tensor<2>; N],
    tolerance: f32,
) {
    #[cfg(feature = "cuda")]
    on_cuda::agrees_with_reference(&op, &inputs);
    for tracked in subsets::<N>() {
        let leaves = |tracked: [bool; N]| -> [Tensor<2>; N] {
            std::array::from_fn(|i| {
                let leaf = inputs[i].clone().autodiff();
                if tracked[i] { leaf.require_grad() } else { leaf }
            })
        };
        let (fused_leaves, reference_leaves) = (leaves(tracked), leaves(tracked));
        let fused = apply_all(op.clone(), fused_leaves.clone());
        let reference = op.reference(reference_leaves.clone());
        for (result, (fused, reference)) in fused.iter().zip(&reference).enumerate() {
            let error = distance(fused, reference);
            assert!(error <= tolerance, "{op:?}: result {result} differs by {error:e}");
        }
        let seeds = seeds(&reference);
        let mut fused_gradients = seeded(fused, seeds.clone()).backward();
        let mut reference_gradients = seeded(reference, seeds).backward();
        for i in 0..N {
            let got = fused_leaves[i].grad_remove(&mut fused_gradients);
            let expected = reference_leaves[i].grad_remove(&mut reference_gradients);
            match (got, expected) {
                (Some(got), Some(expected)) => {
                    let error = distance(&got, &expected);
                    assert!(error <= tolerance, "{op:?}: gradient of input {i} differs by {error:e}");
                }
                (got, expected) => assert_eq!(
                    (got.is_some(), expected.is_some()),
                    (tracked[i], tracked[i]),
                    "{op:?}: gradient of input {i} is missing or unwanted"
                ),
            }
        }
    }
}

/// Returns the CPU, and the CUDA device if there is one.
pub(crate) fn devices() -> Vec<burn::tensor::Device> {
    let cpu = burn::tensor::Device::flex();
    #[cfg(feature = "cuda")]
    return std::iter::once(cpu).chain(crate::testing::cuda_device()).collect();
    #[cfg(not(feature = "cuda"))]
    vec![cpu]
}

/// Compares the kernels on a CUDA device, or on the emulated one, with the reference on the CPU.
#[cfg(feature = "cuda")]
mod on_cuda {
    use burn::tensor::{DType, Device};

    use super::{Op, Tensor, apply_all, distance, seeded, seeds, subsets};
    use crate::testing::cuda_device;

    /// The tolerance for bf16 results (`NOTES.md`, "Tolerances"), relative L2: for values, and below for
    /// gradients.
    const VALUE: f32 = 1e-2;
    const GRADIENT: f32 = 2e-2;

    pub(super) fn agrees_with_reference<O: Op<N, M>, const N: usize, const M: usize>(
        op: &O,
        inputs: &[Tensor<2>; N],
    ) {
        if !op.fits(inputs.each_ref().map(Tensor::dims)) {
            return;
        }
        let Some(device) = cuda_device() else { return };
        // Both sides start from the same numbers, rounded to bf16.
        let inputs = inputs.each_ref().map(|input| input.clone().cast(DType::BF16).cast(DType::F32));
        for tracked in subsets::<N>() {
            let leaf = |input: Tensor<2>, tracked: bool| {
                let input = input.autodiff();
                if tracked { input.require_grad() } else { input }
            };
            let on_host: [Tensor<2>; N] = std::array::from_fn(|i| leaf(inputs[i].clone(), tracked[i]));
            let on_device: [Tensor<2>; N] = std::array::from_fn(|i| {
                leaf(inputs[i].clone().to_device(&device).cast(DType::BF16), tracked[i])
            });
            let results = apply_all(op.clone(), on_device.clone());
            let reference = op.reference(on_host.clone());
            for (place, (result, reference)) in results.iter().zip(&reference).enumerate() {
                let error = distance(&to_host(result.clone()), &reference.clone().inner());
                assert!(error <= VALUE, "{op:?} on CUDA: result {place} differs by {error:e}");
            }
            let seeds = seeds(&reference).map(|seed| seed.cast(DType::BF16).cast(DType::F32));
            let kinds = results.each_ref().map(Tensor::dtype);
            let seeds_on_device =
                std::array::from_fn(|place| seeds[place].clone().to_device(&device).cast(kinds[place]));
            let mut gradients = seeded(results, seeds_on_device).backward();
            let mut expected = seeded(reference, seeds).backward();
            for i in 0..N {
                let (found, expected) =
                    (on_device[i].grad_remove(&mut gradients), on_host[i].grad_remove(&mut expected));
                assert_eq!(found.is_some(), tracked[i], "{op:?} on CUDA: gradient {i}");
                if let (Some(found), Some(expected)) = (found, expected) {
                    let error = distance(&to_host(found), &expected.inner());
                    assert!(error <= GRADIENT, "{op:?} on CUDA: gradient {i} differs by {error:e}");
                }
            }
        }
    }

    fn to_host(tensor: Tensor<2>) -> Tensor<2> {
        Tensor::from_data(tensor.inner().into_data().convert::<f32>(), &Device::flex())
    }
}
