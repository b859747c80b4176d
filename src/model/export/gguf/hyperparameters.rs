//! The fields of a GGUF file that describe the model's sizes.
//!
//! Enters: a model's config and the text of its `config.json`. Leaves: the fields that llama.cpp's converter
//! writes for its family.

use serde_json::Value as Json;
use sparktune_plan::architecture::{AttentionSpec, LayerSpec, Llama3Scaling, MixerSpec, RopeScaling};
use sparktune_plan::{Architecture, ModelConfig};

use super::encoding::GgufType;
use super::families::family;
use super::format::{Metadata, Value};

/// The parts of a multimodal position that Qwen3.5 assigns frequencies to, if the config does not say it.
const MROPE_SECTION: [i32; 4] = [11, 11, 10, 0];

/// Adds the fields. `mtp_layers` is the number of layers of the MTP head in the file.
pub(super) fn put(
    metadata: &mut Metadata,
    config: &ModelConfig,
    config_text: &str,
    numbers: GgufType,
    mtp_layers: usize,
) {
    let name = family(config.architecture).name;
    let mut put = |key: &str, value: Value| metadata.put(format!("{name}.{key}"), value);
    let size = |n: usize| Value::U32(u32::try_from(n).expect("sizes of a config are below 2^32"));
    put("block_count", size(config.layers.len() + mtp_layers));
    put("context_length", size(config.max_position_embeddings));
    put("embedding_length", size(config.hidden_size));
    let intermediate_size = config.layers.first().map_or(0, |layer| layer.intermediate_size);
    put("feed_forward_length", size(intermediate_size));
    put("attention.layer_norm_rms_epsilon", Value::F32(config.rms_norm_eps as f32));

    let full = attentions(config).find(|attention| attention.sliding_window.is_none());
    if let Some(attention) = full.or_else(|| attentions(config).next()) {
        put("attention.head_count", size(attention.num_attention_heads));
        put("attention.head_count_kv", size(attention.num_key_value_heads));
        put("attention.key_length", size(attention.head_dim));
        put("attention.value_length", size(attention.head_dim));
        put("rope.freq_base", Value::F32(attention.rope.theta as f32));
        put("rope.dimension_count", size(attention.rope.rotary_dim));
        if let RopeScaling::Linear(factor) = attention.rope.scaling {
            put("rope.scaling.type", Value::Text("linear".to_owned()));
            put("rope.scaling.factor", Value::F32(factor as f32));
        }
    }
    match config.architecture {
        Architecture::Llama | Architecture::Mistral => put("vocab_size", size(config.vocab_size)),
        Architecture::Gemma3 => {
            let sliding = attentions(config).find(|attention| attention.sliding_window.is_some());
            if let Some((window, rope)) = sliding.and_then(|it| Some((it.sliding_window?, &it.rope))) {
                put("attention.sliding_window", size(window));
                put("rope.freq_base_swa", Value::F32(rope.theta as f32));
                let pattern: Vec<bool> = attentions(config).map(|it| it.sliding_window.is_some()).collect();
                // llama.cpp knows the published pattern without this field.
                if pattern.iter().enumerate().any(|(layer, slides)| *slides == (layer % 6 == 5)) {
                    put("attention.sliding_window_pattern", Value::Bools(pattern));
                }
            }
        }
        Architecture::Qwen35 => put_qwen35(&mut put, config, config_text, mtp_layers),
        Architecture::Qwen2 | Architecture::Qwen3 => {}
    }
    metadata.put("general.file_type", Value::U32(numbers.file_type()));
    // The version of the block formats, such as that of q8_0.
    metadata.put("general.quantization_version", Value::U32(2));
}

fn put_qwen35(put: &mut impl FnMut(&str, Value), config: &ModelConfig, config_text: &str, mtp_layers: usize) {
    let size = |n: usize| Value::U32(u32::try_from(n).expect("sizes of a config are below 2^32"));
    let json: Json = serde_json::from_str(config_text).unwrap_or(Json::Null);
    let text = json.get("text_config").unwrap_or(&json);
    let deltas = config.layers.iter().find_map(|layer| match &layer.mixer {
        MixerSpec::GatedDeltaNet(delta) => Some(delta),
        MixerSpec::Attention(_) => None,
    });
    if let Some(delta) = deltas {
        put("ssm.conv_kernel", size(delta.conv_kernel_dim));
        put("ssm.state_size", size(delta.key_head_dim));
        put("ssm.group_count", size(delta.num_key_heads));
        put("ssm.time_step_rank", size(delta.num_value_heads));
        put("ssm.inner_size", size(delta.value_dim()));
    }
    let is_recurrent = |layer: &LayerSpec| matches!(layer.mixer, MixerSpec::GatedDeltaNet(_));
    let mut recurrent: Vec<bool> = config.layers.iter().map(is_recurrent).collect();
    recurrent.resize(recurrent.len() + mtp_layers, false);
    put("attention.recurrent_layers", Value::Bools(recurrent));
    let interval = text.get("full_attention_interval").and_then(Json::as_u64).unwrap_or(4);
    put("full_attention_interval", size(usize::try_from(interval).unwrap_or(4).min(1 << 20)));
    put("rope.dimension_sections", Value::I32s(mrope_section(text).to_vec()));
    if mtp_layers > 0 {
        put("nextn_predict_layers", size(mtp_layers));
    }
}

/// Returns the sections of a multimodal position. They have no effect on a text.
fn mrope_section(text: &Json) -> [i32; 4] {
    let listed = |outer: &str| text.get(outer)?.get("mrope_section")?.as_array();
    let Some(listed) = listed("rope_parameters").or_else(|| listed("rope_scaling")) else {
        return MROPE_SECTION;
    };
    let mut sections = [0; 4];
    for (section, value) in sections.iter_mut().zip(listed) {
        *section = value.as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
    }
    sections
}

/// Returns the attention of each layer that has one, and then that of the MTP head.
fn attentions(config: &ModelConfig) -> impl Iterator<Item = &AttentionSpec> {
    let layers = config.layers.iter().chain(config.mtp.as_ref().map(|mtp| &mtp.layer));
    layers.filter_map(|layer| match &layer.mixer {
        MixerSpec::Attention(attention) => Some(attention),
        MixerSpec::GatedDeltaNet(_) => None,
    })
}

/// Returns the numbers that llama.cpp divides the frequencies of a rotary embedding by, if they are scaled as
/// in Llama 3.1.
pub(super) fn frequency_divisors(config: &ModelConfig) -> Option<Vec<f32>> {
    let rope = &attentions(config).next()?.rope;
    let RopeScaling::Llama3(scaling) = &rope.scaling else { return None };
    let Llama3Scaling { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } =
        *scaling;
    let divisor = |pair: usize| {
        let frequency = rope.theta.powf(-2.0 * pair as f64 / rope.rotary_dim as f64);
        let wavelength = std::f64::consts::TAU / frequency;
        let rotations = original_max_position_embeddings / wavelength;
        if rotations > high_freq_factor {
            1.0
        } else if rotations < low_freq_factor {
            factor
        } else {
            let smooth = (rotations - low_freq_factor) / (high_freq_factor - low_freq_factor);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    Some((0..rope.rotary_dim / 2).map(|pair| divisor(pair) as f32).collect())
}
