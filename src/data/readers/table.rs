//! Tables as text: CSV, and TSV with tabs. Each row becomes a line of JSON.
//!
//! The parser is csv-core; this file gives it the bytes and keeps its results, so that a row that never ends
//! is noticed after 64 MiB, and a quotation mark that is never closed is not taken for the end of a row.

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use sparktune_base::field_map::FieldMap;

use super::json_row::{Header, RowWriter};
use super::stream::{KEPT_OF_REFUSED, MOST_LINES, ReadChunks, Stream};
use crate::chunk::Chunk;
use crate::error::DataError;
use crate::explain::{self, MAX_LINE_BYTES};
use crate::rejection::{Kind, Rejection};

const READ_AT_ONCE: usize = 1 << 16;
/// The largest number of columns.
const MAX_COLUMNS: usize = 1 << 14;

pub(super) struct TableRows<'a> {
    stream: Stream<'a>,
    parser: Reader,
    delimiter: u8,
    map: &'a FieldMap,
    /// The columns by position, once the header was read. One without a name is left out.
    columns: Option<Vec<Option<Header>>>,
    input: Vec<u8>,
    /// The part of `input` that was parsed.
    parsed: usize,
    /// Whether the file ended, and a line end was added to it.
    is_ending: bool,
    is_at_end: bool,
    /// The line on which the next byte stands.
    line: u64,
    /// Whether the last byte was a carriage return, which is the first half of a line end or a whole one.
    is_after_return: bool,
    row: Row,
    /// A row that cannot be read, which follows the chunk before it.
    refused: Option<Chunk>,
}

/// The fields of a row, one after another, with the end of each.
#[derive(Default)]
struct Row {
    line: u64,
    /// Room for its fields, of which `length` bytes are used.
    bytes: Vec<u8>,
    length: usize,
    /// Room for the ends of its fields, of which there are `columns`.
    ends: Vec<usize>,
    columns: usize,
    /// Whether the file ends inside a quoted field of this row.
    is_open: bool,
}

impl Row {
    fn fields(&self) -> impl Iterator<Item = &[u8]> {
        let ends = &self.ends[..self.columns];
        let starts = [0].into_iter().chain(ends.iter().copied());
        starts.zip(ends).map(|(start, end)| &self.bytes[start..*end])
    }

    fn text(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl<'a> TableRows<'a> {
    pub(super) fn new(stream: Stream<'a>, delimiter: u8, map: &'a FieldMap) -> Self {
        Self {
            stream,
            parser: ReaderBuilder::new().delimiter(delimiter).build(),
            delimiter,
            map,
            columns: None,
            input: Vec::new(),
            parsed: 0,
            is_ending: false,
            is_at_end: false,
            line: 1,
            is_after_return: false,
            row: Row::default(),
            refused: None,
        }
    }

    /// Reads the next row into `self.row`. Returns false at the end of the file.
    fn read_row(&mut self) -> Result<bool, DataError> {
        self.skip_line_ends()?;
        self.row.line = self.line;
        self.row.is_open = false;
        let (mut bytes, mut ends) = (0, 0);
        let is_row = loop {
            if self.parsed == self.input.len() {
                self.refill()?;
                // A line end was added to the file. If it did not end this row, it is in quotes.
                self.row.is_open = self.is_at_end && bytes > 0;
            }
            let (result, read, written, ended) = self.parser.read_record(
                &self.input[self.parsed..],
                &mut self.row.bytes[bytes..],
                &mut self.row.ends[ends..],
            );
            self.pass(read);
            bytes += written;
            ends += ended;
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull if bytes < MAX_LINE_BYTES => {
                    self.row.bytes.resize((2 * bytes).clamp(READ_AT_ONCE, MAX_LINE_BYTES), 0);
                }
                ReadRecordResult::OutputEndsFull if ends < MAX_COLUMNS => {
                    self.row.ends.resize((2 * ends).clamp(16, MAX_COLUMNS), 0);
                }
                ReadRecordResult::OutputFull => return Err(self.unending("is longer than 64 MiB")),
                ReadRecordResult::OutputEndsFull => {
                    return Err(self.unending(&format!("has more than {MAX_COLUMNS} columns")));
                }
                ReadRecordResult::Record => break true,
                ReadRecordResult::End => break false,
            }
        };
        (self.row.length, self.row.columns) = (bytes, ends);
        Ok(is_row)
    }

    /// Goes on behind so many bytes, and counts their lines. These end as in tables of Unix, Windows or old
    /// Macs.
    fn pass(&mut self, bytes: usize) {
        let passed = &self.input[self.parsed..self.parsed + bytes];
        for at in memchr::memchr2_iter(b'\n', b'\r', passed) {
            let is_after_return = if at == 0 { self.is_after_return } else { passed[at - 1] == b'\r' };
            self.line += u64::from(passed[at] == b'\r' || !is_after_return);
        }
        self.is_after_return = passed.last().map_or(self.is_after_return, |last| *last == b'\r');
        self.parsed += bytes;
    }

    /// Skips blank lines, and the second half of a line end, so that `line` is that of the next row.
    fn skip_line_ends(&mut self) -> Result<(), DataError> {
        loop {
            let rest = &self.input[self.parsed..];
            let ends = rest.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
            self.pass(ends);
            if self.parsed < self.input.len() || self.is_at_end {
                return Ok(());
            }
            self.refill()?;
        }
    }

    fn refill(&mut self) -> Result<(), DataError> {
        let is_first = self.parsed == 0 && self.input.is_empty() && !self.is_ending;
        self.input.clear();
        self.parsed = 0;
        if self.stream.read(&mut self.input, READ_AT_ONCE)? == 0 {
            self.is_at_end = std::mem::replace(&mut self.is_ending, true);
            if !self.is_at_end {
                self.input.push(b'\n');
            }
        }
        if is_first { self.stream.begin(&mut self.input) } else { Ok(()) }
    }

    fn unending(&self, what: &str) -> DataError {
        DataError::input(
            self.stream.path,
            format!("the row on line {} {what}", self.row.line),
            "Look for a quotation mark there that is not closed; inside a quoted field, write it twice",
        )
    }

    /// Reads the names of the columns.
    fn header(&mut self) -> Result<Vec<Option<Header>>, DataError> {
        if !self.read_row()? {
            return Ok(Vec::new());
        }
        let unusable = |problem: String, fix: &str| DataError::input(self.stream.path, problem, fix);
        const FIX: &str = "The first row must name the columns, each once";
        let mut names: Vec<&str> = Vec::new();
        for field in self.row.fields() {
            let Ok(name) = std::str::from_utf8(field) else {
                return Err(unusable(
                    "the names of the columns are not UTF-8".to_owned(),
                    "Write the file as UTF-8 (iconv -f ENCODING -t UTF-8)",
                ));
            };
            // Spaces behind the separators are for people.
            let name = name.trim();
            if !name.is_empty() && names.contains(&name) {
                return Err(unusable(format!("two columns are called {}", explain::quoted(name)), FIX));
            }
            names.push(name);
        }
        if self.row.is_open {
            return Err(unusable("a quotation mark in the header is never closed".to_owned(), FIX));
        }
        if let ([name], b',') = (&names[..], self.delimiter)
            && name.contains([';', '\t'])
        {
            let fix = "Write commas between the columns, or tabs in a file ending in .tsv";
            return Err(unusable(format!("the only column is called {}", explain::quoted(name)), fix));
        }
        // A column without a name, as pandas writes for the index, has no meaning for a line.
        let column = |name: &&str| (!name.is_empty()).then(|| Header::new(name, self.map));
        Ok(names.iter().map(column).collect())
    }

    /// Writes the row that was read as a line of JSON. Returns why it cannot be.
    fn write(&self, columns: &[Option<Header>], out: &mut Vec<u8>) -> Option<Rejection> {
        if self.row.is_open {
            return Some(Rejection::new(
                Kind::InvalidTable,
                "",
                "a quotation mark in this row is never closed, so everything after it belongs to the row",
                "Close it; inside a quoted field, write a quotation mark twice",
            ));
        }
        let found = self.row.columns;
        if found != columns.len() {
            let (found, named) = (fields(found), columns.len());
            return Some(Rejection::new(
                Kind::InvalidTable,
                "",
                format!("has {found}, but the header names {named}"),
                "Quote fields that contain the separator or a line break: \"…\"",
            ));
        }
        if let Err(e) = std::str::from_utf8(self.row.text()) {
            let valid = &self.row.text()[..e.valid_up_to()];
            let line = self.row.line + memchr::memchr_iter(b'\n', valid).count() as u64;
            let column = self.row.ends.iter().position(|end| *end > e.valid_up_to()).unwrap_or(0);
            return Some(Rejection::new(
                Kind::InvalidUtf8,
                "",
                format!("field {} is not valid UTF-8, on line {line} of the file", column + 1),
                "Write the file as UTF-8 (iconv -f ENCODING -t UTF-8)",
            ));
        }
        let start = out.len();
        let mut row = RowWriter::new(out);
        for (column, field) in columns.iter().zip(self.row.fields()) {
            // A field of a row that is UTF-8 is cut at delimiters, which are ASCII.
            if let (Some(column), Ok(text)) = (column, std::str::from_utf8(field)) {
                row.text(column, text);
            }
        }
        row.finish();
        // A control character takes six times its length as JSON.
        let length = out.len() - start;
        (length > MAX_LINE_BYTES).then(|| {
            out.truncate(start);
            explain::too_long(length as u64)
        })
    }
}

impl ReadChunks for TableRows<'_> {
    fn next(&mut self, buffer: &mut Vec<u8>, chunk_bytes: usize) -> Result<Option<Chunk>, DataError> {
        if let Some(refused) = self.refused.take() {
            return Ok(Some(refused));
        }
        let columns = match self.columns.take() {
            Some(columns) => columns,
            None => self.header()?,
        };
        let mut line_numbers = Vec::new();
        while buffer.len() < chunk_bytes && line_numbers.len() < MOST_LINES && self.read_row()? {
            if let Some(rejection) = self.write(&columns, buffer) {
                let kept = &self.row.text()[..self.row.length.min(KEPT_OF_REFUSED)];
                self.refused = Some(Chunk {
                    first_line: self.row.line,
                    bytes: kept.to_vec(),
                    refused: Some(rejection),
                    ..Chunk::default()
                });
                break;
            }
            line_numbers.push(self.row.line);
        }
        self.columns = Some(columns);
        if line_numbers.is_empty() {
            return Ok(self.refused.take());
        }
        let first_line = line_numbers[0];
        Ok(Some(Chunk { first_line, line_numbers, bytes: std::mem::take(buffer), ..Chunk::default() }))
    }
}

fn fields(count: usize) -> String {
    if count == 1 { "1 field".to_owned() } else { format!("{count} fields") }
}
