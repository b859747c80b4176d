//! What client and server say before packets flow.

use serde::{Deserialize, Serialize};

use crate::payload::Description;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Want {
    /// The description of a file.
    File { name: String },
    /// The opening, the packets from this one on, and the closing.
    From { example: u64 },
}

/// What a server says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The description of the file.
    File(Description),
    /// There is no such file; these are there.
    NoSuchFile { known: Vec<String> },
    /// A packet is damaged on the server's disk.
    Damaged { example: u64 },
    /// There are enough connections.
    Busy,
}
