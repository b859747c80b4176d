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

use std::ops::Range;

mod backward;
mod forward;
#[cfg(test)]
mod tests;

pub(super) use backward::backward;
pub(super) use forward::{forward, forward_cached};

/// Heads and their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// N.
    pub heads: usize,
    /// G, a divisor of N.
    pub kv_heads: usize,
    /// D.
    pub head_dim: usize,
}

impl Dims {
    /// Values of one token in q, out and their gradients.
    fn q_stride(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Values of one token in k, v and their gradients.
    fn kv_stride(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Query heads per key/value head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// The inputs of both passes: queries and keys after norm and RoPE, and the visible range.
struct Attention<'a> {
    dims: Dims,
    /// Factor on q·k.
    scale: f32,
    /// Number of last keys that a query sees, its own included.
    sliding_window: Option<usize>,
    /// `[T, N, D]`.
    q: &'a [f32],
    /// `[T, G, D]`.
    k: &'a [f32],
    /// `[T, G, D]`.
    v: &'a [f32],
}

impl Attention<'_> {
    /// Returns the positions of the keys that the query at `position` attends to, both counted from the start
    /// of the segment.
    fn visible(&self, position: usize) -> Range<usize> {
        let end = position + 1;
        self.sliding_window.map_or(0, |window| end.saturating_sub(window))..end
    }

    /// Returns the part of a score row over keys `begin .. begin + width` that the query at `position`
    /// attends to.
    fn visible_part(&self, position: usize, begin: usize, width: usize) -> Range<usize> {
        let Range { start, end } = self.visible(position);
        let start = start.saturating_sub(begin).min(width);
        start..end.saturating_sub(begin).clamp(start, width)
    }

    /// Checks the slices against the shapes, for `queries` queries over `keys` keys.
    fn check(&self, queries: usize, keys: usize) {
        let Dims { heads, kv_heads, .. } = self.dims;
        assert!(
            kv_heads > 0 && heads.is_multiple_of(kv_heads),
            "{heads} query heads cannot share {kv_heads} key/value heads"
        );
        assert!(self.sliding_window != Some(0), "a sliding window of 0 sees no key");
        assert_eq!(self.q.len(), queries * self.dims.q_stride(), "q is not [{queries}, N, D]");
        assert_eq!(self.k.len(), keys * self.dims.kv_stride(), "k is not [{keys}, G, D]");
        assert_eq!(self.v.len(), keys * self.dims.kv_stride(), "v is not [{keys}, G, D]");
    }
}

/// Returns T, from the boundaries of the segments.
fn tokens(cu_seqlens: &[usize]) -> usize {
    assert!(
        cu_seqlens.first().is_none_or(|&first| first == 0) && cu_seqlens.is_sorted(),
        "cu_seqlens must rise from 0"
    );
    cu_seqlens.last().copied().unwrap_or(0)
}

/// Returns (first token, length) of each segment.
fn segments(cu_seqlens: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    cu_seqlens.windows(2).map(|border| (border[0], border[1] - border[0]))
}
