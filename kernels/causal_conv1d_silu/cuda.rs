//! Launches of `causal_conv1d_silu.cuh`.

use super::CausalConv1dSilu;
use crate::cuda::examples::continued;
use crate::cuda::{
    CudaTensor, Kernel, OnCuda, Sizes, as_bf16, dims, empty_like, launch_with_parts, sizes, view,
};

const SOURCE: &str = "causal_conv1d_silu/causal_conv1d_silu.cuh";
/// The number of taps that the kernel supports.
const TAPS: usize = 4;
/// The number of tokens that one thread processes.
const RUN: usize = 64;

fn sizes_of(rows: usize, width: usize) -> Sizes {
    sizes![rows as u32, width as u32, RUN as u32, 0u32]
}

impl OnCuda<2> for CausalConv1dSilu {
    fn fits(&self, [_, weight]: [[usize; 2]; 2]) -> bool {
        fits(weight[1])
    }

    fn forward(&self, inputs: [CudaTensor; 2], wanted: [bool; 2]) -> ([CudaTensor; 1], Vec<CudaTensor>) {
        let [u, weight] = inputs.map(as_bf16);
        let ((rows, width), y) = (dims(&u), empty_like(&u));
        Kernel::new(SOURCE, "causal_conv1d_silu_forward")
            .grid(width.div_ceil(1024), rows.div_ceil(RUN), 1)
            .threads(128)
            .read(&u)
            .read(&weight)
            .read(&self.position_ids.on_device(&u))
            .write(&y)
            .launch(sizes_of(rows, width));
        let saved = if wanted.contains(&true) { vec![u, weight] } else { Vec::new() };
        ([y], saved)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        [d_output]: [CudaTensor; 1],
        wanted: [bool; 2],
    ) -> [Option<CudaTensor>; 2] {
        let [u, weight] = &saved[..] else { unreachable!("forward saves two tensors") };
        let (d_y, (rows, width), d_u) = (as_bf16(d_output), dims(u), empty_like(u));
        let (runs, position_ids) = (rows.div_ceil(RUN), self.position_ids.on_device(u));
        let name =
            if wanted[1] { "causal_conv1d_silu_backward_weight" } else { "causal_conv1d_silu_backward" };
        let kernel = Kernel::new(SOURCE, name).grid(width.div_ceil(1024), runs, 1).threads(128);
        let kernel = kernel.read(u).read(weight).read(&position_ids).read(&d_y).write(&d_u);
        let parts = wanted[1].then_some([runs, TAPS * width]);
        let d_weight = launch_with_parts(kernel, u, parts, sizes_of(rows, width));
        [Some(d_u), d_weight.map(|sum| view(sum, [width, TAPS]))]
    }
}

/// Returns whether the kernels support this number of taps.
pub(super) fn fits(taps: usize) -> bool {
    taps == TAPS
}

/// Continues examples with so many rows each behind their windows. Returns the results and the next windows,
/// as [`continued`] does.
pub(super) fn steps(
    u: CudaTensor,
    weight: CudaTensor,
    windows: Vec<CudaTensor>,
    counts: &[usize],
    each: bool,
) -> (CudaTensor, Vec<Vec<CudaTensor>>) {
    let [u, weight] = [u, weight].map(as_bf16);
    let windows: Vec<_> = windows.into_iter().map(as_bf16).collect();
    let ((_, width), y) = (dims(&u), empty_like(&u));
    let after = continued(&windows, counts, each, |examples, before, after| {
        let mut sizes = sizes![width as u32, RUN as u32, u32::from(each)];
        examples.push_rows(&mut sizes);
        Kernel::new(SOURCE, "causal_conv1d_silu_steps")
            .grid(width.div_ceil(1024), examples.most.div_ceil(RUN), before.len())
            .threads(128)
            .read(&u)
            .read(&weight)
            .read_each(before)
            .update(&y)
            .write_each(after)
            .launch(sizes);
    });
    (y, after)
}
