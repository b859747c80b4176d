//! Reads the value of an answer from TOML and from plain text, and writes it so that reading returns the same
//! value.
//!
//! Variables, flags and input lines on a screen contain plain text. A list of paths is written there as in
//! TOML, `["a.jsonl", "b.jsonl"]`; a single path needs no brackets.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sparktune_base::field_map::FieldMap;

use crate::setting::{Kind, digits};

/// A type of an answer's value.
pub(crate) trait Value: Sized + PartialEq {
    /// The kind of the value.
    const KIND: Kind;
    /// Reads a TOML value of the right type.
    fn from_toml(value: &toml::Value) -> Option<Self>;
    /// Reads plain text.
    fn from_text(text: &str) -> Option<Self>;
    /// Writes a TOML value. The caller checks that [`from_toml`](Self::from_toml) reads it back.
    fn to_toml(&self) -> Option<toml::Value>;
    /// Writes plain text. The caller checks that [`from_text`](Self::from_text) reads it back.
    fn to_text(&self) -> Option<String>;

    /// Reads the words after a flag: a single one, except for types with several values.
    fn from_words(words: &[&str]) -> Option<Self> {
        match words {
            [text] => Self::from_text(text),
            _ => None,
        }
    }

    /// Writes words that [`from_words`](Self::from_words) reads.
    fn to_words(&self) -> Option<Vec<String>> {
        text_of(self).map(|text| vec![text])
    }

    /// Returns the value as a number, if it is one.
    fn number(&self) -> Option<f64> {
        None
    }

    /// As paths, where it has any.
    fn paths(&self) -> Vec<&Path> {
        Vec::new()
    }
}

/// Returns the TOML value that reads back as this one, or `None` if TOML cannot represent it (a path that is
/// not UTF-8).
pub(crate) fn written<T: Value>(value: &T) -> Option<toml::Value> {
    value.to_toml().filter(|toml| T::from_toml(toml).as_ref() == Some(value))
}

/// Returns the text that reads back as this value, or `None` if there is none (a path that is not UTF-8).
pub(crate) fn text_of<T: Value>(value: &T) -> Option<String> {
    value.to_text().filter(|text| T::from_text(text).as_ref() == Some(value))
}

impl Value for String {
    const KIND: Kind = Kind::Text;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        Self::from_text(value.as_str()?)
    }

    fn from_text(text: &str) -> Option<Self> {
        (!text.trim().is_empty()).then(|| text.to_owned())
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(self.as_str().into())
    }

    fn to_text(&self) -> Option<String> {
        Some(self.clone())
    }
}

impl Value for PathBuf {
    const KIND: Kind = Kind::Path;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        Self::from_text(value.as_str()?)
    }

    fn from_text(text: &str) -> Option<Self> {
        String::from_text(text).map(Self::from)
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(self.to_str()?.into())
    }

    fn to_text(&self) -> Option<String> {
        self.to_str().map(str::to_owned)
    }

    fn paths(&self) -> Vec<&Path> {
        vec![self.as_path()]
    }
}

impl Value for Vec<PathBuf> {
    const KIND: Kind = Kind::Paths;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        match value {
            toml::Value::Array(paths) if !paths.is_empty() => paths.iter().map(PathBuf::from_toml).collect(),
            one => PathBuf::from_toml(one).map(|path| vec![path]),
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        listed(text).or_else(|| PathBuf::from_text(text).map(|path| vec![path]))
    }

    fn to_toml(&self) -> Option<toml::Value> {
        self.iter().map(Value::to_toml).collect::<Option<Vec<_>>>().map(toml::Value::Array)
    }

    fn to_text(&self) -> Option<String> {
        match self.as_slice() {
            [path] if path.to_str().is_some_and(|text| listed(text).is_none()) => path.to_text(),
            _ => Some(self.to_toml()?.to_string()),
        }
    }

    /// Each word is a path, even if it begins with a bracket.
    fn from_words(words: &[&str]) -> Option<Self> {
        let paths: Vec<PathBuf> = words.iter().map(|word| PathBuf::from_text(word)).collect::<Option<_>>()?;
        (!paths.is_empty()).then_some(paths)
    }

    fn to_words(&self) -> Option<Vec<String>> {
        self.iter().map(text_of).collect()
    }

    fn paths(&self) -> Vec<&Path> {
        self.iter().map(PathBuf::as_path).collect()
    }
}

/// Reads a list of paths in TOML's brackets. A file whose name looks like such a list has to be written as a
/// list of one.
fn listed(text: &str) -> Option<Vec<PathBuf>> {
    if !text.trim_start().starts_with('[') {
        return None;
    }
    // `toml::Value` parses whole documents, so the list is parsed as one of its values.
    let document: toml::Table = format!("list = {text}").parse().ok()?;
    match document.get("list")? {
        list @ toml::Value::Array(_) if document.len() == 1 => Vec::from_toml(list),
        _ => None,
    }
}

impl Value for Vec<String> {
    const KIND: Kind = Kind::Names;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        match value {
            toml::Value::Array(names) if !names.is_empty() => names
                .iter()
                .map(|name| Self::from_text(name.as_str()?))
                .collect::<Option<Vec<_>>>()
                .map(|all| all.concat()),
            one => Self::from_text(one.as_str()?),
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        let names: Vec<&str> = text.split(',').map(str::trim).collect();
        let are_names = names.iter().all(|name| !name.is_empty());
        are_names.then(|| names.into_iter().map(str::to_owned).collect())
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(toml::Value::Array(self.iter().map(|name| name.as_str().into()).collect()))
    }

    fn to_text(&self) -> Option<String> {
        Some(self.join(","))
    }

    fn from_words(words: &[&str]) -> Option<Self> {
        Self::from_text(&words.join(","))
    }
}

/// Texts of the user, each as it was given, commas and all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Texts(pub Vec<String>);

impl Texts {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Value for Texts {
    const KIND: Kind = Kind::Texts;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        match value {
            toml::Value::Array(texts) if !texts.is_empty() => {
                texts.iter().map(String::from_toml).collect::<Option<_>>().map(Self)
            }
            one => String::from_toml(one).map(|text| Self(vec![text])),
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        let listed = text.trim_start().starts_with('[').then(|| format!("list = {text}").parse().ok());
        let list = listed.flatten().and_then(|document: toml::Table| {
            document
                .get("list")
                .filter(|list| document.len() == 1 && list.is_array())
                .and_then(Self::from_toml)
        });
        list.or_else(|| String::from_text(text).map(|text| Self(vec![text])))
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(toml::Value::Array(self.0.iter().map(|text| text.as_str().into()).collect()))
    }

    fn to_text(&self) -> Option<String> {
        match &self.0[..] {
            [one] if Self::from_text(one).as_ref() == Some(self) => Some(one.clone()),
            _ => self.to_toml().map(|list| list.to_string()),
        }
    }

    fn from_words(words: &[&str]) -> Option<Self> {
        let texts: Option<Vec<String>> = words.iter().map(|word| String::from_text(word)).collect();
        texts.filter(|texts| !texts.is_empty()).map(Self)
    }

    fn to_words(&self) -> Option<Vec<String>> {
        Some(self.0.clone())
    }
}

impl Value for FieldMap {
    const KIND: Kind = Kind::Map;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        Self::from_text(value.as_str()?)
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(self.to_string().into())
    }

    fn to_text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for bool {
    const KIND: Kind = Kind::Switch;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        value.as_bool()
    }

    fn from_text(text: &str) -> Option<Self> {
        match text.trim() {
            "true" | "yes" | "on" | "1" => Some(true),
            "false" | "no" | "off" | "0" => Some(false),
            _ => None,
        }
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some((*self).into())
    }

    fn to_text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for u32 {
    const KIND: Kind = Kind::Whole;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        value.as_integer()?.try_into().ok()
    }

    fn from_text(text: &str) -> Option<Self> {
        digits(text)?.parse().ok()
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some((*self).into())
    }

    fn to_text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn number(&self) -> Option<f64> {
        Some(f64::from(*self))
    }
}

impl Value for u64 {
    const KIND: Kind = Kind::Whole;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        value.as_integer()?.try_into().ok()
    }

    fn from_text(text: &str) -> Option<Self> {
        // TOML integers end at i64::MAX, and the plan must be writable.
        digits(text)?.parse().ok().filter(|n| *n <= i64::MAX as Self)
    }

    fn to_toml(&self) -> Option<toml::Value> {
        i64::try_from(*self).ok().map(toml::Value::Integer)
    }

    fn to_text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn number(&self) -> Option<f64> {
        Some(*self as f64)
    }
}

impl Value for f64 {
    const KIND: Kind = Kind::Number;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        value.as_float().or_else(|| value.as_integer().map(|n| n as Self)).filter(|x| x.is_finite())
    }

    fn from_text(text: &str) -> Option<Self> {
        text.trim().parse().ok().filter(|x: &Self| x.is_finite())
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some((*self).into())
    }

    fn to_text(&self) -> Option<String> {
        // Both forms are the shortest that read back the same; a learning rate is more readable as 2e-4.
        let scientific = *self != 0.0 && !(1e-2..1e15).contains(&self.abs());
        Some(if scientific { format!("{self:e}") } else { self.to_string() })
    }

    fn number(&self) -> Option<f64> {
        Some(*self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_list_of_paths_is_read_from_brackets_and_a_path_in_brackets_stays_a_path() {
        let read = |text: &str| Vec::<PathBuf>::from_text(text);
        assert_eq!(read("my data.jsonl"), Some(vec!["my data.jsonl".into()]));
        assert_eq!(
            read(r#"["a.jsonl", 'b "c".jsonl']"#),
            Some(vec!["a.jsonl".into(), r#"b "c".jsonl"#.into()])
        );
        assert_eq!(read("[2024] chats.jsonl"), Some(vec!["[2024] chats.jsonl".into()]));
        assert_eq!(read("[1, 2]"), Some(vec!["[1, 2]".into()]), "numbers are no paths, so this is a name");
        assert_eq!(read("[]\nx = 1"), Some(vec!["[]\nx = 1".into()]));
        assert_eq!(read("  "), None);
        let named_like_a_list = vec![PathBuf::from(r#"["a"]"#)];
        assert_eq!(read(&text_of(&named_like_a_list).unwrap()), Some(named_like_a_list));
    }

    #[test]
    fn names_are_read_from_one_text_with_commas_and_from_a_list() {
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(Vec::<String>::from_text("a, b_c"), names(&["a", "b_c"]));
        assert_eq!(Vec::<String>::from_toml(&toml::Value::from(vec!["a", "b"])), names(&["a", "b"]));
        assert_eq!(Vec::<String>::from_text("a,,b"), None);
        assert_eq!(Vec::<String>::from_text(" "), None);
    }

    #[test]
    fn texts_keep_their_commas_and_are_read_back_as_they_were_written() {
        let one = Texts(vec!["Hello, who are you?".into()]);
        assert_eq!(Texts::from_text("Hello, who are you?"), Some(one.clone()));
        assert_eq!(Texts::from_words(&["Hello, who are you?"]), Some(one));
        let two = Texts(vec!["a, b".into(), "[\"c\"]".into()]);
        assert_eq!(Texts::from_words(&["a, b", "[\"c\"]"]), Some(two.clone()));
        for texts in [two, Texts(vec!["[\"c\"]".into()]), Texts(vec!["[x] or \"y\"\n".into()])] {
            assert_eq!(Texts::from_text(&text_of(&texts).unwrap()), Some(texts.clone()));
            assert_eq!(Texts::from_toml(&written(&texts).unwrap()), Some(texts));
        }
        assert_eq!((Texts::from_text(" "), Texts::from_words(&["a", ""])), (None, None));
    }

    #[test]
    fn digits_are_separated_in_groups_of_three_or_not_at_all() {
        for (text, number) in [("5376", 5376), (" 5,376 ", 5376), ("5_376", 5376), ("1,048,576", 1_048_576)] {
            assert_eq!(
                (u32::from_text(text), u64::from_text(text)),
                (Some(number), Some(number.into())),
                "{text}"
            );
        }
        for text in [
            "1,5",
            "0,500",
            "1,50,000",
            "1,0000",
            "1000,000",
            "1,000_000",
            ",500",
            "500,",
            "1,,000",
            "-1,000",
        ] {
            assert_eq!((u32::from_text(text), u64::from_text(text)), (None, None), "{text}");
        }
        assert_eq!(f64::from_text("0,5"), None);
    }

    #[test]
    fn what_cannot_be_read_back_is_not_written() {
        use std::os::unix::ffi::OsStringExt;
        let path = PathBuf::from(std::ffi::OsString::from_vec(b"caf\xe9.jsonl".to_vec()));
        assert_eq!((written(&path), text_of(&path)), (None, None));
        assert_eq!((written(&vec![path.clone()]), text_of(&vec![path])), (None, None));
        assert_eq!((written(&f64::NAN), text_of(&f64::INFINITY)), (None, None));
        assert_eq!((written(&String::new()), written(&Vec::<PathBuf>::new())), (None, None));
        assert_eq!(written(&u64::MAX), None);
    }

    proptest! {
        #[test]
        fn text_and_toml_bring_back_what_was_said(
            text in any::<String>(), paths in prop::collection::vec(any::<String>(), 1..4), number in any::<f64>(),
        ) {
            let same = |text: &String| !text.trim().is_empty();
            prop_assert_eq!(text_of(&text).is_some(), same(&text));
            let paths: Vec<PathBuf> = paths.iter().filter(|path| same(path)).map(PathBuf::from).collect();
            prop_assert_eq!(text_of(&paths).is_some(), !paths.is_empty());
            prop_assert_eq!(written(&paths).is_some(), !paths.is_empty());
            prop_assert_eq!(text_of(&number).is_some(), number.is_finite());
        }
    }
}
