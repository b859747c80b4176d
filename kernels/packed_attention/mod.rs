//! Causal softmax attention over a packed row: no token attends to another example or to later tokens
//! (SPEC.md 2.3 and 2.6). Grouped heads, online softmax: no `T × T` matrix is ever held.

pub mod cache;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use burn::backend::Flex;
use burn::tensor::{Tensor, TensorData, activation};
use burn_flex::FlexTensor;
pub use cpu::Dims;

use crate::cpu::{dims, slice, tensor};
use crate::op::{by_reference, on_cpu, primitive};
use crate::{Op, Table, apply};

/// The parameters of attention over one row, in addition to its tensors.
#[derive(Debug, Clone)]
pub struct PackedAttention {
    /// Heads and their width.
    pub dims: Dims,
    /// Factor on the scores, usually `head_dim^-1/2`.
    pub scale: f32,
    /// Boundaries of the packed examples, `[0, …, T]`.
    pub cu_seqlens: Table,
    /// The number of keys that a query attends to at most, including its own position.
    pub sliding_window: Option<usize>,
}

/// The parameters of attention over a cache.
#[derive(Debug, Clone, Copy)]
pub struct CachedAttention {
    /// Heads and their width.
    pub dims: Dims,
    /// Factor on the scores.
    pub scale: f32,
    /// The number of keys that a query attends to at most, including its own position.
    pub sliding_window: Option<usize>,
}

/// Maps `q [T, N·D]` and `k, v [T, G·D]` to `[T, N·D]`.
pub fn packed_attention(op: PackedAttention, q: Tensor<2>, k: Tensor<2>, v: Tensor<2>) -> Tensor<2> {
    apply(op, [q, k, v])
}

/// Computes attention of `n` new queries over `past + n` cached keys and values, for decoding; forward only.
///
/// `q [n, N·D]`; `k, v`, whose first `keys` rows count, `[at least keys, G·D]`; query `i` attends to the
/// first
/// `keys - n + i + 1` of them.
fn cached_attention(op: CachedAttention, q: Tensor<2>, k: Tensor<2>, v: Tensor<2>, keys: usize) -> Tensor<2> {
    let [n, width] = q.dims();
    let device = q.device();
    #[cfg(feature = "cuda")]
    if !on_cpu(&q) && cuda::fits(op.dims) {
        let inputs = [q, k, v].map(crate::cuda::primitive);
        return crate::cuda::into_tensor(cuda::in_blocks(op, inputs, keys));
    }
    let CachedAttention { dims, scale, sliding_window } = op;
    let [k, v] = [k, v].map(|x| x.narrow(0, 0, keys));
    // The reference for other devices uses the last rows of a full causal attention as the new queries.
    if !on_cpu(&q) {
        let q = Tensor::cat(vec![Tensor::zeros([keys - n, width], (&device, q.dtype())), q], 0);
        let op = PackedAttention { dims, scale, cu_seqlens: [0, keys as u32].into(), sliding_window };
        let [all] = by_reference(&op, [q, k, v]);
        return all.narrow(0, keys - n, n);
    }
    let [q, k, v] = [q, k, v].map(primitive);
    let mut out = vec![0.0; n * width];
    cpu::forward_cached(dims, scale, slice(&q), slice(&k), slice(&v), keys - n, sliding_window, &mut out);
    Tensor::from_primitive::<Flex>(tensor(out, n))
}

impl PackedAttention {
    fn borders(&self) -> Vec<usize> {
        self.cu_seqlens.iter().map(|border| *border as usize).collect()
    }
}

impl Op<3> for PackedAttention {
    fn reference(&self, [q, k, v]: [Tensor<2>; 3]) -> [Tensor<2>; 1] {
        let t = q.dims()[0];
        let Dims { heads, kv_heads, head_dim } = self.dims;
        let mut hidden = vec![f32::NEG_INFINITY; t * t];
        for border in self.cu_seqlens.windows(2) {
            let (start, end) = (border[0] as usize, border[1] as usize);
            for i in start..end {
                let first = self.sliding_window.map_or(start, |w| start.max((i + 1).saturating_sub(w)));
                hidden[i * t + first..=i * t + i].fill(0.0);
            }
        }
        let hidden = Tensor::<3>::from_data(TensorData::new(hidden, [1, t, t]), &q.device());
        let heads_first = |x: Tensor<2>, n: usize| x.reshape([t, n, head_dim]).swap_dims(0, 1);
        let grouped = |x: Tensor<2>| {
            let x = heads_first(x, kv_heads).reshape([kv_heads, 1, t * head_dim]);
            x.repeat_dim(1, heads / kv_heads).reshape([heads, t, head_dim])
        };
        let scores = heads_first(q, heads).matmul(grouped(k).swap_dims(1, 2)).mul_scalar(self.scale) + hidden;
        let mixed = activation::softmax(scores, 2).matmul(grouped(v));
        [mixed.swap_dims(0, 1).reshape([t, heads * head_dim])]
    }

    fn forward(&self, [q, k, v]: [FlexTensor; 3], wanted: [bool; 3]) -> ([FlexTensor; 1], Vec<FlexTensor>) {
        let (rows, width) = dims(&q);
        let (mut out, mut lse) = (vec![0.0; rows * width], vec![0.0; rows * self.dims.heads]);
        cpu::forward(
            self.dims,
            self.scale,
            slice(&q),
            slice(&k),
            slice(&v),
            &self.borders(),
            self.sliding_window,
            &mut out,
            &mut lse,
        );
        let out = tensor(out, rows);
        let saved =
            if wanted.contains(&true) { vec![q, k, v, out.clone(), tensor(lse, rows)] } else { Vec::new() };
        ([out], saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        [d_output]: [FlexTensor; 1],
        _: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let [q, k, v, out, lse] = &saved[..] else { unreachable!("forward saves five tensors") };
        let rows = dims(q).0;
        let [mut d_q, mut d_k, mut d_v] = [q, k, v].map(|x| vec![0.0; slice(x).len()]);
        cpu::backward(
            self.dims,
            self.scale,
            slice(q),
            slice(k),
            slice(v),
            slice(out),
            slice(lse),
            slice(&d_output),
            &self.borders(),
            self.sliding_window,
            &mut d_q,
            &mut d_k,
            &mut d_v,
        );
        [d_q, d_k, d_v].map(|gradient| Some(tensor(gradient, rows)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, distance, random};

    fn op(heads: usize, kv_heads: usize, head_dim: usize, borders: &[u32]) -> PackedAttention {
        PackedAttention {
            dims: Dims { heads, kv_heads, head_dim },
            scale: 1.0 / (head_dim as f32).sqrt(),
            cu_seqlens: borders.into(),
            sliding_window: None,
        }
    }

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices() {
        for borders in [&[0, 1][..], &[0, 17], &[0, 1, 2, 40, 103, 130]] {
            let rows = borders[borders.len() - 1] as usize;
            for (heads, kv_heads, head_dim) in [(1, 1, 8), (4, 2, 32), (4, 1, 12), (3, 1, 16)] {
                let inputs = [
                    random(1, rows, heads * head_dim),
                    random(2, rows, kv_heads * head_dim),
                    random(3, rows, kv_heads * head_dim),
                ];
                agrees_with_reference(op(heads, kv_heads, head_dim, borders), inputs.clone(), 2e-5);
                let windowed =
                    PackedAttention { sliding_window: Some(7), ..op(heads, kv_heads, head_dim, borders) };
                agrees_with_reference(windowed, inputs, 2e-5);
            }
        }
    }

    #[test]
    fn cached_queries_agree_with_the_full_row() {
        let (q, k, v) = (random(1, 20, 4 * 16), random(2, 20, 2 * 16), random(3, 20, 2 * 16));
        let op = op(4, 2, 16, &[0, 20]);
        let full = packed_attention(op.clone(), q.clone(), k.clone(), v.clone()).narrow(0, 17, 3);
        let cached = CachedAttention { dims: op.dims, scale: op.scale, sliding_window: None };
        let cached = cached_attention(cached, q.narrow(0, 17, 3), k, v, 20);
        assert!(distance(&cached, &full) < 1e-6);
    }
}
