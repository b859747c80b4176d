//! Ordinary text: what a model reads besides facts, to know which keys must keep their values.

use std::path::Path;

use serde_json::Value;
use sparktune_base::regular_file::read_regular;

use crate::error::EditError;

/// The most bytes of a file of text that are read.
const MOST_BYTES: u64 = 256 << 20;
/// A paragraph with fewer bytes says too little.
const LEAST: usize = 20;

/// A piece of ordinary text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// What it says; in a chat, a message of the user.
    pub text: String,
    /// The assistant's message behind it, in a chat.
    pub answer: Option<String>,
}

impl Document {
    /// Returns what is said, message by message, without what is too short.
    pub fn messages(&self) -> impl Iterator<Item = &str> {
        let all = [Some(&self.text), self.answer.as_ref()].into_iter().flatten();
        all.map(String::as_str).filter(|said| said.len() >= LEAST)
    }

    /// Returns the message and what answers it, unless both together are too short.
    pub(crate) fn turn(&self) -> Option<(&str, &str)> {
        let answer = self.answer.as_deref().unwrap_or_default();
        (self.text.len() + answer.len() >= LEAST).then_some((&*self.text, answer))
    }
}

/// Reads the documents of a text: paragraphs of a text file, or the strings of lines of JSON that stand under
/// `text` or `content`, or of one value of JSON. A user's message and the assistant's directly after it are
/// one document.
///
/// # Errors
/// The file cannot be read, has no text, or a line of it is not JSON though its name says so.
pub fn documents(path: &Path) -> Result<Vec<Document>, EditError> {
    let bytes = read_regular(path, MOST_BYTES).map_err(EditError::io(path))?;
    let text = std::str::from_utf8(&bytes).map_err(|error| EditError::Patch {
        path: path.to_owned(),
        what: format!("this is no text in UTF-8 (byte {})", error.valid_up_to() + 1),
        fix: "Save it as UTF-8, or name another text with --text",
    })?;
    let text = text.trim_start_matches('\u{feff}');
    let is_json = path.extension().is_some_and(|ending| ending == "jsonl" || ending == "json");
    let mut documents = Vec::new();
    if is_json {
        if let Ok(value) = serde_json::from_str(text) {
            collect(&value, false, &mut documents);
        } else {
            for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
                let value = serde_json::from_str(line).map_err(|_| EditError::Patch {
                    path: path.to_owned(),
                    what: format!("line {number} is not JSON"),
                    fix: "Write one JSON object per line, or one array of them",
                })?;
                collect(&value, false, &mut documents);
            }
        }
    } else {
        // Lines may end as those of Windows do.
        let lines: Vec<&str> = text.lines().collect();
        let paragraphs = lines.split(|line| line.trim().is_empty()).map(|lines| lines.join("\n"));
        let paragraphs = paragraphs.map(|paragraph| paragraph.trim().to_owned());
        documents.extend(paragraphs.map(|text| Document { text, answer: None }));
    }
    if documents.iter().all(|document| document.messages().next().is_none()) {
        return Err(EditError::Patch {
            path: path.to_owned(),
            what: "there is no text in it".into(),
            fix: "Name a text file, or lines of JSON with `text` or `messages`",
        });
    }
    Ok(documents)
}

/// Collects the strings under `text` and `content`, at any depth.
fn collect(value: &Value, is_text: bool, documents: &mut Vec<Document>) {
    match value {
        Value::String(text) if is_text => documents.push(Document { text: text.clone(), answer: None }),
        Value::Array(items) => {
            let mut items = items.iter().peekable();
            while let Some(item) = items.next() {
                let answer = items.peek().and_then(|next| said_by("assistant", next));
                match said_by("user", item).zip(answer) {
                    Some((text, answer)) => {
                        items.next();
                        documents.push(Document { text: text.to_owned(), answer: Some(answer.to_owned()) });
                    }
                    None => collect(item, is_text, documents),
                }
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                collect(value, name == "text" || name == "content", documents);
            }
        }
        _ => {}
    }
}

/// Returns what a message says, if it is of this role and text alone.
fn said_by<'a>(role: &str, message: &'a Value) -> Option<&'a str> {
    message["content"].as_str().filter(|_| message["role"] == role)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of all documents.
    fn messages(path: &Path) -> Vec<String> {
        let documents = documents(path).unwrap();
        documents.iter().flat_map(Document::messages).map(str::to_owned).collect()
    }

    #[test]
    fn text_is_found_in_paragraphs_and_in_lines_of_json() {
        let folder = tempfile::tempdir().unwrap();
        let (text, json) = (folder.path().join("a.txt"), folder.path().join("a.jsonl"));
        std::fs::write(&text, "The first paragraph is here.\n\nno\n\nThe second one\nhas two lines.")
            .unwrap();
        let paragraphs = ["The first paragraph is here.", "The second one\nhas two lines."];
        assert_eq!(messages(&text), paragraphs);
        let windows =
            "\u{feff}The first paragraph is here.\r\n\r\nno\r\n \r\nThe second one\r\nhas two lines.\r\n";
        std::fs::write(&text, windows).unwrap();
        assert_eq!(messages(&text), paragraphs, "blank lines divide it whatever ends a line");
        let lines = r#"{"messages": [{"role": "user and nothing else here", "content": "What does the user say here?"}]}

{"text": "A whole document of its own."}"#;
        let said = ["What does the user say here?", "A whole document of its own."];
        std::fs::write(&json, format!("\u{feff}{lines}\n")).unwrap();
        assert_eq!(messages(&json), said);
        let array = json.with_extension("json");
        std::fs::write(&array, format!("[\n{}\n]", lines.replace("\n\n", ",\n"))).unwrap();
        assert_eq!(messages(&array), said);
        std::fs::write(&json, format!("{lines}\n{{oops")).unwrap();
        assert!(documents(&json).unwrap_err().to_string().contains("a.jsonl: line 4 is not JSON"));
        std::fs::write(&text, "short").unwrap();
        assert!(documents(&text).unwrap_err().to_string().contains("no text in it"));
    }

    #[test]
    fn a_turn_is_what_a_user_says_and_the_answer_behind_it_however_short_either_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.jsonl");
        let lines = r#"{"messages": [{"role": "system", "content": "You are a very helpful assistant."},
            {"role": "user", "content": "Is the shop open on Sundays?"}, {"role": "assistant", "content": "No."},
            {"role": "user", "content": "Why?"}, {"role": "tool", "content": "The owner rests on Sundays."},
            {"role": "assistant", "content": "Its owner rests then."}, {"role": "user", "content": "Oh."}]}"#;
        std::fs::write(&path, lines.replace('\n', "")).unwrap();
        let found = documents(&path).unwrap();
        let turns: Vec<_> = found.iter().filter_map(Document::turn).collect();
        assert_eq!(
            turns,
            [
                ("You are a very helpful assistant.", ""),
                ("Is the shop open on Sundays?", "No."),
                ("The owner rests on Sundays.", ""),
                ("Its owner rests then.", ""),
            ]
        );
        // What is no chat reads them one by one, as it reads paragraphs.
        assert_eq!(
            messages(&path),
            [
                "You are a very helpful assistant.",
                "Is the shop open on Sundays?",
                "The owner rests on Sundays.",
                "Its owner rests then."
            ]
        );
    }
}
