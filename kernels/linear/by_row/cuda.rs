//! Launches of `by_row.cuh`.

use burn::tensor::DType;

use crate::cuda::{CudaTensor, Kernel, Sizes, as_bf16, dims, empty, sizes};

/// The most rows that the kernel multiplies faster than the usual product, which reads the weight once for
/// all of them. An estimate: no device was timed.
pub(super) const FEW: usize = 32;

/// The largest number of rows that a block computes.
const ROWS: usize = 8;
/// The number of a result's columns that a block computes.
const COLUMNS: usize = 32;

/// Returns `x Wᵀ + scale · (x Aᵀ) Bᵀ` in bf16; the adapter is `A` and `B`.
pub(super) fn layer(
    x: &CudaTensor,
    weight: CudaTensor,
    adapter: Option<[CudaTensor; 2]>,
    scale: f32,
) -> CudaTensor {
    let weight = as_bf16(weight);
    let y = empty(x, [dims(x).0, dims(&weight).0], DType::BF16);
    let kernel = kernel("linear_by_row", x, &weight);
    let (kernel, rank) = match adapter.map(|adapter| adapter.map(as_bf16)) {
        Some([a, b]) => (kernel.read(&wide(x, a)).read(&b), dims(&b).1),
        // The kernel reads neither.
        None => (kernel.read(x).read(&weight), 0),
    };
    kernel.write(&y).launch(sizes_of(x, &weight, rank, scale));
    y
}

/// Returns `x Wᵀ` in f32.
pub(super) fn wide(x: &CudaTensor, weight: CudaTensor) -> CudaTensor {
    let weight = as_bf16(weight);
    let y = empty(x, [dims(x).0, dims(&weight).0], DType::F32);
    kernel("linear_by_row_wide", x, &weight).write(&y).launch(sizes_of(x, &weight, 0, 0.0));
    y
}

fn kernel(name: &'static str, x: &CudaTensor, weight: &CudaTensor) -> Kernel {
    let (rows, (outputs, inputs)) = (dims(x).0, dims(weight));
    assert_eq!(dims(x).1, inputs, "x is not [n, in]");
    let at_once = [1, 2, 4].into_iter().find(|fitting| rows <= *fitting).unwrap_or(ROWS);
    Kernel::new("linear/by_row.cuh", name)
        .define("ROWS", at_once)
        .grid(outputs.div_ceil(COLUMNS), rows.div_ceil(at_once), 1)
        .threads(256)
        .read(x)
        .read(weight)
}

fn sizes_of(x: &CudaTensor, weight: &CudaTensor, rank: usize, scale: f32) -> Sizes {
    let ((rows, inputs), outputs) = (dims(x), dims(weight).0);
    sizes![rows as u32, inputs as u32, outputs as u32, rank as u32, scale]
}
