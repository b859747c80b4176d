//! Means over the seeds, with their spread, and ratios of pipelines that trained with the same seeds.

use serde::Serialize;
use sparktune_base::statistics::Mean;

/// Values of several seeds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The smallest value.
    pub low: f64,
    /// The largest value.
    pub high: f64,
    /// Half the 95 % interval of the mean by Student's distribution; `None` with fewer than three values.
    pub half_width: Option<f64>,
    /// The number of values.
    pub count: usize,
}

impl Spread {
    /// Describes values; `None` without any, or if one is not finite.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let Mean { mean, half_width } = Mean::of(&values);
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self { mean, low, high, half_width, count: values.len() })
    }

    /// Returns whether the interval of the mean leaves this value out, so that the difference from it is more
    /// than chance. Without an interval nothing is.
    pub fn excludes(&self, value: f64) -> bool {
        self.half_width.is_some_and(|half_width| (self.mean - value).abs() > half_width)
    }

    /// Returns whether the mean is above this value by more than chance.
    pub fn is_above(&self, value: f64) -> bool {
        self.mean > value && self.excludes(value)
    }

    /// Returns whether the mean is below this value by more than chance.
    pub fn is_below(&self, value: f64) -> bool {
        self.mean < value && self.excludes(value)
    }
}

/// Returns the ratio of two pipelines, seed by seed. What slows a machine for minutes slows both sides of a
/// seed, because they follow each other.
pub fn paired_ratio(above: &[f64], below: &[f64]) -> Option<Spread> {
    if above.len() != below.len() {
        return None;
    }
    Spread::of(above.iter().zip(below).map(|(above, below)| above / below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_five_values_is_students() {
        let spread = Spread::of([1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!((spread.mean, spread.low, spread.high, spread.count), (3.0, 1.0, 5.0, 5));
        // 2.776 is the 97.5 % point for four degrees of freedom, √2.5 the standard deviation.
        let expected = 2.776 * (2.5_f64 / 5.0).sqrt();
        assert!((spread.half_width.unwrap() - expected).abs() < 0.02, "{spread:?}");
    }

    #[test]
    fn two_seeds_say_nothing_about_chance_and_no_value_is_no_spread() {
        let two = Spread::of([1.0, 1.1]).unwrap();
        assert!(!two.is_above(0.0) && !two.is_below(9.0));
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([1.0, f64::NAN]), None);
    }

    #[test]
    fn what_slows_both_sides_of_a_seed_leaves_their_ratio_alone() {
        let slow = [10.0, 30.0, 20.0];
        let fast = [5.0, 15.0, 10.0];
        let ratio = paired_ratio(&slow, &fast).unwrap();
        assert!((ratio.mean - 2.0).abs() < 1e-12 && ratio.is_above(1.9) && ratio.is_below(2.1));
        assert!(!Spread::of(slow).unwrap().is_above(19.0));
        assert_eq!(paired_ratio(&slow, &fast[..2]), None);
    }
}
