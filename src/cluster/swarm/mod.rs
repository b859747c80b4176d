//! A swarm: ranks that go on without those that are gone, in the same steps.
//!
//! **Epochs.** An epoch has a number and members, in the order of the numbers that they had when they met. A
//! rank that is gone, or silent for too long, ends the epoch: the coordinator, which is the first member,
//! proposes the next one to all that are left. Each of them stops what it does in the old epoch and says how
//! often it has heard all others ([`notice::Heard`]). When all have said so, they resume together.
//!
//! **Nothing is lost, and nothing counts twice.** A rank can hear the word of another only after that one has
//! heard all words before. So the counts differ by one at most, and the ranks that lack the last words are
//! given them by the coordinator: whether all words were heard is the same on all that are left. Sums between
//! two words count for nothing until the next words. So a caller that changes its state only after a word
//! that everybody says when it has all sums of a step ends every step on all ranks or on none, and does it
//! again with those that are left.
//!
//! **Shares.** All members get equal shares of a step, until rank 0 has seen that one is slow or late
//! ([`shares`]); it says so at the border of a step, and all deal the next one alike.
//!
//! **Who comes later** waits at a door that rank 0 keeps open. At the border of a step, all ranks part and
//! meet again as if they had just been started, with those that waited, and continue from rank 0's checkpoint
//! of that step. So a newcomer gets what every rank gets, by hash and over the same channel. Who does not
//! come, or is lost before they train, is left out, and the others begin to heal anew. If the
//! coordinator is lost, the one in its place opens a door where it listened when the ranks met, which all of
//! them know, also those that were left out and those that wait.
//!
//! **Numbers.** Ranks have three: that of their place among the members, which callers compute with; that
//! which they had when they met, which is used here; and that which their launcher gave them, which alone is
//! shown to people, because it stays.
//!
//! **Who coordinates.** If the coordinator is lost, the first of those that are left takes its place, as long
//! as they are more than half of the members (`regroup`). Otherwise they end, as ranks do that are no
//! swarm, and so they do if it has said itself why it ends, unless it has given way. If it does not lead the
//! meeting to which all go, the next one leads another, under the same condition; the coordinator then needs
//! half of them to begin.

mod counts;
pub(crate) mod door;
pub mod notice;
pub mod pulse;
mod regroup;
pub mod shares;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use counts::{NoCounts, RankCounts};

use crate::error::Error;
use crate::swarm::notice::{Heard, shortened};

/// A change of the members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The number of the epoch that begins.
    pub epoch: u64,
    /// Its members, by the numbers that they had when the ranks met. A caller of
    /// [`Collective::changes`](crate::Collective::changes) is told those that their launcher gave them.
    pub members: Vec<usize>,
    /// Who is left out, by the same numbers, and why; what others said of it is escaped.
    pub lost: Vec<(usize, String)>,
    /// Whether the coordinator is another one than before.
    pub is_taken_over: bool,
}

/// What a rank keeps to go on without others.
#[derive(Default)]
pub(crate) struct Swarm {
    /// What it has heard of all others.
    heard: Heard,
    /// Whom it waits for in vain, and what it has seen.
    suspects: BTreeMap<usize, String>,
    /// Whether the members have changed since the last operation, so that the next one has to be done again
    /// with all that belongs to it.
    is_changed: bool,
    pub(crate) changes: Vec<Change>,
    /// Whether the others go on without this rank.
    pub(crate) is_left_out: bool,
    /// Whether the ranks have met again and do not train yet. They have not all that is needed to take the
    /// coordinator's place.
    pub(crate) is_healing: bool,
    /// Whether this rank has ended because it lost others, which may go on without it.
    pub(crate) has_lost_others: bool,
    /// Whether this rank alone cannot go on, so that the others do, also without their coordinator.
    pub(crate) gives_way: bool,
    /// For tests: the number of messages after which this rank is dead.
    #[cfg(test)]
    pub(crate) sends_left: Option<usize>,
}

impl Swarm {
    /// Returns that of a rank that has met the others again.
    pub(crate) fn healing() -> Self {
        Self { is_healing: true, ..Self::default() }
    }

    /// Records that a rank is waited for in vain.
    pub(crate) fn suspect(&mut self, rank: usize, error: &Error) {
        self.suspects.insert(rank, shortened(&error.seen()));
    }
}
