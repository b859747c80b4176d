//! Gives the columns of foreign data the names of the fields that they stand for.
//!
//! Enters: lines of JSON and the user's map. Leaves: the same lines with other names. A line that lacks a
//! column of the map, or is no object, stays as it is in this respect; whoever reads it explains what is
//! missing.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use sparktune_base::field_map::FieldMap;

use crate::chunk::lines;

/// Renames the fields of all lines.
pub(crate) fn rename(bytes: &mut Vec<u8>, map: &FieldMap) {
    let mut renamed = Vec::with_capacity(bytes.len());
    for line in lines(bytes, 1) {
        match serde_json::from_slice::<Fields<'_>>(line.bytes) {
            Ok(fields) => write(&fields, map, &mut renamed),
            Err(_) => renamed.extend_from_slice(line.bytes),
        }
        renamed.push(b'\n');
    }
    *bytes = renamed;
}

/// The fields of an object in order, with their values as they were written.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl Fields<'_> {
    /// Returns the value of a column: of this name, or with dots, inside another one.
    fn value(&self, column: &str) -> Option<Cow<'_, RawValue>> {
        if let Some((_, value)) = self.0.iter().find(|(name, _)| name == column) {
            return Some(Cow::Borrowed(value));
        }
        let inside = |at: usize| {
            let (_, outer) = self.0.iter().find(|(name, _)| *name == column[..at])?;
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
fn write(fields: &Fields<'_>, map: &FieldMap, out: &mut Vec<u8>) {
    let mut taken = Vec::new();
    let mut separator = b'{';
    let mut field = |name: &str, value: &RawValue, out: &mut Vec<u8>| {
        out.push(std::mem::replace(&mut separator, b','));
        out.extend_from_slice(serde_json::Value::from(name).to_string().as_bytes());
        out.push(b':');
        out.extend_from_slice(value.get().as_bytes());
    };
    for (column, name) in map.pairs() {
        if let Some(value) = fields.value(column) {
            field(name, &value, out);
            taken.extend([column, name]);
        }
    }
    for (name, value) in &fields.0 {
        if !taken.contains(&name.as_str()) {
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

    fn renamed(lines: &str, map: &str) -> String {
        let mut bytes = lines.as_bytes().to_vec();
        rename(&mut bytes, &map.parse().unwrap());
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
