//! Launches of `linear.cuh` and `linear_sums.cuh`, for every op that multiplies matrices.

use burn::backend::Cube;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Slice};

pub use super::product::Product;
use super::tile::{ALL, Device, Tile};
use super::tuning::{self, Problem};
use crate::cublaslt;
use crate::cuda::{CudaTensor, Kernel, LAYERS, as_bf16, contiguous, dims, empty, sizes, zeros};

/// A range of columns of a matrix.
#[derive(Clone, Copy)]
pub struct Columns<'a> {
    pub(crate) of: &'a CudaTensor,
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl<'a> Columns<'a> {
    fn is_whole(&self) -> bool {
        self.first == 0 && self.count == dims(self.of).1
    }

    pub(crate) fn new(of: &'a CudaTensor, first: usize, count: usize) -> Self {
        Self { of, first, count }
    }
}

impl<'a> From<&'a CudaTensor> for Columns<'a> {
    fn from(of: &'a CudaTensor) -> Self {
        Self { of, first: 0, count: dims(of).1 }
    }
}

impl Product {
    fn kernel(self) -> &'static str {
        match self {
            Product::Forward => "linear_forward",
            Product::Input => "linear_backward_input",
            Product::Weight => "linear_backward_weight",
        }
    }

    /// Returns `m`, `n` and `k` of the product of two matrices.
    fn size(self, a: Columns, b: Columns) -> [usize; 3] {
        let ((a_rows, _), (b_rows, _)) = (dims(a.of), dims(b.of));
        match self {
            Product::Forward => [a_rows, b_rows, a.count],
            Product::Input => [a_rows, b.count, a.count],
            Product::Weight => [a.count, b.count, a_rows],
        }
    }

    /// Returns the problem for which a tile is chosen.
    pub fn problem(self, [m, n, k]: [usize; 3], splits: usize) -> Problem {
        let (tokens, sizes) = if self == Product::Weight { (k, vec![m, n]) } else { (m, vec![n, k]) };
        Problem { kernel: self.kernel(), sizes, splits, tokens }
    }
}

/// Returns `scale` times the product of two bf16 matrices, summed in f32.
pub fn product<'a>(
    which: Product,
    a: impl Into<Columns<'a>>,
    b: impl Into<Columns<'a>>,
    scale: f32,
) -> CudaTensor {
    let (a, b) = (a.into(), b.into());
    let [m, n, _] = which.size(a, b);
    let c = empty(a.of, [m, n], if which == Product::Weight { DType::F32 } else { DType::BF16 });
    product_into(which, a, b, scale, Columns::from(&c), false);
    c
}

/// Like [`product`], written into existing columns; with `added` it is added to them.
pub(crate) fn product_into<'a>(
    which: Product,
    a: impl Into<Columns<'a>>,
    b: impl Into<Columns<'a>>,
    scale: f32,
    c: Columns,
    added: bool,
) {
    let (a, b) = (a.into(), b.into());
    let [m, n, k] = which.size(a, b);
    let tiling = tiling(which, a.of, [m, n, k]);
    let (_, splits, _) = tiling;
    // The library gets whole matrices only, as it was measured with.
    if [a, b, c].iter().all(Columns::is_whole)
        && let Some([algorithm]) = tuning::algorithms(&which.problem([m, n, k], splits), a.of).as_deref()
    {
        return cublaslt::multiply(which.form([m, n, k]), *algorithm, scale, a.of, b.of, c.of, added);
    }
    if splits == 1 {
        return launch(which, a, b, scale, c, added, tiling);
    }
    let parts = empty(a.of, [splits * m, n], c.of.dtype);
    launch(which, a, b, scale, Columns::from(&parts), false, tiling);
    sum_splits(&parts, splits, std::slice::from_ref(c.of), added);
}

/// Computes `aᵀ b` in f32 and distributes its rows over up to four matrices; with `added` it is added to
/// them. Both operands are whole. The library writes into one matrix, as our kernel does here.
pub(crate) fn product_shared_out(a: &CudaTensor, b: &CudaTensor, to: &[CudaTensor], added: bool) {
    if let [only] = to {
        return product_into(Product::Weight, a, b, 1.0, Columns::from(only), added);
    }
    let size @ [m, n, _] = Product::Weight.size(a.into(), b.into());
    let tiling = tiling(Product::Weight, a, size);
    let (_, splits, _) = tiling;
    if let Some([algorithm]) = tuning::algorithms(&Product::Weight.problem(size, splits), a).as_deref() {
        let all = empty(a, [m, n], DType::F32);
        cublaslt::multiply(Product::Weight.form(size), *algorithm, 1.0, a, b, &all, false);
        return sum_splits(&all, 1, to, added);
    }
    let parts = empty(a, [splits * m, n], DType::F32);
    launch(Product::Weight, a.into(), b.into(), 1.0, Columns::from(&parts), false, tiling);
    sum_splits(&parts, splits, to, added);
}

fn launch(
    which: Product,
    a: Columns,
    b: Columns,
    scale: f32,
    c: Columns,
    added: bool,
    (estimated, splits, k_of_split): (Tile, usize, usize),
) {
    let [m, n, k] = which.size(a, b);
    let tile = tuning::tile(which.problem([m, n, k], splits), estimated);
    let kernel = Kernel::new("linear/linear.cuh", which.kernel())
        .define("TILE", tile)
        .grid(tile.blocks(m, n), 1, splits)
        .threads(tile.threads())
        .read(a.of)
        .read(b.of);
    let [m32, n32, k32] = [m, n, k].map(|size| size as u32);
    let [a_pitch, b_pitch, c_pitch] = [a.of, b.of, c.of].map(|matrix| dims(matrix).1 as u32);
    // Columns outside of these are not changed.
    let whole = dims(c.of).1 == n && !added;
    let kernel = if whole { kernel.write(c.of) } else { kernel.update(c.of) };
    kernel.launch(sizes![
        m32,
        n32,
        k32,
        a_pitch,
        b_pitch,
        c_pitch,
        a.first as u32,
        b.first as u32,
        c.first as u32,
        tile.group(k),
        k_of_split as u32,
        u32::from(added),
        scale
    ]);
}

/// Adds the parts of a product and distributes its rows over the matrices `to`.
fn sum_splits(parts: &CudaTensor, splits: usize, to: &[CudaTensor], added: bool) {
    let counts: [usize; LAYERS] = std::array::from_fn(|i| to.get(i).map_or(0, |c| dims(c).0 * dims(c).1));
    let largest = counts.into_iter().max().expect("there are counts");
    let mut kernel = Kernel::new("linear/linear_sums.cuh", "sum_splits")
        .grid(largest.div_ceil(1024), to.len(), 1)
        .threads(256)
        .read(parts);
    for i in 0..LAYERS {
        kernel = kernel.update(&to[i.min(to.len() - 1)]);
    }
    let mut sizes = sizes![splits as u32, u32::from(added)];
    counts.into_iter().for_each(|count| sizes.push(count as u32));
    kernel.launch(sizes);
}

/// Returns the estimated tile for a product `[m, n, k]` on the device of a tensor, the number of parts that
/// `k` is split into, and the length of a part.
pub fn tiling(which: Product, like: &CudaTensor, [m, n, k]: [usize; 3]) -> (Tile, usize, usize) {
    let most_splits = if which == Product::Weight { 32 } else { 1 };
    let (tile, splits) = device(like).choose(&ALL, [m, n, k], most_splits);
    // The parts consist of whole tiles, and none is empty.
    let k_of_split = k.div_ceil(splits).next_multiple_of(64);
    (tile, k.div_ceil(k_of_split), k_of_split)
}

/// The facts about the device of a tensor that the choice of tiles uses.
pub(crate) fn device(tensor: &CudaTensor) -> Device {
    let hardware = &tensor.client.properties().hardware;
    Device::with(hardware.num_streaming_multiprocessors.map_or(48, |count| count as usize))
}

/// Returns whether kernels can read the rows of a matrix 16 bytes at a time.
pub(crate) fn aligned(width: usize) -> bool {
    width.is_multiple_of(8)
}

/// Returns whether the kernels can write this many columns; their gradient is read as [`Gradient`].
pub(crate) fn writable(outputs: usize) -> bool {
    outputs.is_multiple_of(4)
}

/// The gradient of a layer's output in bf16, with rows that the kernels can read. If the columns are not
/// [`aligned`], they are padded with zeros.
pub(crate) struct Gradient {
    padded: CudaTensor,
    pub(crate) outputs: usize,
}

impl Gradient {
    pub(crate) fn new(d_y: CudaTensor) -> Self {
        let (tokens, outputs) = dims(&d_y);
        let padded = if aligned(outputs) {
            as_bf16(d_y)
        } else {
            let wide = zeros(&d_y, [tokens, outputs.next_multiple_of(8)], DType::BF16);
            let place = [Slice::from(0..tokens), Slice::from(0..outputs)];
            contiguous(Cube::float_slice_assign(wide, &place, as_bf16(d_y)))
        };
        Self { padded, outputs }
    }

    pub(crate) fn columns(&self) -> Columns<'_> {
        Columns::new(&self.padded, 0, self.outputs)
    }
}
