//! Products of linear layers with operands rounded to e4m3, on CUDA devices: an option of `linear` and
//! `lora_linear`, and not lossless.
//!
//! `x`, `W` and `dy` are rounded for `y = x Wᵀ` and `dx = dy W`, each row with a power of two as its scale
//! (`device/e4m3.cuh`). They are rounded again for each product; nothing is kept. Adapters, gradients of
//! parameters and the layers that [`takes`] refuses stay in bf16.

use burn::tensor::DType;

use crate::cuda::{CudaTensor, Kernel, LAYERS, dims, empty, sizes};
use crate::linear::cuda::{Columns, Gradient, device};
use crate::linear::tile::FP8;

const PRODUCTS: &str = "fp8/fp8.cuh";
const QUANTIZE: &str = "fp8/quantize.cuh";

/// Returns whether fp8 is possible and useful for the products of a layer `[out, in]`. Gates have few outputs
/// and a large effect, so they are excluded.
pub(crate) fn takes(weight: &CudaTensor) -> bool {
    let (outputs, inputs) = dims(weight);
    outputs >= 64 && outputs.is_multiple_of(16) && inputs.is_multiple_of(16)
}

/// Rows in e4m3.
pub(crate) struct Rounded {
    /// The numbers, `[rows, width]`, one byte each.
    numbers: CudaTensor,
    /// The scales of the rows, `[1, rows]` f32.
    scales: CudaTensor,
}

impl Rounded {
    fn empty(like: &CudaTensor, rows: usize, width: usize) -> Self {
        let numbers = empty(like, [rows, width], DType::U8);
        Self { numbers, scales: empty(like, [1, rows], DType::F32) }
    }

    /// Rounds one to four matrices `[rows, width]`, concatenated horizontally.
    pub(crate) fn rows(matrices: &[&CudaTensor]) -> Self {
        let rows = dims(matrices[0]).0;
        let widths: [usize; LAYERS] =
            std::array::from_fn(|i| matrices.get(i).map_or(0, |matrix| dims(matrix).1));
        let rounded = Self::empty(matrices[0], rows, widths.iter().sum());
        let mut kernel = Kernel::new(QUANTIZE, "quantize_rows").blocks(rows.div_ceil(8)).threads(256);
        for i in 0..LAYERS {
            kernel = kernel.read(matrices[i.min(matrices.len() - 1)]);
        }
        let [a, b, c, d] = widths.map(|width| width as u32);
        kernel.write(&rounded.numbers).write(&rounded.scales).launch(sizes![rows as u32, a, b, c, d]);
        rounded
    }

    /// Rounds one to four weights `[out, in]`, transposed and concatenated horizontally: `[in, Σ out]`.
    fn columns(weights: &[&CudaTensor]) -> Self {
        const PART: usize = 256;
        let width = dims(weights[0]).1;
        let outputs = || weights.iter().map(|weight| dims(weight).0);
        let (depth, parts) = (outputs().sum(), outputs().map(|outputs| outputs.div_ceil(PART)).sum());
        let rounded = Self::empty(weights[0], width, depth);
        let maxima = empty(weights[0], [parts, width], DType::U32);
        let mut part = 0;
        for (weight, outputs) in weights.iter().zip(outputs()) {
            let here = outputs.div_ceil(PART);
            Kernel::new(QUANTIZE, "column_maxima")
                .grid(width.div_ceil(256), here, 1)
                .threads(256)
                .read(*weight)
                .update(&maxima)
                .launch(sizes![outputs as u32, width as u32, part as u32]);
            part += here;
        }
        Kernel::new(QUANTIZE, "column_scales")
            .blocks(width.div_ceil(256))
            .threads(256)
            .read(&maxima)
            .write(&rounded.scales)
            .launch(sizes![parts as u32, width as u32]);
        let mut first = 0;
        for (weight, outputs) in weights.iter().zip(outputs()) {
            Kernel::new(QUANTIZE, "quantize_columns")
                .grid(width.div_ceil(64), outputs.div_ceil(128), 1)
                .threads(256)
                .read(*weight)
                .read(&rounded.scales)
                .update(&rounded.numbers)
                .launch(sizes![outputs as u32, width as u32, depth as u32, first as u32]);
            first += outputs;
        }
        rounded
    }
}

/// Rounds `x [T, in]` for those of the layers that [`takes`] accepts; `None` if there are none.
pub(crate) fn input(x: &CudaTensor, weights: &[CudaTensor]) -> Option<Rounded> {
    weights.iter().any(takes).then(|| Rounded::rows(&[x]))
}

/// Computes `x Wᵀ`, plus `u Bᵀ` in bf16 if the layer has an adapter: `[T, out]` bf16, rounded once.
pub(crate) fn output(
    x: &Rounded,
    weight: &CudaTensor,
    adapter: Option<(Columns, &CudaTensor)>,
) -> CudaTensor {
    let ((m, k), (n, _)) = (dims(&x.numbers), dims(weight));
    let rank = adapter.map_or(0, |(u, _)| u.count);
    let y = empty(weight, [m, n], DType::BF16);
    let rounded = Rounded::rows(&[weight]);
    // Tile sizes count bf16 numbers, each of which is as large as two of e4m3.
    let (tile, _) = device(weight).choose(&FP8, [m, n, k / 2 + rank], 1);
    // Without an adapter, any buffers can be passed.
    let (u, b) = adapter.unwrap_or((Columns::new(weight, 0, 0), weight));
    let [m32, n32, k32, rank32] = [m, n, k, rank].map(|size| size as u32);
    Kernel::new(PRODUCTS, "fp8_linear_forward")
        .define("TILE", tile)
        .blocks(tile.blocks(m, n))
        .threads(tile.threads())
        .read(&x.numbers)
        .read(&x.scales)
        .read(&rounded.numbers)
        .read(&rounded.scales)
        .read(u.of)
        .read(b)
        .write(&y)
        .launch(sizes![m32, n32, k32, rank32, dims(u.of).1 as u32, u.first as u32, tile.group(k / 2)]);
    y
}

/// Computes `Σ dy_i W_i`, plus `du A` for layers with adapters, summed in f32 and rounded once. The layers
/// that [`takes`] accepts, of which there must be at least one, are computed in e4m3.
pub(crate) fn input_gradient(
    d_y: &[Gradient],
    weights: &[CudaTensor],
    adapters: Option<(&CudaTensor, &CudaTensor)>,
) -> CudaTensor {
    let d_y: Vec<_> = d_y.iter().map(|d_y| d_y.columns().of).collect();
    let (rounded, others): (Vec<_>, Vec<_>) =
        d_y.iter().copied().zip(weights).partition(|(_, weight)| takes(weight));
    let (d_y8, weights8): (Vec<_>, Vec<_>) = rounded.into_iter().unzip();
    let (d_y8, weights8) = (Rounded::rows(&d_y8), Rounded::columns(&weights8));
    let depth = dims(&d_y8.numbers).1;
    let (m, n) = (dims(d_y[0]).0, dims(&weights[0]).1);
    let rank = adapters.map_or(0, |(d_u, _)| dims(d_u).1);
    let of_others = |size: fn(&CudaTensor, &CudaTensor) -> usize| -> [u32; LAYERS] {
        std::array::from_fn(|i| others.get(i).map_or(0, |(d_y, weight)| size(d_y, weight) as u32))
    };
    let outputs = of_others(|_, weight| dims(weight).0);
    let pitches = of_others(|d_y, _| dims(d_y).1);
    let d_x = empty(d_y[0], [m, n], DType::BF16);
    let in_bf16 = outputs.iter().sum::<u32>() as usize + rank;
    let (tile, _) = device(&d_x).choose(&FP8, [m, n, depth / 2 + in_bf16], 1);
    let mut kernel = Kernel::new(PRODUCTS, "fp8_linears_backward_input")
        .define("TILE", tile)
        .blocks(tile.blocks(m, n))
        .threads(tile.threads())
        .read(&d_y8.numbers)
        .read(&d_y8.scales)
        .read(&weights8.numbers)
        .read(&weights8.scales);
    // For missing layers and adapters, any buffers can be passed.
    for i in 0..LAYERS {
        let (d_y, weight) = others.get(i).copied().unwrap_or((d_y[0], &weights[0]));
        kernel = kernel.read(d_y).read(weight);
    }
    let (d_u, a) = adapters.unwrap_or((d_y[0], &weights[0]));
    let mut sizes = sizes![m as u32, n as u32, depth as u32, rank as u32];
    outputs.into_iter().chain(pitches).for_each(|size| sizes.push(size));
    sizes.push(tile.group(depth / 2));
    kernel.read(d_u).read(a).write(&d_x).launch(sizes);
    d_x
}

#[cfg(test)]
mod on_device;
