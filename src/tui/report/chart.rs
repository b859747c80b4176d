//! One chart over steps: what is shown of a series, on which axes, with which words.

use sparktune_base::units::{self, count};
use sparktune_runlog::{Series, Unit};

use super::axis::{figure, reading};

/// How the report shows the values of a unit.
pub(super) trait Shown {
    /// What one unit on the axis is, and its name.
    fn on_axis(self, largest: f64) -> (f64, &'static str);
    /// A value as text, beside a caption that names the unit.
    fn show(self, value: f64) -> String;
    /// Whether the axis begins at 0. Otherwise it begins near the smallest value, and is logarithmic where
    /// most of the curve would lie flat on the ground.
    fn starts_at_zero(self) -> bool;
    /// Whether the means are smoothed, for what differs from step to step.
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

/// How much of a chart is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Detail {
    /// Points of a line, at most.
    pub columns: u64,
    /// Places that show their values when pointed at.
    pub slices: u64,
    /// Value ticks, about.
    pub ticks: usize,
    /// Height in CSS pixels.
    pub height: &'static str,
}

/// A chart to itself.
pub(super) const LARGE: Detail = Detail { columns: 400, slices: 60, ticks: 6, height: "320" };
/// One of several.
pub(super) const SMALL: Detail = Detail { columns: 160, slices: 24, ticks: 3, height: "132" };

/// A checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mark {
    /// Steps trained by then.
    pub step: u64,
    /// What is shown when it is pointed at.
    pub title: String,
}

/// A chart over steps.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    pub title: &'a str,
    pub unit: Unit,
    pub detail: Detail,
    /// First and last step of the axis.
    pub span: (u64, u64),
    /// The steps that count.
    pub kept: &'a Series,
    /// Steps that a later attempt did again.
    pub discarded: &'a Series,
    /// Measured at some steps only, drawn as points: those that count, and those of steps done again.
    pub eval: Option<[&'a Series; 2]>,
    /// The step of the best of them.
    pub best: Option<u64>,
    pub checkpoints: Vec<Mark>,
    /// Steps from which a later attempt went on.
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
