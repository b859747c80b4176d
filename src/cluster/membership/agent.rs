//! The agent: what runs on every member, answers those who know the token, and starts ranks.
//!
//! The coordinator's agent keeps the list of members too; the others hold a connection to it, and dial again
//! when it is lost. If the coordinator stays silent, one of the others takes over, and the old coordinator is
//! an ordinary member when it returns. Nothing else here depends on who coordinates: every agent takes every
//! job.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};
use std::time::Duration;

use sparktune_base::escape::escape;
use sparktune_ndp::stream::{Channel, Gate};
use sparktune_ndp::{StrangerPlace, Strangers};

use super::coordination::Coordination;
use super::launch::{Launch, Rank};
use super::messages::{
    Answer, Ask, Examination, Folder, GoesOn, Introduction, Job, MOST_MEASURED, Member, RankState, Report,
    Role, Standing, State, Successor, sentence,
};
use super::roster::{Roster, place as place_of_member};
use super::talk::{BEAT, Cancelled, beat, hear, lost, out_of_turn, patience, place_of, tell};
use super::transfer::{BYTES, fetch, has_the_same, place_in};
use crate::cluster_token::ClusterToken;
use crate::discovery::Answerer;
use crate::doctor::{Line, Link, now_us};
use crate::error::Error;

/// The pause between two looks for a connection, an answer or the end.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// The most connections that have not said who they are, and the most that have.
const MOST_STRANGERS: usize = 32;
const MOST_GUESTS: usize = 256;

/// The machine that an agent runs on: what it knows of itself, and how it starts a rank. There is one rank at
/// a time.
pub trait Host: Sync {
    /// Returns the memory that a program could have now.
    fn free_bytes(&self) -> u64;

    /// Examines what should be the same on all members: network card, MTU, GID, NCCL.
    fn examine(&self) -> Vec<Line>;

    /// Returns the link by which it reaches an address, if it knows that.
    fn link_towards(&self, to: IpAddr) -> Option<Link>;

    /// Returns folders that may have the files of this one.
    fn candidates(&self, folder: &Folder) -> Vec<PathBuf>;

    /// Returns the private folder for files that are fetched.
    ///
    /// # Errors
    /// There can be none, for the reason that is returned.
    fn cache(&self) -> Result<PathBuf, String>;

    /// Starts a rank, and keeps what it was started with. Returns a number that tells it from ranks that are
    /// started later. Ranks that an earlier agent started have the number 0.
    ///
    /// # Errors
    /// It cannot be started, for the reason that is returned. What is kept is then that of an earlier rank
    /// that has not ended, or nothing.
    fn start(&self, launch: &Launch) -> Result<u64, String>;

    /// Returns what the last rank was started with, unless that rank has ended for good: by itself, which it
    /// says by removing this, or by [`Host::forget_launch`]. It survives a restart of agent or machine.
    fn kept(&self) -> Option<Launch>;

    /// Forgets what the last rank was started with, so that it is not started again.
    fn forget_launch(&self);

    /// Returns how the rank with this number stands. It has ended if a later one was started.
    fn look(&self, number: u64) -> RankState;

    /// Asks the rank with this number to end, unless a later one was started.
    fn stop(&self, number: u64);

    /// Returns whether a trainer of this machine leads the run of this name now.
    fn leads(&self, run: &str) -> bool;

    /// Returns a run in this member's folder of runs that a trainer leads now, with other ranks, and how many
    /// ranks there are.
    fn led(&self) -> Option<(String, usize)>;

    /// Returns the run with which a rank of this machine has gone on in rank 0's place, if one has, of the
    /// run of this name.
    fn successor(&self, run: &str) -> Option<Successor>;
}

/// What an agent is.
pub struct Agent<'a> {
    /// The secret of the cluster.
    pub token: &'a ClusterToken,
    /// What it says of itself.
    pub introduction: Introduction,
    /// Whether it keeps the list of members, until it hears of another one that has taken over.
    pub coordinates: bool,
    /// Where other members listened at an earlier time.
    pub known: &'a [SocketAddr],
    /// The port of calls on the link, which are answered when this member coordinates; `None` leaves them
    /// unanswered.
    pub call_port: Option<u16>,
    /// How long a coordinator may be gone and come back as such. Then another member takes over.
    pub returns_within: Duration,
    /// The machine.
    pub host: &'a dyn Host,
    /// Ends it.
    pub stop: &'a Arc<AtomicBool>,
    /// Receives a line for each thing that happens.
    pub notice: &'a (dyn Fn(&str) + Sync),
}

/// Where a member dials at first to find the coordinator: an address, or whoever answers on the link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Where {
    /// A host and a port.
    At(String, u16),
    /// The one that answers calls to this port.
    OnTheLink(u16),
}

/// Receives where the coordinator is when this member is connected to it, and where all others listen, to be
/// kept for the next start.
pub type Keep<'k> = &'k mut dyn FnMut(Option<(&str, u16)>, &[SocketAddr]);

/// The state that the connections of an agent share. Lock order: the roster before the coordination,
/// and the work before the rank.
pub(super) struct Shared<'a> {
    pub(super) agent: &'a Agent<'a>,
    gate: Gate,
    pub(super) roster: Mutex<Roster>,
    pub(super) coordination: Mutex<Coordination>,
    /// What this member does; `Idle` and `Returning` may be replaced by one connection at a time.
    pub(super) work: Mutex<State>,
    /// The rank that was started last.
    pub(super) rank: Mutex<Rank>,
    visits: AtomicU64,
}

impl Agent<'_> {
    /// Serves until `stop` is set. A coordinator answers calls by `answerer`; a member dials `coordinator`.
    /// `keep` receives where the coordinator and all others are, whenever that changes.
    ///
    /// # Errors
    /// The coordinator refuses this member, or has another token.
    pub fn run(
        &self,
        listener: &TcpListener,
        answerer: Option<Answerer>,
        coordinator: Option<&Where>,
        keep: Keep<'_>,
    ) -> Result<(), Error> {
        let refused = |source| Error::Listen { at: "the agent's port".into(), source };
        listener.set_nonblocking(true).map_err(refused)?;
        let Introduction { id, port, .. } = &self.introduction;
        let shared = Shared {
            agent: self,
            gate: Gate::new(&self.token.key(), &self.token.proof()),
            roster: Mutex::default(),
            coordination: Mutex::new(Coordination::new(id, *port, self.coordinates, self.known)),
            work: Mutex::new(State::Idle),
            rank: Mutex::default(),
            visits: AtomicU64::new(1),
        };
        let (shared, strangers) = (&shared, Strangers::new(MOST_STRANGERS));
        shared.look_for_earlier_rank();
        std::thread::scope(|scope| {
            if let Some((run, world_size)) = self.host.led() {
                // An earlier agent was told of it.
                *lock(&shared.work) = State::Training { run: run.clone(), rank: 0, world_size };
                scope.spawn(move || shared.await_trainer(&run));
            }
            let accepting = scope.spawn(move || shared.accept(scope, listener, &strangers));
            scope.spawn(move || shared.answer_calls(answerer));
            scope.spawn(move || shared.announce(coordinator));
            let done = shared.take_part(coordinator, keep);
            self.stop.store(true, Ordering::SeqCst);
            let _ = accepting.join();
            done
        })
    }
}

impl<'a> Shared<'a> {
    pub(super) fn is_over(&self) -> bool {
        self.agent.stop.load(Ordering::SeqCst)
    }

    pub(super) fn cancelled(&self) -> Cancelled {
        let stop = Arc::clone(self.agent.stop);
        Arc::new(move || stop.load(Ordering::SeqCst))
    }

    pub(super) fn coordinates(&self) -> bool {
        self.standing().role == Role::Coordinates
    }

    pub(super) fn standing(&self) -> Standing {
        lock(&self.coordination).standing().clone()
    }

    /// Returns where all others listen, as far as this member knows.
    pub(super) fn places(&self) -> BTreeSet<SocketAddr> {
        let mut places: BTreeSet<_> = lock(&self.roster).places().map(|(place, _)| place).collect();
        places.extend(lock(&self.coordination).known());
        places
    }

    fn accept<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        listener: &TcpListener,
        strangers: &Strangers,
    ) {
        let guests = Arc::new(());
        while !self.is_over() {
            // Whatever is wrong with one connection is not the agent's end.
            let Ok((stream, from)) = listener.accept() else {
                std::thread::sleep(LOOK);
                continue;
            };
            if Arc::strong_count(&guests) > MOST_GUESTS + MOST_STRANGERS {
                continue;
            }
            let Some(place) = strangers.admit(&stream) else { continue };
            let guest = Arc::clone(&guests);
            let meet = move || {
                // Who does not know the token is sent away, and learns nothing but that.
                let _ = self.meet(stream, from, place);
                drop(guest);
            };
            if Builder::new().name("guest".into()).spawn_scoped(scope, meet).is_err() {
                std::thread::sleep(LOOK);
            }
        }
    }

    fn meet(&self, stream: TcpStream, from: SocketAddr, stranger: StrangerPlace) -> Result<(), Error> {
        let admitted = self.gate.admit(stream, patience(), self.cancelled());
        let Ok(mut channel) = admitted else { return Ok(()) };
        drop(stranger);
        let channel = &mut channel;
        let asked = loop {
            match hear_ask(channel)? {
                Ask::Stand(other) => {
                    self.consider(&other, SocketAddr::new(from.ip().to_canonical(), other.port));
                    // Two that coordinate hear of each other by those that follow one of them.
                    let own = self.standing();
                    let follows_another = other.role == Role::Coordinates && own.role == Role::Follows;
                    tell(channel, &if follows_another { self.elsewhere() } else { Answer::Stands(own) })?;
                }
                asked => break asked,
            }
        };
        match asked {
            Ask::Join(introduction) => self.welcome(channel, introduction, from.ip().to_canonical()),
            Ask::Members if self.coordinates() => {
                let members = self.members();
                tell(channel, &Answer::Members(members))
            }
            Ask::Members => tell(channel, &self.elsewhere()),
            Ask::Forget { id } => {
                // Also in a copy of the list: a coordinator that leaves tells all others.
                let forgotten = lock(&self.roster).forget(&id);
                let place = forgotten.as_ref().and_then(place_of_member);
                let coordinated = place.is_some_and(|at| lock(&self.coordination).forget(at));
                if !coordinated && !self.coordinates() {
                    return tell(channel, &self.elsewhere());
                }
                if let Some(Member { introduction, .. }) = forgotten {
                    (self.agent.notice)(&format!("{} has left", introduction.name));
                }
                tell(channel, &Answer::Yes)
            }
            Ask::Prepare(job) => self.employ(channel, &job, from.ip().to_canonical()),
            Ask::Lead { run, world_size } => self.be_led(channel, run, world_size),
            Ask::Measure { bytes } => self.be_measured(channel, bytes),
            Ask::Examine => self.be_examined(channel, from.ip().to_canonical()),
            Ask::Holds(folder) => self.look_for(channel, &folder),
            Ask::GoesOn { run } => {
                let is_of = |of: &String, rank: usize| *of == run && rank > 0;
                let trains =
                    matches!(&*lock(&self.work), State::Training { run, rank, .. } if is_of(run, *rank));
                let (member, successor) =
                    (self.agent.introduction.name.clone(), self.agent.host.successor(&run));
                tell(channel, &Answer::GoesOn(GoesOn { member, trains, successor }))
            }
            Ask::Stand(_) | Ask::Report(_) | Ask::Start | Ask::Look | Ask::Detach => {
                refuse(channel, "this is asked for before there is something to do it with")
            }
        }
    }

    /// Keeps a member in the list while its connection holds.
    fn welcome(&self, channel: &mut Channel<'_>, who: Introduction, ip: IpAddr) -> Result<(), Error> {
        let Agent { introduction: own, notice, .. } = self.agent;
        if !self.coordinates() {
            return tell(channel, &self.elsewhere());
        }
        if who.id == own.id {
            return refuse(channel, "this is the coordinator itself, which is a member already");
        }
        let (id, name) = (who.id.clone(), who.name.clone());
        let differs = who.build != own.build;
        let visit = self.visits.fetch_add(1, Ordering::SeqCst);
        let joined = lock(&self.roster).join(who, ip, visit);
        if let Err(why) = joined {
            return refuse(channel, &why);
        }
        notice(&format!("{name} ({ip}) has joined"));
        if differs {
            notice(&format!(
                "{name} has another build of sparktune, which may compute different bits: it cannot train with this one"
            ));
        }
        let why = self.attend(channel, &id, visit);
        if !self.is_over() {
            let why = match &why {
                Error::NoAgent { why, .. } => why.clone(),
                error => error.to_string(),
            };
            // Nobody holds a lock while a line is written, which a terminal may stop.
            let lost = lock(&self.roster).lose(&id, visit, &why);
            if let Some(name) = lost {
                notice(&format!("{name} ({ip}) is gone: {}", escape(&why)));
            }
        }
        Ok(())
    }

    /// Lets a member of the list report until its connection ends. It is sent the list whenever a member has
    /// joined or left. Returns why the connection has ended.
    fn attend(&self, channel: &mut Channel<'_>, id: &str, visit: u64) -> Error {
        let mut told = Vec::new();
        loop {
            let members = self.to_copy();
            let answer = if !self.coordinates() {
                self.elsewhere()
            } else if members == told {
                Answer::Yes
            } else {
                told.clone_from(&members);
                Answer::Members(members)
            };
            if let Err(error) = tell(channel, &answer) {
                return error;
            }
            match hear_ask(channel) {
                Ok(Ask::Report(report)) => lock(&self.roster).report(id, visit, report),
                Ok(_) => return out_of_turn(channel),
                Err(error) => return error,
            }
        }
    }

    pub(super) fn report(&self) -> Report {
        Report { free_bytes: self.agent.host.free_bytes(), state: lock(&self.work).clone() }
    }

    fn members(&self) -> Vec<Member> {
        let introduction = self.agent.introduction.clone();
        let own = Member { introduction, ip: None, report: self.report(), gone: None };
        let mut members = vec![own];
        members.extend(lock(&self.roster).members());
        members
    }

    /// Returns the members without what changes from moment to moment.
    fn to_copy(&self) -> Vec<Member> {
        let mut members = self.members();
        for member in &mut members {
            member.report = Report { free_bytes: 0, state: State::Idle };
            member.gone = None;
        }
        members
    }

    /// Returns the answer of a member that does not coordinate: where the coordinator is, or `Busy`.
    fn elsewhere(&self) -> Answer {
        lock(&self.coordination).at().map_or(Answer::Busy, |at| Answer::Elsewhere { at })
    }

    /// Takes the only place for work. Returns what it was taken from: a rank that waits to come back makes
    /// way.
    fn occupy(&self, state: State) -> Result<State, String> {
        self.settle();
        let mut work = lock(&self.work);
        match &*work {
            State::Idle | State::Returning { .. } => Ok(std::mem::replace(&mut *work, state)),
            State::Preparing { run } | State::Training { run, .. } => Err(busy(run)),
        }
    }

    /// Prepares and starts a rank, and says how it stands as long as it is asked.
    fn employ(&self, channel: &mut Channel<'_>, job: &Job, first: IpAddr) -> Result<(), Error> {
        if job.build != self.agent.introduction.build {
            return refuse(
                channel,
                "it is another build of sparktune, which may compute different bits. Use the same program on all members",
            );
        }
        let mut before = match self.occupy(State::Preparing { run: job.run.clone() }) {
            Ok(before) => before,
            Err(why) => return refuse(channel, &why),
        };
        let prepared = self.prepare(channel, job);
        let started = prepared.and_then(|folders| self.start(channel, job, first, &folders, &mut before));
        if !matches!(started, Ok(Some(_))) {
            // A rank that was started frees the place when it has ended.
            let mut work = lock(&self.work);
            if matches!(&*work, State::Preparing { .. }) {
                *work = before;
            }
        }
        match started {
            Ok(Some(number)) => self.accompany(channel, number),
            Ok(None) => Ok(()),
            Err(error) => {
                if !matches!(error, Error::NoAgent { .. } | Error::Interrupted) {
                    let _ = refuse(channel, &error.to_string());
                }
                Err(error)
            }
        }
    }

    /// Makes sure that all files are here. Returns their places.
    fn prepare(&self, channel: &mut Channel<'_>, job: &Job) -> Result<Vec<PathBuf>, Error> {
        let Agent { host, notice, .. } = self.agent;
        let (mut places, mut fetched) = (Vec::new(), 0);
        for (index, folder) in job.folders.iter().enumerate() {
            if let Some(place) = self.same(channel, folder, &host.candidates(folder))? {
                places.push(place);
                continue;
            }
            let at = || place_of(channel);
            let cache = host.cache().map_err(|why| Error::Agent { at: at(), why })?;
            let (place, bytes) = fetch(channel, index, folder, &cache)?;
            fetched += bytes;
            if bytes > 0 {
                notice(&format!("{} fetched into {}", sparktune_base::units::bytes(bytes), place.display()));
            }
            places.push(place);
        }
        tell(channel, &Answer::Ready { fetched })?;
        Ok(places)
    }

    /// Returns the place that has the same files already.
    fn same(
        &self,
        channel: &mut Channel<'_>,
        folder: &Folder,
        candidates: &[PathBuf],
    ) -> Result<Option<PathBuf>, Error> {
        let mut tick = beat(channel);
        for place in candidates {
            if has_the_same(place, folder, &mut tick)? {
                return Ok(Some(place.clone()));
            }
        }
        Ok(None)
    }

    /// Waits for the request to start the rank. Returns the rank's number, or `None` if it is not to start. A
    /// rank that waited to come back `before` makes way now.
    fn start(
        &self,
        channel: &mut Channel<'_>,
        job: &Job,
        first: IpAddr,
        folders: &[PathBuf],
        before: &mut State,
    ) -> Result<Option<u64>, Error> {
        loop {
            match hear(channel)? {
                Ask::Look => tell(channel, &Answer::Busy)?,
                Ask::Start => break,
                _ => return refuse(channel, "the rank has not been started").map(|()| None),
            }
        }
        let host = self.agent.host;
        if let State::Returning { run, .. } = &*before {
            if !self.call_off_return() {
                return refuse(channel, &busy(run)).map(|()| None);
            }
            *before = State::Idle;
        }
        let member = self.agent.introduction.id.clone();
        let launch = Launch { member, job: job.clone(), first, folders: folders.to_vec(), restarts: 0 };
        let number = match host.start(&launch) {
            Ok(number) => number,
            Err(why) => return refuse(channel, &why).map(|()| None),
        };
        let Job { run, rank, world_size, .. } = job;
        let (run, rank, world_size) = (run.clone(), *rank, *world_size);
        (self.agent.notice)(&format!("rank {rank} of {world_size} of {run} starts, for {first}"));
        *lock(&self.rank) = Rank::started(number);
        *lock(&self.work) = State::Training { run, rank, world_size };
        // Nobody would look after a rank whose start the leader did not hear of.
        tell(channel, &Answer::Yes).inspect_err(|_| host.stop(number))?;
        Ok(Some(number))
    }

    /// Says how the rank with this number stands as long as it is asked.
    fn accompany(&self, channel: &mut Channel<'_>, number: u64) -> Result<(), Error> {
        let host = self.agent.host;
        let outcome = loop {
            match hear_ask(channel) {
                Ok(Ask::Look) => {
                    let state = host.look(number);
                    let is_over = matches!(state, RankState::Ended { .. });
                    if let Err(error) = tell(channel, &Answer::Rank(state)) {
                        break Err(error);
                    }
                    if is_over {
                        break Ok(());
                    }
                }
                Ok(_) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        // A rank that has met the others follows rank 0, whatever becomes of who started it. One that still
        // waits would wait in vain.
        if outcome.is_err() && host.look(number) == RankState::Waiting {
            host.stop(number);
        }
        self.settle();
        outcome
    }

    /// Notes that this machine leads a run, while the program that started the run holds the connection, and
    /// then as long as the trainer lives: that program may end before the trainer, or hang for a while.
    fn be_led(&self, channel: &mut Channel<'_>, run: String, world_size: usize) -> Result<(), Error> {
        match self.occupy(State::Training { run: run.clone(), rank: 0, world_size }) {
            Ok(State::Returning { run: of, rank, world_size }) if !self.call_off_return() => {
                let why = busy(&of);
                *lock(&self.work) = State::Training { run: of, rank, world_size };
                return refuse(channel, &why);
            }
            Ok(_) => {}
            Err(why) => return refuse(channel, &why),
        }
        let led = tell(channel, &Answer::Yes).and_then(|()| {
            loop {
                match hear_ask(channel)? {
                    Ask::Look => tell(channel, &Answer::Yes)?,
                    _ => return Ok(()),
                }
            }
        });
        self.await_trainer(&run);
        led
    }

    /// Frees the place for work when no trainer leads the run any more.
    fn await_trainer(&self, run: &str) {
        while self.agent.host.leads(run) && !self.is_over() {
            std::thread::sleep(BEAT);
        }
        *lock(&self.work) = State::Idle;
    }

    /// Says what this machine has found out about itself, and by which link it reaches the machine that asks.
    fn be_examined(&self, channel: &mut Channel<'_>, from: IpAddr) -> Result<(), Error> {
        let host = self.agent.host;
        let (lines, link) = (host.examine(), host.link_towards(from));
        tell(channel, &Answer::Examined(Examination { lines, link, time_us: now_us() }.shortened()))
    }

    /// Says whether the files of a folder are here, where a run would find them.
    fn look_for(&self, channel: &mut Channel<'_>, folder: &Folder) -> Result<(), Error> {
        let host = self.agent.host;
        let mut places = host.candidates(folder);
        places.extend(host.cache().map(|cache| place_in(&cache, folder)));
        let is_there = self.same(channel, folder, &places)?.is_some();
        tell(channel, &Answer::Holds(is_there))
    }

    fn be_measured(&self, channel: &mut Channel<'_>, bytes: u64) -> Result<(), Error> {
        tell(channel, &Answer::Yes)?;
        let mut left = bytes.min(MOST_MEASURED);
        while left > 0 {
            let frame = channel.receive(1 << 20).map_err(|error| lost(channel, &error))?;
            let count = frame.payload.len() as u64;
            if frame.codes != BYTES || count == 0 || count > left {
                return Err(out_of_turn(channel));
            }
            left -= count;
            channel.deal_with(&frame).map_err(|error| lost(channel, &error))?;
        }
        tell(channel, &Answer::Yes)
    }
}

/// Receives what is asked. A caller whose question this program does not understand is told so: a connection
/// that is cut without a word looks like a firewall, and is dialled again.
fn hear_ask(channel: &mut Channel<'_>) -> Result<Ask, Error> {
    let heard = hear(channel);
    if let Err(Error::Agent { why, .. }) = &heard {
        let _ = refuse(channel, &format!("a message of this machine was refused there: {why}"));
    }
    heard
}

fn busy(run: &str) -> String {
    format!("it is busy with {run}. Wait for its end, or stop it where it was started")
}

fn refuse(channel: &mut Channel<'_>, why: &str) -> Result<(), Error> {
    tell(channel, &Answer::Refused { why: sentence(why) })
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
