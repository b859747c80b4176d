//! Requests to a running trainer: files in `control/`, a signal, or low memory.

use sparktune_runlog::{Action, Request};

/// Requests to the loop since the last check.
#[derive(Debug, Default)]
pub(crate) struct ControlRequests {
    /// Requests from `control/` that have not been acknowledged.
    pub(crate) requests: Vec<Request>,
    /// Whether the process received a signal to stop.
    pub(crate) signal: bool,
    /// The reason why the run must stop because memory runs out.
    pub(crate) out_of_memory: Option<String>,
}

impl ControlRequests {
    /// Returns whether the run must stop after a checkpoint.
    pub(crate) fn stops(&self) -> bool {
        let is_stop = |request: &Request| request.action == Action::Stop;
        self.signal || self.out_of_memory.is_some() || self.requests.iter().any(is_stop)
    }

    /// Returns whether there is any request. Every request is answered with a checkpoint.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.stops() || !self.requests.is_empty()
    }
}
