//! Progress reports of long work to an interface, and their way of cancelling it.
//!
//! Enters: events of downloads and of reading data. Leaves: the same events, or [`Progress`] for interfaces
//! that show one line or one bar. It must not print.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sparktune_base::units::counted;
pub use sparktune_data::{Phase, Progress as DataProgress, Step};
pub use sparktune_hub::{Event as DownloadEvent, Progress as DownloadProgress};

/// Receives all progress between the answers and a run, and may cancel the work.
pub trait Listener: DownloadProgress + DataProgress {
    /// Receives a note that deserves a line of its own.
    fn note(&self, text: &str);

    /// Receives the progress of work that is neither a download nor reading of data.
    fn progress(&self, _: &Progress) {}

    /// Returns whether the user wants to cancel.
    fn is_cancelled(&self) -> bool {
        DataProgress::cancelled(self)
    }
}

/// Ignores everything and never cancels.
pub struct Silent;

impl Listener for Silent {
    fn note(&self, _: &str) {}
}

impl DownloadProgress for Silent {
    fn on(&self, _: DownloadEvent<'_>) {}
}

impl DataProgress for Silent {
    fn step(&self, _: Step) {}
}

/// Describes a phase of reading the data in a few words.
pub fn phase_in_words(phase: Phase) -> &'static str {
    match phase {
        Phase::Fingerprint => "looking for changes in the data",
        Phase::Check => "checking the data",
        Phase::Tokenise => "tokenising the data",
    }
}

/// The progress of long work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The current activity in a few words: `fetching Qwen/Qwen3.5-2B`, `tokenising the data`. When it
    /// changes, a new stage of the work has begun and `done` restarts.
    pub what: String,
    /// The completed amount.
    pub done: u64,
    /// The total amount, if it is known.
    pub total: Option<u64>,
    /// The counted quantity.
    pub unit: Unit,
    /// A note: `the connection was cut; next attempt in 4 s`, `12,400 examples`.
    pub note: Option<String>,
}

/// The unit of progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Anything else, named in `what`.
    Count,
}

/// The shortest time between two reports of the same stage.
const BETWEEN_REPORTS: Duration = Duration::from_millis(100);

/// A [`Listener`] that forwards [`Progress`], at most ten times a second, and collects notes.
pub struct Reporter<F> {
    report: F,
    cancel: Arc<AtomicBool>,
    latest: Mutex<Latest>,
    notes: Mutex<Vec<String>>,
}

struct Latest {
    progress: Progress,
    reported_at: Option<Instant>,
}

impl<F: Fn(Progress) + Sync> Reporter<F> {
    /// Creates a reporter. `report` receives the progress; the user of the reporter sets `cancel` to stop the
    /// work.
    pub fn new(cancel: Arc<AtomicBool>, report: F) -> Self {
        let progress = Progress { what: String::new(), done: 0, total: None, unit: Unit::Bytes, note: None };
        Self {
            report,
            cancel,
            latest: Mutex::new(Latest { progress, reported_at: None }),
            notes: Mutex::default(),
        }
    }

    /// Returns the notes so far and clears them.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.notes))
    }

    /// Changes the progress, and reports it unless that happened a moment ago. A new stage is reported at
    /// once.
    fn update(&self, change: impl FnOnce(&mut Progress)) {
        let mut latest = lock(&self.latest);
        let before = latest.progress.what.clone();
        change(&mut latest.progress);
        let is_due = latest.reported_at.is_none_or(|at| at.elapsed() >= BETWEEN_REPORTS);
        if is_due || latest.progress.what != before {
            latest.reported_at = Some(Instant::now());
            (self.report)(latest.progress.clone());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: Fn(Progress) + Sync> Listener for Reporter<F> {
    fn note(&self, text: &str) {
        lock(&self.notes).push(text.to_owned());
    }

    fn progress(&self, progress: &Progress) {
        self.update(|latest| latest.clone_from(progress));
    }
}

impl<F: Fn(Progress) + Sync> DownloadProgress for Reporter<F> {
    fn on(&self, event: DownloadEvent<'_>) {
        use DownloadEvent as E;
        self.update(|progress| match event {
            E::Begin { repo, bytes, .. } => {
                *progress = Progress {
                    what: format!("downloading {repo}"),
                    done: 0,
                    total: Some(bytes),
                    unit: Unit::Bytes,
                    note: None,
                };
            }
            E::Bytes { count, .. } => {
                progress.done += count;
                progress.note = None;
            }
            E::Retry { name, wait, why } => {
                progress.note = Some(format!("{name}: {why}; trying again in {} s", wait.as_secs()));
            }
            E::Waiting { name } => progress.note = Some(format!("{name}: another process is downloading it")),
            _ => {}
        });
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

impl<F: Fn(Progress) + Sync> DataProgress for Reporter<F> {
    fn step(&self, step: Step) {
        self.update(|progress| {
            *progress = Progress {
                what: phase_in_words(step.phase).to_owned(),
                done: step.bytes_done,
                total: Some(step.bytes_total),
                unit: Unit::Bytes,
                note: (step.examples > 0).then(|| counted(step.examples, "example")),
            };
        });
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_part_of_the_work_is_reported_at_once_and_the_same_part_not_too_often() {
        let reports = Mutex::new(Vec::new());
        let reporter = Reporter::new(Arc::default(), |progress: Progress| lock(&reports).push(progress.what));
        let step = |phase, bytes_done| Step { phase, bytes_done, bytes_total: 10, examples: 0 };
        for done in 0..5 {
            reporter.step(step(Phase::Check, done));
        }
        reporter.step(step(Phase::Tokenise, 0));
        let reports = lock(&reports);
        assert_eq!(
            (reports.first(), reports.last()),
            (Some(&"checking the data".into()), Some(&"tokenising the data".into()))
        );
        assert!(reports.len() < 6, "{reports:?}");
    }

    #[test]
    fn a_cancel_reaches_downloads_and_reading_alike() {
        let cancel = Arc::new(AtomicBool::new(false));
        let reporter = Reporter::new(cancel.clone(), |_| ());
        assert!(!reporter.is_cancelled());
        cancel.store(true, Ordering::Relaxed);
        assert!(reporter.is_cancelled() && DownloadProgress::cancelled(&reporter));
    }
}
