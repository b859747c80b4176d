//! Softmax attention with grouped heads, rotary positions, and the features that families add: norms of
//! queries and keys, a sliding window, Qwen3.5's output gate (SPEC.md 2.3).
//!
//! Shapes: `T` tokens, `H` hidden_size, `N` query heads, `G` key and value heads, `D` head_dim. A name ends
//! with the shape of its tensor; all are matrices of `T` rows, so that `q_TND` is `[T, N·D]`.
#![expect(non_snake_case, reason = "names end with the shapes of their tensors")]

use burn::tensor::Tensor;
use sparktune_kernels::norm_rope::norm_rope;
use sparktune_kernels::packed_attention::{Dims, PackedAttention, cached_attention, packed_attention};
use sparktune_kernels::rope::rope;
use sparktune_kernels::sigmoid_gate::sigmoid_gate;
use sparktune_plan::architecture::{AttentionSpec, Place, Reads};

use crate::cache::AttentionCache;
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

    /// Continues one example whose keys and values are in `cache`, and appends the new ones.
    pub(crate) fn continue_from(
        &self,
        x_TH: Tensor<2>,
        ropes: &RopeTables,
        cache: &mut AttentionCache,
    ) -> Tensor<2> {
        let Projected { q_TND, k_TGD, v_TGD, q_and_gate } = self.project(x_TH, ropes);
        let (keys, values) = cache.append(k_TGD, v_TGD);
        let mixed_TND = cached_attention(self.dims, self.scale, self.sliding_window, q_TND, keys, values);
        self.gate_and_project(mixed_TND, q_and_gate)
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
