//! The packed sequences of each optimizer step. They depend only on plan, seed and step, and on a new order
//! if the run returned to a checkpoint, so a resumed run needs no cursor except its step.

use serde::{Deserialize, Serialize};
use sparktune_base::choices::PackStrategy;
use sparktune_base::random::SplitMix64;
use sparktune_data::packing::{Mixture, Packing, Packs};
use sparktune_model::PackedSequence;
use sparktune_plan::Plan;
use sparktune_plan::plan::steps_in_part;

use crate::error::TrainError;
use crate::examples::Examples;

/// Another order of the data, for the rest of the epoch that contains a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NewOrder {
    /// The number of steps that keep their place.
    pub(crate) from_step: u64,
    pub(crate) seed: u64,
}

/// The steps of several epochs over a token file.
pub(crate) struct Batches {
    packed: Packed,
    micro_batch_packs: usize,
    packs_per_step: usize,
    /// The number of steps in each epoch.
    epoch_steps: Vec<u64>,
    total_steps: u64,
    /// The packs of the most recently used epoch.
    current: Option<(usize, Packs)>,
    /// The end of an epoch that is trained in another order.
    reordered: Option<Reordered>,
}

/// A token file, and how each epoch is packed from it.
struct Packed {
    examples: Examples,
    packing: Packing,
    /// How often an epoch trains each example; `None` if it is once.
    mixture: Option<Mixture>,
}

impl Packed {
    fn epoch(&self, epoch: usize) -> Packs {
        match &self.mixture {
            None => self.examples.pack(&self.packing, epoch as u64),
            Some(mixture) => self.examples.pack_mixed(&self.packing, mixture, epoch as u64),
        }
    }
}

/// Packs that are trained in another order.
struct Reordered {
    epoch: usize,
    /// The number of packs of the epoch that keep their place.
    first: usize,
    /// The other packs in their new order, counted from `first`.
    packs: Vec<u32>,
}

/// The packs of one optimizer step.
pub(crate) struct Batch {
    /// The sequences, one per micro-batch.
    pub(crate) sequences: Vec<PackedSequence>,
    /// The number of epochs done after this step, fractional.
    pub(crate) epoch: f64,
}

impl Batch {
    pub(crate) fn tokens(&self) -> u64 {
        self.sequences.iter().map(|sequence| sequence.len() as u64).sum()
    }

    pub(crate) fn trained_tokens(&self) -> u64 {
        self.sequences.iter().map(|sequence| sequence.target_tokens() as u64).sum()
    }
}

/// Returns the number of epochs of which any step is trained.
fn whole_epochs(epochs: f64) -> usize {
    epochs.ceil() as usize
}

impl Batches {
    /// Plans `epochs` over a token file, packed according to the plan, for at most `max_steps` steps. Of a
    /// part of an epoch, the steps are rounded up.
    ///
    /// # Errors
    /// When no token of the file is trained.
    pub(crate) fn new(
        examples: Examples,
        plan: &Plan,
        epochs: f64,
        max_steps: Option<u64>,
    ) -> Result<Self, TrainError> {
        if examples.file().target_tokens() == 0 {
            return Err(TrainError::NoTargets { path: examples.file().path().to_owned() });
        }
        // `stream` splits examples, which would separate the members of a group.
        let strategy = match plan.pack.strategy {
            PackStrategy::Stream if examples.group_size() == 1 => PackStrategy::Stream,
            _ => PackStrategy::Bfd,
        };
        let packing = Packing::new(strategy, plan.pack.length, plan.seed)?.with_drop(plan.data.crc_drop)?;
        let mixture = examples.mixture(&plan.data.weights_in_order())?;
        let packed = Packed { examples, packing, mixture };
        let packs_per_step = plan.batch.packs_per_step().max(1) as usize;
        let mut current = None;
        let epoch_steps: Vec<u64> = (0..whole_epochs(epochs))
            .map(|epoch| {
                let packs = packed.epoch(epoch);
                let steps = packs.len().div_ceil(packs_per_step) as u64;
                current.get_or_insert((epoch, packs));
                steps
            })
            .collect();
        let cut = epoch_steps.last().filter(|_| epochs.fract() > 0.0);
        let cut = cut.map_or(0, |steps| steps - steps_in_part(epochs, *steps));
        let all = epoch_steps.iter().sum::<u64>() - cut;
        // With low weights, all examples of a short run may be left for later epochs.
        if all == 0 {
            return Err(TrainError::NothingInEpochs { path: packed.examples.file().path().to_owned() });
        }
        let total_steps = max_steps.map_or(all, |most| most.min(all));
        let micro_batch_packs = plan.batch.micro_batch_packs.max(1) as usize;
        Ok(Self {
            packed,
            micro_batch_packs,
            packs_per_step,
            epoch_steps,
            total_steps,
            current,
            reordered: None,
        })
    }

    /// Trains the packs of an epoch that come after a step in another order. Each is still trained once.
    pub(crate) fn change_order(&mut self, order: NewOrder) {
        let (epoch, within) = self.place_of(order.from_step);
        let packs = self.packed.epoch(epoch);
        let first = within as usize * self.packs_per_step;
        let others = SplitMix64::new(order.seed).permutation((packs.len() - first) as u32);
        self.reordered = Some(Reordered { epoch, first, packs: others });
        self.current = Some((epoch, packs));
    }

    /// Returns the epoch of a step, and its place in it, both counted from 0.
    fn place_of(&self, step: u64) -> (usize, u64) {
        let (mut epoch, mut within) = (0, step);
        while within >= self.epoch_steps[epoch] {
            within -= self.epoch_steps[epoch];
            epoch += 1;
        }
        (epoch, within)
    }

    /// Returns the pack that is trained at this place of an epoch.
    fn pack_at(&self, epoch: usize, place: usize) -> usize {
        match &self.reordered {
            Some(new) if new.epoch == epoch && place >= new.first => {
                new.first + new.packs[place - new.first] as usize
            }
            _ => place,
        }
    }

    /// Returns the total number of optimizer steps.
    pub(crate) fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// Returns the batch of step `step` (counted from 0). The last step of an epoch may be smaller.
    ///
    /// # Errors
    /// When an example is damaged.
    pub(crate) fn step(&mut self, step: u64) -> Result<Batch, TrainError> {
        let (epoch, within) = self.place_of(step);
        if self.current.as_ref().is_none_or(|(at, _)| *at != epoch) {
            self.current = Some((epoch, self.packed.epoch(epoch)));
            // The next epoch reads the pages in another order; until then the system may use their memory.
            self.packed.examples.file().release_pages();
        }
        let (_, packs) = self.current.as_ref().expect("was just set");
        let first = within as usize * self.packs_per_step;
        let last = (first + self.packs_per_step).min(packs.len());
        let sequences = (first..last)
            .step_by(self.micro_batch_packs)
            .map(|from| {
                let until = (from + self.micro_batch_packs).min(last);
                let pieces: Vec<_> =
                    (from..until).flat_map(|at| packs.row(self.pack_at(epoch, at)).iter().copied()).collect();
                self.packed.examples.sequence(&pieces)
            })
            .collect::<Result<_, TrainError>>()?;
        Ok(Batch { sequences, epoch: epoch as f64 + last as f64 / packs.len() as f64 })
    }
}
