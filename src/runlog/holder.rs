//! Who holds a lease, in words for people.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The trainer's note about itself in the lease, for information only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// Process id on `host`.
    pub pid: u32,
    /// Name of the machine.
    pub host: String,
    /// When the lease was taken, microseconds since the Unix epoch.
    pub started_us: u64,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == 0 {
            return f.write_str("another process");
        }
        // The host name comes from a file that anyone with access may have written.
        let host: String = self.host.chars().filter(|c| c.is_ascii_graphic()).collect();
        write!(f, "process {} on {host}", self.pid)
    }
}
