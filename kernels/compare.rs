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

/// A row or a column of a result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// Its place, from 0.
    pub index: usize,
    /// Its distance from the expected one, relative to that, or to the average line where that is larger: a
    /// wrong line has about 1. It is infinite if there is a NaN.
    pub distance: f32,
}

/// Returns the row and the column that are furthest from the expected ones. The distance of the whole hides a
/// single wrong line: one of 5,376 rows is 1.4 %.
pub fn worst_lines(got: &Tensor<2>, expected: &Tensor<2>) -> [Line; 2] {
    let [rows, columns] = expected.dims();
    let got = got.clone().inner().into_data().try_to_vec::<f32>().expect("f32");
    let expected = expected.clone().inner().into_data().try_to_vec::<f32>().expect("f32");
    let mut sums = [vec![(0.0f64, 0.0f64); rows], vec![(0.0, 0.0); columns]];
    for (place, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let (got, expected) = (f64::from(*got), f64::from(*expected));
        let [row, column] = &mut sums;
        for (difference, norm) in [&mut row[place / columns], &mut column[place % columns]] {
            *difference += (got - expected).powi(2);
            *norm += expected * expected;
        }
    }
    sums.map(|lines| {
        let average = lines.iter().map(|(_, norm)| norm).sum::<f64>() / lines.len().max(1) as f64;
        let distances = lines.iter().map(|(difference, norm)| {
            let distance = (difference / norm.max(average).max(f64::MIN_POSITIVE)).sqrt() as f32;
            if distance.is_nan() { f32::INFINITY } else { distance }
        });
        let worst = distances.enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
        let (index, distance) = worst.unwrap_or_default();
        Line { index, distance }
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_row_or_column_shows_beside_a_small_distance_of_the_whole() {
        let (rows, columns) = (2000, 40);
        let expected = random(1, rows, columns);
        let exact = worst_lines(&expected, &expected);
        assert!(exact.iter().all(|line| line.distance == 0.0), "{exact:?}");
        let other = random(2, rows, columns);
        let row =
            expected.clone().slice_assign([17..18, 0..columns], other.clone().slice([17..18, 0..columns]));
        assert!(distance(&row, &expected) < 0.05);
        let [worst, column] = worst_lines(&row, &expected);
        assert!(worst.index == 17 && worst.distance > 0.5 && column.distance < 0.1, "{worst:?}, {column:?}");
        let column = expected.clone().slice_assign([0..rows, 39..40], other.slice([0..rows, 39..40]));
        let [_, worst] = worst_lines(&column, &expected);
        assert!(worst.index == 39 && worst.distance > 0.5, "{worst:?}");
        let unwritten =
            expected.clone().slice_assign([3..4, 5..6], Tensor::full([1, 1], f32::NAN, &Device::flex()));
        let [row, column] = worst_lines(&unwritten, &expected);
        assert_eq!(
            [(row.index, row.distance), (column.index, column.distance)],
            [(3, f32::INFINITY), (5, f32::INFINITY)]
        );
    }
}
