//! Is the run alive? Decided from the lease and the log, never from a PID.

use std::time::Duration;

use serde::Serialize;

use crate::event::Outcome;

/// A trainer that holds the lease and has logged nothing but device samples for this long is stalled.
pub const STALLED_AFTER: Duration = Duration::from_secs(300);

/// The state of a run as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Liveness {
    /// The folder exists; no trainer ever wrote an event.
    NotStarted,
    /// The lease is held and the log moves.
    Running,
    /// The lease is held but nothing has moved for a while.
    Stalled {
        /// Seconds since the last sign of work.
        silent_s: u64,
    },
    /// The lease is free and the last attempt never said how it ended.
    Crashed,
    /// The folder was moved or deleted while it was being watched, or its disk went away.
    Gone,
    /// The last attempt said how it ended.
    Finished {
        /// How.
        outcome: Outcome,
    },
}

impl Liveness {
    /// The verdict from what was seen in a folder that is there: whether the lease is held, whether there is
    /// any event, the outcome of the last attempt, and for how long no sign of work was logged (counted
    /// from taking the lease when there is none).
    pub fn judge(held: bool, any_event: bool, outcome: Option<Outcome>, silent: Duration) -> Self {
        match (held, outcome) {
            (true, _) if silent >= STALLED_AFTER => Liveness::Stalled { silent_s: silent.as_secs() },
            (true, _) => Liveness::Running,
            (false, Some(outcome)) => Liveness::Finished { outcome },
            (false, None) if any_event => Liveness::Crashed,
            (false, None) => Liveness::NotStarted,
        }
    }

    /// A trainer holds the lease.
    pub fn is_live(self) -> bool {
        matches!(self, Liveness::Running | Liveness::Stalled { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_is_running_silent_is_stalled_and_released_without_an_end_is_crashed() {
        let now = Duration::ZERO;
        let finished = Some(Outcome::Completed);
        assert_eq!(Liveness::judge(true, true, None, now), Liveness::Running);
        assert_eq!(Liveness::judge(true, false, None, now), Liveness::Running);
        assert_eq!(Liveness::judge(true, true, None, STALLED_AFTER), Liveness::Stalled { silent_s: 300 });
        assert_eq!(Liveness::judge(false, true, None, now), Liveness::Crashed);
        assert_eq!(
            Liveness::judge(false, true, finished, now),
            Liveness::Finished { outcome: Outcome::Completed }
        );
        assert_eq!(Liveness::judge(false, false, None, now), Liveness::NotStarted);
        // A resume took the lease and has not written its first event yet.
        assert_eq!(Liveness::judge(true, true, finished, now), Liveness::Running);
    }
}
