//! Head and cross-entropy on the CPU, fp32: losses and gradients without the logits `[R, V]`.
//!
//! The vocabulary is processed in tiles with a running maximum and sum per row, like keys in flash attention:
//! the gradient of a hidden row is the softmax-weighted mean of the head's rows less the target's row, so
//! `d_hidden` grows along with the sum and a frozen head costs its two products and nothing else. `d_weight`
//! needs the finished softmax and a second pass: tiles that fit into `TILE_BYTES` are kept, the others are
//! computed again.
//!
//! Memory beyond the arguments: one tile (2 MiB), with `d_weight` up to `TILE_BYTES` (56 MiB); a few MiB of
//! packing inside `gemm`. Tiles, products and row sums have one fixed order: the same bits on any number of
//! threads.

#[cfg(test)]
mod tests;

use rayon::prelude::*;

use crate::matmul::{Matrix, MatrixMut, Threads, Write, matmul};
use crate::simd;

/// The number of rows in one product with the head, whose weights are then read from memory once for all of
/// them.
const ROWS: usize = 512;
/// The number of vocabulary entries in a tile.
const WIDTH: usize = 1024;
/// The memory for the exponentials of tiles that the second pass over the vocabulary uses again, in bytes.
const TILE_BYTES: usize = 56 << 20;
/// The number of rows in one softmax task.
const TASK_ROWS: usize = 16;

/// Returns Σ over r of −ln softmax(hidden_r · weightᵀ) at the target of r, in nats.
///
/// `hidden` is `[R, h]`: the rows that have a target. `weight` is `[v, h]`, `targets` `[R]`, below `v`.
/// `losses` `[R]`, where given, gets the single terms.
///
/// # Panics
/// When the length of a slice does not match its shape, or a target is not below `v`.
pub(super) fn forward(
    hidden: &[f32],
    weight: &[f32],
    targets: &[u32],
    h: usize,
    v: usize,
    losses: Option<&mut [f32]>,
) -> f64 {
    run(Head { weight, h, v }, hidden, targets, None, None, losses)
}

/// Like `forward`; also replaces `d_hidden` `[R, h]` by the gradient of the sum, and adds the head's gradient
/// to `d_weight` `[v, h]`, where given.
///
/// # Panics
/// The same as for `forward`.
#[expect(
    clippy::too_many_arguments,
    reason = "the op as in its formula; the tensor op above has the named fields"
)]
pub(super) fn forward_backward(
    hidden: &[f32],
    weight: &[f32],
    targets: &[u32],
    h: usize,
    v: usize,
    d_hidden: &mut [f32],
    d_weight: Option<&mut [f32]>,
    losses: Option<&mut [f32]>,
) -> f64 {
    assert_eq!(d_hidden.len(), hidden.len(), "d_hidden is not [R, H]");
    assert!(d_weight.as_ref().is_none_or(|d| d.len() == weight.len()), "d_weight is not [V, H]");
    run(Head { weight, h, v }, hidden, targets, Some(d_hidden), d_weight, losses)
}

#[derive(Clone, Copy)]
struct Head<'a> {
    weight: &'a [f32],
    h: usize,
    v: usize,
}

fn run(
    head: Head<'_>,
    hidden: &[f32],
    targets: &[u32],
    mut d_hidden: Option<&mut [f32]>,
    mut d_weight: Option<&mut [f32]>,
    mut losses: Option<&mut [f32]>,
) -> f64 {
    let Head { weight, h, v } = head;
    assert_eq!(hidden.len(), targets.len() * h, "hidden is not [R, H]");
    assert_eq!(weight.len(), v * h, "weight is not [V, H]");
    assert!(targets.iter().all(|&t| (t as usize) < v), "a target lies outside the vocabulary of {v}");
    assert!(losses.as_ref().is_none_or(|l| l.len() == targets.len()), "losses is not [R]");
    let rows = ROWS.min(targets.len());
    let kept = if d_weight.is_some() { TILE_BYTES / (rows.max(1) * WIDTH * size_of::<f32>()) } else { 1 };
    let mut tiles = Tiles::new(rows, kept.clamp(1, v.div_ceil(WIDTH).max(1)));
    let mut total = 0.0;
    for (chunk, targets) in targets.chunks(ROWS).enumerate() {
        let rows = chunk * ROWS..chunk * ROWS + targets.len();
        let hidden = &hidden[rows.start * h..rows.end * h];
        let d_hidden = d_hidden.as_deref_mut().map(|d| &mut d[rows.start * h..rows.end * h]);
        let softmax = first_walk(head, hidden, targets, d_hidden, &mut tiles);
        if let Some(d_weight) = d_weight.as_deref_mut() {
            second_walk(head, hidden, targets, &softmax, &mut tiles, d_weight);
        }
        for (row, softmax) in rows.zip(&softmax) {
            let loss = softmax.loss();
            total += loss;
            if let Some(losses) = losses.as_deref_mut() {
                losses[row] = loss as f32;
            }
        }
    }
    total
}

/// The softmax of one row over the part of the vocabulary so far.
#[derive(Clone, Copy)]
struct Softmax {
    max: f32,
    /// Σ exp(logit − max).
    sum: f64,
    target_logit: f32,
}

impl Softmax {
    const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0, target_logit: f32::NAN };

    /// −ln of the target's probability.
    fn loss(&self) -> f64 {
        f64::from(self.max) - f64::from(self.target_logit) + self.sum.ln()
    }
}

/// Memory for tiles of the vocabulary, `[rows, width]` each.
struct Tiles {
    rooms: Vec<Vec<f32>>,
    /// The maxima that a tile's exponentials refer to, `[rows]` per tile.
    maxima: Vec<Vec<f32>>,
}

impl Tiles {
    fn new(rows: usize, count: usize) -> Self {
        let rooms = |len: usize| (0..count).map(|_| vec![0.0; len]).collect();
        Self { rooms: rooms(rows * WIDTH), maxima: rooms(rows) }
    }

    /// Returns the index of a tile's memory. The last one is shared by the tiles without their own.
    fn room(&self, tile: usize) -> usize {
        tile.min(self.rooms.len() - 1)
    }

    /// Returns whether `tile` of `count` is still in memory after the first pass.
    fn is_kept(&self, tile: usize, count: usize) -> bool {
        tile + 1 < self.rooms.len() || count <= self.rooms.len()
    }
}

impl<'a> Head<'a> {
    /// (index, first entry, weights `[width, h]`) of each tile.
    fn tiles(self) -> impl Iterator<Item = (usize, usize, Matrix<'a>)> {
        (0..self.v).step_by(WIDTH).enumerate().map(move |(tile, begin)| {
            let width = WIDTH.min(self.v - begin);
            (tile, begin, Matrix::new(&self.weight[begin * self.h..], width, self.h, self.h))
        })
    }
}

/// Computes the softmax of each row, and completes `d_hidden` if given.
fn first_walk(
    head: Head<'_>,
    hidden: &[f32],
    targets: &[u32],
    mut d_hidden: Option<&mut [f32]>,
    tiles: &mut Tiles,
) -> Vec<Softmax> {
    let (rows, h) = (targets.len(), head.h);
    let x = Matrix::new(hidden, rows, h, h);
    let mut softmax = vec![Softmax::EMPTY; rows];
    // Each tile returns the factor by which each row of d_hidden shrinks when the maximum changes.
    let mut shrink = vec![0.0; rows];
    for (tile, begin, weight) in head.tiles() {
        let width = weight.rows();
        let room = tiles.room(tile);
        let logits = &mut tiles.rooms[room][..rows * width];
        matmul(Write::Replace, MatrixMut::new(logits, rows, width, width), 1.0, x, weight.t(), Threads::All);
        logits
            .par_chunks_mut(TASK_ROWS * width)
            .zip(softmax.par_chunks_mut(TASK_ROWS))
            .zip(targets.par_chunks(TASK_ROWS).zip(shrink.par_chunks_mut(TASK_ROWS)))
            .for_each(|((logits, softmax), (targets, shrink))| {
                simd::dispatch(
                    #[inline(always)]
                    || {
                        let rows =
                            logits.chunks_exact_mut(width).zip(softmax).zip(targets.iter().zip(shrink));
                        for ((logits, softmax), (&target, shrink)) in rows {
                            if let Some(&logit) =
                                (target as usize).checked_sub(begin).and_then(|t| logits.get(t))
                            {
                                softmax.target_logit = logit;
                            }
                            *shrink = advance(softmax, logits);
                        }
                    },
                );
            });
        for (max, softmax) in tiles.maxima[room].iter_mut().zip(&softmax) {
            *max = softmax.max;
        }
        if let Some(d_hidden) = d_hidden.as_deref_mut() {
            if tile > 0 {
                for (d, &shrink) in d_hidden.chunks_exact_mut(h).zip(&shrink).filter(|(_, s)| **s != 1.0) {
                    d.iter_mut().for_each(|d| *d *= shrink);
                }
            }
            let weights = Matrix::new(logits, rows, width, width);
            let d_hidden = MatrixMut::new(d_hidden, rows, h, h);
            matmul(Write::first(tile == 0), d_hidden, 1.0, weights, weight, Threads::All);
        }
    }
    if let Some(d_hidden) = d_hidden {
        for (d, (softmax, &target)) in d_hidden.chunks_exact_mut(h).zip(softmax.iter().zip(targets)) {
            let inverse = (1.0 / softmax.sum) as f32;
            let target = &head.weight[target as usize * h..][..h];
            d.iter_mut().zip(target).for_each(|(d, w)| *d = *d * inverse - w);
        }
    }
    softmax
}

/// Adds more logits to the softmax and replaces them by exp(logit − maximum). Returns the factor that adapts
/// the previous sums to the new maximum.
#[inline(always)]
fn advance(softmax: &mut Softmax, logits: &mut [f32]) -> f32 {
    let tile_max = simd::max(logits);
    let max = if tile_max > softmax.max { tile_max } else { softmax.max };
    for x in logits.iter_mut() {
        *x = simd::exp(*x - max);
    }
    let shrink = simd::exp(softmax.max - max);
    softmax.sum = softmax.sum * f64::from(shrink) + f64::from(simd::sum(logits));
    softmax.max = max;
    shrink
}

/// Computes d_weight += (softmax − one-hot)ᵀ hidden.
fn second_walk(
    head: Head<'_>,
    hidden: &[f32],
    targets: &[u32],
    softmax: &[Softmax],
    tiles: &mut Tiles,
    d_weight: &mut [f32],
) {
    let (rows, h) = (targets.len(), head.h);
    let x = Matrix::new(hidden, rows, h, h);
    let count = head.v.div_ceil(WIDTH);
    for (tile, begin, weight) in head.tiles() {
        let width = weight.rows();
        let room = tiles.room(tile);
        let kept = tiles.is_kept(tile, count).then_some(&tiles.maxima[room]);
        let p = &mut tiles.rooms[room][..rows * width];
        if kept.is_none() {
            matmul(Write::Replace, MatrixMut::new(p, rows, width, width), 1.0, x, weight.t(), Threads::All);
        }
        p.par_chunks_mut(width).zip(softmax).zip(targets).enumerate().with_min_len(TASK_ROWS).for_each(
            |(row, ((p, softmax), &target))| {
                let inverse = (1.0 / softmax.sum) as f32;
                simd::dispatch(
                    #[inline(always)]
                    || match kept {
                        Some(maxima) => {
                            let factor = simd::exp(maxima[row] - softmax.max) * inverse;
                            p.iter_mut().for_each(|p| *p *= factor);
                        }
                        None => p.iter_mut().for_each(|p| *p = simd::exp(*p - softmax.max) * inverse),
                    },
                );
                if let Some(p) = (target as usize).checked_sub(begin).and_then(|t| p.get_mut(t)) {
                    *p -= 1.0;
                }
            },
        );
        let d_weight = MatrixMut::new(&mut d_weight[begin * h..], width, h, h);
        matmul(Write::Add, d_weight, 1.0, Matrix::new(p, rows, width, width).t(), x, Threads::All);
    }
}
