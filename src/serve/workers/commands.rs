//! What the pool, the thread of a worker and requests tell each other.

use std::path::PathBuf;

use sparktune_app::failure::Failure;
use sparktune_sampling::protocol::{Finished, Generate, Piece, Ready};
use tokio::sync::mpsc::UnboundedSender;

use super::refusal::Refusal;

/// How a worker is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum State {
    /// Its model is being loaded.
    Loading,
    /// It answers.
    Ready(Ready),
    /// Its process has ended.
    Ended(Failure),
}

/// What the pool asks of a worker.
pub(super) enum Command {
    /// Begin an answer, with this adapter loaded.
    Generate { generate: Box<Generate>, adapter: Option<Adapter>, index: usize, events: Events },
    /// End an answer. Nobody waits for the rest of it.
    Cancel { id: String },
    /// Forget an adapter.
    Unload { adapter: String },
    /// End the process.
    End,
}

/// Where the events of an answer go, with its number.
pub(super) type Events = UnboundedSender<(usize, Event)>;

/// An adapter as a worker knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Adapter {
    pub(super) name: String,
    pub(super) folder: PathBuf,
}

/// What happens to an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// There will be an answer.
    Accepted {
        /// The tokens of its prompt.
        prompt_tokens: usize,
        /// Whether it begins inside a think block.
        opens_thinking: bool,
    },
    /// The next tokens.
    Piece(Piece),
    /// It is complete. Nothing follows.
    Done(Finished),
    /// The worker refuses the prompt, or cannot go on with the answer. Nothing follows.
    Refused(Refusal),
    /// The worker has ended. Nothing follows.
    Failed {
        /// Why.
        failure: Failure,
        /// Whether it had the prompt, which may be the cause then.
        had_prompt: bool,
    },
}
