//! Waits for other ranks: what ends them, and what the user is told meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The pause between two looks at what has changed.
pub(crate) const LOOK: Duration = Duration::from_millis(50);
/// The pause between two attempts to connect, and between two signs that rank 0 still waits.
pub(crate) const AGAIN: Duration = Duration::from_millis(500);
/// A look that came so much later than the one before means that this process was stopped.
pub(crate) const STOPPED: Duration = Duration::from_secs(1);
/// The wait after which a rank says what it waits for, and the pause between two such lines.
const SILENT_WAIT: Duration = Duration::from_secs(5);
const TELL_AGAIN: Duration = Duration::from_secs(120);
/// The most lines about refused connections.
const MOST_REFUSALS: usize = 10;

/// Ends waiting: before the ranks have met by the caller's wish, later only when this rank has ended.
pub(crate) struct Ends {
    interrupted: Arc<dyn Fn() -> bool + Send + Sync>,
    tell: Arc<dyn Fn(String) + Send + Sync>,
    /// The lines about refused connections so far.
    refusals: AtomicUsize,
    /// Whether the caller's wish ends no connection, because this rank tells the others of it.
    tells_first: AtomicBool,
    has_met: AtomicBool,
    has_ended: AtomicBool,
}

impl Ends {
    pub(crate) fn new(
        interrupted: Arc<dyn Fn() -> bool + Send + Sync>,
        tell: Arc<dyn Fn(String) + Send + Sync>,
    ) -> Arc<Self> {
        let [tells_first, has_met, has_ended] = [(); 3].map(|()| AtomicBool::new(false));
        Arc::new(Self { interrupted, tell, refusals: AtomicUsize::new(0), tells_first, has_met, has_ended })
    }

    /// Says who was refused, and why. Anybody who reaches the port can cause such a line, so there are few.
    pub(crate) fn tell_refusal(&self, who: &str, why: &str) {
        let before = self.refusals.fetch_add(1, Ordering::SeqCst);
        if before < MOST_REFUSALS {
            let last = if before + 1 == MOST_REFUSALS { ". Further ones are not reported" } else { "" };
            (self.tell)(format!("refused {who}: {why}{last}"));
        }
    }

    /// Says something to the user.
    pub(crate) fn say(&self, line: String) {
        (self.tell)(line);
    }

    /// Records that this rank tells the others when its caller wishes to end.
    pub(crate) fn tell_first(&self) {
        self.tells_first.store(true, Ordering::SeqCst);
    }

    /// Returns whether the caller wishes to end.
    pub(crate) fn is_interrupted(&self) -> bool {
        (self.interrupted)()
    }

    /// Records that the ranks have met: from here on the caller's wish ends no wait.
    pub(crate) fn meet(&self) {
        self.has_met.store(true, Ordering::SeqCst);
    }

    /// Makes all waits end.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_over(&self) -> bool {
        let is_interrupted = !self.has_met.load(Ordering::SeqCst) && self.is_interrupted();
        let ends = is_interrupted && !self.tells_first.load(Ordering::SeqCst);
        self.has_ended.load(Ordering::SeqCst) || ends
    }
}

/// A wait that is told about when it takes long.
pub(crate) struct Wait {
    next: Instant,
}

impl Wait {
    pub(crate) fn new() -> Self {
        Self { next: Instant::now() + SILENT_WAIT }
    }

    pub(crate) fn tell(&mut self, ends: &Ends, what: impl FnOnce() -> String) {
        if Instant::now() >= self.next {
            self.next = Instant::now() + TELL_AGAIN;
            (ends.tell)(what());
        }
    }
}
