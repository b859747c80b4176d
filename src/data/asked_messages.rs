//! The messages of a request, in OpenAI's form, as the chat template reads them.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::chat_tokenizer::ChatTokenizer;
use crate::conversation::{Chat, Content, Json, Message};
use crate::rejection::{Kind, Rejection};
use crate::template::TemplateKwargs;

impl ChatTokenizer {
    /// Renders messages as a server does that is asked for the next answer. `request` is an array of
    /// messages, or an object with `messages`, `tools`, and variables of the template in
    /// `chat_template_kwargs`. As on other servers, a template that does not read one of them takes no notice
    /// of it.
    ///
    /// # Errors
    /// They are not in OpenAI's form, or the template refuses them.
    pub fn render_messages(&self, request: &Value) -> Result<String, Rejection> {
        let field = |name: &str| request.get(name).filter(|value| !value.is_null());
        let messages = if request.is_object() { field("messages") } else { Some(request) };
        let kwargs = match field("chat_template_kwargs") {
            None => TemplateKwargs::new(),
            Some(Value::Object(kwargs)) => kwargs.clone().into_iter().collect(),
            Some(_) => {
                return Err(Rejection::new(
                    Kind::WrongType,
                    "chat_template_kwargs",
                    "not an object",
                    "Give the variables of the chat template by name",
                ));
            }
        };
        let messages = messages.and_then(Value::as_array).filter(|messages| !messages.is_empty());
        let messages = messages.ok_or_else(|| wrong(Kind::Empty, "there is no list of them".into()))?;
        let messages: Result<Vec<_>, _> = messages.iter().enumerate().map(|(i, m)| message(i, m)).collect();
        let chat = Chat { messages: messages?, tools: field("tools").map(json) };
        Ok(self.render_prompt_with(&chat, &kwargs)?.text)
    }
}

fn wrong(kind: Kind, what: String) -> Rejection {
    let fix =
        "Give a list of turns, each an object with `role` and `content`, the last of which is not an answer";
    Rejection::new(kind, "messages", what, fix)
}

fn message(index: usize, message: &Value) -> Result<Message<'_>, Rejection> {
    let wrong = |kind, what: &str| wrong(kind, format!("[{index}] {what}"));
    let fields = message.as_object().ok_or_else(|| wrong(Kind::WrongType, "is not an object"))?;
    let role = text(fields, "role").ok_or_else(|| wrong(Kind::MissingField, "has no `role`"))?;
    let content = match fields.get("content") {
        None => Content::Absent,
        Some(Value::Null) => Content::Null,
        Some(Value::String(text)) => Content::Text(Cow::Borrowed(text)),
        Some(Value::Array(parts)) => {
            let parts: Option<Vec<_>> = parts.iter().map(|part| text(part.as_object()?, "text")).collect();
            Content::Parts(
                parts.ok_or_else(|| {
                    wrong(Kind::UnsupportedContent, "has a part of `content` without `text`")
                })?,
            )
        }
        Some(_) => return Err(wrong(Kind::WrongType, "has a `content` that is no text")),
    };
    Ok(Message {
        role,
        content,
        reasoning_content: text(fields, "reasoning_content"),
        tool_calls: fields.get("tool_calls").filter(|calls| !calls.is_null()).map(json),
        name: text(fields, "name"),
        tool_call_id: text(fields, "tool_call_id"),
        untrained: false,
    })
}

fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<Cow<'a, str>> {
    fields.get(name).and_then(Value::as_str).map(Cow::Borrowed)
}

fn json<'a>(value: &Value) -> Json<'a> {
    Json::from_value(value)
}
