//! Prints a run's events as they arrive, until the caller ends it.

use std::io::{self, Write};
use std::time::Duration;

use sparktune_app::failure::Failure;
use sparktune_app::runs::planned;
use sparktune_base::escape::{escape, escape_json};
use sparktune_runlog::{Event, EventTailer, Kind, Limit, Liveness, Progress, RunDir, RunView};

use crate::plain::{event_line, how_it_stands};

// Four times a second: quick enough for a person, light enough for SSH and many watchers.
const PAUSE: Duration = Duration::from_millis(250);

/// The shortest time between two lines about how far the same work is, in microseconds.
const BETWEEN_PROGRESS_US: u64 = 2_000_000;

/// Leaves out lines about how far work is that would follow each other too quickly.
#[derive(Debug, Default)]
struct Pace {
    last: Option<(u64, Progress)>,
}

impl Pace {
    /// Returns whether the event is to be printed. The first and the last line about each work always are.
    fn prints(&mut self, event: &Event) -> bool {
        let Kind::Progress(now) = &event.kind else { return true };
        let is_new = self.last.as_ref().is_none_or(|(at, last)| {
            let is_same = last.phase == now.phase && last.unit == now.unit && last.total == now.total;
            let is_done = now.total == Some(now.done) && last.done != now.done;
            !is_same || is_done || now.done < last.done || event.time_us >= at + BETWEEN_PROGRESS_US
        });
        if is_new {
            self.last = Some((event.time_us, now.clone()));
        }
        is_new
    }
}

/// The format of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// One readable line per event.
    Plain,
    /// The events themselves as JSON, including unknown kinds and fields.
    Json,
}

/// The reason why following ended.
#[derive(Debug)]
pub enum Ended {
    /// The caller ended it. The view holds every event.
    Enough {
        /// The run's state when it was last checked.
        liveness: Liveness,
        /// The whole run.
        view: Box<RunView>,
    },
    /// The reader of the output closed it, which counts as success.
    PipeClosed,
}

/// Following failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run folder could not be read.
    #[error(transparent)]
    Run(#[from] sparktune_runlog::Error),
    /// The lines could not be written.
    #[error("cannot write the output: {0}")]
    Write(#[source] io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Run(error) => error.into(),
            Error::Write(error) => error.into(),
        }
    }
}

/// Prints the events from attempt `first` on (1 prints all of them) to `out`, first the existing ones and
/// then new ones. Problems found in the files, and finally the run's state, go to `notes` (standard error).
/// At each end of the log, `go_on` is called with the run's state: `watch` returns [`Liveness::is_live`]; a
/// launcher returns whether its trainer process is alive. When `go_on` returns false, everything logged until
/// then is still printed.
///
/// # Errors
/// [`Error`] if the run cannot be read or the lines cannot be written. A closed pipe is not an error.
pub fn follow(
    run: &RunDir,
    output: Output,
    first: u32,
    out: &mut impl Write,
    notes: &mut impl Write,
    mut go_on: impl FnMut(Liveness) -> bool,
) -> Result<Ended, Error> {
    let mut tailer = EventTailer::new(run);
    let mut view = RunView::default();
    if let Some(planned) = planned(run) {
        view.expect(planned);
    }
    let mut stalled = false;
    let mut pace = Pace::default();
    loop {
        // The state is checked before reading, so everything logged before a trainer releases its lease is
        // read below.
        let liveness = view.liveness(run)?;
        let more = go_on(liveness);
        match print_new(&mut tailer, &mut view, (output, &mut pace), first, out, notes) {
            Err(Error::Write(e)) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(Ended::PipeClosed),
            printed => printed?,
        }
        if !more {
            // The view has learnt the outcome from the events just printed, so the state is computed again.
            let liveness = view.liveness(run)?;
            note(notes, &how_it_stands(run, liveness, &view));
            return Ok(Ended::Enough { liveness, view: Box::new(view) });
        }
        // Silence can be judged only now that the log was read.
        let standing = view.liveness(run)?;
        if standing.is_live() && matches!(standing, Liveness::Stalled { .. }) != stalled {
            stalled = !stalled;
            note(notes, &how_it_stands(run, standing, &view));
        }
        std::thread::sleep(PAUSE);
    }
}

fn print_new(
    tailer: &mut EventTailer,
    view: &mut RunView,
    (output, pace): (Output, &mut Pace),
    first: u32,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> Result<(), Error> {
    loop {
        let mut written = Ok(());
        let polled = tailer.poll_with(Limit::default(), |event, line| {
            view.apply(&event);
            if event.attempt < first || written.is_err() {
                return;
            }
            written = match output {
                Output::Plain if !pace.prints(&event) => Ok(()),
                Output::Plain => writeln!(out, "{}", event_line(&event, view)),
                Output::Json => writeln!(out, "{}", escape_json(&String::from_utf8_lossy(line))),
            };
        })?;
        written.map_err(Error::Write)?;
        for notice in &polled.notices {
            note(notes, &format!("note: {}", escape(&notice.to_string())));
        }
        if polled.events > 0 {
            out.flush().map_err(Error::Write)?;
        }
        if polled.at_end {
            return Ok(());
        }
    }
}

/// Writes a note. A write error is ignored, because notes must not end the program.
fn note(notes: &mut impl Write, line: &str) {
    let _ = writeln!(notes, "{line}");
}

#[cfg(test)]
mod tests {
    use sparktune_runlog::{EventWriter, Lease, Outcome, RunFinished, RunStarted, RunsRoot, Warning};

    use super::*;

    #[test]
    fn work_of_many_small_parts_takes_few_lines_and_its_end_is_one_of_them() {
        let plain = |time_us| Event { attempt: 1, seq: 1, time_us, kind: warning("w") };
        let mut pace = Pace::default();
        let mut printed = |ms: u64, phase: &str, done: u64| {
            let progress = Progress { phase: phase.into(), done, total: Some(54), unit: "answers".into() };
            let event = Event { time_us: ms * 1000, kind: Kind::Progress(progress), ..plain(0) };
            pace.prints(&event)
        };
        let quick: Vec<_> = (1..=54).filter(|n| printed(n * 20, "export", *n)).collect();
        assert_eq!(quick, [1, 54]);
        assert!(!printed(1090, "export", 54), "the end is told once");
        assert!(printed(1100, "eval", 1) && !printed(1200, "eval", 2) && printed(3100, "eval", 3));
        assert!(pace.prints(&plain(3_200_000)) && pace.prints(&plain(3_200_000)));
    }

    fn warning(message: &str) -> Kind {
        Kind::Warning(Warning { message: message.into(), step: None })
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_live_run_is_followed_to_its_end_and_its_last_events_are_printed() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
        let lease = Lease::acquire(&run).unwrap();
        let writer = EventWriter::open(&lease).unwrap();
        writer.emit(Kind::RunStarted(RunStarted::default()));
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut trainer = Some((lease, writer));
        let ended = follow(&run, Output::Plain, 1, &mut out, &mut notes, |liveness| {
            if let Some((lease, writer)) = trainer.take() {
                assert_eq!(liveness, Liveness::Running);
                // The trainer's last events and its end fall between this check and the next read.
                writer.emit(warning("last words"));
                writer.emit(Kind::RunFinished(RunFinished {
                    outcome: Outcome::Completed,
                    ..Default::default()
                }));
                drop(lease);
            }
            liveness.is_live()
        })
        .unwrap();
        let Ended::Enough { liveness, view } = ended else { panic!("not a closed pipe") };
        assert_eq!(liveness, Liveness::Finished { outcome: Outcome::Completed });
        assert_eq!(view.warning_count, 1);
        assert!(text(&out).contains("last words") && text(&out).lines().count() == 3, "{}", text(&out));
        assert!(text(&notes).contains("completed"), "{}", text(&notes));
    }

    #[test]
    fn a_run_that_has_trained_for_long_is_not_told_as_stalled_before_its_log_was_read() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
        let lease = Lease::acquire(&run).unwrap();
        EventWriter::open(&lease).unwrap().emit(warning("w"));
        // The lease was taken in 1970, and the last event is of now.
        std::fs::write(run.lease_lock(), r#"{"pid":1,"host":"h","started_us":1}"#).unwrap();
        let (mut out, mut notes, mut looks) = (Vec::new(), Vec::new(), 0);
        follow(&run, Output::Plain, 1, &mut out, &mut notes, |_| {
            looks += 1;
            looks < 3
        })
        .unwrap();
        assert!(!text(&notes).contains("stalled"), "{}", text(&notes));
    }

    #[test]
    fn json_passes_events_on_with_what_this_version_does_not_know() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
        let weather = "{\"v\":1,\"attempt\":1,\"seq\":1,\"time_us\":1,\"kind\":\"weather\",\"says\":\"\u{202e}\u{9b}x\"}";
        std::fs::write(run.event_file(1), format!("{weather}\nnot an event\n")).unwrap();
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        follow(&run, Output::Json, 1, &mut out, &mut notes, Liveness::is_live).unwrap();
        let line = text(&out).trim_end();
        assert!(!line.contains(['\u{202e}', '\u{9b}']));
        let there: serde_json::Value = serde_json::from_str(weather).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(line).unwrap(), there);
        assert!(text(&notes).contains("1 line(s) that are not events"), "{}", text(&notes));
        assert!(text(&notes).contains("crashed"), "{}", text(&notes));
    }

    #[test]
    fn a_folder_that_vanishes_ends_the_following_in_words() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
        let lease = Lease::acquire(&run).unwrap();
        EventWriter::open(&lease).unwrap().emit(warning("w"));
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut looks = 0;
        follow(&run, Output::Plain, 1, &mut out, &mut notes, |liveness| {
            looks += 1;
            if looks == 2 {
                assert_eq!(liveness, Liveness::Running);
                std::fs::remove_dir_all(run.path()).unwrap();
            }
            liveness.is_live()
        })
        .unwrap();
        assert_eq!(text(&notes).matches("is gone").count(), 2, "{}", text(&notes));
        assert!(text(&notes).trim_end().ends_with("the run folder is gone; was it moved or deleted?"));
    }

    #[test]
    fn a_closed_pipe_is_success() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
        let lease = Lease::acquire(&run).unwrap();
        EventWriter::open(&lease).unwrap().emit(warning("w"));
        let ended = follow(&run, Output::Plain, 1, &mut Closed, &mut Vec::new(), |_| true).unwrap();
        assert!(matches!(ended, Ended::PipeClosed));
    }
}
