//! Chat templates render a conversation to the text for the model, and report which part of the text belongs
//! to each message.
//!
//! The template is the checkpoint's own Jinja source, set up as transformers sets it up (`trim_blocks`,
//! `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now`, `tojson`, Python's string methods). It
//! is rendered once, with the unchanged conversation; the range of each message's text is recorded during
//! rendering (see [`instrument`](crate::instrument)). Content may therefore contain anything, even special
//! tokens and text that looks like turns, without affecting the ranges.

use std::ops::Range;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value};

use crate::conversation::{Chat, Content, Json, Message};
use crate::instrument::{self, instrument};
use crate::python_json::{template_value, tojson};
use crate::trace::{Note, Sheet, Trace, TraceValue, TracedMessage};

/// The name of the template with callbacks, and below that of the original one.
const TRACED: &str = "chat_template";
const PLAIN: &str = "chat_template_untouched";

/// The variables that the caller of a template may set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RenderOptions {
    /// Whether to end with the opening of an assistant turn.
    pub add_generation_prompt: bool,
    /// The variable `enable_thinking`, if set.
    pub enable_thinking: Option<bool>,
    /// The variable `preserve_thinking`, if set: keep the reasoning of earlier turns. The default depends on
    /// the template.
    pub preserve_thinking: Option<bool>,
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// The messages by index, with their byte ranges in `text`, in order. Messages that rendered to nothing,
    /// or outside the template's main loop, are missing.
    pub messages: Vec<(usize, Range<usize>)>,
    /// The ranges inside `{% generation %}` tags, for templates that have them.
    pub generated: Vec<Range<usize>>,
}

/// A compiled chat template.
pub(crate) struct ChatTemplate {
    env: Environment<'static>,
    special_tokens: Vec<(String, Value)>,
    pub has_generation_marks: bool,
}

impl ChatTemplate {
    /// Compiles a template. `special_tokens` contains the named ones (`bos_token`, `eos_token`, …) that
    /// templates use.
    pub(crate) fn new(source: &str, special_tokens: &[(String, String)]) -> Result<Self, Error> {
        let mut env = Environment::new();
        env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_filter("tojson", tojson);
        env.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message).with_source(Refusal))
        });
        env.add_function("strftime_now", strftime_now);
        env.add_function(instrument::MESSAGE, |in_loop: u32, value: &Value| {
            if let Some(message) = value.downcast_object_ref::<TracedMessage>() {
                message.trace.note(Note::Message { in_loop, message: message.index });
            }
        });
        env.add_function(instrument::LOOP_END, |in_loop: u32, trace: &Value| {
            note(trace, Note::LoopEnd { in_loop });
        });
        env.add_function(instrument::GENERATION, |begins: bool, trace: &Value| {
            note(trace, Note::Generation { begins });
        });
        let instrumented = instrument(source);
        env.add_template_owned(TRACED, instrumented.source)?;
        if !instrumented.has_generation_marks {
            env.add_template_owned(PLAIN, source.to_owned())?;
        }
        let special_tokens =
            special_tokens.iter().map(|(name, token)| (name.clone(), Value::from(token.as_str()))).collect();
        Ok(Self { env, special_tokens, has_generation_marks: instrumented.has_generation_marks })
    }

    /// Renders a conversation and reports the ranges of its messages.
    pub(crate) fn render(&self, chat: &Chat<'_>, options: RenderOptions) -> Result<Rendered, Error> {
        self.render_as(TRACED, chat, options)
    }

    /// Returns the text of the original template, to compare with that of [`render`](Self::render). Returns
    /// `None` for templates with generation tags, which only transformers can render unchanged.
    pub(crate) fn render_untouched(
        &self,
        chat: &Chat<'_>,
        options: RenderOptions,
    ) -> Option<Result<String, Error>> {
        (!self.has_generation_marks).then(|| self.render_as(PLAIN, chat, options).map(|r| r.text))
    }

    fn render_as(&self, name: &str, chat: &Chat<'_>, options: RenderOptions) -> Result<Rendered, Error> {
        match self.render_once(name, chat, options, Arguments::AsWritten) {
            // OpenAI writes arguments as a string of JSON; templates that iterate over them need an object.
            Err(e) if !is_refusal(&e) && chat.messages.iter().any(|m| m.tool_calls.is_some()) => {
                self.render_once(name, chat, options, Arguments::Parsed).map_err(|_| e)
            }
            result => result,
        }
    }

    fn render_once(
        &self,
        name: &str,
        chat: &Chat<'_>,
        options: RenderOptions,
        arguments: Arguments,
    ) -> Result<Rendered, Error> {
        let trace = Arc::new(Trace::default());
        let messages: Value = chat
            .messages
            .iter()
            .enumerate()
            .map(|(index, message)| {
                let fields = fields(message, arguments)?;
                Ok(Value::from_object(TracedMessage { index, fields, trace: trace.clone() }))
            })
            .collect::<Result<Vec<_>, Error>>()?
            .into();
        let tools = match &chat.tools {
            Some(tools) => parsed(tools)?,
            None => Value::from(()),
        };
        let mut context = vec![
            ("messages", messages),
            ("tools", tools),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
            (instrument::TRACE, Value::from_object(TraceValue(trace.clone()))),
        ];
        context.extend(options.enable_thinking.map(|on| ("enable_thinking", Value::from(on))));
        context.extend(options.preserve_thinking.map(|on| ("preserve_thinking", Value::from(on))));
        let special = self.special_tokens.iter().map(|(name, token)| (name.as_str(), token.clone()));
        let context = Value::from_pairs(special.chain(context));
        let expected = chat.messages.iter().flat_map(Message::texts).map(|t| t.len() + 64).sum();
        let mut sheet = Sheet { text: Vec::with_capacity(expected), trace };
        self.env.get_template(name)?.render_captured_to(context, &mut sheet)?;
        let spans = sheet.trace.spans();
        let text = String::from_utf8(sheet.text)
            .map_err(|e| Error::new(ErrorKind::WriteFailure, "not UTF-8").with_source(e))?;
        Ok(Rendered { text, messages: spans.messages, generated: spans.generated })
    }
}

fn note(trace: &Value, note: Note) {
    if let Some(TraceValue(trace)) = trace.downcast_object_ref() {
        trace.note(note);
    }
}

/// Marks errors that the template raised itself.
#[derive(Debug, thiserror::Error)]
#[error("raised by the template")]
struct Refusal;

fn is_refusal(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|s| s.is::<Refusal>())
}

/// Returns the message of a template error: the template's own text if it raised the error.
pub(crate) fn error_text(error: &Error) -> String {
    match error.detail() {
        Some(detail) if is_refusal(error) => detail.to_owned(),
        Some(detail) => match error.line() {
            Some(line) => format!("{detail} (line {line} of the template)"),
            None => detail.to_owned(),
        },
        None => error.kind().to_string(),
    }
}

fn strftime_now(format: String) -> Result<String, Error> {
    let failed = |e: String| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}"));
    let format =
        time::format_description::parse_strftime_owned(&format).map_err(|e| failed(e.to_string()))?;
    time::OffsetDateTime::now_utc().format(&format).map_err(|e| failed(e.to_string()))
}

#[derive(Clone, Copy, PartialEq)]
enum Arguments {
    AsWritten,
    Parsed,
}

fn parsed(json: &Json<'_>) -> Result<Value, Error> {
    let tree: serde_json::Value = serde_json::from_str(json.get())
        .map_err(|e| Error::new(ErrorKind::CannotDeserialize, "not JSON").with_source(e))?;
    Ok(template_value(&tree))
}

fn fields(message: &Message<'_>, arguments: Arguments) -> Result<Vec<(&'static str, Value)>, Error> {
    let mut fields = vec![("role", Value::from(&*message.role))];
    match &message.content {
        Content::Absent => {}
        Content::Null => fields.push(("content", Value::from(()))),
        Content::Text(text) => fields.push(("content", Value::from(&**text))),
        Content::Parts(parts) => {
            let parts = parts.iter().map(|text| {
                Value::from_pairs([("type", Value::from("text")), ("text", Value::from(&**text))])
            });
            fields.push(("content", parts.collect()));
        }
    }
    let texts = [
        ("reasoning_content", &message.reasoning_content),
        ("name", &message.name),
        ("tool_call_id", &message.tool_call_id),
    ];
    fields.extend(texts.into_iter().filter_map(|(name, text)| Some((name, Value::from(text.as_deref()?)))));
    if let Some(calls) = &message.tool_calls {
        fields.push((
            "tool_calls",
            match arguments {
                Arguments::AsWritten => parsed(calls)?,
                Arguments::Parsed => with_parsed_arguments(calls)?,
            },
        ));
    }
    Ok(fields)
}

fn with_parsed_arguments(calls: &Json<'_>) -> Result<Value, Error> {
    let mut tree: serde_json::Value = serde_json::from_str(calls.get())
        .map_err(|e| Error::new(ErrorKind::CannotDeserialize, "not JSON").with_source(e))?;
    for call in tree.as_array_mut().into_iter().flatten() {
        let holder = match call.get_mut("function") {
            Some(function) => function,
            None => call,
        };
        if let Some(arguments) = holder.get_mut("arguments")
            && let Some(text) = arguments.as_str()
            && let Ok(object @ serde_json::Value::Object(_)) = serde_json::from_str(text)
        {
            *arguments = object;
        }
    }
    Ok(template_value(&tree))
}
