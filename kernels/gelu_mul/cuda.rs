//! Launches of `gelu_mul.cuh`.

use super::GeluMul;
use crate::cuda::{CudaTensor, OnCuda};
use crate::gated_mul::cuda::{backward, forward};

const SOURCE: &str = "gelu_mul/gelu_mul.cuh";

impl OnCuda<2> for GeluMul {
    fn fits(&self, _: [[usize; 2]; 2]) -> bool {
        true
    }

    fn forward(&self, inputs: [CudaTensor; 2], wanted: [bool; 2]) -> ([CudaTensor; 1], Vec<CudaTensor>) {
        forward(SOURCE, "gelu_mul_forward", inputs, wanted)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        [d_output]: [CudaTensor; 1],
        _: [bool; 2],
    ) -> [Option<CudaTensor>; 2] {
        backward(SOURCE, "gelu_mul_backward", &saved, d_output)
    }
}
