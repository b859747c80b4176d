//! Attention of single queries, for decoding: each query has the same bits whatever the number of queries is.

use rayon::prelude::*;

use super::attention::{Attention, Dims};
use crate::simd;

/// Attention like [`forward_cached`](super::forward_cached), where the result of a query depends on nothing
/// but the query and the keys and values that it attends to.
///
/// # Panics
/// When a slice has not the length its shape says.
pub(crate) fn forward_by_row(
    dims: Dims,
    scale: f32,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    past: usize,
    sliding_window: Option<usize>,
) -> Vec<f32> {
    let x = Attention { dims, scale, sliding_window, q, k, v };
    let tokens = q.len() / dims.q_stride();
    x.check(tokens, past + tokens);
    let mut out = vec![0.0; q.len()];
    // One task for each query and key/value head: a key is read once for all heads that share it.
    let width = dims.group() * dims.head_dim;
    out.par_chunks_mut(width).zip(q.par_chunks(width)).enumerate().for_each(|(task, (out, q))| {
        let (row, kv_head) = (task / dims.kv_heads, task % dims.kv_heads);
        simd::dispatch(
            #[inline(always)]
            || attend(&x, past + row, kv_head, q, out),
        );
    });
    out
}

/// Computes the heads of one key/value head, for the query at `position`.
#[inline(always)]
fn attend(x: &Attention<'_>, position: usize, kv_head: usize, q: &[f32], out: &mut [f32]) {
    let (d, visible) = (x.dims.head_dim, x.visible(position));
    let at = |key: usize| key * x.dims.kv_stride() + kv_head * d;
    let mut scores = vec![0.0; x.dims.group() * visible.len()];
    for (i, key) in visible.clone().enumerate() {
        let k = &x.k[at(key)..][..d];
        for (head, q) in q.chunks_exact(d).enumerate() {
            scores[head * visible.len() + i] = x.scale * simd::dot(q, k);
        }
    }
    for scores in scores.chunks_exact_mut(visible.len()) {
        let max = simd::max(scores);
        for score in scores.iter_mut() {
            *score = simd::exp(*score - max);
        }
        let inverse = 1.0 / simd::sum(scores);
        for score in scores.iter_mut() {
            *score *= inverse;
        }
    }
    for (i, key) in visible.clone().enumerate() {
        let v = &x.v[at(key)..][..d];
        for (head, out) in out.chunks_exact_mut(d).enumerate() {
            let share = scores[head * visible.len() + i];
            for (out, v) in out.iter_mut().zip(v) {
                *out += share * v;
            }
        }
    }
}
