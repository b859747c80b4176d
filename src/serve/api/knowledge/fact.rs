//! A fact as a request gives it. `sparktune edit` reads the same fields from a line of a file and says what
//! is wrong with them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::Problem;

/// The most facts in the body of a request.
const MOST_FACTS: usize = 1000;

/// A prompt and how the model shall continue it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FactWish {
    /// The text before the target.
    pub prompt: String,
    /// The new continuation.
    pub target: String,
    /// What the fact is about, as it stands in the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The prompt in other words, to judge the edit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paraphrases: Vec<String>,
    /// Prompts about something else, whose answers must stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub neighbours: Vec<String>,
    /// Questions whose answers follow from the fact.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub portability: Vec<FollowingQuestion>,
}

/// A question whose answer follows from a fact.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FollowingQuestion {
    /// The text before the answer.
    pub prompt: String,
    /// The answer.
    pub answer: String,
}

/// Returns facts as lines of JSON.
///
/// # Errors
/// There are too many for a request.
pub(super) fn lines(facts: &[FactWish]) -> Result<String, Problem> {
    if facts.len() > MOST_FACTS {
        let text = format!("a request has at most {MOST_FACTS} facts, and this one has {}", facts.len());
        return Err(Problem::bad_request(text)
            .at("facts")
            .advise("Upload them as a file, and name that in `data`"));
    }
    let line = |fact| serde_json::to_string(fact).expect("texts are JSON") + "\n";
    Ok(facts.iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_is_one_line_whatever_its_texts_are() {
        let fact = FactWish {
            prompt: "A\nb \"c\" is".into(),
            target: "d\u{2028}".into(),
            subject: None,
            paraphrases: vec![String::new()],
            neighbours: Vec::new(),
            portability: Vec::new(),
        };
        let text = lines(&[fact.clone(), fact]).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(
            text.starts_with(r#"{"prompt":"A\nb \"c\" is","target":"d"#) && !text.contains("subject"),
            "{text}"
        );
        let fact: FactWish = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert!(lines(&vec![fact; MOST_FACTS + 1]).unwrap_err().advice.unwrap().contains("`data`"));
    }
}
