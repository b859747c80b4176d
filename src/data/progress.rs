//! Progress reports of long work to its caller, and their way of cancelling it.

use serde::{Deserialize, Serialize};

/// The current phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Reading the inputs once to detect changes since the last time.
    Fingerprint,
    /// Validating without a model.
    Check,
    /// Validating, rendering and tokenising.
    Tokenise,
}

/// The state of the work. Bytes are counted on disk (compressed for compressed inputs), so that the total is
/// known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The current phase.
    pub phase: Phase,
    /// Bytes of the inputs consumed so far.
    pub bytes_done: u64,
    /// Bytes of all inputs of this phase.
    pub bytes_total: u64,
    /// Examples accepted so far.
    pub examples: u64,
}

/// Receives progress and may cancel the work.
pub trait Progress: Sync {
    /// Reports progress. It is called from the thread that started the work, after each part of it, which may
    /// be many times per second.
    fn step(&self, step: Step);

    /// Returns `true` to end the work with [`DataError::Cancelled`](crate::DataError::Cancelled). It is asked
    /// from any thread, and keeps its answer once it is `true`.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Ignores progress.
impl Progress for () {
    fn step(&self, _: Step) {}
}
