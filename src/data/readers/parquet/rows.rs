//! Puts the values of columns together again as rows, written as lines of JSON.
//!
//! Enters: the columns of a row group. Leaves: one row after another. The levels of an entry say where in a
//! nested row it belongs: below the definition level of a node there is null or an empty list, and an entry
//! with the repetition level of a list continues it.

use std::fs::File;
use std::sync::Arc;

use super::super::json_row::{Header, RowWriter, write_text};
use super::budget::Budget;
use super::column::Column;
use super::damage::Damage;
use super::schema::{Footer, Leaf, Node, NodeKind, Physical, RowGroup};
use crate::explain::{self, MAX_LINE_BYTES};
use crate::rejection::{Kind, Rejection};

/// The rows of one row group.
pub(super) struct Rows {
    leaves: Vec<Leaf>,
    /// By leaf; `None` for one that is not read.
    columns: Vec<Option<Column>>,
    /// Why the present row cannot be used.
    refused: Option<Rejection>,
    /// How many bytes more the rows may have.
    room: u64,
}

impl Rows {
    /// Begins to read these top-level columns, whose rows may have `room` bytes as lines of JSON.
    pub(super) fn open(
        file: &Arc<File>,
        budget: &Budget,
        footer: &Footer,
        group: &RowGroup,
        selected: &[usize],
        room: u64,
    ) -> Result<Self, Damage> {
        let mut columns: Vec<Option<Column>> = footer.leaves.iter().map(|_| None).collect();
        for node in selected.iter().map(|column| &footer.columns[*column]) {
            for leaf in node.leaves.clone() {
                let (name, chunk) = (&node.name, group.chunks[leaf]);
                columns[leaf] = Some(Column::new(file, budget, name, footer.leaves[leaf], chunk)?);
            }
        }
        Ok(Self { leaves: footer.leaves.clone(), columns, refused: None, room })
    }

    /// Appends the next row, or returns why it cannot be used.
    pub(super) fn write(
        &mut self,
        selected: &[(&Node, &Header)],
        out: &mut Vec<u8>,
    ) -> Result<Option<Rejection>, Damage> {
        let start = out.len();
        let mut row = RowWriter::new(out);
        for (node, header) in selected {
            let is_at_row = |column: &Column| column.peek().is_some_and(|entry| entry.repetition == 0);
            if !self.columns[node.leaves.clone()].iter().flatten().all(is_at_row) {
                return Err(Damage::Page(node.name.clone()));
            }
            match node.kind {
                // Only text in a column of its own may contain a list.
                NodeKind::Leaf(leaf) if node.repeated_at.is_none() && !self.is_null(node) => {
                    if let Some(text) = self.text(leaf, &node.name)? {
                        row.text(header, &text);
                    } else {
                        let out = row.field(header);
                        self.content(node, out, start)?;
                    }
                }
                _ => {
                    let out = row.field(header);
                    self.node(node, out, start)?;
                }
            }
        }
        row.finish();
        if out.len() - start > MAX_LINE_BYTES {
            self.refused.get_or_insert_with(|| explain::too_long((out.len() - start) as u64));
        }
        self.take_room(out.len() - start)?;
        let refused = self.refused.take();
        if refused.is_some() {
            out.truncate(start);
        }
        Ok(refused)
    }

    /// Checks that no column has values behind the last row.
    pub(super) fn finish(&mut self, selected: &[&Node]) -> Result<(), Damage> {
        for node in selected {
            if self.columns[node.leaves.clone()].iter().flatten().any(|column| column.peek().is_some()) {
                return Err(Damage::Page(node.name.clone()));
            }
        }
        Ok(())
    }

    /// Returns how many bytes more the rows may have.
    pub(super) fn room(&self) -> u64 {
        self.room
    }

    fn take_room(&mut self, bytes: usize) -> Result<(), Damage> {
        self.room = self.room.checked_sub(bytes as u64).ok_or(Damage::Growth)?;
        Ok(())
    }

    fn column(&mut self, leaf: usize) -> &mut Column {
        self.columns[leaf].as_mut().expect("all leaves of a selected column are read")
    }

    fn is_null(&mut self, node: &Node) -> bool {
        let entry = self.column(node.leaves.start).peek();
        node.is_optional && entry.is_none_or(|entry| entry.definition < node.defined_at)
    }

    /// Moves all columns under a node past an entry without a value.
    fn skip(&mut self, node: &Node) -> Result<(), Damage> {
        node.leaves.clone().try_for_each(|leaf| self.column(leaf).skip())
    }

    /// Writes a node: null, a list of it, or its content.
    fn node(&mut self, node: &Node, out: &mut Vec<u8>, start: usize) -> Result<(), Damage> {
        if self.is_null(node) {
            self.skip(node)?;
            out.extend_from_slice(b"null");
            return Ok(());
        }
        if node.repeated_at.is_some() {
            return self.list(node, node, out, start);
        }
        self.content(node, out, start)
    }

    fn content(&mut self, node: &Node, out: &mut Vec<u8>, start: usize) -> Result<(), Damage> {
        match &node.kind {
            NodeKind::Leaf(leaf) => self.value(*leaf, &node.name, out),
            NodeKind::Struct(fields) => {
                out.push(b'{');
                for (i, field) in fields.iter().enumerate() {
                    if i > 0 {
                        out.push(b',');
                    }
                    write_text(out, &field.name);
                    out.push(b':');
                    self.node(field, out, start)?;
                }
                out.push(b'}');
                Ok(())
            }
            NodeKind::List(repeated) => {
                // A group of one field around the element is part of the list, except in the manner of two
                // old writers, who mark it by its name.
                let element = match &repeated.kind {
                    NodeKind::Struct(fields)
                        if fields.len() == 1
                            && repeated.name != "array"
                            && !repeated.name.ends_with("_tuple") =>
                    {
                        &fields[0]
                    }
                    _ => repeated,
                };
                self.list(repeated, element, out, start)
            }
        }
    }

    /// Writes the elements of a repeated node.
    fn list(
        &mut self,
        repeated: &Node,
        element: &Node,
        out: &mut Vec<u8>,
        start: usize,
    ) -> Result<(), Damage> {
        out.push(b'[');
        let first = repeated.leaves.start;
        let entry = self.column(first).peek();
        if entry.is_none_or(|entry| entry.definition < repeated.defined_at) {
            self.skip(repeated)?;
            out.push(b']');
            return Ok(());
        }
        loop {
            if std::ptr::eq(repeated, element) {
                self.content(element, out, start)?;
            } else {
                self.node(element, out, start)?;
            }
            if out.len() - start > MAX_LINE_BYTES {
                let length = (out.len() - start) as u64;
                self.refused.get_or_insert_with(|| explain::too_long(length));
                // The rest of the row is read, and not kept.
                self.take_room(out.len() - start)?;
                out.truncate(start);
            }
            let goes_on =
                self.column(first).peek().is_some_and(|entry| Some(entry.repetition) == repeated.repeated_at);
            if !goes_on {
                break;
            }
            out.push(b',');
        }
        out.push(b']');
        Ok(())
    }

    /// Returns the value of a leaf if its type is bytes. A row in which they are not text, or too long, is
    /// refused, and the value is empty.
    fn text(&mut self, leaf: usize, name: &str) -> Result<Option<String>, Damage> {
        if self.leaves[leaf].physical != Physical::Bytes {
            return Ok(None);
        }
        let mut text = Err(None);
        self.column(leaf).value(|bytes| {
            text = match std::str::from_utf8(bytes) {
                _ if bytes.len() > MAX_LINE_BYTES => Err(Some(bytes.len())),
                Ok(valid) => Ok(valid.to_owned()),
                Err(_) => Err(None),
            };
        })?;
        let fix = if self.leaves[leaf].is_text {
            "Write the column as UTF-8"
        } else {
            "The column has bytes of any kind: write it as text, or leave it out"
        };
        Ok(Some(text.unwrap_or_else(|too_long| {
            self.refused.get_or_insert_with(|| match too_long {
                Some(bytes) => explain::too_long(bytes as u64),
                None => Rejection::new(Kind::InvalidUtf8, name, "not valid UTF-8", fix),
            });
            String::new()
        })))
    }

    fn value(&mut self, leaf: usize, name: &str, out: &mut Vec<u8>) -> Result<(), Damage> {
        let physical = self.leaves[leaf].physical;
        if let Some(text) = self.text(leaf, name)? {
            write_text(out, &text);
            return Ok(());
        }
        self.column(leaf).value(|bytes| {
            let value = number(physical, bytes);
            out.extend_from_slice(value.as_deref().unwrap_or("null").as_bytes());
        })
    }
}

/// Returns a number or boolean as JSON writes it, or `None` if it cannot.
fn number(physical: Physical, bytes: &[u8]) -> Option<String> {
    let finite = |number: f64| number.is_finite().then(|| serde_json::Value::from(number).to_string());
    match physical {
        Physical::Boolean => Some((bytes == [1]).to_string()),
        Physical::Int32 => Some(i32::from_le_bytes(bytes.try_into().ok()?).to_string()),
        Physical::Int64 => Some(i64::from_le_bytes(bytes.try_into().ok()?).to_string()),
        Physical::Float => finite(f32::from_le_bytes(bytes.try_into().ok()?).into()),
        Physical::Double => finite(f64::from_le_bytes(bytes.try_into().ok()?)),
        Physical::Bytes | Physical::Fixed(_) => None,
    }
}
