//! A worker as the pool knows it: what it is for, how it is, and how many answers it has.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use sparktune_app::failure::{Exit, Failure};
use sparktune_app::models::Opening;
use sparktune_base::stamp::Stamp;
use sparktune_sampling::protocol::Ready;
use tokio::sync::watch;

use super::commands::{Command, State};
use super::refusal::Refusal;
use crate::locked::lock;

/// The folders of a run's outputs that can be loaded.
const EXPORTED: [&str; 3] = ["adapter", "merged", "merged-mtp"];

/// What a worker is known by: the folder that it has loaded, with its files as they were then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    model: PathBuf,
    files: Vec<(PathBuf, Stamp)>,
}

impl Key {
    pub(super) fn of(opening: &Opening) -> Self {
        let outputs = opening.model.join("outputs");
        let files = if outputs.is_dir() {
            EXPORTED.iter().flat_map(|name| Stamp::of_files_in(&outputs.join(name))).collect()
        } else {
            Stamp::of_files_in(&opening.model)
        };
        Self { model: opening.model.clone(), files }
    }
}

/// The ids of the models in use: a base and adapters. The thread of the worker takes out those adapters that
/// the process has forgotten.
pub(super) type Models = Arc<Mutex<BTreeSet<String>>>;

/// A worker.
pub(crate) struct Slot {
    key: Key,
    commands: Sender<Command>,
    state: watch::Receiver<State>,
    answers: Arc<AtomicUsize>,
    used: Mutex<Instant>,
    models: Models,
}

/// Answers that count until the value is dropped.
pub(super) struct Counted {
    answers: Arc<AtomicUsize>,
    count: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.answers.fetch_sub(self.count, Ordering::Relaxed);
    }
}

impl Slot {
    pub(super) fn new(
        key: Key,
        commands: Sender<Command>,
        state: watch::Receiver<State>,
        models: Models,
    ) -> Self {
        let (answers, used) = (Arc::default(), Mutex::new(Instant::now()));
        Self { key, commands, state, answers, used, models }
    }

    /// Returns whether it holds exactly what this key names.
    pub(super) fn is_for(&self, key: &Key) -> bool {
        self.key == *key
    }

    /// Returns whether it has loaded this folder, whatever its files were then.
    pub(super) fn is_of(&self, model: &Path) -> bool {
        self.key.model == model
    }

    pub(super) fn state(&self) -> State {
        // A thread that panicked says nothing of its end.
        if self.state.has_changed().is_err() && !matches!(*self.state.borrow(), State::Ended(_)) {
            return State::Ended(ended());
        }
        self.state.borrow().clone()
    }

    /// Asks the process to end.
    pub(super) fn end(&self) {
        let _ = self.send(Command::End);
    }

    /// Waits until the model is loaded.
    pub(super) async fn ready(&self) -> Result<Ready, Refusal> {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| *state != State::Loading).await;
        let settled = settled.map(|state| state.clone()).unwrap_or_else(|_| State::Ended(ended()));
        match settled {
            State::Ready(ready) => Ok(ready),
            State::Ended(failure) => Err(Refusal::Gone(failure)),
            State::Loading => unreachable!("that is what was waited for"),
        }
    }

    /// Waits until the process has ended, and with it the use of its memory.
    pub(super) async fn gone(&self) {
        let _ = self.state.clone().wait_for(|state| matches!(state, State::Ended(_))).await;
    }

    /// Counts answers from now on.
    pub(super) fn count(&self, count: usize, most: usize) -> Result<Counted, Refusal> {
        *lock(&self.used) = Instant::now();
        let before = self.answers.fetch_add(count, Ordering::Relaxed);
        let counted = Counted { answers: self.answers.clone(), count };
        if before + count > most { Err(Refusal::Busy(before)) } else { Ok(counted) }
    }

    /// Returns the answers that are not complete.
    pub(super) fn answers(&self) -> usize {
        self.answers.load(Ordering::Relaxed)
    }

    /// Returns when it was last asked.
    pub(super) fn used(&self) -> Instant {
        *lock(&self.used)
    }

    /// Sends a command.
    pub(super) fn send(&self, command: Command) -> Result<(), Refusal> {
        self.commands.send(command).map_err(|_| Refusal::Gone(ended()))
    }

    /// Notes that a model is in use.
    pub(super) fn open(&self, model: &str) {
        lock(&self.models).insert(model.to_owned());
    }

    /// Notes that a model is not in use any more. Returns whether another one is.
    pub(super) fn close(&self, model: &str) -> bool {
        let mut models = lock(&self.models);
        models.remove(model);
        !models.is_empty()
    }

    /// Returns the models in use.
    pub(super) fn models(&self) -> Vec<String> {
        lock(&self.models).iter().cloned().collect()
    }
}

/// The failure of a worker whose thread has ended.
pub(super) fn ended() -> Failure {
    Failure::new(Exit::Device, "the inference worker has ended").hint("Ask again")
}
