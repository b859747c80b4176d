//! The types of the family tables: the computation of a decoder layer and its tensors.
//!
//! Whatever depends on the layers of a model is derived from these values: loading, adapter targets, which
//! linear layers are computed together, export checks, memory, FLOPs, launches, and the products that are
//! benchmarked. Pure data; it must not know `config.json` or the contents of tensors.

use super::rope::Rope;

/// The layers of a decoder, as its family builds them.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderSpec {
    /// One entry per layer, first layer first.
    pub layers: Vec<LayerSpec>,
    /// The norm after the last layer.
    pub norm: NormSpec,
    /// The factor that embeddings are multiplied by, rounded to the type of their table.
    pub embedding_scale: Option<f64>,
    /// The structure of one multi-token-prediction head, if the family has such heads.
    pub mtp: Option<MtpSpec>,
}

/// One decoder layer: a mixer and a gated MLP, each with its norms and a residual connection around it.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// The part of the layer in which tokens exchange information.
    pub mixer: MixerSpec,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// The activation of the MLP's gate.
    pub activation: Activation,
    /// Every tensor of the layer, in the order of the forward pass.
    pub parts: Vec<Part>,
    /// The number of values per token that the forward pass keeps for the backward pass, without those of
    /// adapters.
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
    /// A linear layer, to which an adapter can be attached.
    Linear(LinearSpec),
    /// Any other tensor.
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
    /// The factor on the products of queries and keys.
    pub scale: f32,
    /// The RoPE of queries and keys.
    pub rope: Rope,
    /// The number of tokens that a token attends to at most, including itself; `None` means all previous
    /// tokens.
    pub sliding_window: Option<usize>,
    /// Whether the result is multiplied by the sigmoid of a gate, which `q_proj` computes along with each
    /// head's queries.
    pub output_gate: bool,
}

/// The shape of a gated DeltaNet.
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
    /// The module path relative to the layer: `self_attn.q_proj`.
    pub path: &'static str,
    /// The width of `y`, which is the number of rows of the weight.
    pub output: usize,
    /// The width of `x`, which is the number of columns of the weight.
    pub input: usize,
    /// Whether it has a bias.
    pub has_bias: bool,
    /// The input, which several linear layers may share.
    pub reads: Reads,
}

/// The activation that a linear layer reads. Linear layers of a layer that read the same activation are
/// computed together.
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
    /// The module path relative to the layer or the decoder: `input_layernorm`.
    pub path: &'static str,
    /// The number of values that are normalised together.
    pub width: usize,
    /// Whether it multiplies by `1 + weight` instead of `weight`.
    pub zero_centred: bool,
    /// The input of the norm.
    pub place: Place,
}

/// The input of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The residual stream before the mixer.
    BeforeMixer,
    /// The mixer's contribution to the residual stream.
    AfterMixer,
    /// The residual stream before the MLP.
    BeforeMlp,
    /// The MLP's contribution to the residual stream.
    AfterMlp,
    /// Each head's queries.
    Queries,
    /// Each head's keys.
    Keys,
    /// Each head's output of a gated DeltaNet.
    DeltaOutput,
    /// The residual stream after the last layer, and the inputs of all norms of an MTP head.
    Decoder,
}

/// The name and shape of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The name relative to the layer, the MTP head or the decoder: `linear_attn.A_log`.
    pub name: String,
    /// Shape in the checkpoint.
    pub shape: Vec<usize>,
    /// Whether untrained values are close to one instead of zero, as in the weight of a norm that is not
    /// zero-centred.
    pub around_one: bool,
}

/// A multi-token-prediction head: one more decoder layer, and the tensors that join its two inputs. All names
/// start with `mtp`. The head has neither an embedding nor an output head of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct MtpSpec {
    /// The decoder layer, at `layers.0`.
    pub layer: LayerSpec,
    /// The projection of the embedding of the next token and the hidden state, concatenated, to the width of
    /// the layer.
    pub projection: TensorSpec,
    /// Norm of the embedding of the next token.
    pub embedding_norm: NormSpec,
    /// Norm of the hidden state.
    pub hidden_norm: NormSpec,
    /// Norm after the layer.
    pub norm: NormSpec,
}

impl DecoderSpec {
    /// Creates a decoder of these layers without the features that only some families have.
    pub(super) const fn plain(layers: Vec<LayerSpec>, norm: NormSpec) -> Self {
        Self { layers, norm, embedding_scale: None, mtp: None }
    }
}

impl LayerSpec {
    /// Returns the linear layers in forward order.
    pub fn linears(&self) -> impl Iterator<Item = &LinearSpec> {
        self.parts.iter().filter_map(|part| match part {
            Part::Linear(linear) => Some(linear),
            Part::Norm(_) | Part::Tensor(_) => None,
        })
    }

    /// Returns the linear layers in groups that read the same input, in forward order.
    pub fn input_groups(&self) -> Vec<Vec<&LinearSpec>> {
        let linears: Vec<&LinearSpec> = self.linears().collect();
        linears.chunk_by(|one, next| one.reads == next.reads).map(<[_]>::to_vec).collect()
    }

    /// Returns the norms in forward order.
    pub fn norms(&self) -> impl Iterator<Item = &NormSpec> {
        self.parts.iter().filter_map(|part| match part {
            Part::Norm(norm) => Some(norm),
            Part::Linear(_) | Part::Tensor(_) => None,
        })
    }

    /// Returns the norm at a place, if there is one.
    pub fn norm(&self, place: Place) -> Option<&NormSpec> {
        self.norms().find(|norm| norm.place == place)
    }

    /// Returns every tensor, named relative to the layer, in the order of the forward pass.
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

    /// Returns the number of parameters.
    pub fn parameters(&self) -> u64 {
        parameters(&self.tensors())
    }

    /// Returns the number of values per token that the forward pass keeps for the backward pass, with
    /// adapters of this rank on the linear layers for which `is_adapted` is true.
    pub fn kept_with_adapters(&self, rank: usize, is_adapted: impl Fn(&LinearSpec) -> bool) -> usize {
        let adapted = self.linears().filter(|linear| is_adapted(linear));
        self.kept_per_token + adapted.map(|linear| linear.adapter_rank(rank)).sum::<usize>()
    }
}

impl MtpSpec {
    /// Returns every tensor with its name in the checkpoint.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let mut tensors =
            vec![self.projection.clone(), self.embedding_norm.weight(), self.hidden_norm.weight()];
        tensors.extend(self.layer.tensors().into_iter().map(|tensor| tensor.below("layers.0")));
        tensors.push(self.norm.weight());
        tensors.into_iter().map(|tensor| tensor.below("mtp")).collect()
    }
}

impl AttentionSpec {
    /// Returns the average number of tokens that a token attends to, including itself, in an example of
    /// `length` tokens.
    pub fn mean_context(&self, length: f64) -> f64 {
        match self.sliding_window.map(|window| window as f64) {
            // Tokens within the first window attend to half of it on average, all later ones to the whole
            // window.
            Some(window) if window < length => window - window * window / (2.0 * length),
            Some(_) | None => length / 2.0,
        }
    }
}

impl DeltaNetSpec {
    /// Returns the number of channels of all query heads, which is also that of all key heads.
    pub fn key_dim(&self) -> usize {
        self.num_key_heads * self.key_head_dim
    }

    /// Returns the number of channels of all value heads.
    pub fn value_dim(&self) -> usize {
        self.num_value_heads * self.value_head_dim
    }

    /// Returns the number of channels that pass through the convolution: queries, keys and values.
    pub fn conv_dim(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }
}

impl LinearSpec {
    /// Returns the last part of the path: `q_proj`.
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// Returns the rank of its adapter where the setting is `rank`; see [`clipped_rank`].
    pub fn adapter_rank(&self, rank: usize) -> usize {
        clipped_rank(rank, [self.output, self.input])
    }

    /// Returns its weight.
    pub fn weight(&self) -> TensorSpec {
        TensorSpec::new(format!("{}.weight", self.path), &[self.output, self.input])
    }

    /// Returns its bias, if it has one.
    pub fn bias(&self) -> Option<TensorSpec> {
        self.has_bias.then(|| TensorSpec::new(format!("{}.bias", self.path), &[self.output]))
    }
}

impl NormSpec {
    /// Returns its weight.
    pub fn weight(&self) -> TensorSpec {
        let around_one = !self.zero_centred;
        TensorSpec { around_one, ..TensorSpec::new(format!("{}.weight", self.path), &[self.width]) }
    }
}

impl TensorSpec {
    /// Creates a tensor whose untrained values are close to zero.
    pub fn new(name: impl Into<String>, shape: &[usize]) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), around_one: false }
    }

    /// Returns the same tensor with its name relative to the parent of `module`.
    #[must_use]
    pub fn below(self, module: &str) -> Self {
        Self { name: format!("{module}.{}", self.name), ..self }
    }

    /// Returns the number of values.
    pub fn parameters(&self) -> u64 {
        // The sizes of a hostile config must not overflow.
        self.shape.iter().fold(1, |product: u64, size| product.saturating_mul(*size as u64))
    }
}

/// Returns the rank of the adapter of a weight of this shape, `[out, in]`, where the setting is `rank`: no
/// more than the smaller width, because a product of wider matrices has no higher rank but more parameters
/// than the weight itself.
///
/// The width is rounded up to a multiple of 8, as the CUDA kernels need it; that of every published model
/// is one.
pub fn clipped_rank(rank: usize, [output, input]: [usize; 2]) -> usize {
    rank.min(output.min(input).next_multiple_of(8))
}

/// Returns the number of values in all of these tensors.
pub fn parameters(tensors: &[TensorSpec]) -> u64 {
    tensors.iter().fold(0, |sum: u64, tensor| sum.saturating_add(tensor.parameters()))
}
