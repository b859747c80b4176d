//! One table for each model family: the tensors of a layer, its computation, and the allowed fields of its
//! config.
//!
//! Enters: the fields of a `config.json`. Leaves: a [`DecoderSpec`], from which everything that depends on
//! the layers of a model is derived, here and in the crates above. To add a family, add its variant to
//! [`Architecture`], write its table in a file of its own, and name it in `Architecture::family` below, the
//! only place that distinguishes families.

mod blocks;
mod fields;
mod gemma3;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod rope;
mod table;

pub(crate) use blocks::Sizes;
pub use fields::ConfigError;
use fields::FieldLists;
pub(crate) use fields::Fields;
pub use rope::{Llama3Scaling, Rope, RopeScaling};
use serde_json::{Map, Value};
pub use table::{
    Activation, AttentionSpec, DecoderSpec, DeltaNetSpec, LayerSpec, LinearSpec, MixerSpec, MtpSpec,
    NormSpec, Part, Place, Reads, TensorSpec, clipped_rank, parameters,
};

use crate::choices::Architecture;

/// The facts about one model family.
pub(crate) struct Family {
    /// The values of the field `model_type` that name this family.
    model_types: &'static [&'static str],
    /// The values of missing fields, as JSON: the defaults of the class in transformers, as far as published
    /// configs rely on them.
    defaults: &'static [(&'static str, &'static str)],
    /// The fields of its config.
    fields: FieldLists,
    /// The prefixes of the names of tensors that a checkpoint of this family may hold in addition to the
    /// text model. They are carried over into exports and not trained.
    carried: &'static [&'static str],
    /// Whether transformers' `AutoModelForCausalLM` takes only the text model out of a checkpoint whose
    /// config has a `text_config`, so that its modules have other names than in the class of that config.
    causal_lm_is_text_only: bool,
    /// Builds its table for a model of these sizes.
    decoder: fn(&Sizes, &Fields) -> Result<DecoderSpec, ConfigError>,
}

impl Architecture {
    /// The families suggested for a model of an unknown family: first the one with fields of its own, then
    /// the plainest of the others, whose fields are all the same.
    pub(crate) const LIKELY: [Self; 2] = [Self::Qwen35, Self::Llama];

    /// Returns the table of this family.
    const fn family(self) -> &'static Family {
        match self {
            Self::Qwen35 => &qwen3_5::FAMILY,
            Self::Qwen3 => &qwen3::FAMILY,
            Self::Qwen2 => &qwen2::FAMILY,
            Self::Llama => &llama::FAMILY,
            Self::Mistral => &mistral::FAMILY,
            Self::Gemma3 => &gemma3::FAMILY,
        }
    }

    /// Returns the family with this `model_type`.
    pub(crate) fn of_model_type(model_type: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|family| family.family().model_types.contains(&model_type))
    }

    /// Returns the fields of a config, completed by the family's defaults.
    pub(crate) fn with_defaults(self, config: &Map<String, Value>) -> Map<String, Value> {
        let mut config = config.clone();
        for (field, default) in self.family().defaults {
            let value = config.entry(*field).or_insert(Value::Null);
            if value.is_null() {
                *value = serde_json::from_str(default).expect("the default of a field is JSON");
            }
        }
        config
    }

    /// Refuses fields that the family's table does not use and that are not known to be harmless.
    ///
    /// # Errors
    /// [`ConfigError`] names the fields.
    pub(crate) fn check_fields(
        self,
        config: &Fields,
        wrapper: Option<&Fields>,
        ignored: &[String],
    ) -> Result<(), ConfigError> {
        self.family().fields.check(config, wrapper, ignored, self)
    }

    /// Builds the layers of a model of this family.
    ///
    /// # Errors
    /// A field is missing, or requires a computation that is not implemented.
    pub(crate) fn decoder(self, sizes: &Sizes, config: &Fields) -> Result<DecoderSpec, ConfigError> {
        (self.family().decoder)(sizes, config)
    }

    /// Returns whether transformers' `AutoModelForCausalLM` takes only the text model out of a checkpoint
    /// whose config has a `text_config`. Its modules then have other names than in the class of that config:
    /// `model.layers.0` instead of `model.language_model.layers.0`.
    pub const fn causal_lm_is_text_only(self) -> bool {
        self.family().causal_lm_is_text_only
    }

    /// Returns whether a checkpoint of this family may hold a tensor of this stored name in addition to its
    /// text model: one that is carried over into exports, or one that is not needed.
    pub fn carries(self, stored_name: &str) -> bool {
        // Old exports stored the rotary frequencies, which can be computed from the config.
        stored_name.ends_with("rotary_emb.inv_freq")
            || self.family().carried.iter().any(|beginning| stored_name.starts_with(beginning))
    }
}

#[cfg(test)]
mod tests;
