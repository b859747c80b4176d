//! Backward: every block of scores is computed once more and serves all three gradients (five products per
//! block).
//!
//! A segment is cut into chunks; the task (query chunk i, key chunk j, key/value head) adds to dq of chunk i
//! and to dk, dv of chunk j. Tasks with the same distance i − j share no chunk. Therefore the distances are
//! processed in sequence, each in parallel: no task waits for a lock, no partial sum needs memory, and the
//! order of the additions is fixed.

use rayon::prelude::*;

use super::attention::{Attention, Dims, segments, tokens};
use crate::matmul::{Matrix, MatrixMut, Threads, Tiled, Write, matmul};
use crate::simd;

/// The number of queries and keys of a task. The two blocks of scores have 100 KiB each.
const CHUNK: usize = 160;

/// Gradients of `forward` for the gradient `d_out` `[T, N, D]` of its output; `out` and `lse` are what it
/// wrote.
///
/// Replaces `dq` `[T, N, D]`, `dk` and `dv` `[T, G, D]`.
///
/// # Panics
/// When a slice has not the length its shape says.
#[expect(
    clippy::too_many_arguments,
    reason = "the op as in its formula; the tensor op above has the named fields"
)]
pub(crate) fn backward(
    dims: Dims,
    scale: f32,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &[f32],
    lse: &[f32],
    d_out: &[f32],
    cu_seqlens: &[usize],
    sliding_window: Option<usize>,
    dq: &mut [f32],
    dk: &mut [f32],
    dv: &mut [f32],
) {
    let x = Attention { dims, scale, sliding_window, q, k, v };
    let tokens = tokens(cu_seqlens);
    x.check(tokens, tokens);
    assert_eq!(out.len(), q.len(), "out is not [T, N, D]");
    assert_eq!(d_out.len(), q.len(), "d_out is not [T, N, D]");
    assert_eq!(lse.len(), tokens * dims.heads, "lse is not [T, N]");
    assert_eq!(dq.len(), q.len(), "dq is not [T, N, D]");
    assert_eq!(dk.len(), k.len(), "dk is not [T, G, D]");
    assert_eq!(dv.len(), v.len(), "dv is not [T, G, D]");
    let delta = row_dots(dims, out, d_out);
    let pass =
        Pass { x, lse, d_out, delta: &delta, dq: Tiled::new(dq), dk: Tiled::new(dk), dv: Tiled::new(dv) };
    for distance in 0.. {
        // The nearest query and key of two chunks at this distance are this far apart.
        let nearest = (distance * CHUNK + 1).saturating_sub(CHUNK);
        if sliding_window.is_some_and(|window| nearest >= window) {
            break;
        }
        let tasks: Vec<_> = segments(cu_seqlens)
            .flat_map(|(start, len)| {
                let key_chunks = len.div_ceil(CHUNK).saturating_sub(distance);
                (0..key_chunks).map(move |j| (start, len, j * CHUNK))
            })
            .flat_map(|(start, len, key)| {
                let query = key + distance * CHUNK;
                (0..dims.kv_heads).map(move |kv_head| Task { start, len, query, key, kv_head })
            })
            .collect();
        if tasks.is_empty() {
            break;
        }
        tasks.par_iter().with_max_len(1).for_each_init(Scratch::new, |scratch, task| pass.run(task, scratch));
    }
}

/// Returns Σ_d out·d_out per token and head, `[T, N]`, which the softmax subtracts from every d_score of a
/// query.
fn row_dots(dims: Dims, out: &[f32], d_out: &[f32]) -> Vec<f32> {
    let mut delta = vec![0.0; out.len() / dims.head_dim];
    let rows = CHUNK * dims.heads;
    delta
        .par_chunks_mut(rows)
        .zip(out.par_chunks(rows * dims.head_dim).zip(d_out.par_chunks(rows * dims.head_dim)))
        .for_each(|(delta, (out, d_out))| {
            simd::dispatch(
                #[inline(always)]
                || {
                    let rows = out.chunks_exact(dims.head_dim).zip(d_out.chunks_exact(dims.head_dim));
                    for (delta, (o, d)) in delta.iter_mut().zip(rows) {
                        *delta = simd::dot(o, d);
                    }
                },
            );
        });
    delta
}

/// Chunk pair of one segment and one key/value head.
struct Task {
    /// First token of the segment, and its length.
    start: usize,
    len: usize,
    /// First position of the query chunk and of the key chunk, from the start of the segment; query ≥ key.
    query: usize,
    key: usize,
    kv_head: usize,
}

struct Scratch {
    /// Scores, then probabilities, `[queries, keys]`.
    p: Vec<f32>,
    /// Gradient of the probabilities, then of the unscaled scores, `[queries, keys]`.
    ds: Vec<f32>,
}

impl Scratch {
    fn new() -> Self {
        Self { p: vec![0.0; CHUNK * CHUNK], ds: vec![0.0; CHUNK * CHUNK] }
    }
}

struct Pass<'a> {
    x: Attention<'a>,
    lse: &'a [f32],
    d_out: &'a [f32],
    delta: &'a [f32],
    dq: Tiled<'a>,
    dk: Tiled<'a>,
    dv: Tiled<'a>,
}

impl Pass<'_> {
    fn run(&self, task: &Task, Scratch { p, ds }: &mut Scratch) {
        let Attention { dims, scale, .. } = self.x;
        let (d, q_stride, kv_stride) = (dims.head_dim, dims.q_stride(), dims.kv_stride());
        let queries = CHUNK.min(task.len - task.query);
        let keys = CHUNK.min(task.len - task.key);
        let kv_at = (task.start + task.key) * kv_stride + task.kv_head * d;
        let k = Matrix::new(&self.x.k[kv_at..], keys, d, kv_stride);
        let v = Matrix::new(&self.x.v[kv_at..], keys, d, kv_stride);
        // Distance 0 comes first and includes every chunk once. It replaces values, so nothing has to be
        // cleared before.
        let diagonal = task.query == task.key;
        let heads = task.kv_head * dims.group()..(task.kv_head + 1) * dims.group();
        for head in heads.clone() {
            let q_at = (task.start + task.query) * q_stride + head * d;
            let q = Matrix::new(&self.x.q[q_at..], queries, d, q_stride);
            let d_out = Matrix::new(&self.d_out[q_at..], queries, d, q_stride);
            let block = |data| MatrixMut::new(data, queries, keys, keys);
            matmul(Write::Replace, block(p), scale, q, k.t(), Threads::One);
            matmul(Write::Replace, block(ds), 1.0, d_out, v.t(), Threads::One);
            simd::dispatch(
                #[inline(always)]
                || self.softmax_gradient(task, head, keys, &mut p[..queries * keys], ds),
            );
            let p = Matrix::new(p, queries, keys, keys);
            let ds = Matrix::new(ds, queries, keys, keys);
            // SAFETY: among the tasks of one distance, which run together, only this one has this query chunk
            // of its heads and this key chunk of its key/value head.
            #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
            let (dq, dk, dv) = unsafe {
                (
                    self.dq.matrix(q_at, queries, d, q_stride),
                    self.dk.matrix(kv_at, keys, d, kv_stride),
                    self.dv.matrix(kv_at, keys, d, kv_stride),
                )
            };
            let first = diagonal && head == heads.start;
            matmul(Write::first(first), dv, 1.0, p.t(), d_out, Threads::One);
            matmul(Write::first(first), dk, scale, ds.t(), q, Threads::One);
            matmul(Write::first(diagonal), dq, scale, ds, k, Threads::One);
        }
    }

    /// p: scores → exp(score − lse); ds: d_p → p (d_p − delta); both zero where the key is not visible.
    #[inline(always)]
    fn softmax_gradient(&self, task: &Task, head: usize, keys: usize, p: &mut [f32], ds: &mut [f32]) {
        for (r, (p, ds)) in p.chunks_exact_mut(keys).zip(ds.chunks_exact_mut(keys)).enumerate() {
            let visible = self.x.visible_part(task.query + r, task.key, keys);
            for outside in [0..visible.start, visible.end..keys] {
                p[outside.clone()].fill(0.0);
                ds[outside].fill(0.0);
            }
            let at = (task.start + task.query + r) * self.x.dims.heads + head;
            let (lse, delta) = (self.lse[at], self.delta[at]);
            for (p, ds) in p[visible.clone()].iter_mut().zip(&mut ds[visible]) {
                *p = simd::exp(*p - lse);
                *ds = *p * (*ds - delta);
            }
        }
    }
}
