//! Launches of `gated_rms_norm.cuh`.

use super::GatedRmsNorm;
use crate::cuda::{
    CudaTensor, Kernel, OnCuda, as_bf16, as_f32, dims, empty_like, lanes, launch_with_parts, partial_blocks,
    sizes,
};

const SOURCE: &str = "gated_rms_norm/gated_rms_norm.cuh";

impl OnCuda<3> for GatedRmsNorm {
    fn fits(&self, [_, _, weight]: [[usize; 2]; 3]) -> bool {
        weight[1] <= 256
    }

    fn forward(
        &self,
        [x, z, weight]: [CudaTensor; 3],
        wanted: [bool; 3],
    ) -> ([CudaTensor; 1], Vec<CudaTensor>) {
        let (x, z, weight) = (as_bf16(x), as_bf16(z), as_f32(weight));
        let ((rows, columns), (_, width), y) = (dims(&x), dims(&weight), empty_like(&x));
        let (vectors, lanes) = (rows * columns / width, lanes(width));
        Kernel::new(SOURCE, "gated_rms_norm_forward")
            .blocks((vectors * lanes).div_ceil(256))
            .threads(256)
            .read(&x)
            .read(&z)
            .read(&weight)
            .write(&y)
            .launch(sizes![vectors as u32, width as u32, lanes as u32, self.eps]);
        let saved = if wanted.contains(&true) { vec![x, z, weight] } else { Vec::new() };
        ([y], saved)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        [d_output]: [CudaTensor; 1],
        wanted: [bool; 3],
    ) -> [Option<CudaTensor>; 3] {
        let [x, z, weight] = &saved[..] else { unreachable!("forward saves three tensors") };
        let (d_y, (rows, columns), (_, width)) = (as_bf16(d_output), dims(x), dims(weight));
        let (d_x, d_z) = (empty_like(x), empty_like(z));
        let (vectors, lanes) = (rows * columns / width, lanes(width));
        let all = (vectors * lanes).div_ceil(256);
        let blocks = if wanted[2] { partial_blocks(all) } else { all };
        let name = if wanted[2] { "gated_rms_norm_backward_weight" } else { "gated_rms_norm_backward" };
        let kernel = Kernel::new(SOURCE, name).blocks(blocks).threads(256);
        let kernel = kernel.read(x).read(z).read(weight).read(&d_y).write(&d_x).write(&d_z);
        let sizes = sizes![vectors as u32, width as u32, lanes as u32, self.eps];
        let d_weight = launch_with_parts(kernel, x, wanted[2].then_some([blocks, width]), sizes);
        [Some(d_x), Some(d_z), d_weight]
    }
}
