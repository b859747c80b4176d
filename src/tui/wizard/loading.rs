//! A value that is loaded on request: not requested, waiting, ready, or failed.

use sparktune_app::listener::{Progress, Unit};

use super::request::Ticket;

/// The number of ticks in a second.
pub(super) const TICKS_PER_SECOND: f64 = 4.0;

/// A value that may not have arrived yet.
#[derive(Debug, Clone, Default)]
pub(super) enum Loading<T> {
    #[default]
    Idle,
    Waiting(Wait),
    Ready(T),
    Failed(String),
}

impl<T> Loading<T> {
    /// Starts to wait for the response with this ticket.
    pub(super) fn waiting(ticket: Ticket, now: u64) -> Self {
        Self::Waiting(Wait::new(ticket, now))
    }

    pub(super) fn ready(&self) -> Option<&T> {
        match self {
            Self::Ready(value) => Some(value),
            _ => None,
        }
    }

    pub(super) fn failed(&self) -> Option<&str> {
        match self {
            Self::Failed(words) => Some(words),
            _ => None,
        }
    }

    pub(super) fn wait(&self) -> Option<&Wait> {
        match self {
            Self::Waiting(wait) => Some(wait),
            _ => None,
        }
    }

    /// Returns whether the response with this ticket belongs to this value.
    pub(super) fn waits_for(&self, ticket: Ticket) -> bool {
        self.wait().is_some_and(|wait| wait.ticket == ticket)
    }

    /// Takes the response if it is the expected one. Returns whether it was.
    pub(super) fn answer(&mut self, ticket: Ticket, result: Result<T, String>) -> bool {
        let awaited = self.waits_for(ticket);
        if awaited {
            *self = match result {
                Ok(value) => Self::Ready(value),
                Err(words) => Self::Failed(words),
            };
        }
        awaited
    }

    /// Takes a progress message. Returns whether it belongs to this value.
    pub(super) fn progress(&mut self, ticket: Ticket, progress: &Progress, now: u64) -> bool {
        match self {
            Self::Waiting(wait) if wait.ticket == ticket => {
                wait.update(progress.clone(), now);
                true
            }
            _ => false,
        }
    }
}

/// The state of waiting for a response.
#[derive(Debug, Clone)]
pub(super) struct Wait {
    pub ticket: Ticket,
    pub progress: Option<Progress>,
    /// The completed stages of the work, in order.
    pub past: Vec<String>,
    /// A cancel request was sent.
    pub cancelled: bool,
    /// The tick and the amount at which the current stage began.
    began: (u64, u64),
}

/// The number of completed stages that are kept.
const PAST: usize = 50;

impl Wait {
    pub(super) fn new(ticket: Ticket, now: u64) -> Self {
        Self { ticket, progress: None, past: Vec::new(), cancelled: false, began: (now, 0) }
    }

    pub(super) fn update(&mut self, progress: Progress, now: u64) {
        match &self.progress {
            Some(before) if before.what == progress.what && before.done <= progress.done => {}
            before => {
                if let Some(before) = before.as_ref().filter(|before| before.what != progress.what) {
                    self.past.push(before.what.clone());
                    let spare = self.past.len().saturating_sub(PAST);
                    self.past.drain(..spare);
                }
                self.began = (now, progress.done);
            }
        }
        self.progress = Some(progress);
    }

    /// Returns the completed share, 0 to 1, if the total is known.
    pub(super) fn share(&self) -> Option<f64> {
        let progress = self.progress.as_ref()?;
        let total = progress.total.filter(|total| *total > 0)?;
        Some((progress.done as f64 / total as f64).min(1.0))
    }

    /// Returns the amount per second, averaged over the current stage, once the stage has lasted a second.
    pub(super) fn per_second(&self, now: u64) -> Option<f64> {
        let (since, had) = self.began;
        let seconds = now.saturating_sub(since) as f64 / TICKS_PER_SECOND;
        let done = self.progress.as_ref()?.done.saturating_sub(had);
        (seconds >= 1.0 && done > 0).then(|| done as f64 / seconds)
    }

    /// Returns the remaining seconds of the current stage at this rate.
    pub(super) fn left_s(&self, now: u64) -> Option<f64> {
        let progress = self.progress.as_ref()?;
        let left = progress.total?.saturating_sub(progress.done);
        Some(left as f64 / self.per_second(now)?)
    }

    /// Formats the amount: `1.2 GB of 4.4 GB`.
    pub(super) fn amount(&self) -> Option<String> {
        let progress = self.progress.as_ref()?;
        let shown = |n| match progress.unit {
            Unit::Bytes => sparktune_base::units::bytes(n),
            Unit::Count => sparktune_base::units::count(n),
        };
        Some(match progress.total {
            Some(total) => format!("{} of {}", shown(progress.done), shown(total)),
            None => shown(progress.done),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(what: &str, done: u64, total: Option<u64>) -> Progress {
        Progress { what: what.into(), done, total, unit: Unit::Bytes, note: None }
    }

    #[test]
    fn only_the_awaited_answer_is_taken() {
        let mut loading = Loading::waiting(7, 0);
        assert!(!loading.answer(6, Ok("stale")));
        assert!(loading.answer(7, Ok("right")));
        assert!(!loading.answer(7, Err("twice".into())));
        assert_eq!(loading.ready(), Some(&"right"));
    }

    #[test]
    fn the_pace_is_that_of_the_present_stretch_and_starts_at_what_was_there() {
        let mut wait = Wait::new(1, 0);
        wait.update(at("reading", 50, Some(50)), 0);
        wait.update(at("fetching", 1000, Some(3000)), 8);
        assert_eq!((wait.per_second(9), wait.left_s(9)), (None, None));
        wait.update(at("fetching", 2000, Some(3000)), 16);
        assert_eq!((wait.per_second(16), wait.left_s(16)), (Some(500.0), Some(2.0)));
        assert_eq!(
            (wait.past.clone(), wait.amount().unwrap()),
            (vec!["reading".into()], "2.0 kB of 3.0 kB".into())
        );
        wait.update(at("fetching", 100, None), 20);
        assert_eq!((wait.share(), wait.per_second(20)), (None, None));
    }
}
