//! One JSON array of examples in a file, as many data sets are published: each of its elements becomes a
//! line.
//!
//! Enters: the bytes of the file. Leaves: lines of JSON, numbered like the elements. Only brackets,
//! commas and strings are told apart here, so that memory does not grow with the file; whether an element
//! is an example, or JSON at all, is found out by whoever reads its line.

use super::stream::{KEPT_OF_REFUSED, MOST_LINES, ReadChunks, Stream};
use crate::chunk::Chunk;
use crate::error::DataError;
use crate::explain::{self, MAX_LINE_BYTES};
use crate::rejection::{Kind, Rejection};

pub(super) struct JsonArray<'a> {
    stream: Stream<'a>,
    /// Bytes that were read and not looked at yet.
    input: Vec<u8>,
    at: usize,
    /// The element that is not complete yet, without what is beyond the longest line, and its whole length.
    element: Vec<u8>,
    length: u64,
    /// The number of brackets that are open. 0 is before the array, 1 between its elements.
    depth: u64,
    is_in_string: bool,
    is_escaped: bool,
    /// The elements so far.
    done: u64,
    state: At,
    /// An element that cannot be used, which follows the chunk before it.
    refused: Option<Chunk>,
    /// Why nothing more can be read after the previous chunk.
    failed: Option<DataError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Start,
    Inside,
    /// Behind the bracket that closes the array.
    Behind,
    End,
}

impl<'a> JsonArray<'a> {
    pub(super) fn new(stream: Stream<'a>) -> Self {
        Self {
            stream,
            input: Vec::new(),
            at: 0,
            element: Vec::new(),
            length: 0,
            depth: 0,
            is_in_string: false,
            is_escaped: false,
            done: 0,
            state: At::Start,
            refused: None,
            failed: None,
        }
    }

    /// Looks at one byte. Returns true if it ends an element.
    fn push(&mut self, byte: u8) -> bool {
        if self.is_in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.is_in_string = false,
                _ => {}
            }
        } else {
            match byte {
                b'"' => self.is_in_string = true,
                b'[' | b'{' => {
                    self.depth += 1;
                    if self.depth == 1 {
                        return false;
                    }
                }
                b']' if self.depth == 1 => {
                    self.state = At::Behind;
                    // Nothing, or nothing behind the last comma, is no element.
                    return !self.element.trim_ascii().is_empty();
                }
                b']' | b'}' if self.depth > 1 => self.depth -= 1,
                b',' if self.depth == 1 => return true,
                _ => {}
            }
        }
        self.length += 1;
        if self.element.len() <= MAX_LINE_BYTES {
            // A line break between values is white space; inside a string no JSON may have one, nor this.
            self.element.push(match byte {
                b'\n' | b'\r' if self.is_in_string => b'\x01',
                b'\n' | b'\r' => b' ',
                byte => byte,
            });
        }
        false
    }

    /// Moves the complete element into the lines. Returns false if it cannot be used.
    fn finish(&mut self, lines: &mut Vec<u8>) -> bool {
        self.done += 1;
        let length = std::mem::take(&mut self.length);
        if length > MAX_LINE_BYTES as u64 {
            self.refuse(explain::too_long(length));
            return false;
        }
        lines.extend_from_slice(self.element.trim_ascii());
        lines.push(b'\n');
        self.element.clear();
        true
    }

    fn refuse(&mut self, rejection: Rejection) {
        self.element.truncate(KEPT_OF_REFUSED);
        let bytes = std::mem::take(&mut self.element);
        self.refused =
            Some(Chunk { first_line: self.done, bytes, refused: Some(rejection), ..Chunk::default() });
    }

    /// Reads more of the file. Returns false at its end.
    fn read(&mut self, chunk_bytes: usize) -> Result<bool, DataError> {
        self.input.clear();
        self.at = 0;
        if self.stream.read(&mut self.input, chunk_bytes)? == 0 {
            return Ok(false);
        }
        if self.state == At::Start {
            self.state = At::Inside;
            self.stream.begin(&mut self.input)?;
        }
        Ok(true)
    }

    /// Moves complete elements into the lines until there are enough bytes.
    fn fill(&mut self, lines: &mut Vec<u8>, chunk_bytes: usize) -> Result<(), DataError> {
        let most = self.done + MOST_LINES as u64;
        while lines.len() < chunk_bytes && self.done < most && self.state != At::End {
            if self.at == self.input.len() && !self.read(chunk_bytes)? {
                if std::mem::replace(&mut self.state, At::End) != At::Behind {
                    self.done += 1;
                    let reason = "the file ends in the middle of its JSON array";
                    self.refuse(Rejection::new(Kind::InvalidJson, "", reason, "Download or write it again"));
                }
                break;
            }
            let byte = self.input[self.at];
            self.at += 1;
            if self.state == At::Behind {
                if !byte.is_ascii_whitespace() {
                    return Err(self.behind());
                }
            } else if self.push(byte) && !self.finish(lines) {
                break;
            }
        }
        Ok(())
    }

    fn behind(&self) -> DataError {
        DataError::input(
            self.stream.path,
            "this file begins with a JSON array, and something else follows the array",
            "Write one array, or one JSON object per line: jq -c '.[]' IN > OUT",
        )
    }
}

impl ReadChunks for JsonArray<'_> {
    fn next(&mut self, buffer: &mut Vec<u8>, chunk_bytes: usize) -> Result<Option<Chunk>, DataError> {
        if let Some(refused) = self.refused.take() {
            return Ok(Some(refused));
        }
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let first_line = self.done + 1;
        let filled = self.fill(buffer, chunk_bytes);
        if buffer.is_empty() {
            return filled.map(|()| self.refused.take());
        }
        self.failed = filled.err();
        Ok(Some(Chunk { first_line, bytes: std::mem::take(buffer), ..Chunk::default() }))
    }
}
