//! The thread of a worker: commands of requests in, replies of the process out. The pipe to the process
//! blocks, so this is the one place where serving waits for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use sparktune_app::failure::{Exit, Failure};
use sparktune_app::inference::{Worker, WorkerOptions};
use sparktune_app::program::Program;
use sparktune_sampling::protocol::{Ready, Reply, Request};
use tokio::sync::watch;

use super::commands::{Adapter, Command, Event, Events, State};
use super::refusal::Refusal;
use crate::locked::lock;

/// The longest time that a command waits while answers are decoded. A token takes longer, except for models
/// of a few million parameters.
const BETWEEN_COMMANDS: Duration = Duration::from_millis(2);
/// The time between two looks at whether a process without answers has ended.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Replies that are handed on before the next look at commands.
const REPLIES_AT_ONCE: usize = 64;

/// An answer that is not complete.
struct Open {
    adapter: Option<String>,
    index: usize,
    events: Events,
    /// Whether the process was sent the prompt.
    is_sent: bool,
}

/// A worker and its answers.
pub(super) struct Bridge<'a> {
    worker: Worker,
    state: &'a watch::Sender<State>,
    models: &'a Mutex<BTreeSet<String>>,
    open: HashMap<String, Open>,
    /// The names of the adapters that were asked for, as far as the process has not said that it has them no
    /// more.
    adapters: BTreeSet<String>,
    /// The requests to load or forget an adapter that the process has not answered.
    unanswered: usize,
    /// Why adapters could not be loaded.
    broken: BTreeMap<String, Refusal>,
}

impl<'a> Bridge<'a> {
    /// Loads the model and answers commands, until the process ends, nobody can command it any more, or it
    /// was idle for long. `while_loading` is dropped when the model is loaded, or cannot be.
    pub(super) fn run(
        program: &Program,
        options: &WorkerOptions,
        idle: Duration,
        commands: &Receiver<Command>,
        state: &'a watch::Sender<State>,
        models: &'a Mutex<BTreeSet<String>>,
        while_loading: impl Send,
    ) {
        let worker = match Worker::start(program, options) {
            Ok(worker) => worker,
            Err(failure) => {
                state.send_replace(State::Ended(failure));
                return;
            }
        };
        state.send_replace(State::Ready(worker.ready().clone()));
        drop(while_loading);
        let (open, adapters, broken) = (HashMap::new(), BTreeSet::new(), BTreeMap::new());
        let mut bridge = Self { worker, state, models, open, adapters, unanswered: 0, broken };
        let failure = bridge.serve(idle, commands).err();
        let failure = failure.unwrap_or_else(|| Failure::new(Exit::Done, "the model was unloaded"));
        for (_, open) in bridge.open.drain() {
            let event = Event::Failed { failure: failure.clone(), had_prompt: open.is_sent };
            let _ = open.events.send((open.index, event));
        }
        // Its memory is free when this is known.
        drop(bridge);
        state.send_replace(State::Ended(failure));
    }

    fn serve(&mut self, idle: Duration, commands: &Receiver<Command>) -> Result<(), Failure> {
        let mut busy_at = Instant::now();
        loop {
            if self.open.is_empty() {
                if busy_at.elapsed() > idle {
                    return Ok(());
                }
                match commands.recv_timeout(BETWEEN_LOOKS.min(idle)) {
                    Ok(Command::End) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                    Ok(command) => self.carry_out(command)?,
                    Err(RecvTimeoutError::Timeout) => {}
                }
            } else {
                busy_at = Instant::now();
            }
            loop {
                match commands.try_recv() {
                    Ok(Command::End) => return Ok(()),
                    Ok(command) => self.carry_out(command)?,
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
                }
            }
            let mut wait = if self.open.is_empty() { Duration::ZERO } else { BETWEEN_COMMANDS };
            // A fast model has a reply at any time, and commands must not wait for its answers.
            for _ in 0..REPLIES_AT_ONCE {
                let Some(reply) = self.worker.next(wait)? else { break };
                self.tell(reply)?;
                wait = Duration::ZERO;
            }
        }
    }

    fn carry_out(&mut self, command: Command) -> Result<(), Failure> {
        match command {
            Command::Generate { generate, adapter, index, events } => {
                let id = generate.id.clone();
                let name = adapter.as_ref().map(|adapter| adapter.name.clone());
                // If the process has ended, the answer is told so with the others.
                let open = Open { adapter: name, index, events, is_sent: false };
                self.open.insert(id.clone(), open);
                if let Some(adapter) = adapter {
                    self.load(adapter)?;
                }
                self.worker.send(&Request::Generate(generate))?;
                if let Some(open) = self.open.get_mut(&id) {
                    open.is_sent = true;
                }
                Ok(())
            }
            Command::Cancel { id } if self.open.contains_key(&id) => {
                self.worker.send(&Request::Cancel { id })
            }
            Command::Unload { adapter } if self.adapters.contains(&adapter) => {
                self.unanswered += 1;
                self.worker.send(&Request::UnloadAdapter { name: adapter })
            }
            Command::Cancel { .. } | Command::Unload { .. } | Command::End => Ok(()),
        }
    }

    /// Asks for an adapter. The process knows whether it has it as it is now, or has forgotten it to make
    /// room for others.
    fn load(&mut self, Adapter { name, folder }: Adapter) -> Result<(), Failure> {
        self.broken.remove(&name);
        self.adapters.insert(name.clone());
        self.unanswered += 1;
        let folder = folder.display().to_string();
        self.worker.send(&Request::LoadAdapter { name, folder, makes_room: true })
    }

    /// Notes which adapters the process has now, and what is planned with them. Only the answer to the last
    /// request says that: an earlier one may name an adapter that is to be forgotten.
    fn note_adapters(&mut self, adapters: Vec<String>, plan: impl FnOnce(&Ready) -> Ready) {
        self.unanswered = self.unanswered.saturating_sub(1);
        if self.unanswered > 0 {
            return;
        }
        let before = std::mem::replace(&mut self.adapters, adapters.into_iter().collect());
        let mut models = lock(self.models);
        models.retain(|model| !before.contains(model));
        models.extend(self.adapters.iter().cloned());
        drop(models);
        self.state.send_if_modified(|state| {
            let State::Ready(ready) = state else { return false };
            let planned = plan(ready);
            let before = std::mem::replace(ready, planned);
            before != *ready
        });
    }

    /// Hands a reply to who waits for it.
    fn tell(&mut self, reply: Reply) -> Result<(), Failure> {
        match reply {
            Reply::Accepted { id, prompt_tokens, opens_thinking } => {
                self.send(&id, Event::Accepted { prompt_tokens, opens_thinking });
            }
            Reply::Text(piece) => self.send(&piece.id.clone(), Event::Piece(piece)),
            Reply::Done { id, finished } => {
                self.send(&id, Event::Done(finished));
                self.open.remove(&id);
            }
            // The memory for answers stays what it was for the base without adapters: the limit of an answer
            // whose request sets none must not depend on who has asked for adapters.
            Reply::Adapters { adapters, planned_bytes, context_tokens, .. } => {
                self.note_adapters(adapters, |ready| Ready {
                    planned_bytes,
                    context_tokens,
                    ..ready.clone()
                });
            }
            Reply::Error { id: Some(name), error, no_room } if self.adapters.contains(&name) => {
                let refusal = if no_room {
                    Refusal::NoRoom(Failure::new(Exit::Device, error))
                } else {
                    Refusal::Invalid(error)
                };
                self.broken.insert(name, refusal);
            }
            Reply::Error { id: Some(id), error, .. } => {
                let Some(open) = self.open.remove(&id) else { return Ok(()) };
                // What is wrong with its adapter is why the answer is refused.
                let cause = open.adapter.and_then(|name| self.broken.get(&name).cloned());
                let refusal = cause.unwrap_or(Refusal::Invalid(error));
                let _ = open.events.send((open.index, Event::Refused(refusal)));
            }
            Reply::Failed { error } => return Err(Failure::new(Exit::Device, error)),
            Reply::Error { id: None, error, .. } => return Err(Failure::new(Exit::Bug, error)),
            Reply::Ready(_) | Reply::Scored { .. } => {}
        }
        Ok(())
    }

    /// Sends an event. Nobody may wait for it any more; the answer is then cancelled already.
    fn send(&self, id: &str, event: Event) {
        if let Some(open) = self.open.get(id) {
            let _ = open.events.send((open.index, event));
        }
    }
}
