//! Shapes of a model that no kernel of a GPU takes. Their ops are computed by the references of
//! `kernels/`, in f32 and with all intermediate results. A plan counts neither the memory nor the time of
//! these, so the user is warned.

use sparktune_base::units::count;

use crate::architecture::{AttentionSpec, DeltaNetSpec, LayerSpec, MixerSpec};
use crate::model_config::ModelConfig;

/// The widths of heads that the kernels of attention take, and the most query heads for each key head (`fits`
/// in `kernels/packed_attention/cuda.rs`).
const ATTENTION_WIDTHS: [usize; 5] = [16, 32, 64, 128, 256];
const MOST_QUERY_HEADS: usize = 128;
/// The widths of heads that the kernels of the delta rule take (`fits` in
/// `kernels/gated_delta_rule/cuda.rs`).
const DELTA_WIDTHS: [usize; 4] = [16, 32, 64, 128];
/// The width of a linear layer's input and the vocabulary have to be multiples of this, and the width of its
/// output of [`OUTPUTS`] (`fits` in `kernels/linear/layers.rs` and `kernels/linear_cross_entropy/cuda.rs`).
const INPUTS: usize = 8;
const OUTPUTS: usize = 4;

/// Returns a warning for each shape of this model that no kernel of a GPU takes.
pub(crate) fn warnings(config: &ModelConfig) -> Vec<String> {
    let mut warnings: Vec<String> = Vec::new();
    for (layer, _) in config.layer_kinds() {
        warnings.extend(of_linears(layer));
        warnings.extend(match &layer.mixer {
            MixerSpec::Attention(attention) => of_attention(attention),
            MixerSpec::GatedDeltaNet(delta) => of_delta_rule(delta),
        });
    }
    if !config.vocab_size.is_multiple_of(INPUTS) {
        warnings.push(warning(
            &format!("the vocabulary has {} tokens, which is not a multiple of {INPUTS}", tokens(config)),
            "the loss",
            "the logits of all tokens of a pack are in memory at once",
        ));
    }
    // Layers of different kinds have the same MLP, which needs only one warning.
    let mut distinct = Vec::new();
    for warning in warnings {
        if !distinct.contains(&warning) {
            distinct.push(warning);
        }
    }
    distinct
}

fn warning(shape: &str, what: &str, cost: &str) -> String {
    format!(
        "{shape}, and the GPU has no kernels for that: {what} is computed in f32 without them, which is slower and needs more memory than this plan says, since {cost}. If memory runs out, use a shorter --pack-length"
    )
}

fn tokens(config: &ModelConfig) -> String {
    count(config.vocab_size as u64)
}

fn list(widths: &[usize]) -> String {
    let words: Vec<String> = widths.iter().map(ToString::to_string).collect();
    words.join(", ")
}

fn of_linears(layer: &LayerSpec) -> Option<String> {
    let is_refused =
        |input: usize, output: usize| !input.is_multiple_of(INPUTS) || !output.is_multiple_of(OUTPUTS);
    let linear = layer.linears().find(|linear| is_refused(linear.input, linear.output))?;
    let shape = format!(
        "{} has {} inputs and {} outputs, which are not multiples of {INPUTS} and {OUTPUTS}",
        linear.name(),
        count(linear.input as u64),
        count(linear.output as u64)
    );
    Some(warning(&shape, "such a layer", "copies of its weight and of its input in f32 are kept"))
}

fn of_attention(attention: &AttentionSpec) -> Option<String> {
    let AttentionSpec { num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
        *attention;
    let shape = if !ATTENTION_WIDTHS.contains(&head_dim) {
        format!("the attention heads have a width of {head_dim}, not one of {}", list(&ATTENTION_WIDTHS))
    } else if heads / kv_heads > MOST_QUERY_HEADS {
        format!(
            "attention has {} query heads for each key head, more than {MOST_QUERY_HEADS}",
            heads / kv_heads
        )
    } else {
        return None;
    };
    Some(warning(&shape, "attention", "it grows with the square of a pack's length"))
}

fn of_delta_rule(delta: &DeltaNetSpec) -> Option<String> {
    let (keys, values) = (delta.key_head_dim, delta.value_head_dim);
    if keys == values && DELTA_WIDTHS.contains(&keys) {
        return None;
    }
    let shape = format!(
        "the heads of the delta rule have keys of width {keys} and values of width {values}, not one common width of {}",
        list(&DELTA_WIDTHS)
    );
    Some(warning(&shape, "the delta rule", "the state is kept for each token instead of for 64"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;

    fn warnings_of(fields: &[(&str, u64)]) -> Vec<String> {
        let mut config = serde_json::json!({
            "model_type": "llama", "hidden_size": 800, "intermediate_size": 1600, "num_hidden_layers": 2,
            "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32_000,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "tie_word_embeddings": false,
        });
        for (field, value) in fields {
            config[*field] = (*value).into();
        }
        warnings(&ModelConfig::from_json(&config.to_string()).unwrap())
    }

    #[test]
    fn every_model_of_the_catalog_has_kernels() {
        let catalog = Catalog::shipped();
        for model in &catalog.models {
            assert_eq!(warnings(&catalog.model_facts(model).config), Vec::<String>::new(), "{}", model.id);
        }
    }

    #[test]
    fn a_shape_without_kernels_is_warned_about_once() {
        assert_eq!(warnings_of(&[]), Vec::<String>::new());
        for (fields, words) in [
            (&[("vocab_size", 32_001)][..], "the vocabulary has 32,001 tokens, which is not a multiple of 8"),
            (
                &[("head_dim", 100)],
                "the attention heads have a width of 100, not one of 16, 32, 64, 128, 256",
            ),
            (&[("intermediate_size", 1602)], "gate_proj has 800 inputs and 1,602 outputs"),
            (
                &[("num_attention_heads", 200), ("num_key_value_heads", 1)],
                "attention has 200 query heads for each key head",
            ),
        ] {
            let [warning] = &warnings_of(fields)[..] else { panic!("{fields:?}: {:?}", warnings_of(fields)) };
            assert!(warning.starts_with(words), "{warning}");
            assert!(warning.contains("needs more memory than this plan says"), "{warning}");
        }
    }
}
