//! The vocabulary of the family tables: what a decoder layer computes and which tensors it holds.
//!
//! Whatever depends on the layers of a model is derived from these values: loading, adapter targets, which
//! linear layers are computed together, export checks, memory, FLOPs, launches, and the products that are
//! benchmarked. Pure data; knows neither `config.json` nor tensors with numbers in them.

use super::rope::Rope;

/// The layers of a decoder, as its family builds them.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderSpec {
    /// One entry a layer, first layer first.
    pub layers: Vec<LayerSpec>,
    /// The norm after the last layer.
    pub norm: NormSpec,
    /// Embeddings are multiplied by this number, rounded to the type of their table.
    pub embedding_scale: Option<f64>,
    /// How one multi-token-prediction head is built, where the family has such heads.
    pub mtp: Option<MtpSpec>,
}

/// One decoder layer: a mixer and a gated MLP, each with its norms and a residual connection around it.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// How tokens exchange information.
    pub mixer: MixerSpec,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// What the MLP's gate passes through.
    pub activation: Activation,
    /// Every tensor of the layer, in the order of the forward pass.
    pub parts: Vec<Part>,
    /// Numbers that the forward pass keeps for the backward pass, for each token, without those of adapters.
    pub kept_per_token: usize,
}

/// The activation of an MLP's gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU in its approximation by a hyperbolic tangent, `gelu_pytorch_tanh`.
    GeluTanh,
}

/// One row of a layer's table.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// The weight of an RMSNorm.
    Norm(NormSpec),
    /// A linear layer, which may carry an adapter.
    Linear(LinearSpec),
    /// Anything else.
    Tensor(TensorSpec),
}

/// The mixer of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum MixerSpec {
    /// Softmax attention.
    Attention(AttentionSpec),
    /// Gated DeltaNet, a linear attention with a state of fixed size.
    GatedDeltaNet(DeltaNetSpec),
}

/// Softmax attention with grouped heads.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; they divide the query heads.
    pub num_key_value_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Factor on the products of queries and keys.
    pub scale: f32,
    /// How positions rotate queries and keys.
    pub rope: Rope,
    /// A token sees at most this many tokens, itself included; all before it where this is `None`.
    pub sliding_window: Option<usize>,
    /// The result is gated by a sigmoid, whose input is computed in `q_proj` beside each head's queries.
    pub output_gate: bool,
}

/// Shape of a gated DeltaNet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaNetSpec {
    /// Query and key heads.
    pub num_key_heads: usize,
    /// Value heads, a multiple of `num_key_heads`.
    pub num_value_heads: usize,
    /// Width of a query or key head.
    pub key_head_dim: usize,
    /// Width of a value head.
    pub value_head_dim: usize,
    /// Taps of the causal depthwise convolution.
    pub conv_kernel_dim: usize,
}

/// A linear layer `y = x Wᵀ (+ bias)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearSpec {
    /// Module path below the layer: `self_attn.q_proj`.
    pub path: &'static str,
    /// Width of `y`: rows of the weight.
    pub output: usize,
    /// Width of `x`: columns of the weight.
    pub input: usize,
    /// Whether it has a bias.
    pub has_bias: bool,
    /// The input that these linears share.
    pub reads: Reads,
}

/// The activation that a linear layer reads. Those of a layer that read the same one are computed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// The normed input of the mixer.
    MixerInput,
    /// The output of the mixer.
    Mixed,
    /// The normed input of the MLP.
    MlpInput,
    /// The MLP's gated activations.
    MlpHidden,
}

/// An RMSNorm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NormSpec {
    /// Module path below the layer, or below the decoder: `input_layernorm`.
    pub path: &'static str,
    /// How many numbers it normalises together.
    pub width: usize,
    /// Multiplies by `1 + weight` instead of by `weight`.
    pub zero_centred: bool,
    /// The input of the norm.
    pub place: Place,
}

/// The input of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The residual stream before the mixer.
    BeforeMixer,
    /// What the mixer adds to the residual stream.
    AfterMixer,
    /// The residual stream before the MLP.
    BeforeMlp,
    /// What the MLP adds to the residual stream.
    AfterMlp,
    /// Each head's queries.
    Queries,
    /// Each head's keys.
    Keys,
    /// Each head of what a gated DeltaNet has computed.
    DeltaOutput,
    /// The residual stream after the last layer, and whatever an MTP head normalises.
    Decoder,
}

/// A tensor by name and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name below the layer, the MTP head, or the decoder: `linear_attn.A_log`.
    pub name: String,
    /// Shape in the checkpoint.
    pub shape: Vec<usize>,
    /// Untrained numbers lie around one instead of around zero: the weight of a norm that is not
    /// zero-centred.
    pub around_one: bool,
}

/// A multi-token-prediction head: one more decoder layer, and what joins its two inputs. All names are below
/// `mtp`. The head has neither an embedding nor an output head of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct MtpSpec {
    /// The decoder layer, at `layers.0`.
    pub layer: LayerSpec,
    /// Projects the embedding of the next token and the hidden state, concatenated, to the width of the
    /// layer.
    pub projection: TensorSpec,
    /// Norm of the embedding of the next token.
    pub embedding_norm: NormSpec,
    /// Norm of the hidden state.
    pub hidden_norm: NormSpec,
    /// Norm after the layer.
    pub norm: NormSpec,
}

impl DecoderSpec {
    /// A decoder of these layers, with nothing else that only some families have.
    pub(super) const fn plain(layers: Vec<LayerSpec>, norm: NormSpec) -> Self {
        Self { layers, norm, embedding_scale: None, mtp: None }
    }
}

impl LayerSpec {
    /// The linear layers, in forward order.
    pub fn linears(&self) -> impl Iterator<Item = &LinearSpec> {
        self.parts.iter().filter_map(|part| match part {
            Part::Linear(linear) => Some(linear),
            Part::Norm(_) | Part::Tensor(_) => None,
        })
    }

    /// The linear layers in groups that read the same input, in forward order.
    pub fn input_groups(&self) -> Vec<Vec<&LinearSpec>> {
        let linears: Vec<&LinearSpec> = self.linears().collect();
        linears.chunk_by(|one, next| one.reads == next.reads).map(<[_]>::to_vec).collect()
    }

    /// The norms, in forward order.
    pub fn norms(&self) -> impl Iterator<Item = &NormSpec> {
        self.parts.iter().filter_map(|part| match part {
            Part::Norm(norm) => Some(norm),
            Part::Linear(_) | Part::Tensor(_) => None,
        })
    }

    /// The norm at a place, where there is one.
    pub fn norm(&self, place: Place) -> Option<&NormSpec> {
        self.norms().find(|norm| norm.place == place)
    }

    /// Every tensor, named below the layer, in the order of the forward pass.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        self.parts
            .iter()
            .flat_map(|part| match part {
                Part::Norm(norm) => [Some(norm.weight()), None],
                Part::Linear(linear) => [Some(linear.weight()), linear.bias()],
                Part::Tensor(tensor) => [Some(tensor.clone()), None],
            })
            .flatten()
            .collect()
    }

    /// Numbers in all its tensors.
    pub fn parameters(&self) -> u64 {
        parameters(&self.tensors())
    }

    /// Numbers that the forward pass keeps for the backward pass, for each token, with adapters of this rank.
    pub fn kept_with_adapters(&self, rank: usize) -> usize {
        self.kept_per_token + rank * self.linears().count()
    }
}

impl MtpSpec {
    /// Every tensor by its name in the checkpoint.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let mut tensors =
            vec![self.projection.clone(), self.embedding_norm.weight(), self.hidden_norm.weight()];
        tensors.extend(self.layer.tensors().into_iter().map(|tensor| tensor.below("layers.0")));
        tensors.push(self.norm.weight());
        tensors.into_iter().map(|tensor| tensor.below("mtp")).collect()
    }
}

impl AttentionSpec {
    /// How many tokens a token sees, itself included, on average over an example of `length` tokens.
    pub fn mean_context(&self, length: f64) -> f64 {
        match self.sliding_window.map(|window| window as f64) {
            // The first tokens see half the window on average, all behind them the whole of it.
            Some(window) if window < length => window - window * window / (2.0 * length),
            Some(_) | None => length / 2.0,
        }
    }
}

impl DeltaNetSpec {
    /// Channels of all query heads, and of all key heads.
    pub fn key_dim(&self) -> usize {
        self.num_key_heads * self.key_head_dim
    }

    /// Channels of all value heads.
    pub fn value_dim(&self) -> usize {
        self.num_value_heads * self.value_head_dim
    }

    /// Channels that pass the convolution: queries, keys and values.
    pub fn conv_dim(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }
}

impl LinearSpec {
    /// The last part of the path: `q_proj`.
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// Its weight.
    pub fn weight(&self) -> TensorSpec {
        TensorSpec::new(format!("{}.weight", self.path), &[self.output, self.input])
    }

    /// Its bias, where it has one.
    pub fn bias(&self) -> Option<TensorSpec> {
        self.has_bias.then(|| TensorSpec::new(format!("{}.bias", self.path), &[self.output]))
    }
}

impl NormSpec {
    /// Its one tensor.
    pub fn weight(&self) -> TensorSpec {
        let around_one = !self.zero_centred;
        TensorSpec { around_one, ..TensorSpec::new(format!("{}.weight", self.path), &[self.width]) }
    }
}

impl TensorSpec {
    /// A tensor whose untrained numbers lie around zero.
    pub fn new(name: impl Into<String>, shape: &[usize]) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), around_one: false }
    }

    /// The same tensor, named below a module.
    #[must_use]
    pub fn below(self, module: &str) -> Self {
        Self { name: format!("{module}.{}", self.name), ..self }
    }

    /// How many numbers it holds.
    pub fn parameters(&self) -> u64 {
        // Sizes of a hostile config must not overflow.
        self.shape.iter().fold(1, |product: u64, size| product.saturating_mul(*size as u64))
    }
}

/// Numbers in all of these tensors.
pub fn parameters(tensors: &[TensorSpec]) -> u64 {
    tensors.iter().fold(0, |sum: u64, tensor| sum.saturating_add(tensor.parameters()))
}
