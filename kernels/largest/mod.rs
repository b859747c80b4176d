//! The largest logits of each row, chosen on a device, so that a token can be drawn without the other ones.

#[cfg(feature = "cuda")]
mod cuda;

use burn::tensor::Tensor;

#[cfg(feature = "cuda")]
use crate::cuda::primitive;
use crate::op::on_cpu;

/// The number of logits that [`largest`] returns of each row, if the row has so many that are numbers.
pub const MOST: usize = 64;

/// The number of keys that a block sorts.
pub(crate) const SORTED: usize = 4096;

/// Returns the [`MOST`] largest logits of each row of `[n, V]`, in fp32, with their tokens: sorted, the first
/// of equals in front, without those that are no numbers. `None` on the CPU, where all logits are at hand.
pub fn largest(logits: &Tensor<2>) -> Option<Vec<Vec<(u32, f32)>>> {
    if on_cpu(logits) {
        return None;
    }
    #[cfg(feature = "cuda")]
    return Some(cuda::largest(primitive(logits.clone())));
    #[cfg(not(feature = "cuda"))]
    unreachable!("without CUDA, every tensor is on the CPU");
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;
    use crate::check::random;

    /// What a device returns, by sorting.
    fn sorted(row: &[f32]) -> Vec<(u32, f32)> {
        let numbers = row.iter().enumerate().filter(|(_, logit)| !logit.is_nan());
        let mut all: Vec<(u32, f32)> = numbers.map(|(token, logit)| (token as u32, *logit)).collect();
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("these are numbers"));
        all.truncate(MOST);
        all
    }

    #[test]
    fn the_largest_on_device_are_those_of_a_stable_sort() {
        let Some(device) = crate::testing::cuda_device() else { return };
        for (rows, vocabulary) in [(1, 5), (3, 4096), (2, 5000)] {
            let logits = random(1, rows, vocabulary).into_data();
            let mut logits: Vec<f32> = logits.try_to_vec().unwrap();
            logits[..4].copy_from_slice(&[f32::NAN, 0.0, -0.0, f32::NEG_INFINITY]);
            let data = TensorData::new(logits.clone(), [rows, vocabulary]);
            let here = Tensor::<2>::from_data(data, &Device::flex());
            assert_eq!(largest(&here), None);
            let expected: Vec<_> = logits.chunks_exact(vocabulary).map(sorted).collect();
            assert_eq!(largest(&here.to_device(&device)), Some(expected), "{rows} rows of {vocabulary}");
        }
    }
}
