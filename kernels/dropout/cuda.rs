//! Launches of `dropout.cuh`.

use super::Dropout;
use crate::cuda::{CudaTensor, Kernel, LAYERS, Sizes, dims, empty_like, sizes};

const SOURCE: &str = "dropout/dropout.cuh";

/// The size of a matrix, and the fields of masks that have the same rate.
fn sizes_of(x: &CudaTensor, masks: &[Dropout]) -> Sizes {
    let (rows, columns) = dims(x);
    let mut sizes = sizes![(rows * columns) as u64];
    (0..LAYERS).for_each(|i| sizes.push(masks.get(i).map_or(0, |mask| mask.key)));
    sizes.push(masks.len() as u32);
    sizes.push(masks[0].least);
    sizes.push(masks[0].scale);
    sizes
}

fn blocks(x: &CudaTensor) -> usize {
    let (rows, columns) = dims(x);
    (rows * columns).div_ceil(2048)
}

impl Dropout {
    /// Returns the product of the numbers of a bf16 matrix and their factors.
    pub(crate) fn on_cuda(self, x: &CudaTensor) -> CudaTensor {
        let out = empty_like(x);
        Kernel::new(SOURCE, "dropout")
            .blocks(blocks(x))
            .threads(256)
            .read(x)
            .write(&out)
            .launch(sizes_of(x, &[self]));
        out
    }
}

/// Adds the products of one to four bf16 matrices and the factors of their masks, which have the same rate,
/// to `total`, rounded once.
pub(crate) fn add_on_cuda(total: &CudaTensor, matrices: &[CudaTensor], masks: &[Dropout]) {
    let mut kernel = Kernel::new(SOURCE, "dropout_add").blocks(blocks(total)).threads(256);
    for i in 0..LAYERS {
        kernel = kernel.read(&matrices[i.min(matrices.len() - 1)]);
    }
    kernel.update(total).launch(sizes_of(total, masks));
}
