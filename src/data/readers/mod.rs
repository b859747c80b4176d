//! Reads each kind of data file as chunks: whole lines, rows as lines of JSON, or sections of a text.
//!
//! Enters: a file, and how the user wants it to be read. Leaves: chunks in the order of the file, in memory
//! that does not grow with it. The readers must not know formats of examples, except that a reader of tables
//! asks which cells contain lists.

mod json_array;
mod json_lines;
mod json_row;
mod other_kind;
mod parquet;
mod stream;
mod table;
mod text;

use std::io::{self, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use sparktune_base::field_map::FieldMap;
use stream::{BYTE_ORDER_MARK, ReadChunks, Stream};

use crate::chunk::lines;
use crate::error::DataError;
use crate::file_kind::FileKind;
use crate::format::Format;
use crate::source::{self, SourceFile};

/// A file that is being read.
pub(crate) struct OpenFile<'a> {
    pub reader: Box<dyn ReadChunks + Send + 'a>,
    /// The number of bytes on disk read so far.
    pub position: Arc<AtomicU64>,
    /// The names of its columns, if the file lists them apart from its rows, which may have fewer.
    pub columns: Vec<String>,
}

/// Opens a file with the reader for its kind.
pub(crate) fn open<'a>(
    file: &'a SourceFile,
    format: Option<Format>,
    map: &'a FieldMap,
) -> Result<OpenFile<'a>, DataError> {
    let kind = FileKind::of(&file.path);
    if kind == FileKind::Parquet {
        let (reader, position) = parquet::ParquetRows::open(&file.path, map)?;
        let columns = reader.column_names();
        return Ok(OpenFile { reader: Box::new(reader), position, columns });
    }
    let opened = source::open(file)?;
    let position = opened.position;
    let mut stream = Stream { path: &file.path, reader: opened.reader, is_compressed: opened.compressed };
    let reader: Box<dyn ReadChunks + Send> = match kind {
        FileKind::Table(delimiter) => Box::new(table::TableRows::new(stream, delimiter, map)),
        FileKind::Text if !holds_json_lines(&mut stream, format)? => Box::new(text::Sections::new(stream)),
        _ if begins_array(&mut stream)? => Box::new(json_array::JsonArray::new(stream)),
        _ => Box::new(json_lines::JsonLines::new(stream)),
    };
    Ok(OpenFile { reader, position, columns: Vec::new() })
}

/// Returns whether a file named as a text contains lines of JSON: because the user says so, or because its
/// first line is an example in a known format.
fn holds_json_lines(stream: &mut Stream<'_>, format: Option<Format>) -> Result<bool, DataError> {
    if let Some(format) = format {
        return Ok(format != Format::Text);
    }
    at_start(stream, |start| Format::detect(lines(start, 1).take(1).map(|line| line.bytes)).is_some())
}

/// Returns whether the lines on disk of a file named as JSON Lines are those that reports count: it is
/// neither compressed nor one JSON array.
///
/// # Errors
/// The file cannot be read.
pub fn has_plain_lines(path: &Path) -> Result<bool, DataError> {
    let name = path.display().to_string();
    let opened = source::open(&SourceFile { path: path.to_owned(), name, bytes: 0, set: 0 })?;
    let mut stream = Stream { path, reader: opened.reader, is_compressed: opened.compressed };
    Ok(!opened.compressed && !begins_array(&mut stream)?)
}

/// Returns whether a file is one JSON array and not an object on each line.
fn begins_array(stream: &mut Stream<'_>) -> Result<bool, DataError> {
    at_start(stream, |start| start.trim_ascii_start().first() == Some(&b'['))
}

/// Returns what `look` says of the beginning of a file, which is then read again.
fn at_start(stream: &mut Stream<'_>, look: impl FnOnce(&[u8]) -> bool) -> Result<bool, DataError> {
    const LOOKED_AT: usize = 1 << 16;
    let mut start = Vec::new();
    stream.read(&mut start, LOOKED_AT)?;
    let found = look(start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&start));
    let rest = std::mem::replace(&mut stream.reader, Box::new(io::empty()));
    stream.reader = Box::new(Cursor::new(start).chain(rest));
    Ok(found)
}
