//! Rows of the result: a measured value, the target that it is held to, and whether the target was met.

use serde::Serialize;
use sparktune_base::units::{bytes, count, milliseconds};

/// The target of a value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Below this value.
    LessThan(f64),
    /// This value or less.
    AtMost(f64),
    /// This value or more.
    AtLeast(f64),
}

impl Target {
    /// Returns whether a value reaches the target. NaN never does.
    pub fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::LessThan(limit) => value < limit,
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }

    /// `< 30 ms`
    fn in_words(self, unit: &str) -> String {
        let (sign, limit) = match self {
            Self::LessThan(limit) => ("<", limit),
            Self::AtMost(limit) => ("≤", limit),
            Self::AtLeast(limit) => ("≥", limit),
        };
        format!("{sign} {}", in_unit(limit, unit))
    }
}

/// Time of one unit of work: the median over the measured ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Timing {
    /// Wall time, seconds.
    pub seconds: f64,
    /// Processor time of all threads, seconds.
    pub cpu_seconds: f64,
}

/// One row of the result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The section it belongs to.
    pub section: &'static str,
    /// The name of the measured thing. Two spaces in front mark a detail of the row above.
    pub what: String,
    /// The measured value, in `unit`. Not a number, which is null in JSON, if it was not measured; the note
    /// says why.
    pub value: f64,
    /// The unit of `value` and of the target.
    pub unit: &'static str,
    /// The target of the value, if it has one.
    pub target: Option<Target>,
    /// Whether the target was met; `None` without a target.
    pub met: Option<bool>,
    /// Wall time and processor time, if both were measured.
    #[serde(flatten)]
    pub timing: Option<Timing>,
    /// How it was measured.
    pub note: String,
}

impl Row {
    /// A row without a target.
    pub fn new(what: impl Into<String>, value: f64, unit: &'static str, note: impl Into<String>) -> Self {
        Self {
            section: "",
            what: what.into(),
            value,
            unit,
            target: None,
            met: None,
            timing: None,
            note: note.into(),
        }
    }

    /// A row of what could not be measured here.
    pub fn skipped(what: impl Into<String>, unit: &'static str, why: &str) -> Self {
        Self::new(what, f64::NAN, unit, format!("skipped: {why}"))
    }

    /// Holds the value to a target.
    pub fn with_target(self, target: Target) -> Self {
        Self { target: Some(target), met: Some(target.is_met_by(self.value)), ..self }
    }

    /// Adds the time of one unit of work.
    pub fn with_timing(self, timing: Timing) -> Self {
        Self { timing: Some(timing), ..self }
    }

    /// `target: < 30 ms, met; 0.57 s, 1.13 s of CPU time; median of 21 starts`
    fn remarks(&self) -> String {
        let target = self.target.zip(self.met).map(|(target, met)| {
            format!("target: {}, {}", target.in_words(self.unit), if met { "met" } else { "missed" })
        });
        let timing = self.timing.map(|Timing { seconds, cpu_seconds }| {
            format!("{}, {} of CPU time", milliseconds(seconds * 1e3), milliseconds(cpu_seconds * 1e3))
        });
        let note = (!self.note.is_empty()).then(|| self.note.clone());
        [target, timing, note].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// A value with its unit, with as many digits as say something.
fn in_unit(value: f64, unit: &str) -> String {
    if value.is_nan() {
        return "–".to_owned();
    }
    if unit == "bytes" {
        return bytes(value as u64);
    }
    let digits = if value >= 100.0 || value.fract() == 0.0 {
        count(value.round() as u64)
    } else if unit == "×" {
        format!("{value:.2}")
    } else {
        format!("{value:.1}")
    };
    format!("{digits} {unit}").trim_end().to_owned()
}

/// The rows as lines for people, in columns.
pub fn table(rows: &[Row]) -> String {
    let values: Vec<String> = rows.iter().map(|row| in_unit(row.value, row.unit)).collect();
    let width = |cells: &mut dyn Iterator<Item = usize>| cells.max().unwrap_or(0);
    let what_width = width(&mut rows.iter().map(|row| row.what.chars().count()));
    let value_width = width(&mut values.iter().map(|value| value.chars().count()));
    rows.iter()
        .zip(&values)
        .map(|(row, value)| {
            let line = format!("{:what_width$}  {value:>value_width$}  {}", row.what, row.remarks());
            format!("{}\n", line.trim_end())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_on_the_right_side_of_its_limit_alone() {
        let met = |target: Target| [29.0, 30.0, 31.0, f64::NAN].map(|value| target.is_met_by(value));
        assert_eq!(met(Target::LessThan(30.0)), [true, false, false, false]);
        assert_eq!(met(Target::AtMost(30.0)), [true, true, false, false]);
        assert_eq!(met(Target::AtLeast(30.0)), [false, true, true, false]);
    }

    #[test]
    fn a_row_prints_its_target_and_whether_it_was_met_or_missed() {
        let start =
            Row::new("sparktune --help", 2.04, "ms", "median of 21").with_target(Target::LessThan(30.0));
        let ratio = Row::new("  ratio to the peer", 2.104, "×", "").with_target(Target::AtLeast(2.5));
        let step = Row::new("training", 1791.2, "tokens/s", "LoRA")
            .with_timing(Timing { seconds: 0.572, cpu_seconds: 1.131 });
        let plain = Row::new("first frame", 11_500.0, "bytes", "");
        let expected = "\
sparktune --help             2.0 ms  target: < 30 ms, met; median of 21
  ratio to the peer          2.10 ×  target: ≥ 2.50 ×, missed
training             1,791 tokens/s  572 ms, 1.13 s of CPU time; LoRA
first frame                 11.5 kB
";
        assert_eq!(table(&[start, ratio, step, plain]), expected);
    }

    #[test]
    fn what_was_not_measured_has_no_number_and_says_why() {
        let row = Row::skipped("to the device", "MB/s", "no CUDA device responds");
        assert_eq!(table(std::slice::from_ref(&row)), "to the device  –  skipped: no CUDA device responds\n");
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!((&json["value"], &json["met"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    }

    #[test]
    fn a_row_in_json_has_its_target_and_whether_it_was_met() {
        let row = Row::new("a", 3.0, "ms", "n").with_target(Target::AtMost(2.0));
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!((&json["target"]["at_most"], &json["met"]), (&2.0.into(), &false.into()));
        let timed = Row::new("a", 3.0, "ms", "n").with_timing(Timing { seconds: 1.0, cpu_seconds: 2.0 });
        let json = serde_json::to_value(&timed).unwrap();
        assert_eq!((&json["target"], &json["met"]), (&serde_json::Value::Null, &serde_json::Value::Null));
        assert_eq!((&json["seconds"], &json["cpu_seconds"]), (&1.0.into(), &2.0.into()));
    }
}
