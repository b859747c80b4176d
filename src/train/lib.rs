//! The trainer: one process that turns a run folder with a plan and token files into trained outputs.
//!
//! Owns the loop, objectives, optimizer, schedule, checkpoints of weights and optimizer, evaluation, the MTP
//! stage and the export. Enters: a run folder, and requests in it. Leaves: checkpoints, outputs, and events,
//! which contain everything it reports. It must not know interfaces: it never prints and never asks. With the
//! same run folder, device and build, its results are the same bit for bit, however often the run was killed
//! and resumed.
//!
//! From outside to inside: `run` makes an `attempt`, which runs a `stage` for the text model and one for the
//! MTP head. A stage takes `steps`, and after each one carries out what is `due`. An `objective` defines how
//! the loss of a batch is computed.

mod acceptance;
mod adapter_section;
mod attempt;
mod batches;
mod chosen;
mod control;
mod cuda;
mod departure;
mod diloco;
mod draft_vocab;
mod dropout;
mod due;
mod elapsed;
mod error;
mod evaluate;
mod examples;
mod exchange;
mod export_gguf;
mod export_run;
mod exported_template;
mod fp8_loss;
mod from_first;
mod gguf_section;
mod head_report;
mod head_run;
mod health;
mod inputs;
mod judged;
mod load;
mod majority;
mod members;
mod membership;
mod micro_batches;
mod modelfile;
#[cfg(feature = "cuda")]
mod nccl;
#[cfg(not(feature = "cuda"))]
#[path = "no_nccl.rs"]
mod nccl;
mod neighbours;
mod objective;
mod optimizer;
mod options;
mod outputs;
mod parent;
mod products;
mod prolong;
mod prompts;
#[cfg(feature = "cuda")]
mod quantiser;
mod ranks;
mod recovery;
mod run;
mod saver;
mod schedule;
mod self_test;
mod serve;
mod served_head;
mod session;
mod snapshot;
mod stage;
mod state;
mod state_hash;
pub mod step_work;
#[doc(hidden)] // for the crate that measures
pub mod stepper;
mod steps;
#[cfg(test)]
mod testing;
mod tiles;
mod trained;
mod vllm;

pub use error::TrainError;
pub use export_gguf::{GgufRequest, export_gguf};
pub use export_run::{ExportedFiles, Weights, export_run};
pub use head_run::{begin_head_of_model, begin_head_run};
pub use nccl::find_gpu;
pub use options::{AfterMeeting, TrainOptions, WorkTogether};
pub use prolong::{Length, Prolonged, prolong};
pub use run::{Finished, train, train_as_rank, train_with};
pub use self_test::{BeforeFirstRun, SelfTest, self_test};
pub use sparktune_model::export::gguf::GgufType;
pub use tiles::TileFile;
