//! What the footer of a Parquet file says: the tree of its columns, and where their values are.
//!
//! Enters: the bytes of the footer. Leaves: [`Footer`]. Whatever the footer claims is checked against the
//! size of the file before it is believed.

use std::ops::Range;

use super::damage::Damage;
use super::thrift::Thrift;

/// The largest depth of nested columns.
const DEEPEST: usize = 32;
/// The largest number of nodes in the schema.
const MOST_NODES: usize = 1 << 16;

/// The content of the footer.
pub(super) struct Footer {
    /// The top-level columns.
    pub columns: Vec<Node>,
    pub leaves: Vec<Leaf>,
    pub row_groups: Vec<RowGroup>,
    /// The number of rows in all row groups.
    pub rows: u64,
}

/// A column, or a part of a nested one.
#[derive(Debug)]
pub(super) struct Node {
    pub name: String,
    /// The definition level from which on a value is there; below it, the value is null or the list empty.
    pub defined_at: u16,
    /// The repetition level of its further elements, if it is repeated.
    pub repeated_at: Option<u16>,
    pub is_optional: bool,
    /// Its leaves, of which there is at least one.
    pub leaves: Range<usize>,
    pub kind: NodeKind,
}

#[derive(Debug)]
pub(super) enum NodeKind {
    /// Values, of the leaf with this index.
    Leaf(usize),
    Struct(Vec<Node>),
    /// A list, whose only child is repeated.
    List(Box<Node>),
}

/// A column of plain values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leaf {
    pub physical: Physical,
    /// Whether its bytes are said to be text.
    pub is_text: bool,
    /// The largest definition and repetition level.
    pub max_definition: u16,
    pub max_repetition: u16,
}

/// The types in which values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Physical {
    Boolean,
    Int32,
    Int64,
    Float,
    Double,
    Bytes,
    /// Values of this many bytes, which are not shown.
    Fixed(usize),
}

/// Rows that are stored together.
pub(super) struct RowGroup {
    pub rows: u64,
    /// By leaf.
    pub chunks: Vec<ColumnChunk>,
}

/// The pages of a leaf in a row group.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ColumnChunk {
    pub codec: i32,
    /// The number of entries, which include nulls and empty lists.
    pub entries: u64,
    /// Its bytes in the file.
    pub start: u64,
    pub end: u64,
}

/// An element of the schema as it is stored: in the order in which the tree is walked.
#[derive(Default)]
struct Element<'a> {
    physical: Option<i32>,
    type_length: i32,
    repetition: i32,
    name: &'a str,
    children: usize,
    converted: Option<i32>,
    /// The number of its logical type: 1 is text, 3 a list, 4 an enum, 12 JSON.
    logical: Option<i16>,
}

impl Footer {
    /// Reads the footer of a file of which the first `data_bytes` can be pages.
    pub(super) fn read(bytes: &[u8], data_bytes: u64) -> Result<Self, Damage> {
        let mut thrift = Thrift::new(bytes);
        let mut elements = Vec::new();
        let mut row_groups = Vec::new();
        let mut said = 0;
        thrift.read_struct(|thrift, field| {
            match field.id {
                2 => thrift.read_list(field, |thrift| {
                    if elements.len() == MOST_NODES {
                        return Err(Damage::Columns);
                    }
                    elements.push(element(thrift)?);
                    Ok(())
                })?,
                3 => said = thrift.integer(field)?,
                4 => thrift.read_list(field, |thrift| {
                    row_groups.push(row_group(thrift, data_bytes)?);
                    Ok(())
                })?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let mut elements = elements.into_iter();
        let root = elements.next().ok_or(Damage::Metadata)?;
        let mut leaves = Vec::new();
        let columns = children(&mut elements, root.children, Level::default(), &mut leaves)?;
        if columns.is_empty() {
            return Err(Damage::Metadata);
        }
        if row_groups.iter().any(|group: &RowGroup| group.chunks.len() != leaves.len()) {
            return Err(Damage::Metadata);
        }
        let rows = row_groups.iter().fold(0_u64, |sum, group| sum.saturating_add(group.rows));
        if rows != said {
            return Err(Damage::Rows { said, found: rows });
        }
        Ok(Self { columns, leaves, row_groups, rows })
    }
}

fn element<'a>(thrift: &mut Thrift<'a>) -> Result<Element<'a>, Damage> {
    let mut element = Element::default();
    thrift.read_struct(|thrift, field| {
        match field.id {
            1 => element.physical = Some(thrift.integer(field)?),
            2 => element.type_length = thrift.integer(field)?,
            3 => element.repetition = thrift.integer(field)?,
            4 => element.name = thrift.text(field)?,
            5 => element.children = thrift.integer(field)?,
            6 => element.converted = Some(thrift.integer(field)?),
            10 => {
                Thrift::is_struct(field)?;
                thrift.read_struct(|_, kind| {
                    element.logical = Some(kind.id);
                    Ok(false)
                })?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(element)
}

fn row_group(thrift: &mut Thrift<'_>, data_bytes: u64) -> Result<RowGroup, Damage> {
    let mut group = RowGroup { rows: 0, chunks: Vec::new() };
    thrift.read_struct(|thrift, field| {
        match field.id {
            1 => thrift.read_list(field, |thrift| {
                group.chunks.push(column_chunk(thrift, data_bytes)?);
                Ok(())
            })?,
            3 => group.rows = thrift.integer(field)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(group)
}

fn column_chunk(thrift: &mut Thrift<'_>, data_bytes: u64) -> Result<ColumnChunk, Damage> {
    let mut chunk = ColumnChunk::default();
    let (mut data_at, mut dictionary_at, mut length) = (0_u64, None::<u64>, 0_u64);
    let mut is_known = false;
    thrift.read_struct(|thrift, field| {
        if field.id != 3 {
            return Ok(false);
        }
        Thrift::is_struct(field)?;
        is_known = true;
        thrift.read_struct(|thrift, field| {
            match field.id {
                4 => chunk.codec = thrift.integer(field)?,
                5 => chunk.entries = thrift.integer(field)?,
                7 => length = thrift.integer(field)?,
                9 => data_at = thrift.integer(field)?,
                11 => dictionary_at = Some(thrift.integer(field)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(true)
    })?;
    // Some writers set the place of a dictionary that is not there to 0.
    chunk.start = dictionary_at.filter(|at| *at > 0).map_or(data_at, |at| at.min(data_at));
    chunk.end = chunk.start.checked_add(length).ok_or(Damage::Metadata)?;
    if !is_known || chunk.end > data_bytes {
        return Err(Damage::Metadata);
    }
    Ok(chunk)
}

/// The levels above a node.
#[derive(Clone, Copy, Default)]
struct Level {
    definition: u16,
    repetition: u16,
    depth: usize,
}

fn children<'a>(
    elements: &mut impl Iterator<Item = Element<'a>>,
    count: usize,
    level: Level,
    leaves: &mut Vec<Leaf>,
) -> Result<Vec<Node>, Damage> {
    let mut nodes = Vec::new();
    for _ in 0..count {
        let element = elements.next().ok_or(Damage::Metadata)?;
        nodes.push(node(element, elements, level, leaves)?);
    }
    Ok(nodes)
}

fn node<'a>(
    element: Element<'a>,
    elements: &mut impl Iterator<Item = Element<'a>>,
    mut level: Level,
    leaves: &mut Vec<Leaf>,
) -> Result<Node, Damage> {
    level.depth += 1;
    if level.depth > DEEPEST {
        return Err(Damage::Columns);
    }
    let is_optional = element.repetition == 1;
    let is_repeated = element.repetition == 2;
    level.definition += u16::from(is_optional || is_repeated);
    level.repetition += u16::from(is_repeated);
    let first_leaf = leaves.len();
    let kind = if element.children == 0 {
        leaves.push(leaf(&element, level)?);
        NodeKind::Leaf(leaves.len() - 1)
    } else {
        let mut nodes = children(elements, element.children, level, leaves)?;
        let is_list = element.converted == Some(3) || element.logical == Some(3);
        match nodes.pop() {
            Some(only) if is_list && nodes.is_empty() && only.repeated_at.is_some() => {
                NodeKind::List(Box::new(only))
            }
            last => {
                nodes.extend(last);
                NodeKind::Struct(nodes)
            }
        }
    };
    Ok(Node {
        name: element.name.to_owned(),
        defined_at: level.definition,
        repeated_at: is_repeated.then_some(level.repetition),
        is_optional,
        leaves: first_leaf..leaves.len(),
        kind,
    })
}

fn leaf(element: &Element<'_>, level: Level) -> Result<Leaf, Damage> {
    let length = || usize::try_from(element.type_length).map_err(|_| Damage::Metadata);
    let physical = match element.physical {
        Some(0) => Physical::Boolean,
        Some(1) => Physical::Int32,
        Some(2) => Physical::Int64,
        Some(3) => Physical::Fixed(12),
        Some(4) => Physical::Float,
        Some(5) => Physical::Double,
        Some(6) => Physical::Bytes,
        Some(7) => Physical::Fixed(length()?),
        _ => return Err(Damage::Metadata),
    };
    // 0 is UTF8, 4 an enum and 19 JSON.
    let is_text =
        matches!(element.converted, Some(0 | 4 | 19)) || matches!(element.logical, Some(1 | 4 | 12));
    Ok(Leaf { physical, is_text, max_definition: level.definition, max_repetition: level.repetition })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an element of the schema called `a`: a group of so many children, or a text.
    fn element(children: u32) -> Vec<u8> {
        let mut bytes = if children == 0 { vec![0x15, 12, 0x25, 2] } else { vec![0x35, 2] };
        bytes.extend([0x18, 1, b'a']);
        if children > 0 {
            bytes.push(0x15);
            // The number in zigzag, seven bits at a time.
            let mut rest = u64::from(children) * 2;
            while rest > 127 {
                bytes.push(rest as u8 | 128);
                rest >>= 7;
            }
            bytes.push(rest as u8);
        }
        bytes.push(0);
        bytes
    }

    fn footer(elements: &[u32]) -> Result<Footer, Damage> {
        let mut bytes = vec![0x29, 0xfc, elements.len() as u8];
        elements.iter().for_each(|children| bytes.extend(element(*children)));
        bytes.push(0);
        Footer::read(&bytes, 100)
    }

    #[test]
    fn a_schema_is_read_as_far_as_it_is_there_and_not_deeper_than_a_table_needs() {
        let read = footer(&[2, 1, 0, 0]).unwrap();
        assert_eq!((read.columns.len(), read.leaves.len(), read.leaves[0].max_definition), (2, 2, 2));
        assert_eq!(footer(&[2, 1, 0]).err(), Some(Damage::Metadata));
        assert_eq!(footer(&[i32::MAX as u32, 0]).err(), Some(Damage::Metadata));
        assert_eq!(footer(&[]).err(), Some(Damage::Metadata));
        let deep = [&[1; 100][..], &[0]].concat();
        assert_eq!(footer(&deep).err(), Some(Damage::Columns));
    }

    #[test]
    fn a_list_that_claims_more_elements_than_bytes_is_damaged() {
        assert!(Footer::read(&[0x29, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x0f], 100).is_err());
    }
}
