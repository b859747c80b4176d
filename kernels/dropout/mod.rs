//! Dropout of the input of an adapter: each number is 0 with the probability `rate`, and otherwise divided by
//! `1 - rate`.
//!
//! No mask is stored. Number `i` of the input, counted row by row, is kept if the `i`th number of a
//! SplitMix64 sequence is large enough. Forward, backward and recomputed passes therefore see the same mask
//! on every device, and it only depends on the sequence's key.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use burn::tensor::{Device, Tensor, TensorData};
use sparktune_base::random::{GAMMA, mix};

use crate::cpu::{fill_rows, for_rows};

/// A mask.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    key: u64,
    /// The smallest random number of 32 bits with which a number is kept.
    least: u32,
    /// The factor on numbers that are kept.
    scale: f32,
}

impl Dropout {
    /// Creates the mask of a key. `rate` is at least 0 and below 1.
    pub fn new(rate: f64, key: u64) -> Self {
        debug_assert!((0.0..1.0).contains(&rate));
        Self { key, least: (rate * 2f64.powi(32)) as u32, scale: (1.0 / (1.0 - rate)) as f32 }
    }

    /// Returns the factor on number `i`: 0, or one above 1.
    #[inline(always)]
    fn factor(self, i: usize) -> f32 {
        let random = mix(self.key.wrapping_add(GAMMA.wrapping_mul(i as u64 + 1)));
        if (random >> 32) as u32 >= self.least { self.scale } else { 0.0 }
    }

    /// Returns the factors of a matrix, `[rows, columns]`.
    pub(crate) fn factors(self, [rows, columns]: [usize; 2], device: &Device) -> Tensor<2> {
        let factors: Vec<f32> = (0..rows * columns).map(|i| self.factor(i)).collect();
        Tensor::from_data(TensorData::new(factors, [rows, columns]), device)
    }

    /// Returns the product of the numbers of a row-major matrix and their factors.
    pub(crate) fn on_cpu(self, x: &[f32], columns: usize) -> Vec<f32> {
        fill_rows(x.len() / columns.max(1), columns, |row, out| {
            let first = row * columns;
            for (i, y) in out.iter_mut().enumerate() {
                *y = x[first + i] * self.factor(first + i);
            }
        })
    }

    /// Adds the product of `x` and its factors to `total`.
    pub(crate) fn add_on_cpu(self, total: &mut [f32], x: &[f32], columns: usize) {
        for_rows(total, columns, |row, out| {
            let first = row * columns;
            for (i, y) in out.iter_mut().enumerate() {
                *y += x[first + i] * self.factor(first + i);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_keeps_its_share_of_the_numbers_and_their_mean() {
        for rate in [0.0, 0.05, 0.5, 0.9] {
            let ones = vec![1.0; 100_000];
            let kept = Dropout::new(rate, 7).on_cpu(&ones, 100);
            let zeros = kept.iter().filter(|x| **x == 0.0).count() as f64 / 1e5;
            // Four standard deviations.
            let tolerance = 4.0 * (rate * (1.0 - rate) / 1e5).sqrt();
            assert!((zeros - rate).abs() <= tolerance, "{zeros} of rate {rate}");
            let scale = (1.0 / (1.0 - rate)) as f32;
            assert!(kept.iter().all(|x| *x == 0.0 || *x == scale), "rate {rate}");
        }
    }

    #[test]
    fn masks_of_other_keys_rows_and_columns_are_independent_and_those_of_one_key_are_equal() {
        let ones = vec![1.0; 64 * 64];
        let mask = |key| Dropout::new(0.5, key).on_cpu(&ones, 64);
        assert_eq!(mask(1), mask(1));
        let equal = |one: &[f32], other: &[f32]| {
            one.iter().zip(other).filter(|(one, other)| one == other).count() as f64 / one.len() as f64
        };
        let (mask, other) = (mask(1), mask(2));
        for (what, share) in [
            ("another key", equal(&mask, &other)),
            ("the next row", equal(&mask[64..], &mask)),
            ("the next column", equal(&mask[1..], &mask)),
        ] {
            assert!((share - 0.5).abs() < 0.05, "{what}: {share}");
        }
    }

    #[test]
    fn the_factors_of_a_mask_are_these_for_ever() {
        // A resumed run must get the masks that it would have got, from any later version too.
        let kept = Dropout::new(0.25, 42).on_cpu(&[1.0; 16], 4);
        let kept: String = kept.iter().map(|x| if *x == 0.0 { '.' } else { 'x' }).collect();
        assert_eq!(kept, "x.xx.x.xxx.xxxx.");
    }
}
