//! Writes checkpoints while training continues, on a separate thread, one at a time.
//!
//! Enters: a [`Snapshot`], which protects the numbers of one step from changes. Leaves: whether it was
//! committed, for the thread that waits. `sparktune_plan::memory::copies_beside_checkpoint` describes the
//! cost of an update that comes before that.

use std::io;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sparktune_plan::plan::CheckpointPlan;
use sparktune_runlog::{
    Checkpoint, CheckpointCommitted, CheckpointRole, Checkpoints, EventWriter, Kind, Lease, RunDir, Warning,
};

use crate::elapsed::milliseconds;
use crate::error::TrainError;
use crate::snapshot::Snapshot;
use crate::state::State;

/// The thread that writes checkpoints. There is only one for the whole attempt, because each thread has its
/// own stream and buffers on a device.
pub(crate) struct Saver {
    /// The channel to the thread. Dropping it ends the thread.
    snapshots: Option<Sender<Snapshot>>,
    outcomes: Receiver<Result<(), TrainError>>,
    thread: Option<JoinHandle<()>>,
    is_busy: bool,
}

impl Saver {
    /// Starts the thread, which calls `save` with every snapshot.
    ///
    /// # Errors
    /// When the system cannot start a thread.
    pub(crate) fn start(
        mut save: impl FnMut(Snapshot) -> Result<(), TrainError> + Send + 'static,
    ) -> io::Result<Self> {
        let (snapshots, received) = channel();
        let (send_outcome, outcomes) = channel();
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(move || {
            for snapshot in received {
                // The receiver is gone only when the run ends by a panic.
                let _ = send_outcome.send(save(snapshot));
            }
        })?;
        Ok(Self { snapshots: Some(snapshots), outcomes, thread: Some(thread), is_busy: false })
    }

    /// Returns whether a checkpoint is being written, or its outcome was not returned by [`Self::outcome`]
    /// yet.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Passes a snapshot to the thread. The saver must not be busy.
    pub(crate) fn save(&mut self, snapshot: Snapshot) {
        debug_assert!(!self.is_busy, "one checkpoint at a time");
        let snapshots = self.snapshots.as_ref().expect("is there until this is dropped");
        // If the thread is gone, `outcome` finds the cause.
        let _ = snapshots.send(snapshot);
        self.is_busy = true;
    }

    /// Returns the outcome of the checkpoint being written, once; `None` when there is none or it does not
    /// end within `timeout`. Its snapshot has been dropped by then.
    ///
    /// # Panics
    /// With the panic of the thread.
    pub(crate) fn outcome(&mut self, timeout: Duration) -> Option<Result<(), TrainError>> {
        if !self.is_busy {
            return None;
        }
        let outcome = self.outcomes.recv_timeout(timeout);
        self.is_busy = matches!(outcome, Err(RecvTimeoutError::Timeout));
        match outcome {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                let thread = self.thread.take().expect("is there until it is known to be gone");
                let panic = thread.join().expect_err("it ends before `snapshots` is dropped only by a panic");
                resume_unwind(panic)
            }
        }
    }
}

impl Drop for Saver {
    /// Waits for a checkpoint that is being written.
    fn drop(&mut self) {
        self.snapshots = None;
        if let Some(thread) = self.thread.take() {
            // The result is ignored, because the run is already ending for another reason.
            let _ = thread.join();
        }
    }
}

/// Commits snapshots as checkpoints of a run, on the saver's thread.
pub(crate) struct Committer {
    checkpoints: Checkpoints,
    lease: Arc<Lease>,
    events: Arc<EventWriter>,
    plan: CheckpointPlan,
}

impl Committer {
    pub(crate) fn new(
        run: &RunDir,
        lease: Arc<Lease>,
        events: Arc<EventWriter>,
        plan: CheckpointPlan,
    ) -> Self {
        Self { checkpoints: Checkpoints::new(run), lease, events, plan }
    }

    /// Commits a checkpoint, with a second try after a failure, and records it; then deletes old ones.
    ///
    /// # Errors
    /// When the second try fails too.
    pub(crate) fn commit(&mut self, snapshot: Snapshot) -> Result<(), TrainError> {
        let started = Instant::now();
        let (step, best) = (snapshot.state.checkpoint_step(), snapshot.best);
        let checkpoint = match self.write(&snapshot, step) {
            Ok(checkpoint) => checkpoint,
            Err(first) => {
                let retried = self.write(&snapshot, step);
                let how = if retried.is_ok() {
                    "the second attempt succeeded"
                } else {
                    "the second attempt failed too"
                };
                self.warn(
                    format!("the checkpoint of step {step} could not be written: {first}; {how}"),
                    step,
                );
                retried?
            }
        };
        // Frees the copies of the weights before the slow deletion of old checkpoints.
        drop(snapshot);
        self.events.emit(Kind::CheckpointCommitted(CheckpointCommitted {
            step,
            name: checkpoint.name(),
            bytes: checkpoint.bytes,
            commit_ms: Some(milliseconds(started)),
            best,
        }));
        let CheckpointPlan { keep, save_steps, .. } = self.plan;
        let role_of = |path: &Path| match State::read(path) {
            Ok(state) => CheckpointRole {
                is_interim: !state.is_planned(save_steps),
                best: state.lasting_checkpoints(),
            },
            // A person may want to look at it for as long as others of its age are kept.
            Err(_) => CheckpointRole::default(),
        };
        if let Err(error) = self.checkpoints.retain(keep as usize, role_of, &self.lease) {
            self.warn(format!("old checkpoints could not be deleted: {error}"), step);
        }
        Ok(())
    }

    fn write(&mut self, snapshot: &Snapshot, step: u64) -> Result<Checkpoint, TrainError> {
        let writer = self.checkpoints.begin(step, &self.lease)?;
        snapshot.write(writer.path())?;
        Ok(writer.commit()?)
    }

    fn warn(&self, message: String, step: u64) {
        self.events.emit(Kind::Warning(Warning { message, step: Some(step) }));
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use burn::tensor::Device;
    use sparktune_runlog::RunsRoot;

    use super::*;
    use crate::optimizer::Optimizer;

    const LONG: Duration = Duration::from_secs(60);

    fn snapshot() -> Snapshot {
        Snapshot::take(&State::start(), &[], &Optimizer::default(), &Device::flex(), false)
    }

    #[test]
    fn a_failure_reaches_the_thread_that_waits_and_the_next_checkpoint_is_written() {
        let mut tries = 0;
        let mut saver = Saver::start(move |_| {
            tries += 1;
            if tries == 1 { Err(TrainError::NothingToExport) } else { Ok(()) }
        })
        .unwrap();
        assert!(saver.outcome(LONG).is_none() && !saver.is_busy(), "nothing is waited for");
        saver.save(snapshot());
        assert!(matches!(saver.outcome(LONG), Some(Err(TrainError::NothingToExport))));
        saver.save(snapshot());
        assert!(saver.is_busy() && matches!(saver.outcome(LONG), Some(Ok(()))) && !saver.is_busy());
    }

    #[test]
    fn a_panic_continues_on_the_thread_that_waits() {
        let mut saver = Saver::start(|_| panic!("the device is gone")).unwrap();
        saver.save(snapshot());
        let caught = catch_unwind(AssertUnwindSafe(|| saver.outcome(LONG).is_some()));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"the device is gone"));
        assert!(!saver.is_busy());
    }

    #[test]
    fn a_checkpoint_being_written_is_finished_when_the_run_ends() {
        let (send, received) = channel();
        let mut saver = Saver::start(move |_| {
            std::thread::sleep(Duration::from_millis(20));
            send.send(()).unwrap();
            Ok(())
        })
        .unwrap();
        saver.save(snapshot());
        drop(saver);
        assert_eq!(received.try_recv(), Ok(()));
    }

    #[test]
    fn a_checkpoint_that_cannot_be_written_is_tried_twice_and_warned_about() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("tiny", "test").unwrap();
        let lease = Arc::new(Lease::acquire(&run).unwrap());
        let events = Arc::new(EventWriter::open(&lease).unwrap());
        let plan = CheckpointPlan { save_steps: 1, save_minutes: 15, keep: 1 };
        let mut committer = Committer::new(&run, lease, events, plan);
        committer.commit(snapshot()).unwrap();
        // A file in place of the folder makes writing fail even for root.
        std::fs::remove_dir_all(run.checkpoints()).unwrap();
        std::fs::write(run.checkpoints(), "").unwrap();
        let error = committer.commit(snapshot()).unwrap_err();
        assert_eq!(error.exit_code(), 4);
        let log = std::fs::read_to_string(run.event_file(1)).unwrap();
        let kinds: Vec<String> = log
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["kind"].to_string())
            .collect();
        assert_eq!(kinds, ["\"checkpoint_committed\"", "\"warning\""]);
        assert!(
            log.contains("the checkpoint of step 0 could not be written") && log.contains("failed too"),
            "{log}"
        );
    }
}
