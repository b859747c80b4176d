//! Launches of `rms_norm.cuh`.

use super::{AddRmsNorm, RmsNorm};
use crate::cuda::{
    CudaTensor, Kernel, OnCuda, Sizes, as_bf16, as_f32, dims, empty_like, launch_with_parts, partial_blocks,
    sizes,
};

const SOURCE: &str = "rms_norm/rms_norm.cuh";
/// The largest width of a row, which stays in the registers of one block.
const WIDEST: usize = 8192;

impl RmsNorm {
    fn sizes(&self, rows: usize, width: usize) -> Sizes {
        sizes![rows as u32, width as u32, self.eps, self.offset]
    }
}

fn threads(width: usize) -> usize {
    width.div_ceil(8).next_multiple_of(32).min(256)
}

impl OnCuda<2> for RmsNorm {
    fn fits(&self, [x, _]: [[usize; 2]; 2]) -> bool {
        x[1] <= WIDEST
    }

    fn forward(&self, [x, weight]: [CudaTensor; 2], wanted: [bool; 2]) -> ([CudaTensor; 1], Vec<CudaTensor>) {
        let (x, weight) = (as_bf16(x), as_f32(weight));
        let ((rows, width), y) = (dims(&x), empty_like(&x));
        Kernel::new(SOURCE, "rms_norm_forward")
            .blocks(rows)
            .threads(threads(width))
            .read(&x)
            .read(&weight)
            .write(&y)
            .launch(self.sizes(rows, width));
        let saved = if wanted.contains(&true) { vec![x, weight] } else { Vec::new() };
        ([y], saved)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        [d_output]: [CudaTensor; 1],
        wanted: [bool; 2],
    ) -> [Option<CudaTensor>; 2] {
        let [x, weight] = &saved[..] else { unreachable!("forward saves two tensors") };
        let (d_y, (rows, width), d_x) = (as_bf16(d_output), dims(x), empty_like(x));
        let blocks = if wanted[1] { partial_blocks(rows) } else { rows };
        let name = if wanted[1] { "rms_norm_backward_weight" } else { "rms_norm_backward" };
        let kernel = Kernel::new(SOURCE, name).blocks(blocks).threads(threads(width));
        let kernel = kernel.read(x).read(weight).read(&d_y).write(&d_x);
        let parts = wanted[1].then_some([blocks, width]);
        let d_weight = launch_with_parts(kernel, x, parts, self.sizes(rows, width));
        [Some(d_x), d_weight]
    }
}

impl OnCuda<3, 2> for AddRmsNorm {
    fn fits(&self, [x, ..]: [[usize; 2]; 3]) -> bool {
        x[1] <= WIDEST
    }

    fn forward(
        &self,
        [x, residual, weight]: [CudaTensor; 3],
        wanted: [bool; 3],
    ) -> ([CudaTensor; 2], Vec<CudaTensor>) {
        let (x, residual, weight) = (as_bf16(x), as_bf16(residual), as_f32(weight));
        let ((rows, width), h, y) = (dims(&x), empty_like(&x), empty_like(&x));
        Kernel::new(SOURCE, "add_rms_norm_forward")
            .blocks(rows)
            .threads(threads(width))
            .read(&x)
            .read(&residual)
            .read(&weight)
            .write(&h)
            .write(&y)
            .launch(self.norm.sizes(rows, width));
        let saved = if wanted.contains(&true) { vec![h.clone(), weight] } else { Vec::new() };
        ([y, h], saved)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        [d_y, d_h]: [CudaTensor; 2],
        wanted: [bool; 3],
    ) -> [Option<CudaTensor>; 3] {
        let [h, weight] = &saved[..] else { unreachable!("forward saves two tensors") };
        let (d_y, d_h, (rows, width), d_x) = (as_bf16(d_y), as_bf16(d_h), dims(h), empty_like(h));
        let blocks = if wanted[2] { partial_blocks(rows) } else { rows };
        let name = if wanted[2] { "add_rms_norm_backward_weight" } else { "add_rms_norm_backward" };
        let kernel = Kernel::new(SOURCE, name).blocks(blocks).threads(threads(width));
        let kernel = kernel.read(h).read(weight).read(&d_y).read(&d_h).write(&d_x);
        let parts = wanted[2].then_some([blocks, width]);
        let d_weight = launch_with_parts(kernel, h, parts, self.norm.sizes(rows, width));
        [Some(d_x.clone()), Some(d_x), d_weight]
    }
}
