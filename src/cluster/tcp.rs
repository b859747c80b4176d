//! The ranks over TCP: on any network, for any number of ranks, with the same bits everywhere.
//!
//! Here is what a rank has and how it is used; `sums` has what is sent for each sum, `regroup` what happens
//! when the members change, and `rendezvous` how they meet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

pub use crate::collective::BUCKET;
use crate::collective::{Collective, Traffic};
use crate::environment::Placement;
use crate::error::Error;
use crate::heartbeat::{self, Latencies};
use crate::introduction::Answer;
use crate::link::{Incoming, LastHeard, Outgoing};
use crate::mailbox::{Ended, Mailbox, operation};
use crate::rendezvous::{Limits, Met, meet, open_door};
use crate::swarm::door::Door;
use crate::swarm::pulse::Pulse;
use crate::swarm::{Change, Swarm};
use crate::token::JobToken;
use crate::waiting::Ends;
use crate::wire::Kind;

/// The time in which ranks that know each other meet again.
const MEETING_AGAIN: Duration = Duration::from_secs(60);
/// The time for the last words of a rank that fails.
const GRACE: Duration = Duration::from_secs(2);

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
    /// The numbers that the launcher gave to the ranks that have met. Known at rank 0.
    launched_as: Vec<usize>,
    /// How the ranks have met, so that they can meet again.
    meeting: Meeting,
    door: Option<Door>,
    traffic: Traffic,
    ends: Arc<Ends>,
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
    join_and_tell(placement, token, build, limits, interrupted, Arc::new(|_| ()))
}

/// Like [`join`], and calls `tell` with lines about the wait: whom this rank waits for, and whom it refuses.
/// Text of others in them is escaped.
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
) -> Result<Tcp, Error> {
    let (placement, token, build) = (placement.clone(), token.cloned(), build.to_owned());
    met(Meeting { placement, token, build, limits, interrupted, tell })
}

fn met(mut meeting: Meeting) -> Result<Tcp, Error> {
    let (ends, of_all) = loop {
        let Meeting { placement, token, build, limits, interrupted, tell } = &meeting;
        let ends = Ends::new(Arc::clone(interrupted), Arc::clone(tell));
        match meet(placement, token.as_ref(), build, *limits, &ends) {
            // It came while the others were at work.
            Err(Error::Renumbered { rank, world_size }) => {
                meeting.placement = Placement { rank, world_size, ..meeting.placement };
            }
            of_all => break (ends, of_all?),
        }
    };
    let Met { outgoing, incoming, asked, answered } = of_all;
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
    let Placement { rank, world_size, .. } = meeting.placement;
    Ok(Tcp {
        own: rank,
        members: (0..world_size).collect(),
        epoch: 0,
        outgoing,
        incoming,
        mailbox: Mailbox::new(events, places, heard),
        operation: 0,
        swarm: None,
        pulse,
        launched_as: (0..world_size).collect(),
        meeting,
        door: None,
        traffic: Traffic::default(),
        ends,
        has_left: false,
        failure: None,
    })
}

impl Tcp {
    /// Lets ranks wait at rank 0 that come while the others work.
    fn open_door(&mut self) {
        if self.own != 0 || self.door.is_some() {
            return;
        }
        let Meeting { placement, token, build, limits, tell, .. } = &self.meeting;
        match open_door(placement, token.as_ref(), build, *limits, &self.ends) {
            Ok(door) => self.door = Some(door),
            Err(error) => tell(format!("no rank can join while the others train: {error}")),
        }
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
        self.swarm.get_or_insert_default();
        self.open_door();
        true
    }

    fn is_left_out(&self) -> bool {
        self.swarm.as_ref().is_some_and(|swarm| swarm.is_left_out)
    }

    fn newcomers(&self) -> usize {
        self.door.as_ref().map_or(0, Door::count)
    }

    fn meet_again(&mut self) -> Result<(), Error> {
        let mut newcomers = self.door.take().map(|mut door| door.close()).unwrap_or_default();
        let own = newcomers.len().to_string();
        let count = loop {
            match self.all_gather(own.as_bytes()) {
                Err(Error::Regrouped) => {}
                said => break said?.swap_remove(0),
            }
        };
        let count: usize = String::from_utf8_lossy(&count).parse().unwrap_or(0);
        let (rank, members) = (self.rank(), self.world_size());
        let world_size = members + count;
        for (place, caller) in newcomers.iter_mut().enumerate() {
            // If it is gone, it is missed when the ranks meet.
            let _ = caller.channel.tell(&Answer::Again { rank: members + place, world_size });
        }
        let come = newcomers.iter().map(|caller| caller.hello.rank);
        let launched_as: Vec<usize> = self.launched_as().into_iter().chain(come).collect();
        drop(newcomers);
        self.leave(None);
        let mut meeting = self.meeting.clone();
        meeting.placement = Placement { rank, world_size, ..meeting.placement };
        meeting.limits.meeting = MEETING_AGAIN;
        let missed = |error: Error| Error::Lost { rank, at: "meeting again".into(), why: error.to_string() };
        *self = met(meeting).map_err(missed)?;
        self.launched_as = launched_as;
        self.open_door();
        Ok(())
    }

    fn members(&self) -> Vec<usize> {
        self.members.clone()
    }

    fn launched_as(&self) -> Vec<usize> {
        self.members.iter().map(|rank| self.launched_as.get(*rank).copied().unwrap_or(*rank)).collect()
    }

    fn pulse(&self) -> Option<Pulse> {
        Some(self.pulse.clone())
    }

    fn changes(&mut self) -> Vec<Change> {
        self.swarm.as_mut().map(|swarm| std::mem::take(&mut swarm.changes)).unwrap_or_default()
    }

    fn leave(&mut self, reason: Option<&str>) {
        if std::mem::replace(&mut self.has_left, true) {
            return;
        }
        for mut waiting in self.door.take().map(|mut door| door.close()).unwrap_or_default() {
            let why = "the run has ended, or was stopped".to_owned();
            let _ = waiting.channel.tell(&Answer::Refused { why });
        }
        let reason = reason.or(self.failure.as_deref());
        self.outgoing.values_mut().for_each(|outgoing| outgoing.bid_farewell(reason));
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
