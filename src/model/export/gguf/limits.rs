//! What llama.cpp does not compute of a model that this program trains.
//!
//! Enters: a model's config. Leaves: the reason why a file of it would compute something else, or remarks on
//! where it does so without an effect on usual texts.

use sparktune_plan::architecture::{AttentionSpec, MixerSpec, RopeScaling};
use sparktune_plan::{Architecture, ModelConfig};

use super::families::family;

/// Returns what is to be said about the model in llama.cpp, in whole sentences.
///
/// # Errors
/// The reason why llama.cpp cannot compute the model.
pub(super) fn check(config: &ModelConfig) -> Result<Vec<String>, String> {
    let rotates_pairs = family(config.architecture).rotates_pairs;
    for layer in &config.layers {
        let has_output_bias =
            layer.linears().any(|linear| linear.path == "self_attn.o_proj" && linear.has_bias);
        if has_output_bias && !rotates_pairs {
            return Err(unknown(config, "a bias of `o_proj`"));
        }
        match &layer.mixer {
            MixerSpec::Attention(attention) => check_attention(config, attention)?,
            MixerSpec::GatedDeltaNet(delta) if delta.key_head_dim != delta.value_head_dim => {
                return Err(unknown(config, "value heads of another width than key heads"));
            }
            MixerSpec::GatedDeltaNet(_) => {}
        }
    }
    Ok(windows(config))
}

fn check_attention(config: &ModelConfig, attention: &AttentionSpec) -> Result<(), String> {
    let rope = &attention.rope;
    if config.architecture != Architecture::Qwen35 && rope.rotary_dim != attention.head_dim {
        return Err(unknown(config, "a rotary embedding of only a part of each head"));
    }
    if matches!(rope.scaling, RopeScaling::Llama3(_)) && !family(config.architecture).rotates_pairs {
        return Err(unknown(config, "RoPE scaling of the type llama3"));
    }
    // The 27B model divides by the square root of the hidden size per head; llama.cpp recognises it by its
    // number of layers.
    let width = if config.architecture == Architecture::Gemma3 && config.layers.len() == 62 {
        config.hidden_size / attention.num_attention_heads
    } else {
        attention.head_dim
    };
    if (attention.scale - (width as f32).powf(-0.5)).abs() > 1e-6 {
        return Err(unknown(config, "another `query_pre_attn_scalar` than the published models'"));
    }
    Ok(())
}

fn unknown(config: &ModelConfig, what: &str) -> String {
    format!("the model has {what}, which llama.cpp does not compute in a {} model", config.architecture)
}

/// Returns a remark if the model has a sliding window that llama.cpp leaves out.
fn windows(config: &ModelConfig) -> Vec<String> {
    if config.architecture == Architecture::Gemma3 {
        return Vec::new();
    }
    let window = config.layers.iter().find_map(|layer| match &layer.mixer {
        MixerSpec::Attention(attention) => attention.sliding_window,
        MixerSpec::GatedDeltaNet(_) => None,
    });
    let remark = |window| {
        format!(
            "The model attends to the last {window} tokens in some layers. llama.cpp attends to all, so it computes something else for longer texts."
        )
    };
    window.map(remark).into_iter().collect()
}
