//! Data that is in none of the known formats: its columns, and a guess at what they stand for.
//!
//! Enters: a line that was rejected. Leaves: the names of its columns, and the map that would make it an
//! example. A guess is only offered; the user decides.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sparktune_base::field_map::FieldMap;

use crate::json_tree;
use crate::rejection::{Kind, Rejection};

/// Names in use for what is asked, likeliest first.
const PROMPTS: [&str; 9] =
    ["prompt", "question", "instruction", "query", "problem", "input", "user", "human", "request"];
/// Names in use for what is answered, likeliest first.
const COMPLETIONS: [&str; 8] =
    ["completion", "answer", "response", "output", "target", "solution", "assistant", "reply"];
/// Names in use for raw text, likeliest first.
const TEXTS: [&str; 6] = ["content", "document", "article", "body", "passage", "raw_content"];
/// The largest number of columns that are kept.
const KEPT: usize = 64;

/// The columns of a line that no format fits. Their names are untrusted and have to be escaped for a
/// terminal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// Their names, in order.
    pub columns: Vec<String>,
    /// What they probably stand for. `None` if nothing fits.
    pub map: Option<FieldMap>,
    /// The number of rejected lines with the same remedy. Reports of older versions do not say it.
    #[serde(default)]
    pub lines: u64,
}

impl Foreign {
    /// Returns the columns of a line that was rejected for its fields.
    pub(crate) fn of(rejection: &Rejection, line: &str) -> Option<Self> {
        let has_no_format = rejection.kind == Kind::UnknownFormat && rejection.field.is_empty();
        if !has_no_format && rejection.kind != Kind::MissingField {
            return None;
        }
        if json_tree::is_too_large([line]) {
            return None;
        }
        let Ok(Value::Object(object)) = serde_json::from_str(line) else { return None };
        Some(Self::of_object(&object)).filter(|foreign| has_no_format || foreign.map.is_some())
    }

    pub(crate) fn of_object(object: &Map<String, Value>) -> Self {
        Self { columns: object.keys().take(KEPT).cloned().collect(), map: guess(object), lines: 1 }
    }
}

/// Guesses what the columns of an object stand for that lacks a field.
fn guess(object: &Map<String, Value>) -> Option<FieldMap> {
    let turns = object.iter().find_map(|(name, value)| Some((name.as_str(), field_of_turns(value)?)));
    if let Some((name, field)) = turns.filter(|(name, field)| name != field) {
        return FieldMap::new([(name, field)]);
    }
    let named = |guesses: &[&str], but: Option<&str>| {
        let is = |name: &str, guess: &str| name.eq_ignore_ascii_case(guess) && Some(name) != but;
        let column = |guess: &&str| object.iter().find(|(name, value)| is(name, guess) && value.is_string());
        guesses.iter().find_map(column).map(|(name, _)| name.as_str())
    };
    let pairs = if object.contains_key("instruction") && !object.contains_key("output") {
        // The rest of an Alpaca line, as Dolly names it.
        let input = named(&["context"], None).filter(|_| !object.contains_key("input"));
        let output = named(&COMPLETIONS, None)?;
        [Some((output, "output")), input.map(|input| (input, "input"))]
    } else if let Some(prompt) = named(&PROMPTS, None)
        && let Some(completion) = named(&COMPLETIONS, Some(prompt))
    {
        // A prompt and its completion are joined as they are. A question and its answer are turns of a chat.
        let is = |name: &str, field: &str| name.eq_ignore_ascii_case(field);
        let is_plain = is(prompt, "prompt") || is(completion, "completion");
        let (asked, answered) = if is_plain { ("prompt", "completion") } else { ("instruction", "output") };
        [Some((prompt, asked)), Some((completion, answered))]
    } else {
        [Some((named(&TEXTS, None)?, "text")), None]
    };
    let map = FieldMap::new(pairs.into_iter().flatten().filter(|(column, field)| column != field))?;
    (!map.is_empty()).then_some(map)
}

/// Returns the field that a list of turns belongs in, by the names inside.
fn field_of_turns(value: &Value) -> Option<&'static str> {
    let turn = value.as_array()?.first()?.as_object()?;
    let has = |field: &str| turn.contains_key(field);
    match (has("role") && has("content"), has("from") && has("value")) {
        (true, _) => Some("messages"),
        (_, true) => Some("conversations"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guessed(line: &str) -> Option<String> {
        let object: Map<String, Value> = serde_json::from_str(line).unwrap();
        Foreign::of_object(&object).map.map(|map| map.to_string())
    }

    #[test]
    fn usual_names_are_recognised_and_others_are_not_guessed_at() {
        for (line, map) in [
            (r#"{"id": 1, "question": "a", "answer": "b"}"#, Some("question=instruction,answer=output")),
            (r#"{"Question": "a", "Response": "b"}"#, Some("Question=instruction,Response=output")),
            (r#"{"prompt": "a", "response": "b"}"#, Some("response=completion")),
            (r#"{"question": "a", "completion": "b"}"#, Some("question=prompt")),
            (r#"{"Prompt": "a", "Completion": "b"}"#, Some("Prompt=prompt,Completion=completion")),
            (r#"{"input": "a", "output": "b"}"#, Some("input=instruction")),
            (
                r#"{"instruction": "a", "context": "c", "response": "b"}"#,
                Some("response=output,context=input"),
            ),
            (r#"{"instruction": "a", "input": "c", "answer": "b"}"#, Some("answer=output")),
            (r#"{"dialog": [{"role": "user", "content": "a"}]}"#, Some("dialog=messages")),
            (r#"{"chat": [{"from": "human", "value": "a"}]}"#, Some("chat=conversations")),
            (r#"{"title": "a", "content": "b"}"#, Some("content=text")),
            (r#"{"question": "a", "answer": 3}"#, None),
            (r#"{"input": "a"}"#, None),
            (r#"{"a": "b"}"#, None),
        ] {
            assert_eq!(guessed(line).as_deref(), map, "{line}");
        }
    }
}
