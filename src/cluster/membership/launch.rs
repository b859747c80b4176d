//! What an agent knows of the rank that it has started.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::messages::Job;

/// What a rank is started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The id of the member that it is started for. Another membership of this machine has another one.
    pub member: String,
    /// What it does.
    pub job: Job,
    /// Where rank 0 was when the run was started.
    pub first: IpAddr,
    /// Where the files of the job's folders are on this machine.
    pub folders: Vec<PathBuf>,
    /// How many times it has been started again, this time included.
    pub restarts: u32,
}

/// The rank that an agent has started last.
#[derive(Default)]
pub(super) struct Rank {
    /// The number that the host gave it; 0 if an earlier agent started it.
    pub(super) number: u64,
    /// Since when it is known that it has met the others.
    pub(super) met: Option<Instant>,
    /// When it is started again, and with what.
    pub(super) due: Option<(Instant, Launch)>,
}

impl Rank {
    /// One that has just been started.
    pub(super) fn started(number: u64) -> Self {
        Self { number, ..Self::default() }
    }
}
