//! The loaded models: inference workers that are started when a request needs them.
//!
//! Enters: models of [`sparktune_app::models`] and prompts. Leaves: answers, piece by piece, or a refusal in
//! words. One worker holds one base; adapters are loaded on it by name. A worker that has nothing to do ends
//! after a while, or when another model needs its memory. A crash of a worker is the failure of its answers,
//! and the next request starts another. It must not know HTTP.

mod answers;
mod bridge;
mod commands;
mod pool;
mod refusal;
mod slot;
mod starting;

pub(crate) use self::answers::Answers;
pub(crate) use self::commands::Event;
pub use self::pool::ModelLimits;
pub(crate) use self::pool::Workers;
pub(crate) use self::refusal::Refusal;

#[cfg(test)]
mod tests;
