//! How the ranks find each other and learn who is who.
//!
//! Every rank listens. The others connect to rank 0, whose address the launcher has told them, and say which
//! rank they are and where they listen. When all have come, rank 0 tells each of them all addresses, and
//! every rank connects to every other. Those that meet again begin when all of them say that they have
//! connected: if one is lost meanwhile, none of them begins, and they meet once more. Rank 0 counts these
//! attempts, so that no connection of one that has failed belongs to the next. Each connection is a
//! channel of `sparktune-ndp`: TLS 1.3 with a raw public key that follows from the job's token, and a proof
//! of the token by who connects. So who does not know the token can neither be taken for a rank nor become
//! one.

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use sparktune_base::escape::escape;
use sparktune_ndp::stream::{Channel, Gate};
use sparktune_ndp::{Address, Error as NdpError, Patience, Strangers};

use crate::environment::Placement;
use crate::error::Error;
use crate::introduction::{
    Answer, Caller, Hello, Member, Purpose, Report, Stage, VERSION, Welcome, admitted,
};
use crate::link::why;
use crate::listening::{guarded, listen, resolve};
use crate::swarm::door::Door;
use crate::token::JobToken;
use crate::waiting::{AGAIN, Ends, LOOK, STOPPED, Wait};

/// The most connections whose other side is not known yet.
const MOST_STRANGERS: usize = 64;
/// The most places at which rank 0 is looked for.
const MOST_PLACES: usize = 64;
/// The time in which ranks that meet again connect to each other when all have come.
pub(crate) const CONNECTING: Duration = Duration::from_secs(15);

/// How long those are waited for that were lost when the ranks tried to meet again.
const AT_ONCE: Duration = Duration::from_secs(2);
/// How long a rank 0 that is stopped while the ranks meet again tells it those that come.
/// In unit tests, it is longer, because the machine runs many of them at a time.
const STOPPING: Duration = Duration::from_secs(if cfg!(test) { 15 } else { 5 });

/// How long the others are waited for.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The time until all ranks must have met.
    pub meeting: Duration,
    /// The longest silence of a rank, after which it is given up.
    pub silence: Duration,
    /// The time in which ranks that know each other meet again.
    pub again: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let again = Duration::from_secs(60);
        Self { meeting: Duration::from_secs(600), silence: Duration::from_secs(30), again }
    }
}

/// The channels of a rank to and from each other rank.
pub(crate) struct Met {
    pub(crate) outgoing: BTreeMap<usize, Channel<'static>>,
    /// With the place of the other rank, for messages.
    pub(crate) incoming: BTreeMap<usize, (String, Channel<'static>)>,
    /// For heartbeats: to each rank with a lower number, and from each with a higher one.
    pub(crate) asked: BTreeMap<usize, Channel<'static>>,
    pub(crate) answered: BTreeMap<usize, Channel<'static>>,
    /// Where all ranks listen, as this one reaches them, and what their launcher calls them.
    pub(crate) members: Vec<Member>,
    /// The numbers of the ranks that have come, ascending: all, unless they meet again.
    pub(crate) present: Vec<usize>,
}

/// Why ranks have not met.
#[derive(Debug)]
pub(crate) struct Unmet {
    /// With the numbers that their launcher gave to the ranks.
    pub(crate) error: Error,
    /// Whether the ranks may meet once more, if they meet again.
    pub(crate) is_passing: bool,
    /// Who was lost on the way or did not come, by the numbers of this meeting.
    pub(crate) missed: Vec<usize>,
    /// Whether this rank has said that it is ready to begin, so that the others may have begun with it.
    pub(crate) has_promised: bool,
}

impl From<Error> for Unmet {
    fn from(error: Error) -> Self {
        Self { is_passing: error.is_of_meeting(), error, missed: Vec::new(), has_promised: false }
    }
}

/// What ranks know of each other before they meet.
#[derive(Clone, Default)]
pub(crate) struct Known {
    /// The number of the meeting.
    pub(crate) meeting: u64,
    /// How often this rank has come to it, with this time.
    pub(crate) attempt: u64,
    /// The number that the launcher gave to this rank.
    pub(crate) launched_as: usize,
    /// Those of all ranks, if they meet again.
    pub(crate) all_launched_as: Vec<usize>,
    /// How long rank 0 of ranks that meet again waits for the others. Who has not come then is left out.
    pub(crate) absent_after: Option<Duration>,
    /// Those that were lost when the ranks tried to meet again, for which rank 0 does not wait long.
    pub(crate) lost: Vec<usize>,
    /// Without whom rank 0 does not begin.
    pub(crate) quorum: Quorum,
    /// Other places where somebody may know the ranks, if rank 0 is not where the launcher said.
    pub(crate) also: Vec<(String, u16)>,
}

/// How many of those that worked together have to come when the ranks meet again. They have the lowest
/// numbers, and the rank that leads the meeting is one of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Quorum {
    pub(crate) least: usize,
    pub(crate) of: usize,
}

/// What is the same for all connections of a rank.
struct Job<'a> {
    placement: &'a Placement,
    token: &'a JobToken,
    build: &'a str,
    limits: Limits,
    ends: &'a Arc<Ends>,
    known: &'a Known,
    deadline: Instant,
    /// Where this rank listens.
    port: u16,
    /// What rank 0 has said, or says as such, and when.
    welcome: OnceCell<(Welcome, Instant)>,
    /// Whether this rank has told rank 0 that it is ready to begin.
    has_promised: Cell<bool>,
}

/// How long a connection is tried.
#[derive(Clone, Copy)]
struct Until {
    deadline: Instant,
    /// Whether the other side already listens, so that one that refuses is gone.
    listens: bool,
}

/// Waits until all ranks have met.
///
/// # Errors
/// Some do not come, or cannot be reached, or are no ranks of this job.
pub(crate) fn meet(
    placement: &Placement,
    token: Option<&JobToken>,
    build: &str,
    limits: Limits,
    known: &Known,
    ends: &Arc<Ends>,
) -> Result<Met, Unmet> {
    let deadline = Instant::now() + limits.meeting;
    if known.meeting > 0 && placement.rank == 0 {
        ends.tell_first();
    }
    let addresses = resolve(placement, deadline, ends)?;
    let (interfaces, token) = &guarded(placement, &addresses, token)?;
    let (listener, port) = listen(placement, interfaces)?;
    let (welcome, has_promised) = (OnceCell::new(), Cell::new(false));
    let job = Job { placement, token, build, limits, ends, known, deadline, port, welcome, has_promised };
    let (send_caller, callers) = channel();
    let done = Arc::new(AtomicBool::new(false));
    let accepting = job.accept(listener, send_caller, Arc::clone(&done), Stage::Meeting);
    let met = accepting.and_then(|accepting| {
        let met = job.meet(&callers);
        done.store(true, Ordering::SeqCst);
        // So that the port is free.
        let _ = accepting.join();
        met
    });
    if met.is_ok() {
        ends.meet();
    } else {
        ends.end();
    }
    met.map_err(|error| job.unmet(error))
}

/// Opens rank 0's door for ranks that come while the others work, who are `members`.
///
/// # Errors
/// Somebody else has taken the port, or the system starts no thread.
pub(crate) fn open_door(
    placement: &Placement,
    token: Option<&JobToken>,
    build: &str,
    limits: Limits,
    members: &[Member],
    ends: &Arc<Ends>,
) -> Result<Door, Error> {
    let addresses = (placement.host.as_str(), placement.port).to_socket_addrs();
    let addresses: Vec<_> = addresses.into_iter().flatten().collect();
    let (interfaces, token) = &guarded(placement, &addresses, token)?;
    let (listener, port) = listen(placement, interfaces)?;
    let known = &Known::default();
    let (deadline, welcome, has_promised) = (Instant::now(), OnceCell::new(), Cell::new(false));
    let job = Job { placement, token, build, limits, ends, known, deadline, port, welcome, has_promised };
    Door::open(listener, members.to_vec(), |listener, callers, done| {
        job.accept(listener, callers, done, Stage::AtWork)
    })
}

impl Job<'_> {
    fn patience(&self) -> Patience {
        // A rank says that it lives, and nothing more, while it computes.
        Patience { silence: self.limits.silence, period: Duration::MAX, ..Patience::default() }
    }

    fn cancelled(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        let ends = Arc::clone(self.ends);
        Arc::new(move || ends.is_over())
    }

    fn hello(&self, purpose: Purpose) -> Hello {
        let Placement { rank, world_size, .. } = *self.placement;
        let Known { launched_as, meeting, attempt, .. } = *self.known;
        let attempt = match self.welcome() {
            Some(welcome) => welcome.attempt,
            None if rank == 0 => attempt,
            None => 0,
        };
        let (build, port) = (self.build.to_owned(), self.port);
        Hello { version: VERSION, rank, world_size, launched_as, meeting, attempt, build, port, purpose }
    }

    fn welcome(&self) -> Option<&Welcome> {
        self.welcome.get().map(|(welcome, _)| welcome)
    }

    /// Returns what people call a rank of this meeting.
    fn named(&self, rank: usize) -> usize {
        if rank == self.placement.rank {
            return self.known.launched_as;
        }
        let said = self.welcome().and_then(|welcome| welcome.members.get(rank));
        let said = said.map(|member| member.launched_as);
        said.or_else(|| self.known.all_launched_as.get(rank).copied()).unwrap_or(rank)
    }

    /// Says who is missed after an error, and calls the ranks in it as people do.
    fn unmet(&self, error: Error) -> Unmet {
        let has_come = |rank: &usize| self.welcome().is_none_or(|welcome| welcome.present.contains(rank));
        let mut missed: Vec<usize> = (0..self.placement.world_size).filter(|rank| !has_come(rank)).collect();
        match error {
            Error::Lost { rank: lost @ 1.., .. } | Error::Refused { by: lost @ 1.., .. } => missed.push(lost),
            _ => {}
        }
        let (is_passing, has_promised) = (error.is_of_meeting(), self.has_promised.get());
        Unmet { error: error.renumbered(|rank| self.named(rank)), is_passing, missed, has_promised }
    }

    /// Accepts connections in the background, until `done` is set. Each has a thread until it is known who it
    /// is, because a stranger may take its time.
    fn accept(
        &self,
        listener: TcpListener,
        callers: Sender<Caller>,
        done: Arc<AtomicBool>,
        stage: Stage,
    ) -> Result<JoinHandle<()>, Error> {
        let gate = Arc::new(Gate::new(&self.token.key(), &self.token.proof()));
        let (patience, cancelled, own) = (self.patience(), self.cancelled(), self.hello(Purpose::Work));
        let strangers = Strangers::new(MOST_STRANGERS);
        let ends = Arc::clone(self.ends);
        let serve = move || {
            while !done.load(Ordering::SeqCst) && !cancelled() {
                let (stream, from) = match listener.accept() {
                    Ok(accepted) => accepted,
                    Err(_) => {
                        std::thread::sleep(LOOK);
                        continue;
                    }
                };
                let Some(stranger) = strangers.admit(&stream) else { continue };
                let (gate, callers, own) = (Arc::clone(&gate), callers.clone(), own.clone());
                let (cancelled, ends) = (Arc::clone(&cancelled), Arc::clone(&ends));
                let admit = move || {
                    // Who does not know the token is sent away, and nobody waits for it.
                    let caller = admitted(&gate, stream, patience, cancelled, &own, from.ip(), stage);
                    drop(stranger);
                    match caller {
                        // Nobody may wait for callers any more.
                        Ok(caller) => drop(callers.send(caller)),
                        Err(why) => {
                            if let Some(why) = why.in_words() {
                                ends.tell_refusal(
                                    &format!("a connection from {}", from.ip().to_canonical()),
                                    &why,
                                );
                            }
                        }
                    }
                };
                let _ = Builder::new().name("stranger".into()).spawn(admit);
            }
        };
        Builder::new().name("rendezvous".into()).spawn(serve).map_err(Error::Thread)
    }

    fn meet(&self, callers: &Receiver<Caller>) -> Result<Met, Error> {
        let Placement { rank: own, ref host, port, .. } = *self.placement;
        let (outgoing, incoming) = (BTreeMap::new(), BTreeMap::new());
        let (asked, answered) = (BTreeMap::new(), BTreeMap::new());
        let mut met = Met { outgoing, incoming, asked, answered, members: Vec::new(), present: Vec::new() };
        let until = Until { deadline: self.deadline, listens: false };
        if own == 0 {
            self.gather(callers, &mut met)?;
        } else {
            let (channel, mut welcome) = self.connect(0, host, port, Purpose::Work, until)?;
            met.outgoing.insert(0, channel);
            // Rank 0 may have another name for itself.
            if let Some(first) = welcome.members.first_mut() {
                (first.host, first.port) = (host.clone(), port);
            }
            self.welcome.get_or_init(|| (welcome, Instant::now()));
        }
        let welcome = self.welcome().expect("it was said or heard").clone();
        let until = if self.meets_again() {
            Until { deadline: self.deadline.min(Instant::now() + CONNECTING), listens: true }
        } else {
            until
        };
        let connected = self.connect_all(callers, &mut met, &welcome, until);
        if self.meets_again() {
            self.begin_together(connected, &mut met)?;
        } else {
            connected?;
        }
        (met.members, met.present) = (welcome.members, welcome.present);
        Ok(met)
    }

    /// Connects to all that have come, and waits for their connections.
    fn connect_all(
        &self,
        callers: &Receiver<Caller>,
        met: &mut Met,
        welcome: &Welcome,
        until: Until,
    ) -> Result<(), Error> {
        let own = self.placement.rank;
        let Welcome { members, present, attempt } = welcome;
        let come = |rank: &usize| present.contains(rank);
        for (rank, member) in members.iter().enumerate().filter(|(rank, _)| come(rank)) {
            if rank != own && rank != 0 {
                let connected = self.connect(rank, &member.host, member.port, Purpose::Work, until)?;
                met.outgoing.insert(rank, connected.0);
            }
        }
        for (rank, member) in members.iter().enumerate().take(own).filter(|(rank, _)| come(rank)) {
            let connected = self.connect(rank, &member.host, member.port, Purpose::Heartbeat, until)?;
            met.asked.insert(rank, connected.0);
        }
        let mut wait = Wait::new();
        while let Some(missing) = self.missing(met, present, Purpose::Heartbeat) {
            wait.tell(self.ends, || {
                let own = self.known.launched_as;
                format!("rank {own} waits for these ranks to connect to it: {missing}")
            });
            let caller = match self.next_caller(callers, &missing, until.deadline) {
                Err(Error::Missing { at, .. }) if self.meets_again() => {
                    let first = self.missing_ranks(met, present, Purpose::Heartbeat).next();
                    let why = "it did not connect to this rank".to_owned();
                    return Err(Error::Lost { rank: first.unwrap_or(own), at, why });
                }
                caller => caller?,
            };
            let Some(mut caller) = caller else { continue };
            let rank = caller.hello.rank;
            let is_of_this = caller.hello.attempt == *attempt || own == 0;
            if !come(&rank) || !is_of_this {
                continue;
            }
            match caller.hello.purpose {
                Purpose::Work if own == 0 && self.meets_again() => {
                    // All had come: it has lost another one and begins anew, as its report says.
                    let (at, why) = (caller.ip.to_string(), "it comes to the meeting once more".to_owned());
                    return Err(Error::Lost { rank, at, why });
                }
                Purpose::Work if own == 0 && members[rank] != self.member(&caller) => {
                    self.refuse_second(caller)
                }
                Purpose::Work => {
                    // Rank 0 answers a rank here that has lost its connection when all were welcomed.
                    if own > 0 || caller.channel.tell(&Answer::Welcome(welcome.clone())).is_ok() {
                        met.incoming.insert(rank, (caller.ip.to_string(), caller.channel));
                    }
                }
                Purpose::Heartbeat => {
                    // Rank 0 answers here, the others at once.
                    if own > 0 || caller.channel.tell(&Answer::Welcome(welcome.clone())).is_ok() {
                        met.answered.insert(rank, caller.channel);
                    }
                }
            }
        }
        Ok(())
    }

    fn meets_again(&self) -> bool {
        self.known.meeting > 0
    }

    /// Waits until all have connected to each other. After an error of one of them, none begins.
    fn begin_together(&self, connected: Result<(), Error>, met: &mut Met) -> Result<(), Error> {
        let lost = match &connected {
            Ok(()) => None,
            Err(Error::Lost { rank, .. }) => Some(*rank),
            Err(Error::Refused { by, .. }) => Some(*by),
            Err(_) => return connected,
        };
        if let Some(channel) = met.outgoing.get_mut(&0) {
            self.has_promised.set(lost.is_none());
            let told = channel.tell(&lost.map_or(Report::Connected, Report::Lost));
            connected?;
            let at = escape(&self.placement.host).into_owned();
            return match told.and_then(|()| channel.hear()) {
                Ok(Answer::Begin) => Ok(()),
                Ok(_) => {
                    let what = "it says something else than to begin".to_owned();
                    Err(Error::OutOfStep { rank: 0, at, what })
                }
                Err(error) => Err(Error::Lost { rank: 0, at, why: why(&error) }),
            };
        }
        let others: Vec<usize> = met.incoming.keys().copied().collect();
        // Each is heard once: one that hangs is waited for until it counts as silent.
        let mut reports = BTreeMap::<usize, Option<Report>>::new();
        let mut report = |rank: usize| {
            let channel = met.incoming.get_mut(&rank).map(|(_, channel)| channel);
            *reports.entry(rank).or_insert_with(|| channel.and_then(|channel| channel.hear().ok()))
        };
        let is_missed = |rank: &usize| report(*rank) != Some(Report::Connected);
        let mut lost = lost.filter(|rank| *rank > 0).or_else(|| others.iter().copied().find(is_missed));
        // One that gives up closes its connections, so that others lose it. The report that it sent before
        // names the one that it has lost itself.
        let mut followed = Vec::new();
        while let Some(rank) = lost.filter(|rank| !followed.contains(rank)) {
            followed.push(rank);
            let Some(Report::Lost(other @ 1..)) = report(rank) else { break };
            lost = Some(other);
        }
        if let Some(rank) = lost {
            let at = met.incoming.get(&rank).map_or_else(String::new, |(at, _)| at.clone());
            let why = "it was lost while the ranks met again".to_owned();
            return Err(Error::Lost { rank, at, why });
        }
        // Reports may be as old as this rank slept. Who sent one waits at least as long as this, from when it
        // was welcomed on, which was later than here.
        let is_late = self.welcome.get().is_some_and(|(_, since)| since.elapsed() >= self.limits.silence);
        if is_late && !others.is_empty() {
            let at = escape(&self.placement.host).into_owned();
            let why = "it was stopped for so long that the others have given it up".to_owned();
            return Err(Error::Lost { rank: 0, at, why });
        }
        for (_, channel) in met.incoming.values_mut() {
            // One that is gone now is missed at work.
            let _ = channel.tell(&Answer::Begin);
        }
        Ok(())
    }

    /// Waits for all others at rank 0, and tells them where all ranks listen, and who has come.
    fn gather(&self, callers: &Receiver<Caller>, met: &mut Met) -> Result<(), Error> {
        let Placement { world_size, ref host, .. } = *self.placement;
        let here = Member { host: host.clone(), port: self.port, launched_as: self.known.launched_as };
        let mut members = vec![here; world_size];
        // Who does not come has its number all the same.
        for (member, launched_as) in members.iter_mut().zip(&self.known.all_launched_as) {
            member.launched_as = *launched_as;
        }
        let mut told = Instant::now();
        let mut wait = Wait::new();
        let all: Vec<usize> = (0..world_size).collect();
        let is_lost = |rank: &usize| self.known.lost.contains(rank);
        let others: Vec<usize> = all.iter().copied().filter(|rank| !is_lost(rank)).collect();
        let mut began = Instant::now();
        let mut looked = began;
        // Time is left to connect to each other.
        let longest = self.limits.meeting.saturating_sub(CONNECTING);
        let absent_after = self.known.absent_after.map(|limit| limit.min(longest));
        loop {
            if self.meets_again() && self.ends.is_interrupted() {
                return Err(self.stopped(callers, met));
            }
            // While this process was stopped, it could hear nobody.
            let since = looked.elapsed();
            looked += since;
            if since > STOPPED {
                began += since;
            }
            // One that was lost wrongly comes at once.
            let awaited = if began.elapsed() < AT_ONCE { &all } else { &others };
            let Some(missing) = self.missing(met, awaited, Purpose::Work) else { break };
            let is_late = absent_after.is_some_and(|limit| began.elapsed() >= limit);
            if is_late && self.enough(met).is_ok() {
                break;
            }
            if told.elapsed() >= AGAIN {
                told = Instant::now();
                // One that is gone may come back.
                met.incoming
                    .retain(|_, (_, channel)| channel.tell(&Answer::Wait { others: Vec::new() }).is_ok());
            }
            wait.tell(self.ends, || {
                format!(
                    "rank {} waits for these ranks: {missing}. They must reach it at {}, port {}, and have the same token",
                    self.known.launched_as,
                    escape(host),
                    self.port
                )
            });
            let caller = self.next_caller(callers, &missing, self.deadline);
            if matches!(caller, Err(Error::Missing { .. })) {
                self.enough(met)?;
            }
            let Some(caller) = caller? else { continue };
            let rank = caller.hello.rank;
            if caller.hello.purpose != Purpose::Work {
                // Nobody was welcomed yet.
                continue;
            }
            let member = self.member(&caller);
            if met.incoming.contains_key(&rank) && members[rank] != member {
                self.refuse_second(caller);
                continue;
            }
            // A rank that comes again has lost its connection, which this side may not have noticed yet.
            members[rank] = member;
            met.incoming.insert(rank, (caller.ip.to_string(), caller.channel));
        }
        if self.known.absent_after.is_some() {
            // One that is gone since is not waited for.
            let wait = Answer::Wait { others: Vec::new() };
            met.incoming.retain(|_, (_, channel)| channel.tell(&wait).is_ok());
        }
        self.enough(met)?;
        let mut present: Vec<usize> = met.incoming.keys().copied().chain([0]).collect();
        present.sort_unstable();
        let attempt = self.known.attempt;
        let (said, _) = self.welcome.get_or_init(|| (Welcome { members, present, attempt }, Instant::now()));
        for (rank, (at, channel)) in &mut met.incoming {
            let welcomed = channel.tell(&Answer::Welcome(said.clone()));
            // Ranks that meet again start over without it; at the first meeting, it comes again.
            if self.meets_again() {
                welcomed.map_err(|error| Error::Lost { rank: *rank, at: at.clone(), why: why(&error) })?;
            }
        }
        Ok(())
    }

    /// Returns who has come, as the others reach it. A process has one place and one number.
    fn member(&self, caller: &Caller) -> Member {
        let Hello { port, launched_as, .. } = caller.hello;
        // Rank 0's machine has another name for others than for itself.
        let host = if caller.ip.is_loopback() { self.placement.host.clone() } else { caller.ip.to_string() };
        Member { host, port, launched_as }
    }

    /// Refuses a process that has the number of another one.
    fn refuse_second(&self, mut caller: Caller) {
        let why =
            format!("there is already a rank {}. Give each rank a number of its own", caller.hello.rank);
        self.ends.tell_refusal(&format!("a rank at {}", caller.ip), &why);
        let _ = caller.channel.tell(&Answer::Refused { why });
    }

    /// Tells those that have come, and those that come now, that this rank was stopped: otherwise they would
    /// meet without it. Returns the error that says so.
    fn stopped(&self, callers: &Receiver<Caller>, met: &mut Met) -> Error {
        let mut told = BTreeSet::new();
        let mut tell = |rank: usize, channel: &mut Channel<'static>| {
            told.extend(channel.tell(&Answer::Stopped).is_ok().then_some(rank));
            (1..self.known.quorum.of).all(|rank| told.contains(&rank) || self.known.lost.contains(&rank))
        };
        let mut all_know = self.known.quorum.of <= 1;
        for (rank, (_, channel)) in &mut met.incoming {
            all_know |= tell(*rank, channel);
        }
        let until = Instant::now() + STOPPING;
        while !all_know && Instant::now() < until {
            match callers.recv_timeout(LOOK) {
                Ok(mut caller) => all_know |= tell(caller.hello.rank, &mut caller.channel),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if all_know {
            return Error::Interrupted;
        }
        let at = escape(&self.placement.host).into_owned();
        let reason = "it was stopped while the ranks met again, and not all others know it";
        Error::Left { rank: 0, at, reason: Some(reason.to_owned()) }
    }

    /// Requires that enough of those that worked together have come, so that the others cannot begin without
    /// this one.
    fn enough(&self, met: &Met) -> Result<(), Error> {
        let Quorum { least, of } = self.known.quorum;
        let left = met.incoming.keys().filter(|rank| **rank < of).count() + 1;
        let why = "the others did not come when the ranks met again".to_owned();
        if left < least { Err(Error::TooFew { left, of, why }) } else { Ok(()) }
    }

    /// Returns which of these ranks have not connected to this one for all that is due, in words.
    fn missing(&self, met: &Met, of: &[usize], due: Purpose) -> Option<String> {
        let missing = self.missing_ranks(met, of, due);
        let missing: Vec<String> = missing.map(|rank| self.named(rank).to_string()).collect();
        (!missing.is_empty()).then(|| missing.join(", "))
    }

    fn missing_ranks(&self, met: &Met, of: &[usize], due: Purpose) -> impl Iterator<Item = usize> {
        let own = self.placement.rank;
        let is_missing = move |rank: &usize| {
            let asks_later = due == Purpose::Heartbeat && *rank > own;
            !met.incoming.contains_key(rank) || (asks_later && !met.answered.contains_key(rank))
        };
        of.iter().copied().filter(move |rank| *rank != own && is_missing(rank))
    }

    /// Returns a rank that has connected, or `None` after a moment.
    fn next_caller(
        &self,
        callers: &Receiver<Caller>,
        missing: &str,
        deadline: Instant,
    ) -> Result<Option<Caller>, Error> {
        if self.ends.is_over() {
            return Err(Error::Interrupted);
        }
        if Instant::now() >= deadline {
            return Err(Error::Missing {
                waited_s: self.waited_s(),
                missing: missing.to_owned(),
                at: format!("{}, port {}", escape(&self.placement.host), self.port),
            });
        }
        match callers.recv_timeout(LOOK) {
            Ok(caller) => Ok(Some(caller)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::Interrupted),
        }
    }

    /// Returns for how long this rank has waited for the others.
    fn waited_s(&self) -> u64 {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.limits.meeting.saturating_sub(left).as_secs()
    }

    /// Connects to a rank, which may not listen yet. Also returns what rank 0 says of all.
    fn connect(
        &self,
        to: usize,
        host: &str,
        port: u16,
        purpose: Purpose,
        until: Until,
    ) -> Result<(Channel<'static>, Welcome), Error> {
        let first = (host.to_owned(), port);
        let also = self.known.also.iter().filter(|place| to == 0 && **place != first).cloned();
        let mut places: Vec<(String, u16)> = std::iter::once(first.clone()).chain(also).collect();
        let mut wait = Wait::new();
        let mut tried = 0;
        let mut nobody_listens = true;
        loop {
            let (host, port) = places[tried % places.len()].clone();
            tried += 1;
            let at = format!("{}, port {port}", escape(&host));
            let address = Address {
                host: host.clone(),
                port,
                name: format!("rank-{to}"),
                key: self.token.key().public(),
                hash: None,
            };
            let connected =
                Channel::connect(&address, &self.token.proof(), self.patience(), self.cancelled());
            let answered = connected.and_then(|mut channel| {
                channel.tell(&self.hello(purpose))?;
                loop {
                    match channel.hear()? {
                        Answer::Wait { others } => {
                            let others = others.into_iter().map(|member| (member.host, member.port));
                            let new: Vec<_> = others.filter(|place| !places.contains(place)).collect();
                            places.extend(new.into_iter().filter(|_| to == 0));
                            places.truncate(MOST_PLACES);
                        }
                        answer => return Ok((channel, answer)),
                    }
                }
            });
            let error = match answered {
                Ok((channel, Answer::Welcome(welcome))) if self.fits(to, &welcome) => {
                    return Ok((channel, welcome));
                }
                Ok((_, Answer::Again { rank, launched_as, meeting }))
                    if rank > 0 && rank < launched_as.len() =>
                {
                    return Err(Error::Renumbered { rank, launched_as, meeting, host, port });
                }
                Ok((_, Answer::Over)) => {
                    let why = "the attempt to meet is over".to_owned();
                    return Err(Error::Lost { rank: to, at, why });
                }
                Ok((_, Answer::Stopped)) => {
                    let reason = "it was stopped while the ranks met again".to_owned();
                    return Err(Error::Left { rank: to, at, reason: Some(reason) });
                }
                Ok((_, Answer::Refused { why })) => {
                    return Err(Error::Refused { by: to, why: escape(&why).into_owned() });
                }
                Ok(_) => {
                    return Err(Error::Refused { by: to, why: "it knows other ranks than this one".into() });
                }
                // At another place than the launcher's, or when ranks meet again, anybody may listen by now.
                Err(error) if is_of_stranger(&error) && places.len() == 1 && !self.meets_again() => {
                    return Err(Error::OtherToken { at });
                }
                Err(error) => error,
            };
            let is_stranger = is_of_stranger(&error);
            nobody_listens &= error.is_refused_connection();
            let why = if is_stranger {
                "somebody with another token listens there".to_owned()
            } else {
                why(&error)
            };
            wait.tell(self.ends, || {
                let [own, to] = [self.known.launched_as, self.named(to)];
                format!("rank {own} cannot reach rank {to} at {at} yet: {why}. It tries again")
            });
            if self.ends.is_over() {
                return Err(Error::Interrupted);
            }
            // On a busy machine, too, it asks in every place before it says that nobody is left.
            let is_late = Instant::now() >= until.deadline && (!nobody_listens || tried >= places.len());
            if until.listens && (is_late || is_stranger || error.is_refused_connection()) {
                return Err(Error::Lost { rank: to, at, why });
            }
            // Ranks that train or meet always listen in one of these places, so nobody is left in them.
            if is_late && nobody_listens && to == 0 && !self.known.also.is_empty() {
                let places = places.iter().map(|(host, port)| format!("{}, port {port}", escape(host)));
                let places = places.collect::<Vec<_>>().join("; ");
                return Err(Error::NobodyLeft { waited_s: self.waited_s(), places });
            }
            if is_late {
                let (rank, waited_s) = (self.placement.rank, self.waited_s());
                return Err(Error::Unreachable { rank, to, at, waited_s, why });
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn fits(&self, to: usize, welcome: &Welcome) -> bool {
        let Welcome { members, present, .. } = welcome;
        let Placement { rank, world_size, .. } = *self.placement;
        let is_ascending = present.windows(2).all(|two| two[0] < two[1]);
        let has_both = present.first() == Some(&0) && present.contains(&rank);
        let are_ranks = is_ascending && has_both && present.iter().all(|rank| *rank < world_size);
        to != 0 || (members.len() == world_size && are_ranks)
    }
}

/// Returns whether who listens has another token.
fn is_of_stranger(error: &NdpError) -> bool {
    matches!(error, NdpError::WrongKey { .. } | NdpError::Refused { .. })
}

#[cfg(test)]
mod tests;
