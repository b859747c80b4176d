//! Members that join the cluster while a swarm trains: each is given a rank, which the others let in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use sparktune_base::escape::escape;
use sparktune_base::units::bytes as in_bytes;
use sparktune_cluster::membership::messages::{Job, Member, State};
use sparktune_cluster::membership::{Cancelled, Following, Found, Recruit, Watch, prepare, reached_at};
use sparktune_cluster::{ClusterToken, Error};

use super::membership::Membership;
use crate::failure::{Exit, Failure};

/// The pause between two looks for new members.
const PAUSE: Duration = Duration::from_secs(2);
/// The pause between two looks for the end.
const LOOK: Duration = Duration::from_millis(100);
/// The pause between two lines about files that are sent.
const BETWEEN_LINES: Duration = Duration::from_secs(30);
/// How often a member is asked that could not be brought to work, and the pause before the second time; that
/// before the third is three times as long.
const MOST_TRIES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// Whether the ranks of a run let in another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// They take steps, of which it would have a part.
    Free,
    /// They take steps, of so many micro-batches, none of which is left for it.
    NoWork {
        /// The micro-batches of a step.
        micro_batches: usize,
    },
    /// They take no steps now.
    Closed,
}

/// Brings members to work that were not there when the run began.
pub(super) struct Newcomers {
    membership: Membership,
    token: ClusterToken,
    /// The ids of those that have a rank, or have been asked often enough.
    settled: BTreeSet<String>,
    /// What was said of those that have none, each thing once.
    said: BTreeSet<String>,
    /// How often each has been asked, and when it can be asked again.
    tries: BTreeMap<String, (u32, Instant)>,
    /// Those whose ranks have been killed.
    killed: Arc<Mutex<Vec<String>>>,
    /// How the others are reached.
    others: Vec<Recruit>,
    /// The job of the next one.
    job: Job,
    /// Where its folders are on this machine.
    places: Vec<PathBuf>,
}

/// The thread that brings them.
pub(super) struct Arriving {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Following>>,
}

impl Arriving {
    /// Brings nobody else. Returns those that have been brought.
    pub(super) fn end(self) -> Vec<Following> {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.join().unwrap_or_default()
    }
}

impl Newcomers {
    /// Those of a run with this job, which the members `ids` have begun; `places` are where its folders are
    /// on this machine.
    pub(super) fn new(
        membership: Membership,
        token: ClusterToken,
        ids: BTreeSet<String>,
        others: Vec<Recruit>,
        job: Job,
        places: Vec<PathBuf>,
    ) -> Self {
        let job = Job { rank: job.world_size, world_size: job.world_size + 1, ..job };
        let (said, tries, killed) = (BTreeSet::new(), BTreeMap::new(), Arc::default());
        Self { membership, token, settled: ids, said, tries, killed, others, job, places }
    }

    /// Looks for them in the background while there is room, until [`Arriving::end`]. `note` receives what
    /// happens.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(super) fn bring(
        mut self,
        room: impl Fn() -> Room + Send + Sync + 'static,
        note: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Arriving, Failure> {
        let is_over = Arc::new(AtomicBool::new(false));
        let run = Arc::new(Run { is_over: Arc::clone(&is_over), room: Box::new(room), note: Box::new(note) });
        let look = move || {
            let mut brought = Vec::new();
            while run.pauses() {
                if (run.room)() == Room::Closed {
                    continue;
                }
                let asked = Arc::clone(&run);
                // Who coordinates may be lost just now.
                let all = self.membership.members(Arc::new(move || asked.is_over())).unwrap_or_default();
                for Found { member, host } in all {
                    brought.extend(self.bring_one(member, host, &run));
                }
            }
            brought
        };
        let thread = Builder::new().name("newcomers".into()).spawn(look).map_err(Error::Thread)?;
        Ok(Arriving { is_over, thread })
    }

    /// Brings a member to work, if it is new, has nothing else to do and is needed.
    fn bring_one(&mut self, member: Member, host: String, run: &Arc<Run>) -> Option<Following> {
        let Member { introduction, report, gone, .. } = member;
        let id = introduction.id;
        for killed in std::mem::take(&mut *lock(&self.killed)) {
            self.settled.remove(&killed);
        }
        let is_free = match report.state {
            State::Idle => true,
            // It was left by an earlier attempt. After a try, its agent starts it again.
            State::Returning { run, .. } => run == self.job.run && !self.tries.contains_key(&id),
            _ => false,
        };
        if gone.is_some() || !is_free || self.settled.contains(&id) {
            return None;
        }
        let mut name = escape(&introduction.name).into_owned();
        if self.others.iter().any(|other| other.name == name) {
            name = format!("{name} at {}", escape(&host));
        }
        if introduction.build != self.job.build {
            self.say(run, format!(
                "{name} has joined the cluster with another build of sparktune, which may compute different bits: it cannot train with the others until it has the same"
            ));
            return None;
        }
        match (run.room)() {
            Room::Free => {}
            Room::Closed => return None,
            Room::NoWork { micro_batches } => {
                self.say(run, format!(
                    "{name} has joined the cluster, and there is no work for it: a step has {micro_batches} micro-batches, and there are as many ranks"
                ));
                return None;
            }
        }
        let (tries, due) = self.tries.entry(id.clone()).or_insert((0, Instant::now()));
        if Instant::now() < *due {
            return None;
        }
        *due = Instant::now() + FIRST_PAUSE * 3_u32.pow(*tries);
        *tries += 1;
        let is_last = *tries == MOST_TRIES;
        let recruit = Recruit { name: name.clone(), host, port: introduction.port };
        let brought = self.start(recruit, id.clone(), is_last, run);
        if is_last || brought.is_ok() {
            self.settled.insert(id);
        }
        match brought {
            Ok(following) => {
                self.job.rank += 1;
                self.job.world_size += 1;
                Some(following)
            }
            Err(Error::Interrupted) => {
                run.tell(&format!("{name} was too late to train in this run"));
                None
            }
            Err(error) => {
                let why = match error {
                    Error::Agent { why, .. } => why,
                    error => error.to_string(),
                };
                let next = if is_last {
                    "It is not asked again, and trains from the next `resume --cluster` on"
                } else {
                    "It is asked again"
                };
                run.tell(&format!("{name} cannot train with the others: {why}. {next}"));
                None
            }
        }
    }

    fn say(&mut self, run: &Run, line: String) {
        if !self.said.contains(&line) {
            run.tell(&line);
            self.said.insert(line);
        }
    }

    fn start(&self, recruit: Recruit, id: String, is_last: bool, run: &Arc<Run>) -> Result<Following, Error> {
        let Self { token, job, places, .. } = self;
        // All ranks of this machine are told the same address.
        let all: Vec<Recruit> = self.others.iter().cloned().chain([recruit]).collect();
        let dialled = reached_at(&all).1.split_off(self.others.len());
        let total = job.folders.iter().map(|folder| folder.bytes()).sum();
        let watch = Sending { run, total, sent: Mutex::default() };
        let crew = prepare(&dialled, token, job, places, run.until_closed(), &watch)?;
        let (run, killed) = (Arc::clone(run), Arc::clone(&self.killed));
        crew.follow(move |name, code, said| {
            // One that came too late is refused.
            if let Some(line) = ending(name, code, said).filter(|_| (run.room)() != Room::Closed) {
                run.tell(&line);
            }
            // Its agent starts it again only if it has trained.
            if code.is_none() && !is_last {
                lock(&killed).push(id.clone());
            }
        })
    }
}

/// Returns what is told about a rank that has ended; nothing after a stop, which ends all ranks with this
/// code and which they say themselves.
pub(super) fn ending(name: &str, code: Option<i32>, said: &str) -> Option<String> {
    match code {
        Some(code) if code == Exit::Stopped as i32 => None,
        Some(code) => Some(format!("the rank of {name} has ended with exit code {code}: {}", escape(said))),
        // What it said last is not why it has ended.
        None => Some(format!("the rank of {name} was ended by a signal")),
    }
}

/// The run that they come to, as this program follows it.
struct Run {
    is_over: Arc<AtomicBool>,
    room: Box<dyn Fn() -> Room + Send + Sync>,
    note: Box<dyn Fn(&str) + Send + Sync>,
}

impl Run {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn tell(&self, line: &str) {
        (self.note)(line);
    }

    /// Waits for the next look. Returns whether there is one.
    fn pauses(&self) -> bool {
        let since = Instant::now();
        while since.elapsed() < PAUSE && !self.is_over() {
            std::thread::sleep(LOOK);
        }
        !self.is_over()
    }

    /// Returns what ends the preparation of a member: the end of the run's steps, or of this program. To see
    /// whether steps are taken costs more than to be asked for it.
    fn until_closed(self: &Arc<Self>) -> Cancelled {
        let run = Arc::clone(self);
        let seen = Mutex::new((Instant::now(), false));
        Arc::new(move || {
            let mut seen = lock(&seen);
            if seen.0.elapsed() >= PAUSE {
                *seen = (Instant::now(), (run.room)() == Room::Closed);
            }
            seen.1 || run.is_over()
        })
    }
}

/// Says how far a newcomer is.
struct Sending<'a> {
    run: &'a Run,
    total: u64,
    /// When it was said last, and how many bytes have been sent.
    sent: Mutex<(Option<Instant>, u64)>,
}

impl Watch for Sending<'_> {
    fn sent(&self, to: &str, bytes: u64) {
        let mut sent = lock(&self.sent);
        sent.1 += bytes;
        if sent.0.is_none_or(|at| at.elapsed() >= BETWEEN_LINES) {
            sent.0 = Some(Instant::now());
            self.run.tell(&format!(
                "sending the model to {to}, which is to train too: {} of {}",
                in_bytes(sent.1),
                in_bytes(self.total)
            ));
        }
    }

    fn ready(&self, member: &str, _: u64) {
        self.run.tell(&format!(
            "{member} has joined the cluster and has the model: it is let in at the end of a step"
        ));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
