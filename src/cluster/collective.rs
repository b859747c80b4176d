//! What the ranks do together, whatever carries it.

use crate::error::Error;

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

/// One rank's access to all of them. Every rank must call the same methods in the same order; each call waits
/// for all ranks.
///
/// After an error nothing can be done together any more: the caller ends, and so do the other ranks.
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
}
