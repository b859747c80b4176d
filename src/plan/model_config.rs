//! The configuration of a model, read from `config.json` alone.
//!
//! Enters: the text of a `config.json`. Leaves: [`ModelConfig`], the sizes of the model and the layers from
//! its family's table ([`crate::architecture`]), or the reason why it cannot be trained. It belongs to this
//! crate because memory and time are estimated before a weight is downloaded, and because both the screens
//! and the model depend on this crate. Field names are Hugging Face's.

use serde_json::{Map, Value};

pub use crate::architecture::ConfigError;
use crate::architecture::{self, Fields, LayerSpec, MixerSpec, MtpSpec, NormSpec, Rope, Sizes, TensorSpec};
use crate::choices::Architecture;

/// The description of a decoder that the trainer and the plan need.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The family whose table defines the layers.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// The number of rows of the embedding.
    pub vocab_size: usize,
    /// The constant added to the mean square in every norm.
    pub rms_norm_eps: f64,
    /// Whether the config says that the embedding is also the output head. The checkpoint's own tensors take
    /// precedence.
    pub tie_word_embeddings: bool,
    /// The largest number of positions that the model was designed for.
    pub max_position_embeddings: usize,
    /// One entry per layer.
    pub layers: Vec<LayerSpec>,
    /// The norm after the last layer.
    pub norm: NormSpec,
    /// The factor that embeddings are multiplied by, rounded to the type of their table.
    pub embedding_scale: Option<f64>,
    /// The structure of an MTP head, if the family has such heads.
    pub mtp: Option<MtpSpec>,
    /// The number of layers of the MTP head; 0 without one.
    pub mtp_num_hidden_layers: usize,
    /// The storage type named in the config (`bfloat16`, `float32`, …).
    pub dtype: Option<String>,
}

/// The user's options for reading a config.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigOptions {
    /// The known family that a model of an unknown family is treated as.
    pub computed_as: Option<Architecture>,
    /// Fields that are ignored although it is unknown what they change.
    pub ignored_fields: Vec<String>,
}

impl ModelConfig {
    /// Reads the text of a `config.json`, wrapper (`text_config` inside) or text-only.
    ///
    /// # Errors
    /// [`ConfigError`] when the file is not JSON, names an unknown family, has fields that its family's table
    /// does not know, is quantised, or contradicts itself.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        Self::from_json_with(text, &ConfigOptions::default())
    }

    /// Like [`from_json`](Self::from_json), with the user's options. A config cannot show whether an unknown
    /// family computes the same as a known one; only the user can say so.
    ///
    /// # Errors
    /// The same as for [`from_json`](Self::from_json), and a known family that the user asked to treat as
    /// another one.
    pub fn from_json_with(text: &str, options: &ConfigOptions) -> Result<Self, ConfigError> {
        let outer: Map<String, Value> =
            serde_json::from_str(text).map_err(|e| ConfigError::NotJson(e.to_string()))?;
        Self::from_map(&outer, options)
    }

    /// Returns the unknown `model_type` of a config and the family to suggest for it, whose fields the config
    /// has. Returns `None` if the family is known, the text is not a config, or it has fields that no family
    /// knows and that are not ignored.
    pub fn unknown_family(text: &str, ignored_fields: &[String]) -> Option<(String, Architecture)> {
        let read_as = |computed_as| {
            let options = ConfigOptions { computed_as, ignored_fields: ignored_fields.to_vec() };
            Self::from_json_with(text, &options)
        };
        let Err(ConfigError::Unsupported(model_type)) = read_as(None) else { return None };
        let family = Architecture::LIKELY.into_iter().find(|family| read_as(Some(*family)).is_ok())?;
        Some((model_type, family))
    }

    fn from_map(outer: &Map<String, Value>, options: &ConfigOptions) -> Result<Self, ConfigError> {
        let wrapper = Fields::new(outer);
        if let Some(quantisation) = wrapper.get("quantization_config") {
            let method = quantisation.get("quant_method").and_then(Value::as_str).unwrap_or("unknown method");
            return Err(ConfigError::Quantised(method.into()));
        }
        let inner = wrapper.map("text_config");
        let config = Fields::new(inner.unwrap_or(outer));
        let model_type = config
            .text("model_type")
            .or_else(|| wrapper.text("model_type"))
            .ok_or_else(|| ConfigError::field("model_type", "is missing"))?;
        let architecture = family(model_type, options.computed_as)?;
        let complete = architecture.with_defaults(inner.unwrap_or(outer));
        let config = Fields::new(&complete);
        architecture.check_fields(&config, inner.map(|_| &wrapper), &options.ignored_fields)?;

        let sizes = Sizes::read(&config)?;
        let decoder = architecture.decoder(&sizes, &config)?;
        Ok(Self {
            architecture,
            hidden_size: sizes.hidden_size,
            vocab_size: config.size("vocab_size")?,
            rms_norm_eps: config.float("rms_norm_eps", 1e-6)?,
            tie_word_embeddings: wrapper
                .get("tie_word_embeddings")
                .map_or_else(|| config.flag("tie_word_embeddings"), |value| value.as_bool().unwrap_or(false)),
            max_position_embeddings: config.size("max_position_embeddings")?,
            layers: decoder.layers,
            norm: decoder.norm,
            embedding_scale: decoder.embedding_scale,
            mtp: decoder.mtp,
            mtp_num_hidden_layers: config.optional_size("mtp_num_hidden_layers")?.unwrap_or(0),
            dtype: config
                .text("dtype")
                .or_else(|| config.text("torch_dtype"))
                .or_else(|| wrapper.text("torch_dtype"))
                .map(str::to_owned),
        })
    }

    /// Declares the MTP head of its family, whose weights come from another model. Nothing changes if the
    /// config declares one, or the family has none.
    pub fn declare_head(&mut self) {
        if self.mtp.is_some() {
            self.mtp_num_hidden_layers = self.mtp_num_hidden_layers.max(1);
        }
    }

    /// Returns the length in tokens of the longest example that the model was designed for: its positions, or
    /// its sliding window if every layer has a shorter one.
    pub fn max_example_tokens(&self) -> usize {
        let reach = |layer: &LayerSpec| match &layer.mixer {
            MixerSpec::Attention(attention) => attention.sliding_window.unwrap_or(usize::MAX),
            MixerSpec::GatedDeltaNet(_) => usize::MAX,
        };
        let longest = self.layers.iter().map(reach).max().unwrap_or(usize::MAX);
        longest.min(self.max_position_embeddings)
    }

    /// Returns the distinct layers of the model, each with its number of occurrences, in the order in which
    /// they first occur.
    pub fn layer_kinds(&self) -> Vec<(&LayerSpec, usize)> {
        let mut kinds: Vec<(&LayerSpec, usize)> = Vec::new();
        for layer in &self.layers {
            match kinds.iter_mut().find(|(kind, _)| *kind == layer) {
                Some((_, count)) => *count += 1,
                None => kinds.push((layer, 1)),
            }
        }
        kinds
    }

    /// Returns the distinct RoPEs of the attention layers, including those of the MTP head.
    pub fn ropes(&self) -> Vec<&Rope> {
        let mut ropes = Vec::new();
        for layer in self.layers.iter().chain(self.mtp.as_ref().map(|mtp| &mtp.layer)) {
            if let MixerSpec::Attention(attention) = &layer.mixer
                && !ropes.contains(&&attention.rope)
            {
                ropes.push(&attention.rope);
            }
        }
        ropes
    }

    /// Returns every tensor of the text model with its canonical name, in the order of the forward pass. The
    /// output head is included only if it is a separate tensor.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let table = |name: &str| TensorSpec::new(name, &[self.vocab_size, self.hidden_size]);
        let mut tensors = vec![table("embed_tokens.weight")];
        for (i, layer) in self.layers.iter().enumerate() {
            let path = format!("layers.{i}");
            tensors.extend(layer.tensors().into_iter().map(|tensor| tensor.below(&path)));
        }
        tensors.push(self.norm.weight());
        if !self.tie_word_embeddings {
            tensors.push(table("lm_head.weight"));
        }
        tensors
    }

    /// Returns the number of parameters of the text model without MTP head and vision tower; a tied head is
    /// counted once.
    pub fn text_parameters(&self) -> u64 {
        let embedding = self.vocab_size as u64 * self.hidden_size as u64;
        let heads = if self.tie_word_embeddings { 1 } else { 2 };
        let without_layers = embedding.saturating_mul(heads).saturating_add(self.norm.weight().parameters());
        self.layer_kinds().into_iter().fold(without_layers, |sum, (layer, count)| {
            sum.saturating_add(layer.parameters().saturating_mul(count as u64))
        })
    }

    /// Returns the number of parameters of the MTP head, or 0 when the model has none.
    pub fn mtp_parameters(&self) -> u64 {
        match (&self.mtp, self.mtp_num_hidden_layers as u64) {
            (None, _) | (_, 0) => 0,
            (Some(mtp), layers) => {
                let further = mtp.layer.parameters().saturating_mul(layers - 1);
                architecture::parameters(&mtp.tensors()).saturating_add(further)
            }
        }
    }
}

/// Returns the family of a `model_type`, or `computed_as` if it is unknown.
fn family(model_type: &str, computed_as: Option<Architecture>) -> Result<Architecture, ConfigError> {
    let shown = || model_type.chars().take(64).collect();
    match (Architecture::of_model_type(model_type), computed_as) {
        (Some(known), Some(asked)) if known != asked => {
            Err(ConfigError::Contradicted { found: shown(), asked })
        }
        (Some(known), _) => Ok(known),
        (None, Some(asked)) => Ok(asked),
        (None, None) => Err(ConfigError::Unsupported(shown())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qwen35_2b() -> Value {
        serde_json::json!({
            "model_type": "qwen3_5",
            "tie_word_embeddings": true,
            "text_config": {
                "model_type": "qwen3_5_text", "hidden_size": 2048, "intermediate_size": 6144,
                "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
                "vocab_size": 248320, "max_position_embeddings": 262144, "full_attention_interval": 4,
                "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
                "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mtp_num_hidden_layers": 1,
                "rope_parameters": {"rope_theta": 10000000, "partial_rotary_factor": 0.25}
            }
        })
    }

    fn computed_as(text: &str, family: Architecture) -> Result<ModelConfig, ConfigError> {
        let options = ConfigOptions { computed_as: Some(family), ..ConfigOptions::default() };
        ModelConfig::from_json_with(text, &options)
    }

    #[test]
    fn the_2b_has_the_published_number_of_parameters() {
        let config = ModelConfig::from_json(&qwen35_2b().to_string()).unwrap();
        // SPEC.md 7: 1.882 B text, 0.061 B MTP.
        assert_eq!((config.text_parameters() as f64 / 1e6).round(), 1882.0);
        assert_eq!((config.mtp_parameters() as f64 / 1e6).round(), 61.0);
        assert_eq!(config.ropes().iter().map(|rope| rope.rotary_dim).collect::<Vec<_>>(), [64]);
        let [(delta, 18), (full, 6)] = config.layer_kinds()[..] else { panic!("two kinds of layer") };
        assert!(matches!(delta.mixer, MixerSpec::GatedDeltaNet(_)));
        assert!(matches!(full.mixer, MixerSpec::Attention(_)));
    }

    #[test]
    fn a_quantised_or_unknown_model_is_refused_in_words() {
        let mut config = qwen35_2b();
        config["quantization_config"] = serde_json::json!({"quant_method": "fp8"});
        let error = ModelConfig::from_json(&config.to_string()).unwrap_err().to_string();
        assert!(error.contains("fp8") && error.contains("bf16 repository"), "{error}");
        let error = ModelConfig::from_json(r#"{"model_type":"qwen3_5_moe"}"#).unwrap_err().to_string();
        assert!(error.contains("qwen3_5_moe"), "{error}");
    }

    #[test]
    fn a_field_that_contradicts_another_is_named() {
        let mut config = qwen35_2b();
        config["text_config"]["layer_types"] = serde_json::json!(["full_attention"]);
        let error = ModelConfig::from_json(&config.to_string()).unwrap_err().to_string();
        assert!(error.contains("layer_types"), "{error}");
        let mut config = qwen35_2b();
        config["text_config"]["hidden_size"] = serde_json::json!(1u64 << 40);
        let error = ModelConfig::from_json(&config.to_string()).unwrap_err().to_string();
        assert!(error.contains("hidden_size"), "{error}");
    }

    #[test]
    fn an_unknown_family_is_computed_as_another_only_when_that_is_said_and_nothing_strange_is_in_it() {
        let text = r#"{"model_type":"newlm","hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,
            "num_attention_heads":4,"vocab_size":100,"max_position_embeddings":512,"residual_multiplier":1.0,
            "final_logit_softcapping":null,"no_rope_layers":[]}"#;
        assert!(
            matches!(ModelConfig::from_json(text), Err(ConfigError::Unsupported(name)) if name == "newlm")
        );
        assert_eq!(ModelConfig::unknown_family(text, &[]), Some(("newlm".into(), Architecture::Llama)));
        let config = computed_as(text, Architecture::Qwen2).unwrap();
        assert_eq!(config.architecture, Architecture::Qwen2);
        assert!(config.tensors().iter().any(|tensor| tensor.name == "layers.1.self_attn.k_proj.bias"));

        for strange in [("1.0", "0.22"), ("null", "30.0"), ("[]", "[1,1,0]")] {
            let text = text.replacen(strange.0, strange.1, 1);
            assert!(computed_as(&text, Architecture::Llama).is_err(), "{strange:?}");
            assert_eq!(ModelConfig::unknown_family(&text, &[]), None, "{strange:?}");
        }
        let known = text.replacen("newlm", "qwen3", 1);
        let error = computed_as(&known, Architecture::Llama).unwrap_err().to_string();
        assert!(
            error.contains("qwen3") && error.contains("llama") && error.contains("--architecture"),
            "{error}"
        );
        assert!(computed_as(&known, Architecture::Qwen3).is_ok());
    }
}
