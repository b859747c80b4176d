//! What the engines took, as it was measured.

use sparktune_cluster::xdp::wire::{PACKET, VALUES};

use crate::cluster::rank::Engine;

/// The ranks of the measurement: as many as the smallest machine has processors.
pub(crate) const RANKS: usize = 2;
/// The most ranks whose sums are held against the model of a step.
pub(crate) const MOST_RANKS: usize = 4;
/// How late one rank is in some sums.
pub(crate) const LATE_MS: u64 = 20;

/// What an engine took, over all ranks.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    pub(crate) engine: Engine,
    /// Of the slowest rank.
    pub(crate) seconds: f64,
    /// Per 10⁹ numbers that were summed, over all ranks.
    pub(crate) cpu: f64,
    /// Bytes of all ranks in both directions for one number of one rank.
    pub(crate) bytes_per_number: f64,
    /// Threads that were woken, over all ranks and sums.
    pub(crate) wakes: u64,
    /// dTLB misses of reads in user space per 1,000 numbers that were summed, over all ranks, or why they
    /// were not counted.
    pub(crate) tlb_misses: Result<f64, String>,
    /// Packets of sums in the network, over all ranks and sums.
    pub(crate) packets: u64,
    pub(crate) resent: u64,
    pub(crate) asked: u64,
    /// Soft interrupts of the network on this machine, over all sums.
    pub(crate) interrupts: Option<u64>,
    pub(crate) small_seconds: f64,
    pub(crate) late_seconds: f64,
}

/// What a packet costs in the kernel, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PerPacket {
    /// One that is thrown away before its tag is looked at.
    pub(crate) unfit: u64,
    /// One whose tag is wrong.
    pub(crate) unsigned: u64,
    /// One that has been counted already.
    pub(crate) duplicate: u64,
    /// One whose result is sent again, with a new tag.
    pub(crate) resent: u64,
}

/// The bytes that a number takes in a packet.
pub(crate) fn bytes_in_packet() -> f64 {
    PACKET as f64 / VALUES as f64
}
