//! The memory that tensors take on a device.

use burn::tensor::Device;

/// Returns the bytes that the memory pools of a device hold now, over all streams and including staging
/// buffers: the memory of tensors, and the memory kept for later ones. Returns `None` on the CPU, where the
/// system counts the process's memory. Does not wait for queued work.
pub fn reserved_bytes(device: &Device) -> Option<u64> {
    device.memory_pool_usage().map(|usage| usage.bytes_reserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_processor_is_not_a_devices() {
        assert_eq!(reserved_bytes(&Device::flex()), None);
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn a_tensor_on_device_is_counted() {
        let Some(device) = crate::testing::cuda_device() else { return };
        let before = reserved_bytes(&device).unwrap();
        let tensor = burn::tensor::Tensor::<2>::empty([1 << 12, 1 << 12], &device);
        let after = reserved_bytes(&device).unwrap();
        assert!(after >= before.max(4 << 24), "{before} bytes, then {after} with {:?}", tensor.dims());
    }
}
