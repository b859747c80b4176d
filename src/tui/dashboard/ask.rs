//! Requests to the trainer, and their results.

use sparktune_base::escape::escape;
use sparktune_base::units::count;
use sparktune_runlog::{Action, ControlApplied, Error, Liveness, RunDir, request};

use crate::screen::Role;

/// A request to the trainer and its state.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ask {
    action: Action,
    fate: Fate,
}

#[derive(Debug, Clone, PartialEq)]
enum Fate {
    Sent {
        id: String,
    },
    Done {
        step: u64,
    },
    /// The request failed, for this reason.
    Refused(String),
}

impl Ask {
    /// Sends a request to the trainer of `run`. The request is refused when no trainer is running.
    pub(super) fn send(run: Option<&RunDir>, action: Action, liveness: Option<Liveness>) -> Self {
        let refused = |why: &str| Fate::Refused(why.to_owned());
        let fate = match (run, liveness) {
            (None, _) => refused("this run is not in a folder"),
            (_, Some(Liveness::NotStarted)) => refused("the trainer has not started"),
            (_, Some(Liveness::Finished { .. })) => refused("the run has ended"),
            (_, Some(Liveness::Crashed)) => refused("the trainer is no longer running"),
            (Some(run), _) => match request(run, action) {
                Ok(request) => Fate::Sent { id: request.id },
                Err(Error::NotRunning { .. }) => refused("no trainer is running"),
                Err(error) => Fate::Refused(escape(&error.to_string()).into_owned()),
            },
        };
        Self { action, fate }
    }

    /// Takes an event that a request was carried out, if it was this request.
    pub(super) fn take_answer(&mut self, answer: &ControlApplied) {
        if matches!(&self.fate, Fate::Sent { id } if *id == answer.id) {
            self.fate = Fate::Done { step: answer.step };
        }
    }

    /// Returns whether the request was answered or has failed.
    pub(super) fn is_settled(&self) -> bool {
        !matches!(self.fate, Fate::Sent { .. })
    }

    /// Describes the state of the request, with the role to show it in.
    pub(super) fn words(&self, live: bool) -> (Role, String) {
        let what = match self.action {
            Action::Stop => "stop after a checkpoint",
            Action::Checkpoint => "checkpoint now",
        };
        match &self.fate {
            Fate::Sent { .. } if live => {
                (Role::Accent, format!("{what}: requested; the trainer responds between two steps"))
            }
            Fate::Sent { .. } => {
                (Role::Warn, format!("{what}: requested, but the trainer ended before it responded"))
            }
            Fate::Done { step } => (Role::Good, format!("{what}: done at step {}", count(*step))),
            Fate::Refused(why) => (Role::Warn, format!("{what}: not possible, because {why}")),
        }
    }
}
