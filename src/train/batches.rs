//! Which rows each optimizer step trains on: a function of plan, seed and step alone, so that a resumed run needs no
//! other cursor than its step.

use crate::TrainError;
use sparktune_data::packing::{Pack, PackStrategy, Packing, Packs};
use sparktune_data::token_file::TokenFile;
use sparktune_model::Row;
use sparktune_plan::Plan;
use std::path::Path;

/// The steps of some epochs over a token file.
pub(crate) struct Batches {
    file: TokenFile,
    packing: Packing,
    micro_batch_packs: usize,
    packs_per_step: usize,
    /// Rows of each epoch.
    rows: Vec<usize>,
    total_steps: u64,
    /// The epoch at hand.
    current: Option<(usize, Packs)>,
}

/// The micro-batches of one step.
pub(crate) struct Batch {
    pub(crate) rows: Vec<Row>,
    /// Epochs done after this step, fractional.
    pub(crate) epoch: f64,
}

impl Batch {
    pub(crate) fn tokens(&self) -> u64 {
        self.rows.iter().map(|row| row.len() as u64).sum()
    }
}

/// Opens a token file and checks that it can be trained on with this vocabulary.
pub(crate) fn open_tokens(path: &Path, vocabulary: usize) -> Result<TokenFile, TrainError> {
    let file = TokenFile::open(path)?;
    if file.max_token_id() as usize >= vocabulary {
        let token = file.max_token_id();
        return Err(TrainError::ForeignTokens { path: path.to_owned(), token, vocabulary });
    }
    Ok(file)
}

/// A packed row as the model takes it.
pub(crate) fn row(pack: &Pack) -> Row {
    Row::new(&pack.input_ids, &pack.cu_seqlens, &pack.loss_mask)
}

impl Batches {
    /// The plan's epochs over a token file, at most `max_steps` steps.
    pub(crate) fn new(
        path: &Path,
        plan: &Plan,
        epochs: u32,
        max_steps: Option<u64>,
        vocabulary: usize,
    ) -> Result<Self, TrainError> {
        let file = open_tokens(path, vocabulary)?;
        if file.target_tokens() == 0 {
            return Err(TrainError::NoTargets { path: path.to_owned() });
        }
        let strategy = match plan.pack.strategy {
            sparktune_plan::PackStrategy::Bfd => PackStrategy::Bfd,
            sparktune_plan::PackStrategy::Stream => PackStrategy::Stream,
        };
        let packing = Packing::new(strategy, plan.pack.length, plan.seed)?.with_drop(plan.data.crc_drop)?;
        let packs_per_step = plan.batch.packs_per_step().max(1) as usize;
        let mut current = None;
        let rows: Vec<usize> = (0..epochs as usize)
            .map(|epoch| {
                let packs = packing.epoch(file.lengths(), epoch as u64);
                let rows = packs.len();
                current.get_or_insert((epoch, packs));
                rows
            })
            .collect();
        let all: u64 = rows.iter().map(|rows| rows.div_ceil(packs_per_step) as u64).sum();
        let total_steps = max_steps.map_or(all, |most| most.min(all));
        let micro_batch_packs = plan.batch.micro_batch_packs.max(1) as usize;
        Ok(Self { file, packing, micro_batch_packs, packs_per_step, rows, total_steps, current })
    }

    /// Optimizer steps in all.
    pub(crate) fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// The batch of step `step` (from 0); the last step of an epoch may be smaller.
    pub(crate) fn step(&mut self, step: u64) -> Result<Batch, TrainError> {
        let (mut epoch, mut within) = (0, step as usize);
        while within >= self.rows[epoch].div_ceil(self.packs_per_step) {
            within -= self.rows[epoch].div_ceil(self.packs_per_step);
            epoch += 1;
        }
        if self.current.as_ref().is_none_or(|(at, _)| *at != epoch) {
            self.current = Some((epoch, self.packing.epoch(self.file.lengths(), epoch as u64)));
            // The pages of the last epoch are read again in another order: let the system have them.
            self.file.release_pages();
        }
        let (_, packs) = self.current.as_ref().expect("was just set");
        let first = within * self.packs_per_step;
        let last = (first + self.packs_per_step).min(packs.len());
        let rows = (first..last)
            .step_by(self.micro_batch_packs)
            .map(|from| {
                let pieces: Vec<_> = (from..(from + self.micro_batch_packs).min(last))
                    .flat_map(|at| packs.row(at).iter().copied())
                    .collect();
                Ok(row(&Pack::build(&self.file, &pieces)?))
            })
            .collect::<Result<_, TrainError>>()?;
        Ok(Batch { rows, epoch: epoch as f64 + last as f64 / packs.len() as f64 })
    }
}
