//! Writes a row of a table as a line of JSON, which is then read like any other line.
//!
//! Enters: columns and their values. Leaves: one line of JSON. A cell of text in a column for a list of turns
//! or tools may contain that list as JSON, as programs write it that know no nested columns.

use serde_json::value::RawValue;
use sparktune_base::field_map::FieldMap;

/// The fields whose value is a list.
const LISTS: [&str; 4] = ["messages", "conversations", "history", "tools"];
/// The fields that a line may do without, so that an empty cell is the same as none.
const OPTIONAL: [&str; 3] = ["system", "input", "tools"];

/// What is known of a column by its name.
#[derive(Debug)]
pub(super) struct Header {
    /// Its name as a JSON string.
    key: String,
    is_list: bool,
    is_optional: bool,
}

impl Header {
    /// Creates the header of a column. It is a list if its own name says so, or the field that it stands for.
    pub(super) fn new(name: &str, map: &FieldMap) -> Self {
        let field = map.pairs().find(|(column, _)| *column == name).map_or(name, |(_, field)| field);
        Self {
            key: serde_json::Value::from(name).to_string(),
            is_list: LISTS.contains(&field),
            is_optional: OPTIONAL.contains(&field),
        }
    }
}

/// Writes the fields of one row.
pub(super) struct RowWriter<'a> {
    out: &'a mut Vec<u8>,
    is_empty: bool,
}

impl<'a> RowWriter<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, is_empty: true }
    }

    /// Begins a field. The caller writes its value.
    pub(super) fn field(&mut self, column: &Header) -> &mut Vec<u8> {
        if !std::mem::replace(&mut self.is_empty, false) {
            self.out.push(b',');
        }
        self.out.extend_from_slice(column.key.as_bytes());
        self.out.push(b':');
        self.out
    }

    /// Writes a field of text, or the list that the text contains.
    pub(super) fn text(&mut self, column: &Header, text: &str) {
        let is_blank = text.trim().is_empty();
        if is_blank && (column.is_list || (column.is_optional && text.is_empty())) {
            return;
        }
        if column.is_list
            && text.trim_start().starts_with('[')
            && serde_json::from_str::<&RawValue>(text).is_ok()
        {
            // Line breaks of JSON are outside its strings.
            let line = text.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte });
            self.field(column).extend(line);
            return;
        }
        write_text(self.field(column), text);
    }

    pub(super) fn finish(self) {
        self.out.extend_from_slice(b"}\n");
    }
}

/// Writes a JSON string.
pub(super) fn write_text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a string can be written into memory");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[(&str, &str)], map: &str) -> String {
        let map = if map.is_empty() { FieldMap::default() } else { map.parse().unwrap() };
        let mut out = Vec::new();
        let mut row = RowWriter::new(&mut out);
        cells.iter().for_each(|(name, text)| row.text(&Header::new(name, &map), text));
        row.finish();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_cell_for_a_list_may_contain_it_as_json_and_any_other_cell_is_text() {
        let turns = "[\n  {\"role\": \"user\"}\r\n]";
        assert_eq!(row(&[("messages", turns)], ""), "{\"messages\":[   {\"role\": \"user\"}  ]}\n");
        assert_eq!(row(&[("dialog", "[1]")], "dialog=messages"), "{\"dialog\":[1]}\n");
        assert_eq!(row(&[("output", "[1]"), ("tools", "")], ""), "{\"output\":\"[1]\"}\n");
        assert_eq!(row(&[("messages", "['a']")], ""), "{\"messages\":\"['a']\"}\n");
        assert_eq!(row(&[("a \"b\"", "x\ny"), ("system", "")], ""), "{\"a \\\"b\\\"\":\"x\\ny\"}\n");
        assert_eq!(row(&[], ""), "{}\n");
    }
}
