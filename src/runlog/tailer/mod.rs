//! Reads the events of a run in order while they are being written, across attempts.
//!
//! Only newline-terminated lines are events; an incomplete last line stays pending until its end arrives or a
//! later attempt shows that it never will. Each event is delivered once, even when a file shrinks or is
//! replaced and has to be read again. One poll is bounded in events and in time, so that a screen stays
//! responsive while it reads a million steps. Memory is bounded too, for files of any content.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memchr::{memchr_iter, memrchr};
use sparktune_base::regular_file::open_regular;

use crate::error::{Doing, Error, Result};
use crate::event::{EVENT_VERSION, Event, Unreadable};
use crate::lines::{self, ParsedLine};
use crate::notice::Notice;
use crate::run_dir::{RunDir, attempts_in};

mod seek;

/// The most bytes that are read at once.
const CHUNK: usize = 4 * 1024 * 1024;
/// The bytes that are read at once for each line of a poll of few lines: about eight usual lines.
const CHUNK_FOR_LINE: usize = 4 * 1024;
/// The length above which a line cannot be an event and is skipped instead of being held in memory.
const LONGEST_LINE: usize = 16 * 1024 * 1024;

/// The limit of one poll. A screen that opens a long log polls until [`Polled::at_end`] and draws in between.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// The number of lines.
    pub lines: usize,
    /// The time, which is checked after every few megabytes.
    pub time: Duration,
}

impl Default for Limit {
    fn default() -> Self {
        Limit { lines: 200_000, time: Duration::from_millis(50) }
    }
}

impl Limit {
    /// No limit, for callers that want everything at once.
    pub const NONE: Limit = Limit { lines: usize::MAX, time: Duration::MAX };
}

/// An event and the line it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The event.
    pub event: Event,
    /// Its line without the newline, to forward kinds and fields that this sparktune does not know.
    pub raw: String,
}

/// The result of one [`EventTailer::poll`].
#[derive(Debug, Default)]
pub struct Batch {
    /// The new events in order.
    pub records: Vec<Record>,
    /// Notices about problems of the files.
    pub notices: Vec<Notice>,
    /// Whether everything that is complete in the files so far was delivered.
    pub at_end: bool,
}

/// The summary of one [`EventTailer::poll_with`].
#[derive(Debug, Default)]
pub struct Polled {
    /// The number of events delivered.
    pub events: usize,
    /// Notices about problems of the files.
    pub notices: Vec<Notice>,
    /// Whether everything that is complete in the files so far was delivered.
    pub at_end: bool,
    /// The size of an incomplete line at the end: it is being written or, when no trainer is alive, was
    /// truncated by the end of the trainer.
    pub unfinished_bytes: usize,
    /// Whether the file or folder is missing: moved, deleted, or on a removed disk. It may come back.
    pub gone: bool,
}

/// Reads a run's events, starting with the first attempt.
#[derive(Debug)]
pub struct EventTailer {
    folder: PathBuf,
    /// The number of the attempt being read; 0 before the first file appears.
    attempt: u32,
    file: PathBuf,
    identity: Option<(u64, u64)>,
    /// The total number of bytes of the file that were read into `pending`.
    offset: u64,
    line_no: u64,
    pending: Vec<u8>,
    /// The start of the first line in `pending` that was not delivered.
    start: usize,
    /// The end of the range `pending[start..scanned]`, which contains no newline.
    scanned: usize,
    /// Whether the reader is inside a line that is skipped up to its newline.
    skipping: bool,
    /// The number of the last event delivered; `None` if reading began in the middle.
    last_seq: Option<u64>,
    /// Whether an event of this attempt is known, so that its file has the format of this program.
    is_readable: bool,
    /// The next attempt, if it exists, so that this file will not grow any more.
    next: Option<u32>,
    gone: bool,
    malformed: u64,
    /// The size from which blocks are read by two threads.
    shared_from: usize,
}

impl EventTailer {
    /// Creates a tailer of the whole run.
    pub fn new(run: &RunDir) -> Self {
        let mut tailer = EventTailer {
            folder: run.events(),
            attempt: 0,
            file: run.events(),
            identity: None,
            offset: 0,
            line_no: 0,
            pending: Vec::new(),
            start: 0,
            scanned: 0,
            skipping: false,
            last_seq: Some(0),
            is_readable: false,
            next: None,
            gone: false,
            malformed: 0,
            shared_from: lines::shared_from(),
        };
        tailer.begin(0);
        tailer
    }

    /// Creates a tailer that begins shortly before an event, or with it, without reading what comes before:
    /// for watchers that know the rest. An attempt that does not exist yet is waited for.
    ///
    /// # Errors
    /// [`Error::Io`] when the events cannot be listed or read.
    pub fn beginning_near(run: &RunDir, attempt: u32, seq: u64) -> Result<Self> {
        let mut tailer = EventTailer::new(run);
        let attempts = match run.attempts() {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(tailer),
            attempts => attempts?,
        };
        // In an earlier attempt than the wanted one, only the end is of interest.
        let Some(first) = attempts.into_iter().rfind(|number| *number <= attempt) else { return Ok(tailer) };
        let seq = if first == attempt { seq } else { u64::MAX };
        tailer.begin(first);
        let file = open_regular(&tailer.file).doing("open", &tailer.file)?;
        let meta = file.metadata().doing("read", &tailer.file)?;
        tailer.offset = seek::line_before(&file, meta.len(), seq).doing("read", &tailer.file)?;
        tailer.identity = Some((meta.dev(), meta.ino()));
        if tailer.offset > 0 {
            tailer.last_seq = None;
        }
        Ok(tailer)
    }

    /// Moves to the last attempt and, in it, to the first line that begins in the last `bytes`. This serves a
    /// glance at a run whose middle does not matter.
    pub(crate) fn skip_to_last(&mut self, attempt: u32, bytes: u64) {
        let is_readable = self.is_readable && self.attempt == attempt;
        self.begin(attempt);
        self.is_readable = is_readable;
        let Ok(meta) = fs::metadata(&self.file) else { return };
        if meta.len() > bytes {
            self.identity = Some((meta.dev(), meta.ino()));
            self.offset = meta.len() - bytes;
            self.skipping = true;
            self.last_seq = None;
        }
    }

    /// Moves to the beginning of an attempt.
    pub(crate) fn begin(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.file = self.folder.join(format!("{attempt:04}.jsonl"));
        self.next = None;
        self.gone = false;
        self.last_seq = Some(0);
        self.is_readable = false;
        self.rewind();
    }

    fn rewind(&mut self) {
        self.identity = None;
        self.offset = 0;
        self.line_no = 0;
        self.pending.clear();
        self.start = 0;
        self.scanned = 0;
        self.skipping = false;
    }

    /// Returns the number of lines skipped so far because they are not events.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Returns new events, up to `limit`, as owned records.
    ///
    /// # Errors
    /// The same as for [`EventTailer::poll_with`].
    pub fn poll(&mut self, limit: Limit) -> Result<Batch> {
        let mut records = Vec::new();
        let polled = self.poll_with(limit, |event, line| {
            records.push(Record { event, raw: String::from_utf8_lossy(line).into_owned() });
        })?;
        Ok(Batch { records, notices: polled.notices, at_end: polled.at_end })
    }

    /// Passes new events, up to `limit`, to `visit`: each event, and its line without the newline, to forward
    /// data that this sparktune does not know.
    ///
    /// # Errors
    /// [`Error::NewerEvents`] if the first event of a file has a newer format, and
    /// [`Error::Io`] when a file that exists cannot be read.
    pub fn poll_with(&mut self, limit: Limit, mut visit: impl FnMut(Event, &[u8])) -> Result<Polled> {
        let begun = Instant::now();
        let mut polled = Polled::default();
        let mut lines_left = limit.lines;
        let chunk = limit.lines.saturating_mul(CHUNK_FOR_LINE).clamp(CHUNK_FOR_LINE, CHUNK);
        loop {
            while let Some(end) = self.whole_lines(lines_left) {
                if let Err(newer) = self.take_block(end, &mut lines_left, &mut polled, &mut visit) {
                    if self.may_be_told_by_the_next() && self.read_chunk(chunk, &mut polled)? {
                        continue;
                    }
                    // The line stays in place, so that the next poll returns the error when nothing precedes
                    // it.
                    return if polled.events == 0 { Err(newer) } else { Ok(polled) };
                }
                if lines_left == 0 || begun.elapsed() > limit.time {
                    return Ok(polled);
                }
            }
            if self.attempt > 0 && self.read_chunk(chunk, &mut polled)? {
                if begun.elapsed() > limit.time {
                    return Ok(polled);
                }
                continue;
            }
            // This file has no more data. A later file proves that its writer is gone, but only bytes read
            // after that proof are complete, so there is one more round before moving on.
            if let Some(next) = self.next {
                let torn = self.pending.len() - self.start;
                if torn > 0 {
                    polled.notices.push(Notice::TornEnd { file: self.file.clone(), bytes: torn });
                }
                self.begin(next);
                continue;
            }
            self.next = self.later_attempt(&mut polled)?;
            if self.next.is_none() {
                polled.at_end = true;
                polled.gone = self.gone;
                polled.unfinished_bytes = self.pending.len() - self.start;
                return Ok(polled);
            }
        }
    }

    /// Returns the end of the complete lines in `pending`, at most `most`.
    fn whole_lines(&mut self, most: usize) -> Option<usize> {
        let unseen = &self.pending[self.scanned..];
        let last = match most {
            usize::MAX => memrchr(b'\n', unseen),
            most => memchr_iter(b'\n', unseen).take(most).last(),
        };
        let end = last.map(|newline| self.scanned + newline + 1);
        if end.is_none() {
            self.scanned = self.pending.len();
        }
        end
    }

    /// Delivers the lines up to `end`. Stops before an event of a newer format.
    fn take_block(
        &mut self,
        end: usize,
        lines_left: &mut usize,
        polled: &mut Polled,
        visit: &mut impl FnMut(Event, &[u8]),
    ) -> Result<()> {
        // The buffer is taken out, so that its lines can be read while the rest of the tailer changes.
        let pending = std::mem::take(&mut self.pending);
        let mut newer = None;
        let _ = lines::each_line(&pending[self.start..end], self.shared_from, |line, parsed| {
            let mut taken = self.take_line(line, parsed, polled, visit);
            if let Err(found) = taken
                && second_is_readable(&pending[self.start..])
            {
                // A line in another format than the next one is damaged.
                self.is_readable = true;
                taken = self.take_line(line, Some(Err(Unreadable::Newer(found))), polled, visit);
            }
            match taken {
                Ok(()) => {
                    self.start += line.len() + 1;
                    *lines_left = lines_left.saturating_sub(1);
                    ControlFlow::Continue(())
                }
                Err(found) => {
                    newer = Some(found);
                    ControlFlow::Break(())
                }
            }
        });
        self.pending = pending;
        self.scanned = self.start;
        newer.map_or(Ok(()), |found| {
            Err(Error::NewerEvents { path: self.file.clone(), found, known: EVENT_VERSION })
        })
    }

    /// Returns whether the line after the next one is to come, which tells whether the next one is damaged.
    fn may_be_told_by_the_next(&self) -> bool {
        let left = &self.pending[self.start..];
        memchr_iter(b'\n', left).nth(1).is_none() && left.len() <= LONGEST_LINE
    }

    /// Handles one line by its position. Returns the version of a newer format.
    fn take_line(
        &mut self,
        line: &[u8],
        parsed: ParsedLine,
        polled: &mut Polled,
        visit: &mut impl FnMut(Event, &[u8]),
    ) -> Result<(), u64> {
        let mut oddity = None;
        if std::mem::take(&mut self.skipping) {
            // This is the end of a line whose beginning was skipped.
        } else {
            match parsed {
                None => {}
                // A file is written in one format, so this is a damaged line.
                Some(Err(Unreadable::Newer(found))) if self.is_readable => {
                    oddity = Some(format!("its format is {found}, and that of the file is {EVENT_VERSION}"));
                }
                Some(Ok(event)) if event.attempt != self.attempt => {
                    oddity = Some(format!("it belongs to attempt {}", event.attempt));
                }
                Some(Ok(event)) => {
                    let expected = self.last_seq.map_or(event.seq, |last| last.saturating_add(1));
                    if event.seq > expected {
                        Notice::add_gap(&mut polled.notices, &self.file, expected, event.seq - 1);
                    }
                    if event.seq >= expected {
                        self.last_seq = Some(event.seq);
                        self.is_readable = true;
                        polled.events += 1;
                        visit(event, line);
                    }
                }
                Some(Err(Unreadable::Newer(found))) => return Err(found),
                Some(Err(Unreadable::Malformed(reason))) => oddity = Some(reason),
            }
        }
        self.line_no += 1;
        if let Some(reason) = oddity {
            self.note_malformed(reason, polled);
        }
        Ok(())
    }

    fn note_malformed(&mut self, reason: String, polled: &mut Polled) {
        self.malformed += 1;
        Notice::add_malformed(&mut polled.notices, &self.file, self.line_no, reason);
    }

    /// Appends at most `chunk` next bytes of the file to `pending`. Returns false if there are none now.
    fn read_chunk(&mut self, chunk: usize, polled: &mut Polled) -> Result<bool> {
        self.pending.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        if self.pending.len() > LONGEST_LINE {
            if !self.skipping {
                self.line_no += 1;
                self.note_malformed(format!("a line of more than {LONGEST_LINE} bytes"), polled);
                self.line_no -= 1;
            }
            self.skipping = true;
            self.pending.clear();
            self.scanned = 0;
        }
        // The file is opened again each time, because an open handle would not notice that the folder is
        // gone.
        let mut file = match open_regular(&self.file) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if !std::mem::replace(&mut self.gone, true) {
                    polled.notices.push(Notice::Vanished { file: self.file.clone() });
                }
                return Ok(false);
            }
            opened => opened.doing("open", &self.file)?,
        };
        self.gone = false;
        let meta = file.metadata().doing("read", &self.file)?;
        let identity = (meta.dev(), meta.ino());
        if meta.len() < self.offset || self.identity.is_some_and(|known| known != identity) {
            polled.notices.push(Notice::Rewritten { file: self.file.clone() });
            self.rewind();
        }
        self.identity = Some(identity);
        if meta.len() == self.offset {
            return Ok(false);
        }
        file.seek(SeekFrom::Start(self.offset)).doing("read", &self.file)?;
        self.pending.reserve(chunk);
        let read = file.take(chunk as u64).read_to_end(&mut self.pending).doing("read", &self.file)?;
        self.offset += read as u64;
        Ok(read > 0)
    }

    fn later_attempt(&mut self, polled: &mut Polled) -> Result<Option<u32>> {
        match attempts_in(&self.folder) {
            Ok(attempts) => {
                // Before the first attempt only the folder can be missing.
                self.gone &= self.attempt > 0;
                Ok(attempts.into_iter().filter(|n| *n > self.attempt).min())
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if !std::mem::replace(&mut self.gone, true) {
                    polled.notices.push(Notice::Vanished { file: self.folder.clone() });
                }
                Ok(None)
            }
            Err(e) => Err(e).doing("list", &self.folder),
        }
    }
}

/// Returns whether the second line of these is an event of this format.
fn second_is_readable(lines: &[u8]) -> bool {
    let mut lines = lines.split(|byte| *byte == b'\n').skip(1);
    lines.next().is_some_and(|line| Event::parse(line).is_ok())
}

#[cfg(test)]
mod tests;
