//! How long work tells its caller where it is, and how the caller stops it.

/// The current phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Reading the inputs once to know whether they changed since the last time.
    Fingerprint,
    /// Validating without a model.
    Check,
    /// Validating, rendering and tokenising.
    Tokenise,
}

/// Where the work stands. Bytes are those on disk (compressed for compressed inputs), so that the total is
/// known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// Receives progress and may ask to stop. Called from the thread that started the work, a few times a second
/// at most on large inputs.
pub trait Progress: Sync {
    /// The work moved on.
    fn step(&self, step: Step);

    /// `true` ends the work with [`DataError::Cancelled`](crate::DataError::Cancelled).
    fn cancelled(&self) -> bool {
        false
    }
}

/// Ignores progress.
impl Progress for () {
    fn step(&self, _: Step) {}
}
