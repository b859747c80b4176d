//! Measures every part of sparktune on this machine, and compares training with a peer step by step.
//!
//! | module | what it measures |
//! |---|---|
//! | [`section`] | the parts of the program that need no GPU, selected by name; one file for each section |
//! | [`lossless`] | the losses of our training and of the peer's on the same packs, from the same start |
//! | `gpu` | kernels, matrix products and training steps on a CUDA device |
//! | [`pipelines`] | pipelines that bring data into training steps: JSON Lines against token files |
//! | [`cluster`] | sums over ranks: over TCP, by NCCL, and in the network by a thread and by the kernel |
//! | [`sentry`] | how often the judge of ranks doubts honest ones, and finds lies |
//! | [`cpu_speed`] | products of matrices and reading of weights on the CPU, for estimates |
//! | [`predicted`] | the work of a training step on a CUDA device, by arithmetic alone |
//!
//! Enters: the names of sections, the path of the program, and a Python in which the peers can be imported.
//! Leaves: [`Row`]s, each with the target that it is held to and whether the target was met. A figure is only
//! ever compared with another figure of the same run: a peer runs interleaved with our own code, or not at
//! all.
//!
//! This crate must not know command lines, terminals or exit codes. `README.md` in this folder says how each
//! section measures, and holds dated results.

pub mod cluster;
mod context;
mod cpu;
pub mod cpu_speed;
mod edit;
mod error;
#[cfg(feature = "cuda")]
pub mod gpu;
mod loading;
mod log;
pub mod lossless;
mod median;
mod model;
pub mod pipelines;
mod plain_text;
pub mod predicted;
mod protocol;
mod row;
mod sample;
mod screen;
pub mod section;
pub mod sentry;
mod start;
pub mod stepper;
mod to_device;
mod tokenising;
mod tokens;
mod train;
mod validation;
mod worker;

pub use context::{Options, PlainText};
pub use error::BenchError;
pub use row::{Row, Target, Timing, table};
pub use section::Section;
