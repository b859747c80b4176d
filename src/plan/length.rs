//! The length of a training in epochs and steps, and what it was before `resume` changed it.

use serde::{Deserialize, Serialize};

/// The length of training.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DurationPlan {
    /// The number of passes over the data. The part of an epoch is rounded up to whole steps.
    pub epochs: f64,
    /// The largest number of optimizer steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u64>,
    /// What the run was planned to last before `resume` made it longer or shorter, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<EarlierLength>,
}

/// The length of training in an earlier plan of the same run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlierLength {
    /// The number of passes over the data.
    pub epochs: f64,
    /// The largest number of optimizer steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u64>,
    /// The number of optimizer steps that this came to.
    pub steps: u64,
    /// The number of steps that were trained by it.
    pub until_step: u64,
    /// BLAKE3 of the plan's text, by which checkpoints know it.
    pub plan: String,
}

impl DurationPlan {
    /// Returns a length of so many epochs.
    pub const fn of_epochs(epochs: f64) -> Self {
        Self { epochs, max_steps: None, before: Vec::new() }
    }

    /// Returns the optimizer steps of these epochs, if each has `steps_per_epoch`: the part of an epoch is
    /// rounded up to a whole step, as in transformers.
    pub fn steps(&self, steps_per_epoch: u64) -> u64 {
        let whole = (self.epochs.floor() as u64).saturating_mul(steps_per_epoch);
        let steps = whole.saturating_add(steps_in_part(self.epochs, steps_per_epoch));
        steps.min(self.max_steps.unwrap_or(u64::MAX))
    }

    /// Returns `about ` for a planned number of steps that is an estimate: packs are counted when the run
    /// makes them, so only the number at which `max_steps` ends the run is known before.
    pub fn about(&self, steps: u64) -> &'static str {
        if self.max_steps == Some(steps) { "" } else { "about " }
    }
}

/// Returns the steps of the last, unfinished epoch of `epochs`, which has `steps` if it is whole.
pub fn steps_in_part(epochs: f64, steps: u64) -> u64 {
    // What arithmetic adds to a decimal fraction is no further step.
    (epochs.fract() * steps as f64 - 1e-9).ceil().max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Origin;
    use crate::settings::Answers;

    #[test]
    fn steps_are_about_so_many_unless_max_steps_ends_the_run() {
        let limited = DurationPlan { max_steps: Some(20), ..DurationPlan::of_epochs(3.0) };
        assert_eq!((limited.steps(43), limited.about(limited.steps(43))), (20, ""));
        assert_eq!((limited.steps(5), limited.about(limited.steps(5))), (15, "about "));
        assert_eq!(DurationPlan::of_epochs(3.0).about(129), "about ");
    }

    #[test]
    fn a_length_that_was_changed_is_written_and_read_and_its_plan_is_still_a_preset() {
        let earlier =
            EarlierLength { epochs: 1.5, max_steps: None, steps: 6, until_step: 6, plan: "abc".into() };
        let length =
            DurationPlan { before: vec![earlier], max_steps: Some(9), ..DurationPlan::of_epochs(3.0) };
        let text = toml::to_string(&length).unwrap();
        assert_eq!(toml::from_str::<DurationPlan>(&text).unwrap(), length);
        // Plans of older versions have whole numbers.
        assert_eq!(toml::from_str::<DurationPlan>("epochs = 3").unwrap(), DurationPlan::of_epochs(3.0));
        let plan = format!("[duration]\n{}", text.replace("[[before]]", "[[duration.before]]"));
        let answers = Answers::from_toml(&plan, Origin::Preset, "plan.toml").unwrap();
        assert_eq!(answers.epochs.unwrap().value, 3.0);
    }

    #[test]
    fn a_part_of_an_epoch_is_rounded_up_to_whole_steps() {
        for (epochs, per_epoch, steps) in [
            (1.0, 10, 10),
            (0.5, 10, 5),
            (0.5, 9, 5),
            (1.5, 9, 14),
            (1.1, 10, 11),
            (0.001, 10, 1),
            (2.3, 10, 23),
        ] {
            assert_eq!(DurationPlan::of_epochs(epochs).steps(per_epoch), steps, "{epochs} of {per_epoch}");
        }
        let ended = DurationPlan { max_steps: Some(7), ..DurationPlan::of_epochs(1.5) };
        assert_eq!(ended.steps(10), 7);
    }
}
