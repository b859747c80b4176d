//! Shows the progress of downloads and of reading data: bars on a terminal, lines elsewhere.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressStyle};
use sparktune_app::listener::{
    DataProgress, DownloadEvent, DownloadProgress, Listener, Phase, Progress, Step, Unit, phase_in_words,
};
use sparktune_base::units::{bytes, counted};

use crate::downloads;
use crate::output::{note, stderr_can_redraw};
use crate::wrap::cut_to;

/// A listener that shows progress on standard error.
pub struct OnStderr {
    downloads: Box<dyn DownloadProgress + Send>,
    /// What the hub was asked for last.
    asked: Mutex<String>,
    reading: Reading,
    work: Work,
}

impl OnStderr {
    /// Creates a listener. Its user sets `cancel` to stop the work.
    pub fn new(cancel: Arc<AtomicBool>) -> Self {
        Self {
            downloads: downloads::for_terminal(cancel.clone()),
            asked: Mutex::default(),
            reading: Reading::new(cancel),
            work: Work::default(),
        }
    }
}

impl Listener for OnStderr {
    fn note(&self, text: &str) {
        note(text);
    }

    fn progress(&self, progress: &Progress) {
        self.work.show(progress);
    }
}

impl DownloadProgress for OnStderr {
    fn on(&self, event: DownloadEvent<'_>) {
        // A model is asked for several times in a row, once for each kind of its files.
        if let DownloadEvent::Asking { repo, .. } = event {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            if *asked == repo {
                return;
            }
            *asked = repo.to_owned();
        }
        self.downloads.on(event);
    }

    fn cancelled(&self) -> bool {
        self.downloads.cancelled()
    }
}

impl DataProgress for OnStderr {
    fn step(&self, step: Step) {
        self.reading.step(step);
    }

    fn cancelled(&self) -> bool {
        self.reading.cancelled()
    }
}

/// Shows the progress of reading the data, and forwards Ctrl-C.
struct Reading {
    bar: Option<Mutex<(Option<Phase>, ProgressBar)>>,
    /// The phase and the tenth that were printed last, where there is no bar.
    noted: AtomicU64,
    cancel: Arc<AtomicBool>,
}

impl Reading {
    fn new(cancel: Arc<AtomicBool>) -> Self {
        let bar = stderr_can_redraw().then(|| Mutex::new((None, ProgressBar::hidden())));
        Self { bar, noted: AtomicU64::new(0), cancel }
    }
}

impl DataProgress for Reading {
    fn step(&self, step: Step) {
        if let Some(bar) = &self.bar {
            let (phase, bar) = &mut *bar.lock().unwrap_or_else(PoisonError::into_inner);
            if *phase != Some(step.phase) {
                let style = ProgressStyle::with_template(
                    "{msg:32} {bar:16} {decimal_bytes}/{decimal_total_bytes} {eta}",
                )
                .expect("a template of known keys");
                bar.finish_and_clear();
                *bar = ProgressBar::new(step.bytes_total)
                    .with_style(style)
                    .with_message(phase_in_words(step.phase));
                *phase = Some(step.phase);
            }
            bar.set_position(step.bytes_done);
            // A bar that stays while other lines follow would take one of them along when it is cleared.
            if step.bytes_done >= step.bytes_total {
                bar.finish_and_clear();
                *phase = None;
            }
            return;
        }
        let tenth = step.bytes_done * 10 / step.bytes_total.max(1);
        let mark = step.phase as u64 * 16 + tenth;
        if self.noted.swap(mark, Ordering::Relaxed) < mark && (1..10).contains(&tenth) {
            let total = bytes(step.bytes_total);
            note(&format!(
                "{}: {tenth}0 % of {total}, {}",
                phase_in_words(step.phase),
                counted(step.examples, "example")
            ));
        }
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.lock().unwrap_or_else(PoisonError::into_inner).1.finish_and_clear();
        }
    }
}

/// The columns of what other work does, and how many of them its end may have: with a bar, less than 80.
const WHAT: usize = 40;
const WHAT_END: usize = 14;

/// Shows other work: a bar on a terminal, and elsewhere a line where a part of it begins.
#[derive(Default)]
struct Work(Mutex<(String, Option<ProgressBar>)>);

impl Work {
    fn show(&self, progress: &Progress) {
        let (shown, bar) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *shown != progress.what {
            shown.clone_from(&progress.what);
            if let Some(bar) = bar.take() {
                bar.finish_and_clear();
            }
            if !stderr_can_redraw() {
                return note(shown);
            }
            let template = match progress.total {
                Some(_) if progress.unit == Unit::Bytes => {
                    "{msg} {bar:12} {decimal_bytes}/{decimal_total_bytes} {eta}"
                }
                Some(_) => "{msg} {bar:24} {pos}/{len} {eta}",
                None => "{spinner} {msg}",
            };
            let style = ProgressStyle::with_template(template).expect("a template of known keys");
            let new = match progress.total {
                Some(total) => ProgressBar::new(total),
                None => ProgressBar::new_spinner(),
            };
            // The end says which of several parts it is.
            *bar = Some(new.with_style(style).with_message(cut_to(shown, WHAT, WHAT_END, "…")));
        }
        if let Some(bar) = bar {
            bar.set_position(progress.done);
            if progress.total.is_some_and(|total| progress.done >= total) {
                bar.finish_and_clear();
            }
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let (_, bar) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = bar.take() {
            bar.finish_and_clear();
        }
    }
}
