//! The sampling settings of a model's `generation_config.json`, which servers take as their defaults.

use std::path::Path;

use serde_json::Value as Json;
use sparktune_base::regular_file::read_model_json;

use super::format::{Metadata, Value};

/// The numbers: their name in `generation_config.json`, and in a GGUF file.
const FRACTIONS: [(&str, &str); 4] = [
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("temperature", "temp"),
    ("repetition_penalty", "penalty_repeat"),
];

/// Adds the settings in a base's folder. A missing or damaged file has none.
pub(super) fn put(metadata: &mut Metadata, dir: &Path) {
    let text = read_model_json(&dir.join("generation_config.json")).unwrap_or_default();
    let settings: Json = serde_json::from_str(&text).unwrap_or(Json::Null);
    let top_k = settings.get("top_k").and_then(Json::as_i64).and_then(|k| i32::try_from(k).ok());
    if let Some(top_k) = top_k {
        metadata.put("general.sampling.top_k", Value::I32(top_k));
    }
    for (name, theirs) in FRACTIONS {
        if let Some(number) = settings.get(name).and_then(Json::as_f64) {
            metadata.put(format!("general.sampling.{theirs}"), Value::F32(number as f32));
        }
    }
}
