//! Launches of `delta_gates.cuh`.

use burn::tensor::DType;

use super::DeltaGates;
use crate::cuda::{
    CudaTensor, Kernel, OnCuda, as_bf16, as_f32, dims, empty, empty_like, launch_with_parts, part,
    partial_blocks, sizes,
};

const SOURCE: &str = "delta_gates/delta_gates.cuh";

impl OnCuda<4, 2> for DeltaGates {
    fn fits(&self, [a, ..]: [[usize; 2]; 4]) -> bool {
        a[1] <= 256
    }

    fn forward(
        &self,
        [a, b, a_log, dt_bias]: [CudaTensor; 4],
        wanted: [bool; 4],
    ) -> ([CudaTensor; 2], Vec<CudaTensor>) {
        let (a, b, a_log, dt_bias) = (as_bf16(a), as_bf16(b), as_f32(a_log), as_f32(dt_bias));
        let (rows, heads) = dims(&a);
        let [g, beta] = [(); 2].map(|()| empty(&a, [rows, heads], DType::F32));
        Kernel::new(SOURCE, "delta_gates_forward")
            .blocks((rows * heads).div_ceil(256))
            .threads(256)
            .read(&a)
            .read(&b)
            .read(&a_log)
            .read(&dt_bias)
            .write(&g)
            .write(&beta)
            .launch(sizes![rows as u32, heads as u32]);
        let saved = if wanted.contains(&true) { vec![a, b, a_log, dt_bias] } else { Vec::new() };
        ([g, beta], saved)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        d_outputs: [CudaTensor; 2],
        wanted: [bool; 4],
    ) -> [Option<CudaTensor>; 4] {
        let [a, b, a_log, dt_bias] = &saved[..] else { unreachable!("forward saves four tensors") };
        let [d_g, d_beta] = d_outputs.map(as_f32);
        let ((rows, heads), d_a, d_b) = (dims(a), empty_like(a), empty_like(b));
        let parameters = wanted[2] || wanted[3];
        let all = rows.div_ceil(256 / heads);
        let blocks = if parameters { partial_blocks(all) } else { all };
        let name = if parameters { "delta_gates_backward_parameters" } else { "delta_gates_backward" };
        let kernel = Kernel::new(SOURCE, name).blocks(blocks).threads(256);
        let kernel = kernel.read(a).read(b).read(a_log).read(dt_bias).read(&d_g).read(&d_beta);
        let sums = launch_with_parts(
            kernel.write(&d_a).write(&d_b),
            a,
            parameters.then_some([blocks, 2 * heads]),
            sizes![rows as u32, heads as u32],
        );
        let of = |first: usize| sums.as_ref().map(|sums| part(sums, first, heads));
        [Some(d_a), Some(d_b), of(0), of(heads)]
    }
}
