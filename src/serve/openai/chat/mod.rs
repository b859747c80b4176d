//! `/v1/chat/completions`: the next turn of a conversation.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sparktune_app::chat::recommended::Wishes;
use sparktune_sampling::SamplingParams;
use sparktune_sampling::protocol::{Finished, Piece, Prompt};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::{self, Received};
use super::error::{ApiError, ErrorBody};
use super::heading::{Heading, new_id};
use super::logprobs::{self, TokenLogprob};
use super::opened::{find, open};
use super::parts::{Part, Parts};
use super::stream::{Collected, WriteChunks, collect, stream};
use super::tool_calls::{ApiToolCall, Tools};
use super::types::{ChatRequest, Sums, Timing, Usage, reason};
use crate::state::Shared;

/// What the chunks of a stream are called.
const CHUNK: &str = "chat.completion.chunk";

/// The largest number of messages. A chat template takes some hundreds of steps for each, of which it has a
/// limited number.
const MOST_MESSAGES: usize = 4096;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::default().routes(routes!(create))
}

/// An answer.
#[derive(Debug, Serialize, ToSchema)]
struct ChatCompletion {
    /// Its id.
    id: String,
    /// Always `chat.completion`; in streams `chat.completion.chunk`, with `delta` instead of `message`.
    object: &'static str,
    /// When it was asked for, in seconds since 1970.
    created: u64,
    /// The id of the model.
    model: String,
    /// The answers.
    choices: Vec<ChatChoice>,
    /// The numbers of tokens.
    usage: Usage,
    /// The times.
    x_timing: Timing,
}

/// One of the answers.
#[derive(Debug, Serialize, ToSchema)]
struct ChatChoice {
    /// Its number.
    index: usize,
    /// Its message.
    message: ApiMessage,
    /// The log-probabilities of its tokens, if they were asked for.
    logprobs: Option<ChoiceLogprobs>,
    /// Why it ended: `stop`, `length` or `tool_calls`.
    finish_reason: &'static str,
}

/// The log-probabilities of an answer.
#[derive(Debug, Serialize, ToSchema)]
struct ChoiceLogprobs {
    /// Those of all its tokens, also of those that are reasoning or tool calls.
    content: Vec<TokenLogprob>,
}

/// The message of an answer.
#[derive(Debug, Default, Serialize, ToSchema)]
struct ApiMessage {
    /// Always `assistant`.
    role: &'static str,
    /// Its text without reasoning and tool calls; none if there are only those.
    content: Option<String>,
    /// What was in its think block.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    /// The tools that it calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ApiToolCall>,
}

/// Continue a conversation
///
/// As in OpenAI's API, with vLLM's extensions `top_k`, `min_p`, `repetition_penalty`, `stop_token_ids`,
/// `ignore_eos` and `chat_template_kwargs`. With `stream`, the answer is a stream of server-sent events
/// without names, which ends with `[DONE]`. Fields that would change the answer but are not supported are
/// refused; unknown ones are ignored.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "openai", request_body = ChatRequest,
    responses((status = 200, body = ChatCompletion), (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
async fn create(State(state): State<Shared>, body: Received) -> Result<Response, ApiError> {
    let request: ChatRequest = body::read(body)?;
    let choices = request.sampling.choices()?;
    // What is wrong with the request is told before a model is looked for.
    (0..choices).try_for_each(|choice| sampling(&request, choice, &Wishes::default()).map(drop))?;
    let has_tools = has_tools(&request)?;
    let prompt = prompt(&request, has_tools)?;
    let model = find(&state, request.model.clone()).await?;
    let (opening, makers) = open(&model).await?;
    let asked =
        (0..choices).map(|choice| Ok::<_, ApiError>((prompt.clone(), sampling(&request, choice, &makers)?)));
    let asked = asked.collect::<Result<Vec<_>, _>>()?;
    let answers = state.workers.ask(&model, &opening, &asked).await?;

    let tools = has_tools.then(|| Tools::of(&request.tools));
    let writers = (0..choices).map(|index| ChoiceWriter {
        parts: Parts::new(answers.opens_thinking(index), tools.clone()),
        most_calls: if request.parallel_tool_calls == Some(false) { 1 } else { usize::MAX },
        calls: 0,
        logprobs: request.logprobs.then(Vec::new),
    });
    let heading = Heading::new("chatcmpl", model.id);
    let writers: Vec<ChoiceWriter> = writers.collect();
    if request.sampling.stream {
        let includes_usage = request.sampling.stream_options.include_usage;
        return Ok(stream(&state, answers, ChatWriter { heading, writers, includes_usage }));
    }
    let answers = collect(answers, choices).await?;
    Ok(Json(ChatCompletion::new(heading, answers, writers)).into_response())
}

/// Returns the parameters of one of the answers.
fn sampling(request: &ChatRequest, choice: usize, makers: &Wishes) -> Result<SamplingParams, ApiError> {
    if request.top_logprobs.is_some() && !request.logprobs {
        return Err(ApiError::invalid("top_logprobs needs logprobs: true").at("top_logprobs"));
    }
    let logprobs = request.logprobs.then(|| request.top_logprobs.unwrap_or(0));
    let most = request.max_completion_tokens.or(request.max_tokens);
    request.sampling.params(choice, most, logprobs, makers)
}

/// Returns whether the model may call tools.
fn has_tools(request: &ChatRequest) -> Result<bool, ApiError> {
    match request.tool_choice.as_ref() {
        None => Ok(!request.tools.is_empty()),
        Some(Value::String(choice)) if choice == "auto" => Ok(!request.tools.is_empty()),
        Some(Value::String(choice)) if choice == "none" => Ok(false),
        Some(_) => {
            let text = "tool_choice must be `auto` or `none`: the model decides which tools it calls. Ask for the tool in the prompt";
            Err(ApiError::invalid(text).at("tool_choice"))
        }
    }
}

/// Returns the prompt for the model's template.
fn prompt(request: &ChatRequest, has_tools: bool) -> Result<Prompt, ApiError> {
    if request.messages.len() > MOST_MESSAGES {
        let text = format!("there are {} messages. Send at most {MOST_MESSAGES}", request.messages.len());
        return Err(ApiError::invalid(text).at("messages"));
    }
    let message = |message: &Map<String, Value>| {
        let mut message = message.clone();
        // OpenAI's newer name, which templates do not know.
        if message.get("role").and_then(Value::as_str) == Some("developer") {
            message.insert("role".to_owned(), "system".into());
        }
        Value::Object(message)
    };
    let mut kwargs = request.chat_template_kwargs.clone();
    if let Some(effort) = &request.reasoning_effort {
        kwargs.entry("reasoning_effort").or_insert_with(|| effort.as_str().into());
        if effort == "none" {
            kwargs.entry("enable_thinking").or_insert(Value::Bool(false));
        }
    }
    let mut prompt = json!({
        "messages": request.messages.iter().map(message).collect::<Vec<_>>(),
        "chat_template_kwargs": kwargs,
    });
    if has_tools {
        prompt["tools"] = Value::Array(request.tools.clone());
    }
    Ok(Prompt::Messages(prompt))
}

/// Writes one of the answers.
struct ChoiceWriter {
    parts: Parts,
    most_calls: usize,
    calls: usize,
    /// Those of tokens that no chunk has told yet; none if nobody asked for them.
    logprobs: Option<Vec<TokenLogprob>>,
}

impl ChoiceWriter {
    /// Notes the log-probabilities of a piece and returns its parts.
    fn piece(&mut self, piece: &Piece) -> Vec<Part> {
        if let Some(known) = &mut self.logprobs {
            known.extend(logprobs::of_piece(piece));
        }
        self.parts.push(&piece.text)
    }

    /// Returns a call with its id and number, unless there are too many.
    fn call(&mut self, part: Part, in_stream: bool) -> Result<ApiToolCall, Part> {
        let Part::Call(call) = part else { return Err(part) };
        if self.calls == self.most_calls {
            return Err(Part::Content(String::new()));
        }
        self.calls += 1;
        Ok(call.api(new_id("call"), in_stream.then(|| self.calls - 1)))
    }

    fn delta(&mut self, part: Part) -> Value {
        match self.call(part, true) {
            Ok(call) => json!({ "tool_calls": [call] }),
            Err(Part::Reasoning(text)) => json!({ "reasoning_content": text }),
            Err(Part::Content(text)) => json!({ "content": text }),
            Err(Part::Call(_)) => Value::Null,
        }
    }

    fn reason(&self, finished: &Finished) -> &'static str {
        match reason(finished.finish_reason) {
            "stop" if self.calls > 0 => "tool_calls",
            reason => reason,
        }
    }

    /// Returns the log-probabilities that were not told yet.
    fn take_logprobs(&mut self) -> Option<ChoiceLogprobs> {
        let known = self.logprobs.as_mut()?;
        Some(ChoiceLogprobs { content: std::mem::take(known) })
    }

    /// Returns the message of a complete answer.
    fn message(&mut self, answer: &Collected) -> ApiMessage {
        let mut message = ApiMessage { role: "assistant", ..ApiMessage::default() };
        let mut parts: Vec<Part> = answer.pieces.iter().flat_map(|piece| self.piece(piece)).collect();
        parts.extend(self.parts.finish());
        for part in parts {
            match self.call(part, false) {
                Ok(call) => message.tool_calls.push(call),
                Err(Part::Content(text)) => message.content.get_or_insert_default().push_str(&text),
                Err(Part::Reasoning(text)) => {
                    message.reasoning_content.get_or_insert_default().push_str(&text);
                }
                Err(Part::Call(_)) => {}
            }
        }
        if message.tool_calls.is_empty() {
            message.content.get_or_insert_default();
        }
        message
    }
}

impl ChatCompletion {
    fn new(heading: Heading, answers: Vec<Collected>, writers: Vec<ChoiceWriter>) -> Self {
        let mut sums = Sums::default();
        let choices = answers.into_iter().zip(writers).enumerate().map(|(index, (answer, mut writer))| {
            sums.add(&answer.finished, index == 0);
            let message = writer.message(&answer);
            let finish_reason = writer.reason(&answer.finished);
            ChatChoice { index, message, logprobs: writer.take_logprobs(), finish_reason }
        });
        let choices = choices.collect();
        let Heading { id, created, model } = heading;
        let Sums { usage, timing } = sums;
        Self { id, object: "chat.completion", created, model, choices, usage, x_timing: timing }
    }
}

/// Writes the chunks of a stream.
struct ChatWriter {
    heading: Heading,
    writers: Vec<ChoiceWriter>,
    includes_usage: bool,
}

impl ChatWriter {
    fn choice(&mut self, index: usize, delta: &Value, finish_reason: Option<&str>) -> Value {
        let logprobs = self.writers[index].take_logprobs().filter(|known| !known.content.is_empty());
        let choice = json!([
            { "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason }
        ]);
        self.heading.chunk(CHUNK, &choice, self.includes_usage)
    }

    fn parts(&mut self, index: usize, parts: Vec<Part>) -> Vec<Value> {
        let deltas: Vec<Value> = parts.into_iter().map(|part| self.writers[index].delta(part)).collect();
        deltas.iter().map(|delta| self.choice(index, delta, None)).collect()
    }
}

impl WriteChunks for ChatWriter {
    fn begin(&mut self) -> Vec<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        (0..self.writers.len()).map(|index| self.choice(index, &delta, None)).collect()
    }

    fn piece(&mut self, index: usize, piece: &Piece) -> Vec<Value> {
        let parts = self.writers[index].piece(piece);
        self.parts(index, parts)
    }

    fn end(&mut self, index: usize, finished: &Finished) -> Vec<Value> {
        let rest = self.writers[index].parts.finish();
        let mut chunks = self.parts(index, rest);
        let reason = self.writers[index].reason(finished);
        chunks.push(self.choice(index, &json!({}), Some(reason)));
        chunks
    }

    fn usage(&self, sums: &Sums) -> Option<Value> {
        self.includes_usage.then(|| self.heading.usage(CHUNK, sums))
    }

    fn choices(&self) -> usize {
        self.writers.len()
    }
}

#[cfg(test)]
mod tests;
