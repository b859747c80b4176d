//! Who holds a lease, in words for people.

use std::fmt;

use serde::{Deserialize, Serialize};

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
