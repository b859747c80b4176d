//! Launches of `linear.cuh` and `linear_sums.cuh`.

use super::Linear;
use super::tile::{ALL, Device, Tile};
use crate::cuda::{CudaTensor, Kernel, OnCuda, as_bf16, dims, empty, sizes};
use burn::tensor::DType;

/// Which of the three products of a linear layer.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Product {
    /// `x [m, k] · w [n, k]ᵀ`, bf16
    Forward,
    /// `dy [m, k] · w [k, n]`, bf16
    Input,
    /// `dy [k, m]ᵀ · x [k, n]`, f32
    Weight,
}

/// `scale` times the product of two bf16 matrices, summed in f32.
pub(crate) fn product(which: Product, a: &CudaTensor, b: &CudaTensor, scale: f32) -> CudaTensor {
    let ((a_rows, a_columns), (b_rows, b_columns)) = (dims(a), dims(b));
    let (name, [m, n, k], dtype) = match which {
        Product::Forward => ("linear_forward", [a_rows, b_rows, a_columns], DType::BF16),
        Product::Input => ("linear_backward_input", [a_rows, b_columns, a_columns], DType::BF16),
        Product::Weight => ("linear_backward_weight", [a_columns, b_columns, a_rows], DType::F32),
    };
    let (tile, splits, k_of_split) = tiling(which, a, [m, n, k]);
    let parts = empty(a, [splits * m, n], dtype);
    let [m32, n32, k32, a_pitch, b_pitch] = [m, n, k, a_columns, b_columns].map(|size| size as u32);
    Kernel::new("linear/linear.cuh", name)
        .define("TILE", tile)
        .grid(tile.blocks(m, n), 1, splits)
        .threads(tile.threads())
        .read(a)
        .read(b)
        .write(&parts)
        .launch(sizes![
            m32,
            n32,
            k32,
            a_pitch,
            b_pitch,
            n32,
            0u32,
            0u32,
            0u32,
            tile.group(k),
            k_of_split as u32,
            0u32,
            scale
        ]);
    if splits == 1 {
        return parts;
    }
    let c = empty(a, [m, n], dtype);
    Kernel::new("linear/linear_sums.cuh", "sum_splits")
        .blocks((m * n).div_ceil(1024))
        .threads(256)
        .read(&parts)
        .write(&c)
        .launch(sizes![splits as u32, (m * n) as u32, 0u32]);
    c
}

/// The tile for a product `[m, n, k]` on the device of a tensor, into how many parts `k` is split, and the length of a part.
pub(crate) fn tiling(which: Product, beside: &CudaTensor, [m, n, k]: [usize; 3]) -> (Tile, usize, usize) {
    let most_splits = if which == Product::Weight { 32 } else { 1 };
    let (tile, splits) = device(beside).choose(&ALL, [m, n, k], most_splits);
    // Parts of whole tiles, none of them empty.
    let k_of_split = k.div_ceil(splits).next_multiple_of(64);
    (tile, k.div_ceil(k_of_split), k_of_split)
}

/// What the choice of tiles knows of the device of a tensor.
pub(crate) fn device(tensor: &CudaTensor) -> Device {
    let hardware = &tensor.client.properties().hardware;
    Device::with(hardware.num_streaming_multiprocessors.map_or(48, |count| count as usize))
}

/// Whether a matrix has rows that the kernels can read 16 bytes at a time.
pub(crate) fn aligned(width: usize) -> bool {
    width.is_multiple_of(8)
}

impl OnCuda<2> for Linear {
    fn fits(&self, [x, weight]: [[usize; 2]; 2]) -> bool {
        aligned(x[1]) && aligned(weight[0])
    }

    fn forward(&self, inputs: [CudaTensor; 2], wanted: [bool; 2]) -> (CudaTensor, Vec<CudaTensor>) {
        let [x, weight] = inputs.map(as_bf16);
        let y = product(Product::Forward, &x, &weight, 1.0);
        let saved = match wanted {
            [false, false] => Vec::new(),
            [true, false] => vec![weight],
            [_, true] => vec![weight, x],
        };
        (y, saved)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        d_output: CudaTensor,
        wanted: [bool; 2],
    ) -> [Option<CudaTensor>; 2] {
        let d_y = as_bf16(d_output);
        let d_x = wanted[0].then(|| product(Product::Input, &d_y, &saved[0], 1.0));
        let d_weight = wanted[1].then(|| product(Product::Weight, &d_y, &saved[1], 1.0));
        [d_x, d_weight]
    }
}
