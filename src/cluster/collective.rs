//! What the ranks do together, whatever carries it.

use std::ops::Range;
use std::time::Duration;

use sparktune_base::pages::Part;

use crate::error::Error;
use crate::lent::{BlocksForGpu, Lent, Quantiser};
use crate::summed_by::SummedBy;
use crate::swarm::Change;
use crate::swarm::pulse::Pulse;

/// The numbers that are summed at a time: 16 MB, so that what waits in memory is small beside a model, and
/// the two halves' waits are small beside the time of the bytes on a link of 100 Gb/s.
pub const BUCKET: usize = 4 << 20;

/// Returns the numbers of so many that rank `of` adds: its chunk.
pub(crate) fn chunk(length: usize, of: usize, world_size: usize) -> Range<usize> {
    length * of / world_size..length * (of + 1) / world_size
}

/// The bytes that this rank has exchanged with the others, without the framing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that were given to the other ranks.
    pub sent: u64,
    /// Bytes that came from them.
    pub received: u64,
}

impl Traffic {
    /// Returns the bytes in both directions since an earlier time.
    pub fn since(&self, before: Self) -> u64 {
        self.sent - before.sent + self.received - before.received
    }
}

/// What who adds has measured of the contributions to some sums. The same on all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The squared norm of what was added of each rank.
    pub squares: Vec<f64>,
    /// What each rank has said itself of the largest numbers in parts of its contribution: their squares,
    /// added. They are no more than its squared norm.
    pub peaks: Vec<f64>,
    /// By how much a norm may differ from that of what was to be added, because numbers are rounded. Not
    /// finite if a rank has said something that is not, after which no norm says anything.
    pub rounding: f64,
}

/// One rank's access to all of them. Every rank must call the same methods in the same order; each call waits
/// for all ranks.
///
/// After an error nothing can be done together any more: the caller ends, and so do the other ranks. The
/// exception is [`Error::Regrouped`], after [`outlive`](Self::outlive).
pub trait Collective: Send {
    /// Returns the number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn world_size(&self) -> usize;

    /// Replaces `values` by their sums over all ranks, added in the order of ranks in f32. All ranks must
    /// have equally many.
    ///
    /// # Errors
    /// A rank vanished, or does something else.
    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error>;

    /// The first half of a sum: returns the contributions of all ranks to the chunk of this one, in the
    /// order of ranks, and adds nothing. All ranks must have equally many values.
    ///
    /// # Errors
    /// A rank vanished, or does something else.
    fn scatter(&mut self, values: &[f32]) -> Result<Vec<Vec<f32>>, Error> {
        let all = self.all_gather(bytemuck::cast_slice(values))?;
        let own = chunk(values.len(), self.rank(), self.world_size());
        let of = |(rank, bytes): (usize, Vec<u8>)| {
            let numbers: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
            numbers.get(own.clone()).map(<[f32]>::to_vec).ok_or_else(|| Error::of_other_numbers(rank))
        };
        all.into_iter().enumerate().map(of).collect()
    }

    /// The second half: gives the sums of this rank's chunk to all, and replaces `values` by all sums.
    ///
    /// # Errors
    /// A rank vanished, or does something else.
    fn spread(&mut self, own: &[f32], values: &mut [f32]) -> Result<(), Error> {
        let all = self.all_gather(bytemuck::cast_slice(own))?;
        let (count, world_size) = (values.len(), self.world_size());
        for (rank, bytes) in all.into_iter().enumerate() {
            let numbers: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
            let chunk = &mut values[chunk(count, rank, world_size)];
            if numbers.len() != chunk.len() {
                return Err(Error::of_other_numbers(rank));
            }
            chunk.copy_from_slice(&numbers);
        }
        Ok(())
    }

    /// Returns what was measured of the contributions to all sums since the last call; `None` if they are not
    /// measured where they are added.
    fn measured(&mut self) -> Option<Measured> {
        None
    }

    /// From here on, what these ranks contribute to sums counts as zeros, whatever they send. All ranks must
    /// call this at the same place. Returns whether this engine does so.
    ///
    /// # Errors
    /// A rank vanished.
    fn mute(&mut self, _ranks: &[usize]) -> Result<bool, Error> {
        Ok(false)
    }

    /// Returns the ranks whose contributions count as zeros.
    fn muted(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Returns the bytes of all ranks, in the order of ranks. They may have different lengths.
    ///
    /// # Errors
    /// A rank vanished, or does something else.
    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error>;

    /// Returns what rank 0 passed. What the others pass is not used.
    ///
    /// # Errors
    /// A rank vanished, or does something else.
    fn broadcast(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let own = if self.rank() == 0 { bytes } else { &[] };
        Ok(self.all_gather(own)?.swap_remove(0))
    }

    /// Says to the others that this rank ends, and why if it was not to be expected. Calling it twice has no
    /// further effect.
    fn leave(&mut self, reason: Option<&str>);

    /// Returns what was exchanged so far.
    fn traffic(&self) -> Traffic;

    /// From here on, the ranks go on without one that is gone, or that is silent for so long. The operation
    /// that all ranks are in then ends with [`Error::Regrouped`] on all that are left, which have other
    /// numbers; whether an [`all_gather`](Self::all_gather) is complete is the same on all of them. All ranks
    /// must call this at the same place. Returns whether this is possible.
    fn outlive(&mut self, _silence: Duration) -> bool {
        false
    }

    /// Returns whether the ranks have met again, and have not called [`outlive`](Self::outlive) since. If one
    /// is lost meanwhile, the others get [`Error::Regrouped`] and begin again, unless it is rank 0.
    fn is_healing(&self) -> bool {
        false
    }

    /// Returns the numbers that the ranks had when they met, in the order of their numbers now. They are for
    /// [`pulse`](Self::pulse) alone.
    fn members(&self) -> Vec<usize> {
        (0..self.world_size()).collect()
    }

    /// Returns how many ranks wait at rank 0 to be let in.
    fn newcomers(&self) -> usize {
        0
    }

    /// Returns whether the others go on without this rank.
    fn is_left_out(&self) -> bool {
        false
    }

    /// Returns whether this rank can do nothing more because it has lost others, which may go on without it.
    fn has_lost_others(&self) -> bool {
        false
    }

    /// Parts, and meets again with those that wait. All ranks must call this at the same place; their numbers
    /// are others afterwards, except rank 0's, and nothing that was agreed on before holds. Who does not come
    /// is left out.
    ///
    /// # Errors
    /// A rank vanished while it connected to the others.
    fn meet_again(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns the numbers that the launcher gave to the ranks, in the order of their numbers now. They stay
    /// when the ranks meet again; a rank that comes back has its old one, and no two have the same. People
    /// know the ranks by these.
    fn launched_as(&self) -> Vec<usize> {
        self.members()
    }

    /// Returns where the ranks listened when they met, the coordinator first. There a rank that is left out,
    /// or is started again, can ask to be let in.
    fn addresses(&self) -> Vec<(String, u16)> {
        Vec::new()
    }

    /// Returns the signs of life of the others, if there are any.
    fn pulse(&self) -> Option<Pulse> {
        None
    }

    /// Returns how the members have changed since the last call, by the numbers that their launcher gave
    /// them.
    fn changes(&mut self) -> Vec<Change> {
        Vec::new()
    }

    /// Returns which engine sums, if that decides bits.
    fn engine(&self) -> Option<String> {
        None
    }

    /// Returns how [`all_reduce`](Self::all_reduce) adds now.
    fn summed_by(&self) -> SummedBy {
        SummedBy::Tcp
    }

    /// Says again how sums are made, when the ranks have met again. Those that came then say it too.
    ///
    /// # Errors
    /// A rank vanished.
    fn open_again(&mut self) -> Result<(), Error> {
        self.broadcast(b"tcp").map(drop)
    }

    /// Returns memory for the integers of a GPU, in an arena that sums come into, if this rank has one.
    /// Nobody else gets it afterwards.
    fn arena(&mut self) -> Option<Part> {
        None
    }

    /// From here on, tensors that are lent are rounded by this GPU, if sums need rounded numbers. It reads
    /// sums where they come if it has the memory that [`arena`](Self::arena) returned.
    fn round_on(&mut self, _gpu: Box<dyn Quantiser>) {}

    /// Returns how blocks of sums got to the GPU that rounds so far; `None` if none did.
    fn blocks_for_gpu(&self) -> Option<BlocksForGpu> {
        None
    }

    /// Returns whether [`all_reduce_lent`](Self::all_reduce_lent) sums tensors where they are.
    fn takes_lent(&self) -> bool {
        false
    }

    /// Replaces the numbers of tensors, which the caller's device understands, by their sums over all ranks.
    /// All ranks must lend equally many in the same order.
    ///
    /// # Errors
    /// A rank vanished, or this engine cannot do it.
    fn all_reduce_lent(&mut self, _lent: &mut Lent) -> Result<(), Error> {
        Err(Error::Gpus { what: "this engine takes no tensors".into() })
    }
}
