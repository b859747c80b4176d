//! Formats the values of a curve.

use sparktune_base::units::{UNKNOWN, bytes, count, loss};
use sparktune_runlog::Unit;

/// Formats a value, with its unit where the number alone would be ambiguous.
pub(crate) fn say(unit: Unit, value: f64) -> String {
    match unit {
        _ if !value.is_finite() => format!("{value}"),
        Unit::Nats => loss(value),
        Unit::LearningRate => format!("{value:.2e}"),
        Unit::Norm if value.abs() < 1e5 => format!("{value:.3}"),
        Unit::Norm => format!("{value:.2e}"),
        Unit::TokensPerSecond | Unit::Bytes if !(0.0..1e18).contains(&value) => UNKNOWN.to_owned(),
        Unit::TokensPerSecond => format!("{} {}", count(value.round() as u64), unit.name()),
        Unit::Bytes => bytes(value.round() as u64),
        Unit::Percent | Unit::Celsius | Unit::Watts | Unit::Megahertz => {
            format!("{value:.0} {}", unit.name())
        }
    }
}

/// Returns the smallest span of an axis in this unit, so that noise does not look like a trend.
pub(super) fn least_span(unit: Unit) -> f64 {
    match unit {
        Unit::Percent | Unit::Celsius | Unit::Watts => 10.0,
        Unit::Megahertz => 200.0,
        _ => 0.0,
    }
}

/// Returns the upper limit of the values in this unit, if there is one.
pub(super) fn most(unit: Unit) -> Option<f64> {
    (unit == Unit::Percent).then_some(100.0)
}

/// Returns the scale of the labels on an axis up to `largest`, and its letter (`k`, `M`).
pub(super) fn scale(unit: Unit, largest: f64) -> (f64, &'static str) {
    let scales: &[(f64, &str)] = match unit {
        Unit::Bytes => &[(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")],
        _ => &[(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")],
    };
    // Below ten thousand, thousands are easier to read without a letter.
    let least = if unit == Unit::Bytes { 1e3 } else { 1e4 };
    scales.iter().copied().find(|(s, _)| largest >= *s && largest >= least).unwrap_or((1.0, ""))
}

/// Returns short tick labels with as many digits as are needed to distinguish them. `step` is the distance of
/// the ticks, or 0 when each one is a round number by itself.
pub(super) fn labels(ticks: &[f64], step: f64, (scale, letter): (f64, &str)) -> Vec<String> {
    ticks.iter().map(|tick| label(tick / scale, step / scale, letter)).collect()
}

fn label(value: f64, step: f64, letter: &str) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let distance = if step > 0.0 { step } else { value.abs() };
    let digits = (-distance.log10() - 1e-9).ceil().max(0.0);
    if digits > 3.0 || value.abs() >= 1e5 {
        // Gives `1.5e-3` next to `2.0e-3`.
        let places = value.abs().log10().floor() - (distance.log10() + 1e-9).floor();
        return format!("{value:.*e}{letter}", places.clamp(0.0, 3.0) as usize);
    }
    let places = digits as usize;
    format!("{value:.places$}{letter}")
}

/// Returns the label of a step when the labels are `distance` apart: `800`, `1,200`, `12k`, `3M`.
pub(super) fn step_label(step: u64, distance: u64) -> String {
    match step {
        0 => "0".to_owned(),
        _ if distance >= 1_000_000 && step.is_multiple_of(1_000_000) => {
            format!("{}M", count(step / 1_000_000))
        }
        _ if distance >= 1000 && step.is_multiple_of(1000) && step >= 10_000 => {
            format!("{}k", count(step / 1000))
        }
        _ => count(step),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_the_digits_that_tell_them_apart() {
        for (unit, ticks, step, written) in [
            (Unit::Nats, &[1.0, 1.5, 2.0][..], 0.5, &["1.0", "1.5", "2.0"][..]),
            (Unit::Nats, &[1.3, 1.35], 0.05, &["1.30", "1.35"]),
            (Unit::Nats, &[0.5, 1.0, 20.0], 0.0, &["0.5", "1", "20"]),
            (Unit::LearningRate, &[0.0, 1e-4, 2e-4], 1e-4, &["0", "1e-4", "2e-4"]),
            (Unit::LearningRate, &[5e-4, 1e-3, 1.5e-3, 2e-3], 5e-4, &["5e-4", "1.0e-3", "1.5e-3", "2.0e-3"]),
            (Unit::TokensPerSecond, &[3000.0, 4000.0], 1000.0, &["3000", "4000"]),
            (Unit::TokensPerSecond, &[0.0, 20_000.0], 20_000.0, &["0", "20k"]),
            (Unit::Norm, &[1e300], 1e300, &["1e288T"]),
        ] {
            let largest = ticks.iter().copied().fold(0.0, f64::max);
            assert_eq!(super::labels(ticks, step, scale(unit, largest)), written, "{unit:?}");
        }
        assert_eq!(labels(&[61e9], 1e9, scale(Unit::Bytes, 61e9)), ["61G"]);
    }

    #[test]
    fn values_are_said_with_their_unit_and_what_is_no_number_by_name() {
        assert_eq!(say(Unit::Nats, 1.25), "1.2500");
        assert_eq!(say(Unit::Nats, f64::NAN), "NaN");
        assert_eq!(say(Unit::TokensPerSecond, 4966.4), "4,966 tokens/s");
        assert_eq!(say(Unit::TokensPerSecond, -1.0), "–");
        assert_eq!(say(Unit::Bytes, 1_073_741_824.0), "1.1 GB");
        assert_eq!(say(Unit::Celsius, 71.2), "71 °C");
        assert_eq!(step_label(1_200_000, 200_000), "1,200k");
        assert_eq!(step_label(3_000_000, 1_000_000), "3M");
        assert_eq!(step_label(1200, 200), "1,200");
        assert_eq!(step_label(u64::MAX, 1), "18,446,744,073,709,551,615");
    }
}
