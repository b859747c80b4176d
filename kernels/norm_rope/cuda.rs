//! Launches of `norm_rope.cuh`.

use burn::tensor::DType;

use super::NormRope;
use crate::cuda::{
    CudaTensor, Kernel, OnCuda, Sizes, as_bf16, as_f32, dims, empty, empty_like, lanes, launch_with_parts,
    partial_blocks, sizes,
};

const SOURCE: &str = "norm_rope/norm_rope.cuh";

impl NormRope {
    fn sizes(&self, rows: usize, heads: usize, head_dim: usize) -> Sizes {
        let (stride, rotary_dim) = (self.norm.stride, self.rope.table.rotary_dim());
        let counts = [rows, heads, head_dim, stride, rotary_dim, lanes(head_dim)].map(|count| count as u32);
        let [rows, heads, head_dim, stride, rotary_dim, lanes] = counts;
        sizes![rows, heads, head_dim, stride, rotary_dim, lanes, self.norm.eps, self.norm.offset]
    }
}

impl OnCuda<2> for NormRope {
    fn fits(&self, [_, weight]: [[usize; 2]; 2]) -> bool {
        weight[1] <= 256
            && self.rope.table.rotary_dim().is_multiple_of(16)
            && self.norm.stride.is_multiple_of(weight[1])
    }

    fn forward(&self, [x, weight]: [CudaTensor; 2], wanted: [bool; 2]) -> ([CudaTensor; 1], Vec<CudaTensor>) {
        let (x, weight) = (as_bf16(x), as_f32(weight));
        let ((rows, width), (_, head_dim)) = (dims(&x), dims(&weight));
        let heads = width / self.norm.stride;
        let y = empty(&x, [rows, heads * head_dim], DType::BF16);
        let [cosines, sines] = self.rope.table.on_device(&x);
        Kernel::new(SOURCE, "norm_rope_forward")
            .blocks((rows * heads * lanes(head_dim)).div_ceil(256))
            .threads(256)
            .read(&x)
            .read(&weight)
            .read(&cosines)
            .read(&sines)
            .write(&y)
            .launch(self.sizes(rows, heads, head_dim));
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
        let (d_y, d_x, (rows, width), (_, head_dim)) =
            (as_bf16(d_output), empty_like(x), dims(x), dims(weight));
        let heads = width / self.norm.stride;
        let all = (rows * heads * lanes(head_dim)).div_ceil(256);
        let blocks = if wanted[1] { partial_blocks(all) } else { all };
        let [cosines, sines] = self.rope.table.on_device(x);
        let name = if wanted[1] { "norm_rope_backward_weight" } else { "norm_rope_backward" };
        let kernel = Kernel::new(SOURCE, name).blocks(blocks).threads(256);
        let kernel = kernel.read(x).read(weight).read(&cosines).read(&sines).read(&d_y).write(&d_x);
        let parts = wanted[1].then_some([blocks, head_dim]);
        let d_weight = launch_with_parts(kernel, x, parts, self.sizes(rows, heads, head_dim));
        [Some(d_x), d_weight]
    }
}
