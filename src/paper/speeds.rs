//! What `sparktune bench loading --output FILE` has measured: token files at the speed of the machine.
//!
//! `measured/loading.json` is such a file and part of the program; `measured/README.md` describes it.

use serde::Deserialize;

use crate::results::ResultsError;

const COMMITTED: &str = include_str!("measured/loading.json");

/// The start of the names of rows about the way to a CUDA device.
const TO_DEVICE: &str = "to the device";
/// The row behind each of them.
const COPIES: &str = "copies on the host";

/// One row: what was measured, and how fast it was.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Speed {
    /// What was measured. Two spaces in front mark a detail of the row above.
    pub what: String,
    /// The value in `unit`; none if it could not be measured, and then the note says why.
    pub value: Option<f64>,
    /// The unit.
    pub unit: String,
    /// Its goal.
    pub target: Option<Goal>,
    /// Whether the value reaches its goal, if it has one.
    pub met: Option<bool>,
    /// How it was measured.
    pub note: String,
}

/// The goal of a value.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Below this value.
    LessThan(f64),
    /// This value or less.
    AtMost(f64),
    /// This value or more.
    AtLeast(f64),
}

/// All rows of one measurement.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Speeds {
    /// The rows in their order.
    pub rows: Vec<Speed>,
}

/// A way to a CUDA device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WayToDevice<'a> {
    /// Such as `read in place by a kernel`.
    pub(crate) name: &'a str,
    pub(crate) megabytes_per_s: f64,
    /// How often the bytes are copied on the host.
    pub(crate) copies: f64,
}

impl Speeds {
    /// Returns the rows that the program carries.
    ///
    /// # Errors
    /// None in a program that was tested.
    pub fn committed() -> Result<Self, ResultsError> {
        Self::from_json(COMMITTED)
    }

    /// Reads rows from JSON.
    ///
    /// # Errors
    /// It is no list of rows, or nothing says where they were measured.
    pub fn from_json(text: &str) -> Result<Self, ResultsError> {
        let rows = serde_json::from_str(text).map_err(ResultsError::UnreadableSpeeds)?;
        let speeds = Self { rows };
        if speeds.find(|what| what == "measured on").is_none() {
            return Err(ResultsError::Contradiction("no row says where loading was measured".into()));
        }
        Ok(speeds)
    }

    /// Returns why nothing was measured on a device.
    pub(crate) fn no_device(&self) -> Option<&str> {
        let row = &self.rows[self.find(|what| what == TO_DEVICE)?];
        row.value.is_none().then(|| row.note.trim_start_matches("skipped: "))
    }

    fn find(&self, is_one: impl Fn(&str) -> bool) -> Option<usize> {
        self.rows.iter().position(|row| is_one(&row.what))
    }

    /// Returns the value of a row, if it was measured.
    pub(crate) fn value(&self, what: &str) -> Option<f64> {
        self.rows[self.find(|found| found.trim_start() == what)?].value
    }

    /// Returns where and when it was measured, in words.
    pub(crate) fn measured_on(&self) -> Option<&str> {
        self.find(|what| what == "measured on").map(|row| self.rows[row].note.as_str())
    }

    /// Returns the ways to a device that were measured.
    pub(crate) fn to_device(&self) -> Vec<WayToDevice<'_>> {
        let of = |pair: &'_ [Speed]| pair[0].value.zip(pair[1].value);
        let is_pair = |pair: &&[Speed]| {
            pair[0].what.starts_with(TO_DEVICE) && pair[1].what.trim_start() == COPIES && of(pair).is_some()
        };
        let pairs = self.rows.windows(2).filter(is_pair);
        pairs
            .filter_map(|pair| {
                let (megabytes_per_s, copies) = of(pair)?;
                let name = pair[0].what.trim_start_matches(TO_DEVICE).trim_start_matches([':', ' ']);
                Some(WayToDevice { name, megabytes_per_s, copies })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::speeds;

    #[test]
    fn the_committed_rows_are_whole() {
        let speeds = Speeds::committed().unwrap();
        assert!(speeds.measured_on().is_some_and(|words| words.starts_with("20")), "{speeds:?}");
        for what in [
            "memory copy",
            "reading tokens and masks",
            "building rows with masks and borders",
            "the first time",
            "version 1, read and checked",
            "QubGPU's way",
            "cold: reading tokens and masks",
        ] {
            assert!(speeds.value(what).is_some_and(|value| value > 0.0), "{what}");
        }
        // Measured with its copies, or a row says why not.
        assert_eq!(speeds.to_device().is_empty(), speeds.no_device().is_some());
    }

    #[test]
    fn ways_to_a_device_are_those_with_a_speed_and_their_copies() {
        let speeds = speeds();
        let ways: Vec<_> =
            speeds.to_device().iter().map(|way| (way.name, way.megabytes_per_s, way.copies)).collect();
        assert_eq!(ways, [("pageable", 10_000.0, 1.0), ("read in place by a kernel", 20_000.0, 0.0)]);
    }

    #[test]
    fn what_is_no_list_of_rows_is_refused_in_words() {
        let refused = |text: &str| Speeds::from_json(text).unwrap_err().to_string();
        assert!(refused("{}").contains("bench loading --output"));
        assert!(refused("[]").contains("where loading was measured"));
    }
}
