//! The five formats of training examples, and how to detect them.

use std::fmt;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// The format of the lines of a file, which is detected or given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// The format `{"messages": [{"role", "content"}], "tools"?}`.
    Messages,
    /// The format `{"conversations": [{"from", "value"}], "system"?, "tools"?}`.
    #[serde(rename = "sharegpt")]
    ShareGpt,
    /// The format `{"instruction", "input"?, "output", "system"?, "history"?}`.
    Alpaca,
    /// The format `{"prompt", "completion"}`, with two texts or two lists of messages.
    PromptCompletion,
    /// The format `{"text"}`, and files of raw text.
    Text,
}

/// The fields that identify a format. Their values are ignored.
#[derive(Deserialize)]
struct Keys {
    messages: Option<IgnoredAny>,
    conversations: Option<IgnoredAny>,
    instruction: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
    completion: Option<IgnoredAny>,
    text: Option<IgnoredAny>,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 5] =
        [Self::Messages, Self::ShareGpt, Self::Alpaca, Self::PromptCompletion, Self::Text];

    /// Returns the format of the first line that has one.
    pub fn detect<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        lines.filter(|l| !l.trim_ascii().is_empty()).find_map(Self::of_line)
    }

    fn of_line(line: &[u8]) -> Option<Self> {
        let keys: Keys = serde_json::from_slice(line).ok()?;
        if keys.messages.is_some() {
            Some(Self::Messages)
        } else if keys.conversations.is_some() {
            Some(Self::ShareGpt)
        } else if keys.instruction.is_some() {
            Some(Self::Alpaca)
        } else if keys.prompt.is_some() && keys.completion.is_some() {
            Some(Self::PromptCompletion)
        } else if keys.text.is_some() {
            Some(Self::Text)
        } else {
            None
        }
    }

    /// Returns the name shown to users. Reports in JSON have `prompt_completion`, as in the first version.
    pub fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::ShareGpt => "sharegpt",
            Self::Alpaca => "alpaca",
            Self::PromptCompletion => "prompt-completion",
            Self::Text => "text",
        }
    }

    /// Returns the fields that a line must have.
    pub(crate) fn required(self) -> &'static [&'static str] {
        match self {
            Self::Messages => &["messages"],
            Self::ShareGpt => &["conversations"],
            Self::Alpaca => &["instruction", "output"],
            Self::PromptCompletion => &["prompt", "completion"],
            Self::Text => &["text"],
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
