//! The ranks over TCP: on any network, for any number of ranks, with the same bits everywhere.
//!
//! A sum is made in two halves. Reduce-scatter: the numbers are cut into as many chunks as there are ranks,
//! and each rank sends chunk c to rank c, which adds the contributions in the order of ranks. All-gather:
//! each rank sends the sums of its chunk to all. So a rank sends and receives `2 (W − 1) / W` times the
//! numbers. Long vectors are summed in buckets of [`BUCKET`] numbers, which bounds the memory for what
//! arrives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::collective::{Collective, Traffic, chunk};
use crate::environment::Placement;
use crate::error::Error;
use crate::link::{Incoming, Outgoing};
use crate::rendezvous::{Ends, Limits, Met, meet};
use crate::token::JobToken;
use crate::wire::Kind;

/// The numbers that are summed at a time: 16 MB, so that what waits in memory is small beside a model, and
/// the two halves' waits are small beside the time of the bytes on a link of 100 Gb/s.
pub const BUCKET: usize = 4 << 20;
/// The most bytes of a rank's word: a piece of a file.
const LONGEST_WORD: u64 = 64 << 20;
/// The time for the last words of a rank that fails.
const GRACE: Duration = Duration::from_secs(2);

/// One rank of a job.
pub struct Tcp {
    rank: usize,
    world_size: usize,
    outgoing: BTreeMap<usize, Outgoing>,
    incoming: BTreeMap<usize, Incoming>,
    /// The number of the next operation, the same on all ranks.
    operation: u64,
    traffic: Traffic,
    ends: Arc<Ends>,
    has_left: bool,
    /// Why nothing can be done together any more, if a rank is gone or out of step.
    failure: Option<String>,
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
    let ends = Ends::new(interrupted, tell);
    let Met { outgoing, incoming } = meet(placement, token, build, limits, &ends)?;
    let outgoing = outgoing.into_iter().map(|(rank, channel)| Ok((rank, Outgoing::start(rank, channel)?)));
    let outgoing = outgoing.collect::<Result<_, _>>().map_err(Error::Thread)?;
    let incoming =
        incoming.into_iter().map(|(rank, (at, channel))| Ok((rank, Incoming::start(rank, at, channel)?)));
    let incoming = incoming.collect::<Result<_, _>>().map_err(Error::Thread)?;
    let Placement { rank, world_size, .. } = *placement;
    let traffic = Traffic::default();
    Ok(Tcp {
        rank,
        world_size,
        outgoing,
        incoming,
        operation: 0,
        traffic,
        ends,
        has_left: false,
        failure: None,
    })
}

impl Tcp {
    fn next_operation(&mut self) -> u64 {
        self.operation += 1;
        self.operation - 1
    }

    fn send(&mut self, to: usize, kind: Kind, operation: u64, bytes: &Arc<Vec<u8>>) {
        self.traffic.sent += bytes.len() as u64;
        self.outgoing[&to].send(kind, operation, Arc::clone(bytes));
    }

    fn receive(&mut self, from: usize, kind: Kind, operation: u64, most: u64) -> Result<Vec<u8>, Error> {
        let received = self.incoming[&from].receive(kind, operation, most);
        let bytes = received.inspect_err(|error| self.failure = Some(error.to_string()))?;
        self.traffic.received += bytes.len() as u64;
        Ok(bytes)
    }

    /// Receives exactly `count` numbers.
    fn receive_numbers(
        &mut self,
        from: usize,
        kind: Kind,
        operation: u64,
        count: usize,
    ) -> Result<Vec<u8>, Error> {
        let expected = (count * size_of::<f32>()) as u64;
        let bytes = self.receive(from, kind, operation, expected)?;
        if bytes.len() as u64 == expected {
            return Ok(bytes);
        }
        let what = format!(
            "it sent {} numbers of a sum where {count} were due, so it trains another model or in another way",
            bytes.len() / size_of::<f32>()
        );
        let error = Error::OutOfStep { rank: from, at: self.incoming[&from].at().to_owned(), what };
        self.failure = Some(error.to_string());
        Err(error)
    }

    /// Returns all ranks but this one. It starts with the next, so that not all send to the same one first.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, world_size) = (self.rank, self.world_size);
        (1..world_size).map(move |distance| (rank + distance) % world_size)
    }

    fn sum_bucket(&mut self, values: &mut [f32]) -> Result<(), Error> {
        let contributions = self.scatter(values)?;
        self.spread(&summed(&contributions), values)
    }
}

impl Collective for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
        values.chunks_mut(BUCKET).try_for_each(|bucket| self.sum_bucket(bucket))
    }

    fn scatter(&mut self, values: &[f32]) -> Result<Vec<Vec<f32>>, Error> {
        let operation = self.next_operation();
        let (rank, world_size) = (self.rank, self.world_size);
        for to in self.others() {
            let contribution = Arc::new(to_bytes(&values[chunk(values.len(), to, world_size)]));
            self.send(to, Kind::Contribution, operation, &contribution);
        }
        let own = &values[chunk(values.len(), rank, world_size)];
        let mut part = |from: usize| {
            if from == rank {
                return Ok(own.to_vec());
            }
            Ok(numbers(&self.receive_numbers(from, Kind::Contribution, operation, own.len())?).collect())
        };
        (0..world_size).map(&mut part).collect()
    }

    fn spread(&mut self, own: &[f32], values: &mut [f32]) -> Result<(), Error> {
        let operation = self.next_operation();
        let (rank, world_size, length) = (self.rank, self.world_size, values.len());
        let bytes = Arc::new(to_bytes(own));
        for to in self.others() {
            self.send(to, Kind::Sum, operation, &bytes);
        }
        values[chunk(length, rank, world_size)].copy_from_slice(own);
        for from in self.others() {
            let chunk = chunk(length, from, world_size);
            let bytes = self.receive_numbers(from, Kind::Sum, operation, chunk.len())?;
            values[chunk].iter_mut().zip(numbers(&bytes)).for_each(|(value, sum)| *value = sum);
        }
        Ok(())
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let operation = self.next_operation();
        let bytes = Arc::new(own.to_vec());
        for to in self.others() {
            self.send(to, Kind::Word, operation, &bytes);
        }
        let mut all = vec![Vec::new(); self.world_size];
        for from in self.others() {
            all[from] = self.receive(from, Kind::Word, operation, LONGEST_WORD)?;
        }
        all[self.rank] = own.to_vec();
        Ok(all)
    }

    fn leave(&mut self, reason: Option<&str>) {
        if std::mem::replace(&mut self.has_left, true) {
            return;
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

impl Drop for Tcp {
    fn drop(&mut self) {
        self.leave(Some("it ended early"));
    }
}

/// Adds contributions in the order of ranks.
fn summed(contributions: &[Vec<f32>]) -> Vec<f32> {
    let (first, others) = contributions.split_first().expect("there are at least two ranks");
    let mut sums = first.clone();
    for contribution in others {
        sums.iter_mut().zip(contribution).for_each(|(sum, value)| *sum += value);
    }
    sums
}

/// Both architectures that the program is built for are little-endian.
fn to_bytes(values: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four bytes")))
}
