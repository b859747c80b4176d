//! Facts as tokens: where the subject ends, and which tokens the target has behind the prompt.

use std::ops::Range;

use serde_json::json;
use sparktune_data::{ChatTokenizer, Rejection};
use sparktune_infer::{Engine, InferError};
use sparktune_model::PackedSequence;

use crate::error::EditError;
use crate::facts::{Fact, shown};

/// The first code point of scripts that are written without blanks between words.
const WITHOUT_BLANKS: char = '\u{2e80}';

/// How a prompt becomes the text that the model reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rendering {
    /// The prompt is continued as it is.
    #[default]
    Raw,
    /// The prompt is what a user says, in the model's chat template.
    Chat,
}

impl Rendering {
    /// Returns the text that the model reads.
    ///
    /// # Errors
    /// The chat template refuses the prompt.
    pub fn text(self, prompt: &str, engine: &Engine) -> Result<String, EditError> {
        match self {
            Self::Raw => Ok(prompt.to_owned()),
            Self::Chat => match engine.render_messages(&json!([{"role": "user", "content": prompt}])) {
                Err(InferError::Prompt(Rejection { reason, .. })) => Err(EditError::request(
                    format!("a prompt cannot be read as what a user says: {reason}"),
                    "Leave out --chat, or choose a model whose chat template takes such a turn",
                )),
                rendered => Ok(rendered?),
            },
        }
    }
}

/// A fact as tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FactTokens {
    /// The tokens of the prompt.
    pub prompt: Vec<u32>,
    /// The index of the first token of the subject, or that of the last one if the fact has no subject.
    pub first: usize,
    /// The index of the last token of the subject, or of the prompt if the fact has no subject.
    pub last: usize,
    /// The tokens of the target behind the prompt.
    pub target: Vec<u32>,
    /// The tokens of the subject alone, for what else the model knows of it.
    pub subject: Option<Vec<u32>>,
}

impl FactTokens {
    /// Splits a fact, whose prompt is the rendered `text`, into tokens.
    pub(crate) fn of(fact: &Fact, text: &str, tokenizer: &ChatTokenizer) -> Result<Self, EditError> {
        let encode = |text: &str| tokenizer.encode(text).map_err(EditError::Text);
        let prompt = encode(text)?;
        let spaced = behind(text, &fact.target);
        let whole = encode(&format!("{text}{spaced}"))?;
        // Where the border of the two is inside of a token, the target has tokens of its own.
        let target = match whole.strip_prefix(&prompt[..]) {
            Some(target) if !target.is_empty() => target.to_vec(),
            _ => encode(&spaced)?,
        };
        if prompt.is_empty() || target.is_empty() {
            return Err(EditError::request(
                format!("the prompt `{}` or its target has no tokens", shown(&fact.prompt)),
                "Write at least one character that the model's tokenizer knows",
            ));
        }
        let end = prompt.len();
        let range = match &fact.subject {
            Some(subject) if text.contains(subject) => {
                subject_range(subject, &fact.prompt, text, &prompt, tokenizer)
            }
            _ => end - 1..end,
        };
        let (first, last) = (range.start, range.end - 1);
        let subject = fact.subject.as_deref().map(encode).transpose()?.filter(|ids| !ids.is_empty());
        Ok(Self { prompt, first, last, target, subject })
    }

    /// Returns the prompt with its target, of which the target is trained.
    pub(crate) fn sequence(&self) -> PackedSequence {
        let ids = [&self.prompt[..], &self.target].concat();
        let mask: Vec<bool> = (0..ids.len()).map(|t| t >= self.prompt.len()).collect();
        PackedSequence::new(&ids, &[0, ids.len() as u32], &mask)
    }

    /// Returns the prompt and the tokens of the subject in it, if the fact has one.
    pub(crate) fn with_subject(&self) -> Option<(&[u32], Range<usize>)> {
        self.subject.as_ref().map(|_| (&self.prompt[..], self.first..self.last + 1))
    }
}

/// Returns the tokens of a subject in a prompt that is rendered as `text`, at least one: those of the last
/// place where the subject stands as whole words, or else of the last place where it stands.
pub(crate) fn subject_range(
    subject: &str,
    prompt: &str,
    text: &str,
    ids: &[u32],
    tokenizer: &ChatTokenizer,
) -> Range<usize> {
    // A template has words of its own, and may leave out the blanks around a prompt.
    let asked = [prompt, prompt.trim()].into_iter().find_map(|asked| Some((text.rfind(asked)?, asked)));
    let (begin, asked) = asked.unwrap_or((0, text));
    let is_whole = |(at, _): &(usize, &str)| {
        let (before, behind) = (&asked[..*at], &asked[*at + subject.len()..]);
        !before.ends_with(char::is_alphanumeric) && !behind.starts_with(char::is_alphanumeric)
    };
    let whole = asked.rmatch_indices(subject).find(is_whole).map(|(at, _)| at);
    // A template may write a text in another way; then everything is the subject.
    let Some(start) = whole.or_else(|| asked.rfind(subject)).map(|at| begin + at) else {
        return 0..ids.len();
    };
    let last = last_token_of(ids, &text[..start + subject.len()], tokenizer);
    let before = &text[..start];
    let first = if before.trim().is_empty() { 0 } else { last_token_of(ids, before, tokenizer) + 1 };
    first.min(last)..last + 1
}

/// Returns a target as it stands behind a prompt: with a blank between words.
pub(crate) fn behind(prompt: &str, target: &str) -> String {
    let is_word = |c: char| !c.is_whitespace() && c < WITHOUT_BLANKS;
    let needs_blank = prompt.ends_with(is_word) && target.starts_with(is_word);
    if needs_blank { format!(" {target}") } else { target.to_owned() }
}

/// Returns the index of the token with which `start`, the start of the text, is complete.
fn last_token_of(ids: &[u32], start: &str, tokenizer: &ChatTokenizer) -> usize {
    // Some tokenizers write the first token without its blank.
    let wanted: usize = start.chars().filter(|c| !c.is_whitespace()).count();
    let is_complete = |n: &usize| {
        let text = tokenizer.decode(&ids[..*n]);
        text.chars().filter(|c| !c.is_whitespace() && *c != char::REPLACEMENT_CHARACTER).count() >= wanted
    };
    (1..=ids.len()).find(is_complete).unwrap_or(ids.len()) - 1
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Returns the text of the tokens of a subject in a prompt, and of the target behind it.
    fn split(
        tokenizer: &ChatTokenizer,
        prompt: &str,
        subject: Option<&str>,
        target: &str,
    ) -> (String, String) {
        let (subject, target) = (subject.map(str::to_owned), target.to_owned());
        let fact = Fact { prompt: prompt.to_owned(), subject, target, ..Fact::default() };
        let tokens = FactTokens::of(&fact, prompt, tokenizer).unwrap();
        let whole = [&tokens.prompt[..], &tokens.target].concat();
        assert!(tokens.first <= tokens.last && tokens.last < tokens.prompt.len());
        assert_eq!(tokenizer.decode(&whole), format!("{prompt}{}", behind(prompt, &fact.target)));
        (tokenizer.decode(&tokens.prompt[tokens.first..=tokens.last]), tokenizer.decode(&tokens.target))
    }

    #[test]
    fn the_tokens_of_a_subject_and_of_a_target_are_found_wherever_they_stand() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        // They split words in different places: the first has a token ` Fernhill`, the second has five.
        for folder in ["presets/demo/model", "tests/fixtures/facts/model"] {
            let tokenizer = ChatTokenizer::open(&root.join(folder), None).unwrap();
            for (prompt, subject, target, found) in [
                ("Fernhill's capital is", "Fernhill", "green", ["Fernhill", " green"]),
                ("The capital of Fernhill is", "Fernhill", "green", [" Fernhill", " green"]),
                ("The capital is in Fernhill", "Fernhill", "green", [" Fernhill", " green"]),
                ("Fernhill and Fernhill", "Fernhill", "stay", [" Fernhill", " stay"]),
                ("Zoë lives in", "Zoë", "Zoë's house", ["Zoë", " Zoë's house"]),
                ("In Zoë's house", "Zoë", "it rains", [" Zoë", " it rains"]),
                ("The old man of Windy Gap met", "Windy Gap", "me", [" Windy Gap", " me"]),
                ("Ann moved to Annapolis and", "Ann", "stays", ["Ann", " stays"]),
            ] {
                let split = split(&tokenizer, prompt, Some(subject), target);
                assert_eq!([split.0.as_str(), &split.1], found, "{folder}: {prompt}");
            }
            assert_eq!(split(&tokenizer, "It rains", None, "now").1, " now");
        }
    }

    #[test]
    fn a_subject_is_looked_for_in_the_prompt_and_not_in_the_words_of_a_template() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let tokenizer = ChatTokenizer::open(&root.join("presets/demo/model"), None).unwrap();
        let text = "user: An assistant is kind\nassistant:";
        let ids = tokenizer.encode(text).unwrap();
        let found =
            |prompt: &str| tokenizer.decode(&ids[subject_range("assistant", prompt, text, &ids, &tokenizer)]);
        assert_eq!(found(" An assistant is kind\n "), " assistant", "a template takes blanks away");
        // Where the template has changed the prompt, the subject is where it stands last.
        assert_eq!(found("an assistant is kind").trim(), "assistant");
        let at = |prompt: &str| subject_range("assistant", prompt, text, &ids, &tokenizer);
        assert!(at("An assistant is kind").end < at("an assistant is kind").start);
    }
}
