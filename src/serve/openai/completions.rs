//! `/v1/completions`: the continuation of text, without a chat template.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use sparktune_app::chat::recommended::Wishes;
use sparktune_sampling::protocol::{Finished, Piece, Prompt};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::{self, Received};
use super::error::{ApiError, ErrorBody};
use super::heading::Heading;
use super::logprobs::{self, TokenLogprob};
use super::opened::{find, open};
use super::stream::{WriteChunks, collect, stream};
use super::types::{CompletionRequest, PromptInput, Sums, Timing, Usage, reason};
use crate::state::Shared;

/// What answers and their chunks are called.
const OBJECT: &str = "text_completion";

/// The largest number of tokens of an answer to a request that names none, as in OpenAI's API.
const DEFAULT_TOKENS: u32 = 16;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::default().routes(routes!(create))
}

/// Continuations.
#[derive(Debug, Serialize, ToSchema)]
struct Completion {
    /// The id of the answer.
    id: String,
    /// Always `text_completion`.
    object: &'static str,
    /// When it was asked for, in seconds since 1970.
    created: u64,
    /// The id of the model.
    model: String,
    /// The continuations: those of the first prompt, then those of the second, and so on.
    choices: Vec<CompletionChoice>,
    /// The numbers of tokens.
    usage: Usage,
    /// The times.
    x_timing: Timing,
}

/// A continuation.
#[derive(Debug, Serialize, ToSchema)]
struct CompletionChoice {
    /// Its number.
    index: usize,
    /// Its text.
    text: String,
    /// The log-probabilities of its tokens as lists, if they were asked for.
    logprobs: Option<Value>,
    /// Why it ended: `stop` or `length`.
    finish_reason: &'static str,
}

/// Continue text
///
/// As in OpenAI's API, with vLLM's extensions, for whole answers and streams. Special tokens in the text are
/// parsed as such.
#[utoipa::path(post, path = "/v1/completions", tag = "openai", request_body = CompletionRequest,
    responses((status = 200, body = Completion), (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
async fn create(State(state): State<Shared>, body: Received) -> Result<Response, ApiError> {
    let request: CompletionRequest = body::read(body)?;
    let choices = request.sampling.choices()?;
    let most = Some(request.max_tokens.unwrap_or(DEFAULT_TOKENS));
    let prompts = prompts(request.prompt)?;
    // What is wrong with the request is told before a model is looked for, and too many answers before a
    // prompt is copied for each.
    state.workers.allow(prompts.len().saturating_mul(choices))?;
    let params =
        |choice: usize, makers: &Wishes| request.sampling.params(choice, most, request.logprobs, makers);
    params(0, &Wishes::default())?;
    let model = find(&state, request.model.clone()).await?;
    let (opening, makers) = open(&model).await?;
    let mut asked = Vec::new();
    for prompt in prompts {
        for choice in 0..choices {
            asked.push((prompt.clone(), params(choice, &makers)?));
        }
    }
    let answers = state.workers.ask(&model, &opening, &asked).await?;
    let mut writer = CompletionWriter {
        heading: Heading::new("cmpl", model.id),
        has_logprobs: request.logprobs.is_some(),
        offsets: vec![0; asked.len()],
        choices,
        includes_usage: request.sampling.stream_options.include_usage,
    };
    if request.sampling.stream {
        return Ok(stream(&state, answers, writer));
    }
    let mut sums = Sums::default();
    let answers = collect(answers, asked.len()).await?;
    let choices = answers.into_iter().enumerate().map(|(index, answer)| {
        sums.add(&answer.finished, index % choices == 0);
        let tokens: Vec<TokenLogprob> = answer.pieces.iter().flat_map(logprobs::of_piece).collect();
        let logprobs = writer.logprobs(index, &tokens);
        CompletionChoice {
            index,
            text: answer.text,
            logprobs,
            finish_reason: reason(answer.finished.finish_reason),
        }
    });
    let choices = choices.collect();
    let Heading { id, created, model } = writer.heading;
    let Sums { usage, timing } = sums;
    Ok(Json(Completion { id, object: OBJECT, created, model, choices, usage, x_timing: timing })
        .into_response())
}

/// Returns the prompts of a request.
fn prompts(input: PromptInput) -> Result<Vec<Prompt>, ApiError> {
    let prompts: Vec<Prompt> = match input {
        PromptInput::Text(text) => vec![Prompt::Prompt(text)],
        PromptInput::Texts(texts) => texts.into_iter().map(Prompt::Prompt).collect(),
        PromptInput::Tokens(tokens) => vec![Prompt::PromptTokenIds(tokens)],
        PromptInput::TokenLists(lists) => lists.into_iter().map(Prompt::PromptTokenIds).collect(),
    };
    if prompts.is_empty() {
        return Err(ApiError::invalid("the list of prompts is empty. Give at least one").at("prompt"));
    }
    Ok(prompts)
}

/// Writes continuations.
struct CompletionWriter {
    heading: Heading,
    has_logprobs: bool,
    /// The characters of each continuation that were told with log-probabilities.
    offsets: Vec<usize>,
    choices: usize,
    includes_usage: bool,
}

impl CompletionWriter {
    /// Returns the log-probabilities of the next tokens of a continuation, if they were asked for.
    fn logprobs(&mut self, index: usize, tokens: &[TokenLogprob]) -> Option<Value> {
        let offset = &mut self.offsets[index];
        let lists = self.has_logprobs.then(|| logprobs::as_lists(tokens, *offset));
        *offset += tokens.iter().map(|token| token.token.chars().count()).sum::<usize>();
        lists
    }

    fn chunk(&self, choices: &Value) -> Value {
        self.heading.chunk(OBJECT, choices, self.includes_usage)
    }
}

impl WriteChunks for CompletionWriter {
    fn begin(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn piece(&mut self, index: usize, piece: &Piece) -> Vec<Value> {
        if piece.text.is_empty() && !self.has_logprobs {
            return Vec::new();
        }
        let logprobs = self.logprobs(index, &logprobs::of_piece(piece));
        let choice =
            json!({ "index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": null });
        vec![self.chunk(&json!([choice]))]
    }

    fn end(&mut self, index: usize, finished: &Finished) -> Vec<Value> {
        let reason = reason(finished.finish_reason);
        let choice = json!({ "index": index, "text": "", "logprobs": null, "finish_reason": reason });
        vec![self.chunk(&json!([choice]))]
    }

    fn usage(&self, sums: &Sums) -> Option<Value> {
        self.includes_usage.then(|| self.heading.usage(OBJECT, sums))
    }

    fn choices(&self) -> usize {
        self.choices
    }
}
