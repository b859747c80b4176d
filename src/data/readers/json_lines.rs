//! Lines of JSON: splits a file at line ends.

use sparktune_base::units::bytes;

use super::stream::{KEPT_OF_REFUSED, MOST_LINES, ReadChunks, Stream};
use crate::chunk::Chunk;
use crate::error::DataError;
use crate::explain::{self, MAX_LINE_BYTES};

/// The longest line of which the end is searched. A small compressed file can hold a line of any length,
/// which would be read for hours.
const MOST_SKIPPED: u64 = 2 << 30;

pub(super) struct JsonLines<'a> {
    stream: Stream<'a>,
    /// The lines that were too many for the last chunk, and the beginning of one whose end was not read yet.
    carry: Vec<u8>,
    next_line: u64,
    at_start: bool,
}

impl<'a> JsonLines<'a> {
    pub(super) fn new(stream: Stream<'a>) -> Self {
        Self { stream, carry: Vec::new(), next_line: 1, at_start: true }
    }
}

impl ReadChunks for JsonLines<'_> {
    fn next(&mut self, buffer: &mut Vec<u8>, chunk_bytes: usize) -> Result<Option<Chunk>, DataError> {
        buffer.append(&mut self.carry);
        let mut searched = 0;
        if end_of_most(buffer).is_none() {
            loop {
                let read = self.stream.read(buffer, chunk_bytes)?;
                if read == 0 {
                    break;
                }
                if let Some(end) = memchr::memrchr(b'\n', &buffer[searched..]) {
                    self.carry.extend_from_slice(&buffer[searched + end + 1..]);
                    buffer.truncate(searched + end + 1);
                    break;
                }
                searched = buffer.len();
                if searched > MAX_LINE_BYTES {
                    return self.skip_line(buffer, chunk_bytes).map(Some);
                }
            }
        }
        if buffer.is_empty() {
            return Ok(None);
        }
        if let Some(end) = end_of_most(buffer).filter(|end| *end < buffer.len()) {
            let mut rest = buffer.split_off(end);
            rest.append(&mut self.carry);
            self.carry = rest;
        }
        if self.at_start {
            self.at_start = false;
            self.stream.begin(buffer)?;
        }
        let first_line = self.next_line;
        let unfinished = usize::from(buffer.last().is_some_and(|&b| b != b'\n'));
        self.next_line += (memchr::memchr_iter(b'\n', buffer).count() + unfinished) as u64;
        Ok(Some(Chunk { first_line, bytes: std::mem::take(buffer), ..Chunk::default() }))
    }
}

/// Returns where the most lines of a chunk end, if there are so many.
fn end_of_most(lines: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', lines).nth(MOST_LINES - 1).map(|last| last + 1)
}

impl JsonLines<'_> {
    /// Reads to the end of a line that is too long, keeping its beginning.
    fn skip_line(&mut self, buffer: &mut Vec<u8>, chunk_bytes: usize) -> Result<Chunk, DataError> {
        let mut length = buffer.len() as u64;
        buffer.truncate(KEPT_OF_REFUSED);
        let mut piece = Vec::new();
        loop {
            piece.clear();
            if self.stream.read(&mut piece, chunk_bytes)? == 0 {
                break;
            }
            if let Some(end) = memchr::memchr(b'\n', &piece) {
                length += end as u64;
                self.carry.extend_from_slice(&piece[end + 1..]);
                break;
            }
            length += piece.len() as u64;
            if length > MOST_SKIPPED {
                let problem = format!("line {} has more than {}", self.next_line, bytes(MOST_SKIPPED));
                let fix = "Put one JSON object on each line; a file without line ends is not JSON Lines";
                return Err(DataError::input(self.stream.path, problem, fix));
            }
        }
        self.at_start = false;
        self.next_line += 1;
        Ok(Chunk {
            first_line: self.next_line - 1,
            bytes: std::mem::take(buffer),
            refused: Some(explain::too_long(length)),
            ..Chunk::default()
        })
    }
}
