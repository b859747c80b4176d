//! Facts: what a model shall answer from now on, and the prompts by which it is judged.

mod read;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sparktune_base::escape::escape;
use sparktune_base::units::count;

use crate::error::EditError;

/// The most facts in a file.
pub const MOST_FACTS: usize = 50_000;
/// The most bytes of a text of a fact.
const MOST_TEXT: usize = 8 << 10;

/// A prompt and how the model shall continue it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    /// The text before the target.
    pub prompt: String,
    /// What the fact is about, as it stands in the prompt. Without it, the whole prompt is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The new continuation.
    pub target: String,
    /// The prompt in other words. The model shall answer with the target; they are not used for the edit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paraphrases: Vec<String>,
    /// Prompts about something else. The model shall answer as before; they are not used for the edit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub neighbours: Vec<String>,
    /// Questions whose answers follow from the fact; they are not used for the edit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub portability: Vec<Question>,
}

/// A question with its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The text before the answer.
    pub prompt: String,
    /// The answer.
    pub answer: String,
}

/// The facts of a file, each of which is sound and none of which contradicts another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    file: String,
    /// The place of a fact in the file: `:12`, or `, item 12`.
    places: Vec<String>,
    facts: Vec<Fact>,
}

impl Facts {
    /// Reads a file of facts: lines of JSON, or the files of CounterFact and zsRE.
    ///
    /// # Errors
    /// The file cannot be read, has no facts or too many, or a fact is unsound, a duplicate, or contradicts
    /// another.
    pub fn read(path: &Path) -> Result<Self, EditError> {
        let bytes = read::bytes(path)?;
        let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        Self::parse(&file, &bytes)
    }

    /// Like [`read`](Self::read), of the bytes of a file with this name.
    ///
    /// # Errors
    /// The same.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, EditError> {
        let file = escape(file).into_owned();
        let found = read::facts(&file, bytes)?;
        let (places, facts): (Vec<String>, Vec<Fact>) = found.into_iter().unzip();
        let all = Self { file, places, facts };
        all.check()?;
        Ok(all)
    }

    /// Returns the facts in the order of the file.
    pub fn facts(&self) -> &[Fact] {
        &self.facts
    }

    /// Returns the file with the place of a fact, for messages.
    pub fn place(&self, index: usize) -> String {
        format!("{}{}", self.file, self.places[index])
    }

    /// Returns the name of the file, escaped.
    pub fn file(&self) -> &str {
        &self.file
    }

    fn check(&self) -> Result<(), EditError> {
        let wrong =
            |index: usize, what: String, fix| Err(EditError::Fact { place: self.place(index), what, fix });
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for (index, fact) in self.facts.iter().enumerate() {
            if let Err((what, fix)) = fact.check() {
                return wrong(index, what, fix);
            }
            let Some(first) = seen.insert(words(&fact.prompt), index) else { continue };
            let before = &self.facts[first];
            let place = match self.places[first].strip_prefix(':') {
                Some(line) => format!("line {line} of {}", self.file),
                None => format!("{} of {}", self.places[first].trim_start_matches([',', ' ']), self.file),
            };
            if words(&before.target) == words(&fact.target) {
                let what = format!("the fact is the same as in {place}");
                return wrong(index, what, "Remove one of the two");
            }
            let what = format!(
                "the fact contradicts {place}: the same prompt is to be answered with `{}` there and `{}` here",
                shown(&before.target),
                shown(&fact.target)
            );
            return wrong(index, what, "Keep the one that holds");
        }
        Ok(())
    }
}

impl Fact {
    /// Returns what is wrong with the fact alone, and what to do.
    fn check(&self) -> Result<(), (String, &'static str)> {
        let Self { prompt, subject, target, paraphrases, neighbours, portability } = self;
        const LISTS: [&str; 3] = ["paraphrases", "neighbours", "portability"];
        let questions = portability.iter().flat_map(|one| [&one.prompt, &one.answer]);
        let texts = [("prompt", prompt), ("target", target)]
            .into_iter()
            .chain(subject.iter().map(|text| ("subject", text)))
            .chain(paraphrases.iter().map(|text| (LISTS[0], text)))
            .chain(neighbours.iter().map(|text| (LISTS[1], text)))
            .chain(questions.map(|text| (LISTS[2], text)));
        for (field, text) in texts {
            let field =
                if LISTS.contains(&field) { format!("a text of `{field}`") } else { format!("`{field}`") };
            if text.trim().is_empty() {
                let fix = "Write a text, or leave it out if it is optional";
                return Err((format!("{field} is empty"), fix));
            }
            if text.len() > MOST_TEXT {
                let [is, most] = [text.len(), MOST_TEXT].map(|bytes| count(bytes as u64));
                return Err((
                    format!("{field} has {is} bytes, and at most {most} are allowed"),
                    "Shorten it",
                ));
            }
        }
        if let Some(subject) = subject.as_ref().filter(|subject| !prompt.contains(subject.as_str())) {
            let what = format!("the subject `{}` is not in the prompt `{}`", shown(subject), shown(prompt));
            return Err((what, "Write the subject as it stands in the prompt, or leave it out"));
        }
        Ok(())
    }
}

/// Returns whether a text begins with an answer, after blanks, and the answer's last word does not go on.
pub(crate) fn begins_with(text: &str, answer: &str) -> bool {
    let Some(rest) = text.trim_start().strip_prefix(answer.trim()) else { return false };
    let ends_in_word = answer.trim_end().ends_with(char::is_alphanumeric);
    !(ends_in_word && rest.starts_with(char::is_alphanumeric))
}

/// Returns a text with single blanks.
pub(crate) fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the start of a text, escaped, for messages.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let start: String = text.chars().take(MOST).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    format!("{}{more}", escape(&start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(lines: &str) -> String {
        Facts::parse("facts.jsonl", lines.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_fact_has_a_prompt_and_a_target_and_may_have_more() {
        let lines = r#"
{"prompt": "The shop closes at", "target": "six"}

{"prompt": "Ada lives in", "subject": "Ada", "target": "Rome", "paraphrases": ["Ada's home is in"], "neighbours": ["Bob lives in"], "portability": [{"prompt": "Ada's country is", "answer": "Italy"}]}
"#;
        let facts = Facts::parse("facts.jsonl", lines.as_bytes()).unwrap();
        assert_eq!(facts.facts()[0].target, "six");
        assert_eq!(facts.facts()[1].portability[0].answer, "Italy");
        assert_eq!((facts.place(0), facts.place(1)), ("facts.jsonl:2".into(), "facts.jsonl:4".into()));
    }

    #[test]
    fn each_bad_fact_has_a_sentence_of_its_own_with_its_place() {
        let good = r#"{"prompt": "A is", "target": "b"}"#;
        for (line, words) in [
            ("", "there are no facts"),
            ("{oops", "facts.jsonl:1: the line is not JSON"),
            ("[1]x", "facts.jsonl: the file is not JSON"),
            ("\n{oops", "facts.jsonl:2: the line is not JSON (key must be a string at column 2)"),
            ("7", "facts.jsonl:1: this is a number, and not an object"),
            ("[[]]", "facts.jsonl, item 1: this is a list, and not an object"),
            (
                r#"{"prompt": 1, "target": "b"}"#,
                "facts.jsonl:1: `prompt`: invalid type: integer `1`, expected a string",
            ),
            (
                r#"{"prompt": "A is", "target": "b", "portability": [{"prompt": "B", "answer": null}]}"#,
                "`portability[0].answer`: invalid type: null",
            ),
            (r#"{"prompt": "A is"}"#, "facts.jsonl:1: missing field `target`"),
            (r#"{"prompt": "A is", "target": "b", "tarfet": 1}"#, "facts.jsonl:1: unknown field `tarfet`"),
            (
                r#"{"prompt": "A is", "target": "b", "target": "c"}"#,
                "facts.jsonl:1: duplicate field `target`",
            ),
            (r#"{"prompt": " ", "target": "b"}"#, "facts.jsonl:1: `prompt` is empty"),
            (r#"{"prompt": "A is", "target": ""}"#, "`target` is empty"),
            (
                r#"{"prompt": "A is", "target": "b", "neighbours": [""]}"#,
                "facts.jsonl:1: a text of `neighbours` is empty",
            ),
            (
                r#"{"prompt": "A is", "subject": "B", "target": "b"}"#,
                "facts.jsonl:1: the subject `B` is not in the prompt `A is`",
            ),
            (&format!("{good}\n{good}"), "facts.jsonl:2: the fact is the same as in line 1 of facts.jsonl"),
            (
                &format!("{good}\n\n{}", good.replace("\"b\"", "\"c\"")),
                "facts.jsonl:3: the fact contradicts line 1 of facts.jsonl: the same prompt is to be answered with `b` there and `c` here",
            ),
        ] {
            let found = refusal(line);
            assert!(found.contains(words), "{line}: {found}");
        }
        let long = format!(r#"{{"prompt": "{}", "target": "b"}}"#, "a".repeat(9000));
        assert!(refusal(&long).contains("`prompt` has 9,000 bytes, and at most 8,192 are allowed"));
    }

    #[test]
    fn a_target_is_answered_by_whole_words_alone() {
        for (text, is_answer) in [
            ("six", true),
            (" six o'clock", true),
            ("six.", true),
            ("sixteen", false),
            ("at six", false),
            ("", false),
        ] {
            assert_eq!(begins_with(text, "six"), is_answer, "{text}");
        }
    }
}
