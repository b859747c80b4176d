//! Reads inputs of any size as chunks of whole lines, in bounded memory, and processes them on all cores with
//! the results in file order.
//!
//! Owns the splitting at line ends and the pipeline: while one batch of chunks is processed, the next is
//! read. Chunked reads have three advantages over a memory map: compressed inputs take the same path, a file
//! that is truncated meanwhile causes an error instead of a SIGBUS, and the copy costs only a tenth of the
//! validation.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use crate::error::DataError;
use crate::format::Format;
use crate::progress::{Phase, Progress, Step};
use crate::source::{self, Source, SourceFile};

/// The length in bytes of the longest line accepted. A line is held in memory as a whole.
pub(crate) const MAX_LINE_BYTES: usize = 64 << 20;
/// The number of bytes kept of a line that is longer.
const KEPT_OF_TOO_LONG: usize = 4096;

/// Whole lines of one file.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// Index into [`Source::files`].
    pub file: u32,
    /// The format of the file, if it is known already.
    pub format: Option<Format>,
    /// The number of the first line, counted from 1.
    pub first_line: u64,
    /// The lines, without a byte-order mark.
    pub bytes: Vec<u8>,
    /// The length in bytes of a line that is too long; `bytes` then contains only its beginning.
    pub too_long: Option<u64>,
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

/// The files to read, and how.
pub(crate) struct Reading<'a> {
    pub source: &'a Source,
    pub format: Option<Format>,
    pub phase: Phase,
    /// The target size of a chunk. Small chunks balance better when the work per byte is slow.
    pub chunk_bytes: usize,
}

impl Reading<'_> {
    /// Calls `work` on every chunk, on all threads of the current rayon pool, and passes its results to
    /// `fold` in file order. `fold` returns the number of examples accepted so far, for progress.
    pub(crate) fn run<R: Send>(
        &self,
        progress: &dyn Progress,
        work: impl Fn(&Chunk) -> R + Sync,
        mut fold: impl FnMut(R) -> Result<u64, DataError>,
    ) -> Result<(), DataError> {
        let in_flight = rayon::current_num_threads() * 4;
        let mut reader = ChunkReader::new(self);
        let total = self.source.total_bytes();
        let mut batch = reader.batch(in_flight, Vec::new())?;
        let mut spare: Vec<Vec<u8>> = Vec::new();
        let mut examples = 0;
        while !batch.is_empty() {
            let read_so_far = reader.bytes_on_disk();
            let (next, results) = rayon::join(
                || reader.batch(in_flight, std::mem::take(&mut spare)),
                || batch.par_iter().with_max_len(1).map(&work).collect::<Vec<R>>(),
            );
            for result in results {
                examples = fold(result)?;
            }
            progress.step(Step { phase: self.phase, bytes_done: read_so_far, bytes_total: total, examples });
            if progress.cancelled() {
                return Err(DataError::Cancelled);
            }
            let done = std::mem::replace(&mut batch, next?);
            // A buffer that grew for one long line is freed.
            spare =
                done.into_iter().map(|c| c.bytes).filter(|b| b.capacity() <= 4 * self.chunk_bytes).collect();
        }
        Ok(())
    }
}

/// Reads the first chunks of a source, in order and on this thread, up to about `max_bytes` of text. Also
/// returns whether that was everything.
pub(crate) fn head(
    source: &Source,
    format: Option<Format>,
    max_bytes: usize,
) -> Result<(Vec<Chunk>, bool), DataError> {
    let reading = Reading { source, format, phase: Phase::Check, chunk_bytes: max_bytes.clamp(1, 1 << 20) };
    let mut reader = ChunkReader::new(&reading);
    let (mut chunks, mut bytes) = (Vec::new(), 0);
    while bytes < max_bytes {
        let Some(chunk) = reader.next(Vec::new())? else { return Ok((chunks, true)) };
        bytes += chunk.bytes.len();
        chunks.push(chunk);
    }
    let whole = reader.next(Vec::new())?.is_none();
    Ok((chunks, whole))
}

struct ChunkReader<'a> {
    files: std::iter::Enumerate<std::slice::Iter<'a, SourceFile>>,
    format: Option<Format>,
    chunk_bytes: usize,
    current: Option<Current<'a>>,
    /// The number of bytes on disk of the files already finished.
    finished: u64,
}

struct Current<'a> {
    index: u32,
    file: &'a SourceFile,
    reader: Box<dyn Read + Send>,
    position: Arc<AtomicU64>,
    compressed: bool,
    format: Option<Format>,
    /// The beginning of a line whose end was not read yet.
    carry: Vec<u8>,
    next_line: u64,
    at_start: bool,
}

impl<'a> ChunkReader<'a> {
    fn new(reading: &Reading<'a>) -> Self {
        Self {
            files: reading.source.files().iter().enumerate(),
            format: reading.format,
            chunk_bytes: reading.chunk_bytes,
            current: None,
            finished: 0,
        }
    }

    fn bytes_on_disk(&self) -> u64 {
        self.finished + self.current.as_ref().map_or(0, |c| c.position.load(Ordering::Relaxed))
    }

    fn batch(&mut self, count: usize, mut buffers: Vec<Vec<u8>>) -> Result<Vec<Chunk>, DataError> {
        let mut batch = Vec::with_capacity(count);
        let mut bytes = 0;
        // Very long lines make very large chunks, so the batch is limited by bytes too.
        while batch.len() < count && bytes < count * self.chunk_bytes {
            match self.next(buffers.pop().unwrap_or_default())? {
                Some(chunk) => {
                    bytes += chunk.bytes.len();
                    batch.push(chunk);
                }
                None => break,
            }
        }
        Ok(batch)
    }

    fn next(&mut self, mut buffer: Vec<u8>) -> Result<Option<Chunk>, DataError> {
        loop {
            let current = match &mut self.current {
                Some(current) => current,
                None => {
                    let Some((index, file)) = self.files.next() else { return Ok(None) };
                    let opened = source::open(file)?;
                    self.current.insert(Current {
                        index: index as u32,
                        file,
                        reader: opened.reader,
                        position: opened.position,
                        compressed: opened.compressed,
                        format: self.format,
                        carry: Vec::new(),
                        next_line: 1,
                        at_start: true,
                    })
                }
            };
            if let Some(chunk) = current.next(&mut buffer, self.chunk_bytes)? {
                return Ok(Some(chunk));
            }
            self.finished += current.file.bytes;
            self.current = None;
        }
    }
}

impl Current<'_> {
    fn next(&mut self, buffer: &mut Vec<u8>, chunk_bytes: usize) -> Result<Option<Chunk>, DataError> {
        buffer.clear();
        buffer.append(&mut self.carry);
        let mut searched = 0;
        loop {
            let read = self.read(buffer, chunk_bytes)?;
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
        if buffer.is_empty() {
            return Ok(None);
        }
        if self.at_start {
            self.at_start = false;
            self.check_encoding(buffer)?;
            if buffer.starts_with(b"\xef\xbb\xbf") {
                buffer.drain(..3);
            }
        }
        if self.format.is_none() {
            self.format = Format::detect(lines(buffer, 1).map(|l| l.bytes));
        }
        let first_line = self.next_line;
        let unfinished = usize::from(buffer.last().is_some_and(|&b| b != b'\n'));
        self.next_line += (memchr::memchr_iter(b'\n', buffer).count() + unfinished) as u64;
        Ok(Some(Chunk {
            file: self.index,
            format: self.format,
            first_line,
            bytes: std::mem::take(buffer),
            too_long: None,
        }))
    }

    fn read(&mut self, buffer: &mut Vec<u8>, at_most: usize) -> Result<usize, DataError> {
        // `read_to_end` with a limit fills spare capacity without zeroing it first.
        self.reader.by_ref().take(at_most as u64).read_to_end(buffer).map_err(|e| match e.kind() {
            io::ErrorKind::Interrupted | io::ErrorKind::PermissionDenied => {
                DataError::io("read", &self.file.path)(e)
            }
            _ if self.compressed => {
                DataError::Compressed { path: self.file.path.clone(), message: e.to_string() }
            }
            _ => DataError::io("read", &self.file.path)(e),
        })
    }

    /// Reads to the end of a line that is too long, keeping its beginning.
    fn skip_line(&mut self, buffer: &mut Vec<u8>, chunk_bytes: usize) -> Result<Chunk, DataError> {
        let mut length = buffer.len() as u64;
        buffer.truncate(KEPT_OF_TOO_LONG);
        let mut piece = Vec::new();
        loop {
            piece.clear();
            if self.read(&mut piece, chunk_bytes)? == 0 {
                break;
            }
            if let Some(end) = memchr::memchr(b'\n', &piece) {
                length += end as u64;
                self.carry.extend_from_slice(&piece[end + 1..]);
                break;
            }
            length += piece.len() as u64;
        }
        self.at_start = false;
        self.next_line += 1;
        Ok(Chunk {
            file: self.index,
            format: self.format,
            first_line: self.next_line - 1,
            bytes: buffer.split_off(0),
            too_long: Some(length),
        })
    }

    fn check_encoding(&self, start: &[u8]) -> Result<(), DataError> {
        let utf16 = start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff");
        if utf16 {
            return Err(DataError::input(
                &self.file.path,
                "this file is UTF-16, but JSON lines must be UTF-8",
                "Convert it: iconv -f UTF-16 -t UTF-8 IN > OUT",
            ));
        }
        if self.file.path.extension().is_some_and(|end| end.eq_ignore_ascii_case("csv")) {
            return Err(DataError::input(
                &self.file.path,
                "this file is CSV, not JSON lines",
                "Convert it: python3 -c 'import csv, json, sys; [print(json.dumps(row)) for row in \
                 csv.DictReader(sys.stdin)]' < IN > OUT",
            ));
        }
        let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
        if text.first() == Some(&b'[') {
            return Err(DataError::input(
                &self.file.path,
                "this file begins with `[`: it is one JSON array, not one JSON object per line",
                "Convert it: jq -c '.[]' IN > OUT",
            ));
        }
        Ok(())
    }
}
