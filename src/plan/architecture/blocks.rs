//! Layers that several families share: softmax attention and a gated MLP in the layout of Llama.

use super::fields::{ConfigError, Fields};
use super::rope::Rope;
use super::table::{
    Activation, AttentionSpec, LayerSpec, LinearSpec, MixerSpec, NormSpec, Part, Place, Reads, TensorSpec,
};

/// The sizes that every family's table is built from.
pub(crate) struct Sizes {
    pub(crate) hidden_size: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) num_hidden_layers: usize,
    pub(crate) num_attention_heads: usize,
    pub(crate) num_key_value_heads: usize,
    pub(crate) head_dim: usize,
}

impl Sizes {
    pub(crate) fn read(config: &Fields) -> Result<Self, ConfigError> {
        let hidden_size = config.size("hidden_size")?;
        let num_attention_heads = config.size("num_attention_heads")?;
        let num_key_value_heads = config.optional_size("num_key_value_heads")?.unwrap_or(num_attention_heads);
        if num_key_value_heads == 0 || num_attention_heads % num_key_value_heads != 0 {
            return Err(ConfigError::field("num_key_value_heads", "does not divide num_attention_heads"));
        }
        let num_hidden_layers = config.size("num_hidden_layers")?;
        if num_hidden_layers > 1024 {
            return Err(ConfigError::field("num_hidden_layers", "is greater than 1024"));
        }
        let head_dim = config.optional_size("head_dim")?.unwrap_or(hidden_size / num_attention_heads);
        channels("head_dim", num_attention_heads, head_dim)?;
        Ok(Self {
            hidden_size,
            intermediate_size: config.size("intermediate_size")?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
        })
    }
}

/// Returns the number of channels of all heads, or an error if the sizes of a hostile config overflow.
pub(super) fn channels(field: &str, heads: usize, width: usize) -> Result<usize, ConfigError> {
    let channels = heads.checked_mul(width).filter(|channels| *channels < 1 << 32);
    channels.ok_or_else(|| ConfigError::field(field, "gives 2^32 or more channels over all heads"))
}

/// Softmax attention with the features that families add to Llama's.
#[derive(Clone)]
pub(super) struct Attention {
    pub(super) rope: Rope,
    pub(super) sliding_window: Option<usize>,
    /// Whether q, k and v have biases.
    pub(super) qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub(super) o_bias: bool,
    /// Whether queries and keys are normalised per head.
    pub(super) qk_norm: bool,
    /// Whether the result is multiplied by the sigmoid of a gate that `q_proj` computes.
    pub(super) output_gate: bool,
    /// The factor on the products of queries and keys; `None` means `head_dim^-1/2`.
    pub(super) scale: Option<f32>,
    /// The norms and the MLP around it.
    pub(super) styling: Styling,
}

/// The norms and the MLP of a layer.
#[derive(Clone, Copy)]
pub(super) struct Styling {
    /// Whether all norms of the layer multiply by `1 + weight`.
    pub(super) zero_centred: bool,
    /// Whether the outputs of mixer and MLP are normalised as well.
    pub(super) norms_after: bool,
    /// The activation of the MLP's gate.
    pub(super) activation: Activation,
}

impl Styling {
    /// The norms and the MLP of Llama.
    pub(super) const PLAIN: Self =
        Self { zero_centred: false, norms_after: false, activation: Activation::Silu };
}

impl Attention {
    /// The attention of Llama.
    pub(super) const fn plain(rope: Rope) -> Self {
        Self {
            rope,
            sliding_window: None,
            qkv_bias: false,
            o_bias: false,
            qk_norm: false,
            output_gate: false,
            scale: None,
            styling: Styling::PLAIN,
        }
    }
}

/// Builds a layer with softmax attention.
pub(super) fn attention_layer(sizes: &Sizes, with: &Attention) -> LayerSpec {
    let h = sizes.hidden_size;
    let q = sizes.num_attention_heads * sizes.head_dim;
    let kv = sizes.num_key_value_heads * sizes.head_dim;
    let q_and_gate = if with.output_gate { 2 * q } else { q };
    let mut mixer = vec![
        linear("self_attn.q_proj", [q_and_gate, h], with.qkv_bias, Reads::MixerInput),
        linear("self_attn.k_proj", [kv, h], with.qkv_bias, Reads::MixerInput),
        linear("self_attn.v_proj", [kv, h], with.qkv_bias, Reads::MixerInput),
        linear("self_attn.o_proj", [h, q], with.o_bias, Reads::Mixed),
    ];
    if with.qk_norm {
        mixer.push(norm("self_attn.q_norm", sizes.head_dim, with.styling.zero_centred, Place::Queries));
        mixer.push(norm("self_attn.k_norm", sizes.head_dim, with.styling.zero_centred, Place::Keys));
    }
    // Kept: q before and after its norm, gate, output and gated output; k before and after its norm, and v.
    let kept = 5 * q + 3 * kv;
    let spec = MixerSpec::Attention(AttentionSpec {
        num_attention_heads: sizes.num_attention_heads,
        num_key_value_heads: sizes.num_key_value_heads,
        head_dim: sizes.head_dim,
        scale: with.scale.unwrap_or_else(|| (sizes.head_dim as f32).powf(-0.5)),
        rope: with.rope.clone(),
        sliding_window: with.sliding_window,
        output_gate: with.output_gate,
    });
    layer(sizes, spec, mixer, kept, with.styling)
}

/// Builds a layer of this mixer and a gated MLP, each with a norm before it, and after it if the family has
/// those. `kept` is the number of values per token that the mixer keeps for its backward pass.
pub(super) fn layer(
    sizes: &Sizes,
    mixer: MixerSpec,
    of_mixer: Vec<Part>,
    kept: usize,
    styling: Styling,
) -> LayerSpec {
    let (h, i) = (sizes.hidden_size, sizes.intermediate_size);
    let Styling { zero_centred, norms_after, activation } = styling;
    let norm = |path, place| norm(path, h, zero_centred, place);
    let mut parts = vec![norm("input_layernorm", Place::BeforeMixer)];
    parts.extend(of_mixer);
    if norms_after {
        // Other families use this name for the norm before the MLP.
        parts.push(norm("post_attention_layernorm", Place::AfterMixer));
        parts.push(norm("pre_feedforward_layernorm", Place::BeforeMlp));
    } else {
        parts.push(norm("post_attention_layernorm", Place::BeforeMlp));
    }
    parts.extend([
        linear("mlp.gate_proj", [i, h], false, Reads::MlpInput),
        linear("mlp.up_proj", [i, h], false, Reads::MlpInput),
        linear("mlp.down_proj", [h, i], false, Reads::MlpHidden),
    ]);
    if norms_after {
        parts.push(norm("post_feedforward_layernorm", Place::AfterMlp));
    }
    // Kept: the residual and the normed input of mixer and MLP, the inputs of the norms after them, and gate,
    // up and their product.
    let of_norms = if norms_after { 6 * h } else { 4 * h };
    let kept_per_token = of_norms + 3 * i + kept;
    LayerSpec { mixer, intermediate_size: i, activation, parts, kept_per_token }
}

/// Returns the norm after the last layer.
pub(super) fn final_norm(sizes: &Sizes, zero_centred: bool) -> NormSpec {
    NormSpec { path: "norm", width: sizes.hidden_size, zero_centred, place: Place::Decoder }
}

/// Returns the sliding window of each layer as in Qwen2 and Qwen3. `layer_types` lists the layers that have
/// one; without it, these are all layers from `max_window_layers` on. No layer has one without
/// `use_sliding_window`.
pub(super) fn windows_by_layer(config: &Fields, layers: usize) -> Result<Vec<Option<usize>>, ConfigError> {
    let window = if config.flag("use_sliding_window") { sliding_window(config)? } else { None };
    let listed = config.layer_types(layers, &[("full_attention", false), ("sliding_attention", true)])?;
    let from = config.optional_size("max_window_layers")?.unwrap_or(0);
    let windowed = listed.unwrap_or_else(|| (0..layers).map(|layer| layer >= from).collect());
    Ok(windowed.into_iter().map(|windowed| window.filter(|_| windowed)).collect())
}

/// Returns the size of the sliding window in tokens, if the config has one.
pub(super) fn sliding_window(config: &Fields) -> Result<Option<usize>, ConfigError> {
    config.get("sliding_window").map(|_| config.size("sliding_window")).transpose()
}

pub(super) fn linear(path: &'static str, [output, input]: [usize; 2], has_bias: bool, reads: Reads) -> Part {
    Part::Linear(LinearSpec { path, output, input, has_bias, reads })
}

pub(super) fn norm(path: &'static str, width: usize, zero_centred: bool, place: Place) -> Part {
    Part::Norm(NormSpec { path, width, zero_centred, place })
}

pub(super) fn tensor(name: &str, shape: &[usize]) -> Part {
    Part::Tensor(TensorSpec::new(name, shape))
}
