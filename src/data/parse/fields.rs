//! Fields that lines write with values of more than one type, as serde reads them.
//!
//! Enters: a value of any JSON type. Leaves: the value as borrowed text, or an error of serde. This file must
//! not know which field of which format it reads.

use std::borrow::Cow;

use serde::de::{self, IgnoredAny};
use serde::{Deserialize, Deserializer};

use crate::conversation::{Content, Text};

/// The `content` of a turn.
#[derive(Default)]
pub(super) struct ContentField<'a>(pub(super) Content<'a>);

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

/// A field that is used when it is a string and ignored when it has another type.
#[derive(Default)]
pub(super) struct IfText<'a>(pub(super) Option<Cow<'a, str>>);

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
