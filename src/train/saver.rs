//! Checkpoints are written while training goes on: on a thread of its own, one at a time.
//!
//! Enters: a [`Snapshot`], which keeps the numbers of one step from being changed. Leaves: its outcome, for whoever waits. What an
//! update costs that comes before the outcome, `sparktune_plan::memory::copies_beside_checkpoint` says.

use crate::TrainError;
use crate::snapshot::Snapshot;
use crate::stage::milliseconds;
use sparktune_runlog::{
    Checkpoint, CheckpointCommitted, Checkpoints, EventWriter, Kind, Lease, RunDir, Warning,
};
use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The thread that writes. It lives as long as this: on a device each thread has a stream and buffers of its own.
pub(crate) struct Saver {
    /// Dropped to end the thread.
    orders: Option<Sender<Snapshot>>,
    outcomes: Receiver<Result<(), TrainError>>,
    thread: Option<JoinHandle<()>>,
    busy: bool,
}

impl Saver {
    /// Starts the thread, which does `save` with every snapshot it is given.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub(crate) fn start(
        mut save: impl FnMut(Snapshot) -> Result<(), TrainError> + Send + 'static,
    ) -> io::Result<Self> {
        let (orders, ordered) = channel();
        let (tell, outcomes) = channel();
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(move || {
            for snapshot in ordered {
                // Nobody listens any more when the run ends by a panic.
                let _ = tell.send(save(snapshot));
            }
        })?;
        Ok(Self { orders: Some(orders), outcomes, thread: Some(thread), busy: false })
    }

    /// Whether a checkpoint is being written whose outcome nobody has heard.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Hands over a snapshot; the outcome of the one before must have been heard.
    pub(crate) fn save(&mut self, snapshot: Snapshot) {
        debug_assert!(!self.busy, "one checkpoint at a time");
        let orders = self.orders.as_ref().expect("is there until this is dropped");
        // A thread that is gone is met when the outcome is asked for.
        let _ = orders.send(snapshot);
        self.busy = true;
    }

    /// The outcome of what is being written, once; waits for it as long as it is told to. The snapshot is gone by then.
    ///
    /// # Panics
    /// As the thread did.
    pub(crate) fn outcome(&mut self, patience: Duration) -> Option<Result<(), TrainError>> {
        if !self.busy {
            return None;
        }
        let outcome = self.outcomes.recv_timeout(patience);
        self.busy = matches!(outcome, Err(RecvTimeoutError::Timeout));
        match outcome {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                let thread = self.thread.take().expect("is there until it is known to be gone");
                resume_unwind(thread.join().expect_err("it ends before its orders do only by a panic"))
            }
        }
    }
}

impl Drop for Saver {
    /// Lets a checkpoint that is being written be finished.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // Whatever it met, the run is ending for another reason.
            let _ = thread.join();
        }
    }
}

/// What the thread needs to commit a checkpoint of a run.
pub(crate) struct Committing {
    checkpoints: Checkpoints,
    lease: Arc<Lease>,
    events: Arc<EventWriter>,
    /// How many are kept, beside the best.
    keep: usize,
}

impl Committing {
    pub(crate) fn new(run: &RunDir, lease: Arc<Lease>, events: Arc<EventWriter>, keep: usize) -> Self {
        Self { checkpoints: Checkpoints::new(run), lease, events, keep }
    }

    /// Commits a checkpoint and tells of it, then deletes old ones; tries once more before it gives up.
    pub(crate) fn commit(&mut self, snapshot: Snapshot) -> Result<(), TrainError> {
        let started = Instant::now();
        let (step, best, best_step) =
            (snapshot.state.checkpoint_step(), snapshot.best, snapshot.state.best_step);
        let checkpoint = match self.attempt(&snapshot, step) {
            Ok(checkpoint) => checkpoint,
            Err(first) => {
                let retried = self.attempt(&snapshot, step);
                let how =
                    if retried.is_ok() { "the second try succeeded" } else { "the second try failed too" };
                self.warn(
                    format!("the checkpoint of step {step} could not be written: {first}; {how}"),
                    step,
                );
                retried?
            }
        };
        drop(snapshot);
        self.events.emit(Kind::CheckpointCommitted(CheckpointCommitted {
            step,
            name: checkpoint.name(),
            bytes: checkpoint.bytes,
            commit_ms: Some(milliseconds(started)),
            best,
        }));
        if let Err(error) = self.checkpoints.retain(self.keep, best_step, &self.lease) {
            self.warn(format!("old checkpoints could not be deleted: {error}"), step);
        }
        Ok(())
    }

    fn attempt(&mut self, snapshot: &Snapshot, step: u64) -> Result<Checkpoint, TrainError> {
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
    use super::*;
    use crate::optimizer::Optimizer;
    use crate::state::State;
    use burn::tensor::Device;
    use sparktune_runlog::RunsRoot;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const LONG: Duration = Duration::from_secs(60);

    fn snapshot() -> Snapshot {
        Snapshot::take(&State::start(), &[], &Optimizer::default(), &Device::flex(), false)
    }

    #[test]
    fn a_failure_is_told_to_the_one_who_waits_and_the_next_is_written() {
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
    fn a_panic_goes_on_where_the_run_is_ended() {
        let mut saver = Saver::start(|_| panic!("the device is gone")).unwrap();
        saver.save(snapshot());
        let caught = catch_unwind(AssertUnwindSafe(|| saver.outcome(LONG).is_some()));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"the device is gone"));
        assert!(!saver.is_busy());
    }

    #[test]
    fn what_is_being_written_is_finished_when_the_run_ends() {
        let (tell, told) = channel();
        let mut saver = Saver::start(move |_| {
            std::thread::sleep(Duration::from_millis(20));
            tell.send(()).unwrap();
            Ok(())
        })
        .unwrap();
        saver.save(snapshot());
        drop(saver);
        assert_eq!(told.try_recv(), Ok(()));
    }

    #[test]
    fn a_checkpoint_that_cannot_be_written_is_tried_twice_and_said() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("tiny", "test").unwrap();
        let lease = Arc::new(Lease::acquire(&run).unwrap());
        let events = Arc::new(EventWriter::open(&lease).unwrap());
        let mut committing = Committing::new(&run, lease, events, 1);
        committing.commit(snapshot()).unwrap();
        // A file where the folder should be: nobody can write there, not even root.
        std::fs::remove_dir_all(run.checkpoints()).unwrap();
        std::fs::write(run.checkpoints(), "").unwrap();
        let error = committing.commit(snapshot()).unwrap_err();
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
