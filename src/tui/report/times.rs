//! Adds up the times of a run over all its attempts: phases, and the parts of a step.

use sparktune_base::units::UNKNOWN;
use sparktune_runlog::{Event, Kind, Step};
use time::OffsetDateTime;
use time::macros::format_description;

/// The largest number of phases that are distinguished.
const MOST_PHASES: usize = 40;

/// The measured times of a run, including steps that were repeated.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Times {
    /// The phases in the order in which they first occurred, with their duration in seconds.
    pub phases: Vec<(String, f64)>,
    /// The number of steps whose time was measured.
    pub steps: u64,
    /// The number of tokens in those steps.
    pub tokens: u64,
    /// The duration of those steps in milliseconds.
    pub step_ms: f64,
    /// The parts of that duration by name, as far as they were measured.
    pub parts: [(&'static str, f64); 3],
    /// The index of the current phase.
    phase: Option<usize>,
    /// The attempt and the time of the previous event.
    before: Option<(u32, u64)>,
}

impl Times {
    /// Adds the next event.
    pub fn add(&mut self, event: &Event) {
        match self.before {
            Some((attempt, at)) if attempt == event.attempt => {
                if let Some(phase) = self.phase {
                    let seconds = event.time_us.saturating_sub(at) as f64 / 1e6;
                    self.phases[phase].1 += seconds;
                }
            }
            _ => self.phase = None,
        }
        self.before = Some((event.attempt, event.time_us));
        match &event.kind {
            Kind::Phase(phase) => self.phase = self.index_of(&phase.phase),
            Kind::Step(step) => self.step(step),
            _ => {}
        }
    }

    fn index_of(&mut self, phase: &str) -> Option<usize> {
        let known = self.phases.iter().position(|(name, _)| name == phase);
        if known.is_none() && self.phases.len() < MOST_PHASES {
            self.phases.push((phase.to_owned(), 0.0));
            return Some(self.phases.len() - 1);
        }
        known
    }

    fn step(&mut self, step: &Step) {
        let Some(ms) = step.step_ms.filter(|ms| ms.is_finite() && *ms > 0.0) else { return };
        self.steps += 1;
        self.tokens = self.tokens.saturating_add(step.tokens);
        self.step_ms += ms;
        let parts = [
            ("waiting for data", step.data_ms),
            ("clipping and optimizer", step.optimizer_ms),
            ("waiting for other ranks", step.exchange_ms),
        ];
        for (sum, (name, ms)) in self.parts.iter_mut().zip(parts) {
            *sum = (name, sum.1 + ms.filter(|ms| ms.is_finite() && *ms > 0.0).unwrap_or(0.0));
        }
    }

    /// Returns the duration of a phase in seconds.
    pub fn phase_s(&self, phase: &str) -> Option<f64> {
        self.phases.iter().find(|(name, _)| name == phase).map(|(_, seconds)| *seconds)
    }

    /// Returns the number of tokens in the measured steps divided by their duration.
    pub fn tokens_per_s(&self) -> Option<f64> {
        (self.step_ms > 0.0 && self.tokens > 0).then(|| self.tokens as f64 / self.step_ms * 1e3)
    }
}

/// Formats a time as `2026-11-20 16:28:30 UTC`.
pub(super) fn moment(time_us: u64) -> String {
    let seconds = i64::try_from(time_us / 1_000_000).unwrap_or(i64::MAX);
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second] UTC");
    OffsetDateTime::from_unix_timestamp(seconds)
        .ok()
        .and_then(|moment| moment.format(format).ok())
        .unwrap_or_else(|| UNKNOWN.to_owned())
}

#[cfg(test)]
mod tests {
    use sparktune_runlog::{Phase, RunStarted};

    use super::*;

    #[test]
    fn phases_and_steps_add_up_over_attempts_and_pauses_between_them_do_not_count() {
        let mut times = Times::default();
        let phase = |name: &str| Kind::Phase(Phase { phase: name.into(), detail: None });
        let step = |ms| {
            Kind::Step(Step { tokens: 100, step_ms: Some(ms), optimizer_ms: Some(5.0), ..Step::default() })
        };
        let start = || Kind::RunStarted(RunStarted::default());
        let log = [
            (1, 0, start()),
            (1, 1, phase("load")),
            (1, 3, phase("train")),
            (1, 5, step(20.0)),
            (2, 1000, start()),
            (2, 1001, phase("train")),
            (2, 1002, step(30.0)),
            (2, 1002, step(f64::NAN)),
        ];
        for (seq, (attempt, second, kind)) in (1..).zip(log) {
            times.add(&Event { attempt, seq, time_us: second * 1_000_000, kind });
        }
        assert_eq!(times.phases, [("load".to_owned(), 2.0), ("train".to_owned(), 3.0)]);
        assert_eq!((times.steps, times.tokens, times.step_ms), (2, 200, 50.0));
        assert_eq!(times.parts[1], ("clipping and optimizer", 10.0));
        assert_eq!(times.tokens_per_s(), Some(4000.0));
    }

    #[test]
    fn a_moment_is_written_in_utc() {
        assert_eq!(moment(1_763_645_250_000_000), "2025-11-20 13:27:30 UTC");
        assert_eq!(moment(u64::MAX), "–");
    }
}
