//! Ordinary text: what a model reads besides facts, to know which keys must keep their values.

use std::path::Path;

use serde_json::Value;
use sparktune_base::regular_file::read_regular;

use crate::error::EditError;

/// The most bytes of a file of text that are read.
const MOST_BYTES: u64 = 256 << 20;
/// A paragraph with fewer bytes says too little.
const LEAST: usize = 20;

/// Reads the documents of a text: paragraphs of a text file, or the strings of lines of JSON that stand under
/// `text` or `content`.
///
/// # Errors
/// The file cannot be read, or has no text.
pub fn documents(path: &Path) -> Result<Vec<String>, EditError> {
    let bytes = read_regular(path, MOST_BYTES).map_err(EditError::io(path))?;
    let text = std::str::from_utf8(&bytes).map_err(|error| EditError::Patch {
        path: path.to_owned(),
        what: format!("this is no text in UTF-8 (byte {})", error.valid_up_to() + 1),
        fix: "Save it as UTF-8, or name another text with --text",
    })?;
    let is_json = path.extension().is_some_and(|ending| ending == "jsonl" || ending == "json");
    let mut documents = Vec::new();
    if is_json {
        for line in text.lines() {
            let Ok(value) = serde_json::from_str(line) else { continue };
            collect(&value, false, &mut documents);
        }
    } else {
        documents.extend(text.split("\n\n").map(|paragraph| paragraph.trim().to_owned()));
    }
    documents.retain(|document| document.len() >= LEAST);
    if documents.is_empty() {
        return Err(EditError::Patch {
            path: path.to_owned(),
            what: "there is no text in it".into(),
            fix: "Name a text file, or lines of JSON with `text` or `messages`",
        });
    }
    Ok(documents)
}

/// Collects the strings under `text` and `content`, at any depth.
fn collect(value: &Value, is_text: bool, documents: &mut Vec<String>) {
    match value {
        Value::String(text) if is_text => documents.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, is_text, documents)),
        Value::Object(fields) => {
            for (name, value) in fields {
                collect(value, name == "text" || name == "content", documents);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_found_in_paragraphs_and_in_lines_of_json() {
        let folder = tempfile::tempdir().unwrap();
        let (text, json) = (folder.path().join("a.txt"), folder.path().join("a.jsonl"));
        std::fs::write(&text, "The first paragraph is here.\n\nno\n\nThe second one\nhas two lines.")
            .unwrap();
        assert_eq!(
            documents(&text).unwrap(),
            ["The first paragraph is here.", "The second one\nhas two lines."]
        );
        let lines = r#"{"messages": [{"role": "user and nothing else here", "content": "What does the user say here?"}]}
{"text": "A whole document of its own."}
{oops"#;
        std::fs::write(&json, lines).unwrap();
        assert_eq!(
            documents(&json).unwrap(),
            ["What does the user say here?", "A whole document of its own."]
        );
        std::fs::write(&text, "short").unwrap();
        assert!(documents(&text).unwrap_err().to_string().contains("no text in it"));
    }
}
