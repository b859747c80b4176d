//! Answers that are JSON of a schema. The schema is a stranger's: it may be large, deep, circular, or refer
//! to another machine.

use std::collections::{BTreeMap, BTreeSet};

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use super::quoted::quoted;

/// The most bytes that a compiled pattern may take.
pub(super) const PATTERN_BYTES: usize = 1 << 20;
/// The most values that a schema may come to when its references are replaced by what they stand for, which
/// bounds the time of a validation.
const MOST_VALUES: usize = 20_000;

/// Words of a schema that refer to something that is not known when it is read.
const FOREIGN: [&str; 6] =
    ["$id", "$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor", "$vocabulary"];

/// A schema that is ready to be used.
#[derive(Debug, Clone)]
pub(crate) struct Schema {
    validator: Validator,
}

impl Schema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub(super) fn new(schema: &Value) -> Result<Self, (String, String)> {
        Definitions::new(schema).size_of(schema, &mut BTreeSet::new())?;
        let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES);
        let validator = jsonschema::options().with_pattern_options(patterns).build(schema);
        let validator = validator.map_err(|error| {
            let what = format!("the JSON schema cannot be used: {}", quoted(&error.to_string()));
            (what, "Correct it; drafts 4 to 2020-12 are known".to_owned())
        })?;
        Ok(Self { validator })
    }

    /// Returns the first reason why a text is not JSON of the schema. A fence of code around the JSON is
    /// ignored.
    pub(super) fn first_problem(&self, text: &str) -> Option<String> {
        let json: Value = match serde_json::from_str(unfenced(text)) {
            Ok(json) => json,
            Err(error) => return Some(format!("it is not JSON: {error}")),
        };
        let problem = self.validator.iter_errors(&json).next()?;
        let place = problem.instance_path().to_string();
        let place = if place.is_empty() { String::new() } else { format!(" at {place}") };
        Some(format!("{}{place}", quoted(&problem.to_string())))
    }
}

/// Returns what is inside the first fence of code, or the text itself.
fn unfenced(text: &str) -> &str {
    let inside = text.trim().strip_prefix("```").and_then(|rest| rest.split_once('\n'));
    let inside = inside.and_then(|(_, rest)| rest.rsplit_once("```"));
    inside.map_or(text.trim(), |(inside, _)| inside.trim())
}

/// The definitions of a schema, by the reference to them.
struct Definitions<'a> {
    by_reference: BTreeMap<String, &'a Value>,
    sizes: BTreeMap<String, usize>,
}

impl<'a> Definitions<'a> {
    fn new(schema: &'a Value) -> Self {
        let mut by_reference = BTreeMap::new();
        for section in ["$defs", "definitions"] {
            for (name, definition) in schema.get(section).and_then(Value::as_object).into_iter().flatten() {
                let name = name.replace('~', "~0").replace('/', "~1");
                by_reference.insert(format!("#/{section}/{name}"), definition);
            }
        }
        Self { by_reference, sizes: BTreeMap::new() }
    }

    /// Returns how many values a part of the schema has, with all that it refers to.
    fn size_of(&mut self, part: &'a Value, within: &mut BTreeSet<String>) -> Result<usize, (String, String)> {
        let mut size = 1usize;
        match part {
            Value::Array(items) => {
                for item in items {
                    size = size.saturating_add(self.size_of(item, within)?);
                }
            }
            Value::Object(fields) => {
                for (name, value) in fields {
                    size = size.saturating_add(match value {
                        Value::String(reference) if name == "$ref" => self.size_behind(reference, within)?,
                        Value::String(_) if FOREIGN.contains(&name.as_str()) => {
                            return Err((
                                format!("the JSON schema has `{name}`, which is not supported"),
                                "Use `$ref` to `#/$defs/NAME` alone".to_owned(),
                            ));
                        }
                        value => self.size_of(value, within)?,
                    });
                }
            }
            _ => {}
        }
        if size > MOST_VALUES {
            let what =
                format!("the JSON schema has more than {MOST_VALUES} values, with those that it refers to");
            return Err((what, "Give a smaller one".to_owned()));
        }
        Ok(size)
    }

    fn size_behind(
        &mut self,
        reference: &str,
        within: &mut BTreeSet<String>,
    ) -> Result<usize, (String, String)> {
        if let Some(size) = self.sizes.get(reference) {
            return Ok(*size);
        }
        let Some(definition) = self.by_reference.get(reference).copied() else {
            return Err((
                format!("the JSON schema refers to {}, which is none of its definitions", quoted(reference)),
                "Refer to `#/$defs/NAME` of the schema itself; nothing is fetched".to_owned(),
            ));
        };
        if !within.insert(reference.to_owned()) {
            let what = format!("the definition {} of the JSON schema refers to itself", quoted(reference));
            return Err((what, "Write out as many levels as an answer may have".to_owned()));
        }
        let size = self.size_of(definition, within)?;
        within.remove(reference);
        self.sizes.insert(reference.to_owned(), size);
        Ok(size)
    }
}
