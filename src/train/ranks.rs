//! The ranks of a training: what this process computes of each step, and what all of them decide together.
//!
//! A process trains alone, or is one of several ranks that train the same steps, or stands for several of
//! them (`sum_as`), which is how one process gets the bits of a cluster. **Order of a step's sums.** The
//! micro-batches of a step are dealt in turn: micro-batch i belongs to rank i mod W, unless rank 0 of a swarm
//! has said that the ranks have different shares. Each rank adds the gradients of its micro-batches in order;
//! then the ranks' sums are added in the order of ranks, a rank without micro-batches contributing zeros.
//! Losses are added in the order of micro-batches, whoever computed them. Every decision is made from such
//! sums, or is rank 0's, so all ranks decide alike.
//!
//! In a swarm, W and the ranks' numbers are those of the members that are left, who have equal shares at
//! first, and `sum_as` says from which step on there are how many, in which shares.
//!
//! It must not know what carries the numbers.

use std::ops::Range;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sparktune_base::units::{bytes, counted, milliseconds as in_milliseconds};
use sparktune_cluster::swarm::Change;
use sparktune_cluster::{Collective, Error as ClusterError, RankCounts, Shares, SummedBy, Traffic};
use sparktune_model::Gradients;
use sparktune_plan::{Plan, SyncPlan};

use crate::elapsed::milliseconds;
use crate::error::TrainError;
use crate::trained::Trained;

/// The numbers that are exchanged at a time, at least, if there are many: 4 MB, which take longer on most
/// links than the two halves of a sum wait for each other, and leave little for after the backward pass.
const LARGEST_BUCKET: usize = 1 << 20;
/// The same, if there are few.
const SMALLEST_BUCKET: usize = 1 << 12;
/// The buckets of a step between these two, so that the first one leaves early.
const BUCKETS: usize = 8;

/// The exchanges that a prediction is made from. The fastest counts, because a rank may have come late.
const PROBES: usize = 4;

/// How many processes train, and which of them this one is.
#[derive(Default)]
pub(crate) enum Ranks<'a> {
    /// One process, in one sum.
    #[default]
    Alone,
    /// One process that adds like so many ranks, and like which in this step.
    SumAs(RankCounts, Shares),
    /// One of several, and the shares that rank 0 has said last. They hold as long as the members stay.
    Member(&'a mut (dyn Collective + 'static), Shares),
}

/// Returns the least numbers of a bucket if a step has so many.
pub(crate) fn bucket_of(numbers: usize) -> usize {
    (numbers / BUCKETS).clamp(SMALLEST_BUCKET, LARGEST_BUCKET)
}

/// A step over all ranks.
pub(crate) enum Summed {
    /// The loss and the gradients of the whole step.
    Step(f64, Gradients),
    /// A rank could not finish it.
    GivenUp(String),
}

impl<'a> Ranks<'a> {
    /// Returns one process that adds like this many ranks, or in one sum.
    pub(crate) fn of(sum_as: Option<RankCounts>) -> Self {
        sum_as.map_or(Self::Alone, |counts| {
            let first = counts.of_step(1).clone();
            Self::SumAs(counts, first)
        })
    }

    /// Returns one of several processes.
    pub(crate) fn member(collective: &'a mut (dyn Collective + 'static)) -> Self {
        let equal = collective.world_size().into();
        Self::Member(collective, equal)
    }

    /// Says which step is computed from here on, counted from 1.
    pub(crate) fn begin_step(&mut self, step: u64) {
        if let Self::SumAs(counts, now) = self {
            now.clone_from(counts.of_step(step));
        }
    }

    /// From here on, the ranks go on without one that is gone or silent for so long. Returns whether this
    /// process is one of several that can.
    pub(crate) fn outlive(&mut self, silence: Duration) -> bool {
        self.collective().is_some_and(|collective| collective.outlive(silence))
    }

    /// Returns how many processes wait at this one to be let in.
    pub(crate) fn newcomers(&mut self) -> usize {
        self.collective().map_or(0, |collective| collective.newcomers())
    }

    /// Returns how the members have changed since the last call.
    pub(crate) fn changes(&mut self) -> Vec<Change> {
        self.collective().map(Collective::changes).unwrap_or_default()
    }

    /// Returns the numbers that their launcher gave to the members.
    pub(crate) fn launched_as(&self) -> Vec<usize> {
        match self {
            Self::Member(collective, _) => collective.launched_as(),
            _ => Vec::new(),
        }
    }

    /// Returns the number that its launcher gave to this process.
    pub(crate) fn number(&self) -> usize {
        let own = self.own().start;
        self.launched_as().get(own).copied().unwrap_or(own)
    }

    /// Returns where the process that has the run lets others in.
    pub(crate) fn address(&self) -> Option<(String, u16)> {
        match self {
            Self::Member(collective, _) => collective.addresses().into_iter().next(),
            _ => None,
        }
    }

    /// Returns the number of sums that a step's gradients are made of.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Alone => 1,
            Self::SumAs(_, now) => now.ranks(),
            Self::Member(collective, _) => collective.world_size(),
        }
    }

    /// Returns the shares of the ranks.
    pub(crate) fn shares(&self) -> Shares {
        match self {
            Self::SumAs(_, now) => now.clone(),
            Self::Member(collective, said) if said.ranks() == collective.world_size() => said.clone(),
            _ => self.count().into(),
        }
    }

    /// Gives all members equal shares.
    pub(crate) fn share_equally(&mut self) {
        if let Self::Member(collective, shares) = self {
            *shares = collective.world_size().into();
        }
    }

    /// Takes what rank 0 has said of the shares before members may have changed. Returns whether they are
    /// others now.
    pub(crate) fn take_shares(&mut self, said: Vec<u32>) -> bool {
        let before = self.shares();
        if let (Self::Member(_, shares), Some(said)) = (&mut *self, Shares::new(said)) {
            *shares = said;
        }
        self.shares() != before
    }

    /// Returns the ranks whose micro-batches this process computes.
    pub(crate) fn own(&self) -> Range<usize> {
        match self {
            Self::Alone => 0..1,
            Self::SumAs(_, now) => 0..now.ranks(),
            Self::Member(collective, _) => collective.rank()..collective.rank() + 1,
        }
    }

    /// Returns whether the others can go on without this process.
    pub(crate) fn may_be_missed(&self, plan: &Plan) -> bool {
        plan.ranks.swarm && self.has_others() && !self.is_first()
    }

    /// Returns whether this process would take the place of the first one if that is lost: it is the second
    /// of at least three of a swarm.
    pub(crate) fn is_deputy(&self, plan: &Plan) -> bool {
        plan.ranks.swarm && self.has_others() && self.own().start == 1 && self.count() > 2
    }

    pub(crate) fn is_alone(&self) -> bool {
        matches!(self, Self::Alone)
    }

    /// Returns whether there are other processes.
    pub(crate) fn has_others(&self) -> bool {
        matches!(self, Self::Member(..))
    }

    /// Returns whether this process writes checkpoints, samples and outputs.
    pub(crate) fn is_first(&self) -> bool {
        self.own().start == 0
    }

    /// Returns the other processes' collective.
    pub(crate) fn collective(&mut self) -> Option<&mut (dyn Collective + 'static)> {
        match self {
            Self::Member(collective, _) => Some(&mut **collective),
            _ => None,
        }
    }

    /// Says which rank this is, after a comma; nothing for a process that trains alone.
    pub(crate) fn in_words(&self) -> String {
        match self {
            Self::Alone => String::new(),
            Self::SumAs(counts, _) => format!(", adding like {counts} ranks"),
            Self::Member(collective, _) => {
                format!(", rank {} of {}", self.number(), collective.world_size())
            }
        }
    }

    /// Returns a warning for rank 0 if a step has fewer micro-batches than there are ranks.
    pub(crate) fn idle(&self, micro_batches: u32) -> Option<String> {
        let ranks = self.count();
        let is_told = self.has_others() && self.is_first() && (micro_batches as usize) < ranks;
        is_told.then(|| {
            let each = if micro_batches == 1 { "micro-batch" } else { "micro-batches" };
            format!(
                "{ranks} ranks share {micro_batches} {each} per step, so some have nothing to do. Start the next run with --grad-accum-steps {ranks} or a multiple of it"
            )
        })
    }

    /// Measures the links with a sum of zeros, and says what a step will exchange by them and in which time;
    /// `None` for a process without others. All ranks measure together.
    ///
    /// # Errors
    /// A rank is gone.
    pub(crate) fn predicted_exchange(
        &mut self,
        trained: &[Trained],
        sync: SyncPlan,
    ) -> Result<Option<String>, TrainError> {
        let Self::Member(collective, _) = self else { return Ok(None) };
        let numbers: usize = trained.iter().map(Trained::count).sum();
        let mut zeros = vec![0.0; bucket_of(numbers).min(numbers.max(1))];
        let mut fastest = f64::INFINITY;
        let mut exchanged = 0;
        for _ in 0..PROBES {
            let (started, before) = (Instant::now(), collective.traffic());
            collective.all_reduce(&mut zeros)?;
            fastest = fastest.min(milliseconds(started));
            exchanged = collective.traffic().since(before);
        }
        let share = numbers as f64 / zeros.len() as f64;
        let (bytes, others) = (
            bytes((exchanged as f64 * share) as u64),
            counted(collective.world_size() as u64 - 1, "other rank"),
        );
        let least = format!(
            "at least {} (measured now by {})",
            in_milliseconds(fastest * share),
            counted(PROBES as u64, "exchange")
        );
        // It decides bits, so it is part of the run's record.
        let has_other_bits = collective.summed_by().may_differ(SummedBy::Tcp, collective.world_size());
        let replayed = if has_other_bits { "; a replay with --sum-as has other bits" } else { "" };
        let engine = collective.engine().map_or_else(String::new, |engine| format!("{engine}{replayed}; "));
        Ok(Some(match sync {
            SyncPlan::Step => format!(
                "{engine}each step exchanges {bytes} of gradients with {others}, which takes {least}, a part of it during the backward pass; a step waits for the rest, and for slower ranks"
            ),
            SyncPlan::Diloco { steps } => format!(
                "{engine}after every {}, the ranks exchange {bytes} of changes with {others}, which takes {least}, plus the wait for slower ranks",
                counted(steps.into(), "step")
            ),
        }))
    }

    /// Returns how sums over the ranks are made; `None` for a process that trains alone. What `is_seen`
    /// before it is added goes over TCP, and one process that adds like several ranks has the bits of that.
    pub(crate) fn summed_by(&self, is_seen: bool) -> Option<SummedBy> {
        match self {
            Self::Member(collective, _) if !is_seen => Some(collective.summed_by()),
            Self::Member(..) | Self::SumAs(..) => Some(SummedBy::Tcp),
            Self::Alone => None,
        }
    }

    /// Returns what was exchanged so far.
    pub(crate) fn traffic(&self) -> Traffic {
        match self {
            Self::Member(collective, _) => collective.traffic(),
            _ => Traffic::default(),
        }
    }

    /// Returns what every process says, in the order of ranks. If the members change meanwhile, those that
    /// are left say it again.
    ///
    /// # Errors
    /// A rank is gone.
    pub(crate) fn gather<T: Serialize + DeserializeOwned>(&mut self, own: T) -> Result<Vec<T>, TrainError> {
        let Self::Member(collective, _) = self else { return Ok(vec![own]) };
        loop {
            match gather(&mut **collective, &own) {
                // While they heal, all begin again from the start.
                Err(TrainError::Cluster(ClusterError::Regrouped)) if !collective.is_healing() => {}
                said => return said,
            }
        }
    }

    /// Like [`gather`](Self::gather), for what depends on the members.
    ///
    /// # Errors
    /// A rank is gone, or the members have changed.
    pub(crate) fn gather_shares<T: Serialize + DeserializeOwned>(
        &mut self,
        own: T,
    ) -> Result<Vec<T>, TrainError> {
        match self {
            Self::Member(collective, _) => gather(&mut **collective, &own),
            _ => Ok(vec![own]),
        }
    }

    /// Returns what rank 0 says.
    ///
    /// # Errors
    /// A rank is gone.
    pub(crate) fn of_first<T: Serialize + DeserializeOwned>(&mut self, own: T) -> Result<T, TrainError> {
        Ok(self.gather(own)?.swap_remove(0))
    }

    /// Trains without the others from here on, which do the same. Waits until nothing is on its way to them.
    pub(crate) fn part(&mut self) {
        if let Self::Member(collective, _) = self {
            collective.leave(None);
        }
        if self.is_first() {
            *self = Self::Alone;
        }
    }

    /// Tells the others that this rank ends, and why if that was not to be expected.
    pub(crate) fn leave(&mut self, reason: Option<&str>) {
        if let Self::Member(collective, _) = self {
            collective.leave(reason);
        }
    }
}

/// Returns what every process says, in the order of ranks.
///
/// # Errors
/// A rank is gone.
pub(crate) fn gather<T: Serialize + DeserializeOwned>(
    collective: &mut dyn Collective,
    own: &T,
) -> Result<Vec<T>, TrainError> {
    let bytes = serde_json::to_vec(own).expect("plain fields serialise");
    // A member whose word all have heard may be none any more when this returns.
    let names = collective.launched_as();
    let words = collective.all_gather(&bytes)?;
    let read = |(place, word): (usize, Vec<u8>)| {
        let rank = names.get(place).copied().unwrap_or(place);
        let unknown =
            |_| TrainError::RanksDiffer { what: format!("rank {rank} says something that is unknown here") };
        serde_json::from_slice(&word).map_err(unknown)
    };
    words.into_iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks of which the last one is lost when all have been heard.
    struct Shrinking(usize);

    impl Collective for Shrinking {
        fn rank(&self) -> usize {
            0
        }
        fn world_size(&self) -> usize {
            self.0
        }
        fn all_reduce(&mut self, _: &mut [f32]) -> Result<(), ClusterError> {
            Ok(())
        }
        fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, ClusterError> {
            self.0 -= 1;
            Ok(vec![own.to_vec(); self.0 + 1])
        }
        fn leave(&mut self, _: Option<&str>) {}
        fn traffic(&self) -> Traffic {
            Traffic::default()
        }
    }

    #[test]
    fn what_all_have_said_is_whole_when_one_of_them_is_lost_right_after_it() {
        let mut three = Shrinking(3);
        assert_eq!(Ranks::member(&mut three).gather_shares(7).unwrap(), [7, 7, 7]);
        assert_eq!(three.0, 2);
    }

    #[test]
    fn a_process_alone_or_in_the_place_of_others_computes_every_share() {
        assert_eq!((Ranks::Alone.own(), Ranks::Alone.count()), (0..1, 1));
        let three = || Ranks::of(Some(RankCounts::from(3).then(9, 2)));
        assert_eq!((three().own(), three().count()), (0..3, 3));
        assert!(three().is_first() && !three().has_others());
        assert!(!Ranks::of(Some(1.into())).is_alone());
        assert_eq!(three().gather(5).unwrap(), [5]);
        let mut later = three();
        later.begin_step(9);
        assert_eq!((later.own(), later.count()), (0..2, 2));
    }
}
