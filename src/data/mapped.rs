//! Gives the columns of foreign data the names of the fields that they stand for.
//!
//! Enters: lines of JSON and the user's map. Leaves: the same lines with other names. A line that lacks a
//! column of the map, or is no object, stays as it is in this respect; whoever reads it explains what is
//! missing, and [`in_own_names`] gives the explanation the names that the user knows. [`Columns`] notes which
//! columns of the map there are in the data at all.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Mutex;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use sparktune_base::field_map::FieldMap;

use crate::chunk::lines;
use crate::error::DataError;
use crate::explain::quoted;
use crate::format::Name;
use crate::rejection::Rejection;

/// The largest number of columns that a message names.
const NAMED: usize = 20;

/// Returns these lines with the names of the map, one line for each.
pub(crate) fn renamed(bytes: &[u8], map: &FieldMap, columns: &Columns) -> Vec<u8> {
    let mut renamed = Vec::with_capacity(bytes.len());
    let mut noted = columns.0.lock().expect("nothing panics while it is locked");
    noted.found.resize(map.pairs().count(), false);
    let mut is_first = true;
    for line in lines(bytes, 1) {
        match serde_json::from_slice::<Fields<'_>>(line.bytes) {
            Ok(fields) => {
                if std::mem::take(&mut is_first) {
                    noted.see(fields.0.iter().map(|(Name(name), _)| &**name));
                }
                write(&fields, map, &mut noted.found, &mut renamed);
            }
            Err(_) => renamed.extend_from_slice(line.bytes),
        }
        renamed.push(b'\n');
    }
    renamed
}

/// The columns of a map that the data has, and some of those that it has instead.
#[derive(Debug, Default)]
pub(crate) struct Columns(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    /// Whether some line has the column, for each pair of the map.
    found: Vec<bool>,
    /// The names of columns in the data.
    seen: Vec<String>,
    /// Whether there is raw text, which has no columns.
    has_text: bool,
}

impl Columns {
    /// Notes that some of the data is raw text.
    pub(crate) fn see_text(&self) {
        self.0.lock().expect("nothing panics while it is locked").has_text = true;
    }

    /// Notes columns that a file has, whether they are read or not.
    pub(crate) fn see_names(&self, names: &[String]) {
        self.0.lock().expect("nothing panics while it is locked").see(names.iter().map(String::as_str));
    }

    /// Refuses a map with a column that no line has.
    ///
    /// # Errors
    /// [`DataError::Input`] names the columns of the data.
    pub(crate) fn refuse_unknown(&self, map: &FieldMap, data: &Path) -> Result<(), DataError> {
        let noted = self.0.lock().expect("nothing panics while it is locked");
        if !map.is_empty() && noted.seen.is_empty() && noted.has_text {
            let problem = "this is raw text, which has no columns for --map";
            return Err(DataError::input(data, problem, "Omit --map"));
        }
        let mut pairs = map.pairs().zip(&noted.found);
        let Some(((column, _), _)) = pairs.find(|(_, is_found)| !**is_found) else { return Ok(()) };
        let mut seen: Vec<String> = noted.seen.iter().take(NAMED).map(|name| quoted(name)).collect();
        if noted.seen.len() > NAMED {
            seen.push("…".to_owned());
        }
        Err(DataError::input(
            data,
            format!("no file of the data has the column {} of --map", quoted(column)),
            format!("Name one that exists, or leave it out; the data has {}", seen.join(", ")),
        ))
    }
}

impl Noted {
    fn see<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        for name in names {
            if self.seen.len() <= NAMED && !self.seen.iter().any(|seen| seen == name) {
                self.seen.push(name.to_owned());
            }
        }
    }
}

/// Returns a rejection of a renamed line in the names that the user gave the columns.
pub(crate) fn in_own_names(rejection: Rejection, map: &FieldMap) -> Rejection {
    if map.is_empty() {
        return rejection;
    }
    let Rejection { kind, field, reason, fix } = rejection;
    let end = field.find(['.', '[']).unwrap_or(field.len());
    let field = match map.columns_of(&field[..end]) {
        Some(column) => format!("{column}{}", &field[end..]),
        None => field,
    };
    // A name in the text of a message is in quotation marks.
    let own = |text: String| {
        let words = text.split('"').map(|word| map.columns_of(word).unwrap_or_else(|| word.to_owned()));
        words.collect::<Vec<_>>().join("\"")
    };
    Rejection { kind, field, reason: own(reason), fix: own(fix) }
}

/// The fields of an object in order, with their values as they were written.
struct Fields<'a>(Vec<(Name<'a>, &'a RawValue)>);

impl Fields<'_> {
    /// Returns the value of a column: of this name, or with dots, inside another one.
    fn value(&self, column: &str) -> Option<Cow<'_, RawValue>> {
        if let Some((_, value)) = self.0.iter().find(|(Name(name), _)| name == column) {
            return Some(Cow::Borrowed(value));
        }
        let inside = |at: usize| {
            let (_, outer) = self.0.iter().find(|(Name(name), _)| *name == column[..at])?;
            let fields: Fields<'_> = serde_json::from_str(outer.get()).ok()?;
            fields.value(&column[at + 1..]).map(|value| Cow::Owned(value.into_owned()))
        };
        column.match_indices('.').find_map(|(at, _)| inside(at))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfObject;
        impl<'de> Visitor<'de> for OfObject {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(OfObject)
    }
}

/// Writes an object in which each field of the map has the value of its column. All other fields follow,
/// except those whose names are taken now.
fn write(fields: &Fields<'_>, map: &FieldMap, found: &mut [bool], out: &mut Vec<u8>) {
    let (mut taken, mut given) = (Vec::new(), Vec::new());
    let mut separator = b'{';
    let mut field = |name: &str, value: &RawValue, out: &mut Vec<u8>| {
        out.push(std::mem::replace(&mut separator, b','));
        out.extend_from_slice(serde_json::Value::from(name).to_string().as_bytes());
        out.push(b':');
        out.extend_from_slice(value.get().as_bytes());
    };
    for ((column, name), is_found) in map.pairs().zip(found) {
        if let Some(value) = fields.value(column) {
            *is_found = true;
            if !given.contains(&name) {
                field(name, &value, out);
                taken.extend([column, name]);
                given.push(name);
            }
        }
    }
    for (Name(name), value) in &fields.0 {
        if !taken.contains(&&**name) {
            field(name, value, out);
        }
    }
    if separator == b'{' {
        out.push(b'{');
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rejection::Kind;

    fn renamed(lines: &str, map: &str) -> String {
        let bytes = super::renamed(lines.as_bytes(), &map.parse().unwrap(), &Columns::default());
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn fields_get_their_names_and_everything_else_stays() {
        assert_eq!(
            renamed("{\"q\": \"\\u00e4\", \"prompt\": 1, \"id\": [1, 2]}\n\n{oops\n", "q=prompt"),
            "{\"prompt\":\"\\u00e4\",\"id\":[1, 2]}\n\n{oops\n"
        );
        assert_eq!(renamed("{}", "q=prompt"), "{}\n");
        assert_eq!(renamed("{\"id\":1}", "q=prompt"), "{\"id\":1}\n");
        // The first column of the map that a line has.
        let two = "{\"query\":1}\n{\"question\":2,\"query\":3}\n";
        let first = "{\"prompt\":1}\n{\"prompt\":2,\"query\":3}\n";
        assert_eq!(renamed(two, "question=prompt,query=prompt"), first);
    }

    #[test]
    fn a_map_with_an_unknown_column_is_refused_with_those_of_the_first_object() {
        let (columns, map) = (Columns::default(), "q=prompt".parse().unwrap());
        super::renamed(b"\n{oops\n{\"a\": 1}\n{\"b\": 2}\n", &map, &columns);
        let refused = columns.refuse_unknown(&map, Path::new("a.jsonl")).unwrap_err().to_string();
        assert!(refused.contains("the column \"q\"") && refused.ends_with("the data has \"a\""), "{refused}");
    }

    #[test]
    fn messages_have_the_names_of_the_columns() {
        let map = "dialog=messages,prompt=completion".parse().unwrap();
        let own = |field: &str, text: &str| {
            let rejection = in_own_names(Rejection::new(Kind::Empty, field, text, text), &map);
            (rejection.field, rejection.fix)
        };
        let added = ("dialog[2].content".to_owned(), "Add \"prompt\"".to_owned());
        assert_eq!(own("messages[2].content", "Add \"completion\""), added);
        // What the user calls "prompt" is not renamed again.
        assert_eq!(own("prompt", "messages \"a").0, "prompt");
    }

    #[test]
    fn a_column_inside_another_one_is_found_unless_one_has_its_whole_name() {
        let line = r#"{"meta":{"text":"inside","a.b":{"c":"deep"}},"x.y":"whole","x":{"y":"part"}}"#;
        let value = |column: &str| {
            let line = renamed(line, &format!("{column}=text"));
            serde_json::from_str::<serde_json::Value>(&line).unwrap()["text"].clone()
        };
        assert_eq!(value("meta.text"), "inside");
        assert_eq!(value("meta.a.b.c"), "deep");
        assert_eq!(value("x.y"), "whole");
        assert!(value("meta.none").is_null());
    }
}
