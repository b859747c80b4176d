//! Parses a line of JSON into a [`Conversation`], or returns the reason why it cannot.
//!
//! A valid line is read once, with borrowed strings, and checked completely: the syntax of every value, the
//! types of known fields, roles, contents. Unknown fields are skipped, but must be valid JSON. A line that
//! fails is read a second time by [`explain`](crate::explain), which can take the time to find the cause.

use std::borrow::Cow;

use serde::de::{self, IgnoredAny};
use serde::{Deserialize, Deserializer};

use crate::conversation::{Chat, Content, Conversation, Json, Message, Text};
use crate::explain;
use crate::format::Format;
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
            finish("output", line.turns(), None)
        }
        Format::PromptCompletion => {
            let line: PromptLine = serde_json::from_str(line).map_err(unreadable)?;
            line.conversation()
        }
    }
}

#[derive(Deserialize)]
struct MessagesLine<'a> {
    #[serde(borrow)]
    messages: Vec<Turn<'a>>,
    #[serde(borrow)]
    tools: Option<Json<'a>>,
}

#[derive(Deserialize)]
struct ShareGptLine<'a> {
    #[serde(borrow)]
    conversations: Vec<Turn<'a>>,
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
    history: Option<Vec<(Text<'a>, Text<'a>)>>,
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

/// A turn with either naming: `role`/`content` or `from`/`value`.
#[derive(Deserialize)]
struct Turn<'a> {
    #[serde(borrow)]
    role: Option<Text<'a>>,
    #[serde(borrow, default)]
    content: ContentField<'a>,
    #[serde(borrow, default)]
    from: IfText<'a>,
    #[serde(borrow, default)]
    value: IfText<'a>,
    #[serde(borrow)]
    reasoning_content: Option<Text<'a>>,
    #[serde(borrow, default)]
    reasoning: IfText<'a>,
    #[serde(borrow, default)]
    thinking: IfText<'a>,
    #[serde(borrow)]
    tool_calls: Option<Json<'a>>,
    #[serde(borrow, default)]
    name: IfText<'a>,
    #[serde(borrow, default)]
    tool_call_id: IfText<'a>,
    weight: Option<f64>,
}

#[derive(Clone, Copy, PartialEq)]
enum Names {
    OpenAi,
    ShareGpt,
}

fn turns<'a>(turns: Vec<Turn<'a>>, list: &str, names: Names) -> Result<Vec<Message<'a>>, Rejection> {
    turns.into_iter().enumerate().map(|(i, turn)| turn.message(names).map_err(|r| r.at(list, i))).collect()
}

/// A rejection inside a turn, before the index of the turn is known.
struct InTurn(Kind, &'static str, String, &'static str);

impl InTurn {
    fn at(self, list: &str, index: usize) -> Rejection {
        Rejection::new(self.0, format!("{list}[{index}].{}", self.1), self.2, self.3)
    }
}

impl<'a> Turn<'a> {
    fn message(self, names: Names) -> Result<Message<'a>, InTurn> {
        // Some ShareGPT files use OpenAI's names inside.
        if names == Names::ShareGpt && self.from.0.is_some() {
            return self.sharegpt();
        }
        let Some(Text(role)) = self.role else {
            return Err(match names {
                Names::OpenAi => InTurn(Kind::MissingField, "role", "missing".into(), explain::ROLE_FIX),
                Names::ShareGpt => InTurn(Kind::MissingField, "from", "missing".into(), explain::SPEAKER_FIX),
            });
        };
        if !KNOWN_ROLES.contains(&&*role) {
            let reason = format!("unknown role {}", explain::quoted(&role));
            return Err(InTurn(Kind::UnknownRole, "role", reason, explain::ROLE_FIX));
        }
        let content = self.content.0;
        let tool_calls = calls(self.tool_calls)?;
        let written = self.reasoning_content.map(|t| t.0);
        let elsewhere = || [self.reasoning.0, self.thinking.0].into_iter().flatten().find(|t| !t.is_empty());
        // An empty reasoning_content means that there is no reasoning, which differs from a missing field:
        // without the field, templates look for reasoning in the content.
        let reasoning_content = match written {
            Some(text) if text.is_empty() => elsewhere().or(Some(text)),
            Some(text) => Some(text),
            None => elsewhere(),
        };
        let has_reasoning = reasoning_content.as_ref().is_some_and(|t| !t.is_empty());
        let missing = match &content {
            Content::Absent => Some("missing"),
            Content::Null => Some("null"),
            _ => None,
        };
        let may_be_silent = role == "assistant" && (tool_calls.is_some() || has_reasoning);
        if let Some(missing) = missing.filter(|_| !may_be_silent) {
            return Err(InTurn(
                Kind::MissingField,
                "content",
                missing.into(),
                "Give the turn a content string, or remove the turn",
            ));
        }
        Ok(Message {
            untrained: self.weight == Some(0.0),
            role,
            content,
            reasoning_content,
            tool_calls,
            name: self.name.0,
            tool_call_id: self.tool_call_id.0,
        })
    }

    fn sharegpt(self) -> Result<Message<'a>, InTurn> {
        let speaker = self.from.0.unwrap_or_default();
        let Some(value) = self.value.0 else {
            return Err(InTurn(
                Kind::MissingField,
                "value",
                "missing or not a string".into(),
                "Give the turn a value string, or remove the turn",
            ));
        };
        let role = match &*speaker {
            "human" | "user" => "user",
            "gpt" | "assistant" | "chatgpt" | "bing" | "bard" | "model" => "assistant",
            "system" => "system",
            "tool" | "observation" | "tool_response" | "function_response" => "tool",
            "function_call" | "tool_call" => return called(&value),
            _ => {
                let reason = format!("unknown speaker {}", explain::quoted(&speaker));
                return Err(InTurn(Kind::UnknownRole, "from", reason, explain::SPEAKER_FIX));
            }
        };
        Ok(Message { untrained: self.weight == Some(0.0), ..Message::text(role, value) })
    }
}

const KNOWN_ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Reads a ShareGPT `function_call`, whose value is the call as JSON.
fn called<'a>(value: &str) -> Result<Message<'a>, InTurn> {
    let unreadable = |reason: String| {
        InTurn(
            Kind::WrongType,
            "value",
            reason,
            "Write the call as JSON: {\"name\": \"…\", \"arguments\": {…}}, or as a list of such objects",
        )
    };
    let call: serde_json::Value = serde_json::from_str(value)
        .map_err(|e| unreadable(format!("a function call that is not JSON ({e})")))?;
    let calls = match call {
        serde_json::Value::Array(calls) => calls,
        call => vec![call],
    };
    let calls: Vec<_> = calls
        .into_iter()
        .map(|call| {
            if call.get("name").is_some_and(|n| n.is_string()) {
                Ok(serde_json::json!({ "type": "function", "function": call }))
            } else {
                Err(unreadable("a function call without a name".into()))
            }
        })
        .collect::<Result<_, _>>()?;
    Ok(Message {
        role: "assistant".into(),
        content: Content::Text("".into()),
        tool_calls: Some(Json::from_value(&calls.into())),
        ..Message::default()
    })
}

fn calls(calls: Option<Json<'_>>) -> Result<Option<Json<'_>>, InTurn> {
    match calls {
        None => Ok(None),
        Some(calls) if calls.get().starts_with('[') => {
            let none = calls.get()[1..].trim_start() == "]";
            Ok((!none).then_some(calls))
        }
        Some(_) => Err(InTurn(
            Kind::WrongType,
            "tool_calls",
            "not a list".into(),
            "Write tool_calls as a list of {\"function\": {\"name\", \"arguments\"}}",
        )),
    }
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
    fn turns(self) -> Vec<Message<'a>> {
        let mut messages = Vec::with_capacity(3);
        if let Some(Text(system)) = self.system.filter(|s| !s.0.is_empty()) {
            messages.push(Message::text("system", system));
        }
        for (Text(question), Text(answer)) in self.history.into_iter().flatten() {
            messages.push(Message::text("user", question));
            messages.push(Message::text("assistant", answer));
        }
        let question = match self.input {
            Some(Text(input)) if !input.is_empty() => format!("{}\n{input}", self.instruction.0).into(),
            _ => self.instruction.0,
        };
        messages.push(Message::text("user", question));
        messages.push(Message::text("assistant", self.output.0));
        messages
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

/// The `content` of a turn.
#[derive(Default)]
struct ContentField<'a>(Content<'a>);

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Text<'a>>,
    #[serde(borrow)]
    text: Option<Text<'a>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for ContentField<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = ContentField<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of text parts")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(ContentField(Content::Text(Cow::Borrowed(text))))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(ContentField(Content::Text(Cow::Owned(text.to_owned()))))
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(ContentField(Content::Null))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = list.next_element::<Part<'de>>()? {
                    match (part.kind.as_ref().map(|k| &*k.0), part.text) {
                        (None | Some("text"), Some(Text(text))) => parts.push(text),
                        _ => return Err(de::Error::custom("a part that is not text")),
                    }
                }
                Ok(ContentField(Content::Parts(parts)))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

enum TextOrTurns<'a> {
    Text(Cow<'a, str>),
    Turns(Vec<Turn<'a>>),
}

impl<'de: 'a, 'a> Deserialize<'de> for TextOrTurns<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = TextOrTurns<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of messages")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(TextOrTurns::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(TextOrTurns::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut turns = Vec::new();
                while let Some(turn) = list.next_element()? {
                    turns.push(turn);
                }
                Ok(TextOrTurns::Turns(turns))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A field that is used when it is a string and ignored when it has another type.
#[derive(Default)]
struct IfText<'a>(Option<Cow<'a, str>>);

impl<'de: 'a, 'a> Deserialize<'de> for IfText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = IfText<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("any value")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(IfText(Some(Cow::Borrowed(text))))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(IfText(Some(Cow::Owned(text.to_owned()))))
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(IfText(None))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
                Ok(IfText(None))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
                Ok(IfText(None))
            }

            fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
                Ok(IfText(None))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
                Ok(IfText(None))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                de::Visitor::visit_seq(IgnoredAny, list).map(|_| IfText(None))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                de::Visitor::visit_map(IgnoredAny, map).map(|_| IfText(None))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
