//! The actions that are due after an optimizer step: evaluate, save, end the stage, stop the run.
//!
//! Pure: [`Due`] depends only on the step, the plan's intervals, the time since the last checkpoint, the
//! result of an evaluation and the requests. It must not know models, files or clocks.

use std::ops::RangeInclusive;
use std::time::Duration;

use sparktune_plan::Plan;

use crate::control::ControlRequests;

/// The intervals of evaluations and checkpoints in a stage, and its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Intervals {
    /// The number of optimizer steps in the stage.
    pub(crate) total_steps: u64,
    pub(crate) eval_steps: u64,
    pub(crate) save_steps: u64,
    /// The age of the last checkpoint at which a new one is due, independent of the number of steps.
    pub(crate) save_after: Duration,
    /// The number of consecutive evaluations without a better loss after which the stage ends.
    pub(crate) early_stop_patience: Option<u32>,
}

impl Intervals {
    /// Returns the plan's intervals for a stage of `total_steps`. An interval of 0 counts as 1.
    pub(crate) fn from_plan(plan: &Plan, total_steps: u64) -> Self {
        Self {
            total_steps,
            eval_steps: plan.eval.every_steps.max(1),
            save_steps: plan.checkpoint.save_steps.max(1),
            save_after: Duration::from_secs(60 * u64::from(plan.checkpoint.save_minutes.max(1))),
            early_stop_patience: plan.eval.early_stop_patience.map(|patience| patience.max(1)),
        }
    }

    /// Returns the intervals for the stage of the MTP head: it is evaluated at least four times, and always
    /// trained to its end, because its best weights are kept.
    pub(crate) fn of_head(self) -> Self {
        let eval_steps = self.eval_steps.min(self.total_steps.div_ceil(4)).max(1);
        Self { eval_steps, early_stop_patience: None, ..self }
    }
}

/// The reason why a stage ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StageEnd {
    /// All steps are done.
    LastStep,
    /// The loss on the eval set no longer improves.
    EarlyStop,
}

/// The result of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Evaluated {
    /// Whether its loss is the lowest so far.
    pub(crate) is_best: bool,
    /// The number of consecutive evaluations without a better loss, including this one.
    pub(crate) without_gain: u32,
}

/// The actions that are due after a step, carried out in the order of the fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// Evaluate and generate samples, if there is an eval set.
    pub(crate) evaluate: bool,
    /// End the stage.
    pub(crate) end: Option<StageEnd>,
    /// Write a checkpoint.
    pub(crate) save: bool,
    /// Whether the checkpoint belongs to the lowest eval loss so far.
    pub(crate) is_best: bool,
    /// Stop the run. A later attempt continues it.
    pub(crate) stop: bool,
}

impl Due {
    /// Returns the actions that the plan requires after any of these steps, the last of which has just been
    /// done, `since_save` after the last checkpoint.
    pub(crate) fn by_schedule(
        intervals: &Intervals,
        steps: RangeInclusive<u64>,
        since_save: Duration,
    ) -> Self {
        let is_last = *steps.end() >= intervals.total_steps;
        let has_multiple_of = |every: u64| steps.clone().any(|step| step.is_multiple_of(every));
        Self {
            evaluate: is_last || has_multiple_of(intervals.eval_steps),
            end: is_last.then_some(StageEnd::LastStep),
            save: is_last || has_multiple_of(intervals.save_steps) || since_save >= intervals.save_after,
            ..Self::default()
        }
    }

    /// Adds the consequences of an evaluation: the best weights are saved, and the stage ends when the
    /// patience is exhausted.
    pub(crate) fn after_evaluation(self, intervals: &Intervals, evaluated: Evaluated) -> Self {
        let Evaluated { is_best, without_gain } = evaluated;
        let is_exhausted = intervals.early_stop_patience.is_some_and(|patience| without_gain >= patience);
        let end = self.end.or(is_exhausted.then_some(StageEnd::EarlyStop));
        Self { end, save: self.save || is_best || end.is_some(), is_best, ..self }
    }

    /// Adds the requests. Every request is answered with a checkpoint.
    pub(crate) fn with_requests(self, requests: &ControlRequests) -> Self {
        Self { save: self.save || requests.wants_checkpoint(), stop: requests.stops(), ..self }
    }

    /// Returns whether the step must be known to be valid before the actions are carried out.
    pub(crate) fn is_anything(&self) -> bool {
        *self != Self::default()
    }
}

#[cfg(test)]
mod tests {
    use sparktune_runlog::{Action, Request};

    use super::*;

    const INTERVALS: Intervals = Intervals {
        total_steps: 20,
        eval_steps: 6,
        save_steps: 5,
        save_after: Duration::from_secs(600),
        early_stop_patience: Some(2),
    };
    const JUST_SAVED: Duration = Duration::ZERO;

    fn scheduled(step: u64) -> Due {
        Due::by_schedule(&INTERVALS, step..=step, JUST_SAVED)
    }

    #[test]
    fn steps_between_the_intervals_owe_nothing() {
        for step in [1, 2, 3, 4, 7, 8, 9, 11, 13, 14, 16, 17, 19] {
            assert!(!scheduled(step).is_anything(), "{step}");
        }
    }

    #[test]
    fn evaluations_and_checkpoints_follow_their_own_intervals() {
        assert_eq!(scheduled(5), Due { save: true, ..Due::default() });
        assert_eq!(scheduled(6), Due { evaluate: true, ..Due::default() });
        let all_day = Intervals { total_steps: 60, ..INTERVALS };
        let both = Due { evaluate: true, save: true, ..Due::default() };
        assert_eq!(Due::by_schedule(&all_day, 30..=30, JUST_SAVED), both);
    }

    #[test]
    fn what_was_due_between_two_exchanges_is_due_at_the_later_one() {
        let between = |steps| Due::by_schedule(&INTERVALS, steps, JUST_SAVED);
        assert_eq!(between(4..=7), Due { evaluate: true, save: true, ..Due::default() });
        assert_eq!(between(7..=9), Due::default());
        assert_eq!(between(19..=20), scheduled(20));
    }

    #[test]
    fn a_checkpoint_is_due_when_the_last_one_is_old_enough() {
        let after = |seconds| Due::by_schedule(&INTERVALS, 1..=1, Duration::from_secs(seconds)).save;
        assert!(!after(599) && after(600));
    }

    #[test]
    fn the_last_step_is_evaluated_and_saved_whatever_the_intervals() {
        let due = scheduled(20);
        assert_eq!((due.evaluate, due.save, due.end), (true, true, Some(StageEnd::LastStep)));
        let rare = Intervals { eval_steps: 1000, save_steps: 1000, ..INTERVALS };
        assert_eq!(Due::by_schedule(&rare, 20..=20, JUST_SAVED), due);
    }

    #[test]
    fn a_better_loss_is_saved_and_a_worse_one_is_not() {
        let after = |is_best, without_gain| {
            scheduled(6).after_evaluation(&INTERVALS, Evaluated { is_best, without_gain })
        };
        assert_eq!(after(true, 0), Due { evaluate: true, save: true, is_best: true, ..Due::default() });
        assert_eq!(after(false, 1), Due { evaluate: true, ..Due::default() });
    }

    #[test]
    fn the_stage_ends_early_only_when_patience_is_set_and_exhausted() {
        let evaluated = Evaluated { is_best: false, without_gain: 2 };
        let due = scheduled(6).after_evaluation(&INTERVALS, evaluated);
        assert_eq!((due.end, due.save), (Some(StageEnd::EarlyStop), true));
        let endless = Intervals { early_stop_patience: None, ..INTERVALS };
        assert_eq!(scheduled(6).after_evaluation(&endless, evaluated), scheduled(6));
        // The last step ends the stage for its own reason.
        assert_eq!(scheduled(20).after_evaluation(&INTERVALS, evaluated).end, Some(StageEnd::LastStep));
    }

    #[test]
    fn every_request_is_answered_by_a_checkpoint_and_only_some_stop_the_run() {
        let nothing = ControlRequests::default();
        assert!(!scheduled(1).with_requests(&nothing).is_anything());
        let request = |action| vec![Request { id: "1".into(), action, time_us: 0, trainer_started_us: None }];
        let checkpoint = ControlRequests { requests: request(Action::Checkpoint), ..Default::default() };
        assert_eq!(scheduled(1).with_requests(&checkpoint), Due { save: true, ..Due::default() });
        for stop in [
            ControlRequests { requests: request(Action::Stop), ..Default::default() },
            ControlRequests { signal: true, ..Default::default() },
            ControlRequests { out_of_memory: Some("too little is left".into()), ..Default::default() },
        ] {
            let due = scheduled(1).with_requests(&stop);
            assert_eq!(due, Due { save: true, stop: true, ..Due::default() }, "{stop:?}");
        }
        // A request removes no action.
        assert_eq!(scheduled(20).with_requests(&nothing), scheduled(20));
    }
}
