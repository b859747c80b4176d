//! A prompt and the answer of a model to it, as they are kept.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sparktune_sampling::SamplingParams;
use sparktune_sampling::protocol::FinishReason;

use crate::checks::Outcome;
use crate::reference_loss::ReferenceLoss;

/// A prompt as a person reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptShown {
    /// Its id in the suite.
    pub id: String,
    /// The turns in OpenAI's form; a text that was continued is one turn of the role `text`.
    pub messages: Value,
    /// The reference answer.
    pub reference: Option<String>,
    /// How tokens were chosen.
    pub sampling: SamplingParams,
    /// What the checks of the prompt are, in a few words each.
    pub checks: Vec<String>,
}

impl PromptShown {
    /// Returns the last turn of the prompt as text, which is what a table shows of it.
    pub fn last_text(&self) -> String {
        let turns = self.messages.as_array().map(Vec::as_slice).unwrap_or_default();
        let last = turns.last().and_then(|turn| turn.get("content"));
        match last {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(parts)) => {
                let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
                texts.collect::<Vec<_>>().join(" ")
            }
            _ => String::new(),
        }
    }
}

/// The answer of a model to a prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The id of the prompt.
    pub prompt: String,
    /// What the model wrote as its answer.
    pub text: String,
    /// What it wrote into a think block before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought: Option<String>,
    /// Why there is no answer, or only a part.
    pub error: Option<String>,
    /// Why it is not known how likely the reference is. Kept in the note of the check that asks for it alone.
    #[serde(skip)]
    pub reference_error: Option<String>,
    /// Why it ended.
    pub finish_reason: Option<FinishReason>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub completion_tokens: usize,
    /// Tokens that the MTP head drafted.
    #[serde(default)]
    pub drafted_tokens: usize,
    /// Drafted tokens that are part of the answer.
    #[serde(default)]
    pub accepted_tokens: usize,
    /// The time from the request to the first token, in milliseconds.
    pub first_token_ms: Option<f64>,
    /// The time from the request to the end, in milliseconds.
    pub total_ms: Option<f64>,
    /// How likely the reference is to the model.
    pub reference: Option<ReferenceLoss>,
    /// What each check says, in the order of the prompt's checks, and then the judge.
    pub outcomes: Vec<Outcome>,
    /// Whether every check that decides has passed; `None` if none does, or if all that were made passed and
    /// one was not made.
    pub passed: Option<bool>,
    /// The mean of the checks' scores, 0 to 1; `None` without scores, or if a check that has one was not
    /// made.
    pub score: Option<f64>,
}

impl Answer {
    /// Sets what the outcomes come to.
    pub fn settle(&mut self) {
        let is_open = self.outcomes.iter().any(|outcome| outcome.is_missing);
        let decided: Vec<bool> = self.outcomes.iter().filter_map(|outcome| outcome.passed).collect();
        let passes = decided.iter().all(|passed| *passed);
        let is_known = !decided.is_empty() && (!passes || !is_open);
        self.passed = is_known.then_some(passes);
        let scores: Vec<f64> = self.outcomes.iter().filter_map(|outcome| outcome.score).collect();
        self.score =
            (!scores.is_empty() && !is_open).then(|| scores.iter().sum::<f64>() / scores.len() as f64);
    }
}
