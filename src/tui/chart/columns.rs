//! Distributes buckets of steps over the columns of a chart. The smallest and largest values are kept at any
//! width.

use sparktune_runlog::Bucket;

/// The weight of the newest step in a moving average over about the last 20 steps. The run log's own average
/// uses the same weight.
const STEP_WEIGHT: f64 = 0.1;

/// The range of steps that a chart shows, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// The first step.
    pub from: u64,
    /// The last step, not before the first.
    pub to: u64,
}

impl Window {
    /// Returns the number of steps, in a type that cannot overflow.
    fn steps(self) -> u128 {
        u128::from(self.to.saturating_sub(self.from)) + 1
    }

    /// Returns the column of a step among `columns`, or `None` when the step is not shown.
    pub(crate) fn column(self, step: u64, columns: usize) -> Option<usize> {
        let shown = columns > 0 && (self.from..=self.to).contains(&step);
        shown.then(|| (u128::from(step - self.from) * columns as u128 / self.steps()) as usize)
    }

    /// Returns the first and the last step in a column. A column contains at least one step, so a step that
    /// is wider than a column is in all of its columns.
    pub(crate) fn steps_of(self, column: usize, columns: usize) -> (u64, u64) {
        let at = |column: usize| self.steps() * column as u128 / columns.max(1) as u128;
        let first = at(column).min(self.steps() - 1);
        let last = at(column + 1).max(first + 1).min(self.steps()) - 1;
        // The results lie within the window, whose ends have 64 bits.
        (self.from + first as u64, self.from + last as u64)
    }

    /// Returns the position of the middle of a bucket, in columns. It may lie outside the chart.
    fn middle(self, bucket: &Bucket, columns: usize) -> f64 {
        let middle = bucket.first_step as f64 / 2.0 + bucket.last_step as f64 / 2.0 + 0.5;
        (middle - self.from as f64) / self.steps() as f64 * columns as f64
    }
}

/// Summarises the values of a range of steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    /// The first step of its buckets.
    pub first_step: u64,
    /// The last step of its buckets.
    pub last_step: u64,
    /// The number of finite values.
    pub count: u64,
    /// The smallest finite value; infinite when `count` is 0.
    pub min: f64,
    /// The largest finite value; minus infinity when `count` is 0.
    pub max: f64,
    sum: f64,
    /// The number of values that were not finite.
    pub nonfinite: u64,
}

impl Summary {
    fn of(bucket: &Bucket) -> Self {
        let Bucket { first_step, last_step, count, min, max, sum, nonfinite, .. } = *bucket;
        Self { first_step, last_step, count, min, max, sum, nonfinite }
    }

    fn add(&mut self, bucket: &Bucket) {
        self.first_step = self.first_step.min(bucket.first_step);
        self.last_step = self.last_step.max(bucket.last_step);
        self.count = self.count.saturating_add(bucket.count);
        self.min = self.min.min(bucket.min);
        self.max = self.max.max(bucket.max);
        self.sum += bucket.sum;
        self.nonfinite = self.nonfinite.saturating_add(bucket.nonfinite);
    }

    /// Returns the mean of the finite values. It lies within their range even when their sum overflows.
    pub(crate) fn mean(&self) -> Option<f64> {
        let mean = self.sum / self.count as f64;
        let inside = if mean.is_finite() { mean } else { self.min / 2.0 + self.max / 2.0 };
        (self.count > 0).then(|| inside.clamp(self.min, self.max))
    }
}

/// Summarises the buckets that overlap steps `first` to `last`.
pub(crate) fn summary(buckets: &[Bucket], first: u64, last: u64) -> Option<Summary> {
    let from = buckets.partition_point(|b| b.last_step < first);
    let mut touching = buckets[from..].iter().take_while(|b| b.first_step <= last);
    let mut all = Summary::of(touching.next()?);
    touching.for_each(|bucket| all.add(bucket));
    Some(all)
}

/// Returns one summary for each of `columns` columns, of all buckets that overlap its steps.
pub(super) fn columns(buckets: &[Bucket], window: Window, columns: usize) -> Vec<Option<Summary>> {
    let mut all = vec![None; columns];
    if columns == 0 {
        return all;
    }
    let from = buckets.partition_point(|b| b.last_step < window.from);
    for bucket in buckets[from..].iter().take_while(|b| b.first_step <= window.to) {
        let end = |step: u64| window.column(step.clamp(window.from, window.to), columns).unwrap_or(0);
        // A single step that is wider than a column is drawn where it begins, which leaves room for the lines
        // between steps.
        let (first, last) = (end(bucket.first_step), end(bucket.last_step));
        for column in &mut all[first..=last] {
            match column {
                Some(summary) => Summary::add(summary, bucket),
                None => *column = Some(Summary::of(bucket)),
            }
        }
    }
    all
}

/// A line through the window, with at most one point per column and one beyond each end. `None` is a gap.
pub(super) type Line = Vec<Option<(f64, f64)>>;

/// Returns the means of the buckets as a line.
pub(super) fn mean_line(buckets: &[Bucket], window: Window, columns: usize) -> Line {
    line(buckets, window, columns, |bucket| Summary::of(bucket).mean())
}

/// Returns the moving average as a line. It includes the steps before the window, and has gaps where no value
/// was finite.
pub(super) fn average_line(buckets: &[Bucket], window: Window, columns: usize) -> Line {
    let mut average: Option<f64> = None;
    line(buckets, window, columns, |bucket| {
        let mean = Summary::of(bucket).mean()?;
        let weight = 1.0 - (1.0 - STEP_WEIGHT).powf(bucket.count as f64);
        let before = average.unwrap_or(mean);
        // Not `before + weight · (mean − before)`, because the difference of two finite numbers may overflow.
        average = Some(before * (1.0 - weight) + mean * weight);
        average
    })
}

fn line(
    buckets: &[Bucket],
    window: Window,
    columns: usize,
    mut value: impl FnMut(&Bucket) -> Option<f64>,
) -> Line {
    let mut line: Line = Vec::new();
    for bucket in buckets {
        let point = value(bucket).map(|y| (window.middle(bucket, columns), y));
        if bucket.last_step < window.from {
            line.clear();
        }
        match (line.last_mut(), point) {
            (Some(None), None) => {}
            // Of several points in one column, the last one decides where the line continues.
            (Some(Some(last)), Some(point)) if last.0.floor() == point.0.floor() => *last = point,
            _ => line.push(point),
        }
        if bucket.first_step > window.to {
            break;
        }
    }
    line
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use sparktune_runlog::Series;

    use super::*;

    pub(crate) fn series(values: &[(u64, f64)]) -> Series {
        let mut series = Series::default();
        for (step, value) in values {
            series.push(*step, *value);
        }
        series
    }

    fn long_with_spike() -> Series {
        let mut series = Series::default();
        for step in 1..=1_000_000_u64 {
            series.push(step, if step == 654_321 { 99.0 } else { 1.0 });
        }
        series
    }

    #[test]
    fn one_spike_in_a_million_steps_is_in_every_window_that_shows_its_step() {
        let series = long_with_spike();
        let mut width = 1_000_000;
        while width > 0 {
            for from in [654_321_u64.saturating_sub(width - 1), 654_321 - width / 2, 654_321] {
                let window = Window { from, to: from + width - 1 };
                for n in [1, 2, 20, 160, 400] {
                    let highest = columns(series.buckets(), window, n)
                        .iter()
                        .flatten()
                        .fold(0.0_f64, |top, c| top.max(c.max));
                    assert_eq!(highest, 99.0, "{window:?} in {n} columns");
                }
            }
            width /= 3;
        }
    }

    #[test]
    fn the_moving_average_follows_the_steps_and_breaks_at_gaps() {
        let buckets = series(&[(0, 1.0), (1, 2.0), (2, f64::NAN), (3, f64::INFINITY), (4, 2.0)]);
        let window = Window { from: 0, to: 4 };
        let line = average_line(buckets.buckets(), window, 10);
        let ys: Vec<Option<f64>> = line.iter().map(|p| p.map(|(_, y)| (y * 1e6).round() / 1e6)).collect();
        assert_eq!(ys, [Some(1.0), Some(1.1), None, Some(1.19)]);
    }

    proptest! {
        #[test]
        fn each_bucket_lies_within_all_columns_of_its_steps(
            values in proptest::collection::vec((0_u64..3000, -1e3..1e3_f64), 1..3000),
            from in 0_u64..3000, width in 0_u64..3000, n in 1_usize..300,
        ) {
            let series = series(&values);
            let window = Window { from, to: from + width };
            let all = columns(series.buckets(), window, n);
            for bucket in series.buckets() {
                for step in bucket.first_step.max(window.from)..=bucket.last_step.min(window.to) {
                    let column = all[window.column(step, n).unwrap()].unwrap();
                    prop_assert!(column.min <= bucket.min && bucket.max <= column.max);
                    let mean = column.mean().unwrap();
                    prop_assert!((column.min..=column.max).contains(&mean));
                }
            }
            for (i, column) in all.iter().enumerate() {
                let (first, last) = window.steps_of(i, n);
                prop_assert!(first <= last && window.from <= first && last <= window.to);
                if let Some(column) = column {
                    let same = summary(series.buckets(), column.first_step, column.last_step).unwrap();
                    prop_assert!(same.min <= column.min && column.max <= same.max);
                }
            }
        }

        #[test]
        fn steps_and_values_of_any_size_do_no_harm(
            values in proptest::collection::vec((any::<u64>(), any::<f64>()), 0..50),
            from: u64, to: u64, n in 0_usize..300,
        ) {
            let series = series(&values);
            let window = Window { from: from.min(to), to: from.max(to) };
            prop_assert_eq!(columns(series.buckets(), window, n).len(), n);
            for (i, _) in columns(series.buckets(), window, n).iter().enumerate() {
                let (first, last) = window.steps_of(i, n);
                prop_assert!(window.from <= first && first <= last && last <= window.to);
            }
            for line in [mean_line(series.buckets(), window, n), average_line(series.buckets(), window, n)] {
                prop_assert!(line.iter().flatten().all(|(x, y)| !x.is_nan() && y.is_finite()));
            }
        }
    }
}
