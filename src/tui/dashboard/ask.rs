//! Requests to the trainer, and their results.

use sparktune_app::stop_request::StopRequest;
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
    Checkpoint {
        id: String,
    },
    Stop(StopRequest),
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
            (Some(run), _) => match sent(run, action) {
                Ok(fate) => fate,
                Err(Error::NotRunning { .. }) => refused("no trainer is running"),
                Err(error) => Fate::Refused(escape(&error.to_string()).into_owned()),
            },
        };
        Self { action, fate }
    }

    /// Takes an event that a request was carried out, if it was this request.
    pub(super) fn take_answer(&mut self, answer: &ControlApplied) {
        let is_ours = match &self.fate {
            Fate::Checkpoint { id } => *id == answer.id,
            Fate::Stop(request) => request.is_answered_by(&answer.id),
            Fate::Done { .. } | Fate::Refused(_) => false,
        };
        if is_ours {
            self.fate = Fate::Done { step: answer.step };
        }
    }

    /// Sends a signal after a request to stop that was not answered for some time.
    pub(super) fn insist(&mut self) {
        if let Fate::Stop(request) = &mut self.fate {
            request.insist();
        }
    }

    /// Returns whether the request was answered or has failed.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.fate, Fate::Done { .. } | Fate::Refused(_))
    }

    /// Describes the state of the request, with the role to show it in.
    pub(super) fn words(&self, live: bool) -> (Role, String) {
        let what = match self.action {
            Action::Stop => "stop after a checkpoint",
            Action::Checkpoint => "checkpoint now",
        };
        match &self.fate {
            Fate::Checkpoint { .. } | Fate::Stop(_) if live => {
                (Role::Accent, format!("{what}: requested; the trainer responds between two steps"))
            }
            Fate::Checkpoint { .. } | Fate::Stop(_) => {
                (Role::Warn, format!("{what}: requested, but the trainer ended before it responded"))
            }
            Fate::Done { step } => (Role::Good, format!("{what}: done at step {}", count(*step))),
            Fate::Refused(why) => (Role::Warn, format!("{what}: not possible, because {why}")),
        }
    }
}

fn sent(run: &RunDir, action: Action) -> Result<Fate, Error> {
    Ok(match action {
        Action::Stop => Fate::Stop(StopRequest::send(run)?),
        Action::Checkpoint => Fate::Checkpoint { id: request(run, action)?.id },
    })
}
