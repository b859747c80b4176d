//! The values of all steps of a run, so that any part of a curve can be drawn exactly.
//!
//! The charts of a [`RunView`](sparktune_runlog::RunView) cover a whole run in at most 2,048 columns. A
//! closer look needs the steps themselves: 28 bytes for each, as 32-bit floats, which a chart cannot tell
//! from 64.

use serde::Serialize;
use sparktune_runlog::{Bucket, METRICS, Metric, Step};
use utoipa::ToSchema;

/// The name of the training loss, which every step has.
pub(crate) const LOSS: &str = "loss_nats";
/// The number of steps above which they are not kept: they would take more than 100 MB.
const MOST_STEPS: usize = 4_000_000;
/// The number of listed steps whose value was not finite.
const LISTED: usize = 256;
/// Stands for a value that was not finite.
const NOT_FINITE: f32 = f32::INFINITY;

/// A part of a curve in columns of the same width.
#[derive(Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct Curve {
    /// The first step of each column that has values.
    pub steps: Vec<u64>,
    /// The smallest value of the column; null if none is finite.
    pub min: Vec<Option<f32>>,
    /// The largest.
    pub max: Vec<Option<f32>>,
    /// The mean of the finite values.
    pub mean: Vec<Option<f32>>,
    /// The last value.
    pub last: Vec<Option<f32>>,
    /// The number of steps of a column.
    pub width: u64,
    /// Steps whose value was NaN or infinite, at most 256. In a curve whose steps are not kept one by one,
    /// the last step of each group of neighbours that has such a value.
    pub nonfinite: Vec<u64>,
}

/// A range of steps, both included, and the number of columns that it is wanted in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub first: u64,
    pub last: u64,
    pub points: usize,
}

/// The steps of a run that count, in order.
#[derive(Debug)]
pub(crate) struct Steps {
    steps: Vec<u64>,
    /// The loss, and the metrics of each step in the order of [`METRICS`]. NaN stands for a value that was
    /// not measured.
    columns: Vec<(&'static str, Read, Vec<f32>)>,
    /// Whether there were too many.
    is_full: bool,
}

type Read = fn(&Step) -> Option<f64>;

impl Default for Steps {
    fn default() -> Self {
        let loss: Read = |step| Some(step.loss_nats);
        let others = METRICS.iter().filter_map(|metric: &Metric| Some((metric.name, metric.of_step()?)));
        let all = [(LOSS, loss)].into_iter().chain(others);
        let columns = all.map(|(name, read)| (name, read, Vec::new())).collect();
        Self { steps: Vec::new(), columns, is_full: false }
    }
}

impl Steps {
    /// Returns the number of steps.
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Adds a step. One that is repeated without a new attempt replaces what was after it.
    pub(crate) fn push(&mut self, step: &Step) {
        if self.is_full {
            return;
        }
        if self.steps.last().is_some_and(|last| *last >= step.step) {
            self.cut_after(step.step.saturating_sub(1));
        }
        if self.steps.len() == MOST_STEPS {
            *self = Self { is_full: true, ..Self::default() };
            return;
        }
        self.steps.push(step.step);
        for (_, read, values) in &mut self.columns {
            values.push(match read(step) {
                None => f32::NAN,
                Some(value) if value.is_finite() => value as f32,
                Some(_) => NOT_FINITE,
            });
        }
    }

    /// Removes everything after a step, which a new attempt repeats.
    pub(crate) fn cut_after(&mut self, step: u64) {
        let kept = self.steps.partition_point(|known| *known <= step);
        self.steps.truncate(kept);
        self.columns.iter_mut().for_each(|(_, _, values)| values.truncate(kept));
    }

    /// Returns a part of the curve of this name; `None` if it is no value of steps, or the steps are not
    /// kept.
    pub(crate) fn curve(&self, name: &str, range: Range) -> Option<Curve> {
        let (_, _, values) =
            self.columns.iter().find(|(known, ..)| *known == name).filter(|_| !self.is_full)?;
        let from = self.steps.partition_point(|step| *step < range.first);
        let to = self.steps.partition_point(|step| *step <= range.last).max(from);
        let (steps, values) = (&self.steps[from..to], &values[from..to]);
        let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return Some(Curve::default()) };
        let mut columns = Columns::new(*first, *last, range.points);
        let (mut from, width) = (0, columns.curve.width);
        while from < steps.len() {
            let slot = |step: u64| (step - columns.origin) / width;
            let to = from + steps[from..].partition_point(|step| slot(*step) == slot(steps[from]));
            columns.add_steps(&steps[from..to], &values[from..to]);
            from = to;
        }
        Some(columns.curve)
    }
}

/// Returns a part of a curve that is known in buckets alone.
pub(crate) fn of_buckets(buckets: &[Bucket], range: Range) -> Curve {
    let from = buckets.partition_point(|bucket| bucket.last_step < range.first);
    let to = buckets.partition_point(|bucket| bucket.first_step <= range.last).max(from);
    let buckets = &buckets[from..to];
    let (Some(first), Some(last)) = (buckets.first(), buckets.last()) else { return Curve::default() };
    let mut columns = Columns::new(first.first_step, last.last_step, range.points);
    for bucket in buckets {
        let column = Column {
            min: bucket.min as f32,
            max: bucket.max as f32,
            sum: bucket.sum,
            count: bucket.count,
            last: bucket.last as f32,
        };
        columns.add(bucket.first_step, bucket.last_step, column, bucket.nonfinite);
    }
    columns.curve
}

/// A column that is being filled.
#[derive(Debug, Clone, Copy)]
struct Column {
    min: f32,
    max: f32,
    sum: f64,
    count: u64,
    last: f32,
}

impl Column {
    const EMPTY: Self =
        Self { min: f32::INFINITY, max: f32::NEG_INFINITY, sum: 0.0, count: 0, last: f32::NAN };

    fn absorb(&mut self, later: Self) {
        self.min = self.min.min(later.min);
        self.max = self.max.max(later.max);
        self.sum += later.sum;
        self.count += later.count;
        self.last = later.last;
    }
}

/// Columns of the same width, filled from left to right.
struct Columns {
    origin: u64,
    open: Option<(u64, Column)>,
    curve: Curve,
}

impl Columns {
    fn new(first: u64, last: u64, points: usize) -> Self {
        let width = (last - first).saturating_add(1).div_ceil(points.max(1) as u64);
        Self { origin: first, open: None, curve: Curve { width, ..Curve::default() } }
    }

    /// Adds the steps of one column.
    fn add_steps(&mut self, steps: &[u64], values: &[f32]) {
        let mut column = Column::EMPTY;
        for value in values.iter().filter(|value| value.is_finite()) {
            column.min = column.min.min(*value);
            column.max = column.max.max(*value);
            column.sum += f64::from(*value);
            column.count += 1;
        }
        let Some(last) = values.iter().rfind(|value| !value.is_nan()) else { return };
        column.last = *last;
        if column.count < values.len() as u64 {
            let not_finite = steps.iter().zip(values).filter(|(_, value)| **value == NOT_FINITE);
            let room = LISTED.saturating_sub(self.curve.nonfinite.len());
            self.curve.nonfinite.extend(not_finite.map(|(step, _)| *step).take(room));
        }
        self.add(steps[0], steps[0], column, 0);
    }

    fn add(&mut self, first: u64, last: u64, column: Column, nonfinite: u64) {
        if nonfinite > 0 && self.curve.nonfinite.len() < LISTED {
            self.curve.nonfinite.push(last);
        }
        let slot = (first - self.origin) / self.curve.width;
        let column = match self.open {
            Some((open, mut known)) if open == slot => {
                known.absorb(column);
                known
            }
            _ => {
                self.curve.steps.push(first);
                let curve = &mut self.curve;
                for values in [&mut curve.min, &mut curve.max, &mut curve.mean, &mut curve.last] {
                    values.push(None);
                }
                column
            }
        };
        self.open = Some((slot, column));
        self.replace_last(column);
    }

    fn replace_last(&mut self, column: Column) {
        let at = self.curve.steps.len() - 1;
        let finite = |value: f32| Some(value).filter(|value| value.is_finite());
        let mean = (column.count > 0).then(|| (column.sum / column.count as f64) as f32);
        self.curve.min[at] = finite(column.min);
        self.curve.max[at] = finite(column.max);
        self.curve.mean[at] = mean;
        self.curve.last[at] = finite(column.last);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn steps(losses: impl IntoIterator<Item = f64>) -> Steps {
        let mut steps = Steps::default();
        for (step, loss_nats) in (1..).zip(losses) {
            steps.push(&Step { step, loss_nats, ..Step::default() });
        }
        steps
    }

    const ALL: Range = Range { first: 0, last: u64::MAX, points: 1000 };

    #[test]
    fn a_spike_in_a_million_steps_is_seen_from_far_and_from_near() {
        let all = steps((1..=1_000_000).map(|step| if step == 654_321 { 99.0 } else { 1.0 }));
        let far = all.curve(LOSS, ALL).unwrap();
        assert!(far.steps.len() <= 1000 && far.width == 1000);
        assert_eq!(far.max.iter().filter(|max| **max == Some(99.0)).count(), 1);
        let near = all.curve(LOSS, Range { first: 654_320, last: 654_322, points: 1000 }).unwrap();
        assert_eq!(near.steps, [654_320, 654_321, 654_322]);
        assert_eq!(near.last, [Some(1.0), Some(99.0), Some(1.0)]);
        assert_eq!(all.curve("lr", ALL).unwrap(), Curve { width: 1000, ..Curve::default() });
        assert!(all.curve("temperature_celsius", ALL).is_none());
    }

    #[test]
    fn values_that_are_not_finite_are_listed_and_are_no_values() {
        let all = steps([1.0, f64::NAN, 3.0, f64::INFINITY]);
        let curve = all.curve(LOSS, Range { points: 2, ..ALL }).unwrap();
        assert_eq!((curve.width, &curve.steps), (2, &vec![1, 3]));
        assert_eq!((curve.min, curve.last), (vec![Some(1.0), Some(3.0)], vec![None, None]));
        assert_eq!(curve.nonfinite, [2, 4]);
    }

    #[test]
    fn a_step_that_is_repeated_replaces_what_came_after_it() {
        let mut all = steps([1.0, 2.0, 3.0, 4.0]);
        all.cut_after(3);
        all.push(&Step { step: 2, loss_nats: 9.0, ..Step::default() });
        let curve = all.curve(LOSS, ALL).unwrap();
        assert_eq!((curve.steps, curve.last), (vec![1, 2], vec![Some(1.0), Some(9.0)]));
    }

    #[test]
    fn the_first_and_the_last_step_that_there_can_be_are_columns_too() {
        let mut all = Steps::default();
        for step in [0, u64::MAX] {
            all.push(&Step { step, loss_nats: 1.0, ..Step::default() });
        }
        for points in [1, 1000] {
            assert_eq!(all.curve(LOSS, Range { points, ..ALL }).unwrap().steps, [0, u64::MAX]);
        }
        let bucket = Bucket {
            first_step: 0,
            last_step: u64::MAX,
            count: 1,
            min: 1.0,
            max: 1.0,
            sum: 1.0,
            last: 1.0,
            nonfinite: 0,
        };
        assert_eq!(of_buckets(&[bucket], ALL).steps, [0]);
    }

    proptest! {
        #[test]
        fn columns_hold_every_value_of_the_range(
            losses in proptest::collection::vec(-5.0_f64..5.0, 1..300),
            first in 0_u64..320, length in 0_u64..320, points in 0_usize..50,
        ) {
            let range = Range { first, last: first + length, points };
            let curve = steps(losses.iter().copied()).curve(LOSS, range).unwrap();
            prop_assert!(curve.steps.len() <= points.max(1));
            prop_assert!(curve.steps.is_sorted());
            let inside = |step: u64| step >= range.first && step <= range.last;
            let wanted = (1..).zip(&losses).filter(|(step, _)| inside(*step)).map(|(_, loss)| *loss as f32);
            let largest = wanted.clone().reduce(f32::max);
            prop_assert_eq!(curve.max.iter().flatten().copied().reduce(f32::max), largest);
            prop_assert_eq!(curve.min.iter().flatten().copied().reduce(f32::min), wanted.reduce(f32::min));
        }
    }
}
