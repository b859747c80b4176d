//! Packing: which examples share a row of the batch, in which order rows are trained, and the rows
//! themselves.
//!
//! [`Packing::epoch`] turns lengths into [`Packs`], one list of [`Piece`]s per row; [`Pack::build`] reads a
//! row's tokens from the token file. Both depend on nothing but their arguments, and the random numbers are
//! this module's own, so a resumed run, on any version of this program, sees the same rows in the same order.
//! Nothing here knows of models or devices.

mod order;
mod pack;
mod rows;

pub use order::{dropped, epoch_order};
pub use pack::Pack;
pub use rows::{Packs, Piece};
use sparktune_base::choices::PackStrategy;

/// A packing request that makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum PackingError {
    /// Rows without room.
    #[error("the pack length is 0, so no token fits; use the plan's pack length")]
    NoRoom,
    /// Not a share.
    #[error("the drop share is {0}; it must be at least 0 (drop nothing) and less than 1")]
    BadDropShare(f64),
}

/// Everything that decides the rows of every epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Packing {
    strategy: PackStrategy,
    pack_length: u32,
    seed: u64,
    drop_share: f64,
}

impl Packing {
    /// Rows of `pack_length` tokens.
    pub fn new(strategy: PackStrategy, pack_length: u32, seed: u64) -> Result<Self, PackingError> {
        if pack_length == 0 {
            return Err(PackingError::NoRoom);
        }
        Ok(Self { strategy, pack_length, seed, drop_share: 0.0 })
    }

    /// Leaves a random share of the examples out of each epoch, other ones in each: `--crc-drop`.
    ///
    /// The Neural Datagram Protocol calls this CRC-drop and credits it to corrupted packets. No packet is
    /// corrupt here: it is plain data dropout. Every epoch trains on about `1 − share` of the examples
    /// and takes that much less time; whether the model gets better is for the eval loss to say.
    pub fn with_drop(self, share: f64) -> Result<Self, PackingError> {
        if !(0.0..1.0).contains(&share) {
            return Err(PackingError::BadDropShare(share));
        }
        Ok(Self { drop_share: share, ..self })
    }

    /// Tokens of a full row.
    pub fn pack_length(&self) -> u32 {
        self.pack_length
    }

    /// The rows of one epoch, counted from 0. `lengths[i]` is the number of tokens of example `i`; examples
    /// of length 0 are in no row.
    ///
    /// O(n log n) time; about 30 bytes per example.
    pub fn epoch(&self, lengths: &[u32], epoch: u64) -> Packs {
        let mut order = epoch_order(lengths.len(), self.seed, epoch);
        let dropped = dropped(self.drop_share, self.seed, epoch);
        order.retain(|&example| lengths[example as usize] > 0 && !dropped(example));
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
