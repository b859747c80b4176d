//! The trainer: one process that turns a run folder with a plan and token files into trained outputs.
//!
//! Owns the loop, objectives, optimizer, schedule, checkpoints of weights and optimizer, evaluation, the MTP
//! stage and the export. Everything it reports goes into the run's events; it never prints and never asks.
//! Given the same run folder, device and build, its results are the same to the bit, however often the run
//! was killed and resumed.
//!
//! From outside to inside: `run` makes an `attempt`, which runs a `stage` for the text model and one for the
//! MTP head; a stage takes `steps`, and after each does what is `due`. An `objective` says how a batch
//! becomes a loss.

mod attempt;
mod batches;
mod control;
mod cuda;
mod draft_vocab;
mod due;
mod elapsed;
mod error;
mod evaluate;
mod examples;
mod fp8_loss;
mod load;
mod objective;
mod optimizer;
mod options;
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
mod steps;
mod tiles;

pub use error::TrainError;
pub use options::TrainOptions;
pub use outputs::export_run;
pub use run::{Finished, train, train_with};
pub use self_test::{BeforeFirstRun, SelfTest, self_test};
pub use tiles::TileFile;
