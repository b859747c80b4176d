//! Counts Ctrl-C and `kill`. The first requests a stop. The second ends the process at once, wherever it is;
//! one that follows a trainer detaches from it instead.
//!
//! A trainer or a rank has [`StopSignals`] of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use sparktune_app::failure::Failure;
use sparktune_tui::screen::end_by_signal;

/// SIGINT and SIGTERM of this process.
#[derive(Clone, Default)]
pub(crate) struct Interrupts {
    count: Arc<AtomicUsize>,
    any: Arc<AtomicBool>,
    is_following: Arc<AtomicBool>,
}

impl Interrupts {
    /// Installs handlers for the two signals.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let refused = |error| Failure::usage(format!("cannot handle signals: {error}"));
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(refused)?;
        let interrupts = Self::default();
        let counted = interrupts.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    if counted.hear() > 1 && !counted.is_following.load(Ordering::SeqCst) {
                        // All files are written under other names first, so nothing is left half-made.
                        end_by_signal(signal);
                    }
                }
            })
            .map_err(refused)?;
        Ok(interrupts)
    }

    /// Counts a signal, and returns the number of signals including it.
    pub(crate) fn hear(&self) -> usize {
        let earlier = self.count.fetch_add(1, Ordering::SeqCst);
        self.any.store(true, Ordering::SeqCst);
        earlier + 1
    }

    /// Returns the number of signals so far.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Leaves the second signal to the caller, who has to look at [`count`](Self::count) regularly.
    pub(crate) fn follow(&self) {
        self.is_following.store(true, Ordering::SeqCst);
    }

    /// Lets any signal but the first one end the process again.
    pub(crate) fn unfollow(&self) {
        self.is_following.store(false, Ordering::SeqCst);
    }

    /// Returns a flag that the first signal sets.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.any.clone()
    }
}

/// The signals that stop a trainer or a rank after a checkpoint: SIGINT, SIGTERM, and SIGUSR1 of our own
/// programs.
///
/// The second SIGINT ends the process at once, and so does the second SIGTERM. They are counted apart,
/// because a launcher passes a Ctrl-C, which its ranks have heard too, on as SIGTERM. Nothing is lost but the
/// steps since the last checkpoint: one that is being written appears whole or not at all.
#[derive(Default)]
pub(crate) struct StopSignals {
    stop: Arc<AtomicBool>,
    seen: [Arc<AtomicBool>; 2],
}

impl StopSignals {
    /// Installs handlers.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn listen(&self) -> Result<(), Failure> {
        let install = || {
            for (signal, seen) in [SIGINT, SIGTERM].into_iter().zip(&self.seen) {
                // In this order: the first signal finds that none was seen.
                flag::register_conditional_default(signal, seen.clone())?;
                flag::register(signal, seen.clone())?;
                flag::register(signal, self.stop.clone())?;
            }
            flag::register(SIGUSR1, self.stop.clone())
        };
        let refused = |error| Failure::usage(format!("cannot handle signals: {error}"));
        install().map(drop).map_err(refused)
    }

    /// Returns the flag that the first signal sets.
    pub(crate) fn stop(&self) -> &Arc<AtomicBool> {
        &self.stop
    }

    /// Forgets the signals so far.
    pub(crate) fn forget(&self) {
        for flag in self.seen.iter().chain([&self.stop]) {
            flag.store(false, Ordering::SeqCst);
        }
    }
}
