//! The ranks over TCP: on any network, for any number of ranks, with the same bits everywhere.
//!
//! Here is what a rank has and how it is used; `sums` has what is sent for each sum, `regroup` what happens
//! when the members change, and `rendezvous` how they meet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cluster_token::random;
pub use crate::collective::BUCKET;
use crate::collective::{Collective, Traffic};
use crate::environment::Placement;
use crate::error::Error;
use crate::heartbeat::{self, Latencies};
use crate::introduction::{Answer, Member};
use crate::link::{Incoming, LastHeard, Outgoing};
use crate::mailbox::{Ended, Mailbox, operation};
use crate::rendezvous::{CONNECTING, Known, Limits, Met, Quorum, Unmet, meet, open_door};
use crate::swarm::door::Door;
use crate::swarm::pulse::Pulse;
use crate::swarm::{Change, Swarm};
use crate::token::JobToken;
use crate::waiting::{AGAIN, Ends};
use crate::wire::Kind;

/// How long a rank that comes late hears nothing of another one until it gives up: the longest silence that a
/// plan may say.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);
/// The shortest time after which one that does not come then is left out. If it comes later, it waits at the
/// door.
const LEAST_ABSENCE: Duration = Duration::from_secs(2);
/// The time for the last words of a rank that fails.
const GRACE: Duration = Duration::from_secs(10);

/// One rank of a job.
pub struct Tcp {
    /// The number that this rank had when the ranks met.
    pub(crate) own: usize,
    /// The ranks that work together, by their numbers when they met, ascending. Their places here are the
    /// numbers that a caller sees.
    pub(crate) members: Vec<usize>,
    /// How often the members have changed.
    pub(crate) epoch: u64,
    pub(crate) outgoing: BTreeMap<usize, Outgoing>,
    incoming: BTreeMap<usize, Incoming>,
    pub(crate) mailbox: Mailbox,
    /// The number of the next operation of the epoch, the same on all ranks.
    pub(crate) operation: u64,
    /// What is needed to go on without a rank, if that is wanted.
    pub(crate) swarm: Option<Swarm>,
    pulse: Pulse,
    /// Where the ranks that have met listened then, and the numbers that their launcher gave them.
    have_met: Vec<Member>,
    /// How the members have changed before they met, by the numbers that their launcher gave them.
    changed_before: Vec<Change>,
    /// How the ranks have met, so that they can meet again.
    meeting: Meeting,
    door: Option<Door>,
    traffic: Traffic,
    ends: Arc<Ends>,
    /// Whether it came while the others were at work, and has not trained yet.
    has_come_late: bool,
    has_left: bool,
    /// Why nothing can be done together any more, if a rank is gone or out of step.
    pub(crate) failure: Option<String>,
}

/// How the ranks of a job meet.
#[derive(Clone)]
struct Meeting {
    placement: Placement,
    token: Option<JobToken>,
    build: String,
    limits: Limits,
    interrupted: Arc<dyn Fn() -> bool + Send + Sync>,
    tell: Arc<dyn Fn(String) + Send + Sync>,
    known: Known,
}

/// What the coordinator says when the ranks meet again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Again {
    /// The number of the meeting.
    meeting: u64,
    /// What the launcher calls those that meet, in the order of their new numbers.
    launched_as: Vec<usize>,
}

/// Meets the other ranks. `build` must be the same on all; `interrupted` ends the wait for them. Without a
/// token, only ranks of one machine can meet, on its loopback interface.
///
/// # Errors
/// A rank does not come in time, cannot be reached or does not belong to this job; there is no token.
pub fn join(
    placement: &Placement,
    token: Option<&JobToken>,
    build: &str,
    limits: Limits,
    interrupted: Arc<dyn Fn() -> bool + Send + Sync>,
) -> Result<Tcp, Error> {
    join_and_tell(placement, token, build, limits, interrupted, Arc::new(|_| ()), Vec::new())
}

/// Like [`join`], and calls `tell` with lines about the wait: whom this rank waits for, and whom it refuses.
/// Text of others in them is escaped. If nobody answers where the launcher said, rank 0's place may have been
/// taken at one of the places `also`.
///
/// # Errors
/// The same as for [`join`].
pub fn join_and_tell(
    placement: &Placement,
    token: Option<&JobToken>,
    build: &str,
    limits: Limits,
    interrupted: Arc<dyn Fn() -> bool + Send + Sync>,
    tell: Arc<dyn Fn(String) + Send + Sync>,
    also: Vec<(String, u16)>,
) -> Result<Tcp, Error> {
    let (placement, token, build) = (placement.clone(), token.cloned(), build.to_owned());
    let known = Known { launched_as: placement.rank, also, ..Known::default() };
    met(Meeting { placement, token, build, limits, interrupted, tell, known }, &mut false)
}

/// Meets the others, once more as long as one of those that meet again is lost on the way. Says whether this
/// rank `has_promised` to begin, whatever comes of it.
fn met(mut meeting: Meeting, has_promised: &mut bool) -> Result<Tcp, Error> {
    let mut has_come_late = false;
    let again = meeting.limits.again;
    let mut until = Instant::now() + again;
    let (ends, of_all) = loop {
        meeting.known.attempt += 1;
        let Meeting { placement, token, build, limits, interrupted, tell, known } = &meeting;
        let ends = Ends::new(Arc::clone(interrupted), Arc::clone(tell));
        let of_all = meet(placement, token.as_ref(), build, *limits, known, &ends);
        *has_promised |= of_all.as_ref().is_err_and(|unmet| unmet.has_promised);
        match of_all {
            // It came while the others were at work.
            Err(Unmet {
                error: Error::Renumbered { rank, launched_as: all, meeting: number, host, port },
                ..
            }) => {
                has_come_late = true;
                let (world_size, launched_as) = (all.len(), all[rank]);
                meeting.placement = Placement { rank, world_size, host, port, ..meeting.placement };
                let known = Known { meeting: number, launched_as, ..Known::default() };
                meeting.known = Known { all_launched_as: all, ..known };
                meeting.limits.meeting = again;
                until = Instant::now() + again;
            }
            // One was lost on the way: they meet once more, without it.
            Err(unmet) if meeting.known.meeting > 0 && unmet.is_passing && Instant::now() < until => {
                meeting.known.lost.extend(unmet.missed);
                // Whoever still tries to connect to it is waited for.
                let patient = |limit: Duration| limit.max(CONNECTING + LEAST_ABSENCE);
                meeting.known.absent_after = meeting.known.absent_after.map(patient);
                meeting.limits.meeting = until - Instant::now();
                std::thread::sleep(AGAIN);
            }
            of_all => break (ends, of_all.map_err(|unmet| unmet.error)?),
        }
    };
    let Met { outgoing, incoming, asked, answered, members: have_met, present } = of_all;
    let outgoing = outgoing.into_iter().map(|(rank, channel)| Ok((rank, Outgoing::start(rank, channel)?)));
    let outgoing = outgoing.collect::<Result<_, _>>().map_err(Error::Thread)?;
    let (send_event, events) = channel();
    let (heard, latencies) = (LastHeard::default(), Latencies::default());
    for (rank, channel) in asked {
        heartbeat::ask(rank, channel, heard.clone(), latencies.clone()).map_err(Error::Thread)?;
    }
    for (rank, channel) in answered {
        heartbeat::answer(rank, channel, heard.clone(), latencies.clone()).map_err(Error::Thread)?;
    }
    let places: BTreeMap<usize, String> =
        incoming.iter().map(|(rank, (at, _))| (*rank, at.clone())).collect();
    let pulse = Pulse { latencies, heard: heard.clone(), places: places.clone() };
    let start =
        |(rank, (_, channel))| Ok((rank, Incoming::start(rank, channel, send_event.clone(), heard.clone())?));
    let incoming = incoming.into_iter().map(start).collect::<Result<_, _>>().map_err(Error::Thread)?;
    let mut mailbox = Mailbox::new(events, places, have_met.iter().map(|of| of.launched_as).collect(), heard);
    if has_come_late {
        mailbox.limit_silence(LONGEST_SILENCE);
    }
    Ok(Tcp {
        own: meeting.placement.rank,
        members: present,
        epoch: 0,
        outgoing,
        incoming,
        mailbox,
        operation: 0,
        // It counts the words of all as the others do, who heal.
        swarm: has_come_late.then(Swarm::healing),
        has_come_late,
        pulse,
        have_met,
        changed_before: Vec::new(),
        meeting,
        door: None,
        traffic: Traffic::default(),
        ends,
        has_left: false,
        failure: None,
    })
}

impl Tcp {
    /// Lets ranks wait at the coordinator that come while the others work.
    pub(crate) fn open_door(&mut self) {
        if self.rank() != 0 || self.door.is_some() {
            return;
        }
        let placement = self.placement_at_coordinator();
        let Meeting { token, build, limits, tell, .. } = &self.meeting;
        match open_door(&placement, token.as_ref(), build, *limits, &self.have_met, &self.ends) {
            Ok(door) => self.door = Some(door),
            Err(error) => tell(format!("no rank can join while the others train: {error}")),
        }
    }

    /// Returns this rank's place where the coordinator listens, or listened when the ranks met.
    fn placement_at_coordinator(&self) -> Placement {
        let Member { host, port, .. } = self.have_met[self.members[0]].clone();
        let (rank, world_size) = (self.rank(), self.world_size());
        Placement { rank, world_size, host, port, ..self.meeting.placement.clone() }
    }

    pub(crate) fn next_operation(&mut self) -> u64 {
        self.operation += 1;
        operation(self.epoch, self.operation - 1)
    }

    pub(crate) fn send(&mut self, to: usize, kind: Kind, operation: u64, bytes: &Arc<Vec<u8>>) {
        #[cfg(test)]
        if !self.may_send() {
            return;
        }
        self.traffic.sent += bytes.len() as u64;
        if let Some(outgoing) = self.outgoing.get(&to) {
            outgoing.send(kind, operation, Arc::clone(bytes));
        }
    }

    /// Receives a message. In a swarm, a rank that is gone and news about the members end the wait with
    /// [`Error::Regrouped`].
    pub(crate) fn receive(
        &mut self,
        from: usize,
        kind: Kind,
        operation: u64,
        most: u64,
    ) -> Result<Vec<u8>, Error> {
        let bytes = self.mailbox.receive(from, kind, operation, most).map_err(|ended| self.ended(ended))?;
        self.traffic.received += bytes.len() as u64;
        Ok(bytes)
    }

    /// Returns what the end of a wait means for the operation that waited.
    pub(crate) fn ended(&mut self, ended: Ended) -> Error {
        let error = match ended {
            Ended::Notice => return Error::Regrouped,
            Ended::Gone(rank, error) => match &mut self.swarm {
                Some(swarm) => {
                    swarm.suspect(rank, &error);
                    return Error::Regrouped;
                }
                None => error,
            },
            Ended::OutOfStep(error) => error,
        };
        self.failure = Some(error.to_string());
        error
    }

    /// Returns the places of all members but this one. It starts with the next, so that not all send to the
    /// same one first.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, world_size) = (self.rank(), self.world_size());
        (1..world_size).map(move |distance| (rank + distance) % world_size)
    }
}

impl Collective for Tcp {
    fn rank(&self) -> usize {
        self.members.iter().position(|member| *member == self.own).expect("this rank is a member")
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
        values.chunks_mut(BUCKET).try_for_each(|bucket| self.sum_bucket(bucket))
    }

    fn scatter(&mut self, values: &[f32]) -> Result<Vec<Vec<f32>>, Error> {
        self.as_one_epoch(|tcp| tcp.scattered(values))
    }

    fn spread(&mut self, own: &[f32], values: &mut [f32]) -> Result<(), Error> {
        self.as_one_epoch(|tcp| tcp.spread_out(own, values))
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.heard_by_all(|tcp| tcp.gathered(own))
    }

    fn outlive(&mut self, silence: Duration) -> bool {
        self.mailbox.limit_silence(silence);
        self.swarm.get_or_insert_default().is_healing = false;
        self.has_come_late = false;
        self.open_door();
        true
    }

    fn is_healing(&self) -> bool {
        !self.has_come_late && self.swarm.as_ref().is_some_and(|swarm| swarm.is_healing)
    }

    fn is_left_out(&self) -> bool {
        // One that came late and lost another rank before it trained may ask again: the others heal anew.
        let came_in_vain = self.has_come_late && (self.failure.is_some() || self.epoch > 0);
        came_in_vain || self.swarm.as_ref().is_some_and(|swarm| swarm.is_left_out)
    }

    fn has_lost_others(&self) -> bool {
        self.swarm.as_ref().is_some_and(|swarm| swarm.has_lost_others)
    }

    fn newcomers(&self) -> usize {
        self.door.as_ref().map_or(0, Door::count)
    }

    fn meet_again(&mut self) -> Result<(), Error> {
        let mut newcomers = self.door.take().map(|mut door| door.close()).unwrap_or_default();
        let said = loop {
            // Members may be lost meanwhile, and the coordinator too: another one has no newcomers.
            let mut launched_as = self.launched_as();
            for caller in &newcomers {
                let wanted = caller.hello.launched_as;
                let free = || (0..).find(|number| !launched_as.contains(number));
                let number = if launched_as.contains(&wanted) { free() } else { Some(wanted) };
                launched_as.extend(number);
            }
            let own = Again { meeting: u64::from_le_bytes(random()).max(1), launched_as };
            let own = serde_json::to_vec(&own).expect("plain fields serialise");
            match self.all_gather(&own) {
                Err(Error::Regrouped) => {}
                said => break said?.swap_remove(0),
            }
        };
        let (own, of) = (self.launched_as()[self.rank()], self.world_size());
        let said = serde_json::from_slice(&said).ok();
        let said = said.filter(|said: &Again| said.launched_as.starts_with(&self.launched_as()));
        let Again { meeting: number, launched_as } = said.ok_or_else(|| Error::OutOfStep {
            rank: self.launched_as()[0],
            at: "meeting again".into(),
            what: "it says something of the meeting that cannot be".into(),
        })?;
        for (rank, caller) in (of..).zip(&mut newcomers) {
            let launched_as = launched_as.clone();
            // If it is gone, it is missed when the ranks meet.
            let _ = caller.channel.tell(&Answer::Again { rank, launched_as, meeting: number });
        }
        drop(newcomers);
        let before = self.changes();
        self.leave(None);
        let mut meeting = self.meeting.clone();
        let world_size = launched_as.len();
        meeting.placement = Placement { world_size, ..self.placement_at_coordinator() };
        meeting.limits.meeting = meeting.limits.again;
        let silence = self.mailbox.silence();
        let absent_after = silence.map(|silence| (2 * silence).max(LEAST_ABSENCE));
        let quorum = Quorum { least: of.div_ceil(2), of };
        let known = Known { meeting: number, launched_as: own, absent_after, quorum, ..Known::default() };
        meeting.known = Known { all_launched_as: launched_as.clone(), ..known };
        let is_first = self.rank() == 0;
        let missed = |error: Error| match error {
            Error::TooFew { .. } => error,
            // This rank was stopped; if it is rank 0, all others know it. Or this one knows that rank 0 was.
            Error::Interrupted => error,
            Error::Left { .. } if !is_first => error,
            // The others may go on at another rank, if they did not hear why this one ends.
            error if is_first && of > 2 => Error::TooFew { left: 1, of, why: error.to_string() },
            error => Error::Lost { rank: own, at: "meeting again".into(), why: error.to_string() },
        };
        let mut has_promised = false;
        let mut is_taken_over = false;
        let of_all = match met(meeting.clone(), &mut has_promised) {
            // A stop of this rank ends it, and a rank 0 that says that or why it ends, ends all.
            Err(error)
                if self.rank() > 0
                    && of > 2
                    && !has_promised
                    && !matches!(error, Error::Interrupted | Error::Left { .. } | Error::Refused { .. }) =>
            {
                is_taken_over = true;
                self.tell(&format!(
                    "rank {} did not lead the meeting ({error}): the ranks meet without it, at rank {}",
                    launched_as[0], launched_as[1]
                ));
                met(self.without_coordinator(meeting, &launched_as[..of]), &mut has_promised)
            }
            of_all => of_all,
        };
        *self = of_all.map_err(missed).inspect_err(|error| self.miss_others(error))?;
        // Who was lost on the way here is said with those that go on now.
        let all = self.launched_as();
        let with_all = |change: Change| Change { epoch: 0, members: all.clone(), ..change };
        self.changed_before = before.into_iter().map(with_all).collect();
        // It may have come to a later meeting, of others.
        let absent = (0..self.have_met.len()).filter(|rank| !self.members.contains(rank));
        let why = "it did not come when the ranks met again";
        let lost: Vec<(usize, String)> = absent.map(|rank| (rank, why.to_owned())).collect();
        let mut swarm = Swarm::healing();
        if !lost.is_empty() {
            let members = self.members.clone();
            swarm.changes.push(Change { epoch: 0, members, lost, is_taken_over });
        }
        (self.swarm, self.has_come_late) = (Some(swarm), false);
        silence.into_iter().for_each(|silence| self.mailbox.limit_silence(silence));
        self.open_door();
        Ok(())
    }

    fn members(&self) -> Vec<usize> {
        self.members.clone()
    }

    fn launched_as(&self) -> Vec<usize> {
        self.members.iter().map(|rank| self.mailbox.launched_as(*rank)).collect()
    }

    fn addresses(&self) -> Vec<(String, u16)> {
        let first = self.members.first().copied();
        let others = (0..self.have_met.len()).filter(|rank| Some(*rank) != first);
        let all = first.into_iter().chain(others).filter_map(|rank| self.have_met.get(rank));
        all.map(|member| (member.host.clone(), member.port)).collect()
    }

    fn pulse(&self) -> Option<Pulse> {
        Some(self.pulse.clone())
    }

    fn changes(&mut self) -> Vec<Change> {
        let changes = self.swarm.as_mut().map(|swarm| std::mem::take(&mut swarm.changes)).unwrap_or_default();
        let named = |rank: usize| self.mailbox.launched_as(rank);
        let in_names = |change: Change| Change {
            members: change.members.into_iter().map(named).collect(),
            lost: change.lost.into_iter().map(|(rank, why)| (named(rank), why)).collect(),
            ..change
        };
        let before = std::mem::take(&mut self.changed_before);
        before.into_iter().chain(changes.into_iter().map(in_names)).collect()
    }

    fn leave(&mut self, reason: Option<&str>) {
        if std::mem::replace(&mut self.has_left, true) {
            return;
        }
        let waiting = self.door.take().map(|mut door| door.close()).unwrap_or_default();
        // If others may go on without this rank, who waits looks for them instead.
        let is_end_of_all = !self.swarm.as_ref().is_some_and(|swarm| swarm.has_lost_others);
        for mut waiting in waiting.into_iter().filter(|_| is_end_of_all) {
            let why = "the run has ended, or was stopped".to_owned();
            let _ = waiting.channel.tell(&Answer::Refused { why });
        }
        let reason = reason.or(self.failure.as_deref());
        let gives_way = self.swarm.as_ref().is_some_and(|swarm| swarm.gives_way);
        self.outgoing.values_mut().for_each(|outgoing| match reason {
            Some(reason) if gives_way => outgoing.give_way(reason),
            reason => outgoing.bid_farewell(reason),
        });
        if reason.is_some() {
            // Nobody needs more than the reason, and one that hangs may not take it.
            let since = Instant::now();
            while since.elapsed() < GRACE && self.outgoing.values().any(Outgoing::is_sending) {
                std::thread::sleep(Duration::from_millis(10));
            }
            self.ends.end();
        }
        self.outgoing.values_mut().for_each(Outgoing::finish);
        // If all is well, the others' farewells are waited for: what is still on its way to them would be
        // lost if this end was closed first.
        self.incoming.values_mut().for_each(Incoming::finish);
        self.ends.end();
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }
}

impl Tcp {
    /// Returns the meeting of those that worked together, `launched_as` these numbers, if their coordinator
    /// did not lead the one that all went to: at the next of them, which leads it with more than half of
    /// them. The coordinator has the last number there and is not told.
    ///
    /// There are never two runs: the coordinator begins with half of them or more, and only with ranks that
    /// have said to it that they are ready. Those do not come here.
    fn without_coordinator(&self, before: Meeting, launched_as: &[usize]) -> Meeting {
        let of = launched_as.len();
        let Member { host, port, .. } = self.have_met[self.members[1]].clone();
        let (rank, world_size) = (self.rank() - 1, of);
        let placement = Placement { rank, world_size, host, port, ..before.placement };
        let mut all_launched_as = launched_as.to_vec();
        all_launched_as.rotate_left(1);
        // The others may still wait for the coordinator.
        let absent_after = CONNECTING + before.limits.silence;
        let again = absent_after + CONNECTING;
        let limits = Limits { meeting: again, again, ..before.limits };
        let known = Known {
            meeting: before.known.meeting.wrapping_add(1).max(1),
            launched_as: launched_as[self.rank()],
            all_launched_as,
            absent_after: Some(absent_after),
            lost: vec![of - 1],
            quorum: Quorum { least: of / 2 + 1, of },
            ..Known::default()
        };
        Meeting { placement, limits, known, ..before }
    }

    /// Says something to the user of this rank.
    pub(crate) fn tell(&self, line: &str) {
        (self.meeting.tell)(line.to_owned());
    }

    /// Ends the connections with a rank that is no member any more.
    pub(crate) fn let_go(&mut self, rank: usize, reason: &str) {
        if let Some(outgoing) = self.outgoing.remove(&rank) {
            outgoing.abandon(reason);
        }
        // Its thread ends with the connection, or with this rank.
        drop(self.incoming.remove(&rank));
        self.mailbox.forget(rank);
    }

    #[cfg(test)]
    fn may_send(&mut self) -> bool {
        let Some(left) = self.swarm.as_mut().and_then(|swarm| swarm.sends_left.as_mut()) else { return true };
        *left = left.saturating_sub(1);
        if *left == 0 {
            // What was given to a thread may still be sent, like what a killed process gave to the kernel.
            self.outgoing.clear();
        }
        *left > 0
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.leave(Some("it ended early"));
    }
}
