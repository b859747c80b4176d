//! Launches of `silu_mul.cuh`.

use super::SiluMul;
use crate::cuda::{CudaTensor, Kernel, OnCuda, as_bf16, dims, empty_like, sizes};

const SOURCE: &str = "silu_mul/silu_mul.cuh";

impl OnCuda<2> for SiluMul {
    fn fits(&self, _: [[usize; 2]; 2]) -> bool {
        true
    }

    fn forward(&self, inputs: [CudaTensor; 2], wanted: [bool; 2]) -> ([CudaTensor; 1], Vec<CudaTensor>) {
        let [gate, up] = inputs.map(as_bf16);
        let (out, count) = (empty_like(&gate), count(&gate));
        Kernel::new(SOURCE, "silu_mul_forward")
            .blocks(count.div_ceil(2048))
            .threads(256)
            .read(&gate)
            .read(&up)
            .write(&out)
            .launch(sizes![count as u64]);
        let saved = if wanted.contains(&true) { vec![gate, up] } else { Vec::new() };
        ([out], saved)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        [d_output]: [CudaTensor; 1],
        _: [bool; 2],
    ) -> [Option<CudaTensor>; 2] {
        let (d_output, count) = (as_bf16(d_output), count(&saved[0]));
        let (d_gate, d_up) = (empty_like(&saved[0]), empty_like(&saved[0]));
        Kernel::new(SOURCE, "silu_mul_backward")
            .blocks(count.div_ceil(2048))
            .threads(256)
            .read(&saved[0])
            .read(&saved[1])
            .read(&d_output)
            .write(&d_gate)
            .write(&d_up)
            .launch(sizes![count as u64]);
        [Some(d_gate), Some(d_up)]
    }
}

fn count(tensor: &CudaTensor) -> usize {
    let (rows, columns) = dims(tensor);
    rows * columns
}
