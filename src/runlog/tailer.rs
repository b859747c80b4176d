//! Reads the events of a run in order while they are being written, across attempts.
//!
//! Only newline-terminated lines are events; what follows the last newline stays pending until its end arrives or a
//! later attempt shows that it never will. Each event is delivered once, even when a file shrinks or is replaced and
//! has to be read again. One [`EventTailer::poll`] is bounded in events and in time, so that a screen stays alive while
//! it catches up with a million steps.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{Doing, Error, Result};
use crate::event::{EVENT_VERSION, Event, Unreadable};
use crate::run_dir::RunDir;

const CHUNK: usize = 256 * 1024;
/// A longer line is no event of ours; it is skipped rather than held in memory.
const LONGEST_LINE: usize = 16 * 1024 * 1024;
const LINES_PER_CLOCK: usize = 64;

/// Bound of one poll.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// Lines looked at.
    pub lines: usize,
    /// Time spent; checked every few lines.
    pub time: Duration,
}

impl Default for Limit {
    fn default() -> Self {
        Limit { lines: 10_000, time: Duration::from_millis(50) }
    }
}

/// An event and the line it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The event.
    pub event: Event,
    /// Its line without the newline, for passing on kinds and fields this sparktune does not know.
    pub raw: String,
}

/// What one poll brought.
#[derive(Debug, Default)]
pub struct Batch {
    /// New events in order.
    pub records: Vec<Record>,
    /// What was odd, in words.
    pub notices: Vec<Notice>,
    /// Everything that is complete in the files so far was delivered.
    pub at_end: bool,
}

/// Something odd about an event file that does not stop the reading. Display says it in words.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // the words are in Display
pub enum Notice {
    /// Lines that are no events were skipped: how many in this poll, and the first one.
    Malformed { file: PathBuf, count: u64, first_line: u64, reason: String },
    /// The attempt ended within a line, as after a kill or a power cut.
    TornEnd { file: PathBuf, bytes: usize },
    /// Events are missing from the numbering.
    Gap { file: PathBuf, from_seq: u64, to_seq: u64 },
    /// The file became shorter or another one.
    Rewritten { file: PathBuf },
    /// The file is gone.
    Vanished { file: PathBuf },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Malformed { file, count, first_line, reason } => write!(
                f,
                "{}:{first_line}: {count} line(s) skipped that are no events; the first: {reason}",
                file.display()
            ),
            Notice::TornEnd { file, bytes } => {
                write!(
                    f,
                    "{}: ends within a line ({bytes} bytes), as a killed trainer leaves it",
                    file.display()
                )
            }
            Notice::Gap { file, from_seq, to_seq } => {
                write!(f, "{}: events {from_seq} to {to_seq} are missing", file.display())
            }
            Notice::Rewritten { file } => write!(
                f,
                "{}: was shortened or replaced, which sparktune never does; it is read again and known events are passed over",
                file.display()
            ),
            Notice::Vanished { file } => {
                write!(f, "{}: is gone; was the run folder moved or deleted?", file.display())
            }
        }
    }
}

/// Reader of a run's events, from the first attempt on.
#[derive(Debug)]
pub struct EventTailer {
    folder: PathBuf,
    /// Attempt being read; 0 before the first file appeared.
    attempt: u32,
    file: PathBuf,
    identity: Option<(u64, u64)>,
    /// Bytes of the file taken over into `pending`, ever.
    offset: u64,
    line_no: u64,
    pending: Vec<u8>,
    /// Start of the first line in `pending` that is not delivered.
    start: usize,
    /// `pending[start..scanned]` holds no newline.
    scanned: usize,
    /// Inside a line that is thrown away up to its newline.
    skipping: bool,
    /// Number of the last event delivered; `None` where reading began in the middle.
    last_seq: Option<u64>,
    /// A later attempt exists, so this file will not grow any more.
    next: Option<u32>,
    vanished: bool,
    malformed: u64,
}

impl EventTailer {
    /// A tailer of the whole run.
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
            next: None,
            vanished: false,
            malformed: 0,
        };
        tailer.begin(0);
        tailer
    }

    /// Goes to the last attempt and, there, to the first line that begins in the last `bytes`. For a glance at a run
    /// whose middle does not matter.
    pub(crate) fn skip_to_last(&mut self, attempt: u32, bytes: u64) {
        self.begin(attempt);
        let Ok(meta) = fs::metadata(&self.file) else { return };
        if meta.len() > bytes {
            self.identity = Some((meta.dev(), meta.ino()));
            self.offset = meta.len() - bytes;
            self.skipping = true;
            self.last_seq = None;
        }
    }

    /// Goes to the beginning of an attempt.
    pub(crate) fn begin(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.file = self.folder.join(format!("{attempt:04}.jsonl"));
        self.next = None;
        self.vanished = false;
        self.last_seq = Some(0);
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

    /// Lines skipped so far because they are no events.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Delivers what is new, up to `limit`.
    ///
    /// # Errors
    /// [`Error::NewerEvents`] at an event of a newer format (what came before it was delivered), and [`Error::Io`] when
    /// a file that exists cannot be read.
    pub fn poll(&mut self, limit: Limit) -> Result<Batch> {
        let begun = Instant::now();
        let mut batch = Batch::default();
        let mut lines = 0;
        loop {
            while let Some(end) = self.next_newline() {
                if lines >= limit.lines
                    || (lines % LINES_PER_CLOCK == 0 && lines > 0 && begun.elapsed() > limit.time)
                {
                    return Ok(batch);
                }
                lines += 1;
                if let Err(newer) = self.take_line(end, &mut batch) {
                    // Left in place, so that the next poll says it again with nothing before it.
                    return if batch.records.is_empty() { Err(newer) } else { Ok(batch) };
                }
            }
            if self.attempt > 0 && self.read_chunk(&mut batch)? {
                if begun.elapsed() > limit.time {
                    return Ok(batch);
                }
                continue;
            }
            // Nothing more in this file. A later file proves that its writer is gone, but only bytes read after that
            // proof are all of it: hence one more round before moving on.
            if let Some(next) = self.next {
                let torn = self.pending.len() - self.start;
                if torn > 0 {
                    batch.notices.push(Notice::TornEnd { file: self.file.clone(), bytes: torn });
                }
                self.begin(next);
                continue;
            }
            self.next = self.later_attempt(&mut batch)?;
            if self.next.is_none() {
                batch.at_end = true;
                return Ok(batch);
            }
        }
    }

    fn next_newline(&mut self) -> Option<usize> {
        let found = self.pending[self.scanned..].iter().position(|b| *b == b'\n').map(|i| self.scanned + i);
        self.scanned = found.unwrap_or(self.pending.len());
        found
    }

    fn take_line(&mut self, end: usize, batch: &mut Batch) -> Result<()> {
        let line = &self.pending[self.start..end];
        let mut oddity = None;
        if std::mem::take(&mut self.skipping) {
            // The end of a line whose beginning was thrown away.
        } else if !line.trim_ascii().is_empty() {
            match Event::parse(line) {
                Ok(event) if event.attempt != self.attempt => {
                    oddity = Some(format!("it belongs to attempt {}", event.attempt));
                }
                Ok(event) => {
                    let expected = self.last_seq.map_or(event.seq, |last| last + 1);
                    if event.seq > expected {
                        let (from_seq, to_seq) = (expected, event.seq - 1);
                        batch.notices.push(Notice::Gap { file: self.file.clone(), from_seq, to_seq });
                    }
                    if event.seq >= expected {
                        self.last_seq = Some(event.seq);
                        batch.records.push(Record { event, raw: String::from_utf8_lossy(line).into_owned() });
                    }
                }
                Err(Unreadable::Newer(found)) => {
                    return Err(Error::NewerEvents { path: self.file.clone(), found, known: EVENT_VERSION });
                }
                Err(Unreadable::Malformed(reason)) => oddity = Some(reason),
            }
        }
        self.start = end + 1;
        self.scanned = self.start;
        self.line_no += 1;
        if let Some(reason) = oddity {
            self.note_malformed(reason, batch);
        }
        Ok(())
    }

    fn note_malformed(&mut self, reason: String, batch: &mut Batch) {
        self.malformed += 1;
        for notice in &mut batch.notices {
            if let Notice::Malformed { file, count, .. } = notice
                && *file == self.file
            {
                *count += 1;
                return;
            }
        }
        let (file, first_line) = (self.file.clone(), self.line_no);
        batch.notices.push(Notice::Malformed { file, count: 1, first_line, reason });
    }

    /// Appends the next bytes of the file to `pending`; false when there are none now.
    fn read_chunk(&mut self, batch: &mut Batch) -> Result<bool> {
        self.pending.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        if self.pending.len() > LONGEST_LINE {
            if !self.skipping {
                self.line_no += 1;
                self.note_malformed(format!("a line of more than {LONGEST_LINE} bytes"), batch);
                self.line_no -= 1;
            }
            self.skipping = true;
            self.pending.clear();
            self.scanned = 0;
        }
        // Opened anew each time: a handle kept open would not notice that the folder is gone.
        let mut file = match File::open(&self.file) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if !std::mem::replace(&mut self.vanished, true) {
                    batch.notices.push(Notice::Vanished { file: self.file.clone() });
                }
                return Ok(false);
            }
            opened => opened.doing("open", &self.file)?,
        };
        self.vanished = false;
        let meta = file.metadata().doing("read", &self.file)?;
        let identity = (meta.dev(), meta.ino());
        if meta.len() < self.offset || self.identity.is_some_and(|known| known != identity) {
            batch.notices.push(Notice::Rewritten { file: self.file.clone() });
            self.rewind();
        }
        self.identity = Some(identity);
        if meta.len() == self.offset {
            return Ok(false);
        }
        file.seek(SeekFrom::Start(self.offset)).doing("read", &self.file)?;
        let read = file.take(CHUNK as u64).read_to_end(&mut self.pending).doing("read", &self.file)?;
        self.offset += read as u64;
        Ok(read > 0)
    }

    fn later_attempt(&mut self, batch: &mut Batch) -> Result<Option<u32>> {
        match attempts_in(&self.folder) {
            Ok(attempts) => Ok(attempts.into_iter().filter(|n| *n > self.attempt).min()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if !std::mem::replace(&mut self.vanished, true) {
                    batch.notices.push(Notice::Vanished { file: self.folder.clone() });
                }
                Ok(None)
            }
            Err(e) => Err(e).doing("list", &self.folder),
        }
    }
}

pub(crate) fn attempts_in(events: &Path) -> io::Result<Vec<u32>> {
    let mut attempts = Vec::new();
    for entry in fs::read_dir(events)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|n| n.strip_suffix(".jsonl")).and_then(|n| n.parse().ok());
        attempts.extend(number.filter(|n: &u32| *n > 0));
    }
    Ok(attempts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Kind, Warning};
    use proptest::prelude::*;
    use std::io::Write;

    fn run() -> (tempfile::TempDir, RunDir) {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path().join("r")).unwrap();
        (root, run)
    }

    fn line(attempt: u32, seq: u64) -> String {
        let kind = Kind::Warning(Warning { message: format!("nr {seq} \u{fc}"), step: None });
        Event { attempt, seq, time_us: 1, kind }.to_line().unwrap()
    }

    fn append(path: &Path, bytes: &[u8]) {
        fs::OpenOptions::new().append(true).create(true).open(path).unwrap().write_all(bytes).unwrap();
    }

    /// Polls until nothing is left; (attempt, seq) of all events, and the notices.
    fn drain(tailer: &mut EventTailer) -> (Vec<(u32, u64)>, Vec<Notice>) {
        let (mut seen, mut notices) = (Vec::new(), Vec::new());
        loop {
            let batch = tailer.poll(Limit::default()).unwrap();
            seen.extend(batch.records.iter().map(|r| (r.event.attempt, r.event.seq)));
            notices.extend(batch.notices);
            if batch.at_end {
                return (seen, notices);
            }
        }
    }

    #[test]
    fn a_line_is_delivered_when_its_newline_arrives_and_not_before() {
        let (_root, run) = run();
        let mut tailer = EventTailer::new(&run);
        assert_eq!(drain(&mut tailer), (vec![], vec![]));
        let text = line(1, 1);
        let (head, tail) = text.split_at(text.len() - 1);
        append(&run.event_file(1), head.as_bytes());
        assert_eq!(drain(&mut tailer), (vec![], vec![]));
        append(&run.event_file(1), tail.as_bytes());
        assert_eq!(drain(&mut tailer), (vec![(1, 1)], vec![]));
    }

    #[test]
    fn new_attempts_are_followed_and_a_torn_end_is_said() {
        let (_root, run) = run();
        let mut tailer = EventTailer::new(&run);
        append(&run.event_file(1), line(1, 1).as_bytes());
        append(&run.event_file(1), b"{\"v\":1,\"att");
        assert_eq!(drain(&mut tailer), (vec![(1, 1)], vec![]));
        append(&run.event_file(2), line(2, 1).as_bytes());
        let torn = Notice::TornEnd { file: run.event_file(1), bytes: 11 };
        assert_eq!(drain(&mut tailer), (vec![(2, 1)], vec![torn]));
    }

    #[test]
    fn bytes_that_the_dying_writer_added_last_are_read_before_the_next_attempt() {
        let (_root, run) = run();
        let mut tailer = EventTailer::new(&run);
        append(&run.event_file(1), line(1, 1).as_bytes());
        drain(&mut tailer);
        append(&run.event_file(1), line(1, 2).as_bytes());
        append(&run.event_file(2), line(2, 1).as_bytes());
        assert_eq!(drain(&mut tailer).0, [(1, 2), (2, 1)]);
    }

    #[test]
    fn a_shortened_file_is_said_and_no_event_comes_twice() {
        let (_root, run) = run();
        let file = run.event_file(1);
        let mut tailer = EventTailer::new(&run);
        let three: String = (1..=3).map(|n| line(1, n)).collect();
        append(&file, three.as_bytes());
        assert_eq!(drain(&mut tailer).0.len(), 3);
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(line(1, 1).len() as u64).unwrap();
        assert_eq!(drain(&mut tailer), (vec![], vec![Notice::Rewritten { file: file.clone() }]));
        append(&file, (2..=4).map(|n| line(1, n)).collect::<String>().as_bytes());
        assert_eq!(drain(&mut tailer), (vec![(1, 4)], vec![]));
    }

    #[test]
    fn a_vanished_folder_is_said_once_and_may_come_back() {
        let (_root, run) = run();
        let mut tailer = EventTailer::new(&run);
        append(&run.event_file(1), line(1, 1).as_bytes());
        drain(&mut tailer);
        let moved = run.path().with_extension("moved");
        fs::rename(run.path(), &moved).unwrap();
        let (seen, notices) = drain(&mut tailer);
        assert!(seen.is_empty());
        assert_eq!(notices, [Notice::Vanished { file: run.event_file(1) }]);
        assert_eq!(drain(&mut tailer), (vec![], vec![]));
        fs::rename(&moved, run.path()).unwrap();
        append(&run.event_file(1), line(1, 2).as_bytes());
        assert_eq!(drain(&mut tailer), (vec![(1, 2)], vec![]));
    }

    #[test]
    fn a_newer_format_is_refused_after_what_came_before_it() {
        let (_root, run) = run();
        append(&run.event_file(1), format!("{}{{\"v\":2}}\n{}", line(1, 1), line(1, 2)).as_bytes());
        let mut tailer = EventTailer::new(&run);
        assert_eq!(tailer.poll(Limit::default()).unwrap().records.len(), 1);
        for _ in 0..2 {
            let error = tailer.poll(Limit::default()).unwrap_err();
            assert!(error.to_string().contains("event format v2 is newer"), "{error}");
        }
    }

    #[test]
    fn a_poll_is_bounded_and_the_next_one_goes_on() {
        let (_root, run) = run();
        append(&run.event_file(1), (1..=10).map(|n| line(1, n)).collect::<String>().as_bytes());
        let mut tailer = EventTailer::new(&run);
        let limit = Limit { lines: 4, time: Duration::from_secs(60) };
        let sizes: Vec<usize> = (0..4).map(|_| tailer.poll(limit).unwrap().records.len()).collect();
        assert_eq!(sizes, [4, 4, 2, 0]);
        let no_time = Limit { lines: usize::MAX, time: Duration::ZERO };
        let mut again = EventTailer::new(&run);
        let mut seen = 0;
        while seen < 10 {
            seen += again.poll(no_time).unwrap().records.len();
        }
    }

    #[test]
    fn an_endless_line_is_skipped_in_bounded_memory() {
        let (_root, run) = run();
        let file = run.event_file(1);
        append(&file, line(1, 1).as_bytes());
        append(&file, &vec![b'x'; LONGEST_LINE * 2 + 7]);
        append(&file, format!("\n{}", line(1, 2)).as_bytes());
        let mut tailer = EventTailer::new(&run);
        let (seen, notices) = drain(&mut tailer);
        assert_eq!(seen, [(1, 1), (1, 2)]);
        assert!(matches!(&notices[..], [Notice::Malformed { count: 1, first_line: 2, .. }]), "{notices:?}");
        assert!(tailer.pending.capacity() <= 2 * (LONGEST_LINE + CHUNK) + CHUNK);
    }

    #[test]
    fn missing_events_are_said() {
        let (_root, run) = run();
        append(&run.event_file(1), format!("{}{}", line(1, 1), line(1, 5)).as_bytes());
        let gap = Notice::Gap { file: run.event_file(1), from_seq: 2, to_seq: 4 };
        assert_eq!(drain(&mut EventTailer::new(&run)), (vec![(1, 1), (1, 5)], vec![gap]));
    }

    #[derive(Debug, Clone)]
    enum Piece {
        Event,
        Garbage(Vec<u8>),
    }

    proptest! {
        #[test]
        fn however_the_bytes_arrive_every_event_comes_once_and_garbage_is_counted(
            pieces in proptest::collection::vec(
                prop_oneof![
                    3 => Just(Piece::Event),
                    1 => proptest::collection::vec(any::<u8>().prop_filter("one line", |b| *b != b'\n'), 0..40)
                        .prop_map(Piece::Garbage),
                ],
                0..30,
            ),
            cuts in proptest::collection::vec(1_usize..200, 1..60),
            lines in 1_usize..8,
        ) {
            let (_root, run) = run();
            let (mut bytes, mut events, mut garbage) = (Vec::new(), 0, 0);
            for piece in &pieces {
                match piece {
                    Piece::Event => {
                        events += 1;
                        bytes.extend_from_slice(line(1, events).as_bytes());
                    }
                    Piece::Garbage(junk) => {
                        garbage += u64::from(!junk.trim_ascii().is_empty());
                        bytes.extend_from_slice(junk);
                        bytes.push(b'\n');
                    }
                }
            }
            let mut tailer = EventTailer::new(&run);
            let limit = Limit { lines, time: Duration::from_secs(60) };
            let mut seen = Vec::new();
            let (mut at, mut cut) = (0, cuts.iter().cycle());
            loop {
                let next = (at + cut.next().unwrap()).min(bytes.len());
                append(&run.event_file(1), &bytes[at..next]);
                at = next;
                let batch = tailer.poll(limit).unwrap();
                seen.extend(batch.records.iter().map(|r| r.event.seq));
                if at == bytes.len() && batch.at_end {
                    break;
                }
            }
            prop_assert_eq!(seen, (1..=events).collect::<Vec<_>>());
            prop_assert_eq!(tailer.malformed(), garbage);
        }
    }
}
