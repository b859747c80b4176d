//! Launches of `rope.cuh`.

use super::Rope;
use crate::cuda::{CudaTensor, Kernel, OnCuda, as_bf16, dims, empty_like, sizes};

impl Rope {
    fn rotated_on_device(&self, x: CudaTensor, direction: f32) -> CudaTensor {
        let x = as_bf16(x);
        let ((rows, width), y) = (dims(&x), empty_like(&x));
        let (heads, rotary_dim) = (width / self.head_dim, self.table.rotary_dim());
        let parts = rotary_dim.div_ceil(16) + (self.head_dim - rotary_dim).div_ceil(8);
        let [cosines, sines] = self.table.on_device(&x);
        Kernel::new("rope/rope.cuh", "rope")
            .blocks((rows * heads * parts).div_ceil(256))
            .threads(256)
            .read(&x)
            .read(&cosines)
            .read(&sines)
            .write(&y)
            .launch(sizes![rows as u32, heads as u32, self.head_dim as u32, rotary_dim as u32, direction]);
        y
    }
}

impl OnCuda<1> for Rope {
    fn fits(&self, _: [[usize; 2]; 1]) -> bool {
        true
    }

    fn forward(&self, [x]: [CudaTensor; 1], _: [bool; 1]) -> ([CudaTensor; 1], Vec<CudaTensor>) {
        ([self.rotated_on_device(x, 1.0)], Vec::new())
    }

    fn backward(
        &self,
        _: Vec<CudaTensor>,
        [d_output]: [CudaTensor; 1],
        _: [bool; 1],
    ) -> [Option<CudaTensor>; 1] {
        [Some(self.rotated_on_device(d_output, -1.0))]
    }
}
