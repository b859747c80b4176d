//! One example as its author wrote it: the turns, the available tools, and which turns are trained.
//!
//! Text borrows from the line where possible. Equal examples are equal and have the same hash here,
//! independent of the format of their lines.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;
use xxhash_rust::xxh3::Xxh3;

/// One training example.
#[derive(Debug, Clone, PartialEq)]
pub enum Conversation<'a> {
    /// Turns, rendered by the checkpoint's chat template.
    Chat(Chat<'a>),
    /// Plain text and its continuation, without a template.
    Completion {
        /// The text to be continued.
        prompt: Cow<'a, str>,
        /// The continuation, which is trained.
        completion: Cow<'a, str>,
    },
    /// Raw text, of which every token is trained.
    Document(Document<'a>),
}

/// Raw text: a document, or a section of a long one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Document<'a> {
    /// The end of the section before this one, of which only the last token is read. Empty at the beginning
    /// of a document.
    pub before: Cow<'a, str>,
    /// The text.
    pub text: Cow<'a, str>,
    /// Whether the document goes on after it.
    pub goes_on: bool,
}

/// The largest number of messages of a conversation. It is beyond what any model's context holds, and below
/// what chat templates, which may look at all messages for each, render in seconds.
pub(crate) const MOST_MESSAGES: usize = 20_000;

/// Turns in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chat<'a> {
    /// The turns.
    pub messages: Vec<Message<'a>>,
    /// The tools that the assistant could call, as a JSON array for the template.
    pub tools: Option<Json<'a>>,
}

/// One turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message<'a> {
    /// `system`, `user`, `assistant`, `tool`…
    pub role: Cow<'a, str>,
    /// The text of the turn.
    pub content: Content<'a>,
    /// The reasoning before the answer, if it is not part of the content.
    pub reasoning_content: Option<Cow<'a, str>>,
    /// A JSON array of tool calls, in OpenAI's form.
    pub tool_calls: Option<Json<'a>>,
    /// The name of the speaker or of the tool that answers.
    pub name: Option<Cow<'a, str>>,
    /// The id of the tool call that this turn answers.
    pub tool_call_id: Option<Cow<'a, str>>,
    /// Whether an assistant turn is context only (`"weight": 0` in OpenAI's format). Ignored for other
    /// roles.
    pub untrained: bool,
}

/// The content of a turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Content<'a> {
    /// The field is missing.
    #[default]
    Absent,
    /// `null`, which OpenAI writes next to tool calls.
    Null,
    /// Text.
    Text(Cow<'a, str>),
    /// A list of text parts.
    Parts(Vec<Cow<'a, str>>),
}

/// A piece of valid JSON, kept as it was written and not parsed further.
#[derive(Debug, Clone, PartialEq)]
pub struct Json<'a>(pub(crate) Cow<'a, str>);

impl Json<'_> {
    /// The JSON text.
    pub fn get(&self) -> &str {
        &self.0
    }
}

impl Json<'static> {
    /// Writes a value as JSON.
    pub fn from_value(value: &serde_json::Value) -> Self {
        Self(Cow::Owned(value.to_string()))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Json<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(|raw| Json(Cow::Borrowed(raw.get())))
    }
}

impl<'a> Conversation<'a> {
    /// Creates a chat without tools, for previews and tests.
    pub fn chat(messages: Vec<Message<'a>>) -> Self {
        Self::Chat(Chat { messages, tools: None })
    }

    /// Returns a hash of the content alone, which is the same for every format, file and line. It identifies
    /// duplicates and determines the eval split.
    pub fn content_hash(&self) -> u64 {
        let mut hasher = Xxh3::new();
        match self {
            // A document is a completion of nothing, whichever way its line writes it.
            Self::Document(document) => {
                field(&mut hasher, b'p', &document.before);
                field(&mut hasher, b'c', &document.text);
            }
            Self::Completion { prompt, completion } => {
                field(&mut hasher, b'p', prompt);
                field(&mut hasher, b'c', completion);
            }
            Self::Chat(chat) => {
                for message in &chat.messages {
                    message.hash(&mut hasher);
                }
                if let Some(tools) = &chat.tools {
                    field(&mut hasher, b'T', tools.get());
                }
            }
        }
        hasher.digest()
    }

    /// Returns the number of bytes of text in the example, without markup.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Completion { prompt, completion } => prompt.len() + completion.len(),
            Self::Document(document) => document.text.len(),
            Self::Chat(chat) => chat.messages.iter().map(Message::text_bytes).sum(),
        }
    }

    /// Returns whether an assistant turn reasons before it answers.
    pub(crate) fn has_reasoning(&self) -> bool {
        match self {
            Self::Chat(chat) => chat.messages.iter().any(Message::has_reasoning),
            Self::Completion { .. } | Self::Document(_) => false,
        }
    }
}

impl Chat<'_> {
    /// Returns about the number of bytes of everything in it, with some for each message.
    pub(crate) fn bytes(&self) -> usize {
        let tools = self.tools.as_ref().map_or(0, |tools| tools.get().len());
        tools + self.messages.iter().map(|message| message.text_bytes() + 64).sum::<usize>()
    }

    /// Returns the number of assistant turns without text, reasoning or call.
    pub fn empty_assistant_turns(&self) -> usize {
        self.messages.iter().filter(|m| m.role == "assistant" && m.says_nothing()).count()
    }

    /// Describes an unusual order of speakers, if there is one. The template decides whether it can be
    /// rendered.
    pub fn unusual_order(&self) -> Option<&'static str> {
        let mut previous = "";
        for (i, message) in self.messages.iter().enumerate() {
            let role = &*message.role;
            match (role, previous) {
                ("system" | "developer", _) if i > 0 => return Some("a system turn that is not the first"),
                ("user", "user") => return Some("two user turns in a row"),
                ("assistant", "assistant") => return Some("two assistant turns in a row"),
                ("assistant", "" | "system" | "developer") => {
                    return Some("an assistant turn before any user turn");
                }
                ("tool" | "function", "assistant" | "tool" | "function") => {}
                ("tool" | "function", _) => return Some("a tool turn that follows no assistant turn"),
                _ => {}
            }
            previous = role;
        }
        match previous {
            "assistant" => None,
            _ => Some("a last turn that is not the assistant's"),
        }
    }
}

impl<'a> Message<'a> {
    /// Creates a turn of plain text.
    pub fn text(role: impl Into<Cow<'a, str>>, content: impl Into<Cow<'a, str>>) -> Self {
        Self { role: role.into(), content: Content::Text(content.into()), ..Self::default() }
    }

    /// Returns the pieces of text in its content.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let (one, many) = match &self.content {
            Content::Text(text) => (Some(&**text), &[][..]),
            Content::Parts(parts) => (None, &parts[..]),
            Content::Absent | Content::Null => (None, &[][..]),
        };
        one.into_iter().chain(many.iter().map(|p| &**p))
    }

    /// Returns whether it is an assistant turn that is trained.
    pub(crate) fn is_trained(&self) -> bool {
        self.role == "assistant" && !self.untrained
    }

    /// Splits an assistant's text that begins with a think block into the thought and the answer. Returns
    /// `None` if there is none, or if the reasoning is a field of its own.
    pub(crate) fn inline_thinking(&self) -> Option<(&str, &str)> {
        let Content::Text(text) = &self.content else { return None };
        if self.role != "assistant" || self.reasoning_content.is_some() {
            return None;
        }
        let (thought, answer) = text.trim_start().strip_prefix("<think>")?.split_once("</think>")?;
        Some((thought.trim_matches('\n'), answer.trim_start_matches('\n')))
    }

    /// Returns whether it is an assistant turn that reasons before it answers.
    pub(crate) fn has_reasoning(&self) -> bool {
        let thought =
            self.reasoning_content.as_deref().or(self.inline_thinking().map(|(thought, _)| thought));
        self.role == "assistant" && thought.is_some_and(|thought| !thought.trim().is_empty())
    }

    fn says_nothing(&self) -> bool {
        self.tool_calls.is_none()
            && self.reasoning_content.as_ref().is_none_or(|r| r.trim().is_empty())
            && self.texts().all(|t| t.trim().is_empty())
    }

    pub(crate) fn text_bytes(&self) -> usize {
        self.texts().map(str::len).sum::<usize>()
            + self.reasoning_content.as_ref().map_or(0, |r| r.len())
            + self.tool_calls.as_ref().map_or(0, |c| c.get().len())
    }

    fn hash(&self, hasher: &mut Xxh3) {
        field(hasher, b'r', &self.role);
        for text in self.texts() {
            field(hasher, b't', text);
        }
        let optional = [
            (b'R', self.reasoning_content.as_deref()),
            (b'C', self.tool_calls.as_ref().map(Json::get)),
            (b'n', self.name.as_deref()),
            (b'i', self.tool_call_id.as_deref()),
            (b'w', (self.untrained && self.role == "assistant").then_some("0")),
        ];
        for (tag, value) in optional {
            if let Some(value) = value {
                field(hasher, tag, value);
            }
        }
    }
}

/// Hashes tag and length before the text, so that no two different examples give the hash the same bytes.
fn field(hasher: &mut Xxh3, tag: u8, text: &str) {
    let mut head = [tag; 9];
    head[1..].copy_from_slice(&(text.len() as u64).to_le_bytes());
    hasher.update(&head);
    hasher.update(text.as_bytes());
}

/// A string that borrows from the line unless it has escapes.
pub(crate) struct Text<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}
