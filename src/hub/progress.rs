//! The progress that a download reports, and how it is cancelled. Listeners decide how to show it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::Error;

/// One thing that happened. File names are plain paths (checked before any event), safe to print.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The plan is made and the transfer begins.
    Begin {
        /// `org/name@revision`.
        repo: &'a str,
        /// Files that will be fetched.
        files: usize,
        /// Bytes that will be fetched.
        bytes: u64,
    },
    /// A file begins, or goes on after a fault, at `have` of `size` bytes.
    File {
        /// Name in the repository.
        name: &'a str,
        /// Bytes already on disk.
        have: u64,
        /// Bytes in all.
        size: u64,
    },
    /// More bytes of a file are on disk.
    Bytes {
        /// Name in the repository.
        name: &'a str,
        /// How many more.
        count: u64,
    },
    /// A fault that may pass; the next attempt follows after `wait`.
    Retry {
        /// Name in the repository, or the host for questions about it.
        name: &'a str,
        /// Pause before the next attempt.
        wait: Duration,
        /// The payload.
        why: &'a str,
    },
    /// Another process is fetching this file.
    Waiting {
        /// Name in the repository.
        name: &'a str,
    },
    /// A file is whole, checked and in its place.
    Done {
        /// Name in the repository.
        name: &'a str,
        /// Its size.
        size: u64,
    },
}

/// Listens to a download and may stop it. Called from several threads.
pub trait Progress: Sync {
    /// Something happened.
    fn on(&self, event: Event<'_>);

    /// Asked before every read and during every pause; `true` ends the download with [`Error::Cancelled`].
    fn cancelled(&self) -> bool {
        false
    }
}

/// Silence.
impl Progress for () {
    fn on(&self, _: Event<'_>) {}
}

/// A listener together with the stop flag that files fetched side by side share.
pub(crate) struct Watch<'a> {
    progress: &'a dyn Progress,
    stop: &'a AtomicBool,
    quiet: bool,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(progress: &'a dyn Progress, stop: &'a AtomicBool) -> Self {
        Self { progress, stop, quiet: false }
    }

    /// For questions that nobody watches.
    pub(crate) fn silent() -> Self {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Self { progress: &(), stop: &NEVER, quiet: true }
    }

    /// The same, cancellable but not shown: for the small files that a plan reads before the transfer begins.
    pub(crate) fn quiet(of: &Self) -> Self {
        Self { quiet: true, ..*of }
    }

    pub(crate) fn on(&self, event: Event<'_>) {
        if !self.quiet {
            self.progress.on(event);
        }
    }

    pub(crate) fn waiting(&self, name: &str) {
        self.on(Event::Waiting { name });
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.stop.load(Ordering::Relaxed) || self.progress.cancelled() {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Sleeps in short pieces, so that cancelling does not wait for the pause to end.
    pub(crate) fn pause(&self, time: Duration) -> Result<(), Error> {
        const PIECE: Duration = Duration::from_millis(100);
        let mut left = time;
        while !left.is_zero() {
            self.check()?;
            let piece = left.min(PIECE);
            std::thread::sleep(piece);
            left -= piece;
        }
        self.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_pause_ends_at_once() {
        let stop = AtomicBool::new(true);
        let watch = Watch::new(&(), &stop);
        assert!(matches!(watch.pause(Duration::from_secs(3600)), Err(Error::Cancelled)));
    }
}
