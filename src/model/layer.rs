//! One decoder layer: `h = x + mixer(norm(x))`, `y = h + mlp(norm(h))`.

use crate::attention::{Attention, norm};
use crate::cache::{AttentionCache, LayerCache};
use crate::delta_net::DeltaNet;
use crate::{Checkpoint, Linear, ModelError, Param, Row};
use burn::tensor::{Device, Tensor};
use sparktune_kernels::rms_norm::add_rms_norm;
use sparktune_kernels::rope::RopeTable;
use sparktune_kernels::silu_mul::silu_mul;
use sparktune_plan::model_config::{LayerType, ModelConfig};

#[derive(Clone, Debug)]
pub(crate) struct Mlp {
    pub(crate) gate_proj: Linear,
    pub(crate) up_proj: Linear,
    pub(crate) down_proj: Linear,
}

impl Mlp {
    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let [gate, up] = Linear::together([&self.gate_proj, &self.up_proj], x);
        self.down_proj.forward(silu_mul(gate, up))
    }
}

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // a layer lives as long as the model; boxing would only add a pointer
pub(crate) enum Mixer {
    Full(Attention),
    Linear(DeltaNet),
}

#[derive(Clone, Debug)]
pub(crate) struct DecoderLayer {
    pub(crate) input_layernorm: Param,
    pub(crate) mixer: Mixer,
    pub(crate) post_attention_layernorm: Param,
    pub(crate) mlp: Mlp,
}

/// What flows from layer to layer, `[T, H]`: `x`, or `x + branch`, which the norm behind adds in the same pass.
pub(crate) struct Stream {
    x: Tensor<2>,
    branch: Option<Tensor<2>>,
}

impl From<Tensor<2>> for Stream {
    fn from(x: Tensor<2>) -> Self {
        Self { x, branch: None }
    }
}

impl Stream {
    pub(crate) fn sum(self) -> Tensor<2> {
        match self.branch {
            Some(branch) => self.x + branch,
            None => self.x,
        }
    }

    /// [`norm`] of the sum, and the sum.
    pub(crate) fn norm(self, weight: &Param, config: &ModelConfig) -> [Tensor<2>; 2] {
        let Some(branch) = self.branch else { return [norm(self.x.clone(), weight, config), self.x] };
        add_rms_norm(self.x, branch, weight.tensor(), config.rms_norm_eps, config.zero_centred_norms())
    }
}

impl DecoderLayer {
    /// Loads the layer at `path` (`layers.3`, or `mtp.layers.0`).
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        layer_type: LayerType,
        path: &str,
        device: &Device,
    ) -> Result<Self, ModelError> {
        let (h, i) = (config.hidden_size, config.intermediate_size);
        let mixer = match (layer_type, &config.linear_attention) {
            (LayerType::LinearAttention, Some(shape)) => Mixer::Linear(DeltaNet::load(
                checkpoint,
                config,
                shape,
                &format!("{path}.linear_attn"),
                device,
            )?),
            _ => Mixer::Full(Attention::load(checkpoint, config, &format!("{path}.self_attn"), device)?),
        };
        let linear = |name: &str, out: usize, input: usize| {
            let weight = checkpoint.param(&format!("{path}.mlp.{name}.weight"), &[out, input], device)?;
            Ok::<_, ModelError>(Linear { weight, bias: None, lora: None })
        };
        let norm = |name: &str| checkpoint.param(&format!("{path}.{name}.weight"), &[h], device);
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            mixer,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp: Mlp {
                gate_proj: linear("gate_proj", i, h)?,
                up_proj: linear("up_proj", i, h)?,
                down_proj: linear("down_proj", h, i)?,
            },
        })
    }

    pub(crate) fn forward(
        &self,
        stream: impl Into<Stream>,
        row: &Row,
        table: &RopeTable,
        config: &ModelConfig,
    ) -> Stream {
        let [normed, x] = stream.into().norm(&self.input_layernorm, config);
        let mixed = match &self.mixer {
            Mixer::Full(attention) => attention.forward(normed, row, table),
            Mixer::Linear(delta_net) => delta_net.forward(normed, row),
        };
        self.finish(x, mixed, config)
    }

    /// What this layer remembers before the first token.
    pub(crate) fn empty_cache(&self, device: &Device) -> LayerCache {
        match &self.mixer {
            Mixer::Full(_) => LayerCache::Full(AttentionCache::default()),
            Mixer::Linear(delta_net) => LayerCache::Linear(delta_net.empty_cache(&device.clone().inner())),
        }
    }

    /// Continues one example from `cache`, which must be of this layer's kind.
    pub(crate) fn continue_from(
        &self,
        stream: impl Into<Stream>,
        table: &RopeTable,
        config: &ModelConfig,
        cache: &mut LayerCache,
    ) -> Stream {
        let [normed, x] = stream.into().norm(&self.input_layernorm, config);
        let mixed = match (&self.mixer, cache) {
            (Mixer::Full(attention), LayerCache::Full(cache)) => {
                attention.continue_from(normed, table, cache)
            }
            (Mixer::Linear(delta_net), LayerCache::Linear(cache)) => delta_net.continue_from(normed, cache),
            _ => unreachable!("a cache is made from its layer"),
        };
        self.finish(x, mixed, config)
    }

    fn finish(&self, x: Tensor<2>, mixed: Tensor<2>, config: &ModelConfig) -> Stream {
        let [normed, h] = Stream { x, branch: Some(mixed) }.norm(&self.post_attention_layernorm, config);
        Stream { x: h, branch: Some(self.mlp.forward(normed)) }
    }

    pub(crate) fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Param)) {
        f(&self.input_layernorm);
        match &self.mixer {
            Mixer::Full(attention) => attention.visit(f),
            Mixer::Linear(delta_net) => delta_net.visit(f),
        }
        f(&self.post_attention_layernorm);
        for linear in [&self.mlp.gate_proj, &self.mlp.up_proj, &self.mlp.down_proj] {
            linear.visit(f);
        }
    }

    pub(crate) fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        f(&mut self.input_layernorm);
        match &mut self.mixer {
            Mixer::Full(attention) => attention.visit_mut(f),
            Mixer::Linear(delta_net) => delta_net.visit_mut(f),
        }
        f(&mut self.post_attention_layernorm);
        for linear in [&mut self.mlp.gate_proj, &mut self.mlp.up_proj, &mut self.mlp.down_proj] {
            linear.visit_mut(f);
        }
    }

    /// Every linear that can carry an adapter.
    pub(crate) fn linears(&self) -> Vec<&Linear> {
        let mut linears: Vec<&Linear> = match &self.mixer {
            Mixer::Full(attention) => attention.linears().into(),
            Mixer::Linear(delta_net) => delta_net.linears().into(),
        };
        linears.extend([&self.mlp.gate_proj, &self.mlp.up_proj, &self.mlp.down_proj]);
        linears
    }

    /// As [`Self::linears`], for changes.
    pub(crate) fn linears_mut(&mut self) -> Vec<&mut Linear> {
        let mut linears: Vec<&mut Linear> = match &mut self.mixer {
            Mixer::Full(attention) => attention.linears_mut().into(),
            Mixer::Linear(delta_net) => delta_net.linears_mut().into(),
        };
        linears.extend([&mut self.mlp.gate_proj, &mut self.mlp.up_proj, &mut self.mlp.down_proj]);
        linears
    }
}
