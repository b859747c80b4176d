//! Qwen2 and Qwen2.5: the layout of Llama with biases on q, k and v.
//!
//! Source of the fields: transformers 5.23, `models/qwen2/configuration_qwen2.py`, and the published configs.

use super::blocks::{Attention, attention_layer, final_norm, windows_by_layer};
use super::fields::FieldLists;
use super::{ConfigError, DecoderSpec, Family, Fields, Rope, Sizes};

pub(super) const FAMILY: Family = Family {
    model_types: &["qwen2"],
    defaults: &[],
    fields: FieldLists {
        used: &["hidden_act", "layer_types", "max_window_layers", "sliding_window", "use_sliding_window"],
        harmless: &[
            // Biases on q, k and v exist in any case; one on o_proj would be an unknown tensor.
            "attention_bias",
        ],
        refused: &["use_mrope"],
        wrapper: &[],
    },
    carried: &[],
    causal_lm_is_text_only: false,
    decoder,
};

fn decoder(sizes: &Sizes, config: &Fields) -> Result<DecoderSpec, ConfigError> {
    config.expect("hidden_act", &["silu"])?;
    let rope = Rope::read(config, sizes.head_dim, 1.0)?;
    let attention = Attention { qkv_bias: true, ..Attention::plain(rope) };
    let windows = windows_by_layer(config, sizes.num_hidden_layers)?;
    let layer = |sliding_window| attention_layer(sizes, &Attention { sliding_window, ..attention.clone() });
    let layers = windows.into_iter().map(layer).collect();
    Ok(DecoderSpec::plain(layers, final_norm(sizes, false)))
}
