//! Reduces a curve to what a page can show: columns of equal width that keep the smallest, largest and mean
//! values.

use sparktune_runlog::{Bucket, Series};

use super::axis::{Axis, as_f64};

/// The range of path coordinates, whatever size the chart has on the page.
pub(super) const WIDTH: f64 = 2000.0;
pub(super) const HEIGHT: f64 = 1000.0;

/// The number of steps that the smoothed line averages to each side in a run of ordinary length, as the live
/// average does.
const SMOOTH_STEPS: f64 = 10.0;

/// Neighbouring steps that are drawn as one column.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Column {
    /// The first and last step.
    pub first: u64,
    pub last: u64,
    /// The number of finite values.
    pub count: u64,
    /// The smallest and largest finite value.
    pub min: f64,
    pub max: f64,
    /// The mean of the finite values, or `None` if there are none.
    pub mean: Option<f64>,
    /// The smoothed mean, or `None` where there is no mean.
    pub smooth: Option<f64>,
    /// The number of values that were NaN or infinite.
    pub nonfinite: u64,
}

impl Column {
    fn of(buckets: &[&Bucket]) -> Option<Self> {
        let (first, last) = (buckets.first()?.first_step, buckets.last()?.last_step);
        let count = buckets.iter().map(|b| b.count).sum();
        let min = buckets.iter().map(|b| b.min).fold(f64::INFINITY, f64::min);
        let max = buckets.iter().map(|b| b.max).fold(f64::NEG_INFINITY, f64::max);
        let mean = buckets.iter().map(|b| b.sum).sum::<f64>() / as_f64(count);
        // The sum of huge values may overflow; their mean still lies between them.
        let mean = (count > 0).then(|| if mean.is_nan() { min } else { mean.clamp(min, max) });
        let nonfinite = buckets.iter().map(|b| b.nonfinite).sum();
        Some(Column { first, last, count, min, max, mean, smooth: None, nonfinite })
    }

    /// Returns the step that the column is drawn at.
    pub(super) fn middle(&self) -> f64 {
        (as_f64(self.first) + as_f64(self.last)) / 2.0
    }
}

/// Returns at most `most` columns for the steps `from` to `to`. Values outside this range are left out.
pub(super) fn columns(series: &Series, from: u64, to: u64, most: u64) -> Vec<Column> {
    let span = u128::from(to.saturating_sub(from)) + 1;
    let slot = |b: &Bucket| {
        let middle = u128::from(b.first_step.midpoint(b.last_step).clamp(from, to) - from);
        middle * u128::from(most) / span
    };
    let inside: Vec<&Bucket> =
        series.buckets().iter().filter(|b| b.last_step >= from && b.first_step <= to).collect();
    let mut columns: Vec<Column> =
        inside.chunk_by(|a, b| slot(a) == slot(b)).filter_map(Column::of).collect();
    smooth(&mut columns, as_f64(to.saturating_sub(from)));
    columns
}

/// Splits the columns into stretches without a gap. The line breaks at columns without finite values and at
/// steps of another attempt.
pub(super) fn stretches(columns: &[Column]) -> Vec<&[Column]> {
    let mut distances: Vec<u64> = columns.windows(2).map(|w| w[1].first - w[0].first).collect();
    distances.sort_unstable();
    let usual = distances.get(distances.len() / 2).copied().unwrap_or(1);
    let broken = |a: &Column, b: &Column| {
        a.mean.is_none() || b.mean.is_none() || b.first - a.last > usual.saturating_mul(3)
    };
    columns.chunk_by(|a, b| !broken(a, b)).filter(|stretch| stretch[0].mean.is_some()).collect()
}

/// Adds the smoothed means. Each is a mean over all columns with weights that decay with distance, like the
/// live average but to both sides, so that it does not lag behind. Short runs are smoothed less, long runs
/// more.
fn smooth(columns: &mut [Column], span: f64) {
    let steps = (span / 25.0).clamp(2.0, SMOOTH_STEPS).max(span / 200.0);
    let kept = 1.0 - 1.0 / steps;
    let before = one_sided(columns.iter(), kept);
    let mut after = one_sided(columns.iter().rev(), kept);
    after.reverse();
    for (column, ((sum, weight), (sum_after, weight_after))) in
        columns.iter_mut().zip(before.into_iter().zip(after))
    {
        let Some(mean) = column.mean else { continue };
        // The column itself is in both sums, so one of them is subtracted.
        let own = as_f64(column.count);
        let weight = weight + weight_after - own;
        let smooth = sum / weight + (sum_after / weight - mean * (own / weight));
        column.smooth = Some(if smooth.is_finite() { smooth } else { mean });
    }
}

/// Returns for each column the weighted sum of it and those before, and the sum of the weights. A weight is
/// multiplied by `kept` for each step.
fn one_sided<'a>(columns: impl Iterator<Item = &'a Column>, kept: f64) -> Vec<(f64, f64)> {
    let (mut sum, mut weight, mut place) = (0.0, 0.0, None);
    let add = |column: &Column| {
        let here = column.middle();
        let decay = kept.powf((here - place.unwrap_or(here)).abs());
        let own = as_f64(column.count);
        sum = sum * decay + column.mean.unwrap_or(0.0) * own;
        weight = weight * decay + own;
        place = Some(here);
        (sum, weight)
    };
    columns.map(add).collect()
}

/// Returns a path through points of (step, value). A single point becomes a dot because line ends are round.
pub(super) fn line(points: &[(f64, f64)], x: &Axis, y: &Axis) -> String {
    let mut path = String::new();
    for (i, (step, value)) in points.iter().enumerate() {
        path.push(if i == 0 { 'M' } else { 'L' });
        push_point(&mut path, x.place(*step), y.place(*value));
    }
    if points.len() == 1 {
        path.push_str("h0");
    }
    path
}

/// Returns a closed path between the smallest and the largest values.
pub(super) fn band(columns: &[Column], x: &Axis, y: &Axis) -> String {
    let upper = columns.iter().map(|c| (c.middle(), c.max));
    let lower = columns.iter().rev().map(|c| (c.middle(), c.min));
    let mut path = line(&upper.chain(lower).collect::<Vec<_>>(), x, y);
    path.push('Z');
    path
}

fn push_point(path: &mut String, x: f64, y: f64) {
    use std::fmt::Write as _;
    let _ = write!(path, "{:.0} {:.0}", x * WIDTH, (1.0 - y) * HEIGHT); // a String takes everything
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: impl IntoIterator<Item = (u64, f64)>) -> Series {
        let mut series = Series::default();
        for (step, value) in values {
            series.push(step, value);
        }
        series
    }

    #[test]
    fn a_million_steps_become_a_few_columns_and_the_spike_stays() {
        let series = series((1..=1_000_000).map(|s| (s, if s == 654_321 { 99.0 } else { 1.0 })));
        let columns = columns(&series, 1, 1_000_000, 400);
        assert!((350..=400).contains(&columns.len()), "{}", columns.len());
        assert_eq!(columns.iter().filter(|c| c.max == 99.0).count(), 1);
        assert_eq!(columns.iter().map(|c| c.count).sum::<u64>(), 1_000_000);
    }

    #[test]
    fn nan_and_missing_steps_break_the_line() {
        let values = [(1, 1.0), (2, 1.0), (3, f64::NAN), (4, 1.0), (5, 1.0), (40, 1.0), (41, 1.0)];
        let columns = columns(&series(values), 1, 41, 400);
        let firsts: Vec<u64> = stretches(&columns).iter().map(|s| s[0].first).collect();
        assert_eq!(firsts, [1, 4, 40]);
    }

    #[test]
    fn a_path_runs_over_the_whole_chart_from_the_lower_left() {
        let (x, y) = (Axis::steps(0, 10, 5), Axis::linear(0.0, 1.0, 5));
        assert_eq!(line(&[(0.0, 0.0), (5.0, 0.5), (10.0, 1.0)], &x, &y), "M0 1000L1000 500L2000 0");
        assert_eq!(line(&[(0.0, 1.0)], &x, &y), "M0 0h0");
    }

    #[test]
    fn the_smoothed_line_keeps_a_straight_line_straight_and_halves_noise() {
        let straight = columns(&series((1..=200).map(|s| (s, s as f64))), 1, 200, 400);
        // In the middle both sides have the same weight.
        assert!((straight[99].smooth.unwrap() - 100.0).abs() < 0.01, "{:?}", straight[99]);
        let noisy = columns(&series((1..=200).map(|s| (s, (s % 2) as f64))), 1, 200, 400);
        assert!(noisy.iter().all(|c| (0.2..0.8).contains(&c.smooth.unwrap())));
    }

    #[test]
    fn huge_values_neither_overflow_nor_hide_the_mean() {
        let columns = columns(&series([(1, f64::MAX), (2, f64::MAX), (3, f64::MIN)]), 1, 3, 1);
        assert_eq!((columns.len(), columns[0].count), (1, 3));
        assert!(columns[0].mean.unwrap().is_finite());
        assert!(columns[0].smooth.unwrap().is_finite());
    }
}
