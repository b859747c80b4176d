//! Parses a line of JSON into a [`Conversation`], or returns the reason why it cannot.
//!
//! A valid line is read once, with borrowed strings, and checked completely: the syntax of every value, the
//! types of known fields, roles, contents. Unknown fields are skipped, but must be valid JSON. A line that
//! fails is read a second time by [`explain`](crate::explain), which can take the time to find the cause.
//!
//! Here are the lines of each format. `turn` makes messages of their turns, and `fields` reads values that
//! may have more than one type.

mod few;
mod fields;
mod turn;

use few::Few;
use serde::Deserialize;
use turn::{Names, TextOrTurns, Turn, turns};

use crate::conversation::{Chat, Content, Conversation, Document, Json, MOST_MESSAGES, Message, Text};
use crate::explain;
use crate::format::Format;
use crate::json_tree;
use crate::rejection::{Kind, Rejection};

/// Parses one line. `format: None` means that the format of the file could not be detected.
pub fn parse_line(format: Option<Format>, line: &str) -> Result<Conversation<'_>, Rejection> {
    let Some(format) = format else { return Err(explain::unrecognised(line)) };
    let unreadable = |e: serde_json::Error| explain::unreadable(format, line, &e);
    match format {
        Format::Messages => {
            let line: MessagesLine = serde_json::from_str(line).map_err(unreadable)?;
            let messages = turns(line.messages, "messages", Names::OpenAi)?;
            finish("messages", messages, tools(line.tools)?)
        }
        Format::ShareGpt => {
            let line: ShareGptLine = serde_json::from_str(line).map_err(unreadable)?;
            let mut messages = turns(line.conversations, "conversations", Names::ShareGpt)?;
            if let Some(Text(system)) = line.system.filter(|s| !s.0.is_empty()) {
                messages.insert(0, Message::text("system", system));
            }
            finish("conversations", messages, tools(line.tools)?)
        }
        Format::Alpaca => {
            let line: AlpacaLine = serde_json::from_str(line).map_err(unreadable)?;
            finish("output", line.turns()?, None)
        }
        Format::PromptCompletion => {
            let line: PromptLine = serde_json::from_str(line).map_err(unreadable)?;
            line.conversation()
        }
        Format::Text => {
            let TextLine { text: Text(text) } = serde_json::from_str(line).map_err(unreadable)?;
            document("text", Document { text, ..Document::default() })
        }
    }
}

/// Reads a section of a text, whose first `before` bytes are the end of the section before it.
pub(crate) fn section(text: &str, before: usize, is_last: bool) -> Result<Conversation<'_>, Rejection> {
    let (before, text) = text.split_at(text.floor_char_boundary(before));
    document("", Document { before: before.into(), text: text.into(), goes_on: !is_last })
}

fn document<'a>(field: &str, document: Document<'a>) -> Result<Conversation<'a>, Rejection> {
    // A long text comes in sections. As long as there was nothing before one, it may be the whole text.
    if document.before.trim().is_empty() && document.text.trim().is_empty() {
        let reason = if document.text.is_empty() { "empty" } else { "nothing but white space" };
        return Err(Rejection::new(Kind::Empty, field, reason, "Remove the document, or give it some text"));
    }
    Ok(Conversation::Document(document))
}

#[derive(Deserialize)]
struct TextLine<'a> {
    #[serde(borrow)]
    text: Text<'a>,
}

#[derive(Deserialize)]
struct MessagesLine<'a> {
    #[serde(borrow)]
    messages: Few<Turn<'a>>,
    #[serde(borrow)]
    tools: Option<Json<'a>>,
}

#[derive(Deserialize)]
struct ShareGptLine<'a> {
    #[serde(borrow)]
    conversations: Few<Turn<'a>>,
    #[serde(borrow)]
    system: Option<Text<'a>>,
    #[serde(borrow)]
    tools: Option<Json<'a>>,
}

#[derive(Deserialize)]
struct AlpacaLine<'a> {
    #[serde(borrow)]
    instruction: Text<'a>,
    #[serde(borrow)]
    input: Option<Text<'a>>,
    #[serde(borrow)]
    output: Text<'a>,
    #[serde(borrow)]
    system: Option<Text<'a>>,
    #[serde(borrow)]
    history: Option<Few<(Text<'a>, Text<'a>)>>,
}

#[derive(Deserialize)]
struct PromptLine<'a> {
    #[serde(borrow)]
    prompt: TextOrTurns<'a>,
    #[serde(borrow)]
    completion: TextOrTurns<'a>,
    #[serde(borrow)]
    tools: Option<Json<'a>>,
}

/// Reads tools from a list, or from a string with the list, as in some data sets.
fn tools(tools: Option<Json<'_>>) -> Result<Option<Json<'_>>, Rejection> {
    let wrong = |reason: &str| {
        Rejection::new(Kind::WrongType, "tools", reason, "Write tools as a list of JSON schema objects")
    };
    let Some(tools) = tools else { return Ok(None) };
    if tools.get().starts_with('"') {
        let text: String = serde_json::from_str(tools.get()).map_err(|_| wrong("unreadable"))?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        if json_tree::is_too_large([&*text]) {
            return Err(explain::too_much_json("tools"));
        }
        return match serde_json::from_str(&text) {
            Ok(value @ serde_json::Value::Array(_)) => Ok(Some(Json::from_value(&value))),
            _ => Err(wrong("a string that does not hold a JSON list")),
        };
    }
    match tools.get().starts_with('[') {
        true if tools.get()[1..].trim_start() == "]" => Ok(None),
        true => Ok(Some(tools)),
        false => Err(wrong("not a list")),
    }
}

fn finish<'a>(
    field: &str,
    messages: Vec<Message<'a>>,
    tools: Option<Json<'a>>,
) -> Result<Conversation<'a>, Rejection> {
    if messages.is_empty() {
        return Err(Rejection::new(
            Kind::Empty,
            field,
            "empty list",
            "Remove the line, or add a user and an assistant turn",
        ));
    }
    if messages.len() > MOST_MESSAGES {
        return Err(explain::too_many_messages(field, messages.len()));
    }
    let parts = messages.iter().map(|message| match &message.content {
        Content::Parts(parts) => parts.len(),
        _ => 0,
    });
    let parts: usize = parts.sum();
    if parts > MOST_MESSAGES {
        return Err(explain::too_many_parts(field, parts));
    }
    let calls = messages.iter().filter_map(|message| message.tool_calls.as_ref());
    if json_tree::is_too_large(calls.chain(&tools).map(Json::get)) {
        let tools_alone = json_tree::is_too_large(tools.iter().map(Json::get));
        return Err(explain::too_much_json(if tools_alone { "tools" } else { field }));
    }
    if !messages.iter().any(|m| m.role == "assistant" && !m.untrained) {
        return Err(Rejection::new(
            Kind::NothingToTrain,
            field,
            "no assistant turn to train on",
            "Add the answer as a turn with role \"assistant\"",
        ));
    }
    Ok(Conversation::Chat(Chat { messages, tools }))
}

impl<'a> AlpacaLine<'a> {
    fn turns(self) -> Result<Vec<Message<'a>>, Rejection> {
        // With the question and its answer.
        let count = self.history.as_ref().map_or(0, |history| 2 * history.count + 2);
        if count > MOST_MESSAGES {
            return Err(explain::too_many_messages("history", count));
        }
        let mut messages = Vec::with_capacity(3);
        if let Some(Text(system)) = self.system.filter(|s| !s.0.is_empty()) {
            messages.push(Message::text("system", system));
        }
        for (Text(question), Text(answer)) in self.history.into_iter().flat_map(|history| history.first) {
            messages.push(Message::text("user", question));
            messages.push(Message::text("assistant", answer));
        }
        let question = match self.input {
            Some(Text(input)) if !input.is_empty() => format!("{}\n{input}", self.instruction.0).into(),
            _ => self.instruction.0,
        };
        messages.push(Message::text("user", question));
        messages.push(Message::text("assistant", self.output.0));
        Ok(messages)
    }
}

impl<'a> PromptLine<'a> {
    fn conversation(self) -> Result<Conversation<'a>, Rejection> {
        match (self.prompt, self.completion) {
            (TextOrTurns::Text(prompt), TextOrTurns::Text(completion)) => {
                if completion.is_empty() {
                    return Err(Rejection::new(
                        Kind::NothingToTrain,
                        "completion",
                        "empty",
                        "Write the text to train on",
                    ));
                }
                Ok(Conversation::Completion { prompt, completion })
            }
            (TextOrTurns::Turns(prompt), TextOrTurns::Turns(completion)) => {
                let mut messages = turns(prompt, "prompt", Names::OpenAi)?;
                // The prompt is context, including its assistant turns.
                messages.iter_mut().for_each(|m| m.untrained = true);
                messages.extend(turns(completion, "completion", Names::OpenAi)?);
                finish("completion", messages, tools(self.tools)?)
            }
            _ => Err(Rejection::new(
                Kind::WrongType,
                "completion",
                "prompt and completion are not of the same type",
                "Write both as strings, or both as lists of messages",
            )),
        }
    }
}
