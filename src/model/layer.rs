//! One decoder layer: `h = x + mixer(norm(x))`, `y = h + mlp(norm(h))`. Some families also normalise the
//! outputs of mixer and MLP: `h = x + norm(mixer(norm(x)))`.
//!
//! Shapes: `T` tokens, `H` hidden_size, `I` intermediate_size. A name ends with the shape of its tensor.
#![expect(non_snake_case, reason = "names end with the shapes of their tensors")]

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use sparktune_kernels::gelu_mul::gelu_mul;
use sparktune_kernels::packed_attention::cache::KeyValueCache;
use sparktune_kernels::silu_mul::silu_mul;
use sparktune_plan::architecture::{Activation, MixerSpec, Place, Reads};

use crate::attention::Attention;
use crate::cache::{Branches, LayerCache, Rows};
use crate::codebook::Codebook;
use crate::delta_net::DeltaNet;
use crate::error::ModelError;
use crate::layer_loader::LayerLoader;
use crate::linear::Linear;
use crate::module::{Module, Part, PartMut, module};
use crate::norm::Norm;
use crate::packed_sequence::PackedSequence;
use crate::rope_tables::RopeTables;

/// The MLP `down(activation(gate(x)) · up(x))`.
#[derive(Debug, Clone)]
pub(crate) struct Mlp {
    /// `gate_proj` and `up_proj`.
    gate_up: [Linear; 2],
    pub(crate) down_proj: Linear,
    activation: Activation,
    /// Corrections of its output, if the model has a side memory in this layer.
    pub(crate) codebook: Option<Arc<Codebook>>,
}

module!(Mlp { gate_up, down_proj });

/// What an MLP computes for the tokens of a sequence, for a look or a change from outside.
#[derive(Debug, Clone)]
pub struct MlpTap {
    /// Its input after the norm, `[T, H]`.
    pub input_TH: Tensor<2>,
    /// The input of `down_proj`, `[T, I]`: the keys of the MLP as an associative memory.
    pub key_TI: Tensor<2>,
    /// The output of `down_proj`, `[T, H]`, with the corrections of a codebook: its values.
    pub output_TH: Tensor<2>,
}

/// A place of a layer whose outputs are looked at or changed from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spot {
    /// The output of its attention or DeltaNet.
    Mixer,
    /// The output of its MLP.
    Mlp,
    /// The residual stream behind it.
    State,
}

impl Mlp {
    fn load(loader: LayerLoader) -> Result<Self, ModelError> {
        Ok(Self {
            gate_up: loader.linears(Reads::MlpInput)?,
            down_proj: loader.linear(Reads::MlpHidden)?,
            activation: loader.spec.activation,
            codebook: None,
        })
    }

    /// Returns the input of `down_proj`.
    fn hidden(&self, x_TH: Tensor<2>) -> Tensor<2> {
        let [gate_TI, up_TI] = Linear::forward_fused(&self.gate_up, x_TH);
        match self.activation {
            Activation::Silu => silu_mul(gate_TI, up_TI),
            Activation::GeluTanh => gelu_mul(gate_TI, up_TI),
        }
    }

    pub(crate) fn forward(&self, x_TH: Tensor<2>) -> Tensor<2> {
        match (&self.codebook, self.activation) {
            (None, Activation::Silu) => Linear::forward_gated(&self.gate_up, &self.down_proj, x_TH),
            (None, Activation::GeluTanh) => self.down_proj.forward(self.hidden(x_TH)),
            (Some(_), _) => self.tapped(x_TH).output_TH,
        }
    }

    /// Like [`forward`](Self::forward), with what it computes on the way.
    pub(crate) fn tapped(&self, x_TH: Tensor<2>) -> MlpTap {
        let key_TI = self.hidden(x_TH.clone());
        let output_TH = self.down_proj.forward(key_TI.clone());
        let output_TH = match &self.codebook {
            None => output_TH,
            Some(codebook) => codebook.correct(&x_TH, output_TH),
        };
        MlpTap { input_TH: x_TH, key_TI, output_TH }
    }
}

#[derive(Debug, Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "a layer lives as long as the model; a box would only add a pointer"
)]
pub(crate) enum Mixer {
    Attention(Attention),
    DeltaNet(DeltaNet),
}

impl Module for Mixer {
    fn walk<'a>(&'a self, f: &mut dyn FnMut(Part<'a>)) {
        match self {
            Self::Attention(attention) => attention.walk(f),
            Self::DeltaNet(delta_net) => delta_net.walk(f),
        }
    }

    fn walk_mut<'a>(&'a mut self, f: &mut dyn FnMut(PartMut<'a>)) {
        match self {
            Self::Attention(attention) => attention.walk_mut(f),
            Self::DeltaNet(delta_net) => delta_net.walk_mut(f),
        }
    }
}

const OWN_CACHE: &str = "a cache is made by its layer";

#[derive(Debug, Clone)]
pub(crate) struct DecoderLayer {
    pub(crate) mixer_norm: Norm,
    pub(crate) mixer: Mixer,
    after_mixer: Option<Norm>,
    pub(crate) mlp_norm: Norm,
    pub(crate) mlp: Mlp,
    after_mlp: Option<Norm>,
}

module!(DecoderLayer { mixer_norm, mixer, after_mixer, mlp_norm, mlp, after_mlp });

/// The residual stream between two layers: `x`, or `x + branch`, where the next norm computes the sum in the
/// same pass.
pub(crate) struct Residual {
    x_TH: Tensor<2>,
    branch_TH: Option<Tensor<2>>,
}

impl From<Tensor<2>> for Residual {
    fn from(x_TH: Tensor<2>) -> Self {
        Self { x_TH, branch_TH: None }
    }
}

impl Residual {
    pub(crate) fn sum(self) -> Tensor<2> {
        match self.branch_TH {
            Some(branch_TH) => self.x_TH + branch_TH,
            None => self.x_TH,
        }
    }

    /// Returns the norm of the sum, and the sum.
    pub(crate) fn normed(self, norm: &Norm) -> [Tensor<2>; 2] {
        match self.branch_TH {
            Some(branch_TH) => norm.forward_sum(self.x_TH, branch_TH),
            None => [norm.forward(self.x_TH.clone()), self.x_TH],
        }
    }
}

impl DecoderLayer {
    pub(crate) fn load(loader: LayerLoader) -> Result<Self, ModelError> {
        Ok(Self {
            mixer_norm: loader.norm(Place::BeforeMixer)?,
            mixer: match &loader.spec.mixer {
                MixerSpec::Attention(spec) => Mixer::Attention(Attention::load(loader, spec)?),
                MixerSpec::GatedDeltaNet(spec) => Mixer::DeltaNet(DeltaNet::load(loader, spec)?),
            },
            after_mixer: loader.optional_norm(Place::AfterMixer)?,
            mlp_norm: loader.norm(Place::BeforeMlp)?,
            mlp: Mlp::load(loader)?,
            after_mlp: loader.optional_norm(Place::AfterMlp)?,
        })
    }

    pub(crate) fn forward(
        &self,
        residual: impl Into<Residual>,
        sequence: &PackedSequence,
        ropes: &RopeTables,
    ) -> Residual {
        let [x_TH, mixed_TH] = self.mixed(residual.into(), sequence, ropes);
        self.with_mlp(x_TH, mixed_TH)
    }

    /// Like [`forward`](Self::forward). The output of the MLP is what `tap` returns.
    pub(crate) fn forward_tapped(
        &self,
        residual: Residual,
        sequence: &PackedSequence,
        ropes: &RopeTables,
        tap: &mut dyn FnMut(MlpTap) -> Tensor<2>,
    ) -> Residual {
        let [x_TH, mixed_TH] = self.mixed(residual, sequence, ropes);
        self.with_output(x_TH, mixed_TH, |x_TH| tap(self.mlp.tapped(x_TH)))
    }

    /// Like [`forward`](Self::forward). What mixer and MLP add is what `watch` returns for it.
    pub(crate) fn forward_watched(
        &self,
        residual: Residual,
        sequence: &PackedSequence,
        ropes: &RopeTables,
        watch: &mut dyn FnMut(Spot, Tensor<2>) -> Tensor<2>,
    ) -> Residual {
        let [x_TH, mixed_TH] = self.mixed(residual, sequence, ropes);
        let mixed_TH = watch(Spot::Mixer, mixed_TH);
        self.with_output(x_TH, mixed_TH, |x_TH| watch(Spot::Mlp, self.mlp.forward(x_TH)))
    }

    /// Returns the residual stream and what the mixer adds to it.
    pub(crate) fn mixed(
        &self,
        residual: Residual,
        sequence: &PackedSequence,
        ropes: &RopeTables,
    ) -> [Tensor<2>; 2] {
        let [normed_TH, x_TH] = residual.normed(&self.mixer_norm);
        [x_TH, self.mix(normed_TH, sequence, ropes)]
    }

    /// Returns the output of the mixer for its input.
    pub(crate) fn mix(
        &self,
        normed_TH: Tensor<2>,
        sequence: &PackedSequence,
        ropes: &RopeTables,
    ) -> Tensor<2> {
        match &self.mixer {
            Mixer::Attention(attention) => attention.forward(normed_TH, sequence, ropes),
            Mixer::DeltaNet(delta_net) => delta_net.forward(normed_TH, sequence),
        }
    }

    /// Returns the state of this layer before the first token.
    pub(crate) fn empty_cache(&self, device: &Device) -> LayerCache {
        match &self.mixer {
            Mixer::Attention(_) => LayerCache::Attention(KeyValueCache::default()),
            Mixer::DeltaNet(delta_net) => {
                LayerCache::Delta(Box::new(delta_net.empty_cache(&device.clone().inner())))
            }
        }
    }

    /// Continues examples, each by some rows of the residual and from a cache of its own, which must come
    /// from this layer.
    pub(crate) fn continue_batch(
        &self,
        residual: impl Into<Residual>,
        ropes: &RopeTables,
        caches: Vec<(usize, &mut LayerCache)>,
        computed: Rows,
    ) -> Residual {
        let [normed_TH, x_TH] = residual.into().normed(&self.mixer_norm);
        let mixed_TH = match &self.mixer {
            Mixer::Attention(attention) => {
                let caches = caches.into_iter().map(|(rows, cache)| match cache {
                    LayerCache::Attention(cache) => (rows, cache),
                    LayerCache::Delta(_) => unreachable!("{OWN_CACHE}"),
                });
                attention.continue_batch(normed_TH, ropes, &mut caches.collect::<Vec<_>>(), computed)
            }
            Mixer::DeltaNet(delta_net) => {
                let caches = caches.into_iter().map(|(rows, cache)| match cache {
                    LayerCache::Delta(cache) => (rows, cache.as_mut()),
                    LayerCache::Attention(_) => unreachable!("{OWN_CACHE}"),
                });
                delta_net.continue_batch(normed_TH, &mut caches.collect::<Vec<_>>(), computed)
            }
        };
        self.with_mlp(x_TH, mixed_TH)
    }

    /// Continues one example from several of its tokens, each on a branch of its own (see
    /// [`Attention::continue_branches`]).
    ///
    /// # Panics
    /// When the mixer is not attention: only MTP heads draft, and theirs is.
    pub(crate) fn continue_branches(
        &self,
        residual: impl Into<Residual>,
        ropes: &RopeTables,
        cache: &LayerCache,
        roots: &[usize],
        branches: &mut Branches,
    ) -> Residual {
        let [normed_TH, x_TH] = residual.into().normed(&self.mixer_norm);
        let (Mixer::Attention(attention), LayerCache::Attention(cache)) = (&self.mixer, cache) else {
            unreachable!("the layer of an MTP head is attention");
        };
        let mixed_TH = attention.continue_branches(normed_TH, ropes, cache, roots, branches);
        self.with_mlp(x_TH, mixed_TH)
    }

    /// Adds the mixer's output, and then the MLP's output for the sum.
    fn with_mlp(&self, x_TH: Tensor<2>, mixed_TH: Tensor<2>) -> Residual {
        self.with_output(x_TH, mixed_TH, |x_TH| self.mlp.forward(x_TH))
    }

    /// Like [`with_mlp`](Self::with_mlp), where `mlp` computes the output of the MLP.
    fn with_output(
        &self,
        x_TH: Tensor<2>,
        mixed_TH: Tensor<2>,
        mlp: impl FnOnce(Tensor<2>) -> Tensor<2>,
    ) -> Residual {
        let [normed_TH, x_TH] = self.before_mlp(x_TH, mixed_TH);
        self.behind_mlp(x_TH, mlp(normed_TH))
    }

    /// Adds the mixer's output to the residual stream. Returns the input of the MLP, and the stream.
    pub(crate) fn before_mlp(&self, x_TH: Tensor<2>, mixed_TH: Tensor<2>) -> [Tensor<2>; 2] {
        let mixed = Residual { x_TH, branch_TH: Some(normed_if(mixed_TH, self.after_mixer.as_ref())) };
        mixed.normed(&self.mlp_norm)
    }

    /// Adds the MLP's output to the residual stream.
    pub(crate) fn behind_mlp(&self, x_TH: Tensor<2>, output_TH: Tensor<2>) -> Residual {
        Residual { x_TH, branch_TH: Some(normed_if(output_TH, self.after_mlp.as_ref())) }
    }
}

/// Returns what is added to the residual stream: a branch, normalised where the family does that.
fn normed_if(branch_TH: Tensor<2>, norm: Option<&Norm>) -> Tensor<2> {
    match norm {
        Some(norm) => norm.forward(branch_TH),
        None => branch_TH,
    }
}
