//! What is new in an answer.

use sparktune_sampling::protocol::{Finished, Token};

use crate::error::InferError;

/// The number of an answer, which is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub(crate) u64);

/// What is new in an answer.
#[derive(Debug)]
pub struct Event {
    /// The answer.
    pub id: SequenceId,
    /// New tokens.
    pub tokens: Vec<Token>,
    /// New text, in whole characters.
    pub text: String,
    /// The end, or the error that ended it. Nothing follows it.
    pub end: Option<Result<Finished, InferError>>,
}
