//! Gemma 3, the text model: five layers with a sliding window, then one with full attention, each with norms
//! before and after attention and MLP.
//!
//! Differences from Llama: GELU instead of SiLU, zero-centred norms, norms of queries and keys, a separate
//! RoPE for the layers with a window, a scale of the scores from the config, and embeddings that are
//! multiplied by the square root of their width. The models from 4B on have a vision tower, which is carried
//! over.
//!
//! Source of the fields: transformers 5.23, `models/gemma3/configuration_gemma3.py`, and the published
//! configs. The published configs leave out fields with the default value of the class, so those defaults are
//! part of the table.

use super::blocks::{Attention, Styling, attention_layer, final_norm};
use super::fields::FieldLists;
use super::{Activation, ConfigError, DecoderSpec, Family, Fields, Rope, Sizes};

pub(super) const FAMILY: Family = Family {
    model_types: &["gemma3_text", "gemma3"],
    defaults: &[
        ("num_attention_heads", "8"),
        ("num_key_value_heads", "4"),
        ("head_dim", "256"),
        ("vocab_size", "262208"),
        ("max_position_embeddings", "131072"),
        ("query_pre_attn_scalar", "256"),
        ("sliding_window", "4096"),
        ("tie_word_embeddings", "true"),
    ],
    fields: FieldLists {
        used: &[
            "_sliding_window_pattern",
            "attention_bias",
            "hidden_activation",
            "layer_types",
            "query_pre_attn_scalar",
            "rope_local_base_freq",
            "rope_parameters.full_attention",
            "rope_parameters.sliding_attention",
            "sliding_window",
            "sliding_window_pattern",
        ],
        harmless: &[],
        // Only EmbeddingGemma has this field: its tokens attend to later tokens.
        refused: &["use_bidirectional_attention"],
        wrapper: &[
            "boi_token_id",
            "boi_token_index",
            "eoi_token_id",
            "eoi_token_index",
            "image_token_id",
            "image_token_index",
            "mm_tokens_per_image",
        ],
    },
    // The vision tower and its projection, with the names that transformers used before and since 4.52.
    carried: &[
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ],
    // `Gemma3ForConditionalGeneration` in both cases (transformers 5.23).
    causal_lm_is_text_only: false,
    decoder,
};

/// The number of layers per layer with full attention, if the config does not list them.
const PATTERN: usize = 6;

fn decoder(sizes: &Sizes, config: &Fields) -> Result<DecoderSpec, ConfigError> {
    config.expect("hidden_activation", &["gelu_pytorch_tanh"])?;
    let bias = config.flag("attention_bias");
    let scalar = config.float("query_pre_attn_scalar", 0.0)?;
    if scalar <= 0.0 {
        return Err(ConfigError::field("query_pre_attn_scalar", "is not greater than 0"));
    }
    let [full_rope, sliding_rope] = ropes(config, sizes.head_dim)?;
    let full = Attention {
        qkv_bias: bias,
        o_bias: bias,
        qk_norm: true,
        scale: Some((scalar as f32).powf(-0.5)),
        styling: Styling { zero_centred: true, norms_after: true, activation: Activation::GeluTanh },
        ..Attention::plain(full_rope)
    };
    let window = config.size("sliding_window")?;
    let sliding = Attention { rope: sliding_rope, sliding_window: Some(window), ..full.clone() };
    let [full, sliding] = [full, sliding].map(|attention| attention_layer(sizes, &attention));
    let layers = windowed(config, sizes.num_hidden_layers)?;
    let layers = layers.into_iter().map(|windowed| if windowed { sliding.clone() } else { full.clone() });
    Ok(DecoderSpec {
        layers: layers.collect(),
        norm: final_norm(sizes, true),
        embedding_scale: Some((sizes.hidden_size as f64).sqrt()),
        mtp: None,
    })
}

/// Returns whether each layer has a window, as listed in the config, otherwise all layers but every sixth.
fn windowed(config: &Fields, layers: usize) -> Result<Vec<bool>, ConfigError> {
    if let Some(listed) =
        config.layer_types(layers, &[("full_attention", false), ("sliding_attention", true)])?
    {
        return Ok(listed);
    }
    let pattern = match config.optional_size("sliding_window_pattern")? {
        Some(pattern) => Some(pattern),
        None => config.optional_size("_sliding_window_pattern")?,
    };
    let pattern = pattern.unwrap_or(PATTERN).max(1);
    Ok((1..=layers).map(|layer| !layer.is_multiple_of(pattern)).collect())
}

/// Returns the RoPE of layers with full attention, and that of layers with a window.
///
/// Files of transformers 5 have both in `rope_parameters`. In older ones `rope_theta` and `rope_scaling`
/// describe the first, and `rope_local_base_freq` is the base of the second.
fn ropes(config: &Fields, head_dim: usize) -> Result<[Rope; 2], ConfigError> {
    let bases = [("rope_theta", 1_000_000.0), ("rope_local_base_freq", 10_000.0)];
    let [full_theta, sliding_theta] = bases.map(|(field, default)| config.float(field, default));
    let full = ("full_attention", "rope_scaling", full_theta?);
    // Older files have no field that scales the positions of layers with a window.
    let sliding = ("sliding_attention", "", sliding_theta?);
    let read = |(kind, older, theta): (&str, &str, f64)| {
        let parameters = match config.map("rope_parameters") {
            Some(by_kind) => {
                let missing = || ConfigError::field("rope_parameters", &format!("has no `{kind}`"));
                Some(Fields::new(by_kind).map(kind).ok_or_else(missing)?)
            }
            None => config.map(older),
        };
        Rope::from_parameters(parameters, theta, 1.0, head_dim)
    };
    Ok([read(full)?, read(sliding)?])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::architecture::{LayerSpec, MixerSpec, Place, RopeScaling};
    use crate::model_config::ModelConfig;

    fn published(text: &str) -> Value {
        serde_json::from_str::<Value>(text).unwrap()["config"].clone()
    }

    fn the_270m() -> Value {
        published(include_str!("published/gemma-3-270m.json"))
    }

    fn the_4b() -> Value {
        published(include_str!("published/gemma-3-4b-it.json"))
    }

    fn read(config: &Value) -> Result<ModelConfig, ConfigError> {
        ModelConfig::from_json(&config.to_string())
    }

    fn attention(layer: &LayerSpec) -> &crate::architecture::AttentionSpec {
        match &layer.mixer {
            MixerSpec::Attention(attention) => attention,
            MixerSpec::GatedDeltaNet(_) => panic!("all layers have attention"),
        }
    }

    #[test]
    fn five_layers_with_a_window_and_their_own_rotation_come_before_each_that_sees_everything() {
        let config = read(&the_270m()).unwrap();
        let [(sliding, 15), (full, 3)] = config.layer_kinds()[..] else { panic!("two kinds of layer") };
        assert_eq!((attention(sliding).sliding_window, attention(sliding).rope.theta), (Some(512), 10_000.0));
        assert_eq!((attention(full).sliding_window, attention(full).rope.theta), (None, 1_000_000.0));
        let sees_all: Vec<usize> =
            (0..18).filter(|i| attention(&config.layers[*i]).sliding_window.is_none()).collect();
        assert_eq!(sees_all, [5, 11, 17]);
        assert_eq!(config.max_example_tokens(), 32768);
        assert_eq!(config.embedding_scale, Some(640f64.sqrt()));
        assert_eq!(attention(full).scale, 1.0 / 16.0);
        let mut other = the_270m();
        other["query_pre_attn_scalar"] = json!(64);
        assert_eq!(attention(&read(&other).unwrap().layers[0]).scale, 1.0 / 8.0);
    }

    #[test]
    fn what_a_published_config_leaves_out_is_that_of_the_class() {
        let config = read(&the_4b()).unwrap();
        let full = attention(&config.layers[5]);
        assert_eq!((full.num_attention_heads, full.num_key_value_heads, full.head_dim), (8, 4, 256));
        assert_eq!((config.vocab_size, config.max_position_embeddings), (262_208, 131_072));
        assert!(config.tie_word_embeddings);
        // Only layers with full attention scale their positions.
        assert_eq!(full.rope.scaling, RopeScaling::Linear(8.0));
        assert_eq!(attention(&config.layers[0]).rope.scaling, RopeScaling::None);
        assert_eq!(attention(&config.layers[0]).sliding_window, Some(1024));
    }

    #[test]
    fn the_form_of_transformers_5_gives_the_same_model() {
        let mut newer = the_4b();
        let text = &mut newer["text_config"];
        let fields = text.as_object_mut().unwrap();
        fields.remove("rope_scaling");
        fields.insert("_sliding_window_pattern".into(), json!(6));
        let types = (1..=34).map(|i| if i % 6 == 0 { "full_attention" } else { "sliding_attention" });
        fields.insert("layer_types".into(), types.collect());
        let ropes = json!({
            "full_attention": {"factor": 8.0, "rope_theta": 1_000_000.0, "rope_type": "linear"},
            "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"},
        });
        fields.insert("rope_parameters".into(), ropes);
        assert_eq!(read(&newer).unwrap(), read(&the_4b()).unwrap());

        let mut unknown = newer.clone();
        unknown["text_config"]["rope_parameters"]["full_attention"]["new_base"] = json!(3.0);
        let error = read(&unknown).unwrap_err().to_string();
        assert!(error.contains("`rope_parameters.full_attention.new_base`"), "{error}");
        newer["text_config"]["rope_parameters"].as_object_mut().unwrap().remove("sliding_attention");
        let error = read(&newer).unwrap_err().to_string();
        assert!(error.contains("rope_parameters") && error.contains("sliding_attention"), "{error}");
    }

    #[test]
    fn a_layer_has_norms_before_and_after_attention_and_mlp() {
        let config = read(&the_270m()).unwrap();
        let norms: Vec<_> = config.layers[0].norms().map(|norm| (norm.path, norm.place)).collect();
        assert_eq!(
            norms,
            [
                ("input_layernorm", Place::BeforeMixer),
                ("self_attn.q_norm", Place::Queries),
                ("self_attn.k_norm", Place::Keys),
                ("post_attention_layernorm", Place::AfterMixer),
                ("pre_feedforward_layernorm", Place::BeforeMlp),
                ("post_feedforward_layernorm", Place::AfterMlp),
            ]
        );
        assert!(config.layers[0].norms().chain([&config.norm]).all(|norm| norm.zero_centred));
        // Two more values per channel are kept than by a layer of Llama: the inputs of the norms after mixer
        // and MLP.
        assert_eq!(config.layers[0].kept_per_token, 6 * 640 + 3 * 2048 + 5 * 1024 + 3 * 256);
    }

    proptest! {
        #[test]
        fn a_config_of_another_computation_is_refused_and_the_field_named(
            which in 0..8usize,
            number in prop_oneof![-100.0f64..-0.01, 1.5f64..100.0],
            word in "[a-z_]{1,12}",
        ) {
            let (field, value) = [
                // A field of Gemma 2.
                ("final_logit_softcapping", json!(number)),
                ("attn_logit_softcapping", json!(number)),
                // A field of EmbeddingGemma.
                ("use_bidirectional_attention", json!(true)),
                ("hidden_activation", json!(word)),
                ("query_pre_attn_scalar", json!(-number.abs())),
                ("sliding_window", json!(0)),
                ("layer_types", json!([word])),
                ("rope_scaling", json!({"rope_type": word, "factor": 8.0})),
            ][which].clone();
            let mut config = the_270m();
            config[field] = value;
            let error = read(&config).unwrap_err().to_string();
            prop_assert!(error.contains(field), "{}", error);
        }
    }
}
