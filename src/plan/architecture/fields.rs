//! Reads the fields of a `config.json` and refuses unknown ones.
//!
//! An ignored field may change what the model computes, and another model than the intended one would then be
//! trained. Therefore each family lists the fields that it uses, those known to change nothing, and those
//! known to require a computation that is not implemented here. Fields in none of the lists are refused too,
//! unless their value turns them off.

use std::ffi::OsStr;

use serde_json::{Map, Value};
use sparktune_base::escape::{escape, shortened};
use sparktune_base::shell::shown_word;

use crate::choices::Architecture;

/// The reasons why a `config.json` cannot be trained. Each message says what is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not JSON, or not an object.
    #[error(
        "config.json is not a JSON object: {0}. Download the model again or point --model at a folder with a valid config.json"
    )]
    NotJson(String),
    /// A field is missing, has the wrong type, or requires a computation that is not implemented.
    #[error("config.json: `{field}` {problem}. sparktune cannot train the model that this file describes")]
    Field {
        /// The dotted name of the field.
        field: String,
        /// A description of the problem.
        problem: String,
    },
    /// Fields that the family's table does not know.
    #[error("{}", unknown_fields_text(.fields, *.family))]
    UnknownFields {
        /// The dotted names of the fields.
        fields: Vec<String>,
        /// The family that the model is treated as.
        family: Architecture,
    },
    /// The family is unknown.
    #[error(
        "config.json: model_type `{0}` is unknown. sparktune can train {families} (dense, not quantised). If the authors' code shows that its layers compute the same as one of these, name that family with --architecture", families = families()
    )]
    Unsupported(String),
    /// The user asked to treat a model of a known family as another family.
    #[error(
        "config.json: model_type `{found}` is a known family, so treating it as {asked} would be wrong. Omit --architecture"
    )]
    Contradicted {
        /// The `model_type` of the config.
        found: String,
        /// The family that the user asked for.
        asked: Architecture,
    },
    /// The weights are quantised.
    #[error(
        "config.json: the weights are quantised ({0}) and cannot be trained as they are. Choose the bf16 repository of the same model"
    )]
    Quantised(String),
}

impl ConfigError {
    /// Creates the error for a problem with one field.
    pub(crate) fn field(field: &str, problem: &str) -> Self {
        Self::Field { field: field.into(), problem: problem.into() }
    }
}

fn families() -> String {
    Architecture::ALL.iter().map(|family| family.word()).collect::<Vec<_>>().join(", ")
}

fn unknown_fields_text(fields: &[String], family: Architecture) -> String {
    let shown = fields.iter().take(SHOWN).map(|field| format!("`{}`", escape(field)));
    let mut names = shown.collect::<Vec<_>>().join(", ");
    if fields.len() > SHOWN {
        names.push_str(&format!(" and {} more", fields.len() - SHOWN));
    }
    let flag = |field: &String| format!("--ignore-config-field {}", shown_word(OsStr::new(field)));
    let flags = fields.iter().take(SHOWN).map(flag).collect::<Vec<_>>().join(" ");
    let (these, they) =
        if fields.len() == 1 { ("this field", "it changes") } else { ("these fields", "they change") };
    format!(
        "config.json: {names}: sparktune does not know what {these} would change in a {family} model, so it might train a model that differs from the published one. If the authors' code shows that {they} nothing in the computation, add {flags}"
    )
}

/// The largest number of unknown fields in a message.
const SHOWN: usize = 8;

/// The config fields of a family by how they are treated.
pub(super) struct FieldLists {
    /// Fields that the family's table reads.
    pub(super) used: &'static [&'static str],
    /// Fields that are known not to affect training.
    pub(super) harmless: &'static [&'static str],
    /// Fields that are known to require a computation that is not implemented, unless their value turns it
    /// off.
    pub(super) refused: &'static [&'static str],
    /// Fields that are known to occur next to `text_config`, where the text model is a part of a larger one.
    pub(super) wrapper: &'static [&'static str],
}

/// Fields that are read for every family (by `model_config`, [`Sizes`](super::Sizes) and `rope`).
const USED_BY_ALL: &[&str] = &[
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "tie_word_embeddings",
    "max_position_embeddings",
    "dtype",
    "torch_dtype",
];

/// Fields that are known not to affect training in any family.
///
/// The attributes of transformers' `PreTrainedConfig` (`configuration_utils.py`, versions 4.40 to 5.23),
/// among them the generation settings that versions before 4.41 stored here; dropout, which does not apply at
/// evaluation and is zero in all published configs of these families; and the fields that converters and
/// fine-tuning tools add.
const HARMLESS_IN_ALL: &[&str] = &[
    // Attributes of PreTrainedConfig.
    "architectures",
    "transformers_version",
    "_name_or_path",
    "name_or_path",
    "_commit_hash",
    "auto_map",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "experts_implementation",
    "chunk_size_feed_forward",
    "gradient_checkpointing",
    "is_decoder",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "torchscript",
    "tf_legacy_loss",
    "use_bfloat16",
    "use_cache",
    "initializer_range",
    "attention_dropout",
    "hidden_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "pretraining_tp",
    // Tokens, labels and tasks.
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "tokenizer_class",
    "prefix",
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "task_specific_params",
    // Generation settings.
    "begin_suppress_tokens",
    "bad_words_ids",
    "cache_implementation",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    // Fields written by tools.
    "transformers.js_config",
    "unsloth_fixed",
    "unsloth_version",
    "model_name",
];

/// Fields that are known to require a computation that no family here has: experts; soft caps and
/// multipliers; layers without positions; parallel residuals; clipped, normed, low-rank or pruned
/// projections; layers that differ from one another; encoders.
const REFUSED_IN_ALL: &[&str] = &[
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
    "pruned_heads",
    "per_layer_config",
    "is_encoder_decoder",
    "add_cross_attention",
    "tie_encoder_decoder",
    "mlp_bias",
    "rope_interleaved",
];

/// Fields that are known to occur next to `text_config` in every family.
const WRAPPER_OF_ALL: &[&str] = &["text_config", "vision_config"];

impl FieldLists {
    /// Checks every field of a config and of the wrapper around it.
    ///
    /// # Errors
    /// A field requires a computation that is not implemented, or is unknown, and is not in `ignored`.
    pub(super) fn check(
        &self,
        config: &Fields,
        wrapper: Option<&Fields>,
        ignored: &[String],
        family: Architecture,
    ) -> Result<(), ConfigError> {
        // A field that one family uses may be listed as refused for all others.
        let used = |name: &str| self.used.contains(&name);
        let refused =
            |name: &str| self.refused.contains(&name) || (REFUSED_IN_ALL.contains(&name) && !used(name));
        let known = |name: &str| {
            let lists = [USED_BY_ALL, super::rope::USED, HARMLESS_IN_ALL, self.harmless];
            used(name) || lists.iter().any(|list| list.contains(&name))
        };
        let outside =
            |name: &str| known(name) || WRAPPER_OF_ALL.contains(&name) || self.wrapper.contains(&name);
        let ignored = |name: &str| ignored.iter().any(|ignored| ignored == name);

        let asks = |(name, value): &(&String, &Value)| !is_off(value) && !ignored(name.as_str());
        let mut unknown: Vec<String> = Vec::new();
        for (name, value) in config.map.iter().filter(asks) {
            if refused(name) && !is_neutral_factor(value) {
                let problem =
                    format!("asks for a computation that sparktune does not support in a {family} model");
                return Err(ConfigError::field(name, &problem));
            }
            if !refused(name) && !known(name) {
                unknown.push(shortened(name).into_owned());
            }
        }
        let outer = wrapper.map(|fields| fields.map).into_iter().flatten().filter(asks);
        let names = outer.map(|(name, _)| name).filter(|name| !outside(name));
        unknown.extend(names.map(|name| shortened(name).into_owned()));
        for outer in ["rope_parameters", "rope_scaling"] {
            for (name, value) in config.map(outer).into_iter().flatten().filter(asks) {
                let path = format!("{outer}.{}", shortened(name));
                // The parameters of one kind of layer are nested one level deeper.
                let of_kind = value.as_object().filter(|_| used(&path));
                let strange = |(name, _): &(&String, &Value)| !super::rope::INNER.contains(&name.as_str());
                match of_kind {
                    Some(inner) => {
                        let inner = inner.iter().filter(asks).filter(strange);
                        unknown.extend(inner.map(|(name, _)| format!("{path}.{}", shortened(name))));
                    }
                    None if strange(&(name, value)) => unknown.push(path),
                    None => {}
                }
            }
        }
        if unknown.is_empty() { Ok(()) } else { Err(ConfigError::UnknownFields { fields: unknown, family }) }
    }
}

/// Returns whether a value turns its field off.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Returns whether a value has no effect as a factor.
fn is_neutral_factor(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

/// A JSON object whose fields are read by name. A `null` counts as a missing field.
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(crate) const fn new(map: &'a Map<String, Value>) -> Self {
        Self { map }
    }

    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    pub(crate) fn map(&self, field: &str) -> Option<&'a Map<String, Value>> {
        self.get(field)?.as_object()
    }

    pub(crate) fn text(&self, field: &str) -> Option<&'a str> {
        self.get(field)?.as_str()
    }

    pub(crate) fn flag(&self, field: &str) -> bool {
        self.get(field).and_then(Value::as_bool).unwrap_or(false)
    }

    pub(crate) fn optional_size(&self, field: &str) -> Result<Option<usize>, ConfigError> {
        // The limit of 2^32 keeps every product of two sizes below u64, so that the sizes of a hostile config
        // cannot overflow later sums.
        self.get(field)
            .map(|value| match value.as_u64() {
                Some(n) if n < 1 << 32 => Ok(n as usize),
                _ => Err(ConfigError::field(field, "is not a whole number below 2^32")),
            })
            .transpose()
    }

    pub(crate) fn size(&self, field: &str) -> Result<usize, ConfigError> {
        match self.optional_size(field)? {
            Some(0) => Err(ConfigError::field(field, "is zero")),
            Some(n) => Ok(n),
            None => Err(ConfigError::field(field, "is missing")),
        }
    }

    pub(crate) fn float(&self, field: &str, default: f64) -> Result<f64, ConfigError> {
        self.get(field).map_or(Ok(default), |value| {
            value
                .as_f64()
                .filter(|x| x.is_finite())
                .ok_or_else(|| ConfigError::field(field, "is not a number"))
        })
    }

    /// Refuses a text field that exists and has none of the allowed values.
    pub(super) fn expect(&self, field: &str, allowed: &[&str]) -> Result<(), ConfigError> {
        match self.text(field) {
            Some(found) if !allowed.contains(&found) => {
                let problem = format!("is `{found}`, but only {} is supported", allowed.join(" or "));
                Err(ConfigError::field(field, &problem))
            }
            _ => Ok(()),
        }
    }

    /// Returns the type of each layer, if the config lists them.
    pub(super) fn layer_types<T: Copy>(
        &self,
        num_hidden_layers: usize,
        known: &[(&str, T)],
    ) -> Result<Option<Vec<T>>, ConfigError> {
        let Some(listed) = self.get("layer_types") else { return Ok(None) };
        let types = listed
            .as_array()
            .ok_or_else(|| ConfigError::field("layer_types", "is not a list"))?
            .iter()
            .map(|value| {
                let found = known.iter().find(|(name, _)| value.as_str() == Some(name));
                let problem = || format!("has an unknown entry: {value}");
                found.map(|(_, kind)| *kind).ok_or_else(|| ConfigError::field("layer_types", &problem()))
            })
            .collect::<Result<Vec<T>, _>>()?;
        if types.len() != num_hidden_layers {
            let problem = "must have one entry for each of num_hidden_layers";
            return Err(ConfigError::field("layer_types", problem));
        }
        Ok(Some(types))
    }
}
