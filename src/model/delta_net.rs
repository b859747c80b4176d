//! Gated DeltaNet: the linear-attention layer of Qwen3.5 (SPEC.md 2.4).
//!
//! Shapes: `T` tokens, `H` hidden_size, `C` channels of the convolution (queries, keys and values), `M` value
//! heads, `V` width of a value head. A name ends with the shape of its tensor; all are matrices of `T` rows,
//! so that `z_TMV` is `[T, M·V]`.
#![expect(non_snake_case, reason = "names end with the shapes of their tensors")]

use burn::tensor::{Device, Tensor};
use sparktune_kernels::causal_conv1d_silu::{causal_conv1d_silu, continue_conv1d_silu};
use sparktune_kernels::delta_gates::delta_gates;
use sparktune_kernels::gated_delta_rule::{Dims, continue_delta_rule, empty_state, gated_delta_rule};
use sparktune_kernels::gated_rms_norm::gated_rms_norm;
use sparktune_plan::architecture::{DeltaNetSpec, Place, Reads};

use crate::cache::{DeltaCache, Rows};
use crate::error::ModelError;
use crate::layer_loader::LayerLoader;
use crate::linear::Linear;
use crate::module::module;
use crate::norm::Norm;
use crate::packed_sequence::PackedSequence;
use crate::param::Param;

#[derive(Debug, Clone)]
pub(crate) struct DeltaNet {
    /// `in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a`.
    in_proj: [Linear; 4],
    out_proj: Linear,
    /// The weight of the convolution, `[C, 1, taps]`.
    pub(crate) conv1d: Param,
    a_log: Param,
    dt_bias: Param,
    pub(crate) norm: Norm,
    spec: DeltaNetSpec,
}

module!(DeltaNet { in_proj, out_proj, conv1d, a_log, dt_bias, norm });

/// The inputs of the delta rule, from the projections of a layer's input.
pub(crate) struct Projected {
    /// The input of the convolution.
    pub(crate) u_TC: Tensor<2>,
    /// The input of the output gate.
    pub(crate) z_TMV: Tensor<2>,
    /// The logarithm of the state's decay.
    pub(crate) g_TM: Tensor<2>,
    /// The strength with which a token is written into the state.
    pub(crate) beta_TM: Tensor<2>,
}

impl DeltaNet {
    pub(crate) fn load(loader: LayerLoader, spec: &DeltaNetSpec) -> Result<Self, ModelError> {
        Ok(Self {
            in_proj: loader.linears(Reads::MixerInput)?,
            out_proj: loader.linear(Reads::Mixed)?,
            conv1d: loader.tensor("linear_attn.conv1d.weight")?,
            a_log: loader.tensor("linear_attn.A_log")?,
            dt_bias: loader.tensor("linear_attn.dt_bias")?,
            norm: loader.norm(Place::DeltaOutput)?,
            spec: spec.clone(),
        })
    }

    /// Mixes the tokens of each example of a sequence.
    pub(crate) fn forward(&self, x_TH: Tensor<2>, sequence: &PackedSequence) -> Tensor<2> {
        let Projected { u_TC, z_TMV, g_TM, beta_TM } = self.project(x_TH);
        let qkv_TC = causal_conv1d_silu(u_TC, self.conv1d.tensor(), &sequence.position_ids);
        let mixed_TMV = gated_delta_rule(self.dims(), qkv_TC, g_TM, beta_TM, &sequence.cu_seqlens);
        self.gate_and_project(mixed_TMV, z_TMV)
    }

    /// Returns a cache without tokens, with zeros in the window of the convolution and in the state.
    pub(crate) fn empty_cache(&self, device: &Device) -> DeltaCache {
        let spec = &self.spec;
        DeltaCache {
            window: Tensor::zeros(
                [spec.conv_kernel_dim - 1, spec.conv_dim()],
                (device, self.conv1d.tensor().dtype()),
            ),
            state: empty_state(self.dims(), device),
            before: Vec::new(),
        }
    }

    /// Continues examples, each by some rows of `x_TH` and from a cache of its own, which it updates. Of rows
    /// that are computed one by one, the caches before them are kept.
    pub(crate) fn continue_batch(
        &self,
        x_TH: Tensor<2>,
        caches: &mut [(usize, &mut DeltaCache)],
        computed: Rows,
    ) -> Tensor<2> {
        let Projected { u_TC, z_TMV, g_TM, beta_TM } = self.project(x_TH);
        let (mut mixed, mut first) = (Vec::new(), 0);
        for (rows, cache) in caches {
            cache.before.clear();
            let count = match computed {
                Rows::InBlocks => *rows,
                Rows::OneByOne => 1,
            };
            for i in (0..*rows).step_by(count) {
                if i > 0 {
                    cache.before.push((cache.window.clone(), cache.state.clone()));
                }
                let [u, g, beta] = [&u_TC, &g_TM, &beta_TM].map(|x| x.clone().narrow(0, first, count));
                mixed.push(self.mix(u, g, beta, cache));
                first += count;
            }
        }
        self.gate_and_project(Tensor::cat(mixed, 0), z_TMV)
    }

    /// Convolves the new tokens of one example and applies the delta rule; updates window and state.
    fn mix(&self, u_TC: Tensor<2>, g_TM: Tensor<2>, beta_TM: Tensor<2>, cache: &mut DeltaCache) -> Tensor<2> {
        let (window, state) = (cache.window.clone(), cache.state.clone());
        let (qkv_TC, window) = continue_conv1d_silu(u_TC, self.conv1d.tensor(), window);
        let (mixed_TMV, state) = continue_delta_rule(self.dims(), qkv_TC, g_TM, beta_TM, state);
        (cache.window, cache.state) = (window, state);
        mixed_TMV
    }

    pub(crate) fn project(&self, x_TH: Tensor<2>) -> Projected {
        let [u_TC, z_TMV, b_TM, a_TM] = Linear::forward_fused(&self.in_proj, x_TH);
        let [g_TM, beta_TM] = delta_gates(a_TM, b_TM, self.a_log.tensor(), self.dt_bias.tensor());
        Projected { u_TC, z_TMV, g_TM, beta_TM }
    }

    pub(crate) fn gate_and_project(&self, mixed_TMV: Tensor<2>, z_TMV: Tensor<2>) -> Tensor<2> {
        let gated_TMV = gated_rms_norm(mixed_TMV, z_TMV, self.norm.weight.tensor(), self.norm.eps);
        self.out_proj.forward(gated_TMV)
    }

    pub(crate) fn dims(&self) -> Dims {
        Dims {
            key_heads: self.spec.num_key_heads,
            value_heads: self.spec.num_value_heads,
            key_dim: self.spec.key_head_dim,
            value_dim: self.spec.value_head_dim,
        }
    }
}
