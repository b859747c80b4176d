//! What a comparison has found, as it is kept in a file and shown by every interface.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sparktune_sampling::SamplingParams;
use sparktune_sampling::protocol::FinishReason;

use crate::checks::Outcome;
use crate::difference::{Difference, Measure, differences};
use crate::summary::Summary;

/// The version of the format. A reader refuses a higher one.
pub const VERSION: u32 = 1;

/// Answers of several models to the same prompts, with what the checks say about them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The version of the format, [`VERSION`].
    pub version: u32,
    /// The name of the comparison, which is also that of its file.
    pub id: String,
    /// The time of its end, in microseconds since the Unix epoch.
    pub created_us: u64,
    /// The name of the suite.
    pub suite: String,
    /// What the suite is about, in a sentence; may be empty.
    pub about: String,
    /// The command that judged the answers, if there was one.
    pub judge: Option<String>,
    /// Whether code that models wrote was run.
    pub code: CodeRuns,
    /// The largest number of answers that were computed at a time.
    pub at_a_time: usize,
    /// Notes of one sentence each, such as why code was not run.
    pub notes: Vec<String>,
    /// The prompts, in the order of the suite.
    pub prompts: Vec<PromptShown>,
    /// The models, in the order in which the user named them. The others are compared with the first.
    pub models: Vec<ModelAnswers>,
    /// What differs between the first model and each of the others.
    pub differences: Vec<Difference>,
}

impl Comparison {
    /// Computes the summaries and the differences from the answers. An interface that adds an answer, a
    /// judgement or a vote calls it again.
    pub fn summarise(&mut self) {
        for model in &mut self.models {
            model.summary = Summary::of(&model.answers, &self.prompts, model.generating_ms);
        }
        let Some((first, others)) = self.models.split_first() else { return };
        self.differences = others.iter().flat_map(|other| differences(first, other)).collect();
    }

    /// Returns the differences of one model from the first, the most telling measure first.
    pub fn differences_of<'a>(&'a self, model: &'a str) -> impl Iterator<Item = &'a Difference> {
        self.differences.iter().filter(move |difference| difference.model == model)
    }

    /// Returns the difference of one model from the first by this measure.
    pub fn difference(&self, model: &str, measure: Measure) -> Option<&Difference> {
        self.differences.iter().find(|found| found.model == model && found.measure == measure)
    }
}

/// Whether code that models wrote was run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeRuns {
    /// No prompt asks for it.
    #[default]
    NotNeeded,
    /// It was run in a sandbox.
    Ran,
    /// The user did not ask for it, so only the static checks count.
    NotAsked,
    /// The system refused the sandbox, so only the static checks count. A note says why.
    Refused,
}

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

/// Which model answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRef {
    /// Its id on this machine: `run:NAME`, `hub:OWNER/NAME`, `dir:NAME`. With `@base` behind a run, the model
    /// that the run started from.
    pub id: String,
    /// Its name, which is unique in the comparison.
    pub name: String,
}

/// The answers of one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelAnswers {
    /// The model.
    #[serde(flatten)]
    pub model: ModelRef,
    /// The answers, in the order of the prompts.
    pub answers: Vec<Answer>,
    /// The time during which it generated answers, in milliseconds, without loading.
    pub generating_ms: f64,
    /// The time to load it, in milliseconds.
    pub load_ms: f64,
    /// What the answers come to.
    pub summary: Summary,
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
    /// Whether every check that decides has passed; `None` if none does.
    pub passed: Option<bool>,
    /// The mean of the checks' scores, 0 to 1; `None` without scores.
    pub score: Option<f64>,
}

impl Answer {
    /// Sets what the outcomes come to.
    pub fn settle(&mut self) {
        let decided: Vec<bool> = self.outcomes.iter().filter_map(|outcome| outcome.passed).collect();
        self.passed = (!decided.is_empty()).then(|| decided.iter().all(|passed| *passed));
        let scores: Vec<f64> = self.outcomes.iter().filter_map(|outcome| outcome.score).collect();
        self.score = (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64);
    }

    /// Returns what a measure says of this answer.
    pub fn value(&self, measure: Measure) -> Option<f64> {
        match measure {
            Measure::Passed => self.passed.map(|passed| if passed { 1.0 } else { 0.0 }),
            Measure::Score => self.score,
            Measure::Chrf => self.outcomes.iter().find(|outcome| outcome.kind == "chrf")?.value,
            Measure::ReferenceNats => {
                let reference = self.reference.filter(|reference| reference.tokens > 0)?;
                Some(reference.nats / reference.tokens as f64)
            }
        }
    }
}

/// The loss of a reference answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReferenceLoss {
    /// The sum of the losses of its tokens, in nats.
    pub nats: f64,
    /// The number of its tokens.
    pub tokens: usize,
}

impl ReferenceLoss {
    /// Returns the perplexity: e to the mean loss of a token.
    pub fn perplexity(&self) -> f64 {
        (self.nats / self.tokens.max(1) as f64).exp()
    }
}
