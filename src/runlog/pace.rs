//! The speed of an attempt's steps, the duration of their parts, and the estimated end.
//!
//! Times are those of the events, so evaluations and checkpoints between the steps count. Only the newest
//! steps are kept.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use crate::step::Step;

/// The number of steps over which rates, parts and the remaining time are measured.
const WINDOW: usize = 200;
/// The number of steps over which the current speed is measured.
const SPEED_STEPS: usize = 20;
/// The number of steps after which the expected end is stored, for comparison with later ones.
const PROMISE_AFTER: u64 = 10;
/// The longest time between two steps that is believed, in microseconds: an hour.
const LONGEST_US: u64 = 3_600_000_000;

/// What a plan says of the time, to tell what follows the steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Planned {
    /// The time of a step alone in milliseconds.
    pub step_ms: f64,
    /// The seconds in which the MTP head is trained after the last step.
    pub head_s: f64,
    /// The seconds in which heads are measured and outputs written.
    pub finish_s: f64,
}

impl Planned {
    /// Returns the seconds that follow the steps, if steps take this long. The head's steps are taken to be
    /// as much slower or faster than planned. Writing text is not: it is limited by memory and not by
    /// products.
    fn after_s(self, step_ms: f64) -> f64 {
        let after_s = self.head_s * step_ms / self.step_ms + self.finish_s;
        if after_s.is_finite() { after_s.max(0.0) } else { 0.0 }
    }
}

/// The remaining time and its calculation: `steps_left × ms_per_step + after_s`. The time of a step is
/// measured over the last `over_steps` steps by the clock, so evaluations and checkpoints between them are
/// included.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Eta {
    /// The remaining time in seconds.
    pub seconds: f64,
    /// The number of remaining steps.
    pub steps_left: u64,
    /// The measured time per step in milliseconds.
    pub ms_per_step: f64,
    /// The number of steps in the measurement.
    pub over_steps: u64,
    /// The seconds that follow the last step, for the head and the outputs; 0 where no plan says it.
    pub after_s: f64,
    /// The change of the expected end in seconds since the first expectation of this attempt, after 10
    /// steps; positive means later. `None` before that.
    pub drift_s: Option<f64>,
}

/// The mean times of the parts of recent steps in milliseconds. A part that the trainer does not measure
/// separately is `None` and included in `rest_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StepParts {
    /// The whole step.
    pub step_ms: f64,
    /// Waiting for data.
    pub data_ms: Option<f64>,
    /// Clipping and optimizer.
    pub optimizer_ms: Option<f64>,
    /// Waiting for the sums of several ranks. Steps without an exchange count as 0; `None` for a run of one
    /// process, and before the first exchange.
    pub exchange_ms: Option<f64>,
    /// The time that none of the parts above covers: forward and backward.
    pub rest_ms: f64,
    /// The number of averaged steps.
    pub over_steps: u64,
}

/// The newest steps of an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Pace {
    recent: VecDeque<Timed>,
    /// Whether the ranks have exchanged anything in this attempt.
    has_exchanged: bool,
    /// What the plan says.
    planned: Option<Planned>,
    /// The first expected end, in microseconds since the Unix epoch.
    promised_us: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
struct Timed {
    step: u64,
    time_us: u64,
    tokens: u64,
    step_ms: Option<f64>,
    /// data, optimizer
    parts: [Option<f64>; 2],
    exchange_ms: Option<f64>,
}

impl Pace {
    /// Takes what the plan says of the time after the steps.
    pub(crate) fn expect(&mut self, planned: Planned) {
        if self.planned != Some(planned) {
            // What was promised did not include it.
            self.promised_us = None;
            self.planned = Some(planned);
        }
    }

    /// Forgets the steps: another attempt has begun.
    pub(crate) fn begin_again(&mut self) {
        *self = Self { planned: self.planned, ..Self::default() };
    }

    pub(crate) fn step(&mut self, step: &Step, time_us: u64, total_steps: Option<u64>) {
        let parts = [step.data_ms, step.optimizer_ms];
        self.has_exchanged |= step.exchange_ms.is_some();
        if self.recent.len() > WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(Timed {
            step: step.step,
            time_us,
            tokens: step.tokens,
            step_ms: step.step_ms,
            parts,
            exchange_ms: step.exchange_ms,
        });
        if self.promised_us.is_none()
            && let Some(eta) = total_steps.and_then(|total| self.eta(total))
            && eta.over_steps >= PROMISE_AFTER
        {
            self.promised_us = Some(finish_us(time_us, eta.seconds));
        }
    }

    /// Returns the remaining time, or `None` before the second step.
    pub(crate) fn eta(&self, total_steps: u64) -> Option<Eta> {
        let (first, last) = (self.recent.front()?, self.recent.back()?);
        let over_steps = last.step.checked_sub(first.step).filter(|steps| *steps > 0)?;
        let steps_left = total_steps.saturating_sub(last.step);
        let (ms_per_step, left) =
            (last.time_us.saturating_sub(first.time_us) as f64 / 1e3 / over_steps as f64, steps_left as f64);
        // Steps that nobody timed are taken with what lies between them.
        let step_ms = mean(self.recent.iter().filter_map(|t| t.step_ms)).unwrap_or(ms_per_step);
        let after_s = self.planned.map_or(0.0, |planned| planned.after_s(step_ms));
        let seconds = left * ms_per_step / 1e3 + after_s;
        let drift_s = self.promised_us.map(|promised| (finish_us(last.time_us, seconds) - promised) / 1e6);
        Some(Eta { seconds, steps_left, ms_per_step, over_steps, after_s, drift_s })
    }

    /// Returns the mean time of recent steps by the clock, with the evaluations and checkpoints between them,
    /// or `None` before the second step. A clock that was set forward counts as a long step, and one that was
    /// set back as a short one.
    pub(crate) fn step_time(&self) -> Option<Duration> {
        let gap = |(one, next): (&Timed, &Timed)| next.time_us.saturating_sub(one.time_us).min(LONGEST_US);
        let gaps = self.recent.iter().zip(self.recent.iter().skip(1)).map(gap);
        let (first, last) = (self.recent.front()?, self.recent.back()?);
        let steps = last.step.checked_sub(first.step).filter(|steps| *steps > 0)?;
        Some(Duration::from_micros(gaps.sum::<u64>() / steps))
    }

    /// Returns the tokens of the newest steps divided by their duration.
    pub(crate) fn tokens_per_s(&self) -> Option<f64> {
        let newest = self.recent.iter().rev().take(SPEED_STEPS);
        let (tokens, ms) = newest
            .filter_map(|t| t.step_ms.map(|ms| (t.tokens, ms)))
            .fold((0, 0.0), |(tokens, all_ms), (n, ms)| (tokens + n, all_ms + ms));
        (ms > 0.0).then(|| tokens as f64 / ms * 1e3)
    }

    pub(crate) fn parts(&self) -> Option<StepParts> {
        // There is one step more, because the remaining time is measured between steps.
        let timed = || self.recent.iter().rev().take(WINDOW).filter(|t| t.step_ms.is_some());
        let step_ms = mean(timed().filter_map(|t| t.step_ms))?;
        let part = |i: usize| mean(timed().filter_map(|t| t.parts[i]));
        let [data_ms, optimizer_ms] = [part(0), part(1)];
        // Ranks that exchange rarely record nothing for the steps in between.
        let exchange_ms =
            mean(timed().filter(|_| self.has_exchanged).map(|t| t.exchange_ms.unwrap_or_default()));
        let covered: f64 = [data_ms, optimizer_ms, exchange_ms].into_iter().flatten().sum();
        let rest_ms = (step_ms - covered).max(0.0);
        let over_steps = timed().count() as u64;
        Some(StepParts { step_ms, data_ms, optimizer_ms, exchange_ms, rest_ms, over_steps })
    }
}

fn finish_us(now_us: u64, seconds_left: f64) -> f64 {
    now_us as f64 + seconds_left * 1e6
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u64), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, step_ms: f64) -> Step {
        Step { step, step_ms: Some(step_ms), data_ms: Some(1.0), optimizer_ms: Some(9.0), ..Step::default() }
    }

    #[test]
    fn the_finish_that_was_told_early_is_held_against_the_one_expected_now() {
        let mut pace = Pace::default();
        let mut time_us = 0;
        // One second per step: at step 11 of 1,000 the end is expected at second 1,000.
        for n in 1..=11 {
            time_us = n * 1_000_000;
            pace.step(&step(n, 1000.0), time_us, Some(1000));
            assert_eq!(pace.eta(1000).is_some_and(|eta| eta.drift_s.is_some()), n == 11, "{n}");
        }
        assert_eq!(pace.eta(1000).unwrap().drift_s, Some(0.0));
        // From now on, steps take twice as long.
        for n in 12..=400 {
            time_us += 2_000_000;
            pace.step(&step(n, 2000.0), time_us, Some(1000));
        }
        let eta = pace.eta(1000).unwrap();
        assert_eq!((eta.ms_per_step, eta.over_steps, eta.seconds), (2000.0, 200, 1200.0));
        // The run ends after 11 + 389·2 + 600·2 seconds instead of 1,000.
        assert!((eta.drift_s.unwrap() - 989.0).abs() < 1e-6, "{eta:?}");
    }

    #[test]
    fn the_heads_steps_take_as_much_longer_than_planned_as_the_others_and_the_rest_does_not() {
        let mut pace = Pace::default();
        pace.expect(Planned { step_ms: 500.0, head_s: 40.0, finish_s: 20.0 });
        // An evaluation takes as long as a step.
        for n in 1..=11 {
            pace.step(&step(n, 1000.0), n * 2_000_000, Some(100));
        }
        let eta = pace.eta(100).unwrap();
        assert_eq!((eta.seconds, eta.after_s, eta.drift_s), (89.0 * 2.0 + 100.0, 100.0, Some(0.0)));
        pace.begin_again();
        assert_eq!(pace.eta(100), None);
        // A plan without a time for its steps says nothing.
        pace.expect(Planned { step_ms: 0.0, head_s: 40.0, finish_s: 20.0 });
        pace.step(&step(1, 1.0), 1_000_000, Some(3));
        pace.step(&step(2, 1.0), 2_000_000, Some(3));
        assert_eq!(pace.eta(3).unwrap().seconds, 1.0);
    }

    #[test]
    fn the_speed_is_that_of_the_newest_steps_by_their_time() {
        let mut pace = Pace::default();
        assert_eq!(pace.tokens_per_s(), None);
        for n in 1..=40 {
            let (tokens, ms) = if n <= 20 {
                (9_999, 1.0)
            } else if n % 2 == 0 {
                (100, 100.0)
            } else {
                (500, 200.0)
            };
            pace.step(&Step { tokens, ..step(n, ms) }, n, None);
        }
        assert_eq!(pace.tokens_per_s(), Some(2000.0));
    }

    #[test]
    fn the_parts_of_a_step_are_means_and_what_nobody_measured_is_the_rest() {
        let mut pace = Pace::default();
        assert_eq!(pace.parts(), None);
        pace.step(&Step { step: 1, ..Step::default() }, 1, None);
        assert_eq!(pace.parts(), None, "no time was measured");
        pace.step(&step(2, 100.0), 2, None);
        pace.step(&step(3, 120.0), 3, None);
        let parts = pace.parts().unwrap();
        assert_eq!((parts.step_ms, parts.over_steps), (110.0, 2));
        assert_eq!((parts.data_ms, parts.optimizer_ms), (Some(1.0), Some(9.0)));
        assert_eq!((parts.exchange_ms, parts.rest_ms), (None, 100.0));
    }

    #[test]
    fn the_wait_for_other_ranks_is_a_mean_over_all_steps_even_if_they_exchange_only_after_some() {
        let mut pace = Pace::default();
        for n in 1..=6 {
            let exchange_ms = (n % 3 == 0).then_some(60.0);
            pace.step(&Step { exchange_ms, ..step(n, 100.0) }, n, None);
        }
        let parts = pace.parts().unwrap();
        assert_eq!((parts.exchange_ms, parts.rest_ms), (Some(20.0), 70.0));
        // A run of several ranks stays one, however rarely they exchange.
        (7..=300).for_each(|n| pace.step(&step(n, 100.0), n, None));
        let parts = pace.parts().unwrap();
        assert_eq!((parts.exchange_ms, parts.over_steps), (Some(0.0), WINDOW as u64));
    }
}
