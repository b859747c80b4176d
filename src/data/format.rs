//! The five formats of training examples, and how to detect them.

use std::borrow::Cow;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

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

/// The fields by which formats are known.
const KEYS: [&str; 6] = ["messages", "conversations", "instruction", "prompt", "completion", "text"];

/// Which of [`KEYS`] a line has with a value that is not null. A field may come twice: whoever reads the line
/// says so.
struct Keys([bool; KEYS.len()]);

impl Keys {
    fn has(&self, field: &str) -> bool {
        KEYS.iter().zip(self.0).any(|(key, is_there)| *key == field && is_there)
    }
}

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfObject;
        impl<'de> Visitor<'de> for OfObject {
            type Value = Keys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = [false; KEYS.len()];
                while let Some(Name(key)) = map.next_key()? {
                    let is_there = map.next_value::<Option<IgnoredAny>>()?.is_some();
                    if let Some(at) = KEYS.iter().position(|known| **known == *key) {
                        keys[at] |= is_there;
                    }
                }
                Ok(Keys(keys))
            }
        }
        deserializer.deserialize_map(OfObject)
    }
}

/// The name of a field, borrowed where it has no escapes.
#[derive(Deserialize)]
pub(crate) struct Name<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

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
        if keys.has("messages") {
            Some(Self::Messages)
        } else if keys.has("conversations") {
            Some(Self::ShareGpt)
        } else if keys.has("instruction") {
            Some(Self::Alpaca)
        } else if keys.has("prompt") && keys.has("completion") {
            Some(Self::PromptCompletion)
        } else if keys.has("text") {
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
