//! Qwen3.5, and Qwen3.6 and 3.8 dense (SPEC.md): three layers with a gated DeltaNet, then one with gated
//! attention.
//!
//! Source of the fields: transformers 5.23, `models/qwen3_5/configuration_qwen3_5.py`, and the published
//! configs, which have more fields.

use super::blocks::{Attention, Styling, attention_layer, channels, final_norm, layer, linear, norm, tensor};
use super::fields::FieldLists;
use super::{
    ConfigError, DecoderSpec, DeltaNetSpec, Family, Fields, LayerSpec, MixerSpec, MtpSpec, NormSpec, Place,
    Reads, Rope, Sizes, TensorSpec,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["qwen3_5", "qwen3_5_text"],
    defaults: &[],
    fields: FieldLists {
        used: &[
            "attention_bias",
            "attn_output_gate",
            "full_attention_interval",
            "hidden_act",
            "layer_types",
            "linear_conv_kernel_dim",
            "linear_key_head_dim",
            "linear_num_key_heads",
            "linear_num_value_heads",
            "linear_value_head_dim",
            "mtp_num_hidden_layers",
            "output_gate_type",
        ],
        harmless: &[
            // The state of the delta rule is always f32 here.
            "mamba_ssm_dtype",
            // These fields assign frequencies to the parts of a multimodal position, which are all equal for
            // text.
            "mrope_interleaved",
            "mrope_section",
            // Some copies of the 27B repeat `rope_parameters` here.
            "rope_type",
        ],
        refused: &["mlp_only_layers", "mtp_use_dedicated_embeddings"],
        wrapper: &[
            "image_token_id",
            "language_model_only",
            "video_token_id",
            "vision_end_token_id",
            "vision_start_token_id",
        ],
    },
    // The vision tower, and the MTP head. A checkpoint may lack a head that its config declares, and the
    // reverse.
    carried: &["model.visual.", "visual.", "mtp."],
    // `Qwen3_5ForCausalLM`; the config names `Qwen3_5ForConditionalGeneration` (transformers 5.23).
    causal_lm_is_text_only: true,
    decoder,
};

const STYLING: Styling = Styling { zero_centred: true, ..Styling::PLAIN };

#[derive(Clone, Copy)]
enum Kind {
    Linear,
    Full,
}

fn decoder(sizes: &Sizes, config: &Fields) -> Result<DecoderSpec, ConfigError> {
    config.expect("hidden_act", &["silu"])?;
    // This is the gate of the delta rule's output; that of full attention is always a sigmoid (SPEC.md 1.3).
    config.expect("output_gate_type", &["swish", "silu"])?;
    if config.get("attn_output_gate").is_some_and(|gate| gate.as_bool() != Some(true)) {
        return Err(ConfigError::field(
            "attn_output_gate",
            "is not true, but only gated attention is supported",
        ));
    }
    let bias = config.flag("attention_bias");
    let attention = Attention {
        qkv_bias: bias,
        o_bias: bias,
        qk_norm: true,
        output_gate: true,
        styling: STYLING,
        ..Attention::plain(Rope::read(config, sizes.head_dim, 0.25)?)
    };
    let full = attention_layer(sizes, &attention);
    let kinds = kinds(config, sizes.num_hidden_layers)?;
    let delta = if kinds.iter().any(|kind| matches!(kind, Kind::Linear)) {
        Some(delta_layer(sizes, &delta_net(config)?))
    } else {
        None
    };
    let layers = kinds.iter().map(|kind| match (kind, &delta) {
        (Kind::Linear, Some(delta)) => delta.clone(),
        (Kind::Linear | Kind::Full, _) => full.clone(),
    });
    let layers = layers.collect();
    let mtp = Some(mtp_head(sizes, full));
    Ok(DecoderSpec { mtp, ..DecoderSpec::plain(layers, final_norm(sizes, STYLING.zero_centred)) })
}

/// Returns the kind of each layer, as listed in the config. Without a list, every
/// `full_attention_interval`-th layer has full attention (SPEC.md 1.3).
fn kinds(config: &Fields, layers: usize) -> Result<Vec<Kind>, ConfigError> {
    let known = [("linear_attention", Kind::Linear), ("full_attention", Kind::Full)];
    if let Some(listed) = config.layer_types(layers, &known)? {
        return Ok(listed);
    }
    let interval = config.optional_size("full_attention_interval")?.unwrap_or(4).max(1);
    let is_full = |layer: usize| layer.is_multiple_of(interval);
    Ok((1..=layers).map(|layer| if is_full(layer) { Kind::Full } else { Kind::Linear }).collect())
}

fn delta_net(config: &Fields) -> Result<DeltaNetSpec, ConfigError> {
    let delta = DeltaNetSpec {
        num_key_heads: config.size("linear_num_key_heads")?,
        num_value_heads: config.size("linear_num_value_heads")?,
        key_head_dim: config.size("linear_key_head_dim")?,
        value_head_dim: config.size("linear_value_head_dim")?,
        conv_kernel_dim: config.size("linear_conv_kernel_dim")?,
    };
    if !delta.num_value_heads.is_multiple_of(delta.num_key_heads) {
        return Err(ConfigError::field(
            "linear_num_value_heads",
            "is not a multiple of linear_num_key_heads",
        ));
    }
    channels("linear_key_head_dim", delta.num_key_heads, delta.key_head_dim)?;
    channels("linear_value_head_dim", delta.num_value_heads, delta.value_head_dim)?;
    Ok(delta)
}

/// Builds a layer with a gated DeltaNet (SPEC.md 2.4).
fn delta_layer(sizes: &Sizes, delta: &DeltaNetSpec) -> LayerSpec {
    let (h, heads) = (sizes.hidden_size, delta.num_value_heads);
    let mixer = vec![
        linear("linear_attn.in_proj_qkv", [delta.conv_dim(), h], false, Reads::MixerInput),
        linear("linear_attn.in_proj_z", [delta.value_dim(), h], false, Reads::MixerInput),
        linear("linear_attn.in_proj_b", [heads, h], false, Reads::MixerInput),
        linear("linear_attn.in_proj_a", [heads, h], false, Reads::MixerInput),
        linear("linear_attn.out_proj", [h, delta.value_dim()], false, Reads::Mixed),
        tensor("linear_attn.conv1d.weight", &[delta.conv_dim(), 1, delta.conv_kernel_dim]),
        tensor("linear_attn.A_log", &[heads]),
        tensor("linear_attn.dt_bias", &[heads]),
        // This is the only norm that multiplies by the weight itself (SPEC.md 2.1).
        norm("linear_attn.norm", delta.value_head_dim, false, Place::DeltaOutput),
    ];
    // Kept: the input and output of the convolution, z, the rule's output, and the output of the gated norm.
    let kept = 2 * delta.conv_dim() + 3 * delta.value_dim();
    layer(sizes, MixerSpec::GatedDeltaNet(delta.clone()), mixer, kept, STYLING)
}

/// Builds the head that predicts the token after next (SPEC.md 2.7).
fn mtp_head(sizes: &Sizes, layer: LayerSpec) -> MtpSpec {
    let h = sizes.hidden_size;
    let norm = |path| NormSpec { path, width: h, zero_centred: STYLING.zero_centred, place: Place::Decoder };
    MtpSpec {
        layer,
        projection: TensorSpec::new("fc.weight", &[h, 2 * h]),
        embedding_norm: norm("pre_fc_norm_embedding"),
        hidden_norm: norm("pre_fc_norm_hidden"),
        norm: norm("norm"),
    }
}
