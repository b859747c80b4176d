//! A turn of a chat as lines write it, with either naming of its fields, becomes a [`Message`].
//!
//! Enters: the turns of a line, which serde has read. Leaves: messages, or the rejection with the place of
//! the turn that causes it. This file must not know the fields of a line outside its turns.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, de};

use super::few::Few;
use super::fields::{ContentField, IfText};
use crate::conversation::{Content, Json, MOST_MESSAGES, Message, Text};
use crate::explain;
use crate::json_tree;
use crate::rejection::{Kind, Rejection};

/// A turn with either naming: `role`/`content` or `from`/`value`.
#[derive(Deserialize)]
pub(super) struct Turn<'a> {
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
pub(super) enum Names {
    OpenAi,
    ShareGpt,
}

pub(super) fn turns<'a>(
    turns: Few<Turn<'a>>,
    list: &str,
    names: Names,
) -> Result<Vec<Message<'a>>, Rejection> {
    if turns.count > MOST_MESSAGES {
        return Err(explain::too_many_messages(list, turns.count));
    }
    turns
        .first
        .into_iter()
        .enumerate()
        .map(|(i, turn)| turn.message(names).map_err(|r| r.at(list, i)))
        .collect()
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
        let reasoning_content = reasoning(self.reasoning_content, [self.reasoning, self.thinking]);
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
            untrained: is_untrained(self.weight, &role)?,
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
        let said = match &*speaker {
            "human" | "user" => Message::text("user", value),
            "gpt" | "assistant" | "chatgpt" | "bing" | "bard" | "model" => Message::text("assistant", value),
            "system" => Message::text("system", value),
            "tool" | "observation" | "tool_response" | "function_response" => Message::text("tool", value),
            "function_call" | "tool_call" => called(&value)?,
            _ => {
                let reason = format!("unknown speaker {}", explain::quoted(&speaker));
                return Err(InTurn(Kind::UnknownRole, "from", reason, explain::SPEAKER_FIX));
            }
        };
        let is_answer = said.role == "assistant";
        // Tables give every turn every column, and write calls that are none in many ways.
        let own_calls = || calls(self.tool_calls).ok().flatten().filter(|_| is_answer);
        let reasoning_content = reasoning(self.reasoning_content, [self.reasoning, self.thinking]);
        Ok(Message {
            untrained: is_untrained(self.weight, &said.role)?,
            reasoning_content: reasoning_content.filter(|_| is_answer),
            tool_calls: said.tool_calls.or_else(own_calls),
            name: self.name.0,
            tool_call_id: self.tool_call_id.0,
            ..said
        })
    }
}

/// Returns whether a turn is context only. A weight says so in the assistant's turns alone.
fn is_untrained(weight: Option<f64>, role: &str) -> Result<bool, InTurn> {
    match weight {
        Some(weight) if role == "assistant" && weight != 0.0 && weight != 1.0 => Err(InTurn(
            Kind::WrongType,
            "weight",
            format!("{weight} is neither 0 nor 1"),
            "Write 0 for a turn that is not trained, and 1 or no weight for one that is",
        )),
        weight => Ok(weight == Some(0.0)),
    }
}

/// Returns the reasoning of a turn, which has several names.
fn reasoning<'a>(written: Option<Text<'a>>, others: [IfText<'a>; 2]) -> Option<Cow<'a, str>> {
    let mut others = others.into_iter().filter_map(|text| text.0).filter(|text| !text.is_empty());
    // An empty reasoning_content means that there is no reasoning, which differs from a missing field:
    // without the field, templates look for reasoning in the content.
    match written {
        Some(Text(text)) if text.is_empty() => others.next().or(Some(text)),
        Some(Text(text)) => Some(text),
        None => others.next(),
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
    if json_tree::is_too_large([value]) {
        let reason = json_tree::TOO_LARGE.to_owned();
        return Err(InTurn(Kind::LineTooLong, "value", reason, json_tree::TOO_LARGE_FIX));
    }
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

/// A field that is either a text or a list of turns.
pub(super) enum TextOrTurns<'a> {
    Text(Cow<'a, str>),
    Turns(Few<Turn<'a>>),
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

            fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                Few::read(list).map(TextOrTurns::Turns)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
