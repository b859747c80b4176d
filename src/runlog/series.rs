//! A curve in bounded memory: at most [`Series::CAPACITY`] buckets, each with its smallest and largest value,
//! so that a single spike in a million steps stays visible in a chart of any width.

use serde::Serialize;

/// Consecutive steps that are drawn as one column.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bucket {
    /// The first step.
    pub first_step: u64,
    /// The last step.
    pub last_step: u64,
    /// The number of finite values.
    pub count: u64,
    /// The smallest finite value; infinity when `count` is 0.
    pub min: f64,
    /// The largest finite value; negative infinity when `count` is 0.
    pub max: f64,
    /// The sum of the finite values.
    pub sum: f64,
    /// The value that was added last, finite or not.
    pub last: f64,
    /// The number of values that were NaN or infinite, which are marked as a gap.
    pub nonfinite: u64,
}

impl Bucket {
    fn of(step: u64, value: f64) -> Self {
        let finite = value.is_finite();
        Bucket {
            first_step: step,
            last_step: step,
            count: u64::from(finite),
            min: if finite { value } else { f64::INFINITY },
            max: if finite { value } else { f64::NEG_INFINITY },
            sum: if finite { value } else { 0.0 },
            last: value,
            nonfinite: u64::from(!finite),
        }
    }

    fn absorb(&mut self, later: &Bucket) {
        self.first_step = self.first_step.min(later.first_step);
        self.last_step = self.last_step.max(later.last_step);
        self.count += later.count;
        self.min = self.min.min(later.min);
        self.max = self.max.max(later.max);
        self.sum += later.sum;
        self.last = later.last;
        self.nonfinite += later.nonfinite;
    }

    /// Returns the mean of the finite values.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// Values by step, downsampled while they are added.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    buckets: Vec<Bucket>,
    /// Steps per bucket, a power of two: bucket k covers steps k·width to (k+1)·width − 1.
    width: u64,
}

impl Default for Series {
    fn default() -> Self {
        Series { buckets: Vec::new(), width: 1 }
    }
}

impl Series {
    /// The largest number of buckets. A run with more steps uses at least half of them.
    pub const CAPACITY: usize = 2048;

    /// Adds the value of a step. Steps may come in any order; ascending is fastest.
    pub fn push(&mut self, step: u64, value: f64) {
        self.merge(Bucket::of(step, value));
        self.widen();
    }

    fn merge(&mut self, bucket: Bucket) {
        // A shift instead of a division, which would take most of the time.
        let shift = self.width.trailing_zeros();
        let slot = bucket.first_step >> shift;
        let at = match self.buckets.last() {
            Some(last) if last.first_step >> shift < slot => self.buckets.len(),
            None => 0,
            _ => self.buckets.partition_point(|b| b.first_step >> shift < slot),
        };
        match self.buckets.get_mut(at) {
            Some(same) if same.first_step >> shift == slot => same.absorb(&bucket),
            _ => self.buckets.insert(at, bucket),
        }
    }

    fn widen(&mut self) {
        while self.buckets.len() > Self::CAPACITY {
            self.width *= 2;
            for bucket in std::mem::take(&mut self.buckets) {
                self.merge(bucket);
            }
        }
    }

    /// Removes and returns everything after `step`. A bucket with steps on both sides is kept, so its values
    /// are at most one bucket's width off.
    pub(crate) fn cut_after(&mut self, step: u64) -> Vec<Bucket> {
        let at = self.buckets.partition_point(|b| b.first_step <= step);
        self.buckets.split_off(at)
    }

    /// Adds the buckets of another series.
    pub(crate) fn absorb(&mut self, buckets: Vec<Bucket>) {
        for bucket in buckets {
            self.merge(bucket);
        }
        self.widen();
    }

    /// Returns the curve, ascending by step.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Returns whether no value was added.
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_spike_in_a_million_steps_stays_visible() {
        let mut series = Series::default();
        for step in 1..=1_000_000_u64 {
            series.push(step, if step == 654_321 { 99.0 } else { 1.0 });
        }
        assert!(series.buckets().len() <= Series::CAPACITY && series.buckets().len() > Series::CAPACITY / 4);
        assert_eq!(series.buckets().iter().map(|b| b.count).sum::<u64>(), 1_000_000);
        let spikes: Vec<_> = series.buckets().iter().filter(|b| b.max == 99.0).collect();
        assert_eq!(spikes.len(), 1);
        assert!(spikes[0].first_step <= 654_321 && 654_321 <= spikes[0].last_step);
    }

    #[test]
    fn values_that_are_not_finite_are_counted_and_do_not_spoil_the_curve() {
        let mut series = Series::default();
        series.push(1, f64::NAN);
        assert_eq!((series.buckets()[0].nonfinite, series.buckets()[0].mean()), (1, None));
        for step in 2..5000 {
            series.push(step, 2.0);
        }
        assert_eq!(series.buckets()[0].mean(), Some(2.0));
        assert_eq!(series.buckets()[0].nonfinite, 1);
    }

    proptest! {
        #[test]
        fn no_value_is_lost_whatever_the_order(
            mut steps in proptest::collection::vec(0_u64..20_000, 0..6000),
            cut in 0_u64..20_000,
        ) {
            let mut series = Series::default();
            for step in &steps {
                series.push(*step, *step as f64);
            }
            prop_assert!(series.buckets().windows(2).all(|w| w[0].last_step < w[1].first_step));
            prop_assert_eq!(series.buckets().iter().map(|b| b.count).sum::<u64>(), steps.len() as u64);
            steps.sort_unstable();
            prop_assert_eq!(series.buckets().first().map(|b| b.min), steps.first().map(|s| *s as f64));
            prop_assert_eq!(series.buckets().last().map(|b| b.max), steps.last().map(|s| *s as f64));
            let mut discarded = Series::default();
            discarded.absorb(series.cut_after(cut));
            prop_assert!(discarded.buckets().iter().all(|b| b.first_step > cut));
            let count = |s: &Series| s.buckets().iter().map(|b| b.count).sum::<u64>();
            prop_assert_eq!(count(&series) + count(&discarded), steps.len() as u64);
        }
    }
}
