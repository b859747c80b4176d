//! The forward pass: one task per (segment, query block, head) iterates over the keys with a running maximum
//! and sum per query.

use rayon::prelude::*;

use super::attention::{Attention, Dims, segments, tokens};
use crate::matmul::{Matrix, MatrixMut, Threads, Tiled, Write, matmul};
use crate::simd;

/// Queries of a task.
const QUERY_BLOCK: usize = 128;
/// The number of keys in a step. With 128 queries this gives 128 KiB of scores, which leaves most of a 1 MiB
/// L2 cache for q, k, v and the output.
const KEY_BLOCK: usize = 256;

/// Attention of a packed row: causal, and never across a border of `cu_seqlens` (`[0, …, T]`).
///
/// `q` is `[T, N, D]` after norm and RoPE, `k` and `v` are `[T, G, D]`, `scale` is the factor on q·k, and
/// with a `sliding_window` a query sees only that many last keys, its own included. Writes `out` `[T, N, D]`,
/// and `lse` `[T, N]`: the natural logarithm of the softmax denominator, which `backward` needs.
///
/// # Panics
/// When a slice has not the length its shape says.
#[expect(
    clippy::too_many_arguments,
    reason = "the op as in its formula; the tensor op above has the named fields"
)]
pub(crate) fn forward(
    dims: Dims,
    scale: f32,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    cu_seqlens: &[usize],
    sliding_window: Option<usize>,
    out: &mut [f32],
    lse: &mut [f32],
) {
    let x = Attention { dims, scale, sliding_window, q, k, v };
    let tokens = tokens(cu_seqlens);
    x.check(tokens, tokens);
    assert_eq!(out.len(), q.len(), "out is not [T, N, D]");
    assert_eq!(lse.len(), tokens * dims.heads, "lse is not [T, N]");
    let blocks = segments(cu_seqlens).flat_map(|(start, len)| {
        (0..len).step_by(QUERY_BLOCK).map(move |position| QueryBlock {
            row: start + position,
            rows: QUERY_BLOCK.min(len - position),
            first_key: start,
            position,
        })
    });
    run(&x, blocks, out, Some(lse));
}

/// Attention of n new tokens of one sequence after `past` earlier ones: row i sees keys up to past + i.
///
/// `q` and `out` are `[n, N, D]`, `k` and `v` the cache with the new tokens appended, `[past + n, G, D]`. For
/// decoding: there is no backward.
///
/// # Panics
/// When a slice has not the length its shape says.
#[expect(clippy::too_many_arguments, reason = "as forward")]
pub(crate) fn forward_cached(
    dims: Dims,
    scale: f32,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    past: usize,
    sliding_window: Option<usize>,
    out: &mut [f32],
) {
    let x = Attention { dims, scale, sliding_window, q, k, v };
    let tokens = q.len() / dims.q_stride();
    x.check(tokens, past + tokens);
    assert_eq!(out.len(), q.len(), "out is not [n, N, D]");
    let blocks = (0..tokens).step_by(QUERY_BLOCK).map(|row| QueryBlock {
        row,
        rows: QUERY_BLOCK.min(tokens - row),
        first_key: 0,
        position: past + row,
    });
    run(&x, blocks, out, None);
}

/// Consecutive queries of one segment.
#[derive(Clone, Copy)]
struct QueryBlock {
    /// First row of the block in q.
    row: usize,
    rows: usize,
    /// Row in k and v where the segment begins.
    first_key: usize,
    /// Position of the first query, counted from the start of the segment.
    position: usize,
}

fn run(
    x: &Attention<'_>,
    blocks: impl Iterator<Item = QueryBlock>,
    out: &mut [f32],
    lse: Option<&mut [f32]>,
) {
    let dims = x.dims;
    let tasks: Vec<_> = blocks.flat_map(|block| (0..dims.heads).map(move |head| (block, head))).collect();
    let (out, lse) = (Tiled::new(out), lse.map(Tiled::new));
    tasks.par_iter().with_max_len(1).for_each_init(Scratch::default, |scratch, &(block, head)| {
        attend(x, block, head, scratch);
        for r in 0..block.rows {
            let (row, d) = (block.row + r, dims.head_dim);
            // SAFETY: only this task has these rows of this head.
            #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
            let target = unsafe { out.slice(row * dims.q_stride() + head * d, d) };
            let inverse = 1.0 / scratch.sum[r];
            for (o, &sum) in target.iter_mut().zip(&scratch.weighted[r * d..]) {
                *o = sum * inverse;
            }
            if let Some(lse) = &lse {
                // SAFETY: as above.
                #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
                let target = unsafe { lse.slice(row * dims.heads + head, 1) };
                target[0] = scratch.max[r] + scratch.sum[r].ln();
            }
        }
    });
}

/// The scratch memory of a task, reused by the next task.
#[derive(Default)]
struct Scratch {
    /// Scores of the step, then their exponentials, `[rows, keys]`.
    scores: Vec<f32>,
    /// Σ exp(score − max) · v so far, `[rows, D]`.
    weighted: Vec<f32>,
    /// Largest score so far, `[rows]`.
    max: Vec<f32>,
    /// Σ exp(score − max) so far, `[rows]`.
    sum: Vec<f32>,
}

fn attend(x: &Attention<'_>, block: QueryBlock, head: usize, scratch: &mut Scratch) {
    let QueryBlock { row, rows, first_key, position } = block;
    let (dims, d) = (x.dims, x.dims.head_dim);
    let kv_offset = head / dims.group() * d;
    let q = Matrix::new(&x.q[row * dims.q_stride() + head * d..], rows, d, dims.q_stride());
    scratch.scores.resize(QUERY_BLOCK * KEY_BLOCK, 0.0);
    scratch.weighted.resize(QUERY_BLOCK * d, 0.0);
    scratch.max.clear();
    scratch.max.resize(rows, f32::NEG_INFINITY);
    scratch.sum.clear();
    scratch.sum.resize(rows, 0.0);

    let keys = x.visible(position).start..position + rows;
    for begin in keys.clone().step_by(KEY_BLOCK) {
        let width = KEY_BLOCK.min(keys.end - begin);
        let at = (first_key + begin) * dims.kv_stride() + kv_offset;
        let k = Matrix::new(&x.k[at..], width, d, dims.kv_stride());
        let v = Matrix::new(&x.v[at..], width, d, dims.kv_stride());
        let scores = MatrixMut::new(&mut scratch.scores, rows, width, width);
        matmul(Write::Replace, scores, x.scale, q, k.t(), Threads::One);
        simd::dispatch(
            #[inline(always)]
            || exponentiate(x, scratch, position, begin, width),
        );
        let weights = Matrix::new(&scratch.scores, rows, width, width);
        let weighted = MatrixMut::new(&mut scratch.weighted, rows, d, d);
        matmul(Write::first(begin == keys.start), weighted, 1.0, weights, v, Threads::One);
    }
}

/// Replaces scores by exp(score − new maximum), or zero where the key is not visible, and adapts sum and
/// weighted values to the new maximum.
#[inline(always)]
fn exponentiate(x: &Attention<'_>, scratch: &mut Scratch, position: usize, begin: usize, width: usize) {
    let d = x.dims.head_dim;
    let per_row = scratch.max.iter_mut().zip(&mut scratch.sum).zip(scratch.weighted.chunks_exact_mut(d));
    for (r, ((max, sum), weighted)) in per_row.enumerate() {
        let visible = x.visible_part(position + r, begin, width);
        let row = &mut scratch.scores[r * width..][..width];
        row[..visible.start].fill(0.0);
        row[visible.end..].fill(0.0);
        let row = &mut row[visible];
        if row.is_empty() {
            continue;
        }
        let step_max = simd::max(row);
        let new_max = if step_max > *max { step_max } else { *max };
        for score in row.iter_mut() {
            *score = simd::exp(*score - new_max);
        }
        let shrink = simd::exp(*max - new_max);
        *sum = *sum * shrink + simd::sum(row);
        if shrink != 1.0 {
            for w in weighted {
                *w *= shrink;
            }
        }
        *max = new_max;
    }
}
