//! What a caller lends an engine, and what an engine that rounds asks of the GPU that holds it.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use sparktune_base::pages::Pages;

/// What a caller lends an engine for a sum: tensors in the memory of a GPU. Only the caller and the GPU that
/// sums or rounds know its type.
pub type Lent = dyn Any + Send;

/// How many blocks of sums got to a GPU that rounds, by their way there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlocksForGpu {
    /// The GPU read them where they came.
    pub in_place: u64,
    /// The host copied each once, from its packet to the place of its integers.
    pub copied: u64,
}

impl fmt::Display for BlocksForGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { in_place, copied } = self;
        write!(
            f,
            "the GPU read {in_place} blocks of sums where they came, and {copied} that the host copied once"
        )
    }
}

/// A GPU with an arena in the host's memory, through which integers go between it and the packets. It
/// computes what [`quantise`](crate::xdp::quantise) states, to the bit. When a call returns, its work is
/// done. Errors are sentences.
#[expect(clippy::missing_errors_doc, reason = "all errors are the device's words")]
pub trait Quantiser: Send {
    /// Returns how many numbers were lent.
    fn count(&self, lent: &mut Lent) -> Result<usize, String>;

    /// Returns the largest magnitude of each block of some of the numbers, or NaN.
    fn magnitudes(&mut self, lent: &mut Lent, of: Range<usize>) -> Result<Vec<f32>, String>;

    /// Writes the integers of some of the numbers, by the magnitudes over all ranks, into the arena.
    fn encode(
        &mut self,
        lent: &mut Lent,
        of: Range<usize>,
        magnitudes: &[f32],
        workers: usize,
    ) -> Result<(), String>;

    /// Returns the arena's pages if [`decode`](Self::decode) can read sums anywhere in them, or `None` if it
    /// reads them only in the place of the integers.
    fn pages(&self) -> Option<&Arc<Pages>> {
        None
    }

    /// Returns the arena's integers, little-endian. The caller may replace those of a block by their sums.
    fn integers(&mut self) -> &mut [[u8; 2]];

    /// Replaces some of the numbers by those that their sums stand for. For each block, `places` has the byte
    /// of the arena's [pages](Self::pages) at which its sums begin, or `None` if they are in the place of its
    /// integers.
    fn decode(
        &mut self,
        lent: &mut Lent,
        of: Range<usize>,
        magnitudes: &[f32],
        workers: usize,
        places: &[Option<usize>],
    ) -> Result<(), String>;

    /// Returns all numbers, which are few.
    fn numbers(&mut self, lent: &mut Lent) -> Result<Vec<f32>, String>;

    /// Replaces all numbers, which are few.
    fn replace(&mut self, lent: &mut Lent, numbers: &[f32]) -> Result<(), String>;
}
