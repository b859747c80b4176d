//! Which columns of foreign data stand for which fields of a known format, as users write it:
//! `question=instruction,answer=output`.
//!
//! Enters: text. Leaves: pairs of a column and a field, in the order of the text. This file must not know how
//! lines are read.

use std::ffi::OsStr;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::shell::shown_word;

/// The fields that a column can stand for: those of all formats of training data.
pub const FIELDS: [&str; 11] = [
    "prompt",
    "completion",
    "text",
    "messages",
    "conversations",
    "instruction",
    "input",
    "output",
    "system",
    "history",
    "tools",
];

/// Columns by the field that each stands for. A column inside another one is written with dots: `meta.text`.
/// Several columns may stand for one field, as files with different columns need it: a line uses the first
/// that it has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct FieldMap(Vec<(String, String)>);

impl FieldMap {
    /// Creates a map from pairs of a column and a field. Returns `None` if a column has no name or cannot be
    /// written, if a field is unknown, or if a pair comes twice.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let mut map: Vec<(String, String)> = Vec::new();
        for (column, field) in pairs {
            let is_twice = map.iter().any(|(known, taken)| known == column && taken == field);
            if column.is_empty() || column != column.trim() || column.contains(',') {
                return None;
            }
            if is_twice || !FIELDS.contains(&field) {
                return None;
            }
            map.push((column.to_owned(), field.to_owned()));
        }
        Some(Self(map))
    }

    /// Returns the pairs of a column and its field.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(column, field)| (column.as_str(), field.as_str()))
    }

    /// Returns the columns that stand for a field, in words: `question or query`. `None` if there are none.
    pub fn columns_of(&self, field: &str) -> Option<String> {
        let columns: Vec<&str> =
            self.pairs().filter(|(_, name)| *name == field).map(|(column, _)| column).collect();
        (!columns.is_empty()).then(|| columns.join(" or "))
    }

    /// Returns the flag that sets this map, for a shell.
    pub fn flag(&self) -> String {
        let text = self.to_string();
        // Commas and equals signs are harmless outside braces and at other places than the first.
        let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"=,._-".contains(&byte));
        let word = if is_plain { text } else { shown_word(OsStr::new(&text)) };
        format!("--map {word}")
    }

    /// Returns whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for FieldMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (column, field)) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{column}={field}")?;
        }
        Ok(())
    }
}

impl FromStr for FieldMap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A name may contain an equals sign, a field cannot.
        let pairs = text.split(',').map(|pair| pair.rsplit_once('='));
        let pairs: Option<Vec<(&str, &str)>> =
            pairs.map(|pair| Some((pair?.0.trim(), pair?.1.trim()))).collect();
        pairs
            .and_then(Self::new)
            .ok_or_else(|| "expected pairs like question=instruction,answer=output".to_owned())
    }
}

impl From<FieldMap> for String {
    fn from(map: FieldMap) -> Self {
        map.to_string()
    }
}

impl TryFrom<String> for FieldMap {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        // An empty map is written as an empty text.
        if text.is_empty() { Ok(Self::default()) } else { text.parse() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_read_from_pairs_and_written_the_same() {
        let map: FieldMap = " question = prompt, meta.answer=completion".parse().unwrap();
        assert_eq!(map.pairs().collect::<Vec<_>>(), [("question", "prompt"), ("meta.answer", "completion")]);
        assert_eq!(map.to_string(), "question=prompt,meta.answer=completion");
        assert_eq!(serde_json::from_str::<FieldMap>(&serde_json::to_string(&map).unwrap()).unwrap(), map);
        assert_eq!(map.flag(), "--map question=prompt,meta.answer=completion");
        let odd = FieldMap::new([("the question; rm", "prompt")]).unwrap();
        assert_eq!(odd.flag(), "--map 'the question; rm=prompt'");
        assert_eq!("a=b=text".parse::<FieldMap>().unwrap().pairs().next(), Some(("a=b", "text")));
        let none = FieldMap::default();
        assert_eq!(serde_json::from_str::<FieldMap>(&serde_json::to_string(&none).unwrap()).unwrap(), none);
    }

    #[test]
    fn several_columns_may_stand_for_one_field() {
        let map: FieldMap = "a=prompt,b=prompt,c=completion".parse().unwrap();
        assert_eq!(map.columns_of("prompt").as_deref(), Some("a or b"));
        assert_eq!((map.columns_of("completion").as_deref(), map.columns_of("text")), (Some("c"), None));
    }

    #[test]
    fn what_stands_for_no_field_or_comes_twice_is_refused() {
        for text in ["", "question", "question=promt", "=prompt", "a=prompt,a=prompt", "a=prompt,"] {
            assert!(text.parse::<FieldMap>().is_err(), "{text}");
        }
    }
}
