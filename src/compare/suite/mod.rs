//! Suites: prompts with their checks, one JSON object a line.
//!
//! ```json
//! {"suite": "mine", "sampling": {"max_tokens": 64}, "checks": [{"type": "lacks", "value": "sorry"}]}
//! {"id": "hello", "prompt": "Say hello.", "checks": [{"type": "contains", "value": "hello"}]}
//! {"messages": [{"role": "user", "content": "2 + 2?"}], "checks": [{"type": "number", "value": 4}]}
//! {"text": "The capital of France is", "reference": " Paris.", "checks": [{"type": "perplexity"}]}
//! ```
//!
//! The first line may describe the suite: what its `sampling` and `checks` say holds for each prompt, behind
//! what the prompt itself says. The guide (`src/guide/compare.md`) explains every field.
//!
//! Enters: the bytes of a file, which a stranger may have written. Leaves: a [`Suite`], or the first line
//! that cannot be used, with the reason and what to do.

mod read;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};
use sparktune_sampling::SamplingParams;

use crate::answer::PromptShown;
use crate::checks::{Check, NeedsOf};

/// The most bytes of the file of a suite.
pub const MOST_SUITE_BYTES: u64 = 32 << 20;

/// A line of a suite that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}:{line}: {what}. {fix}")]
pub struct SuiteError {
    /// The name of the file or of the suite.
    pub name: String,
    /// The number of the line, from 1.
    pub line: usize,
    /// What is wrong. It may quote the line and is not escaped for a terminal.
    pub what: String,
    /// What to do.
    pub fix: String,
}

/// Prompts with their checks.
#[derive(Debug, Clone)]
pub struct Suite {
    /// Its name.
    pub name: String,
    /// What it is about, in a sentence; may be empty.
    pub about: String,
    /// Its prompts, at least one.
    pub prompts: Vec<SuitePrompt>,
}

/// A prompt with its checks.
#[derive(Debug, Clone)]
pub struct SuitePrompt {
    /// Its id, which no other prompt of the suite has.
    pub id: String,
    /// What is asked.
    pub ask: Ask,
    /// The variables of the chat template, such as `enable_thinking`.
    pub template_kwargs: Map<String, Value>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// The reference answer.
    pub reference: Option<String>,
    /// What is checked.
    pub checks: Vec<Check>,
}

/// What a prompt asks.
#[derive(Debug, Clone, PartialEq)]
pub enum Ask {
    /// What a user says: a turn of its own, or for a model without a chat template the text to continue.
    User(String),
    /// Turns in OpenAI's form, and tools for the template.
    Messages {
        /// The list of turns.
        messages: Value,
        /// The tools, if there are any.
        tools: Option<Value>,
    },
    /// Text to continue, without a template.
    Text(String),
}

impl SuitePrompt {
    /// Returns whether a check needs the loss of the reference.
    pub fn needs_reference_loss(&self) -> bool {
        self.reference.is_some() && self.checks.iter().any(|check| check.needs() == NeedsOf::ReferenceLoss)
    }

    /// Returns the prompt as a person reads it.
    pub fn shown(&self) -> PromptShown {
        let messages = match &self.ask {
            Ask::User(text) => json!([{"role": "user", "content": text}]),
            Ask::Text(text) => json!([{"role": "text", "content": text}]),
            Ask::Messages { messages, .. } => messages.clone(),
        };
        PromptShown {
            id: self.id.clone(),
            messages,
            reference: self.reference.clone(),
            sampling: self.sampling.clone(),
            checks: self.checks.iter().map(Check::words).collect(),
        }
    }
}

impl Suite {
    /// Reads a suite. `name` is that of its file or of the suite itself, for messages, and the name of the
    /// suite if it does not say its own.
    ///
    /// # Errors
    /// The first line that cannot be used.
    pub fn read(name: &str, bytes: &[u8]) -> Result<Self, SuiteError> {
        read::read(name, bytes)
    }

    /// Returns whether a check runs code that a model wrote.
    pub fn has_code(&self) -> bool {
        self.prompts.iter().flat_map(|prompt| &prompt.checks).any(|check| check.needs() == NeedsOf::Code)
    }

    /// Keeps at most this many prompts, evenly spread over the suite, so that each of its parts is in it.
    pub fn limit(&mut self, most: usize) {
        let all = self.prompts.len();
        if most < all {
            let mut at = 0;
            let is_kept = |_: &SuitePrompt| {
                at += 1;
                // The prompts at which the share of those kept passes a whole number.
                at * most / all > (at - 1) * most / all
            };
            self.prompts.retain(is_kept);
        }
    }
}
