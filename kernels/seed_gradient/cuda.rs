//! The op on the device, from burn's product and sum, and the factor of `scale.cuh`.

use burn::backend::Cube;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::Shape;

use super::SeedGradient;
use crate::cuda::{CudaTensor, OnCuda, as_f32, contiguous, scaled};

impl OnCuda<2> for SeedGradient {
    fn fits(&self, _: [[usize; 2]; 2]) -> bool {
        true
    }

    fn forward(&self, [y, dy]: [CudaTensor; 2], wanted: [bool; 2]) -> ([CudaTensor; 1], Vec<CudaTensor>) {
        let product = Cube::float_mul(as_f32(y.clone()), as_f32(dy.clone()));
        let total = Cube::float_reshape(Cube::float_sum(product), Shape::new([1, 1]));
        let saved = if wanted[1] { vec![dy, y] } else { vec![dy] };
        ([contiguous(total)], saved)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        [d_output]: [CudaTensor; 1],
        wanted: [bool; 2],
    ) -> [Option<CudaTensor>; 2] {
        scaled(saved, d_output, wanted)
    }
}
