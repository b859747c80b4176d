//! How far reading and tokenising the data is: a bar on a terminal, a line for each tenth elsewhere.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};
use sparktune_data::{Phase, Progress, Step};

use crate::output::{note, stderr_is_lively};

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

fn words(phase: Phase) -> &'static str {
    match phase {
        Phase::Fingerprint => "looking for changes in the data",
        Phase::Check => "checking the data",
        Phase::Tokenise => "tokenising the data",
    }
}

impl Progress for DataProgress {
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
