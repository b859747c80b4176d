//! The progress reports of a download, and its cancellation. Listeners decide how to show them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::Error;

/// A progress event. File names are plain paths (checked before any event) and safe to print.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The hub is asked about a model or a data set. Without a network, its answer can take long.
    Asking {
        /// The host of the hub.
        host: &'a str,
        /// `org/name@revision`.
        repo: &'a str,
    },
    /// The plan is complete and the transfer begins.
    Begin {
        /// `org/name@revision`.
        repo: &'a str,
        /// The number of files to download.
        files: usize,
        /// The number of bytes to download.
        bytes: u64,
    },
    /// A file begins, or continues after an error, at `have` of `size` bytes.
    File {
        /// Name in the repository.
        name: &'a str,
        /// The number of bytes already on disk.
        have: u64,
        /// The total number of bytes.
        size: u64,
    },
    /// More bytes of a file are on disk.
    Bytes {
        /// Name in the repository.
        name: &'a str,
        /// The number of additional bytes.
        count: u64,
    },
    /// A temporary error occurred; the next attempt follows after `wait`.
    Retry {
        /// The name in the repository, or the host for other requests.
        name: &'a str,
        /// Pause before the next attempt.
        wait: Duration,
        /// The reason.
        why: &'a str,
    },
    /// Another process is downloading this file.
    Waiting {
        /// Name in the repository.
        name: &'a str,
    },
    /// A file is complete, verified and in its final place.
    Done {
        /// Name in the repository.
        name: &'a str,
        /// The size of the file in bytes.
        size: u64,
    },
}

/// Receives the progress of a download and may cancel it. Called from several threads.
pub trait Progress: Sync {
    /// Receives an event.
    fn on(&self, event: Event<'_>);

    /// Returns `true` to end the download with [`Error::Cancelled`]. Called before every read and during
    /// every pause.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Ignores all events.
impl Progress for () {
    fn on(&self, _: Event<'_>) {}
}

/// A listener together with the stop flag that parallel downloads share.
pub(crate) struct Watch<'a> {
    progress: &'a dyn Progress,
    stop: &'a AtomicBool,
    quiet: bool,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(progress: &'a dyn Progress, stop: &'a AtomicBool) -> Self {
        Self { progress, stop, quiet: false }
    }

    /// Returns a watch that can be cancelled and says at most that it asks the hub, for the small files that
    /// a plan reads before the transfer begins.
    pub(crate) fn quiet(of: &Self) -> Self {
        Self { quiet: true, ..*of }
    }

    pub(crate) fn on(&self, event: Event<'_>) {
        if !self.quiet {
            self.progress.on(event);
        }
    }

    /// Says whom it asks, even if it is quiet otherwise.
    pub(crate) fn asking(&self, host: &str, repo: &str) {
        self.progress.on(Event::Asking { host, repo });
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

    /// Sleeps in short intervals, so that cancelling takes effect quickly.
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
