//! Gated DeltaNet: the linear-attention layer of Qwen3.5 (QWEN35_SPEC 2.4).

use crate::cache::DeltaCache;
use crate::{Checkpoint, Linear, ModelError, Param, Row};
use burn::tensor::{Device, Tensor};
use sparktune_kernels::causal_conv1d_silu::causal_conv1d_silu;
use sparktune_kernels::delta_gates::delta_gates;
use sparktune_kernels::gated_delta_rule::{Dims, continue_delta_rule, gated_delta_rule};
use sparktune_kernels::gated_rms_norm::gated_rms_norm;
use sparktune_plan::model_config::{LinearAttention, ModelConfig};

#[derive(Clone, Debug)]
pub(crate) struct DeltaNet {
    pub(crate) in_proj_qkv: Linear,
    pub(crate) in_proj_z: Linear,
    pub(crate) in_proj_b: Linear,
    pub(crate) in_proj_a: Linear,
    pub(crate) out_proj: Linear,
    /// `[C, 1, K]`
    pub(crate) conv1d: Param,
    pub(crate) a_log: Param,
    pub(crate) dt_bias: Param,
    pub(crate) norm: Param,
    pub(crate) shape: LinearAttention,
    eps: f64,
}

/// The convolution's input `u [T, C]`, the output gate `z [T, Nv·Dv]`, log decay `g` and write strength `beta`, `[T, Nv]`.
pub(crate) struct Projected {
    pub(crate) u: Tensor<2>,
    pub(crate) z: Tensor<2>,
    pub(crate) g: Tensor<2>,
    pub(crate) beta: Tensor<2>,
}

impl DeltaNet {
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        shape: &LinearAttention,
        path: &str,
        device: &Device,
    ) -> Result<Self, ModelError> {
        let h = config.hidden_size;
        let linear = |name: &str, out: usize, input: usize| {
            let weight = checkpoint.param(&format!("{path}.{name}.weight"), &[out, input], device)?;
            Ok::<_, ModelError>(Linear { weight, bias: None, lora: None })
        };
        let param = |name: &str, shape: &[usize]| checkpoint.param(&format!("{path}.{name}"), shape, device);
        Ok(Self {
            in_proj_qkv: linear("in_proj_qkv", shape.conv_dim(), h)?,
            in_proj_z: linear("in_proj_z", shape.value_dim(), h)?,
            in_proj_b: linear("in_proj_b", shape.num_value_heads, h)?,
            in_proj_a: linear("in_proj_a", shape.num_value_heads, h)?,
            out_proj: linear("out_proj", h, shape.value_dim())?,
            conv1d: param("conv1d.weight", &[shape.conv_dim(), 1, shape.conv_kernel_dim])?,
            a_log: param("A_log", &[shape.num_value_heads])?,
            dt_bias: param("dt_bias", &[shape.num_value_heads])?,
            norm: param("norm.weight", &[shape.value_head_dim])?,
            shape: shape.clone(),
            eps: config.rms_norm_eps,
        })
    }

    pub(crate) fn dims(&self) -> Dims {
        Dims {
            key_heads: self.shape.num_key_heads,
            value_heads: self.shape.num_value_heads,
            key_dim: self.shape.key_head_dim,
            value_dim: self.shape.value_head_dim,
        }
    }

    /// What the four projections make of `x`.
    pub(crate) fn project(&self, x: Tensor<2>) -> Projected {
        let layers = [&self.in_proj_qkv, &self.in_proj_z, &self.in_proj_b, &self.in_proj_a];
        let [u, z, b, a] = Linear::together(layers, x);
        let [g, beta] = delta_gates(a, b, self.a_log.tensor(), self.dt_bias.tensor());
        Projected { u, z, g, beta }
    }

    pub(crate) fn gate_and_join(&self, mixed: Tensor<2>, z: Tensor<2>) -> Tensor<2> {
        self.out_proj.forward(gated_rms_norm(mixed, z, self.norm.tensor(), self.eps))
    }

    pub(crate) fn forward(&self, x: Tensor<2>, row: &Row) -> Tensor<2> {
        let Projected { u, z, g, beta } = self.project(x);
        let qkv = causal_conv1d_silu(u, self.conv1d.tensor(), &row.position_ids);
        let mixed = gated_delta_rule(self.dims(), qkv, g, beta, &row.cu_seqlens);
        self.gate_and_join(mixed, z)
    }

    /// Zeros: nothing in the window, nothing in the state.
    pub(crate) fn empty_cache(&self, device: &Device) -> DeltaCache {
        let shape = &self.shape;
        let state = [shape.num_value_heads * shape.key_head_dim, shape.value_head_dim];
        DeltaCache {
            window: Tensor::zeros(
                [shape.conv_kernel_dim - 1, shape.conv_dim()],
                (device, self.conv1d.tensor().dtype()),
            ),
            state: Tensor::zeros(state, &Device::flex()),
        }
    }

    /// Continues one example from the convolution window and state in `cache`; updates both.
    pub(crate) fn continue_from(&self, x: Tensor<2>, cache: &mut DeltaCache) -> Tensor<2> {
        let n = x.dims()[0];
        let history = self.shape.conv_kernel_dim - 1;
        let Projected { u, z, g, beta } = self.project(x);
        let u = Tensor::cat(vec![cache.window.clone(), u], 0);
        cache.window = u.clone().narrow(0, n, history);
        // The kept rows stand before the new ones as if they were the start of the example: zeros there read the
        // same as nothing.
        let position_ids = (0..(history + n) as u32).collect();
        let qkv = causal_conv1d_silu(u, self.conv1d.tensor(), &position_ids).narrow(0, history, n);
        let (mixed, state) = continue_delta_rule(self.dims(), qkv, g, beta, cache.state.clone());
        cache.state = state;
        self.gate_and_join(mixed, z)
    }

    pub(crate) fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Param)) {
        for linear in self.linears() {
            linear.visit(f);
        }
        [&self.conv1d, &self.a_log, &self.dt_bias, &self.norm].into_iter().for_each(f);
    }

    pub(crate) fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        for linear in self.linears_mut() {
            linear.visit_mut(f);
        }
        [&mut self.conv1d, &mut self.a_log, &mut self.dt_bias, &mut self.norm].into_iter().for_each(f);
    }

    pub(crate) fn linears(&self) -> [&Linear; 5] {
        [&self.in_proj_qkv, &self.in_proj_z, &self.in_proj_b, &self.in_proj_a, &self.out_proj]
    }

    pub(crate) fn linears_mut(&mut self) -> [&mut Linear; 5] {
        [
            &mut self.in_proj_qkv,
            &mut self.in_proj_z,
            &mut self.in_proj_b,
            &mut self.in_proj_a,
            &mut self.out_proj,
        ]
    }
}
