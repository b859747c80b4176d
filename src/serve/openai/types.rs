//! What requests say, and what all answers have, in the words of OpenAI's API and of vLLM's extensions.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sparktune_app::chat::recommended::Wishes;
use sparktune_sampling::SamplingParams;
use sparktune_sampling::protocol::{FinishReason, Finished};
use utoipa::ToSchema;

use super::error::ApiError;

/// The largest number of answers to one prompt.
const MOST_CHOICES: usize = 16;

/// How tokens are chosen. Those that OpenAI's API does not have are named as in vLLM.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub(crate) struct Sampling {
    /// Divides the logits; 0 chooses the most likely token. 1 by default.
    pub temperature: Option<f64>,
    /// Only the most likely tokens are kept whose probabilities add up to this.
    pub top_p: Option<f64>,
    /// Only this many of the most likely tokens are kept; 0 and -1 keep all.
    pub top_k: Option<i64>,
    /// Only tokens are kept that are at least this share as likely as the most likely one.
    pub min_p: Option<f64>,
    /// Subtracted from the logits of tokens that the answer has.
    pub presence_penalty: Option<f64>,
    /// Subtracted from the logits of tokens for each time that the answer has them.
    pub frequency_penalty: Option<f64>,
    /// Makes tokens of prompt and answer less likely if above 1.
    pub repetition_penalty: Option<f64>,
    /// The seed of the random numbers. The same seed gives the same answer.
    pub seed: Option<i64>,
    /// Texts that end the answer.
    pub stop: Option<OneOrMany<String>>,
    /// Tokens that end the answer.
    #[serde(default)]
    pub stop_token_ids: Vec<u32>,
    /// Whether the answer goes on after the tokens that the model ends its answers with.
    #[serde(default)]
    pub ignore_eos: bool,
    /// The number of answers to each prompt.
    pub n: Option<usize>,
    /// Whether the answer is sent while it is generated.
    #[serde(default)]
    pub stream: bool,
    /// What a stream has besides.
    #[serde(default)]
    pub stream_options: StreamOptions,
}

/// What a stream has besides the answer.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// Whether the last event has the numbers of tokens.
    #[serde(default)]
    pub include_usage: bool,
}

/// One value or a list of them.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum OneOrMany<T> {
    /// One.
    One(T),
    /// Several.
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// Returns the values.
    pub(crate) fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(value) => vec![value],
            Self::Many(values) => values,
        }
    }
}

/// A request for the next turn of a conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct ChatRequest {
    /// The id of a model in the list; without one, the first that the server was started with.
    #[serde(default)]
    pub model: Option<String>,
    /// The turns in OpenAI's form: `role` and `content`, which is text or a list of text parts. Also
    /// `reasoning_content`, `tool_calls`, `tool_call_id` and `name`.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<Map<String, Value>>,
    /// The tools that the model may call.
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<Value>,
    /// `auto` or `none`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub tool_choice: Option<Value>,
    /// Whether an answer may call several tools.
    #[serde(default)]
    pub parallel_tool_calls: Option<bool>,
    /// Variables of the chat template by name, such as `enable_thinking`.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub chat_template_kwargs: Map<String, Value>,
    /// How much to think. `none` sets the template's variable `enable_thinking` to false; what else it does
    /// is up to a template that reads `reasoning_effort`.
    #[serde(default)]
    pub reasoning_effort: Option<String>,
    /// Whether each token has its log-probability.
    #[serde(default)]
    pub logprobs: bool,
    /// The number of the most likely tokens that each token has with it, at most 20.
    #[serde(default)]
    pub top_logprobs: Option<u32>,
    /// The largest number of tokens of the answer.
    #[serde(default)]
    pub max_completion_tokens: Option<u32>,
    /// The same by its older name.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// How tokens are chosen.
    #[serde(flatten)]
    pub sampling: Sampling,
}

/// A request to continue text.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    /// The id of a model in the list; without one, the first that the server was started with.
    #[serde(default)]
    pub model: Option<String>,
    /// Text, tokens, or a list of either.
    #[schema(value_type = String)]
    pub prompt: PromptInput,
    /// The number of the most likely tokens that each token has with it, at most 20.
    #[serde(default)]
    pub logprobs: Option<u32>,
    /// The largest number of tokens of the answer; 16 by default.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// How tokens are chosen.
    #[serde(flatten)]
    pub sampling: Sampling,
}

/// What is to be continued.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum PromptInput {
    /// Text.
    Text(String),
    /// Texts.
    Texts(Vec<String>),
    /// Tokens.
    Tokens(Vec<u32>),
    /// Lists of tokens.
    TokenLists(Vec<Vec<u32>>),
}

/// Numbers of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Usage {
    /// Tokens of the prompts.
    pub prompt_tokens: usize,
    /// Tokens of all answers.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
    /// Tokens that the MTP head drafted. They never change the text.
    pub drafted_tokens: usize,
    /// Drafted tokens that are part of the answers.
    pub accepted_tokens: usize,
}

/// Times since the model was asked. With several answers, those of the slowest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct Timing {
    /// The time until the first token, in milliseconds.
    pub first_token_ms: f64,
    /// The time until the end, in milliseconds.
    pub total_ms: f64,
}

/// The sum of what the ends of all answers say.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    pub usage: Usage,
    pub timing: Timing,
}

impl Sums {
    /// Adds an answer. `is_first` says whether it is the first to its prompt, which counts once.
    pub(crate) fn add(&mut self, finished: &Finished, is_first: bool) {
        let (usage, of_answer) = (&mut self.usage, finished.usage);
        usage.prompt_tokens += if is_first { of_answer.prompt_tokens } else { 0 };
        usage.completion_tokens += of_answer.completion_tokens;
        usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
        usage.drafted_tokens += of_answer.drafted_tokens;
        usage.accepted_tokens += of_answer.accepted_tokens;
        self.timing.first_token_ms = self.timing.first_token_ms.max(finished.first_token_ms);
        self.timing.total_ms = self.timing.total_ms.max(finished.total_ms);
    }
}

/// Returns the reason for the end in OpenAI's words. A cancelled answer has nobody who would read it.
pub(crate) fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop | FinishReason::Cancelled => "stop",
        FinishReason::Length => "length",
    }
}

impl Sampling {
    /// Returns the number of answers to a prompt.
    ///
    /// # Errors
    /// It is none, or too many.
    pub(crate) fn choices(&self) -> Result<usize, ApiError> {
        let n = self.n.unwrap_or(1);
        if (1..=MOST_CHOICES).contains(&n) {
            return Ok(n);
        }
        Err(ApiError::invalid(format!("n is {n}, but must be 1 to {MOST_CHOICES}")).at("n"))
    }

    /// Returns the parameters of one of several answers to a prompt. What the request leaves open is as the
    /// model's makers want it, as on other servers.
    ///
    /// # Errors
    /// A parameter is outside its range.
    pub(crate) fn params(
        &self,
        choice: usize,
        max_tokens: Option<u32>,
        logprobs: Option<u32>,
        makers: &Wishes,
    ) -> Result<SamplingParams, ApiError> {
        let default = makers.over(SamplingParams::default());
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_p: self.top_p.unwrap_or(default.top_p),
            // Whatever is not positive means all.
            top_k: self.top_k.map_or(default.top_k, |k| u32::try_from(k.max(0)).unwrap_or(u32::MAX)),
            min_p: self.min_p.unwrap_or(default.min_p),
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            repetition_penalty: self.repetition_penalty.unwrap_or(default.repetition_penalty),
            // Answers to one prompt would otherwise be the same.
            seed: self.seed.map(|seed| seed.cast_unsigned().wrapping_add(choice as u64)),
            stop: self.stop.clone().map(OneOrMany::into_vec).unwrap_or_default(),
            stop_token_ids: self.stop_token_ids.clone(),
            ignore_eos: self.ignore_eos,
            max_tokens,
            logprobs,
        };
        match params.check() {
            Ok(()) => Ok(params),
            Err(invalid) => Err(ApiError::invalid(invalid.to_string()).at(invalid.name)),
        }
    }
}
