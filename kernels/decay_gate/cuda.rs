//! Launches of `decay_gate.cuh`.

use super::DecayGate;
use crate::cuda::{
    CudaTensor, Kernel, OnCuda, as_bf16, as_f32, columns, dims, empty, launch_with_parts, like,
    partial_blocks, sizes,
};
use burn::tensor::DType;

const SOURCE: &str = "decay_gate/decay_gate.cuh";

impl OnCuda<3> for DecayGate {
    fn fits(&self, [a, ..]: [[usize; 2]; 3]) -> bool {
        a[1] <= 256
    }

    fn forward(
        &self,
        [a, a_log, dt_bias]: [CudaTensor; 3],
        wanted: [bool; 3],
    ) -> ([CudaTensor; 1], Vec<CudaTensor>) {
        let (a, a_log, dt_bias) = (as_bf16(a), as_f32(a_log), as_f32(dt_bias));
        let (rows, heads) = dims(&a);
        let g = empty(&a, [rows, heads], DType::F32);
        Kernel::new(SOURCE, "decay_gate_forward")
            .blocks((rows * heads).div_ceil(256))
            .threads(256)
            .read(&a)
            .read(&a_log)
            .read(&dt_bias)
            .write(&g)
            .launch(sizes![rows as u32, heads as u32]);
        let saved = if wanted.contains(&true) { vec![a, a_log, dt_bias] } else { Vec::new() };
        ([g], saved)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        [d_output]: [CudaTensor; 1],
        wanted: [bool; 3],
    ) -> [Option<CudaTensor>; 3] {
        let [a, a_log, dt_bias] = &saved[..] else { unreachable!("forward saves three tensors") };
        let (d_g, (rows, heads), d_a) = (as_f32(d_output), dims(a), like(a));
        let parameters = wanted[1] || wanted[2];
        let all = rows.div_ceil(256 / heads);
        let blocks = if parameters { partial_blocks(all) } else { all };
        let name = if parameters { "decay_gate_backward_parameters" } else { "decay_gate_backward" };
        let kernel = Kernel::new(SOURCE, name).blocks(blocks).threads(256);
        let kernel = kernel.read(a).read(a_log).read(dt_bias).read(&d_g).write(&d_a);
        let sizes = sizes![rows as u32, heads as u32];
        let sums = launch_with_parts(kernel, a, parameters.then_some([blocks, 2 * heads]), sizes);
        let of = |first: usize| sums.as_ref().map(|sums| columns(sums, first, heads));
        [Some(d_a), of(0), of(heads)]
    }
}
