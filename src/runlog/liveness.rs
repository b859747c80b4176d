//! The state of a run, decided from the lease and the log, never from a PID.

use std::time::Duration;

use serde::Serialize;

use crate::event::Outcome;

/// The time without any event except device samples after which a trainer that holds the lease counts as
/// stalled, while nothing is known about its pace: before its second step, and outside training.
pub const STALLED_AFTER: Duration = Duration::from_secs(300);
/// The number of step times without an event after which a trainer counts as stalled.
pub(crate) const STALLED_STEPS: u32 = 10;
/// The shortest time after which it does, because a slow disk or a busy machine may halt any trainer.
pub(crate) const STALLED_AT_LEAST: Duration = Duration::from_secs(10);

/// The state of a run as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Liveness {
    /// The folder exists, but no trainer has written an event.
    NotStarted,
    /// The lease is held and the log grows.
    Running,
    /// The lease is held, but nothing was logged for a while.
    Stalled {
        /// Seconds since the last sign of work.
        silent_s: u64,
    },
    /// The lease is free and the last attempt did not log its end.
    Crashed,
    /// The folder was moved or deleted while it was watched, or its disk was removed.
    Gone,
    /// The last attempt logged its end.
    Finished {
        /// The outcome.
        outcome: Outcome,
    },
}

impl Liveness {
    /// Decides the state of an existing folder: whether the lease is held, whether there is any event, the
    /// outcome of the last attempt, the time since the last sign of work in the log (or since the lease was
    /// taken when there is none), and the time after which silence is a stall.
    pub fn judge(
        held: bool,
        any_event: bool,
        outcome: Option<Outcome>,
        silent: Duration,
        patience: Duration,
    ) -> Self {
        match (held, outcome) {
            (true, _) if silent >= patience => Liveness::Stalled { silent_s: silent.as_secs() },
            (true, _) => Liveness::Running,
            (false, Some(outcome)) => Liveness::Finished { outcome },
            (false, None) if any_event => Liveness::Crashed,
            (false, None) => Liveness::NotStarted,
        }
    }

    /// Returns whether a trainer holds the lease.
    pub fn is_live(self) -> bool {
        matches!(self, Liveness::Running | Liveness::Stalled { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_is_running_silent_is_stalled_and_released_without_an_end_is_crashed() {
        let judge = |held, any, outcome, silent| Liveness::judge(held, any, outcome, silent, STALLED_AFTER);
        let now = Duration::ZERO;
        let finished = Some(Outcome::Completed);
        assert_eq!(judge(true, true, None, now), Liveness::Running);
        assert_eq!(judge(true, false, None, now), Liveness::Running);
        assert_eq!(judge(true, true, None, STALLED_AFTER), Liveness::Stalled { silent_s: 300 });
        assert_eq!(judge(false, true, None, now), Liveness::Crashed);
        assert_eq!(judge(false, true, finished, now), Liveness::Finished { outcome: Outcome::Completed });
        assert_eq!(judge(false, false, None, now), Liveness::NotStarted);
        // A resume has taken the lease and not written its first event yet.
        assert_eq!(judge(true, true, finished, now), Liveness::Running);
    }
}
