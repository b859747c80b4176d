//! Numbers for testing ops, and the distance of a result from the expected one.

#![cfg_attr(
    not(feature = "cuda"),
    expect(unreachable_pub, reason = "builds with CUDA hand these to the benchmarks")
)]

use burn::tensor::{Device, Tensor, TensorData};
use sparktune_base::random::{GAMMA, SplitMix64};

/// The number of values before they repeat, so that a large tensor is created quickly. It is a prime, so that
/// rows differ.
const PERIOD: usize = (1 << 22) - 3;

/// Returns reproducible numbers in (-1.5, 1.5) as a `[rows, columns]` tensor on the CPU, outside autodiff.
pub fn random(seed: u64, rows: usize, columns: usize) -> Tensor<2> {
    random_through(seed, rows, columns, |x| x)
}

/// Returns `f` of such numbers.
pub fn random_through(seed: u64, rows: usize, columns: usize, f: impl Fn(f32) -> f32) -> Tensor<2> {
    let mut bits = SplitMix64::new(seed.wrapping_mul(GAMMA));
    let mut next = || (bits.next_u64() >> 40) as f32 / (1u64 << 24) as f32 * 3.0 - 1.5;
    let count = rows * columns;
    let mut numbers = Vec::with_capacity(count);
    numbers.extend((0..count.min(PERIOD)).map(|_| f(next())));
    while numbers.len() < count {
        numbers.extend_from_within(..(count - numbers.len()).min(PERIOD));
    }
    Tensor::from_data(TensorData::new(numbers, [rows, columns]), &Device::flex())
}

/// Returns the relative L2 distance; NaN if either has a NaN.
pub fn distance(got: &Tensor<2>, expected: &Tensor<2>) -> f32 {
    let got = got.clone().inner().into_data().try_to_vec::<f32>().expect("f32");
    let expected = expected.clone().inner().into_data().try_to_vec::<f32>().expect("f32");
    assert_eq!(got.len(), expected.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = got.iter().zip(&expected).map(|(a, b)| square(a - b)).sum();
    let norm: f64 = expected.iter().map(|b| square(*b)).sum();
    if norm == 0.0 { difference.sqrt() as f32 } else { (difference / norm).sqrt() as f32 }
}
