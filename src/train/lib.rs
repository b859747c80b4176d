//! The trainer: one process that turns a run folder with a plan and token files into trained outputs.
//!
//! Owns the loop, optimizer, schedule, checkpoints of weights and optimizer, evaluation, the MTP stage and the export.
//! What it says goes into the run's events and nowhere else; it never prints and never asks. Given the same run folder,
//! device and build it does the same to the bit, however often it was killed and resumed in between.

mod batches;
mod draft_vocab;
mod error;
mod evaluate;
mod optimizer;
mod outputs;
mod run;
mod saver;
mod schedule;
mod self_test;
mod serve;
mod session;
mod snapshot;
mod stage;
mod state;
pub mod step_work;
#[doc(hidden)] // for the crate that measures
pub mod stepper;
#[cfg(feature = "cuda")]
mod tiles;

pub use error::TrainError;
pub use outputs::export_run;
pub use run::{Finished, Surroundings, train, train_with};
pub use self_test::{BeforeFirstRun, SelfTest, self_test};
#[cfg(feature = "cuda")]
pub use tiles::TileFile;
