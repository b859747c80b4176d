//! Packed causal grouped-query attention on the CPU, fp32, forward and backward, without ever holding a T×T
//! matrix.
//!
//! Owns the arithmetic on plain slices. It must not know tensors or autodiff. Scores exist only as blocks
//! that stay in the L2 cache of one core (online softmax: Milakov & Gimelshein 2018, Rabe & Staats 2021,
//! FlashAttention-2 by Dao 2023). The work is divided into tasks by position inside a segment, never by
//! thread count or by position in the row. Therefore the results have the same bits on any number of threads,
//! and a segment gets the same bits packed with others as alone.
//!
//! Shapes: T tokens, N query heads, G key/value heads, D head size; query head n reads key/value head n /
//! (N/G).

mod attention;
mod backward;
mod by_row;
mod forward;
#[cfg(test)]
mod tests;

pub use attention::Dims;
pub(super) use backward::backward;
pub(super) use by_row::forward_by_row;
pub(super) use forward::{forward, forward_cached};
