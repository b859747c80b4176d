//! A part of a data file as its reader leaves it: lines of JSON, or a section of a text.

use crate::conversation::Conversation;
use crate::format::Format;
use crate::parse::{self, parse_line};
use crate::rejection::Rejection;

/// Whole lines of one file, or rows as lines of JSON, or a section of a text.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    /// Index into [`Source::files`](crate::source::Source::files).
    pub file: u32,
    /// The format of the file, if it is known already.
    pub format: Option<Format>,
    /// The number of the first line, counted from 1.
    pub first_line: u64,
    /// The numbers of all lines, if they are not consecutive.
    pub line_numbers: Vec<u64>,
    /// The lines, without a byte-order mark.
    pub bytes: Vec<u8>,
    /// The lines as they were before columns got other names; empty if none did.
    pub original: Vec<u8>,
    /// Why this line, which is alone in its chunk, cannot be read; `bytes` then contains only its beginning.
    pub refused: Option<Rejection>,
    /// Why the rest of the file cannot be read at all, if other files are read nevertheless; the chunk is
    /// then empty.
    pub refused_file: Option<String>,
    /// What a section of a text is; `bytes` are then the text, and not lines of JSON.
    pub section: Option<Section>,
}

/// A section of a text that is one document.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Section {
    /// The number of bytes at its beginning that belong to the section before it.
    pub before: usize,
    /// Whether the document ends with it.
    pub is_last: bool,
}

impl Chunk {
    /// Returns its lines, including blank ones. A section of a text is a single one.
    pub(crate) fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let section = self.section.map(|_| Line { bytes: &self.bytes, line_no: self.first_line });
        let split = if section.is_some() { &[][..] } else { &self.bytes[..] };
        let numbered =
            lines(split, self.first_line).enumerate().map(|(i, line)| match self.line_numbers.get(i) {
                Some(&line_no) => Line { line_no, ..line },
                None => line,
            });
        section.into_iter().chain(numbered)
    }

    /// Parses one of its lines.
    pub(crate) fn parse<'a>(&self, line: &'a str) -> Result<Conversation<'a>, Rejection> {
        match self.section {
            None => parse_line(self.format, line),
            Some(Section { before, is_last }) => parse::section(line, before, is_last),
        }
    }
}

/// A line without its line break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// The bytes, without `\n` or `\r\n`.
    pub bytes: &'a [u8],
    /// The number of the line, counted from 1 and including blank lines.
    pub line_no: u64,
}

/// Returns the lines of a part of a file, including blank ones.
pub fn lines(bytes: &[u8], first_line: u64) -> impl Iterator<Item = Line<'_>> {
    let mut rest = bytes;
    let mut line_no = first_line;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (line, after) = match memchr::memchr(b'\n', rest) {
            Some(end) => (&rest[..end], &rest[end + 1..]),
            None => (rest, &rest[rest.len()..]),
        };
        rest = after;
        line_no += 1;
        Some(Line { bytes: line.strip_suffix(b"\r").unwrap_or(line), line_no: line_no - 1 })
    })
}
