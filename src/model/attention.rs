//! Full attention: grouped heads, optional q/k norm, partial RoPE, and Qwen3.5's output gate (QWEN35_SPEC 2.3).

use crate::cache::AttentionCache;
use crate::{Checkpoint, Linear, ModelError, Param, Row};
use burn::tensor::{Device, Tensor};
use sparktune_kernels::norm_rope::norm_rope;
use sparktune_kernels::packed_attention::{Dims, PackedAttention, cached_attention, packed_attention};
use sparktune_kernels::rms_norm::rms_norm;
use sparktune_kernels::rope::{RopeTable, rope};
use sparktune_kernels::sigmoid_gate::sigmoid_gate;
use sparktune_plan::model_config::ModelConfig;

#[derive(Clone, Debug)]
pub(crate) struct Attention {
    pub(crate) q_proj: Linear,
    pub(crate) k_proj: Linear,
    pub(crate) v_proj: Linear,
    pub(crate) o_proj: Linear,
    pub(crate) q_norm: Option<Param>,
    pub(crate) k_norm: Option<Param>,
    dims: Dims,
    eps: f64,
    zero_centred: bool,
    output_gate: bool,
    sliding_window: Option<usize>,
}

/// Queries `[T, N·D]`, keys and values `[T, G·D]` ready for the softmax, and `q_proj`'s whole output for the gate.
pub(crate) struct Projected {
    pub(crate) q: Tensor<2>,
    pub(crate) k: Tensor<2>,
    pub(crate) v: Tensor<2>,
    pub(crate) q_and_gate: Tensor<2>,
}

impl Attention {
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        path: &str,
        device: &Device,
    ) -> Result<Self, ModelError> {
        let ModelConfig { head_dim, num_attention_heads, num_key_value_heads, hidden_size, .. } = *config;
        let (q, kv) = (num_attention_heads * head_dim, num_key_value_heads * head_dim);
        let q_out = if config.has_output_gate() { 2 * q } else { q };
        let linear = |name: &str, out: usize, input: usize, bias: bool| {
            Ok::<_, ModelError>(Linear {
                weight: checkpoint.param(&format!("{path}.{name}.weight"), &[out, input], device)?,
                bias: match bias {
                    true => Some(checkpoint.param(&format!("{path}.{name}.bias"), &[out], device)?),
                    false => None,
                },
                lora: None,
            })
        };
        let norm = |name: &str| {
            config
                .has_qk_norm()
                .then(|| checkpoint.param(&format!("{path}.{name}.weight"), &[head_dim], device))
                .transpose()
        };
        Ok(Self {
            q_proj: linear("q_proj", q_out, hidden_size, config.qkv_bias)?,
            k_proj: linear("k_proj", kv, hidden_size, config.qkv_bias)?,
            v_proj: linear("v_proj", kv, hidden_size, config.qkv_bias)?,
            o_proj: linear("o_proj", hidden_size, q, config.o_bias)?,
            q_norm: norm("q_norm")?,
            k_norm: norm("k_norm")?,
            dims: Dims { heads: num_attention_heads, kv_heads: num_key_value_heads, head_dim },
            eps: config.rms_norm_eps,
            zero_centred: config.zero_centred_norms(),
            output_gate: config.has_output_gate(),
            sliding_window: config.sliding_window,
        })
    }

    fn scale(&self) -> f32 {
        (self.dims.head_dim as f32).powf(-0.5)
    }

    pub(crate) fn project(&self, x: Tensor<2>, table: &RopeTable) -> Projected {
        let d = self.dims.head_dim;
        let [q_and_gate, k, v] = Linear::together([&self.q_proj, &self.k_proj, &self.v_proj], x);
        let stride = if self.output_gate { 2 * d } else { d };
        let rotate = |x: Tensor<2>, norm: &Option<Param>, stride: usize| match norm {
            Some(norm) => norm_rope(x, norm.tensor(), table, stride, self.eps, self.zero_centred),
            None => rope(x, table, d),
        };
        let q = rotate(q_and_gate.clone(), &self.q_norm, stride);
        let k = rotate(k, &self.k_norm, d);
        Projected { q, k, v, q_and_gate }
    }

    fn gate_and_join(&self, mixed: Tensor<2>, q_and_gate: Tensor<2>) -> Tensor<2> {
        let mixed =
            if self.output_gate { sigmoid_gate(mixed, q_and_gate, self.dims.head_dim) } else { mixed };
        self.o_proj.forward(mixed)
    }

    pub(crate) fn forward(&self, x: Tensor<2>, row: &Row, table: &RopeTable) -> Tensor<2> {
        let Projected { q, k, v, q_and_gate } = self.project(x, table);
        let op = PackedAttention {
            dims: self.dims,
            scale: self.scale(),
            cu_seqlens: row.cu_seqlens.clone(),
            sliding_window: self.sliding_window,
        };
        self.gate_and_join(packed_attention(op, q, k, v), q_and_gate)
    }

    /// Continues one example whose keys and values are in `cache`; adds the new ones to it.
    pub(crate) fn continue_from(
        &self,
        x: Tensor<2>,
        table: &RopeTable,
        cache: &mut AttentionCache,
    ) -> Tensor<2> {
        let Projected { q, k, v, q_and_gate } = self.project(x, table);
        let (k, v) = cache.append(k, v);
        let mixed = cached_attention(self.dims, self.scale(), self.sliding_window, q, k, v);
        self.gate_and_join(mixed, q_and_gate)
    }

    pub(crate) fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Param)) {
        for linear in self.linears() {
            linear.visit(f);
        }
        self.q_norm.iter().chain(&self.k_norm).for_each(f);
    }

    pub(crate) fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        for linear in self.linears_mut() {
            linear.visit_mut(f);
        }
        self.q_norm.iter_mut().chain(&mut self.k_norm).for_each(f);
    }

    pub(crate) fn linears(&self) -> [&Linear; 4] {
        [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj]
    }

    pub(crate) fn linears_mut(&mut self) -> [&mut Linear; 4] {
        [&mut self.q_proj, &mut self.k_proj, &mut self.v_proj, &mut self.o_proj]
    }
}

/// RMSNorm over the hidden width with a model's conventions.
pub(crate) fn norm(x: Tensor<2>, weight: &Param, config: &ModelConfig) -> Tensor<2> {
    rms_norm(x, weight.tensor(), config.rms_norm_eps, config.zero_centred_norms())
}
