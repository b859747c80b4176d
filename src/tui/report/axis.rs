//! Axes of the report's charts: map values to positions between 0 and 1, with ticks at 1, 2 and 5 times a
//! power of ten.

use sparktune_base::units::UNKNOWN;

use crate::ticks;

/// A scale with its ticks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    log: bool,
    ticks: Vec<Tick>,
}

/// A labelled value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tick {
    /// The position on the axis, 0 to 1.
    pub at: f64,
    /// The value as text.
    pub label: String,
}

/// The largest absolute value that an axis computes with.
const HUGE: f64 = 1e290;
const TINY: f64 = 1e-290;

impl Axis {
    /// Creates an axis with about `most` ticks whose ends are ticks.
    pub(super) fn linear(low: f64, high: f64, most: usize) -> Self {
        let (mut low, mut high) = (low.clamp(-HUGE, HUGE), high.clamp(-HUGE, HUGE));
        if low > high || low.is_nan() || high.is_nan() {
            (low, high) = (0.0, 1.0);
        }
        let size = low.abs().max(high.abs());
        if high - low <= size * 1e-9 {
            (low, high) = if size == 0.0 { (0.0, 1.0) } else { (low - size * 0.1, high + size * 0.1) };
        }
        let step = ticks::step(low, high, most);
        let (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
        Axis::new(low, high, false, ticks::multiples(low, high, step), step)
    }

    /// Creates an axis of whole steps with exactly these ends.
    pub(super) fn steps(low: u64, high: u64, most: usize) -> Self {
        let high = high.max(low + 1);
        let (values, step) = ticks::step_ticks(low, high, most);
        let values = values.into_iter().map(as_f64).collect();
        Axis::new(as_f64(low), as_f64(high), false, values, as_f64(step))
    }

    /// Creates an axis of powers of ten, with 2 and 5 times them where there is room. `low` must be above 0.
    pub(super) fn log(low: f64, high: f64, most: usize) -> Self {
        let (low, high) = (low.clamp(TINY, HUGE), high.clamp(TINY, HUGE));
        let (low, high) = (round_log(low, f64::floor), round_log(high.max(low), f64::ceil));
        let high = if high > low { high } else { low * 10.0 };
        let values = ticks::decades(low, high, most);
        Axis::new(low, high, true, values, 0.0)
    }

    /// Creates an axis. A `step` of 0 writes each tick to its own precision.
    fn new(low: f64, high: f64, log: bool, values: Vec<f64>, step: f64) -> Self {
        let mut axis = Axis { low, high, log, ticks: Vec::new() };
        let tick = |value: f64| {
            let step = if step > 0.0 { step } else { value };
            Tick { at: axis.place(value), label: number(value, step) }
        };
        axis.ticks = values.into_iter().map(tick).collect();
        axis
    }

    /// Converts the axis to units of `size`.
    #[must_use]
    pub(super) fn in_units_of(self, size: f64) -> Self {
        Axis { low: self.low * size, high: self.high * size, ..self }
    }

    /// Returns the position of a value, clamped to 0 to 1.
    pub(super) fn place(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(TINY).ln() - self.low.ln()) / (self.high.ln() - self.low.ln())
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
    }

    /// Returns the ticks, ascending.
    pub(super) fn ticks(&self) -> &[Tick] {
        &self.ticks
    }
}

/// Converts a step or a count for drawing.
pub(super) fn as_f64(n: u64) -> f64 {
    n as f64
}

/// Rounds to 1, 2 or 5 times a power of ten, in the direction of `round`.
fn round_log(value: f64, round: fn(f64) -> f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let up = round(0.5) > 0.0;
    let mut nice = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).to_vec();
    if !up {
        nice.reverse();
    }
    let fits = |n: &f64| if up { *n >= value * (1.0 - 1e-9) } else { *n <= value * (1.0 + 1e-9) };
    nice.into_iter().find(fits).unwrap_or(value)
}

/// Formats a value with as many digits as are needed to distinguish it from neighbours at a distance of
/// `step`.
pub(super) fn number(value: f64, step: f64) -> String {
    if !value.is_finite() {
        return UNKNOWN.to_owned();
    }
    let step = if step.is_finite() && step != 0.0 { step.abs() } else { 1.0 };
    if value.abs() < step * 1e-6 {
        return "0".to_owned();
    }
    let exponent = |x: f64| (x.abs().log10() + 1e-9).floor() as i32;
    let digits = |n: i32| usize::try_from(n.clamp(0, 9)).unwrap_or(0);
    if value.abs() >= 1e7 || step < 0.9e-4 {
        return format!("{value:.*e}", digits(exponent(value) - exponent(step)));
    }
    grouped(&format!("{value:.*}", digits(-exponent(step))))
}

/// Formats a value with four significant digits.
pub(super) fn figure(value: f64) -> String {
    number(value, value / 1000.0 * if value.abs() < 1e-2 { 10.0 } else { 1.0 })
}

/// Formats a value with at most three significant digits.
pub(super) fn reading(value: f64) -> String {
    let text = number(value, value / 100.0);
    if text.contains('.') && !text.contains('e') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Separates thousands in the integer part of a plain decimal.
fn grouped(decimal: &str) -> String {
    let (sign, rest) = decimal.strip_prefix('-').map_or(("", decimal), |rest| ("-", rest));
    let (whole, part) = rest.split_once('.').map_or((rest, None), |(whole, part)| (whole, Some(part)));
    let whole = whole.parse().map_or_else(|_| whole.to_owned(), sparktune_base::units::count);
    let part = part.map(|part| format!(".{part}")).unwrap_or_default();
    format!("{sign}{whole}{part}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks().iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(
            labels(&Axis::linear(0.31, 2.93, 6)),
            ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0"].map(|l| if l == "0.0" { "0" } else { l })
        );
        assert_eq!(labels(&Axis::linear(0.0, 0.0002, 4)), ["0", "5e-5", "1.0e-4", "1.5e-4", "2.0e-4"]);
        assert_eq!(labels(&Axis::linear(0.0, 13_780.0, 4)), ["0", "5,000", "10,000", "15,000"]);
        assert_eq!(
            labels(&Axis::steps(0, 1_000_000, 5)),
            ["0", "200,000", "400,000", "600,000", "800,000", "1,000,000"]
        );
        assert_eq!(labels(&Axis::steps(1, 3, 8)), ["1", "2", "3"]);
        assert_eq!(labels(&Axis::log(0.3, 40.0, 8)), ["0.2", "0.5", "1", "2", "5", "10", "20", "50"]);
        assert_eq!(
            labels(&Axis::log(1e-3, 9e5, 10)),
            ["0.001", "0.01", "0.1", "1", "10", "100", "1,000", "10,000", "100,000", "1,000,000"]
        );
    }

    #[test]
    fn figures_have_four_digits() {
        for (value, shown) in [
            (0.349_863, "0.3499"),
            (12_345.678, "12,346"),
            (0.002, "2.00e-3"),
            (0.0, "0"),
            (f64::NAN, "–"),
            (-2.34567, "-2.346"),
            (1.5e30, "1.500e30"),
        ] {
            assert_eq!(figure(value), shown);
        }
        for (value, shown) in
            [(72.0, "72"), (13.28, "13.3"), (0.2894, "0.289"), (2404.2, "2,404"), (100.0, "100"), (0.0, "0")]
        {
            assert_eq!(reading(value), shown);
        }
    }

    proptest! {
        #[test]
        fn any_range_has_a_few_ascending_ticks_inside_and_values_stay_inside(a in any::<f64>(), b in any::<f64>(), v in any::<f64>()) {
            let (low, high) = if a <= b { (a, b) } else { (b, a) };
            for axis in [Axis::linear(low, high, 5), Axis::log(low.abs(), high.abs(), 8)] {
                prop_assert!(axis.ticks().len() <= 12, "{:?}", axis);
                prop_assert!(axis.ticks().windows(2).all(|w| w[0].at < w[1].at), "{:?}", axis);
                for place in [axis.place(v), axis.place(low), axis.place(high)] {
                    prop_assert!((0.0..=1.0).contains(&place), "{:?}", axis);
                }
            }
        }
    }
}
