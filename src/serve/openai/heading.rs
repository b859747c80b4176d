//! What every answer and every chunk of one begins with.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::types::Sums;
use crate::ids;

/// What every answer and every chunk of one begins with.
#[derive(Debug, Clone)]
pub(crate) struct Heading {
    /// The id of the answer.
    pub id: String,
    /// When it was asked for, in seconds since 1970.
    pub created: u64,
    /// The id of the model.
    pub model: String,
}

impl Heading {
    /// Begins an answer of a model.
    pub(crate) fn new(prefix: &str, model: String) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self { id: new_id(prefix), created: since.map_or(0, |since| since.as_secs()), model }
    }

    /// Returns a chunk of a stream. If the last one has the usage, the others have null.
    pub(crate) fn chunk(&self, object: &str, choices: &Value, includes_usage: bool) -> Value {
        let Self { id, created, model } = self;
        let mut chunk = json!({
            "id": id, "object": object, "created": created, "model": model, "choices": choices,
        });
        if includes_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// Returns the last chunk of a stream, which has the usage.
    pub(crate) fn usage(&self, object: &str, sums: &Sums) -> Value {
        let mut chunk = self.chunk(object, &json!([]), true);
        chunk["usage"] = json!(sums.usage);
        chunk["x_timing"] = json!(sums.timing);
        chunk
    }
}

/// Returns an id that no other answer has.
pub(crate) fn new_id(prefix: &str) -> String {
    format!("{prefix}-{}", ids::new())
}
