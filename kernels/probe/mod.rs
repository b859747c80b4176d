//! Tries a CUDA device out before it is trained on: a kernel with the 99 KB of shared memory that the largest
//! kernels of a training step declare, and a load under which its clock can be read.

use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, Tensor};

use crate::cuda::{Kernel, as_bf16, empty, into_tensor, primitive, sizes};
use crate::linear::cuda::{Product, product};

/// The number of f32 values that fill the shared memory.
const WORDS: usize = 101_376 / 4;

/// Compiles, launches and reads back a kernel with 99 KB of shared memory. Returns whether all its numbers
/// are right.
///
/// # Panics
/// When the device's runtime fails, for example because NVRTC refuses the kernel.
pub fn shared_memory_works(device: &Device) -> bool {
    const FIRST: f32 = 7.0;
    let reversed = empty(&primitive(Tensor::zeros([1, 1], device)), [1, WORDS], DType::F32);
    Kernel::new("probe/probe.cuh", "probe").threads(256).write(&reversed).launch(sizes![FIRST]);
    let numbers = into_tensor(reversed).into_data();
    let expected = (0..WORDS).map(|i| FIRST + (WORDS - 1 - i) as f32);
    numbers.iter::<f32>().eq(expected)
}

/// Multiplies bf16 matrices for `duration`, and calls `between` about a hundred times a second.
///
/// # Panics
/// When the device's runtime fails.
pub fn keep_busy(device: &Device, duration: Duration, mut between: impl FnMut()) {
    // One product takes 11 ms on a GB10 and 3 ms on an H200.
    const SIDE: usize = 8192;
    let matrix = as_bf16(primitive(Tensor::ones([SIDE, SIDE], device)));
    let ends = Instant::now() + duration;
    while Instant::now() < ends {
        let last = product(Product::Forward, &matrix, &matrix, 1.0);
        // Reading a number waits for the product.
        let _ = into_tensor(last).slice([0..1, 0..1]).into_data();
        between();
    }
}

#[cfg(test)]
mod on_device {
    use crate::testing::cuda_device;

    #[test]
    fn all_shared_memory_of_a_block_can_be_used() {
        let Some(device) = cuda_device() else { return };
        assert!(super::shared_memory_works(&device));
    }
}
