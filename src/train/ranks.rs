//! The ranks of a training: what this process computes of each step, and what all of them decide together.
//!
//! A process trains alone, or is one of several ranks that train the same steps, or stands for several of
//! them (`sum_as`), which is how one process gets the bits of a cluster. **Order of a step's sums.** The
//! micro-batches of a step are dealt in turn: micro-batch i belongs to rank i mod W. Each rank adds the
//! gradients of its micro-batches in their order; then the ranks' sums are added in the order of ranks, a
//! rank without micro-batches contributing zeros. Losses are added in the order of micro-batches, whoever
//! computed them. Every decision is made from such sums, or is rank 0's, so all ranks decide alike.
//!
//! In a swarm, W and the ranks' numbers are those of the members that are left, and `sum_as` says from which
//! step on there are how many.
//!
//! It must not know what carries the numbers.

use std::ops::Range;
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor, TensorData};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sparktune_base::units::{bytes, counted, milliseconds as in_milliseconds};
use sparktune_cluster::swarm::Change;
use sparktune_cluster::{Collective, Error as ClusterError, RankCounts, Traffic};
use sparktune_kernels::adamw::accumulate;
use sparktune_kernels::packed;
use sparktune_model::{Gradients, Param};
use sparktune_plan::{Plan, SyncPlan};

use crate::elapsed::milliseconds;
use crate::error::TrainError;

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
    /// One process that adds like so many ranks, and like how many in this step.
    SumAs(RankCounts, usize),
    /// One of several.
    Member(&'a mut (dyn Collective + 'static)),
}

/// Returns the least numbers of a bucket if a step has so many.
pub(crate) fn bucket_of(numbers: usize) -> usize {
    (numbers / BUCKETS).clamp(SMALLEST_BUCKET, LARGEST_BUCKET)
}

/// Returns the micro-batches of a step, of which there are so many, that are dealt to one of `count` ranks.
pub(crate) fn dealt(rank: usize, count: usize, micro_batches: usize) -> impl Iterator<Item = usize> {
    (rank..micro_batches).step_by(count)
}

/// The shape of a trained parameter.
pub(crate) struct Trained {
    name: String,
    shape: [usize; 2],
}

impl Trained {
    /// Returns the trained parameters in the order of their names, which is that of sums and norms.
    pub(crate) fn of(parameters: &[&Param]) -> Vec<Self> {
        let mut all = Self::in_order(parameters);
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// Returns parameters in the order that is given.
    pub(crate) fn in_order(parameters: &[&Param]) -> Vec<Self> {
        let of = |param: &&Param| Self { name: param.name().to_owned(), shape: param.tensor().dims() };
        parameters.iter().map(of).collect()
    }

    #[cfg(test)]
    pub(crate) fn with_shape(name: &str, shape: [usize; 2]) -> Self {
        Self { name: name.to_owned(), shape }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn shape(&self) -> [usize; 2] {
        self.shape
    }

    pub(crate) fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Puts these numbers as the gradient.
    pub(crate) fn put(&self, gradients: &mut Gradients, numbers: &[f32], device: &Device) {
        let data = TensorData::new(numbers.to_vec(), self.shape);
        gradients.put(self.name.clone(), packed(Tensor::from_data(data, &device.clone().inner())));
    }

    /// Takes the gradient, which is zero for a rank without micro-batches.
    pub(crate) fn take(&self, gradients: &mut Gradients, device: &Device) -> Tensor<2> {
        let zeros = || packed(Tensor::zeros(self.shape, &device.clone().inner()));
        gradients.take(&self.name).unwrap_or_else(zeros)
    }
}

/// A step over all ranks.
pub(crate) enum Summed {
    /// The loss and the gradients of the whole step.
    Step(f64, Gradients),
    /// A rank could not finish it.
    GivenUp(String),
}

impl Ranks<'_> {
    /// Returns one process that adds like this many ranks, or in one sum.
    pub(crate) fn of(sum_as: Option<RankCounts>) -> Self {
        sum_as.map_or(Self::Alone, |counts| {
            let first = counts.of_step(1);
            Self::SumAs(counts, first)
        })
    }

    /// Says which step is computed from here on, counted from 1.
    pub(crate) fn begin_step(&mut self, step: u64) {
        if let Self::SumAs(counts, now) = self {
            *now = counts.of_step(step);
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

    /// Returns the numbers that the members had when they met.
    pub(crate) fn members(&mut self) -> Vec<usize> {
        self.collective().map(|collective| collective.members()).unwrap_or_default()
    }

    /// Returns the number of sums that a step's gradients are made of.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Alone => 1,
            Self::SumAs(_, now) => *now,
            Self::Member(collective) => collective.world_size(),
        }
    }

    /// Returns the ranks whose micro-batches this process computes.
    pub(crate) fn own(&self) -> Range<usize> {
        match self {
            Self::Alone => 0..1,
            Self::SumAs(_, now) => 0..*now,
            Self::Member(collective) => collective.rank()..collective.rank() + 1,
        }
    }

    /// Returns whether the others can go on without this process.
    pub(crate) fn may_be_missed(&self, plan: &Plan) -> bool {
        plan.ranks.swarm && self.has_others() && !self.is_first()
    }

    pub(crate) fn is_alone(&self) -> bool {
        matches!(self, Self::Alone)
    }

    /// Returns whether there are other processes.
    pub(crate) fn has_others(&self) -> bool {
        matches!(self, Self::Member(_))
    }

    /// Returns whether this process writes checkpoints, samples and outputs.
    pub(crate) fn is_first(&self) -> bool {
        self.own().start == 0
    }

    /// Returns the other processes' collective.
    pub(crate) fn collective(&mut self) -> Option<&mut (dyn Collective + 'static)> {
        match self {
            Self::Member(collective) => Some(&mut **collective),
            _ => None,
        }
    }

    /// Says which rank this is, after a comma; nothing for a process that trains alone.
    pub(crate) fn in_words(&self) -> String {
        match self {
            Self::Alone => String::new(),
            Self::SumAs(counts, _) => format!(", adding like {counts} ranks"),
            Self::Member(collective) => {
                format!(", rank {} of {}", collective.rank(), collective.world_size())
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
        let Self::Member(collective) = self else { return Ok(None) };
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
        Ok(Some(match sync {
            SyncPlan::Step => format!(
                "each step exchanges {bytes} of gradients with {others}, which takes {least}, a part of it during the backward pass; a step waits for the rest, and for slower ranks"
            ),
            SyncPlan::Diloco { steps } => format!(
                "after every {}, the ranks exchange {bytes} of changes with {others}, which takes {least}, plus the wait for slower ranks",
                counted(steps.into(), "step")
            ),
        }))
    }

    /// Returns what was exchanged so far.
    pub(crate) fn traffic(&self) -> Traffic {
        match self {
            Self::Member(collective) => collective.traffic(),
            _ => Traffic::default(),
        }
    }

    /// Returns what every process says, in the order of ranks. If the members change meanwhile, those that
    /// are left say it again.
    ///
    /// # Errors
    /// A rank is gone.
    pub(crate) fn gather<T: Serialize + DeserializeOwned>(&mut self, own: T) -> Result<Vec<T>, TrainError> {
        let Self::Member(collective) = self else { return Ok(vec![own]) };
        loop {
            match gather(&mut **collective, &own) {
                Err(TrainError::Cluster(ClusterError::Regrouped)) => {}
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
            Self::Member(collective) => gather(&mut **collective, &own),
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
        if let Self::Member(collective) = self {
            collective.leave(None);
        }
        if self.is_first() {
            *self = Self::Alone;
        }
    }

    /// Tells the others that this rank ends, and why if that was not to be expected.
    pub(crate) fn leave(&mut self, reason: Option<&str>) {
        if let Self::Member(collective) = self {
            collective.leave(reason);
        }
    }
}

/// Checks that every trained parameter has a gradient in `step`, counted from 1.
pub(crate) fn require_gradients<'a>(
    trained: impl Iterator<Item = &'a Trained>,
    step: u64,
    is_there: impl Fn(&str) -> bool,
) -> Result<(), TrainError> {
    let missing: Vec<&str> = trained.map(Trained::name).filter(|name| !is_there(name)).collect();
    match missing.first() {
        None => Ok(()),
        Some(first) => Err(TrainError::NoGradient { first: (*first).to_owned(), count: missing.len(), step }),
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
    let words = collective.all_gather(&bytes)?.into_iter().enumerate();
    words
        .map(|(rank, word)| {
            serde_json::from_slice(&word)
                .map_err(|_| TrainError::RanksDiffer { rank, what: "it says something unknown".into() })
        })
        .collect()
}

/// Adds the sum of the next rank to those of the ranks before, in one process.
pub(crate) fn add_rank(
    sums: Gradients,
    mut next: Gradients,
    trained: &[Trained],
    device: &Device,
) -> Gradients {
    let mut sums = sums;
    for param in trained {
        let sum = accumulate(param.take(&mut sums, device), param.take(&mut next, device));
        sums.put(param.name.clone(), sum);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was computed of a step that is done again counts for nothing, so only its last deal does.
    #[test]
    fn no_micro_batch_is_lost_or_computed_twice_whatever_members_are_left() {
        for micro_batches in 0..40 {
            for count in 1..12 {
                let mut all: Vec<usize> =
                    (0..count).flat_map(|rank| dealt(rank, count, micro_batches)).collect();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..micro_batches), "{micro_batches} to {count}");
            }
        }
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
