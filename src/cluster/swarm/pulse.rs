//! What is known of the other ranks at any time, also while this one computes or waits.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::heartbeat::Latencies;
use crate::link::LastHeard;

/// The signs of life of the ranks that have met. Ranks have the numbers that they had then.
#[derive(Clone)]
pub struct Pulse {
    pub(crate) latencies: Latencies,
    pub(crate) heard: LastHeard,
    pub(crate) places: BTreeMap<usize, String>,
}

impl Pulse {
    /// Returns the smoothed time from a question to its answer, if it was measured.
    pub fn latency(&self, rank: usize) -> Option<Duration> {
        self.latencies.of(rank)
    }

    /// Returns how long nothing was heard of a rank; `None` if it was never heard.
    pub fn silent_for(&self, rank: usize) -> Option<Duration> {
        self.heard.last(rank).map(|at| at.elapsed())
    }

    /// Returns where a rank is: its address, or nothing for this rank itself.
    pub fn place(&self, rank: usize) -> &str {
        self.places.get(&rank).map_or("", String::as_str)
    }
}
