//! Decoding for people and tests: any base model, run, adapter or merged model.
//!
//! Owns the engine, which decodes several answers at once. Enters: a folder ([`Source`]) and requests.
//! Leaves: tokens and text, piece by piece. It must not know terminals, HTTP or processes; `worker` speaks
//! lines of JSON over any reader and writer.
//!
//! On the CPU the tokens of an answer depend on its prompt, its parameters and its seed alone: not on the
//! answers beside it, and not on whether they were drafted. This is for trying and comparing models; to
//! serve many users there are other programs (`outputs/SERVE.md` of a run).

pub mod codebook_file;
mod decode;
mod drafts;
mod engine;
mod error;
mod event;
mod memory;
mod models;
mod score;
mod sequence;
mod source;
#[cfg(test)]
mod tests;
mod text;
mod worker;

pub use engine::{Ask, Engine, EngineOptions, Render};
pub use error::InferError;
pub use event::{Event, SequenceId};
pub use memory::{MemoryPlan, Room};
pub use source::Source;
pub use worker::serve;
