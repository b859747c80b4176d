//! Reads inputs of any size as chunks of whole lines, in bounded memory, and processes them on all cores with
//! the results in file order.
//!
//! Owns the pipeline: while one batch of chunks is processed, the next is read by the reader of its file's
//! kind (`readers`). Lines whose results would take too much memory are put off until those before them are
//! folded. Chunked reads have three advantages over a memory map: compressed inputs take the same
//! path, a file that is truncated meanwhile causes an error instead of a SIGBUS, and the copy costs only a
//! tenth of the validation.

use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, PoisonError};

use rayon::prelude::*;
use sparktune_base::field_map::FieldMap;

use crate::chunk::{Chunk, lines};
use crate::error::DataError;
use crate::format::Format;
use crate::mapped::{self, Columns};
use crate::progress::{Phase, Progress, Step};
use crate::readers::{self, OpenFile};
use crate::source::{Source, SourceFile};

/// The number of bytes of long lines that are worked on at a time, on however many cores. Rendering and
/// tokenising take up to a hundred times the memory of a line.
const LONG_AT_ONCE: usize = 8 << 20;

/// The files to read, and how.
pub(crate) struct Reading<'a> {
    pub source: &'a Source,
    pub format: Option<Format>,
    /// What the columns of foreign data stand for.
    pub map: &'a FieldMap,
    /// Notes the columns of the data, if there is a map.
    pub columns: &'a Columns,
    pub phase: Phase,
    /// The target size of a chunk. Small chunks balance better when the work per byte is slow.
    pub chunk_bytes: usize,
    /// Whether a file that cannot be read is told as a chunk, and the next one is read. The only file of a
    /// source ends the reading in any case.
    pub tells_refused_files: bool,
}

/// Where the work on a chunk begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkStart {
    /// The number of its lines that are done.
    pub lines: usize,
    /// Whether everything before these lines is folded.
    pub is_next: bool,
}

/// What was found in a chunk, or in some of its lines.
pub(crate) struct ChunkPart<R> {
    pub found: R,
    /// The number of its lines that are done now, if others are put off until this part is folded.
    pub done: Option<usize>,
}

/// A chunk and what was found in it so far.
struct Task<R> {
    chunk: Chunk,
    found: Vec<R>,
    /// The number of its lines that are done; `None` once all are.
    done: Option<usize>,
}

impl Reading<'_> {
    /// Calls `work` on every chunk, on all threads of the current rayon pool, and passes its results to
    /// `fold` in file order. `fold` returns the number of examples accepted so far, for progress.
    pub(crate) fn run<R: Send>(
        &self,
        progress: &dyn Progress,
        work: impl Fn(&Chunk) -> R + Sync,
        fold: impl FnMut(R) -> Result<u64, DataError>,
    ) -> Result<(), DataError> {
        self.run_in_parts(progress, |chunk, _| ChunkPart { found: work(chunk), done: None }, fold)
    }

    /// Like [`run`](Self::run), for work that may put off lines of a chunk, because what is found takes much
    /// memory until it is folded. Work on lines that are next does at least one.
    pub(crate) fn run_in_parts<R: Send>(
        &self,
        progress: &dyn Progress,
        work: impl Fn(&Chunk, ChunkStart) -> ChunkPart<R> + Sync,
        mut fold: impl FnMut(R) -> Result<u64, DataError>,
    ) -> Result<(), DataError> {
        let in_flight = rayon::current_num_threads() * 4;
        let mut reader = ChunkReader::new(self);
        let (phase, total) = (self.phase, self.source.total_bytes());
        let long = LongLines::default();
        let go_on = |task: &mut Task<R>, is_next: bool| {
            let Some(lines) = task.done else { return };
            // Only a long line makes a chunk so much larger than its target.
            let bytes = task.chunk.bytes.len();
            let _turn = (bytes > 2 * self.chunk_bytes).then(|| long.wait_for_room(bytes));
            let part = work(&task.chunk, ChunkStart { lines, is_next });
            if part.done != Some(lines) {
                task.found.push(part.found);
            }
            task.done = part.done;
        };
        let mut batch = reader.batch(in_flight, Vec::new())?;
        let mut spare: Vec<Vec<u8>> = Vec::new();
        let mut examples = 0;
        while !batch.is_empty() {
            let read_so_far = reader.bytes_on_disk();
            let new = |chunk| Task { chunk, found: Vec::new(), done: Some(0) };
            let mut tasks: Vec<Task<R>> = batch.into_iter().map(new).collect();
            let work_on = |tasks: &mut [Task<R>]| {
                tasks.par_iter_mut().with_max_len(1).enumerate().for_each(|(i, task)| go_on(task, i == 0));
            };
            let read = || reader.batch(in_flight, std::mem::take(&mut spare));
            let (next, ()) = rayon::join(read, || work_on(&mut tasks));
            let mut folded = 0;
            loop {
                for task in &mut tasks[folded..] {
                    for found in task.found.drain(..) {
                        examples = fold(found)?;
                    }
                    if task.done.is_some() {
                        break;
                    }
                    folded += 1;
                }
                progress.step(Step { phase, bytes_done: read_so_far, bytes_total: total, examples });
                if progress.cancelled() {
                    return Err(DataError::Cancelled);
                }
                if folded == tasks.len() {
                    break;
                }
                work_on(&mut tasks[folded..]);
            }
            batch = next?;
            // A buffer that grew for one long line is freed.
            let buffers = tasks.into_iter().map(|task| task.chunk.bytes);
            spare = buffers.filter(|bytes| bytes.capacity() <= 4 * self.chunk_bytes).collect();
        }
        Ok(())
    }
}

/// Lets as many long lines be worked on at a time as there is memory for.
#[derive(Default)]
struct LongLines {
    /// The bytes that are being worked on.
    bytes: Mutex<usize>,
    less: Condvar,
}

/// The work on a long line, until this is dropped.
struct Turn<'a> {
    of: &'a LongLines,
    bytes: usize,
}

impl LongLines {
    /// Waits until this many bytes can be worked on; a line that is longer than all room waits for all of it.
    fn wait_for_room(&self, bytes: usize) -> Turn<'_> {
        let bytes = bytes.min(LONG_AT_ONCE);
        let now = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |now: &mut usize| *now + bytes > LONG_AT_ONCE;
        *self.less.wait_while(now, full).unwrap_or_else(PoisonError::into_inner) += bytes;
        Turn { of: self, bytes }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.of.bytes.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.of.less.notify_all();
    }
}

/// Reads the first chunks of a source, in order and on this thread, up to about `max_bytes` of text. Also
/// returns whether that was everything.
pub(crate) fn head(
    source: &Source,
    format: Option<Format>,
    map: &FieldMap,
    max_bytes: usize,
) -> Result<(Vec<Chunk>, bool), DataError> {
    let (columns, chunk_bytes) = (&Columns::default(), max_bytes.clamp(1, 1 << 20));
    let phase = Phase::Check;
    let reading = Reading { source, format, map, columns, phase, chunk_bytes, tells_refused_files: true };
    let mut reader = ChunkReader::new(&reading);
    let (mut chunks, mut bytes) = (Vec::new(), 0);
    while bytes < max_bytes {
        let Some(chunk) = reader.next(Vec::new())? else { return Ok((chunks, true)) };
        // A rejected row may have no bytes, and still took some reading.
        bytes += chunk.bytes.len().max(1 << 10);
        chunks.push(chunk);
    }
    let whole = reader.next(Vec::new())?.is_none();
    Ok((chunks, whole))
}

struct ChunkReader<'a> {
    files: std::iter::Enumerate<std::slice::Iter<'a, SourceFile>>,
    format: Option<Format>,
    map: &'a FieldMap,
    columns: &'a Columns,
    chunk_bytes: usize,
    tells_refused_files: bool,
    current: Option<Current<'a>>,
    /// The number of bytes on disk of the files already finished.
    finished: u64,
}

struct Current<'a> {
    index: u32,
    file: &'a SourceFile,
    open: OpenFile<'a>,
    format: Option<Format>,
}

impl<'a> ChunkReader<'a> {
    fn new(reading: &Reading<'a>) -> Self {
        Self {
            files: reading.source.files().iter().enumerate(),
            format: reading.format,
            map: reading.map,
            columns: reading.columns,
            chunk_bytes: reading.chunk_bytes,
            tells_refused_files: reading.tells_refused_files && reading.source.files().len() > 1,
            current: None,
            finished: 0,
        }
    }

    fn bytes_on_disk(&self) -> u64 {
        self.finished + self.current.as_ref().map_or(0, |c| c.open.position.load(Ordering::Relaxed))
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
                    let index = index as u32;
                    match readers::open(file, self.format, self.map) {
                        Ok(open) => {
                            self.columns.see_names(&open.columns);
                            self.current.insert(Current { index, file, open, format: self.format })
                        }
                        Err(error) => return self.refused(index, file, error).map(Some),
                    }
                }
            };
            buffer.clear();
            let read = match current.open.reader.next(&mut buffer, self.chunk_bytes) {
                Ok(read) => read,
                Err(error) => {
                    let (index, file) = (current.index, current.file);
                    return self.refused(index, file, error).map(Some);
                }
            };
            if let Some(mut chunk) = read {
                chunk.file = current.index;
                if chunk.section.is_some() {
                    current.format = Some(Format::Text);
                    self.columns.see_text();
                } else if chunk.refused.is_none() {
                    if !self.map.is_empty() {
                        let renamed = mapped::renamed(&chunk.bytes, self.map, self.columns);
                        chunk.original = std::mem::replace(&mut chunk.bytes, renamed);
                    }
                    if current.format.is_none() {
                        current.format = Format::detect(lines(&chunk.bytes, 1).map(|l| l.bytes));
                    }
                }
                chunk.format = current.format;
                return Ok(Some(chunk));
            }
            self.finished += current.file.bytes;
            self.current = None;
        }
    }

    /// Leaves a file that cannot be read, and tells why instead of its lines.
    ///
    /// # Errors
    /// The error, if it ends the reading: the machine is its cause, or the file is the only one.
    fn refused(&mut self, index: u32, file: &SourceFile, error: DataError) -> Result<Chunk, DataError> {
        if !self.tells_refused_files || !error.is_data_fault() {
            return Err(error);
        }
        self.finished += file.bytes;
        self.current = None;
        Ok(Chunk { file: index, refused_file: Some(error.to_string()), ..Chunk::default() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::token_room::TokenRoom;

    /// What is found about short lines takes no more memory than what is found about long ones.
    #[test]
    fn a_chunk_has_a_bounded_number_of_lines_and_none_is_lost() {
        const MOST: usize = 16 << 10;
        let folder = tempfile::tempdir().unwrap();
        let several = 3 * MOST + 7;
        for (name, text, first) in [
            ("a.jsonl", "{}\n".repeat(several - 1) + "{}", 1),
            ("b.json", format!("[{}{{}}]", "{},".repeat(several - 1)), 1),
            ("c.csv", format!("text\n{}", "a\n".repeat(several)), 2),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            let source = Source::open(&[path]).unwrap();
            let (chunks, whole) = head(&source, None, &FieldMap::default(), 64 << 20).unwrap();
            assert!(whole && chunks.iter().all(|chunk| chunk.lines().count() <= MOST), "{name}");
            let found: Vec<u64> = chunks.iter().flat_map(Chunk::lines).map(|line| line.line_no).collect();
            assert!(found == (first..first + several as u64).collect::<Vec<_>>(), "{name}: {}", found.len());
        }
    }

    /// Each line has as many bytes of tokens as its text says.
    #[test]
    fn lines_wait_for_room_for_their_tokens_and_are_folded_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let sizes: Vec<usize> = [1, 300, 2, 63, 64, 65, 0, 30].into_iter().cycle().take(400).collect();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, sizes.iter().map(|size| format!("{size}\n")).collect::<String>()).unwrap();
        let (source, map, columns) =
            (Source::open(&[path]).unwrap(), FieldMap::default(), Columns::default());
        let reading = Reading {
            source: &source,
            format: None,
            map: &map,
            columns: &columns,
            phase: Phase::Check,
            chunk_bytes: 64,
            tells_refused_files: false,
        };
        let (room, now, most) = (TokenRoom::of(64), AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |chunk: &Chunk, begin: ChunkStart| {
            let mut found = Vec::new();
            for (done, line) in chunk.lines().enumerate().skip(begin.lines) {
                let size: usize = std::str::from_utf8(line.bytes).unwrap().parse().unwrap();
                if !room.take(size, begin.is_next && found.is_empty()) {
                    return ChunkPart { found, done: Some(done) };
                }
                most.fetch_max(now.fetch_add(size, Ordering::SeqCst) + size, Ordering::SeqCst);
                found.push(size);
            }
            ChunkPart { found, done: None }
        };
        let mut folded = Vec::new();
        let fold = |found: Vec<usize>| {
            for size in found {
                now.fetch_sub(size, Ordering::SeqCst);
                room.change(size, 0);
                folded.push(size);
            }
            Ok(0)
        };
        reading.run_in_parts(&(), work, fold).unwrap();
        assert_eq!(folded, sizes);
        assert!(most.into_inner() <= 64 + 300 && room.take(64, false));
    }

    #[test]
    fn long_lines_are_worked_on_while_there_is_room() {
        let (long, now, most) = (LongLines::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|threads| {
            for of in [1, 3, 8, 20].into_iter().cycle().take(16) {
                let (long, now, most) = (&long, &now, &most);
                threads.spawn(move || {
                    let bytes: usize = of << 20;
                    let _turn = long.wait_for_room(bytes);
                    let counted = bytes.min(LONG_AT_ONCE);
                    most.fetch_max(now.fetch_add(counted, Ordering::SeqCst) + counted, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    now.fetch_sub(counted, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(most.into_inner(), LONG_AT_ONCE);
        let both = Barrier::new(2);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    let _turn = long.wait_for_room(LONG_AT_ONCE / 2);
                    both.wait();
                });
            }
        });
        assert_eq!(*long.bytes.lock().unwrap(), 0);
    }
}
