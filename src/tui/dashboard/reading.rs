//! Reads one run: the folded view, the list of events, and whether its trainer is alive.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sparktune_app::shell::run_argument;
use sparktune_base::escape::escape;
use sparktune_runlog::{
    ControlApplied, Event, EventTailer, Kind, Lease, Limit, Liveness, Outcome, RunDir, RunView, now_us,
};

use crate::plain::event_words;
use crate::screen::Role;

/// The limit of one read, so that keys are handled while a long log is read. In tests, it does not depend on
/// when the thread runs.
const LOOK: Limit = if cfg!(test) {
    Limit { lines: 20_000, time: Duration::MAX }
} else {
    Limit { lines: usize::MAX, time: Duration::from_millis(40) }
};
/// The number of notes that are kept, and below it the characters of each. The limits hold for any log, so
/// that a frame is drawn in time.
const KEPT: usize = 500;
const LONGEST: usize = 2000;

/// An entry of the list of events.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Note {
    /// The time in microseconds since the Unix epoch. Problems found in the files themselves have no time.
    pub time_us: Option<u64>,
    pub kind: &'static str,
    /// The text, escaped.
    pub text: String,
    pub role: Role,
}

/// Facts about a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub view: RunView,
    /// The trainer's state; `None` until the log was read to its end once.
    pub liveness: Option<Liveness>,
    /// The notes, oldest first.
    pub notes: VecDeque<Note>,
    /// The number of warnings and problems noted so far.
    pub noted_warnings: u64,
    /// The size in bytes of an incomplete line at the end of the log.
    pub unfinished_bytes: usize,
    /// The time while a trainer runs, in microseconds since the Unix epoch: its clocks go on between events.
    pub now_us: Option<u64>,
    /// The process of a stalled trainer, in words, as the trainer recorded it.
    pub trainer: Option<String>,
}

/// The result of reading.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Whether something visible has changed.
    pub changed: bool,
    /// Requests that the trainer has carried out.
    pub answers: Vec<ControlApplied>,
}

/// A run that is being read.
#[derive(Debug)]
pub(super) struct Reading {
    /// The name that users know the run by, not escaped.
    pub name: String,
    /// The argument for `sparktune resume`, quoted for a shell and escaped for a terminal.
    pub argument: String,
    pub known: Known,
    /// The reason why no more can be read.
    pub trouble: Option<String>,
    /// Whether the files contain more than was read so far.
    pub behind: bool,
    /// The number of bytes read.
    pub bytes: u64,
    source: Option<(RunDir, EventTailer)>,
}

impl Reading {
    /// Starts to read a run, and reads for the first time.
    pub(super) fn open(run: RunDir) -> Self {
        let (name, tailer) = (run.name(), EventTailer::new(&run));
        let mut reading = Self { argument: run_argument(&run), ..Self::of(name, Known::default()) };
        reading.source = Some((run, tailer));
        reading.look();
        reading
    }

    /// Creates a reading of a run without a folder.
    pub(super) fn of(name: String, known: Known) -> Self {
        let argument = escape(&name).into_owned();
        Self { name, argument, known, trouble: None, behind: false, bytes: 0, source: None }
    }

    /// Returns whether a trainer may be running, which is true until the opposite is known.
    pub(super) fn may_be_live(&self) -> bool {
        self.known.liveness.is_none_or(Liveness::is_live)
    }

    /// Returns the folder that is read.
    pub(super) fn run(&self) -> Option<&RunDir> {
        self.source.as_ref().map(|(run, _)| run)
    }

    /// Returns the path of a file of the run as a user would type it: relative to the working directory where
    /// that is shorter.
    pub(super) fn place(&self, file: impl FnOnce(&RunDir) -> PathBuf, inside: &str) -> String {
        let Some(path) = self.run().map(file) else { return inside.to_owned() };
        let here = std::env::current_dir().unwrap_or_default();
        let shown = path.strip_prefix(&here).map(Path::to_owned).unwrap_or(path);
        escape(&shown.to_string_lossy()).into_owned()
    }

    /// Reads new events, for a bounded time.
    pub(super) fn look(&mut self) -> News {
        let mut news = News::default();
        let Some((run, mut tailer)) = self.source.take() else { return news };
        let before = (self.known.liveness, self.trouble.clone(), self.behind);
        self.read(&mut tailer, &mut news);
        let was_live = self.may_be_live();
        let mut liveness = self.judge(&run);
        if was_live && !liveness.is_some_and(Liveness::is_live) && !self.behind {
            // The trainer may have logged its last events between reading and checking its state.
            self.read(&mut tailer, &mut news);
            liveness = self.judge(&run);
        }
        // The outcome of a run is unknown until its log was read to the end.
        let unread = self.behind || self.trouble.is_some();
        self.known.liveness = liveness
            .filter(|liveness| !unread || *liveness == Liveness::Gone || liveness.is_live() && !self.behind);
        self.source = Some((run, tailer));
        news.changed |= before != (self.known.liveness, self.trouble.clone(), self.behind);
        news.changed |= self.known.tick();
        news
    }

    fn read(&mut self, tailer: &mut EventTailer, news: &mut News) {
        let polled = tailer.poll_with(LOOK, |event, line| {
            self.bytes += line.len() as u64 + 1;
            if let Kind::ControlApplied(answer) = &event.kind {
                news.answers.push(answer.clone());
            }
            self.known.take(&event);
        });
        match polled {
            Ok(polled) => {
                news.changed |= polled.events > 0 || !polled.notices.is_empty();
                self.behind = !polled.at_end;
                self.known.unfinished_bytes = polled.unfinished_bytes;
                self.trouble = None;
                for notice in polled.notices {
                    self.known.note(None, "note", escape(&notice.to_string()).into_owned(), Role::Warn);
                }
            }
            Err(error) => {
                self.behind = false;
                self.trouble = Some(escape(&error.to_string()).into_owned());
            }
        }
    }

    fn judge(&mut self, run: &RunDir) -> Option<Liveness> {
        match self.known.view.liveness(run) {
            Ok(liveness) => {
                if matches!(liveness, Liveness::Stalled { .. }) {
                    self.known.trainer = Some(Lease::holder_of(run).to_string());
                }
                Some(liveness)
            }
            Err(error) => {
                self.trouble = Some(escape(&error.to_string()).into_owned());
                None
            }
        }
    }
}

impl Known {
    /// Creates facts from a view alone.
    pub(super) fn of(view: RunView, liveness: Liveness) -> Self {
        let mut known = Self { liveness: Some(liveness), ..Self::default() };
        for warning in &view.warnings {
            let text = escape(&warning.what.message).into_owned();
            known.note(Some(warning.time_us), "warning", text, Role::Warn);
        }
        known.view = view;
        known
    }

    /// Reads the clock while a trainer runs. Returns whether another second has begun.
    fn tick(&mut self) -> bool {
        let second = |time: Option<u64>| time.map(|us| us / 1_000_000);
        let before = second(self.now_us);
        self.now_us = self.liveness.filter(|liveness| liveness.is_live()).map(|_| now_us());
        second(self.now_us) != before
    }

    /// Applies one event.
    pub(super) fn take(&mut self, event: &Event) {
        let role = match &event.kind {
            Kind::Step(_) | Kind::Progress(_) | Kind::DeviceSample(_) | Kind::MemberSamples(_) => {
                self.view.apply(event);
                return;
            }
            Kind::Warning(_) => Role::Warn,
            Kind::RunFinished(finished) => match finished.outcome {
                Outcome::Completed => Role::Good,
                Outcome::Failed | Outcome::Diverged => Role::Bad,
                Outcome::Stopped | Outcome::Unknown => Role::Warn,
            },
            Kind::Eval(_) | Kind::Fp8Loss(_) | Kind::HeadEval(_) => Role::Eval,
            Kind::RunStarted(_) | Kind::CheckpointCommitted(_) | Kind::ControlApplied(_) => Role::Accent,
            _ => Role::Dim,
        };
        // A phase that reports its progress in words keeps one line instead of hundreds.
        let same_phase = matches!(&event.kind, Kind::Phase(phase)
            if self.view.phase.as_ref().is_some_and(|now| now.phase == phase.phase));
        self.view.apply(event);
        let (kind, text) = event_words(event, &self.view);
        if same_phase && self.notes.back().is_some_and(|note| note.kind == kind) {
            self.notes.pop_back();
        }
        self.note(Some(event.time_us), kind, text, role);
    }

    fn note(&mut self, time_us: Option<u64>, kind: &'static str, text: String, role: Role) {
        self.noted_warnings += u64::from(role == Role::Warn && matches!(kind, "warning" | "note"));
        if self.notes.len() == KEPT {
            self.notes.pop_front();
        }
        let text = match text.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        };
        self.notes.push_back(Note { time_us, kind, text, role });
    }

    /// Returns the newest warning or problem.
    pub(super) fn newest_warning(&self) -> Option<&Note> {
        self.notes.iter().rev().find(|note| matches!(note.kind, "warning" | "note"))
    }
}
