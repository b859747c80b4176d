//! What a judge remembers: means and deviations that forget slowly. Numbers are stored as bits, so that a
//! resumed judge decides as one that was never stopped.

use serde::{Deserialize, Serialize};

/// A number whose bits are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Number(u64);

impl Number {
    pub(crate) fn get(self) -> f64 {
        f64::from_bits(self.0)
    }

    pub(crate) fn set(&mut self, value: f64) {
        self.0 = value.to_bits();
    }
}

/// Mean and variance of what was accepted (Welford 1962), in which old values lose weight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moments {
    count: u64,
    mean: Number,
    variance: Number,
}

impl Moments {
    /// Adds a value, which weighs one part in `memory` once there are so many.
    pub(crate) fn add(&mut self, value: f64, memory: u64) {
        self.count += 1;
        // The first values are weighed equally, as by Welford.
        let weight = 1.0 / self.count.min(memory) as f64;
        let off = value - self.mean.get();
        self.mean.set(self.mean.get() + weight * off);
        self.variance.set((1.0 - weight) * (self.variance.get() + weight * off * off));
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn mean(&self) -> f64 {
        self.mean.get()
    }

    pub(crate) fn deviation(&self) -> f64 {
        self.variance.get().max(0.0).sqrt()
    }
}

/// A mean in which a value weighs one part in `MEMORY`, of numbers with mean 0 and deviation 1. It shows who
/// is off by a little for long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Drift(Number);

impl Drift {
    const MEMORY: f64 = 20.0;

    pub(crate) fn add(&mut self, value: f64) {
        self.0.set(self.0.get() + (value - self.0.get()) / Self::MEMORY);
    }

    /// Returns the mean in units of the deviation that it has if the values are independent:
    /// `√(λ / (2 − λ))` for a weight of λ.
    pub(crate) fn score(self) -> f64 {
        let weight = 1.0 / Self::MEMORY;
        self.0.get() / (weight / (2.0 - weight)).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_welfords_until_old_values_are_forgotten() {
        let values = [1.0, 4.0, 2.0, 8.0, 5.0];
        let mut moments = Moments::default();
        values.iter().for_each(|value| moments.add(*value, 100));
        assert!((moments.mean() - 4.0).abs() < 1e-12);
        assert!((moments.deviation().powi(2) - 6.0).abs() < 1e-12, "{}", moments.deviation());
        (0..1000).for_each(|_| moments.add(-3.0, 100));
        assert!((moments.mean() + 3.0).abs() < 1e-3 && moments.deviation() < 0.1);
    }

    #[test]
    fn a_drift_that_lasts_is_many_deviations_and_noise_is_few() {
        let mut drift = Drift::default();
        (0..200).for_each(|step| drift.add(if step % 2 == 0 { 1.0 } else { -1.0 }));
        assert!(drift.score().abs() < 1.0);
        (0..20).for_each(|_| drift.add(2.0));
        assert!(drift.score() > 5.0);
    }
}
