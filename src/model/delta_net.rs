//! Gated DeltaNet: the linear-attention layer of Qwen3.5 (SPEC.md 2.4).
//!
//! Shapes: `T` tokens, `H` hidden_size, `C` channels of the convolution (queries, keys and values), `M` value
//! heads, `V` width of a value head. A name ends with the shape of its tensor; all are matrices of `T` rows,
//! so that `z_TMV` is `[T, M·V]`.
#![expect(non_snake_case, reason = "names end with the shapes of their tensors")]

use burn::tensor::{Device, Tensor};
use sparktune_kernels::causal_conv1d_silu::{causal_conv1d_silu, continue_conv1d_silus};
use sparktune_kernels::delta_gates::delta_gates;
use sparktune_kernels::gated_delta_rule::{Dims, continue_delta_rules, empty_state, gated_delta_rule};
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
        let each = computed == Rows::OneByOne;
        let of_caches = |of: fn(&DeltaCache) -> &Tensor<2>| {
            caches.iter().map(|(rows, cache)| (*rows, of(cache).clone())).collect()
        };
        let (windows, states) = (of_caches(|cache| &cache.window), of_caches(|cache| &cache.state));
        let (qkv_TC, windows) = continue_conv1d_silus(u_TC, self.conv1d.tensor(), windows, each);
        let (mixed_TMV, states) = continue_delta_rules(self.dims(), [qkv_TC, g_TM, beta_TM], states, each);
        for ((_, cache), (windows, states)) in caches.iter_mut().zip(windows.into_iter().zip(states)) {
            cache.before = windows.into_iter().zip(states).collect();
            (cache.window, cache.state) = cache.before.pop().expect("an example has at least one row");
        }
        self.gate_and_project(mixed_TMV, z_TMV)
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
