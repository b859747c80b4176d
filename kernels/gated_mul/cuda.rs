//! The launches of `silu_mul.cuh` and `gelu_mul.cuh`, whose kernels take the same arguments.

use crate::cuda::{CudaTensor, Kernel, as_bf16, dims, empty_like, sizes};

/// The result on the device, and what the backward pass needs. `kernel` is the name of one in `source`.
pub(crate) fn forward(
    source: &'static str,
    kernel: &'static str,
    inputs: [CudaTensor; 2],
    wanted: [bool; 2],
) -> ([CudaTensor; 1], Vec<CudaTensor>) {
    let [gate, up] = inputs.map(as_bf16);
    let (out, count) = (empty_like(&gate), count(&gate));
    Kernel::new(source, kernel)
        .blocks(count.div_ceil(2048))
        .threads(256)
        .read(&gate)
        .read(&up)
        .write(&out)
        .launch(sizes![count as u64]);
    let saved = if wanted.contains(&true) { vec![gate, up] } else { Vec::new() };
    ([out], saved)
}

/// The gradients of gate and up on the device.
pub(crate) fn backward(
    source: &'static str,
    kernel: &'static str,
    saved: &[CudaTensor],
    d_output: CudaTensor,
) -> [Option<CudaTensor>; 2] {
    let (d_output, count) = (as_bf16(d_output), count(&saved[0]));
    let (d_gate, d_up) = (empty_like(&saved[0]), empty_like(&saved[0]));
    Kernel::new(source, kernel)
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

fn count(tensor: &CudaTensor) -> usize {
    let (rows, columns) = dims(tensor);
    rows * columns
}
