//! Who holds a lease, in words for people.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::clock::SinceBoot;

/// Information about the trainer in the lease file, for display only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// The process id on `host`.
    pub pid: u32,
    /// The name of the machine.
    pub host: String,
    /// The time when the lease was taken, in microseconds since the Unix epoch.
    pub started_us: u64,
    /// The same instant by a clock that nobody sets.
    pub boot: SinceBoot,
}

impl Holder {
    /// Returns the time of day that it would be `now` if nobody had set the clock since the lease was taken,
    /// in microseconds since the Unix epoch; nothing on another machine, or after another start.
    pub(crate) fn undisturbed_us(&self, now: &SinceBoot) -> Option<u64> {
        // A container may count from its own start, and then has a name of its own.
        let is_here = self.host == this_host();
        Some(self.started_us.saturating_add(self.boot.us_until(now).filter(|_| is_here)?))
    }
}

/// Returns the name of this machine.
pub(crate) fn this_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == 0 {
            return f.write_str("another process");
        }
        // The host name comes from a file that anyone with access may have written, so it is escaped.
        let host: String = self.host.chars().filter(|c| c.is_ascii_graphic()).collect();
        write!(f, "process {} on {host}", self.pid)
    }
}
