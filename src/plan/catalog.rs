//! The catalog of known models, with their sizes and the speeds measured with the Qwen3.5 recipe. The numbers
//! are in `presets/catalog.toml`, each with its source.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sparktune_base::units::count;

use crate::choices::MethodKind;
use crate::error::PlanError;
use crate::facts::ModelFacts;

/// The shipped catalog as text, annotated.
pub const CATALOG_TOML: &str = include_str!("../../presets/catalog.toml");

/// The catalog of known models.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalog {
    /// The models by ascending size.
    #[serde(rename = "model")]
    pub models: Vec<CatalogModel>,
    /// The shapes by name; several models share one.
    #[serde(rename = "shape")]
    shapes: BTreeMap<String, Shape>,
    #[serde(rename = "recipe_rate")]
    recipe_rates: Vec<RecipeRate>,
}

/// A model of the catalog.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogModel {
    /// Hugging Face id.
    pub id: String,
    /// The name of its shape.
    pub shape: String,
    /// The size of the published weights in bytes, rounded as in its source.
    pub weight_bytes: u64,
    /// A short remark for the model table.
    pub note: String,
    /// Figures without a source. They are assumed from the family until they are read from the checkpoint.
    #[serde(default)]
    pub not_known: Vec<String>,
}

/// The fields of `config.json` that differ between sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    hidden_size: u64,
    intermediate_size: u64,
    num_hidden_layers: u64,
    num_attention_heads: u64,
    num_key_value_heads: u64,
    linear_num_key_heads: u64,
    linear_num_value_heads: u64,
    tie_word_embeddings: bool,
}

/// A speed of the Qwen3.5 recipe. It is not a speed of sparktune.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeRate {
    shape: String,
    /// A part of the device's name.
    pub device: String,
    method: MethodKind,
    /// Rank of the adapters; `None` for full fine-tuning.
    #[serde(default)]
    rank: Option<u32>,
    /// The pack length in tokens, or the largest possible one.
    pack_length: u32,
    /// Tokens per second.
    pub tokens_per_s: f64,
}

impl RecipeRate {
    /// Describes in words what was measured.
    pub(crate) fn conditions(&self) -> String {
        let method = match self.rank {
            Some(rank) => format!("LoRA of rank {rank}"),
            None => "full fine-tuning".to_owned(),
        };
        format!("{method}, packs of {} tokens", count(self.pack_length.into()))
    }
}

impl Shape {
    /// Returns the fields of `config.json` that determine the size of a model of this shape, including those
    /// that all sizes share.
    fn text_config(&self) -> Map<String, Value> {
        let Value::Object(mut fields) = json!(self) else { unreachable!("a struct is a JSON object") };
        for (field, value) in [
            ("vocab_size", 248_320),
            ("head_dim", 256),
            ("linear_key_head_dim", 128),
            ("linear_value_head_dim", 128),
            ("linear_conv_kernel_dim", 4),
            ("max_position_embeddings", 262_144),
        ] {
            fields.insert(field.into(), json!(value));
        }
        fields
    }

    /// Returns the fields of a whole `config.json` for the text model alone.
    fn text_model_config(&self) -> Map<String, Value> {
        let mut fields = self.text_config();
        let rope = json!({"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25});
        for (field, value) in [
            ("model_type", json!("qwen3_5_text")),
            ("dtype", json!("bfloat16")),
            ("full_attention_interval", json!(4)),
            ("rope_parameters", rope),
        ] {
            fields.insert(field.into(), value);
        }
        fields
    }
}

impl Catalog {
    /// The model that the Qwen3.5 recipe was tuned on, recommended as a start on a GPU.
    pub const RECOMMENDED: &str = "Qwen/Qwen3.5-2B";

    /// Reads a catalog.
    ///
    /// # Errors
    /// [`PlanError::Shipped`] with the parser's message, or with the name of a model whose shape is missing
    /// or not trainable.
    pub fn from_toml(text: &str) -> Result<Self, PlanError> {
        let broken = |problem: String| PlanError::Shipped { file: "presets/catalog.toml", problem };
        let catalog: Self = toml::from_str(text).map_err(|error| broken(error.to_string()))?;
        for model in &catalog.models {
            catalog.facts(model).map_err(|problem| broken(format!("{}: {problem}", model.id)))?;
        }
        Ok(catalog)
    }

    /// Returns the shipped catalog.
    pub fn shipped() -> &'static Self {
        static CATALOG: OnceLock<Catalog> = OnceLock::new();
        CATALOG.get_or_init(|| Self::from_toml(CATALOG_TOML).expect("the shipped catalog is read in a test"))
    }

    /// Returns the model with this id.
    pub fn find(&self, id: &str) -> Option<&CatalogModel> {
        self.models.iter().find(|model| model.id == id)
    }

    /// Returns the facts about a model before its own `config.json` was read.
    fn facts(&self, model: &CatalogModel) -> Result<ModelFacts, String> {
        let shape = self.shapes.get(&model.shape).ok_or_else(|| format!("no shape `{}`", model.shape))?;
        let mut text_config = shape.text_model_config();
        text_config.insert("mtp_num_hidden_layers".into(), json!(1));
        let config = json!({
            "model_type": "qwen3_5", "tie_word_embeddings": shape.tie_word_embeddings, "text_config": text_config,
        });
        let facts = ModelFacts::from_config_json(&config.to_string()).map_err(|error| error.to_string())?;
        Ok(ModelFacts { checkpoint_bytes: model.weight_bytes, ..facts })
    }

    /// Returns the text of a `config.json` for the text model of this shape, without an MTP head.
    pub fn text_model_config(&self, shape: &str) -> Option<String> {
        let fields = self.shapes.get(shape)?.text_model_config();
        Some(format!("{:#}\n", Value::Object(fields)))
    }

    /// Returns the fields of `config.json` for a shape of this name.
    #[cfg(test)]
    pub(crate) fn text_config(&self, shape: &str) -> Option<Map<String, Value>> {
        self.shapes.get(shape).map(Shape::text_config)
    }

    /// Returns the facts about a catalog model before its own `config.json` was read: enough for a first
    /// estimate.
    pub fn model_facts(&self, model: &CatalogModel) -> ModelFacts {
        self.facts(model).expect("from_toml has made the facts of every model once")
    }

    /// Returns the speed of the Qwen3.5 recipe with this model and method on a device of this name, measured
    /// at the pack length nearest to this one.
    pub fn recipe_rate(
        &self,
        id: &str,
        device: &str,
        method: MethodKind,
        pack_length: u32,
    ) -> Option<&RecipeRate> {
        let model = self.find(id)?;
        let is_of_this_kind = |rate: &&RecipeRate| {
            rate.shape == model.shape && rate.method == method && device.contains(&rate.device)
        };
        let found = self.recipe_rates.iter().filter(is_of_this_kind);
        found.min_by_key(|rate| rate.pack_length.abs_diff(pack_length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_model_has_the_published_number_of_parameters() {
        let catalog = Catalog::from_toml(CATALOG_TOML).unwrap();
        // SPEC.md 7: parameters of the text model without MTP, in millions.
        let published = [
            ("0.8B", 752.0, 20.0),
            ("2B", 1882.0, 61.0),
            ("4B", 4206.0, 121.0),
            ("9B", 8954.0, 243.0),
            ("27B", 26896.0, 425.0),
        ];
        for model in &catalog.models {
            let facts = catalog.model_facts(model);
            let (_, text, mtp) = published.iter().find(|(shape, ..)| *shape == model.shape).unwrap();
            assert_eq!((facts.text_parameters() as f64 / 1e6).round(), *text, "{}", model.id);
            assert_eq!((facts.mtp_parameters() as f64 / 1e6).round(), *mtp, "{}", model.id);
        }
        assert!(catalog.find("Qwen/Qwen3.8-27B").is_some() && catalog.find("Qwen/Qwen3.5-2B-Base").is_some());
    }

    #[test]
    fn the_recipes_speed_is_only_known_for_the_machine_it_was_measured_on() {
        let rate = |id, device| Catalog::shipped().recipe_rate(id, device, MethodKind::Lora, 2048);
        assert_eq!(rate("Qwen/Qwen3.5-2B", "NVIDIA GB10").unwrap().tokens_per_s, 3568.0);
        assert!(rate("Qwen/Qwen3.5-2B", "NVIDIA H200").is_none());
        assert!(rate("someone/else", "NVIDIA GB10").is_none());
    }

    #[test]
    fn of_the_recipes_speeds_that_of_the_same_method_and_the_nearest_pack_length_counts() {
        let of = |id, method, pack_length| {
            let rate = Catalog::shipped().recipe_rate(id, "NVIDIA GB10", method, pack_length)?;
            Some((rate.tokens_per_s, rate.conditions()))
        };
        let said = |rate: f64, words: &str| Some((rate, words.to_owned()));
        let two = "Qwen/Qwen3.5-2B";
        assert_eq!(of(two, MethodKind::Lora, 1024), said(3568.0, "LoRA of rank 128, packs of 2,048 tokens"));
        assert_eq!(of(two, MethodKind::Lora, 8192), said(3461.0, "LoRA of rank 128, packs of 5,376 tokens"));
        assert_eq!(of(two, MethodKind::Full, 1024), said(3173.0, "full fine-tuning, packs of 5,376 tokens"));
        assert_eq!(of("Qwen/Qwen3.5-4B", MethodKind::Full, 1024), None);
    }

    #[test]
    fn a_catalog_with_a_missing_shape_names_the_model() {
        let text = CATALOG_TOML.replacen("shape = \"2B\"", "shape = \"3B\"", 1);
        let error = Catalog::from_toml(&text).unwrap_err().to_string();
        assert!(error.contains("no shape `3B`") && error.contains("Qwen/Qwen3.5-2B"), "{error}");
    }
}
