//! Chat templates render a conversation to the text for the model, and report which part of the text belongs
//! to each message.
//!
//! The template is the checkpoint's own Jinja source, set up as transformers sets it up (`trim_blocks`,
//! `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now`, `tojson`, Python's string methods). It
//! is rendered once, with the unchanged conversation; the range of each message's text is recorded during
//! rendering (see [`instrument`](crate::instrument)). Content may therefore contain anything, even special
//! tokens and text that looks like turns, without affecting the ranges.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, Value, escape_formatter, filters};
use sparktune_base::units::count;

use crate::conversation::{Chat, Content, Json, Message};
use crate::error::quoted;
use crate::instrument::{self, instrument};
use crate::python_json::{float_text, template_value, tojson};
use crate::trace::{Note, Sheet, Trace, TraceValue, TracedMessage};

/// The name of the template with callbacks, and below that of the original one.
const TRACED: &str = "chat_template";
const PLAIN: &str = "chat_template_untouched";

/// The largest number of bytes of a template. Published ones have up to 20 kB, and time to compile grows
/// faster than size.
pub(crate) const MOST_SOURCE_BYTES: usize = 256 << 10;
/// The number of instructions after which a rendering is given up, in a second or two. A message takes some
/// hundreds, so this suffices for [`MOST_MESSAGES`](crate::conversation::MOST_MESSAGES) and any template in
/// use.
const MOST_INSTRUCTIONS: u64 = 50_000_000;
/// How much a template may write: this many bytes for each byte of the conversation, as for indented JSON,
/// and some for what it adds itself.
const WRITTEN_PER_BYTE: usize = 16;
const WRITTEN_BESIDES: usize = 4 << 20;

/// The variables that the caller of a template sets by name, such as `enable_thinking`. Servers call them
/// chat template kwargs.
pub type TemplateKwargs = BTreeMap<String, serde_json::Value>;

/// What a rendering is made with, besides the conversation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Call<'a> {
    /// Whether to end with the opening of an assistant turn.
    pub add_generation_prompt: bool,
    /// Further variables by name.
    pub kwargs: &'a [(String, Value)],
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

impl Rendered {
    /// Returns the ranges in an order in which those of one message are found quickly.
    pub(crate) fn by_message(&self) -> ByMessage<'_> {
        let mut ranges: Vec<_> = self.messages.iter().collect();
        ranges.sort_by_key(|(message, _)| *message);
        ByMessage(ranges)
    }
}

/// The byte ranges of a rendered conversation by message.
pub(crate) struct ByMessage<'r>(Vec<&'r (usize, Range<usize>)>);

impl ByMessage<'_> {
    /// Returns the ranges of a message in the order of the text.
    pub(crate) fn of(&self, message: usize) -> impl Iterator<Item = Range<usize>> {
        let first = self.0.partition_point(|(i, _)| *i < message);
        self.0[first..].iter().take_while(move |(i, _)| *i == message).map(|(_, range)| range.clone())
    }
}

/// A compiled chat template.
pub(crate) struct ChatTemplate {
    env: Environment<'static>,
    special_tokens: Vec<(String, Value)>,
    pub has_generation_marks: bool,
    /// Whether a list of content parts has to become one text, because the template reads content as text.
    flattens_parts: bool,
    /// Whether a turn's inline thinking has to become its `reasoning_content`, because the template writes
    /// that into a think block of its own and leaves inline thinking in the answer.
    moves_thinking: bool,
    /// Why the template is not used any more: one rendering took more work than any honest template takes.
    fault: OnceLock<String>,
}

impl ChatTemplate {
    /// Compiles a template. `special_tokens` contains the named ones (`bos_token`, `eos_token`, …) that
    /// templates use.
    pub(crate) fn new(source: &str, special_tokens: &[(String, String)]) -> Result<Self, Error> {
        let mut env = Environment::new();
        env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_fuel(Some(MOST_INSTRUCTIONS));
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_filter("tojson", tojson);
        env.add_filter("string", |state: &State, value: &Value| match float_text(value) {
            Some(text) => Ok(Value::from(text)),
            None => filters::string(state, value),
        });
        env.set_formatter(|out, state, value| match float_text(value) {
            Some(text) => out.write_str(&text).map_err(Error::from),
            None => escape_formatter(out, state, value),
        });
        // As in Python, none cannot be iterated over, and strings and mappings have a length and items.
        env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
        env.add_test("sequence", |value: &Value| {
            matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
        });
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
        let mut template = Self {
            env,
            special_tokens,
            has_generation_marks: instrumented.has_generation_marks,
            flattens_parts: false,
            moves_thinking: false,
            fault: OnceLock::new(),
        };
        template.flattens_parts = !template.reads_parts();
        template.moves_thinking = template.leaves_thinking_in_the_answer();
        Ok(template)
    }

    /// Returns whether the template takes content that is a list of parts. One that prints the list, or fails
    /// on it, reads content as text only.
    fn reads_parts(&self) -> bool {
        let parts = ["Alpha one", "beta two"];
        let content = Content::Parts(parts.iter().map(|part| (*part).into()).collect());
        let message = Message { content, ..Message::text("user", "") };
        let chat = Chat { messages: vec![message, Message::text("assistant", "Answer")], tools: None };
        let Ok(Rendered { text, .. }) = self.render(&chat, Call::default()) else { return false };
        let has_all = parts.iter().all(|part| text.contains(part));
        has_all && !text.contains("'text'") && !text.contains("\"text\"")
    }

    /// Returns whether the template writes the reasoning of a message into a think block, but does not look
    /// for it in the content.
    fn leaves_thinking_in_the_answer(&self) -> bool {
        let text_of = |answer: Message<'_>| {
            let chat = Chat { messages: vec![Message::text("user", "Question"), answer], tools: None };
            self.render(&chat, Call::default()).ok().map(|rendered| rendered.text)
        };
        let inline = text_of(Message::text("assistant", "<think>\nReasoning\n</think>\n\nAnswer"));
        let apart = text_of(Message {
            reasoning_content: Some("Reasoning".into()),
            ..Message::text("assistant", "Answer")
        });
        apart.is_some_and(|text| text.contains("Reasoning") && inline.as_ref() != Some(&text))
    }

    /// Returns why the template must not be used any more, whatever conversation comes next.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.fault.get().map(String::as_str)
    }

    /// Returns whether the template reads a variable of this name.
    pub(crate) fn reads(&self, name: &str) -> bool {
        let source = if self.has_generation_marks { TRACED } else { PLAIN };
        self.env.get_template(source).is_ok_and(|template| {
            template.undeclared_variables(false).contains(name) || is_set_from_itself(template.source(), name)
        })
    }

    /// Returns whether a variable of this name is a special token.
    pub(crate) fn is_special_token(&self, name: &str) -> bool {
        self.special_tokens.iter().any(|(token, _)| token == name)
    }

    /// Renders a conversation and reports the ranges of its messages.
    pub(crate) fn render(&self, chat: &Chat<'_>, call: Call<'_>) -> Result<Rendered, Error> {
        self.render_as(TRACED, chat, call)
    }

    /// Returns the text of the original template, to compare with that of [`render`](Self::render). Returns
    /// `None` for templates with generation tags, which only transformers can render unchanged.
    pub(crate) fn render_untouched(&self, chat: &Chat<'_>, call: Call<'_>) -> Option<Result<String, Error>> {
        (!self.has_generation_marks).then(|| self.render_as(PLAIN, chat, call).map(|r| r.text))
    }

    fn render_as(&self, name: &str, chat: &Chat<'_>, call: Call<'_>) -> Result<Rendered, Error> {
        // OpenAI writes arguments as a string of JSON. vLLM gives every template the object
        // (`_postprocess_messages` in chat_utils.py), so a template that only takes the string is the
        // exception.
        match self.render_once(name, chat, call, Arguments::Parsed) {
            Err(e) if self.fault().is_none() && chat.messages.iter().any(|m| m.tool_calls.is_some()) => {
                let as_written = self.render_once(name, chat, call, Arguments::AsWritten);
                as_written.map_err(|other| if is_refusal(&other) { other } else { e })
            }
            result => result,
        }
    }

    fn render_once(
        &self,
        name: &str,
        chat: &Chat<'_>,
        call: Call<'_>,
        arguments: Arguments,
    ) -> Result<Rendered, Error> {
        if let Some(fault) = self.fault() {
            return Err(Error::new(ErrorKind::InvalidOperation, fault.to_owned()));
        }
        let trace = Arc::new(Trace::default());
        let messages: Value = chat
            .messages
            .iter()
            .enumerate()
            .map(|(index, message)| {
                let fields = self.fields(message, arguments)?;
                Ok(Value::from_object(TracedMessage { index, fields, trace: trace.clone() }))
            })
            .collect::<Result<Vec<_>, Error>>()?
            .into();
        let tools = match &chat.tools {
            Some(tools) => parsed(tools)?,
            None => Value::from(()),
        };
        let context = vec![
            ("messages", messages),
            ("tools", tools),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(call.add_generation_prompt)),
            (instrument::TRACE, Value::from_object(TraceValue(trace.clone()))),
        ];
        let named = self.special_tokens.iter().chain(call.kwargs);
        let named = named.map(|(name, value)| (name.as_str(), value.clone()));
        let context = Value::from_pairs(named.chain(context));
        let expected: usize = chat.messages.iter().flat_map(Message::texts).map(|t| t.len() + 64).sum();
        let most_bytes = WRITTEN_BESIDES.saturating_add(WRITTEN_PER_BYTE.saturating_mul(chat.bytes()));
        let mut sheet = Sheet { text: Vec::with_capacity(expected), most_bytes, is_full: false, trace };
        let done = self.env.get_template(name)?.render_captured_to(context, &mut sheet).map(drop);
        done.map_err(|error| self.judged(error, &sheet))?;
        let spans = sheet.trace.spans();
        let text = String::from_utf8(sheet.text)
            .map_err(|e| Error::new(ErrorKind::WriteFailure, "not UTF-8").with_source(e))?;
        Ok(Rendered { text, messages: spans.messages, generated: spans.generated })
    }

    /// Gives the template up if it did not end, and returns the error in words.
    fn judged(&self, error: Error, sheet: &Sheet) -> Error {
        let why = if sheet.is_full {
            format!("it writes more than {} bytes for one conversation", count(sheet.most_bytes as u64))
        } else if is_out_of_fuel(&error) {
            format!("it takes more than {} steps for one conversation", count(MOST_INSTRUCTIONS))
        } else {
            return error;
        };
        Error::new(ErrorKind::InvalidOperation, self.fault.get_or_init(|| why).clone())
    }

    /// Returns the fields of a message as the template reads them.
    fn fields(
        &self,
        message: &Message<'_>,
        arguments: Arguments,
    ) -> Result<Vec<(&'static str, Value)>, Error> {
        let mut fields = vec![("role", Value::from(&*message.role))];
        let inline = message.inline_thinking().filter(|_| self.moves_thinking);
        match (&message.content, inline) {
            (_, Some((_, answer))) => fields.push(("content", Value::from(answer))),
            // vLLM gives templates an empty text or list for content that is null or absent.
            (Content::Absent | Content::Null, _) if self.flattens_parts => {
                fields.push(("content", Value::from("")));
            }
            (Content::Absent | Content::Null, _) => {
                fields.push(("content", Value::from(Vec::<Value>::new())));
            }
            (Content::Text(text), _) => fields.push(("content", Value::from(&**text))),
            // Joined as vLLM joins the parts for templates that read content as text, and those of tools.
            (Content::Parts(parts), _) if self.flattens_parts || message.role == "tool" => {
                fields.push(("content", Value::from(parts.join("\n"))));
            }
            (Content::Parts(parts), _) => {
                let parts = parts.iter().map(|text| {
                    Value::from_pairs([("type", Value::from("text")), ("text", Value::from(&**text))])
                });
                fields.push(("content", parts.collect()));
            }
        }
        let reasoning = inline.map(|(thought, _)| thought).or(message.reasoning_content.as_deref());
        // Servers and templates have three names for it.
        let texts = [
            ("reasoning_content", reasoning),
            ("reasoning", reasoning),
            ("thinking", reasoning),
            ("name", message.name.as_deref()),
            ("tool_call_id", message.tool_call_id.as_deref()),
        ];
        fields.extend(texts.into_iter().filter_map(|(name, text)| Some((name, Value::from(text?)))));
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

fn is_out_of_fuel(error: &Error) -> bool {
    let mut causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.any(|cause| cause.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel))
}

/// Returns the message of a template error: the template's own text if it raised the error.
pub(crate) fn error_text(error: &Error) -> String {
    match error.detail() {
        Some(detail) if is_refusal(error) => quoted(detail),
        Some(detail) => match error.line() {
            Some(line) => format!("{} (line {line} of the template)", quoted(detail)),
            None => quoted(detail),
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

fn with_parsed_arguments(calls: &Json<'_>) -> Result<Value, Error> {
    let mut tree: serde_json::Value = serde_json::from_str(calls.get())
        .map_err(|e| Error::new(ErrorKind::CannotDeserialize, "not JSON").with_source(e))?;
    for call in tree.as_array_mut().into_iter().flatten() {
        let holder = match call.get_mut("function") {
            Some(function) => function,
            None => call,
        };
        let Some(holder) = holder.as_object_mut() else { continue };
        let arguments = holder.entry("arguments").or_insert(serde_json::Value::Null);
        let object = match &*arguments {
            serde_json::Value::Null => Some(serde_json::json!({})),
            serde_json::Value::String(text) if text.trim().is_empty() => Some(serde_json::json!({})),
            serde_json::Value::String(text) => serde_json::from_str(text).ok(),
            _ => None,
        };
        if let Some(object) = object {
            *arguments = object;
        }
    }
    Ok(template_value(&tree))
}

/// Returns whether a template has a tag like `{% set x = x | default(1) %}`, which also reads the variable.
/// minijinja does not count such a variable as one that the template reads.
fn is_set_from_itself(source: &str, name: &str) -> bool {
    source.split("{%").skip(1).any(|rest| {
        let tag = rest.split("%}").next().unwrap_or_default().trim_start_matches(['-', '+']).trim_start();
        let Some((target, value)) = tag.strip_prefix("set").and_then(|set| set.split_once('=')) else {
            return false;
        };
        let is_name = |word: &str| word == name;
        target.trim() == name && value.split(|c: char| !c.is_alphanumeric() && c != '_').any(is_name)
    })
}
