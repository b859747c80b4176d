//! A curve brought down to what a page can show: columns of equal width that keep smallest, largest and mean value.

use sparktune_runlog::{Bucket, Series};

use super::axis::{Axis, as_f64};

/// Path coordinates run from 0 to these, whatever size the chart has on the page.
pub(super) const WIDTH: f64 = 2000.0;
pub(super) const HEIGHT: f64 = 1000.0;

/// Weight of one step in the smoothed line, as in the live average.
const EMA_WEIGHT: f64 = 0.1;

/// Neighbouring steps drawn as one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Column {
    /// First and last step in it.
    pub first: u64,
    pub last: u64,
    /// Finite values in it.
    pub count: u64,
    /// Smallest and largest of them.
    pub min: f64,
    pub max: f64,
    /// Their mean; `None` when there is none.
    pub mean: Option<f64>,
    /// The moving average at this place.
    pub smooth: Option<f64>,
    /// Values that were NaN or infinite.
    pub nonfinite: u64,
}

impl Column {
    fn of(buckets: &[&Bucket]) -> Option<Self> {
        let (first, last) = (buckets.first()?.first_step, buckets.last()?.last_step);
        let count = buckets.iter().map(|b| b.count).sum();
        let min = buckets.iter().map(|b| b.min).fold(f64::INFINITY, f64::min);
        let max = buckets.iter().map(|b| b.max).fold(f64::NEG_INFINITY, f64::max);
        let mean = buckets.iter().map(|b| b.sum).sum::<f64>() / as_f64(count);
        // The sum of huge values may overflow; the mean lies between them all the same.
        let mean = (count > 0).then(|| if mean.is_nan() { min } else { mean.clamp(min, max) });
        let nonfinite = buckets.iter().map(|b| b.nonfinite).sum();
        Some(Column { first, last, count, min, max, mean, smooth: None, nonfinite })
    }

    /// The step it is drawn at.
    pub fn middle(&self) -> f64 {
        (as_f64(self.first) + as_f64(self.last)) / 2.0
    }
}

/// At most `most` columns over the steps `from` to `to`; values outside are left out.
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
    smooth(&mut columns);
    columns
}

/// Stretches without a hole: where only values that are not finite lie between, or steps of another attempt, the line
/// breaks.
pub(super) fn stretches(columns: &[Column]) -> Vec<&[Column]> {
    let mut distances: Vec<u64> = columns.windows(2).map(|w| w[1].first - w[0].first).collect();
    distances.sort_unstable();
    let usual = distances.get(distances.len() / 2).copied().unwrap_or(1);
    let broken = |a: &Column, b: &Column| {
        a.mean.is_none() || b.mean.is_none() || b.first - a.last > usual.saturating_mul(3)
    };
    columns.chunk_by(|a, b| !broken(a, b)).filter(|stretch| stretch[0].mean.is_some()).collect()
}

/// Adds the smoothed means: each step weighs a tenth, as in the live average.
fn smooth(columns: &mut [Column]) {
    let mut average: Option<f64> = None;
    for column in columns {
        let Some(mean) = column.mean else { continue };
        #[allow(clippy::cast_possible_truncation)] // beyond a few thousand steps the weight is 1
        let weight = 1.0 - (1.0 - EMA_WEIGHT).powi(column.count.min(10_000) as i32);
        // Not `before + weight × difference`: the difference of huge values may overflow.
        average = Some(average.map_or(mean, |before| before * (1.0 - weight) + mean * weight));
        column.smooth = average;
    }
}

/// A path through points of (step, value); a single point becomes a dot where line ends are round.
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

/// A closed path between smallest and largest values.
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
    fn huge_values_neither_overflow_nor_hide_the_mean() {
        let columns = columns(&series([(1, f64::MAX), (2, f64::MAX), (3, f64::MIN)]), 1, 3, 1);
        assert_eq!((columns.len(), columns[0].count), (1, 3));
        assert!(columns[0].mean.unwrap().is_finite());
        assert!(columns[0].smooth.unwrap().is_finite());
    }
}
