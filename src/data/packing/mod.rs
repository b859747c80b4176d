//! Packing decides which examples share a pack and in which order packs are trained, and builds the packs. In
//! this module a pack is also called a row, because it is a row of the batch.
//!
//! [`Packing::epoch`] turns lengths into [`Packs`], one list of [`Piece`]s per row; [`Pack::build`] reads a
//! row's tokens from the token file. Both depend only on their arguments, and the random numbers are this
//! module's own, so that a resumed run trains on the same rows in the same order with any version of this
//! program. It must not know models or devices.

mod error;
mod mixture;
mod order;
mod pack;
mod rows;

pub use error::PackingError;
pub use mixture::Mixture;
pub use order::{dropped, epoch_order};
pub use pack::Pack;
pub use rows::{Packs, Piece};
use sparktune_base::choices::PackStrategy;

/// The parameters that determine the rows of every epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Packing {
    strategy: PackStrategy,
    pack_length: u32,
    seed: u64,
    drop_share: f64,
}

impl Packing {
    /// Creates a packing with rows of `pack_length` tokens.
    pub fn new(strategy: PackStrategy, pack_length: u32, seed: u64) -> Result<Self, PackingError> {
        if pack_length == 0 {
            return Err(PackingError::NoRoom);
        }
        Ok(Self { strategy, pack_length, seed, drop_share: 0.0 })
    }

    /// Leaves a random share of the examples out of each epoch, different ones each time: `--crc-drop`.
    ///
    /// The Neural Datagram Protocol calls this CRC-drop and credits it to corrupted packets. Here no packet
    /// is corrupted; it is plain data dropout. Every epoch trains on about `1 − share` of the examples and
    /// takes that much less time. The eval loss shows whether the model improves.
    pub fn with_drop(self, share: f64) -> Result<Self, PackingError> {
        if !(0.0..1.0).contains(&share) {
            return Err(PackingError::BadDropShare(share));
        }
        Ok(Self { drop_share: share, ..self })
    }

    /// Returns the number of tokens of a full row.
    pub fn pack_length(&self) -> u32 {
        self.pack_length
    }

    /// Returns the rows of one epoch, which is counted from 0. `lengths[i]` is the number of tokens of
    /// example `i`; examples of length 0 are left out.
    ///
    /// It takes O(n log n) time and about 30 bytes per example.
    pub fn epoch(&self, lengths: &[u32], epoch: u64) -> Packs {
        let order = epoch_order(lengths.len(), self.seed, epoch);
        let dropped = dropped(self.drop_share, self.seed, epoch);
        self.rows(lengths, order.into_iter().filter(|&example| !dropped(example)).collect(), epoch)
    }

    /// Like [`epoch`](Self::epoch), with each example as often as the mixture says. Copies are shuffled and
    /// dropped independently of each other.
    pub fn mixed_epoch(&self, lengths: &[u32], mixture: &Mixture, epoch: u64) -> Packs {
        let occurrences = mixture.occurrences(self.seed, epoch);
        let order = epoch_order(occurrences.len(), self.seed, epoch);
        let dropped = dropped(self.drop_share, self.seed, epoch);
        let order = order.into_iter().filter(|&at| !dropped(at)).map(|at| occurrences[at as usize]);
        self.rows(lengths, order.collect(), epoch)
    }

    /// Packs examples in this order.
    fn rows(&self, lengths: &[u32], mut order: Vec<u32>, epoch: u64) -> Packs {
        order.retain(|&example| lengths[example as usize] > 0);
        let mut packs = match self.strategy {
            PackStrategy::Bfd => rows::best_fit_decreasing(lengths, &order, self.pack_length),
            PackStrategy::Stream => rows::stream(lengths, &order, self.pack_length),
        };
        packs.reorder(&order::row_order(packs.len(), self.seed, epoch));
        packs
    }
}

#[cfg(test)]
mod tests;
