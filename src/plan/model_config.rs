//! What a model is, read from `config.json` alone.
//!
//! Owned here because the fit and the time estimate need it before a single weight is fetched, and because this
//! crate is the leaf that both the screens and the model may see. Field names are Hugging Face's.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use crate::choices::Architecture;

/// The mixer of one decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerType {
    /// Gated DeltaNet.
    LinearAttention,
    /// Softmax attention.
    FullAttention,
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base of the geometric series of frequencies.
    pub theta: f64,
    /// How many leading dimensions of each head are rotated (even, at most `head_dim`).
    pub rotary_dim: usize,
    /// Llama 3.1's frequency rescaling, when the config asks for it.
    pub llama3: Option<Llama3Scaling>,
}

/// `rope_scaling` of type `llama3`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Llama3Scaling {
    /// Long wavelengths are stretched by this factor.
    pub factor: f64,
    /// Wavelengths over `original / low_freq_factor` are fully stretched.
    pub low_freq_factor: f64,
    /// Wavelengths under `original / high_freq_factor` stay as they are.
    pub high_freq_factor: f64,
    /// Context length the model was first trained with.
    pub original_max_position_embeddings: f64,
}

/// Shape of the gated DeltaNet layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinearAttention {
    /// Query/key heads.
    pub num_key_heads: usize,
    /// Value heads, a multiple of `num_key_heads`.
    pub num_value_heads: usize,
    /// Width of a query/key head.
    pub key_head_dim: usize,
    /// Width of a value head.
    pub value_head_dim: usize,
    /// Taps of the causal depthwise convolution.
    pub conv_kernel_dim: usize,
}

impl LinearAttention {
    /// Channels of queries (and of keys) together.
    pub fn key_dim(&self) -> usize {
        self.num_key_heads * self.key_head_dim
    }

    /// Channels of the values together.
    pub fn value_dim(&self) -> usize {
        self.num_value_heads * self.value_head_dim
    }

    /// Channels that pass the convolution: q, k and v.
    pub fn conv_dim(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }
}

/// Everything the trainer and the plan need to know of a decoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are the fields of config.json
pub struct ModelConfig {
    pub architecture: Architecture,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub vocab_size: usize,
    pub rms_norm_eps: f64,
    /// As the config says; the checkpoint's own keys have the last word.
    pub tie_word_embeddings: bool,
    pub max_position_embeddings: usize,
    /// Attention reaches back at most this many tokens, when set.
    pub sliding_window: Option<usize>,
    pub rope: Rope,
    /// One entry a layer.
    pub layer_types: Vec<LayerType>,
    /// Present when any layer is [`LayerType::LinearAttention`].
    pub linear_attention: Option<LinearAttention>,
    pub mtp_num_hidden_layers: usize,
    /// q, k and v carry a bias (Qwen2, and Llama when `attention_bias`).
    pub qkv_bias: bool,
    /// o_proj carries a bias (Llama when `attention_bias`).
    pub o_bias: bool,
    /// Storage type named by the config (`bfloat16`, `float32`, …).
    pub dtype: Option<String>,
}

/// Why a `config.json` cannot be trained. Each message says what, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or not an object.
    #[error(
        "config.json is not a JSON object: {0}. Download the model again or point --model at a folder with a valid config.json"
    )]
    NotJson(String),
    /// A field is missing or has the wrong type.
    #[error("config.json: `{field}` {problem}. This file does not describe a model sparktune can train")]
    Field {
        /// Dotted name of the field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The family is not one of ours.
    #[error(
        "config.json: model_type `{0}` is not known. Trainable here: qwen3_5, qwen3, qwen2, llama, mistral (dense, not \
         quantised). If its layers compute as those of one of these, which only its authors' code can tell, say so with \
         --architecture"
    )]
    Unsupported(String),
    /// A known family was to be computed as another one.
    #[error(
        "config.json: model_type `{found}` is known, and would be wrong computed as {asked}. Leave --architecture away"
    )]
    Contradicted {
        /// What the config says.
        found: String,
        /// What was asked for.
        asked: Architecture,
    },
    /// Quantised weights.
    #[error(
        "config.json: the weights are quantised ({0}) and cannot be trained as they are. Choose the bf16 repository of the same model"
    )]
    Quantised(String),
}

struct Fields<'a> {
    map: &'a Map<String, Value>,
}

impl Fields<'_> {
    fn get(&self, field: &str) -> Option<&Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn wrong(field: &str, problem: &str) -> ConfigError {
        ConfigError::Field { field: field.into(), problem: problem.into() }
    }

    fn optional_size(&self, field: &str) -> Result<Option<usize>, ConfigError> {
        // 2^32 bounds every product of two sizes below u64, so that a hostile config cannot overflow later sums.
        self.get(field)
            .map(|value| match value.as_u64() {
                Some(n) if n < 1 << 32 => Ok(n as usize),
                _ => Err(Self::wrong(field, "is not a whole number below 2^32")),
            })
            .transpose()
    }

    fn size(&self, field: &str) -> Result<usize, ConfigError> {
        match self.optional_size(field)? {
            Some(0) => Err(Self::wrong(field, "is zero")),
            Some(n) => Ok(n),
            None => Err(Self::wrong(field, "is missing")),
        }
    }

    fn float(&self, field: &str, default: f64) -> Result<f64, ConfigError> {
        self.get(field).map_or(Ok(default), |value| {
            value.as_f64().filter(|x| x.is_finite()).ok_or_else(|| Self::wrong(field, "is not a number"))
        })
    }

    fn flag(&self, field: &str) -> bool {
        self.get(field).and_then(Value::as_bool).unwrap_or(false)
    }

    fn text(&self, field: &str) -> Option<&str> {
        self.get(field).and_then(Value::as_str)
    }

    /// Fields that other families use to compute something that none of ours does. Passing over one would train a
    /// model that is silently another.
    fn refuse_what_no_family_computes(&self) -> Result<(), ConfigError> {
        let strange = STRANGE_FIELDS.iter().find(|field| match self.get(field) {
            None | Some(Value::Bool(false)) => false,
            Some(Value::Number(number)) => number.as_f64() != Some(1.0) && number.as_f64() != Some(0.0),
            Some(Value::Array(items)) => !items.is_empty(),
            Some(_) => true,
        });
        match strange {
            Some(field) => {
                Err(Self::wrong(field, "asks for something that none of the known families computes"))
            }
            None => Ok(()),
        }
    }
}

/// Experts; soft caps and multipliers; layers without positions; parallel residuals; clipped or normed projections.
const STRANGE_FIELDS: &[&str] = &[
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "logit_scale",
    "logits_scaling",
    "embedding_multiplier",
    "residual_multiplier",
    "attention_multiplier",
    "scale_emb",
    "scale_depth",
    "no_rope_layers",
    "use_parallel_residual",
    "parallel_attn",
    "clip_qkv",
    "alibi",
    "q_lora_rank",
    "kv_lora_rank",
];

impl ModelConfig {
    /// Reads the text of a `config.json`, wrapper (`text_config` inside) or text-only.
    ///
    /// # Errors
    /// [`ConfigError`] when the file is not JSON, names an unknown family, is quantised, or contradicts itself.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        Self::from_json_as(text, None)
    }

    /// As [`from_json`](Self::from_json); a family that is not known is computed as this one. Whether that is what its
    /// authors meant, the config cannot tell: fields that no known family has a use for are refused, and the user has to
    /// confirm the rest.
    ///
    /// # Errors
    /// As [`from_json`](Self::from_json), and a known family that is to be computed as another one.
    pub fn from_json_as(text: &str, computed_as: Option<Architecture>) -> Result<Self, ConfigError> {
        let outer: Map<String, Value> =
            serde_json::from_str(text).map_err(|e| ConfigError::NotJson(e.to_string()))?;
        Self::from_map(&outer, computed_as)
    }

    /// The `model_type` that decides, and the family to offer for it where it is not known: the one whose fields the
    /// config has. `None` for what is known, or is no config at all.
    pub fn unknown_family(text: &str) -> Option<(String, Architecture)> {
        let Err(ConfigError::Unsupported(model_type)) = Self::from_json(text) else { return None };
        let fits = |family: &Architecture| Self::from_json_as(text, Some(*family)).is_ok();
        // The one with its own fields first; of the others Llama is the plainest.
        let family = [Architecture::Qwen35, Architecture::Llama].into_iter().find(fits)?;
        Some((model_type, family))
    }

    fn from_map(outer: &Map<String, Value>, computed_as: Option<Architecture>) -> Result<Self, ConfigError> {
        let wrapper = Fields { map: outer };
        if let Some(quantisation) = wrapper.get("quantization_config") {
            let method = quantisation.get("quant_method").and_then(Value::as_str).unwrap_or("unknown method");
            return Err(ConfigError::Quantised(method.into()));
        }
        let inner = outer.get("text_config").and_then(Value::as_object);
        let config = Fields { map: inner.unwrap_or(outer) };
        let model_type = config
            .text("model_type")
            .or_else(|| wrapper.text("model_type"))
            .ok_or_else(|| Fields::wrong("model_type", "is missing"))?;
        let known = match model_type {
            "qwen3_5_text" => Some(Architecture::Qwen35),
            model_type => model_type.parse().ok(),
        };
        let shown = || model_type.chars().take(64).collect();
        let architecture = match (known, computed_as) {
            (Some(known), None) => known,
            (Some(known), Some(asked)) if known == asked => known,
            (Some(_), Some(asked)) => return Err(ConfigError::Contradicted { found: shown(), asked }),
            (None, Some(asked)) => {
                config.refuse_what_no_family_computes()?;
                asked
            }
            (None, None) => return Err(ConfigError::Unsupported(shown())),
        };
        if let Some(act) = config.text("hidden_act").filter(|act| *act != "silu") {
            return Err(Fields::wrong("hidden_act", &format!("is `{act}`, only silu is supported")));
        }
        if config.flag("mlp_bias") {
            return Err(Fields::wrong("mlp_bias", "is true, biases in the MLP are not supported"));
        }

        let hidden_size = config.size("hidden_size")?;
        let num_attention_heads = config.size("num_attention_heads")?;
        let num_key_value_heads = config.optional_size("num_key_value_heads")?.unwrap_or(num_attention_heads);
        if num_key_value_heads == 0 || num_attention_heads % num_key_value_heads != 0 {
            return Err(Fields::wrong("num_key_value_heads", "does not divide num_attention_heads"));
        }
        let head_dim = config.optional_size("head_dim")?.unwrap_or(hidden_size / num_attention_heads);
        let num_hidden_layers = config.size("num_hidden_layers")?;
        if num_hidden_layers > 1024 {
            return Err(Fields::wrong("num_hidden_layers", "is over 1024"));
        }
        let layer_types = layer_types(&config, architecture, num_hidden_layers)?;
        let linear_attention = if layer_types.contains(&LayerType::LinearAttention) {
            Some(linear_attention(&config)?)
        } else {
            None
        };
        let attention_bias = config.flag("attention_bias");
        let windowed = match architecture {
            Architecture::Mistral => true,
            // Only the layers from `max_window_layers` on have the window: none of them, all of them, or a mixture.
            _ if config.flag("use_sliding_window") => {
                match config.optional_size("max_window_layers")?.unwrap_or(0) {
                    0 => true,
                    from if from >= num_hidden_layers => false,
                    _ => {
                        let problem = "gives a sliding window to some layers only, which is not supported";
                        return Err(Fields::wrong("max_window_layers", problem));
                    }
                }
            }
            _ => false,
        };
        Ok(Self {
            architecture,
            hidden_size,
            intermediate_size: config.size("intermediate_size")?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            vocab_size: config.size("vocab_size")?,
            rms_norm_eps: config.float("rms_norm_eps", 1e-6)?,
            tie_word_embeddings: wrapper
                .get("tie_word_embeddings")
                .map_or_else(|| config.flag("tie_word_embeddings"), |value| value.as_bool().unwrap_or(false)),
            max_position_embeddings: config.size("max_position_embeddings")?,
            sliding_window: if windowed { config.optional_size("sliding_window")? } else { None },
            rope: rope(&config, architecture, head_dim)?,
            layer_types,
            linear_attention,
            mtp_num_hidden_layers: config.optional_size("mtp_num_hidden_layers")?.unwrap_or(0),
            qkv_bias: architecture == Architecture::Qwen2 || attention_bias,
            o_bias: attention_bias && architecture != Architecture::Qwen2,
            dtype: config
                .text("dtype")
                .or_else(|| config.text("torch_dtype"))
                .or_else(|| wrapper.text("torch_dtype"))
                .map(str::to_owned),
        })
    }

    /// Longest example the model was made for, in tokens: its positions, or its sliding window where that is shorter.
    pub fn max_example_tokens(&self) -> usize {
        self.sliding_window.map_or(self.max_position_embeddings, |w| w.min(self.max_position_embeddings))
    }

    /// Norm weights are stored as the difference from one (`x · (1 + w)`).
    pub fn zero_centred_norms(&self) -> bool {
        self.architecture == Architecture::Qwen35
    }

    /// Queries and keys are RMS-normalised per head.
    pub fn has_qk_norm(&self) -> bool {
        matches!(self.architecture, Architecture::Qwen35 | Architecture::Qwen3)
    }

    /// The attention result is gated by a sigmoid computed in `q_proj`.
    pub fn has_output_gate(&self) -> bool {
        self.architecture == Architecture::Qwen35
    }

    /// The linear layers that can carry adapters in a layer of this type: name, output width, input width.
    ///
    /// Names are module paths below the layer (`self_attn.q_proj`), in forward order.
    pub fn linears(&self, layer: LayerType) -> Vec<(&'static str, usize, usize)> {
        let (h, i) = (self.hidden_size, self.intermediate_size);
        let mut linears = match (layer, &self.linear_attention) {
            (LayerType::LinearAttention, Some(linear)) => vec![
                ("linear_attn.in_proj_qkv", linear.conv_dim(), h),
                ("linear_attn.in_proj_z", linear.value_dim(), h),
                ("linear_attn.in_proj_b", linear.num_value_heads, h),
                ("linear_attn.in_proj_a", linear.num_value_heads, h),
                ("linear_attn.out_proj", h, linear.value_dim()),
            ],
            _ => {
                let q = self.num_attention_heads * self.head_dim;
                let kv = self.num_key_value_heads * self.head_dim;
                let q_out = if self.has_output_gate() { 2 * q } else { q };
                vec![
                    ("self_attn.q_proj", q_out, h),
                    ("self_attn.k_proj", kv, h),
                    ("self_attn.v_proj", kv, h),
                    ("self_attn.o_proj", h, q),
                ]
            }
        };
        linears.extend([("mlp.gate_proj", i, h), ("mlp.up_proj", i, h), ("mlp.down_proj", h, i)]);
        linears
    }

    /// Parameters of one layer: its linears, norms, biases and, in linear layers, convolution and gates.
    pub fn layer_parameters(&self, layer: LayerType) -> u64 {
        let linears: u64 =
            self.linears(layer).iter().map(|(_, out, input)| *out as u64 * *input as u64).sum();
        let norms = 2 * self.hidden_size as u64;
        let mixer = match (layer, &self.linear_attention) {
            (LayerType::LinearAttention, Some(linear)) => {
                (linear.conv_dim() * linear.conv_kernel_dim
                    + 2 * linear.num_value_heads
                    + linear.value_head_dim) as u64
            }
            _ => {
                let qk_norm = if self.has_qk_norm() { 2 * self.head_dim } else { 0 };
                let q = self.num_attention_heads * self.head_dim;
                let kv = self.num_key_value_heads * self.head_dim;
                let bias = if self.qkv_bias { q + 2 * kv } else { 0 }
                    + if self.o_bias { self.hidden_size } else { 0 };
                (qk_norm + bias) as u64
            }
        };
        linears + norms + mixer
    }

    /// Parameters of the text model without MTP head and vision tower; a tied head is counted once.
    pub fn text_parameters(&self) -> u64 {
        let embedding = self.vocab_size as u64 * self.hidden_size as u64;
        let heads = if self.tie_word_embeddings { 1 } else { 2 };
        let layers: u64 = self.layer_types.iter().map(|layer| self.layer_parameters(*layer)).sum();
        embedding * heads + layers + self.hidden_size as u64
    }

    /// Parameters of the MTP head (0 when the model has none): one full-attention layer, the joining projection and
    /// three norms.
    pub fn mtp_parameters(&self) -> u64 {
        if self.mtp_num_hidden_layers == 0 {
            return 0;
        }
        let h = self.hidden_size as u64;
        self.layer_parameters(LayerType::FullAttention) * self.mtp_num_hidden_layers as u64
            + 2 * h * h
            + 3 * h
    }
}

fn layer_types(
    config: &Fields,
    architecture: Architecture,
    num_hidden_layers: usize,
) -> Result<Vec<LayerType>, ConfigError> {
    if architecture != Architecture::Qwen35 {
        return Ok(vec![LayerType::FullAttention; num_hidden_layers]);
    }
    let Some(listed) = config.get("layer_types") else {
        let interval = config.optional_size("full_attention_interval")?.unwrap_or(4).max(1);
        return Ok((1..=num_hidden_layers)
            .map(|i| if i % interval == 0 { LayerType::FullAttention } else { LayerType::LinearAttention })
            .collect());
    };
    let types = listed
        .as_array()
        .ok_or_else(|| Fields::wrong("layer_types", "is not a list"))?
        .iter()
        .map(|value| match value.as_str() {
            Some("linear_attention") => Ok(LayerType::LinearAttention),
            Some("full_attention") => Ok(LayerType::FullAttention),
            _ => Err(Fields::wrong("layer_types", &format!("has an entry that is not known: {value}"))),
        })
        .collect::<Result<Vec<_>, _>>()?;
    if types.len() != num_hidden_layers {
        return Err(Fields::wrong("layer_types", "has not one entry for each of num_hidden_layers"));
    }
    Ok(types)
}

fn linear_attention(config: &Fields) -> Result<LinearAttention, ConfigError> {
    let linear = LinearAttention {
        num_key_heads: config.size("linear_num_key_heads")?,
        num_value_heads: config.size("linear_num_value_heads")?,
        key_head_dim: config.size("linear_key_head_dim")?,
        value_head_dim: config.size("linear_value_head_dim")?,
        conv_kernel_dim: config.size("linear_conv_kernel_dim")?,
    };
    if !linear.num_value_heads.is_multiple_of(linear.num_key_heads) {
        return Err(Fields::wrong("linear_num_value_heads", "is not a multiple of linear_num_key_heads"));
    }
    Ok(linear)
}

fn rope(config: &Fields, architecture: Architecture, head_dim: usize) -> Result<Rope, ConfigError> {
    // Newer files keep everything in `rope_parameters`; older ones have `rope_theta` beside `rope_scaling`.
    let parameters = config.get("rope_parameters").or_else(|| config.get("rope_scaling"));
    let empty = Map::new();
    let parameters = Fields { map: parameters.and_then(Value::as_object).unwrap_or(&empty) };
    let default_theta = 10_000.0;
    let theta = parameters.float("rope_theta", config.float("rope_theta", default_theta)?)?;
    let default_factor = if architecture == Architecture::Qwen35 { 0.25 } else { 1.0 };
    let factor =
        parameters.float("partial_rotary_factor", config.float("partial_rotary_factor", default_factor)?)?;
    let rotary_dim = (head_dim as f64 * factor) as usize;
    if rotary_dim == 0 || rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
        return Err(Fields::wrong(
            "partial_rotary_factor",
            "does not give an even number of rotated dimensions",
        ));
    }
    let llama3 = match parameters.text("rope_type").or_else(|| parameters.text("type")).unwrap_or("default") {
        "default" => None,
        "llama3" => Some(Llama3Scaling {
            factor: parameters.float("factor", 8.0)?,
            low_freq_factor: parameters.float("low_freq_factor", 1.0)?,
            high_freq_factor: parameters.float("high_freq_factor", 4.0)?,
            original_max_position_embeddings: parameters.float("original_max_position_embeddings", 8192.0)?,
        }),
        other => {
            return Err(Fields::wrong(
                "rope_scaling.rope_type",
                &format!("is `{other}`, which is not supported"),
            ));
        }
    };
    Ok(Rope { theta, rotary_dim, llama3 })
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

    #[test]
    fn the_2b_has_the_published_number_of_parameters() {
        let config = ModelConfig::from_json(&qwen35_2b().to_string()).unwrap();
        // QWEN35_SPEC.md section 7: 1.882 B text, 0.061 B MTP.
        assert_eq!((config.text_parameters() as f64 / 1e6).round(), 1882.0);
        assert_eq!((config.mtp_parameters() as f64 / 1e6).round(), 61.0);
        assert_eq!(config.rope.rotary_dim, 64);
        assert_eq!(config.layer_types.iter().filter(|t| **t == LayerType::FullAttention).count(), 6);
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
        assert_eq!(ModelConfig::unknown_family(text), Some(("newlm".into(), Architecture::Llama)));
        let config = ModelConfig::from_json_as(text, Some(Architecture::Qwen2)).unwrap();
        assert!(config.architecture == Architecture::Qwen2 && config.qkv_bias);

        for strange in [("1.0", "0.22"), ("null", "30.0"), ("[]", "[1,1,0]")] {
            let text = text.replacen(strange.0, strange.1, 1);
            assert!(ModelConfig::from_json_as(&text, Some(Architecture::Llama)).is_err(), "{strange:?}");
            assert_eq!(ModelConfig::unknown_family(&text), None, "{strange:?}");
        }
        let known = text.replacen("newlm", "qwen3", 1);
        let error = ModelConfig::from_json_as(&known, Some(Architecture::Llama)).unwrap_err().to_string();
        assert!(
            error.contains("qwen3") && error.contains("llama") && error.contains("--architecture"),
            "{error}"
        );
        assert!(ModelConfig::from_json_as(&known, Some(Architecture::Qwen3)).is_ok());
    }
}
