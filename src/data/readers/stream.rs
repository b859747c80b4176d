//! The decompressed bytes of a data file, and what all of its readers have in common.

use std::io::{self, Read};
use std::path::Path;

use super::other_kind::{OtherKind, other_kind};
use crate::chunk::Chunk;
use crate::error::DataError;

/// The number of bytes kept of a line or row that cannot be read.
pub(super) const KEPT_OF_REFUSED: usize = 4096;
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The most lines or rows of a chunk. What is known of a rejected line takes hundreds of bytes, so that a
/// megabyte of lines of three bytes would take a quarter of a gigabyte, several times for each core.
pub(super) const MOST_LINES: usize = 16 << 10;

/// Reads one file.
pub(crate) trait ReadChunks {
    /// Returns the next chunk of about `chunk_bytes` and at most [`MOST_LINES`], or `None` at the end. Its
    /// bytes are those of `buffer`, which is empty before.
    fn next(&mut self, buffer: &mut Vec<u8>, chunk_bytes: usize) -> Result<Option<Chunk>, DataError>;
}

/// The decompressed bytes of a file.
pub(super) struct Stream<'a> {
    pub path: &'a Path,
    pub reader: Box<dyn Read + Send>,
    pub is_compressed: bool,
}

impl Stream<'_> {
    /// Appends at most this many bytes, and fewer only at the end of the file. Returns their number.
    pub(super) fn read(&mut self, buffer: &mut Vec<u8>, at_most: usize) -> Result<usize, DataError> {
        // `read_to_end` with a limit fills spare capacity without zeroing it first.
        self.reader.by_ref().take(at_most as u64).read_to_end(buffer).map_err(|e| match e.kind() {
            io::ErrorKind::Interrupted | io::ErrorKind::PermissionDenied => {
                DataError::io("read", self.path)(e)
            }
            _ if self.is_compressed => {
                DataError::Compressed { path: self.path.to_owned(), message: e.to_string() }
            }
            _ => DataError::io("read", self.path)(e),
        })
    }

    /// Removes the byte-order mark from the beginning of a file.
    ///
    /// # Errors
    /// The file is no text in UTF-8, but of another kind that is known.
    pub(super) fn begin(&self, start: &mut Vec<u8>) -> Result<(), DataError> {
        if let Some(OtherKind { problem, fix }) = other_kind(start) {
            return Err(DataError::input(self.path, problem, fix));
        }
        if start.starts_with(BYTE_ORDER_MARK) {
            start.drain(..BYTE_ORDER_MARK.len());
        }
        Ok(())
    }
}
