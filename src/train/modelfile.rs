//! The `Modelfile` from which `ollama create` makes a model.
//!
//! Enters: the name of a GGUF file next to it, notes, and the texts that end an answer. Leaves: its text.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;
use sparktune_base::regular_file::{read_model_json, read_tokenizer_json};

/// Returns the text of the file. `notes` become comments.
pub(crate) fn modelfile(gguf: &str, notes: &[String], stops: &[String]) -> String {
    let mut text =
        String::from("# Made by sparktune. `ollama create NAME -f Modelfile` makes a model of it.\n");
    for note in notes {
        // A note is one line, whatever names it quotes.
        let _ = writeln!(text, "# {}", note.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    text.push_str(
        "#\n\
         # There is no TEMPLATE here: the GGUF file has the chat template that the model was trained with, in Jinja.\n\
         # llama-server renders that one. Ollama recognises the templates of published models in it. If `ollama show\n\
         # --template NAME` prints only `{{ .Prompt }}`, it did not: add a TEMPLATE in Go's syntax.\n",
    );
    let _ = writeln!(text, "FROM ./{gguf}");
    for stop in stops {
        let _ = writeln!(text, "PARAMETER stop \"{stop}\"");
    }
    text
}

/// Returns the texts of the tokens that end an answer, as the model's files name them. Texts that a
/// `Modelfile` cannot quote are left out; the GGUF file has the ids.
pub(crate) fn stop_texts(base: &Path) -> Vec<String> {
    let json = |name: &str| -> Value {
        let text = read_model_json(&base.join(name)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or(Value::Null)
    };
    let (generation, config) = (json("generation_config.json"), json("tokenizer_config.json"));
    let tokenizer = read_tokenizer_json(&base.join("tokenizer.json")).unwrap_or_default();
    let tokenizer: Value = serde_json::from_slice(&tokenizer).unwrap_or(Value::Null);
    let ids = match generation.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.clone(),
        Some(id) => vec![id.clone()],
        None => Vec::new(),
    };
    let added = tokenizer.get("added_tokens").and_then(Value::as_array);
    let text_of = |id: &Value| {
        let token = added?.iter().find(|token| token.get("id") == Some(id))?;
        token.get("content")?.as_str()
    };
    let named = config.get("eos_token");
    let named = named.and_then(|eos| eos.as_str().or_else(|| eos.get("content")?.as_str()));
    let mut texts: Vec<String> = Vec::new();
    for text in named.into_iter().chain(ids.iter().filter_map(text_of)) {
        let can_be_quoted =
            !text.is_empty() && !text.contains(['"', '\\']) && !text.contains(char::is_control);
        if can_be_quoted && !texts.iter().any(|known| known == text) {
            texts.push(text.to_owned());
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_modelfile_names_the_file_and_the_texts_that_end_an_answer() {
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen35/checkpoint");
        let stops = stop_texts(&base);
        assert_eq!(stops, ["<|im_end|>", "<|endoftext|>"]);
        let text = modelfile("model-q8_0.gguf", &["One\nFROM /etc/passwd".to_owned()], &stops);
        let commands: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected =
            ["FROM ./model-q8_0.gguf", "PARAMETER stop \"<|im_end|>\"", "PARAMETER stop \"<|endoftext|>\""];
        assert_eq!(commands, expected);
    }

    #[test]
    fn a_text_that_would_leave_its_quotes_is_no_stop() {
        let base = tempfile::tempdir().unwrap();
        let config = r#"{"eos_token": {"content": "x\"\nFROM /etc/passwd"}}"#;
        fs::write(base.path().join("tokenizer_config.json"), config).unwrap();
        fs::write(base.path().join("generation_config.json"), r#"{"eos_token_id": [7, "x", null]}"#).unwrap();
        assert!(stop_texts(base.path()).is_empty());
    }

    #[test]
    fn a_file_that_is_far_too_large_is_not_read() {
        let base = tempfile::tempdir().unwrap();
        for (spaces, stops) in [(1, &["x"][..]), (17 << 20, &[])] {
            let config = format!("{{\"eos_token\": \"x\"}}{}", " ".repeat(spaces));
            fs::write(base.path().join("tokenizer_config.json"), config).unwrap();
            assert_eq!(stop_texts(base.path()), stops);
        }
    }
}
