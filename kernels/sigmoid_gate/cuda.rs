//! Launches of `sigmoid_gate.cuh`.

use super::SigmoidGate;
use crate::cuda::{CudaTensor, Kernel, OnCuda, as_bf16, dims, empty_like, sizes};

const SOURCE: &str = "sigmoid_gate/sigmoid_gate.cuh";

impl SigmoidGate {
    /// A kernel over the heads of `attention`, with its sizes.
    fn kernel(&self, name: &'static str, attention: &CudaTensor) -> (Kernel, usize) {
        let (rows, width) = dims(attention);
        let heads = rows * width / self.head_dim;
        let blocks = (heads * self.head_dim.div_ceil(8)).div_ceil(256);
        (Kernel::new(SOURCE, name).blocks(blocks).threads(256), heads)
    }
}

impl OnCuda<2> for SigmoidGate {
    fn fits(&self, _: [[usize; 2]; 2]) -> bool {
        true
    }

    fn forward(&self, inputs: [CudaTensor; 2], wanted: [bool; 2]) -> ([CudaTensor; 1], Vec<CudaTensor>) {
        let [attention, joint] = inputs.map(as_bf16);
        let (y, (kernel, heads)) = (empty_like(&attention), self.kernel("sigmoid_gate_forward", &attention));
        kernel.read(&attention).read(&joint).write(&y).launch(sizes![heads as u32, self.head_dim as u32]);
        let saved = if wanted.contains(&true) { vec![attention, joint] } else { Vec::new() };
        ([y], saved)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        [d_output]: [CudaTensor; 1],
        _: [bool; 2],
    ) -> [Option<CudaTensor>; 2] {
        let [attention, joint] = &saved[..] else { unreachable!("forward saves two tensors") };
        let (d_y, d_attention, d_joint) = (as_bf16(d_output), empty_like(attention), empty_like(joint));
        let (kernel, heads) = self.kernel("sigmoid_gate_backward", attention);
        kernel
            .read(attention)
            .read(joint)
            .read(&d_y)
            .write(&d_attention)
            .write(&d_joint)
            .launch(sizes![heads as u32, self.head_dim as u32]);
        [Some(d_attention), Some(d_joint)]
    }
}
