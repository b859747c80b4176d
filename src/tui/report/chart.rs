//! One chart over steps: its range, its axes and its captions.

use sparktune_base::units::{self, count};
use sparktune_runlog::{Series, Unit};

use super::axis::{figure, reading};

/// How the report shows the values of a unit.
pub(super) trait Shown {
    /// Returns the size of one unit on the axis, and its name.
    fn on_axis(self, largest: f64) -> (f64, &'static str);
    /// Formats a value next to a caption that names the unit.
    fn show(self, value: f64) -> String;
    /// Returns whether the axis begins at 0. Otherwise it begins near the smallest value, and is logarithmic
    /// if most of the curve would be a flat line at the bottom.
    fn starts_at_zero(self) -> bool;
    /// Returns whether the means are smoothed, for values that vary from step to step.
    fn smooths(self) -> bool;
}

impl Shown for Unit {
    fn on_axis(self, largest: f64) -> (f64, &'static str) {
        let sizes = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
        match self {
            Unit::Bytes => sizes.into_iter().find(|(size, _)| largest >= *size).unwrap_or((1.0, "B")),
            _ => (1.0, self.name()),
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Unit::Bytes => units::bytes(value.max(0.0) as u64),
            Unit::Nats | Unit::LearningRate | Unit::Norm => figure(value),
            _ => reading(value),
        }
    }

    fn starts_at_zero(self) -> bool {
        !matches!(self, Unit::Nats | Unit::Norm | Unit::Celsius)
    }

    fn smooths(self) -> bool {
        !matches!(self, Unit::LearningRate | Unit::Bytes | Unit::Megahertz | Unit::Celsius)
    }
}

/// The level of detail of a chart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Detail {
    /// The largest number of points of a line.
    pub columns: u64,
    /// The number of slices that show their values on hover.
    pub slices: u64,
    /// The approximate number of value ticks.
    pub ticks: usize,
    /// The height in CSS pixels.
    pub height: &'static str,
}

/// The detail of a large chart.
pub(super) const LARGE: Detail = Detail { columns: 400, slices: 60, ticks: 6, height: "320" };
/// The detail of one of several small charts.
pub(super) const SMALL: Detail = Detail { columns: 160, slices: 24, ticks: 3, height: "132" };

/// The mark of a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mark {
    /// The number of steps trained so far.
    pub step: u64,
    /// The text shown on hover.
    pub title: String,
}

/// A chart over steps.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    pub title: &'a str,
    pub unit: Unit,
    pub detail: Detail,
    /// The first and last step of the axis.
    pub span: (u64, u64),
    /// The values of steps that count.
    pub kept: &'a Series,
    /// The values of steps that a later attempt repeated.
    pub discarded: &'a Series,
    /// Values measured at some steps only, drawn as points: those of steps that count, and those of repeated
    /// steps.
    pub eval: Option<[&'a Series; 2]>,
    /// The step of the best of them.
    pub best: Option<u64>,
    /// The value before the first step, drawn as a horizontal line, and whose it is.
    pub base: Option<(&'static str, f64)>,
    pub checkpoints: Vec<Mark>,
    /// The steps from which a later attempt resumed.
    pub resumes: Vec<u64>,
}

/// `step 5`, `steps 5 to 9`
pub(super) fn steps(first: u64, last: u64) -> String {
    if first == last {
        format!("step {}", count(first))
    } else {
        format!("steps {} to {}", count(first), count(last))
    }
}
