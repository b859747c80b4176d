//! What the ranks send each other for one sum over TCP.
//!
//! A sum is made in two halves. Reduce-scatter: the numbers are cut into as many chunks as there are ranks,
//! and each rank sends chunk c to rank c, which adds the contributions in the order of ranks. All-gather:
//! each rank sends the sums of its chunk to all. So a rank sends and receives `2 (W − 1) / W` times the
//! numbers. Long vectors are summed in buckets of [`BUCKET`](crate::collective::BUCKET) numbers, which bounds
//! the memory for what arrives.

use std::sync::Arc;

use crate::collective::{Collective, chunk};
use crate::error::Error;
use crate::tcp::Tcp;
use crate::wire::Kind;

/// The most bytes of a rank's word: a piece of a file.
const LONGEST_WORD: u64 = 64 << 20;

impl Tcp {
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
        let error = Error::OutOfStep {
            rank: self.mailbox.launched_as(from),
            at: self.mailbox.place(from).to_owned(),
            what,
        };
        self.failure = Some(error.to_string());
        Err(error)
    }

    pub(crate) fn sum_bucket(&mut self, values: &mut [f32]) -> Result<(), Error> {
        let contributions = self.scatter(values)?;
        self.spread(&summed(&contributions), values)
    }

    pub(crate) fn scattered(&mut self, values: &[f32]) -> Result<Vec<Vec<f32>>, Error> {
        let operation = self.next_operation();
        let (rank, world_size) = (self.rank(), self.world_size());
        for to in self.others() {
            let contribution = Arc::new(to_bytes(&values[chunk(values.len(), to, world_size)]));
            self.send(self.members[to], Kind::Contribution, operation, &contribution);
        }
        let own = &values[chunk(values.len(), rank, world_size)];
        let mut part = |from: usize| {
            if from == rank {
                return Ok(own.to_vec());
            }
            let member = self.members[from];
            Ok(numbers(&self.receive_numbers(member, Kind::Contribution, operation, own.len())?).collect())
        };
        (0..world_size).map(&mut part).collect()
    }

    pub(crate) fn spread_out(&mut self, own: &[f32], values: &mut [f32]) -> Result<(), Error> {
        let operation = self.next_operation();
        let (rank, world_size, length) = (self.rank(), self.world_size(), values.len());
        let bytes = Arc::new(to_bytes(own));
        for to in self.others() {
            self.send(self.members[to], Kind::Sum, operation, &bytes);
        }
        values[chunk(length, rank, world_size)].copy_from_slice(own);
        for from in self.others() {
            let chunk = chunk(length, from, world_size);
            let bytes = self.receive_numbers(self.members[from], Kind::Sum, operation, chunk.len())?;
            values[chunk].iter_mut().zip(numbers(&bytes)).for_each(|(value, sum)| *value = sum);
        }
        Ok(())
    }

    pub(crate) fn gathered(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let operation = self.next_operation();
        let bytes = Arc::new(own.to_vec());
        for to in self.others() {
            self.send(self.members[to], Kind::Word, operation, &bytes);
        }
        let mut all = vec![Vec::new(); self.world_size()];
        for from in self.others() {
            all[from] = self.receive(self.members[from], Kind::Word, operation, LONGEST_WORD)?;
        }
        all[self.rank()] = own.to_vec();
        Ok(all)
    }
}

/// Adds contributions in the order of ranks.
fn summed(contributions: &[Vec<f32>]) -> Vec<f32> {
    let (first, others) = contributions.split_first().expect("there is at least one rank");
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
