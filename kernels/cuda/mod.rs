//! The connection of ops to their CUDA kernels: the trait that they implement, device tensors, and launches.
//!
//! Tensors here are contiguous and 16-byte aligned. Activations and matrices are bf16; vectors (norms,
//! biases, gates), statistics and gradients of parameters are f32. Nothing here waits for the device.

pub(crate) mod examples;
mod launch;
mod source;
mod tensor;

use burn::tensor::DType;
pub use launch::launches;
pub(crate) use launch::{Buffer, Kernel, Sizes, sizes};
pub use tensor::{CudaTensor, as_bf16, as_f32, copy, dims, into_tensor, primitive};
pub(crate) use tensor::{contiguous, empty, empty_like, own, part, view, zeros};

/// The kernels of an op for CUDA devices.
pub trait OnCuda<const N: usize, const M: usize = 1> {
    /// Returns whether the kernels support inputs of these shapes. Otherwise the op's reference is computed.
    fn fits(&self, inputs: [[usize; 2]; N]) -> bool;

    /// Like [`Op::forward`](crate::Op::forward), on the device.
    fn forward(&self, inputs: [CudaTensor; N], wanted: [bool; N]) -> ([CudaTensor; M], Vec<CudaTensor>);

    /// Like [`Op::backward`](crate::Op::backward), on the device.
    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        d_outputs: [CudaTensor; M],
        wanted: [bool; N],
    ) -> [Option<CudaTensor>; N];
}

/// The largest number of layers in one launch.
pub(crate) const LAYERS: usize = 4;

/// The kernels of a [`Group`](crate::group::Group) for CUDA devices.
pub trait GroupOnCuda {
    /// Like [`OnCuda::fits`].
    fn fits(&self, inputs: &[[usize; 2]]) -> bool;

    /// Like [`OnCuda::forward`].
    fn forward(&self, inputs: Vec<CudaTensor>, wanted: &[bool]) -> (Vec<CudaTensor>, Vec<CudaTensor>);

    /// Like [`OnCuda::backward`].
    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        d_outputs: Vec<CudaTensor>,
        wanted: &[bool],
    ) -> Vec<Option<CudaTensor>>;
}

/// Launches a backward kernel. If `parts` is a shape, the kernel gets one more buffer of it to write: f32,
/// with a row of the weight's gradient from each block. Returns the sum of these rows in order, `[1, width]`.
pub(crate) fn launch_with_parts(
    kernel: Kernel,
    like: &CudaTensor,
    parts: Option<[usize; 2]>,
    sizes: Sizes,
) -> Option<CudaTensor> {
    let Some([blocks, width]) = parts else {
        kernel.launch(sizes);
        return None;
    };
    let partial = empty(like, [blocks, width], DType::F32);
    kernel.write(&partial).launch(sizes);
    let total = empty(like, [1, width], DType::F32);
    Kernel::new("sum_rows/sum_rows.cuh", "sum_rows")
        .blocks(width.div_ceil(32))
        .threads(256)
        .read(&partial)
        .write(&total)
        .launch(sizes![blocks as u32, width as u32]);
    Some(total)
}

/// Concatenates one to four bf16 matrices of the same width vertically.
pub(crate) fn stacked(matrices: &[CudaTensor]) -> CudaTensor {
    if let [matrix] = matrices {
        return matrix.clone();
    }
    let counts: [usize; LAYERS] =
        std::array::from_fn(|i| matrices.get(i).map_or(0, |matrix| dims(matrix).0 * dims(matrix).1));
    let all = empty(
        &matrices[0],
        [matrices.iter().map(|matrix| dims(matrix).0).sum(), dims(&matrices[0]).1],
        DType::BF16,
    );
    let largest = counts.iter().max().expect("there are matrices");
    let mut kernel =
        Kernel::new("stack/stack.cuh", "stack").grid(largest.div_ceil(2048), matrices.len(), 1).threads(256);
    for i in 0..LAYERS {
        kernel = kernel.read(&matrices[i.min(matrices.len() - 1)]);
    }
    let [a, b, c, d] = counts.map(|count| count as u32);
    kernel.write(&all).launch(sizes![a, b, c, d]);
    all
}

/// Returns the number of blocks that share the rows of a weight gradient: enough to fill a device, and always
/// the same for a shape.
pub(crate) fn partial_blocks(groups: usize) -> usize {
    groups.clamp(1, 256)
}

/// Returns the number of lanes that share a vector of `width` numbers, eight numbers each.
pub(crate) fn lanes(width: usize) -> usize {
    width.div_ceil(8).next_power_of_two()
}

/// Multiplies the gradients of two inputs that a scalar result's forward pass kept by the gradient of the
/// result, `[1, 1]`. They are not changed if that is one. `wanted` is as in [`OnCuda::backward`].
pub(crate) fn scaled(
    saved: Vec<CudaTensor>,
    d_output: CudaTensor,
    wanted: [bool; 2],
) -> [Option<CudaTensor>; 2] {
    let factor = as_f32(d_output);
    let mut saved = saved.into_iter().map(|gradient| scale_in_place(gradient, &factor));
    let first = saved.next().filter(|_| wanted[0]);
    [first, saved.next()]
}

/// Returns `factor · x`, in place if `x` is not shared.
fn scale_in_place(x: CudaTensor, factor: &CudaTensor) -> CudaTensor {
    let ((rows, columns), wide) = (dims(&x), x.dtype == DType::F32);
    let x = own(x);
    Kernel::new("scale/scale.cuh", if wide { "scale_f32" } else { "scale_bf16" })
        .blocks((rows * columns).div_ceil(2048))
        .threads(256)
        .read(factor)
        .update(&x)
        .launch(sizes![(rows * columns) as u64]);
    x
}
