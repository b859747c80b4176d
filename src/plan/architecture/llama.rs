//! Llama 2, 3, 3.1 and 3.2 (text), and other models published in the same layout.
//!
//! Source of the fields: transformers 5.23, `models/llama/configuration_llama.py`, and the published configs,
//! including those of SmolLM2.

use super::blocks::{Attention, attention_layer, final_norm};
use super::fields::FieldLists;
use super::{ConfigError, DecoderSpec, Family, Fields, Rope, Sizes};

pub(super) const FAMILY: Family = Family {
    model_types: &["llama"],
    defaults: &[],
    fields: FieldLists {
        used: &["attention_bias", "hidden_act"],
        harmless: &["is_llama_config", "max_sequence_length"],
        refused: &[],
        wrapper: &[],
    },
    carried: &[],
    causal_lm_is_text_only: false,
    decoder,
};

fn decoder(sizes: &Sizes, config: &Fields) -> Result<DecoderSpec, ConfigError> {
    config.expect("hidden_act", &["silu"])?;
    let bias = config.flag("attention_bias");
    let rope = Rope::read(config, sizes.head_dim, 1.0)?;
    let attention = Attention { qkv_bias: bias, o_bias: bias, ..Attention::plain(rope) };
    let layers = vec![attention_layer(sizes, &attention); sizes.num_hidden_layers];
    Ok(DecoderSpec::plain(layers, final_norm(sizes, false)))
}
