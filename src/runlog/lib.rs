//! The run folder: the only thing the trainer and its watchers share.
//!
//! ```text
//! runs/<utc>-<model>-<method>-<rand4>/
//!   plan.toml  provenance.json             written once                       run_dir
//!   events/0001.jsonl                      one file per attempt, append-only  event, writer, tailer
//!   lease.lock                             flock held by the trainer          lease, liveness
//!   control/<id>.json                      requests to the trainer            control
//!   checkpoints/step-001200/               committed whole or not at all      checkpoint, manifest
//!   tensorboard/events.out.tfevents.…      the events once more             tensorboard, proto
//!   data/  logs/  outputs/                 owned by other members
//! ```
//!
//! Enters: events and files of a trainer. Leaves: records in order, and one [`RunView`] folded from them, the
//! same for a live screen, a replay, plain lines and a resume summary. It uses files, locks and hashes; it
//! must not know tensors, tokens or screens.

mod charts;
mod checkpoint;
mod clock;
mod control;
mod deletion;
mod drift;
mod error;
mod event;
mod holder;
mod lease;
mod lines;
mod liveness;
mod manifest;
mod new_run;
mod notice;
mod pace;
mod pressure;
mod proto;
mod rank_folder;
mod run_dir;
mod runs_root;
mod series;
mod step;
mod step_line;
mod tailer;
mod tensorboard;
mod view;
mod writer;

pub use charts::{About, Charts, METRICS, Mark, Metric, Unit};
pub use checkpoint::{Checkpoint, CheckpointRole, CheckpointWriter, Checkpoints, NewestValid, Skipped};
pub use clock::{SinceBoot, now_us};
pub use control::{Action, ControlInbox, Incoming, Request, is_pending, request};
pub use drift::DriftWatch;
pub use error::{Error, Result, in_words};
pub use event::{
    CheckpointCommitted, ControlApplied, DeviceSample, EVENT_VERSION, Event, Fp8Loss, GpuSample, HeadEval,
    Kind, LostMember, MemberSample, MemberSamples, MemberState, Members, Outcome, Phase, Progress,
    RunFinished, RunStarted, Sample, Unreadable, Warning,
};
pub use holder::Holder;
pub use lease::Lease;
pub use liveness::{Liveness, STALLED_AFTER};
pub use manifest::Damage;
pub use new_run::NewRun;
pub use notice::Notice;
pub use pace::{Eta, Planned, StepParts};
pub use pressure::{MemoryReading, MemoryUser, PressureWatch, Relief};
pub use run_dir::{Models, RunDir};
pub use runs_root::{RunsRoot, label_of, may_be_called};
pub use series::{Bucket, Series};
pub use step::{Eval, Step};
pub use tailer::{Batch, EventTailer, Limit, Polled, Record};
pub use view::{Attempt, RunView, Seen};
pub use writer::EventWriter;
