//! One table for each model family: which tensors a layer has, what it computes, what its config may say.
//!
//! Enters: the fields of a `config.json`. Leaves: a [`DecoderSpec`], from which everything that depends on
//! the layers of a model is derived, here and in the crates above. To add a family, add its variant to
//! [`Architecture`], write its table in a file of its own, and name it in `Architecture::family` below, the
//! only place where families are told apart.

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
    NormSpec, Part, Place, Reads, TensorSpec, parameters,
};

use crate::choices::Architecture;

/// The facts about one model family.
pub(crate) struct Family {
    /// Its names in the field `model_type`.
    model_types: &'static [&'static str],
    /// What fields that are not there mean, as JSON: the defaults of the class in transformers, where
    /// published configs rely on them.
    defaults: &'static [(&'static str, &'static str)],
    /// The fields of its config.
    fields: FieldLists,
    /// Beginnings of the names of tensors that a checkpoint of this family may hold beside the text model.
    /// They are carried over into exports and not trained.
    carried: &'static [&'static str],
    /// Its table, for a model of these sizes.
    decoder: fn(&Sizes, &Fields) -> Result<DecoderSpec, ConfigError>,
}

impl Architecture {
    /// The families that a model of an unknown one may be like: that with fields of its own first; of the
    /// others, whose fields are all alike, the plainest.
    pub(crate) const LIKELY: [Self; 2] = [Self::Qwen35, Self::Llama];

    /// The table of this family.
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

    /// The family of this `model_type`.
    pub(crate) fn of_model_type(model_type: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|family| family.family().model_types.contains(&model_type))
    }

    /// The fields of a config, those that are left out included where the family has a default for them.
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

    /// Refuses fields that the family's table has no use for and that are not known to change nothing.
    ///
    /// # Errors
    /// Names the fields.
    pub(crate) fn check_fields(
        self,
        config: &Fields,
        wrapper: Option<&Fields>,
        ignored: &[String],
    ) -> Result<(), ConfigError> {
        self.family().fields.check(config, wrapper, ignored, self)
    }

    /// The layers of a model of this family.
    ///
    /// # Errors
    /// A field that is missing, or asks for what is not computed here.
    pub(crate) fn decoder(self, sizes: &Sizes, config: &Fields) -> Result<DecoderSpec, ConfigError> {
        (self.family().decoder)(sizes, config)
    }

    /// Whether a checkpoint of this family may hold a tensor of this stored name beside its text model: one
    /// that is carried over into exports, or one that nothing needs.
    pub fn carries(self, stored_name: &str) -> bool {
        // Old exports stored the rotary frequencies, which follow from the config.
        stored_name.ends_with("rotary_emb.inv_freq")
            || self.family().carried.iter().any(|beginning| stored_name.starts_with(beginning))
    }
}

#[cfg(test)]
mod tests;
