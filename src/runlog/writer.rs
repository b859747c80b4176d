//! Appends events to one attempt's file.
//!
//! Logging never stops training: a line that cannot be written is counted, reported on standard error and,
//! once writing works again, in a `warning` event. The next line gets its `seq`, so that the file has no
//! gaps. Events can also be written for TensorBoard, with the same guarantee.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sparktune_base::files::{private_file, sync};

use crate::clock::{EventClock, now_us};
use crate::error::{Doing, Result, in_words};
use crate::event::{Event, Kind, Warning};
use crate::lease::Lease;
use crate::tensorboard::TensorBoard;

/// Writes the event file of this attempt. The threads of the trainer share it.
#[derive(Debug)]
pub struct EventWriter {
    attempt: u32,
    path: PathBuf,
    log: Mutex<Log>,
}

#[derive(Debug)]
struct Log {
    lines: Lines<File>,
    tensorboard: Option<TensorBoard>,
}

impl EventWriter {
    /// Opens the next attempt's file. The lease proves that no other process does.
    ///
    /// # Errors
    /// [`crate::Error::Io`] when the file cannot be created.
    pub fn open(lease: &Lease) -> Result<Self> {
        let attempt = lease.run().next_attempt()?;
        let path = lease.run().event_file(attempt);
        let file = private_file().append(true).create_new(true).open(&path).doing("create", &path)?;
        let events = lease.run().events();
        sync(&events).doing("flush to disk", &events)?;
        let log = Log { lines: Lines::new(file, attempt), tensorboard: None };
        Ok(EventWriter { attempt, path, log: Mutex::new(log) })
    }

    /// Also writes events to TensorBoard's file of this attempt from now on. Never fails: if the file cannot
    /// be created, a warning is logged and nothing is written.
    pub fn mirror_to_tensorboard(&self, lease: &Lease) {
        match TensorBoard::create(lease.run(), self.attempt) {
            Ok(board) => self.log().tensorboard = Some(board),
            Err(error) => {
                let message = format!("no charts for TensorBoard: {error}; training continues");
                self.emit(Kind::Warning(Warning { message, step: None }));
            }
        }
    }

    /// Returns the number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Writes one event, and flushes it to the disk if it announces a checkpoint or the end. Never fails: see
    /// [`EventWriter::lost`].
    pub fn emit(&self, kind: Kind) {
        let mut log = self.log();
        let warning = log.tensorboard.as_mut().and_then(|board| board.log(&kind, now_us()));
        if let Some(message) = warning {
            self.append(&mut log.lines, Kind::Warning(Warning { message, step: None }));
        }
        self.append(&mut log.lines, kind);
    }

    fn append(&self, lines: &mut Lines<File>, kind: Kind) {
        let durable = kind.is_durable();
        let result = lines.append(kind).and_then(|()| if durable { lines.out.sync_data() } else { Ok(()) });
        // Errors are reported at 1, 2, 4, 8, … lost events, so that a full disk does not flood the terminal.
        if let Err(error) = result
            && (lines.lost.is_power_of_two() || durable)
        {
            // Not eprintln!, which panics when standard error is a file on the same full disk.
            let _ = writeln!(
                io::stderr(),
                "warning: cannot log to {}: {}; training continues ({} events lost so far)",
                self.path.display(),
                in_words(&error),
                lines.lost
            );
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        // A thread that panicked while logging wrote only whole lines, so the others continue.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of events that could not be written so far.
    pub fn lost(&self) -> u64 {
        self.log().lines.lost
    }

    /// Returns the number of records that could not be written for TensorBoard so far.
    #[cfg(test)]
    pub(crate) fn tensorboard_lost(&self) -> u64 {
        self.log().tensorboard.as_ref().map_or(0, TensorBoard::lost)
    }
}

#[derive(Debug)]
struct Lines<W> {
    out: W,
    attempt: u32,
    next_seq: u64,
    clock: EventClock,
    /// Whether the file ends in the middle of a line, so that the next write begins with a newline.
    torn: bool,
    lost: u64,
    unsaid: u64,
}

impl<W: Write> Lines<W> {
    fn new(out: W, attempt: u32) -> Self {
        Lines { out, attempt, next_seq: 1, clock: EventClock::new(), torn: false, lost: 0, unsaid: 0 }
    }

    fn append(&mut self, kind: Kind) -> io::Result<()> {
        let written = self.append_one(kind);
        match &written {
            Err(_) => {
                self.lost += 1;
                self.unsaid += 1;
            }
            Ok(()) if self.unsaid > 0 => {
                let message = format!(
                    "the {} events before this one could not be logged (is the disk full or unreachable?); charts have a gap here",
                    self.unsaid
                );
                self.unsaid = 0;
                self.append(Kind::Warning(Warning { message, step: None }))?;
            }
            Ok(()) => {}
        }
        written
    }

    fn append_one(&mut self, kind: Kind) -> io::Result<()> {
        let time_us = self.clock.now_us();
        let event = Event { attempt: self.attempt, seq: self.next_seq, time_us, kind };
        let mut line = event.to_line()?;
        let repair = usize::from(self.torn);
        if self.torn {
            line.insert(0, '\n');
        }
        let (written, result) = write_counted(&mut self.out, line.as_bytes());
        if written == 0 {
            return result;
        }
        self.torn = written < line.len();
        // Only the newline is missing: the event will be read as soon as the next line begins.
        if written + 1 >= line.len() && written > repair {
            self.next_seq += 1;
            return if written == line.len() { result } else { Ok(()) };
        }
        result
    }
}

/// Like `write_all`, and returns how much was written.
fn write_counted(out: &mut impl Write, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match out.write(&bytes[written..]) {
            Ok(0) => return (written, Err(ErrorKind::WriteZero.into())),
            Ok(n) => written += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return (written, Err(e)),
        }
    }
    (written, Ok(()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::RunFinished;
    use crate::run_dir::RunDir;
    use crate::step::Step;

    /// A disk with little space, which grows from time to time.
    struct SmallDisk {
        bytes: Vec<u8>,
        room: usize,
    }

    impl Write for SmallDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(self.room);
            if n == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.room -= n;
            self.bytes.extend_from_slice(&bytes[..n]);
            Ok(n)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn step(step: u64) -> Kind {
        Kind::Step(Step { step, loss_nats: 1.0, ..Step::default() })
    }

    proptest! {
        #[test]
        fn whatever_the_disk_refuses_the_lines_that_are_there_have_no_gaps(
            rooms in proptest::collection::vec(0_usize..400, 1..40),
        ) {
            let mut lines = Lines::new(SmallDisk { bytes: Vec::new(), room: 0 }, 1);
            let mut emitted = 0;
            for room in rooms {
                lines.out.room = room;
                for _ in 0..3 {
                    emitted += 1;
                    let _ = lines.append(step(emitted));
                }
            }
            lines.out.room = usize::MAX;
            lines.append(step(emitted + 1)).unwrap();
            let events: Vec<Event> = lines.out.bytes.split(|b| *b == b'\n').filter_map(|l| Event::parse(l).ok()).collect();
            for (i, event) in events.iter().enumerate() {
                prop_assert_eq!(event.seq, i as u64 + 1);
            }
            let steps = events.iter().filter(|e| matches!(e.kind, Kind::Step(_))).count() as u64;
            // Warnings may be lost too, and then count as lost.
            prop_assert!(steps + lines.lost > emitted, "{} + {} of {}", steps, lines.lost, emitted);
            prop_assert_eq!(lines.out.bytes.last(), Some(&b'\n'));
        }
    }

    #[test]
    fn a_full_disk_is_counted_and_training_goes_on() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let log = Log { lines: Lines::new(full, 1), tensorboard: None };
        let writer = EventWriter { attempt: 1, path: "/dev/full".into(), log: Mutex::new(log) };
        for n in 1..=5 {
            writer.emit(step(n));
        }
        assert_eq!(writer.lost(), 5);
    }

    #[test]
    fn each_attempt_has_its_own_file_and_starts_at_one() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path().join("r")).unwrap();
        for attempt in 1..=2 {
            let lease = Lease::acquire(&run).unwrap();
            let writer = EventWriter::open(&lease).unwrap();
            assert_eq!(writer.attempt(), attempt);
            writer.emit(step(1));
            writer.emit(Kind::RunFinished(RunFinished::default()));
            let text = std::fs::read_to_string(run.event_file(attempt)).unwrap();
            let seqs: Vec<u64> = text.lines().map(|l| Event::parse(l.as_bytes()).unwrap().seq).collect();
            assert_eq!(seqs, [1, 2]);
        }
    }
}
