//! Launches of `silu_mul.cuh`.

use super::SiluMul;
use crate::cuda::{CudaTensor, OnCuda};
use crate::gated_mul::cuda::{backward, forward};

const SOURCE: &str = "silu_mul/silu_mul.cuh";

impl OnCuda<2> for SiluMul {
    fn fits(&self, _: [[usize; 2]; 2]) -> bool {
        true
    }

    fn forward(&self, inputs: [CudaTensor; 2], wanted: [bool; 2]) -> ([CudaTensor; 1], Vec<CudaTensor>) {
        forward(SOURCE, "silu_mul_forward", inputs, wanted)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        [d_output]: [CudaTensor; 1],
        _: [bool; 2],
    ) -> [Option<CudaTensor>; 2] {
        backward(SOURCE, "silu_mul_backward", &saved, d_output)
    }
}

/// Returns `silu(gate) ⊙ up`.
pub(crate) fn product(gate: &CudaTensor, up: &CudaTensor) -> CudaTensor {
    let ([product], _) = forward(SOURCE, "silu_mul_forward", [gate.clone(), up.clone()], [false; 2]);
    product
}

/// Returns the gradients of gate and up, given that of `silu(gate) ⊙ up`.
pub(crate) fn gradients(gate_and_up: [&CudaTensor; 2], d_output: CudaTensor) -> [CudaTensor; 2] {
    let both = backward(SOURCE, "silu_mul_backward", &gate_and_up.map(CudaTensor::clone), d_output);
    both.map(|gradient| gradient.expect("there are two"))
}
