//! The ranks of a training: what this process computes of each step, and what all of them decide together.
//!
//! A process trains alone, or is one of several ranks that train the same steps, or stands for several of
//! them (`sum_as`), which is how one process gets the bits of a cluster. **Order of a step's sums.** The
//! micro-batches of a step are dealt in turn: micro-batch i belongs to rank i mod W. Each rank adds the
//! gradients of its micro-batches in their order; then the ranks' sums are added in the order of ranks, a
//! rank without micro-batches contributing zeros. Losses are added in the order of micro-batches, whoever
//! computed them. Every decision is made from such sums, or is rank 0's, so all ranks decide alike.
//!
//! It must not know what carries the numbers.

use std::ops::Range;
use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sparktune_base::units::{bytes, counted, milliseconds as in_milliseconds};
use sparktune_cluster::{Collective, Traffic};
use sparktune_kernels::adamw::accumulate;
use sparktune_kernels::packed;
use sparktune_model::{Gradients, Param};

use crate::elapsed::milliseconds;
use crate::error::TrainError;

/// The numbers that are exchanged at a time, at least if there are so many: tensors are gathered up to it.
pub(crate) const BUCKET: usize = sparktune_cluster::tcp::BUCKET;

/// The exchanges that a prediction is made from. The fastest counts, because a rank may have come late.
const PROBES: usize = 4;

/// How many processes train, and which of them this one is.
#[derive(Default)]
pub(crate) enum Ranks<'a> {
    /// One process, in one sum.
    #[default]
    Alone,
    /// One process that adds like this many ranks.
    SumAs(usize),
    /// One of several.
    Member(&'a mut (dyn Collective + 'static)),
}

/// The shape of a trained parameter.
pub(crate) struct Trained {
    name: String,
    shape: [usize; 2],
}

impl Trained {
    /// Returns the trained parameters in the order of their names, which is that of sums and norms.
    pub(crate) fn of(parameters: &[&Param]) -> Vec<Self> {
        let of = |param: &&Param| Self { name: param.name().to_owned(), shape: param.tensor().dims() };
        let mut all: Vec<Self> = parameters.iter().map(of).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
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

/// What a rank says of its share of a step before the gradients are added.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Share {
    step: u64,
    /// The places of its micro-batches and the bits of their losses.
    losses: Vec<(usize, u64)>,
    /// The numbers of its gradients.
    numbers: usize,
    /// The bits of the gradient norm that it computed for the step before.
    last_norm: Option<u64>,
    /// Why it cannot finish the step.
    gives_up: Option<String>,
}

/// What this process computed of a step.
pub(crate) struct Computed {
    pub(crate) step: u64,
    /// The places of its micro-batches, with their losses.
    pub(crate) losses: Vec<(usize, f64)>,
    pub(crate) gradients: Gradients,
    /// The gradient norm of the step before, if this process has taken it.
    pub(crate) last_norm: Option<f64>,
    /// Why the step cannot be finished, if so.
    pub(crate) gives_up: Option<String>,
}

/// What the ranks say of their shares of a step.
pub(crate) enum Compared {
    /// The losses of all micro-batches with their places, in order.
    Losses(Vec<(usize, f64)>),
    /// A rank cannot finish its share.
    GivenUp(String),
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
    pub(crate) fn of(sum_as: Option<usize>) -> Self {
        sum_as.map_or(Self::Alone, |count| Self::SumAs(count.max(1)))
    }

    /// Returns the number of sums that a step's gradients are made of.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Alone => 1,
            Self::SumAs(count) => *count,
            Self::Member(collective) => collective.world_size(),
        }
    }

    /// Returns the ranks whose micro-batches this process computes.
    pub(crate) fn own(&self) -> Range<usize> {
        match self {
            Self::Alone => 0..1,
            Self::SumAs(count) => 0..*count,
            Self::Member(collective) => collective.rank()..collective.rank() + 1,
        }
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
            Self::SumAs(count) => format!(", adding like {count} ranks"),
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
    pub(crate) fn predicted_exchange(&mut self, trained: &[Trained]) -> Result<Option<String>, TrainError> {
        let Self::Member(collective) = self else { return Ok(None) };
        let numbers: usize = trained.iter().map(Trained::count).sum();
        let mut zeros = vec![0.0; numbers.clamp(1, BUCKET)];
        let mut fastest = f64::INFINITY;
        let mut exchanged = 0;
        for _ in 0..PROBES {
            let (started, before) = (Instant::now(), collective.traffic());
            collective.all_reduce(&mut zeros)?;
            fastest = fastest.min(milliseconds(started));
            exchanged = collective.traffic().since(before);
        }
        let share = numbers as f64 / zeros.len() as f64;
        Ok(Some(format!(
            "each step exchanges {} of gradients with {}, in at least {} (measured now by {}), plus the wait for slower ranks",
            bytes((exchanged as f64 * share) as u64),
            counted(collective.world_size() as u64 - 1, "other rank"),
            in_milliseconds(fastest * share),
            counted(PROBES as u64, "exchange"),
        )))
    }

    /// Returns what was exchanged so far.
    pub(crate) fn traffic(&self) -> Traffic {
        match self {
            Self::Member(collective) => collective.traffic(),
            _ => Traffic::default(),
        }
    }

    /// Returns what every process says, in the order of ranks.
    ///
    /// # Errors
    /// A rank is gone.
    pub(crate) fn gather<T: Serialize + DeserializeOwned>(&mut self, own: T) -> Result<Vec<T>, TrainError> {
        let Self::Member(collective) = self else { return Ok(vec![own]) };
        let bytes = serde_json::to_vec(&own).expect("plain fields serialise");
        let words = collective.all_gather(&bytes)?.into_iter().enumerate();
        words
            .map(|(rank, word)| {
                serde_json::from_slice(&word)
                    .map_err(|_| TrainError::RanksDiffer { rank, what: "it says something unknown".into() })
            })
            .collect()
    }

    /// Returns what rank 0 says.
    ///
    /// # Errors
    /// A rank is gone.
    pub(crate) fn of_first<T: Serialize + DeserializeOwned>(&mut self, own: T) -> Result<T, TrainError> {
        Ok(self.gather(own)?.swap_remove(0))
    }

    /// Adds a step over all ranks, in the order that the header of this file states.
    ///
    /// # Errors
    /// A rank is gone, or computed something else in the step before.
    pub(crate) fn sum(
        &mut self,
        computed: Computed,
        trained: &[Trained],
        device: &Device,
    ) -> Result<Summed, TrainError> {
        let losses = match self.compare(&computed, trained)? {
            Compared::Losses(losses) => losses,
            Compared::GivenUp(why) => return Ok(Summed::GivenUp(why)),
        };
        let loss = losses.into_iter().map(|(_, loss)| loss).sum();
        let gradients = match self {
            Self::Member(collective) => reduce(&mut **collective, computed.gradients, trained, device)?,
            _ => computed.gradients,
        };
        Ok(Summed::Step(loss, gradients))
    }

    /// Exchanges what the ranks say of their shares, before gradients are.
    ///
    /// # Errors
    /// A rank is gone, or computed something else in the step before.
    pub(crate) fn compare(
        &mut self,
        computed: &Computed,
        trained: &[Trained],
    ) -> Result<Compared, TrainError> {
        let Computed { step, losses, last_norm, gives_up, .. } = computed;
        let share = Share {
            step: *step,
            losses: losses.iter().map(|(place, loss)| (*place, loss.to_bits())).collect(),
            numbers: trained.iter().map(Trained::count).sum(),
            last_norm: last_norm.map(f64::to_bits),
            gives_up: gives_up.clone(),
        };
        let shares = self.gather(share)?;
        // The smallest rank that gives up says why, on all.
        let given_up = shares.iter().enumerate().find_map(|(rank, share)| {
            let why = share.gives_up.as_ref()?;
            Some(if self.has_others() { format!("rank {rank}: {why}") } else { why.clone() })
        });
        if let Some(why) = given_up {
            return Ok(Compared::GivenUp(why));
        }
        agree(&shares)?;
        let mut losses: Vec<(usize, u64)> = shares.into_iter().flat_map(|share| share.losses).collect();
        losses.sort_unstable();
        Ok(Compared::Losses(losses.into_iter().map(|(place, bits)| (place, f64::from_bits(bits))).collect()))
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

/// Adds the gradients of all ranks, in buckets of whole tensors in the order of names.
fn reduce(
    collective: &mut dyn Collective,
    mut gradients: Gradients,
    trained: &[Trained],
    device: &Device,
) -> Result<Gradients, TrainError> {
    let mut sums = Gradients::default();
    let (mut bucket, mut from) = (Vec::new(), 0);
    for (place, param) in trained.iter().enumerate() {
        let data = param.take(&mut gradients, device).into_data();
        bucket.extend(data.try_to_vec::<f32>().expect("gradients are f32"));
        if bucket.len() < BUCKET && place + 1 < trained.len() {
            continue;
        }
        collective.all_reduce(&mut bucket)?;
        let mut rest = bucket.as_slice();
        for param in &trained[from..=place] {
            let (numbers, others) = rest.split_at(param.count());
            param.put(&mut sums, numbers, device);
            rest = others;
        }
        bucket.clear();
        from = place + 1;
    }
    Ok(sums)
}

/// Compares what the ranks say about the step and the one before, so that ranks that compute different bits
/// stop at once and not with different weights.
fn agree(shares: &[Share]) -> Result<(), TrainError> {
    let first = &shares[0];
    for (rank, share) in shares.iter().enumerate() {
        let differs = |what: String| Err(TrainError::RanksDiffer { rank, what });
        if share.step != first.step {
            return differs(format!("it is at step {}, and rank 0 at step {}", share.step, first.step));
        }
        if share.numbers != first.numbers {
            return differs(format!("it trains {} numbers, and rank 0 {}", share.numbers, first.numbers));
        }
        if share.last_norm != first.last_norm {
            return differs(format!(
                "after the same sums, its gradients of step {} had another norm than rank 0's",
                share.step.saturating_sub(1)
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share() -> Share {
        Share { step: 4, losses: vec![(0, 7)], numbers: 10, last_norm: Some(3), gives_up: None }
    }

    #[test]
    fn ranks_that_differ_are_named_with_what_differs() {
        assert!(agree(&[share(), Share { losses: vec![], ..share() }]).is_ok());
        for (other, word) in [
            (Share { step: 5, ..share() }, "at step 5"),
            (Share { numbers: 11, ..share() }, "trains 11 numbers"),
            (Share { last_norm: Some(4), ..share() }, "of step 3 had another norm"),
            (Share { last_norm: None, ..share() }, "another norm"),
        ] {
            let said = agree(&[share(), share(), other]).unwrap_err().to_string();
            assert!(said.contains("rank 2") && said.contains(word), "{said}");
        }
    }

    #[test]
    fn a_process_alone_or_in_the_place_of_others_computes_every_share() {
        assert_eq!((Ranks::Alone.own(), Ranks::Alone.count()), (0..1, 1));
        assert_eq!((Ranks::SumAs(3).own(), Ranks::SumAs(3).count()), (0..3, 3));
        assert!(Ranks::SumAs(3).is_first() && !Ranks::SumAs(3).has_others() && !Ranks::SumAs(1).is_alone());
        assert_eq!(Ranks::SumAs(3).gather(5).unwrap(), [5]);
    }
}
