//! How far downloading and reading the data is: bars on a terminal, lines elsewhere; the wizard listens in its own way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};
use sparktune_data::{Phase, Step};

use crate::output::{note, stderr_is_lively};

/// Hears of everything that happens between the answers and a run, and may stop it.
pub trait Listener: sparktune_hub::Progress + sparktune_data::Progress {
    /// Something worth a line.
    fn note(&self, text: &str);
}

/// A terminal, or whatever standard error is.
pub struct OnStderr {
    downloads: Box<dyn sparktune_hub::Progress + Send>,
    data: DataProgress,
}

impl OnStderr {
    /// `cancel` becomes true when the user wants to stop.
    pub fn new(cancel: Arc<AtomicBool>) -> Self {
        Self { downloads: sparktune_hub::for_terminal(cancel.clone()), data: DataProgress::new(cancel) }
    }
}

impl Listener for OnStderr {
    fn note(&self, text: &str) {
        note(text);
    }
}

impl sparktune_hub::Progress for OnStderr {
    fn on(&self, event: sparktune_hub::Event<'_>) {
        self.downloads.on(event);
    }

    fn cancelled(&self) -> bool {
        self.downloads.cancelled()
    }
}

impl sparktune_data::Progress for OnStderr {
    fn step(&self, step: Step) {
        self.data.step(step);
    }

    fn cancelled(&self) -> bool {
        self.data.cancelled()
    }
}

/// Shows the steps of [`sparktune_data`] and passes Ctrl-C on.
pub struct DataProgress {
    bar: Option<Mutex<(Option<Phase>, ProgressBar)>>,
    /// Phase and tenth that were last told, where there is no bar.
    told: AtomicU64,
    cancel: Arc<AtomicBool>,
}

impl DataProgress {
    /// `cancel` becomes true when the user wants to stop.
    pub fn new(cancel: Arc<AtomicBool>) -> Self {
        let bar = stderr_is_lively().then(|| Mutex::new((None, ProgressBar::hidden())));
        Self { bar, told: AtomicU64::new(0), cancel }
    }
}

/// What a phase does.
pub fn words(phase: Phase) -> &'static str {
    match phase {
        Phase::Fingerprint => "looking for changes in the data",
        Phase::Check => "checking the data",
        Phase::Tokenise => "tokenising the data",
    }
}

impl sparktune_data::Progress for DataProgress {
    fn step(&self, step: Step) {
        if let Some(bar) = &self.bar {
            let (phase, bar) = &mut *bar.lock().unwrap_or_else(PoisonError::into_inner);
            if *phase != Some(step.phase) {
                let style = ProgressStyle::with_template(
                    "{msg:32} {bar:24} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
                )
                .expect("a template of known keys");
                bar.finish_and_clear();
                *bar = ProgressBar::new(step.bytes_total).with_style(style).with_message(words(step.phase));
                *phase = Some(step.phase);
            }
            bar.set_position(step.bytes_done);
            return;
        }
        let tenth = step.bytes_done * 10 / step.bytes_total.max(1);
        let mark = step.phase as u64 * 16 + tenth;
        if self.told.swap(mark, Ordering::Relaxed) < mark && (1..10).contains(&tenth) {
            let total = DecimalBytes(step.bytes_total);
            note(&format!("{}: {tenth}0 % of {total}, {} examples", words(step.phase), step.examples));
        }
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

impl Drop for DataProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.lock().unwrap_or_else(PoisonError::into_inner).1.finish_and_clear();
        }
    }
}
