//! Vertical axes of charts: maps values to positions between the bottom and the top, and chooses round values
//! as labels.

use crate::ticks;

/// The smallest span of an axis, as a share of the largest value, so that the noise of a constant value does
/// not fill the chart.
const LEAST_SPAN: f64 = 0.01;

/// A vertical axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Axis {
    lo: f64,
    hi: f64,
    log: bool,
}

impl Axis {
    /// Builds an axis that shows all finite numbers of `values`, or `None` when there are none. It spans at
    /// least `least`. A logarithmic axis needs a positive value and is linear without one; smaller values are
    /// drawn at its bottom.
    pub(super) fn of(values: impl Iterator<Item = f64> + Clone, log: bool, least: f64) -> Option<Self> {
        let range = |values: &mut dyn Iterator<Item = f64>| {
            values.filter(|v| v.is_finite()).fold(None, |range: Option<(f64, f64)>, v| {
                Some(range.map_or((v, v), |(lo, hi)| (lo.min(v), hi.max(v))))
            })
        };
        if log && let Some((lo, hi)) = range(&mut values.clone().filter(|v| *v > 0.0)) {
            // The axis spans at least a twentieth of a decade.
            let hi = if hi < lo * 1.12 { (lo * 1.12).min(f64::MAX) } else { hi };
            return Some(Self { lo, hi, log: true });
        }
        let (lo, hi) = range(&mut values.clone())?;
        let least = (lo.abs().max(hi.abs()) * LEAST_SPAN).max(least);
        let missing = (least - (hi - lo)).max(0.0) / 2.0;
        // The padding must not extend the axis below zero when no value is negative.
        let below = if lo >= 0.0 { missing.min(lo) } else { missing };
        let (lo, hi) = ((lo - below).max(f64::MIN), (hi + missing * 2.0 - below).min(f64::MAX));
        // All values are zero, or too small to distinguish.
        let hi = if hi > lo { hi } else { lo + 1.0 };
        Some(Self { lo, hi, log: false })
    }

    /// Moves the axis down so that it does not extend above `most`, which no value exceeds.
    pub(super) fn below(self, most: f64) -> Self {
        let above = (self.hi - most).max(0.0);
        if self.log { self } else { Self { lo: self.lo - above, hi: self.hi - above, ..self } }
    }

    /// Returns the position of a value: 0 at the bottom, 1 at the top, clamped to this range.
    pub(super) fn fraction(&self, value: f64) -> f64 {
        let share = if self.log {
            let (lo, hi) = (self.lo.log10(), self.hi.log10());
            (value.max(self.lo).log10() - lo) / (hi - lo)
        } else {
            // Both are halved, because the difference of two finite numbers may overflow.
            (value / 2.0 - self.lo / 2.0) / (self.hi / 2.0 - self.lo / 2.0)
        };
        if share.is_nan() { 0.5 } else { share.clamp(0.0, 1.0) }
    }

    /// Returns the value at a position. This is the inverse of [`Axis::fraction`].
    #[cfg(test)]
    fn value(&self, fraction: f64) -> f64 {
        if self.log {
            let (lo, hi) = (self.lo.log10(), self.hi.log10());
            10_f64.powf(lo + fraction * (hi - lo))
        } else {
            self.lo * (1.0 - fraction) + self.hi * fraction
        }
    }

    /// Returns the end with the larger absolute value, without its sign.
    pub(super) fn largest(&self) -> f64 {
        self.lo.abs().max(self.hi.abs())
    }

    /// Returns about `most` values within the axis that are round in units of `scale`, ascending, and their
    /// distance, which decides how many digits their labels need.
    pub(super) fn ticks(&self, most: usize, scale: f64) -> (Vec<f64>, f64) {
        let most = most.clamp(1, 20);
        let ticks = if self.log { ticks::decades(self.lo, self.hi, most) } else { Vec::new() };
        // Less than a decade has too few powers of ten.
        if ticks.len() >= 3 {
            return (ticks, 0.0);
        }
        let step = ticks::step(self.lo / scale, self.hi / scale, most) * scale;
        (ticks::multiples(self.lo, self.hi, step), step)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ticks::step_ticks;

    fn ticks(lo: f64, hi: f64, log: bool, most: usize) -> Vec<f64> {
        Axis::of([lo, hi].into_iter(), log, 0.0).unwrap().ticks(most, 1.0).0
    }

    #[test]
    fn ticks_are_one_two_or_five_times_a_power_of_ten() {
        assert_eq!(ticks(0.0, 10.0, false, 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(1.13, 2.9, false, 4), [1.5, 2.0, 2.5]);
        assert_eq!(ticks(-3.0, 3.0, false, 3), [-2.0, 0.0, 2.0]);
        assert_eq!(ticks(0.9, 12.0, true, 4), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(ticks(1e-6, 1.0, true, 4), [1e-6, 1e-4, 1e-2, 1.0]);
        assert_eq!(
            ticks(1e300, f64::MAX, true, 9),
            [300, 301, 302, 303, 304, 305, 306, 307, 308].map(|n| 10_f64.powi(n))
        );
        assert_eq!(step_ticks(0, 1000, 6), (vec![0, 200, 400, 600, 800, 1000], 200));
        assert_eq!(step_ticks(654_300, 654_340, 5), (vec![654_300, 654_310, 654_320, 654_330, 654_340], 10));
        assert_eq!(step_ticks(7, 7, 5), (vec![7], 1));
    }

    #[test]
    fn a_constant_lies_in_the_middle_and_noise_does_not_fill_the_chart() {
        for constant in [0.0_f64, 3.0, -3.0, 1e300, f64::MIN_POSITIVE, 5e-324] {
            let axis = Axis::of([constant].into_iter(), false, 0.0).unwrap();
            assert!((0.0..=0.6).contains(&axis.fraction(constant)), "{constant}: {axis:?}");
        }
        let axis = Axis::of([100.0, 100.01].into_iter(), false, 0.0).unwrap();
        assert!(axis.fraction(100.01) - axis.fraction(100.0) < 0.02);
        let percent = Axis::of([0.0, 1.0].into_iter(), false, 10.0).unwrap();
        assert_eq!((percent.fraction(0.0), percent.fraction(1.0)), (0.0, 0.1));
        let full = Axis::of([100.0].into_iter(), false, 10.0).unwrap().below(100.0);
        assert_eq!((full.fraction(90.0), full.fraction(100.0)), (0.0, 1.0));
    }

    proptest! {
        #[test]
        fn any_values_have_an_axis_that_holds_them_in_order(
            values in proptest::collection::vec(any::<f64>(), 0..8), log: bool, most in 0_usize..30,
            least in 0.0..100.0_f64, scale in prop_oneof![Just(1.0), Just(1024.0)],
        ) {
            let Some(axis) = Axis::of(values.iter().copied(), log, least) else {
                prop_assert!(values.iter().all(|v| !v.is_finite()));
                return Ok(());
            };
            let mut finite: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
            finite.sort_by(f64::total_cmp);
            let at: Vec<f64> = finite.iter().map(|v| axis.fraction(*v)).collect();
            prop_assert!(at.iter().all(|f| (0.0..=1.0).contains(f)), "{at:?}");
            prop_assert!(at.windows(2).all(|w| w[0] <= w[1]), "{at:?}");
            let (ticks, _) = axis.ticks(most, scale);
            prop_assert!(ticks.len() <= most.clamp(1, 20) + 2);
            prop_assert!(ticks.windows(2).all(|w| w[0] < w[1]), "{ticks:?}");
            prop_assert!(ticks.iter().all(|t| t.is_finite()));
        }

        #[test]
        fn the_value_at_a_fraction_has_that_fraction(lo in 1e-3..10.0_f64, span in 1.2..1e4_f64, at in 0.0..1.0_f64, log: bool) {
            let axis = Axis::of([lo, lo * span].into_iter(), log, 0.0).unwrap();
            prop_assert!((axis.fraction(axis.value(at)) - at).abs() < 1e-6);
        }

        #[test]
        fn steps_of_any_size_have_ticks(from: u64, to: u64, most in 0_usize..30) {
            let (ticks, step) = step_ticks(from, to, most);
            prop_assert!(ticks.len() <= most + 1 && step > 0);
            prop_assert!(ticks.iter().all(|t| (from..=to).contains(t)));
        }
    }
}
