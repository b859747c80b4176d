//! Sums over the GPUs of the ranks by NCCL: in memory of the GPUs, by whatever is between them.
//!
//! Owns when NCCL is used ([`preflight`]) and what surrounds it ([`join`](over)): its unique id goes over the
//! authenticated connections of the ranks, which also carry all words and everything that is judged; while a
//! sum is on its way, the connections are watched, and when a rank is gone, what the GPU waits for is ended.
//! In a swarm, those that are left make a communicator of their own. Enters: numbers, or tensors that are
//! lent ([`Lent`](crate::Lent)). Leaves: their sums. It must not know tensors, nor how the library is called:
//! that is a [`Gpu`].
//!
//! **Order of a sum.** With two ranks, a + b has no order, so the bits are those of the other exact engine.
//! With more, the order is NCCL's own: the same on all ranks, but not that of ranks, and another library or
//! network may have another one.

mod engine;
mod gpu;
pub mod machine;
pub mod preflight;
#[cfg(test)]
mod tests;

pub(crate) use engine::Id;
pub use engine::{Nccl, Path, over};
pub use gpu::Gpu;
