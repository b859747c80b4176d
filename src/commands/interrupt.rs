//! Counts Ctrl-C and `kill`. The first requests a stop. The second ends the process at once, wherever it is;
//! one that follows a trainer detaches from it instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use sparktune_app::failure::Failure;

/// SIGINT and SIGTERM of this process.
#[derive(Clone)]
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
        let interrupts = Self { count: Arc::default(), any: Arc::default(), is_following: Arc::default() };
        let counted = interrupts.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    let earlier = counted.count.fetch_add(1, Ordering::SeqCst);
                    counted.any.store(true, Ordering::SeqCst);
                    if earlier > 0 && !counted.is_following.load(Ordering::SeqCst) {
                        // All files are written under other names first, so nothing is left half-made.
                        let _ = emulate_default_handler(signal);
                    }
                }
            })
            .map_err(refused)?;
        Ok(interrupts)
    }

    /// Returns the number of signals so far.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Leaves the second signal to the caller, who has to look at [`count`](Self::count) regularly.
    pub(crate) fn follow(&self) {
        self.is_following.store(true, Ordering::SeqCst);
    }

    /// Returns a flag that the first signal sets.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.any.clone()
    }
}
