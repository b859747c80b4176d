//! Raw text: a file is one document, which is read in sections of about a megabyte.
//!
//! A section ends with a line where it can, and is given the end of the one before it, so that its first
//! token has the same token before it as in the whole text. A text of any size is therefore read in little
//! memory, and nothing of it is lost or trained twice.

use super::stream::{ReadChunks, Stream};
use crate::chunk::{Chunk, Section};
use crate::error::DataError;
use crate::rejection::{Kind, Rejection};
use crate::text_border::{SECTION_BYTES, border, tail};

pub(super) struct Sections<'a> {
    stream: Stream<'a>,
    /// The end of the section before, and then what was read beyond it.
    carry: Vec<u8>,
    /// The number of bytes in `carry` that belong to the section before.
    before: usize,
    line: u64,
    at_start: bool,
    is_at_end: bool,
}

impl<'a> Sections<'a> {
    pub(super) fn new(stream: Stream<'a>) -> Self {
        Self { stream, carry: Vec::new(), before: 0, line: 1, at_start: true, is_at_end: false }
    }
}

impl ReadChunks for Sections<'_> {
    fn next(&mut self, buffer: &mut Vec<u8>, _: usize) -> Result<Option<Chunk>, DataError> {
        if self.is_at_end {
            return Ok(None);
        }
        let before = self.before;
        buffer.append(&mut self.carry);
        // One byte more than a section tells whether the text goes on after it.
        let wanted = before + SECTION_BYTES + 1;
        self.stream.read(buffer, wanted.saturating_sub(buffer.len()))?;
        self.is_at_end = buffer.len() < wanted;
        if std::mem::replace(&mut self.at_start, false) {
            self.stream.begin(buffer)?;
            if buffer.is_empty() {
                let fix = "Remove the file, or write text into it";
                let refused = Some(Rejection::new(Kind::Empty, "", "the file is empty", fix));
                return Ok(Some(Chunk { first_line: 1, refused, ..Chunk::default() }));
            }
        }
        if !self.is_at_end {
            let end = before + border(&buffer[before..buffer.len() - 1]);
            let from = before + tail(&buffer[before..end]);
            self.carry.extend_from_slice(&buffer[from..]);
            self.before = end - from;
            buffer.truncate(end);
        }
        let first_line = self.line;
        self.line += memchr::memchr_iter(b'\n', &buffer[before..]).count() as u64;
        Ok(Some(Chunk {
            first_line,
            bytes: std::mem::take(buffer),
            section: Some(Section { before, is_last: self.is_at_end }),
            ..Chunk::default()
        }))
    }
}
