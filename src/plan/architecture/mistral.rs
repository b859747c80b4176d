//! Mistral 7B v0.1 to v0.3 and Nemo: the layout of Llama, in v0.1 with a sliding window in every layer.
//!
//! Source of the fields: transformers 5.23, `models/mistral/configuration_mistral.py`, and the published
//! configs.

use super::blocks::{Attention, attention_layer, final_norm, sliding_window};
use super::fields::FieldLists;
use super::{ConfigError, DecoderSpec, Family, Fields, Rope, Sizes};

pub(super) const FAMILY: Family = Family {
    model_types: &["mistral"],
    defaults: &[],
    fields: FieldLists {
        used: &["hidden_act", "sliding_window"],
        harmless: &[],
        // Ministral has layers with and without a window.
        refused: &["attention_bias", "layer_types"],
        wrapper: &[],
    },
    carried: &[],
    causal_lm_is_text_only: false,
    decoder,
};

fn decoder(sizes: &Sizes, config: &Fields) -> Result<DecoderSpec, ConfigError> {
    config.expect("hidden_act", &["silu"])?;
    let rope = Rope::read(config, sizes.head_dim, 1.0)?;
    let attention = Attention { sliding_window: sliding_window(config)?, ..Attention::plain(rope) };
    let layers = vec![attention_layer(sizes, &attention); sizes.num_hidden_layers];
    Ok(DecoderSpec::plain(layers, final_norm(sizes, false)))
}
