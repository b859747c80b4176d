//! Softmax attention with grouped heads, rotary positions, and the features that families add: norms of
//! queries and keys, a sliding window, Qwen3.5's output gate (SPEC.md 2.3).
//!
//! Shapes: `T` tokens, `R` branches, `H` hidden_size, `N` query heads, `G` key and value heads, `D` head_dim.
//! A name ends with the shape of its tensor; all are matrices of `T` or `R` rows, so that `q_TND` is
//! `[T, N·D]`.
#![expect(non_snake_case, reason = "names end with the shapes of their tensors")]

use burn::tensor::activation::softmax;
use burn::tensor::{DType, Tensor, TensorData};
use sparktune_kernels::norm_rope::norm_rope;
use sparktune_kernels::packed_attention::cache::KeyValueCache;
use sparktune_kernels::packed_attention::{CachedAttention, Dims, PackedAttention, packed_attention};
use sparktune_kernels::rope::rope;
use sparktune_kernels::sigmoid_gate::sigmoid_gate;
use sparktune_plan::architecture::{AttentionSpec, Place, Reads};

use crate::cache::{Branches, Rows};
use crate::error::ModelError;
use crate::layer_loader::LayerLoader;
use crate::linear::Linear;
use crate::module::module;
use crate::norm::Norm;
use crate::packed_sequence::PackedSequence;
use crate::rope_tables::{RopeIndex, RopeTables};

#[derive(Debug, Clone)]
pub(crate) struct Attention {
    /// `q_proj`, `k_proj` and `v_proj`. The output of `q_proj` also contains each head's gate, after its
    /// queries, if there is one.
    qkv: [Linear; 3],
    o_proj: Linear,
    q_norm: Option<Norm>,
    k_norm: Option<Norm>,
    dims: Dims,
    /// The factor on the products of queries and keys.
    scale: f32,
    rope: RopeIndex,
    sliding_window: Option<usize>,
    output_gate: bool,
}

module!(Attention { qkv, o_proj, q_norm, k_norm });

/// Queries, keys and values, ready for the softmax.
pub(crate) struct Projected {
    pub(crate) q_TND: Tensor<2>,
    pub(crate) k_TGD: Tensor<2>,
    pub(crate) v_TGD: Tensor<2>,
    /// The whole output of `q_proj`, which includes the gate.
    q_and_gate: Tensor<2>,
}

impl Attention {
    pub(crate) fn load(loader: LayerLoader, spec: &AttentionSpec) -> Result<Self, ModelError> {
        Ok(Self {
            qkv: loader.linears(Reads::MixerInput)?,
            o_proj: loader.linear(Reads::Mixed)?,
            q_norm: loader.optional_norm(Place::Queries)?,
            k_norm: loader.optional_norm(Place::Keys)?,
            dims: Dims {
                heads: spec.num_attention_heads,
                kv_heads: spec.num_key_value_heads,
                head_dim: spec.head_dim,
            },
            scale: spec.scale,
            rope: RopeIndex::new(loader.checkpoint.config(), &spec.rope),
            sliding_window: spec.sliding_window,
            output_gate: spec.output_gate,
        })
    }

    /// Mixes the tokens of each example of a sequence.
    pub(crate) fn forward(
        &self,
        x_TH: Tensor<2>,
        sequence: &PackedSequence,
        ropes: &RopeTables,
    ) -> Tensor<2> {
        let Projected { q_TND, k_TGD, v_TGD, q_and_gate } = self.project(x_TH, ropes);
        let op = PackedAttention {
            dims: self.dims,
            scale: self.scale,
            cu_seqlens: sequence.cu_seqlens.clone(),
            sliding_window: self.sliding_window,
        };
        self.gate_and_project(packed_attention(op, q_TND, k_TGD, v_TGD), q_and_gate)
    }

    /// Continues examples, each by some rows of `x_TH` and from a cache of its own, which it appends the new
    /// keys and values to.
    pub(crate) fn continue_batch(
        &self,
        x_TH: Tensor<2>,
        ropes: &RopeTables,
        caches: &mut [(usize, &mut KeyValueCache)],
        computed: Rows,
    ) -> Tensor<2> {
        let Projected { q_TND, k_TGD, v_TGD, q_and_gate } = self.project(x_TH, ropes);
        if computed == Rows::OneByOne {
            let mixed_TND = KeyValueCache::continue_by_row(self.over_cache(), caches, [q_TND, k_TGD, v_TGD]);
            return self.gate_and_project(mixed_TND, q_and_gate);
        }
        let mut first = 0;
        let mixed = caches.iter_mut().map(|(rows, cache)| {
            let [q, k, v] = [&q_TND, &k_TGD, &v_TGD].map(|x| x.clone().narrow(0, first, *rows));
            first += *rows;
            cache.append(k, v);
            cache.attend(self.over_cache(), q)
        });
        let mixed_TND = Tensor::cat(mixed.collect(), 0);
        self.gate_and_project(mixed_TND, q_and_gate)
    }

    fn over_cache(&self) -> CachedAttention {
        CachedAttention { dims: self.dims, scale: self.scale, sliding_window: self.sliding_window }
    }

    /// Continues one example from several of its tokens at once, each on a branch of its own.
    ///
    /// Row `r` attends to the tokens of `cache` up to `roots[r]` and to its own branch, which `branches` has
    /// and which the row is appended to. This is rare and small, so plain tensor operations compute it in
    /// f32.
    pub(crate) fn continue_branches(
        &self,
        x_RH: Tensor<2>,
        ropes: &RopeTables,
        cache: &KeyValueCache,
        roots: &[usize],
        branches: &mut Branches,
    ) -> Tensor<2> {
        let Projected { q_TND: q_RND, k_TGD: k_RGD, v_TGD: v_RGD, q_and_gate } = self.project(x_RH, ropes);
        let (keys, values) = &cache.tensors().expect("branches start from a token");
        let (dtype, device) = (q_RND.dtype(), q_RND.device());
        let depth = branches.depth();
        let own = branches.append(k_RGD, v_RGD);
        let (R, T) = (roots.len(), keys.dims()[0]);
        let Dims { heads: N, kv_heads: G, head_dim: D } = self.dims;
        let wide = |x: &Tensor<2>| x.clone().cast(DType::F32);
        // `[G, N/G · R, …]`: the rows of all heads that share keys and values.
        let q = wide(&q_RND).mul_scalar(self.scale);
        let q = q.reshape([R, G, N / G, D]).permute([1, 2, 0, 3]);
        let of_example = |x: &Tensor<2>| wide(x).reshape([T, G, D]).swap_dims(0, 1);
        let of_branch = |x: &Tensor<2>| wide(x).reshape([R, G, 1, D]).permute([1, 2, 0, 3]);

        let is_hidden = |root: usize, t: usize| {
            t > root || self.sliding_window.is_some_and(|window| t + window <= root + 1 + depth)
        };
        let mask: Vec<f32> = roots
            .iter()
            .flat_map(|root| (0..T).map(|t| if is_hidden(*root, t) { f32::NEG_INFINITY } else { 0.0 }))
            .collect();
        let mask = Tensor::<4>::from_data(TensorData::new(mask, [1, 1, R, T]), &device);
        let rows = q.clone().reshape([G, N / G * R, D]);
        let scores = rows.matmul(of_example(keys).swap_dims(1, 2)).reshape([G, N / G, R, T]) + mask;
        let own_scores = own.iter().map(|(k, _)| (q.clone() * of_branch(k)).sum_dim(3));
        let scores = Tensor::cat(std::iter::once(scores).chain(own_scores).collect(), 3);
        let shares = softmax(scores, 3);

        let of_all = shares.clone().narrow(3, 0, T).reshape([G, N / G * R, T]);
        let mut mixed = of_all.matmul(of_example(values)).reshape([G, N / G, R, D]);
        for (at, (_, v)) in own.iter().enumerate() {
            mixed = mixed + shares.clone().narrow(3, T + at, 1) * of_branch(v);
        }
        let mixed_RND = mixed.permute([2, 0, 1, 3]).reshape([R, N * D]).cast(dtype);
        self.gate_and_project(mixed_RND, q_and_gate)
    }

    pub(crate) fn project(&self, x_TH: Tensor<2>, ropes: &RopeTables) -> Projected {
        let [q_and_gate, k_TGD, v_TGD] = Linear::forward_fused(&self.qkv, x_TH);
        let D = self.dims.head_dim;
        let table = ropes.get(self.rope);
        // A head's queries begin every `stride` numbers. The norm reads them in place and skips the gate;
        // families without a norm have no gate.
        let rotated = |x: Tensor<2>, norm: &Option<Norm>, stride: usize| match norm {
            Some(norm) => norm_rope(x, norm.weight.tensor(), table, stride, norm.eps, norm.zero_centred),
            None => rope(x, table, D),
        };
        let stride = if self.output_gate { 2 * D } else { D };
        let q_TND = rotated(q_and_gate.clone(), &self.q_norm, stride);
        let k_TGD = rotated(k_TGD, &self.k_norm, D);
        Projected { q_TND, k_TGD, v_TGD, q_and_gate }
    }

    fn gate_and_project(&self, mixed_TND: Tensor<2>, q_and_gate: Tensor<2>) -> Tensor<2> {
        let gated_TND = if self.output_gate {
            sigmoid_gate(mixed_TND, q_and_gate, self.dims.head_dim)
        } else {
            mixed_TND
        };
        self.o_proj.forward(gated_TND)
    }
}
