//! What findings are made with: ratios of two pipelines, in words, and the rules for verdicts.

use sparktune_base::units::percent;

use super::types::{Found, Verdict};
use crate::pipeline::{Arrangement, Pipeline};
use crate::results::{Loading, Results, Training};
use crate::spread::{Spread, paired_ratio};

/// The share of a claimed factor from which on it holds.
pub(super) const ENOUGH: f64 = 0.9;
/// A change that is shown as none: what rounding makes of losses.
const SMALLEST: f64 = 5e-4;
/// A factor that nobody would notice.
pub(super) const NOTICED: f64 = 1.02;

pub(super) const NONE: &str = "–";

pub(super) fn not_measured(what: &str) -> Found {
    (NONE.into(), NONE.into(), Verdict::NotMeasured, format!("{what} was not measured."))
}

/// `3.02 × (2.9 to 3.1)`
pub(crate) fn times(ratio: Option<Spread>) -> String {
    ratio.map_or(NONE.into(), |Spread { mean, low, high, count, .. }| {
        let digits = |value: f64| if value >= 99.5 { format!("{value:.0}") } else { three(value) };
        let range = if count > 1 { format!(" ({} to {})", digits(low), digits(high)) } else { String::new() };
        format!("{} ×{range}", digits(mean))
    })
}

/// Formats a number with three digits.
pub(crate) fn three(value: f64) -> String {
    match value.abs() {
        9.995.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub(super) fn of_factor(ratio: Spread, claimed: f64) -> Verdict {
    if ratio.mean >= ENOUGH * claimed {
        Verdict::Holds
    } else if ratio.is_above(1.0) && ratio.mean >= NOTICED {
        Verdict::InPart
    } else {
        Verdict::DoesNotHold
    }
}

/// Returns a measured value of two pipelines as a ratio, round by round.
pub(super) fn of_loading(
    results: &Results,
    arrangement: Arrangement,
    [above, below]: [Pipeline; 2],
    value: impl Fn(&Loading) -> Vec<f64>,
) -> Option<Spread> {
    let find = |pipeline| {
        results.loading.iter().find(|one| one.arrangement == arrangement && one.pipeline == pipeline)
    };
    paired_ratio(&value(find(above)?), &value(find(below)?))
}

/// Returns a value of two pipelines as a ratio, seed by seed.
pub(crate) fn of_training(
    results: &Results,
    arrangement: Arrangement,
    [above, below]: [Pipeline; 2],
    value: impl Fn(&Training) -> f64,
) -> Option<Spread> {
    let (above, below) = (results.trainings(arrangement, above), results.trainings(arrangement, below));
    let seeds = |trainings: &[&Training]| trainings.iter().map(|one| one.seed).collect::<Vec<_>>();
    if above.is_empty() || seeds(&above) != seeds(&below) {
        return None;
    }
    let values = |trainings: &[&Training]| trainings.iter().map(|one| value(one)).collect::<Vec<_>>();
    paired_ratio(&values(&above), &values(&below))
}

pub(super) const QUBGPU_OVER_JSONL: [Pipeline; 2] = [Pipeline::Qubgpu, Pipeline::Jsonl];

/// Returns a value of the pipeline with dropping as a ratio to that of JSON Lines, for the claims that quote
/// its figures; of the one without dropping if that alone was measured.
pub(super) fn of_dropping(
    results: &Results,
    arrangement: Arrangement,
    value: impl Fn(&Training) -> f64 + Copy,
) -> Option<Spread> {
    let dropping = [Pipeline::QubgpuDrop, Pipeline::Jsonl];
    of_training(results, arrangement, dropping, value)
        .or_else(|| of_training(results, arrangement, QUBGPU_OVER_JSONL, value))
}

/// `−2.1 % (−3.0 % to −1.2 %)`
pub(super) fn change(ratio: Option<Spread>) -> String {
    let signed = |value: f64| match value - 1.0 {
        change if change.abs() < SMALLEST => "0 %".to_owned(),
        change if change < 0.0 => format!("−{}", percent(-change)),
        change => format!("+{}", percent(change)),
    };
    ratio.map_or(NONE.into(), |Spread { mean, low, high, .. }| {
        format!("{} ({} to {})", signed(mean), signed(low), signed(high))
    })
}

/// Judges a reduction: `ratio` is what is left.
pub(super) fn of_reduction(ratio: Spread, claimed: f64) -> Verdict {
    if 1.0 - ratio.mean >= ENOUGH * (1.0 - claimed) {
        Verdict::Holds
    } else if ratio.is_below(1.0) && ratio.mean <= 1.0 / NOTICED {
        Verdict::InPart
    } else {
        Verdict::DoesNotHold
    }
}

pub(super) fn final_loss(training: &Training) -> f64 {
    training.final_loss().unwrap_or(f64::NAN)
}

pub(super) fn held_out(training: &Training) -> f64 {
    training.held_out().unwrap_or(f64::NAN)
}

/// Formats a small share with as many digits as it needs.
pub(crate) fn fine_percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        _ if percent >= 0.995 => format!("{percent:.1} %"),
        _ if percent >= 0.0995 => format!("{percent:.2} %"),
        _ => format!("{percent:.3} %"),
    }
}
