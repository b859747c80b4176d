//! Interventions in a run in progress: requests in `control/`, a signal, or memory that runs out.

use sparktune_runlog::{Action, Request};

/// Requests to the loop since the last check.
#[derive(Debug, Default)]
pub(crate) struct ControlRequests {
    /// Requests from `control/` that have not been acknowledged.
    pub(crate) requests: Vec<Request>,
    /// The process received a signal to stop.
    pub(crate) signal: bool,
    /// Memory runs out: why the run must stop although nobody asked for it.
    pub(crate) out_of_memory: Option<String>,
}

impl ControlRequests {
    /// Whether the run must stop after a checkpoint.
    pub(crate) fn stops(&self) -> bool {
        let is_stop = |request: &Request| request.action == Action::Stop;
        self.signal || self.out_of_memory.is_some() || self.requests.iter().any(is_stop)
    }

    /// Whether anything was asked. The answer to all of it begins with a checkpoint.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.stops() || !self.requests.is_empty()
    }
}
