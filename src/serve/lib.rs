//! The page and the HTTP API: an interface over [`sparktune_app`] for people who would rather look than
//! read, and for programs.
//!
//! | module | what it owns |
//! |---|---|
//! | `options` | what the server is started with, and its limits |
//! | `address` | where it listens, and which names of itself it answers to |
//! | `token` | the secret, and how a browser or a program shows that it knows it |
//! | `guard` | one layer around everything: `Host`, `Origin`, token, headers |
//! | `connections` | accepted connections, their number and their patience |
//! | `state` | what requests share |
//! | `problem` | errors as problem+json |
//! | `tasks`, `program` | long work, in threads and in processes |
//! | `sse` | streams of events |
//! | `followed`, `steps` | runs, read once for everybody who watches them |
//! | `workers` | the loaded models, in processes of their own |
//! | `openai` | what programs for OpenAI's API use |
//! | `asked`, `model_ids`, `data_files`, `data_id` | what requests name: answers, models, data; no paths |
//! | `facts`, `browsed` | what was read of models and data, kept while it holds |
//! | `planned` | a plan as an answer |
//! | `upload` | a body that becomes a file |
//! | `votes` | the votes of the arena |
//! | `pages`, `guide` | the files of the page, and the user's guide |
//! | `api` | the endpoints, and the OpenAPI document that is made from them |
//!
//! Enters: requests over HTTP/1.1. Leaves: JSON, events, pages. What it starts is the ordinary trainer with
//! its ordinary run folder, so the server may end at any moment and nothing else notices. It sees no
//! tensors, does not depend on commands or screens, and is the only crate with tokio.

mod address;
mod api;
mod asked;
mod browsed;
mod connections;
mod data_files;
mod data_id;
mod facts;
mod followed;
mod guard;
mod guide;
mod ids;
mod locked;
mod model_ids;
#[cfg(test)]
#[path = "../../tests/fuzz/mutate.rs"]
mod mutate;
mod openai;
mod options;
mod pages;
mod planned;
mod problem;
mod program;
mod server;
mod sse;
mod state;
mod steps;
mod tasks;
mod token;
mod upload;
mod votes;
#[cfg(test)]
mod web_files;
mod workers;

pub use options::{Limits, Options};
pub use program::end_with_server;
pub use server::{Listening, serve};
pub use workers::ModelLimits;

#[cfg(test)]
mod tests;
