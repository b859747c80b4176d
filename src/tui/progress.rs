//! Shows the progress of downloads and of reading data: bars on a terminal, lines elsewhere.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressStyle};
use sparktune_app::listener::{
    DataProgress, DownloadEvent, DownloadProgress, Listener, Phase, Step, phase_in_words,
};
use sparktune_base::units::{bytes, counted};

use crate::downloads;
use crate::output::{note, stderr_can_redraw};

/// A listener that shows progress on standard error.
pub struct OnStderr {
    downloads: Box<dyn DownloadProgress + Send>,
    reading: Reading,
}

impl OnStderr {
    /// Creates a listener. Its user sets `cancel` to stop the work.
    pub fn new(cancel: Arc<AtomicBool>) -> Self {
        Self { downloads: downloads::for_terminal(cancel.clone()), reading: Reading::new(cancel) }
    }
}

impl Listener for OnStderr {
    fn note(&self, text: &str) {
        note(text);
    }
}

impl DownloadProgress for OnStderr {
    fn on(&self, event: DownloadEvent<'_>) {
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
                    "{msg:32} {bar:24} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
                )
                .expect("a template of known keys");
                bar.finish_and_clear();
                *bar = ProgressBar::new(step.bytes_total)
                    .with_style(style)
                    .with_message(phase_in_words(step.phase));
                *phase = Some(step.phase);
            }
            bar.set_position(step.bytes_done);
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
