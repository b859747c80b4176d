//! Counts Ctrl-C and `kill`: the first requests a stop, the second detaches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sparktune_app::failure::Failure;

/// SIGINT and SIGTERM of this process.
#[derive(Clone)]
pub(crate) struct Interrupts {
    count: Arc<AtomicUsize>,
    any: Arc<AtomicBool>,
}

impl Interrupts {
    /// Installs handlers for the two signals.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let refused = |error| Failure::usage(format!("cannot handle signals: {error}"));
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(refused)?;
        let interrupts = Self { count: Arc::default(), any: Arc::default() };
        let counted = interrupts.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for _ in signals.forever() {
                    counted.count.fetch_add(1, Ordering::SeqCst);
                    counted.any.store(true, Ordering::SeqCst);
                }
            })
            .map_err(refused)?;
        Ok(interrupts)
    }

    /// Returns the number of signals so far.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Returns a flag that the first signal sets.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.any.clone()
    }
}
