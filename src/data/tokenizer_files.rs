//! What the JSON files and the template beside a tokenizer say: named tokens, the ids that end a generation,
//! and the source of the chat template.
//!
//! Enters: the folder of a checkpoint. Leaves: plain values; a missing file is none. This file must not know
//! the tokenizer, nor whether a template can be used.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sparktune_base::regular_file::read_regular;

use crate::at_work::{self, ModelFile};
use crate::error::{DataError, quoted};

pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The size of the largest of these files that is read, which no honest one comes near. In memory, JSON takes
/// up to 16 times its bytes.
const MOST_JSON_BYTES: u64 = 16 << 20;
const TEMPLATE: &str = "chat_template.jinja";
const TEMPLATE_JSON: &str = "chat_template.json";

pub(crate) fn read_json(path: &Path) -> Result<Option<Value>, DataError> {
    let bytes = match read_regular(path, MOST_JSON_BYTES) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(DataError::io("read", path)(e)),
    };
    let kind = if path.ends_with(TEMPLATE_JSON) { ModelFile::Template } else { ModelFile::Tokenizer };
    let _reading = at_work::with(kind, path, bytes.len());
    serde_json::from_slice(&bytes).map(Some).map_err(|e| {
        let why = format!("not valid JSON ({})", quoted(&e.to_string()));
        DataError::model(path, why, "Download the model again")
    })
}

/// Returns `bos_token`, `eos_token`, … of `tokenizer_config.json`, each of which is a string or an object
/// with `content`.
pub(crate) fn named_tokens(config: &Value) -> Vec<(String, String)> {
    let Value::Object(config) = config else { return Vec::new() };
    let token = |value: &Value| value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned);
    config
        .iter()
        .filter(|(name, _)| name.ends_with("_token"))
        .filter_map(|(name, value)| Some((name.clone(), token(value)?)))
        .collect()
}

pub(crate) fn end_ids(generation: &Value, eos: Option<u32>) -> Vec<u32> {
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    let mut ids: Vec<u32> = match generation.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(one) => id(one).into_iter().collect(),
        None => Vec::new(),
    };
    if let Some(eos) = eos.filter(|e| !ids.contains(e)) {
        ids.push(eos);
    }
    ids
}

/// Reads a template file.
fn read_template(path: &Path) -> std::io::Result<String> {
    let bytes = read_regular(path, MOST_JSON_BYTES)?;
    String::from_utf8(bytes).map_err(|_| std::io::Error::other("it is not valid UTF-8"))
}

/// Returns the template's source and its file: the given file, otherwise that of the checkpoint. All line
/// ends become `\n`, as in Python's Jinja.
pub(crate) fn template_of(
    folder: &Path,
    config: &Value,
    given: Option<&Path>,
) -> Result<Option<(PathBuf, String)>, DataError> {
    let found = match given {
        Some(path) => Some((path.to_owned(), read_template(path).map_err(DataError::io("read", path))?)),
        None => template_source(folder, config)?,
    };
    Ok(found.map(|(path, source)| (path, source.replace("\r\n", "\n").replace('\r', "\n"))))
}

/// Returns the source of a checkpoint's chat template, or `None` if it has none.
///
/// # Errors
/// A file of the folder cannot be read.
pub fn chat_template_of(folder: &Path) -> Result<Option<String>, DataError> {
    let config = read_json(&folder.join(TOKENIZER_CONFIG))?.unwrap_or(Value::Null);
    Ok(template_of(folder, &config, None)?.map(|(_, source)| source))
}

/// Returns the template's source and its file: the template file, otherwise the configuration's field (a
/// string, or a list of named templates).
fn template_source(folder: &Path, config: &Value) -> Result<Option<(PathBuf, String)>, DataError> {
    let path = folder.join(TEMPLATE);
    match read_template(&path) {
        Ok(source) => return Ok(Some((path, source))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(DataError::io("read", path)(e)),
    }
    let path = folder.join(TEMPLATE_JSON);
    let processor = read_json(&path)?;
    let found = processor.as_ref().and_then(template_field).map(|source| (path, source.into_owned()));
    let in_config = || Some((folder.join(TOKENIZER_CONFIG), template_field(config)?.into_owned()));
    Ok(found.or_else(in_config))
}

fn template_field(config: &Value) -> Option<Cow<'_, str>> {
    match config.get("chat_template")? {
        Value::String(source) => Some(source.into()),
        Value::Array(named) => {
            let default = named.iter().find(|t| t.get("name").and_then(Value::as_str) == Some("default"));
            Some(default.or(named.first())?.get("template")?.as_str()?.into())
        }
        _ => None,
    }
}
