//! The packed sequences of each optimizer step. They depend only on plan, seed and step, so a resumed run
//! needs no cursor except its step.

use sparktune_base::choices::PackStrategy;
use sparktune_data::packing::{Packing, Packs};
use sparktune_model::PackedSequence;
use sparktune_plan::Plan;

use crate::error::TrainError;
use crate::examples::Examples;

/// The steps of several epochs over a token file.
pub(crate) struct Batches {
    examples: Examples,
    packing: Packing,
    micro_batch_packs: usize,
    packs_per_step: usize,
    /// The number of steps in each epoch.
    epoch_steps: Vec<u64>,
    total_steps: u64,
    /// The packs of the most recently used epoch.
    current: Option<(usize, Packs)>,
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

impl Batches {
    /// Plans `epochs` over a token file, packed according to the plan, for at most `max_steps` steps.
    ///
    /// # Errors
    /// When no token of the file is trained.
    pub(crate) fn new(
        examples: Examples,
        plan: &Plan,
        epochs: u32,
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
        let packs_per_step = plan.batch.packs_per_step().max(1) as usize;
        let mut current = None;
        let epoch_steps: Vec<u64> = (0..epochs as usize)
            .map(|epoch| {
                let packs = examples.pack(&packing, epoch as u64);
                let steps = packs.len().div_ceil(packs_per_step) as u64;
                current.get_or_insert((epoch, packs));
                steps
            })
            .collect();
        let all = epoch_steps.iter().sum();
        let total_steps = max_steps.map_or(all, |most| most.min(all));
        let micro_batch_packs = plan.batch.micro_batch_packs.max(1) as usize;
        Ok(Self { examples, packing, micro_batch_packs, packs_per_step, epoch_steps, total_steps, current })
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
        let (mut epoch, mut within) = (0, step);
        while within >= self.epoch_steps[epoch] {
            within -= self.epoch_steps[epoch];
            epoch += 1;
        }
        if self.current.as_ref().is_none_or(|(at, _)| *at != epoch) {
            self.current = Some((epoch, self.examples.pack(&self.packing, epoch as u64)));
            // The next epoch reads the pages in another order; until then the system may use their memory.
            self.examples.file().release_pages();
        }
        let (_, packs) = self.current.as_ref().expect("was just set");
        let first = within as usize * self.packs_per_step;
        let last = (first + self.packs_per_step).min(packs.len());
        let sequences = (first..last)
            .step_by(self.micro_batch_packs)
            .map(|from| {
                let until = (from + self.micro_batch_packs).min(last);
                let pieces: Vec<_> = (from..until).flat_map(|at| packs.row(at).iter().copied()).collect();
                self.examples.sequence(&pieces)
            })
            .collect::<Result<_, TrainError>>()?;
        Ok(Batch { sequences, epoch: epoch as f64 + last as f64 / packs.len() as f64 })
    }
}
