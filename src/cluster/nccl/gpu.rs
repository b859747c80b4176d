//! What an engine asks of a GPU and of NCCL, whoever calls the library.

use crate::lent::Lent;

/// The GPU of a rank, with NCCL. Nothing waits: what was begun goes on until [`is_ready`](Self::is_ready) or
/// [`is_done`](Self::is_done) says so. Errors are sentences.
#[expect(clippy::missing_errors_doc, reason = "all errors are the library's words")]
pub trait Gpu: Send {
    /// Returns an id for a new communicator.
    fn new_id(&mut self) -> Result<Vec<u8>, String>;

    /// Begins to connect as this rank of so many, which all have the id.
    fn connect(&mut self, id: &[u8], rank: usize, ranks: usize) -> Result<(), String>;

    /// Returns whether all ranks are connected.
    fn is_ready(&mut self) -> Result<bool, String>;

    /// Begins to sum tensors in their places, and returns how many numbers they have.
    fn sum_lent(&mut self, lent: &mut Lent) -> Result<usize, String>;

    /// Returns how many numbers [`sum`](Self::sum) takes at a time.
    fn most(&self) -> usize;

    /// Begins to sum numbers of the host, which are copied.
    fn sum(&mut self, numbers: &[f32]) -> Result<(), String>;

    /// Copies the sums of the last numbers back.
    fn take(&mut self, numbers: &mut [f32]) -> Result<(), String>;

    /// Returns whether the sum is done.
    fn is_done(&mut self) -> Result<bool, String>;

    /// Ends whatever goes on.
    fn abort(&mut self);

    /// Ends when all ranks have done everything.
    fn finish(&mut self);
}
