//! Training with rare exchanges (`--sync diloco:H`), for slow links: DiLoCo, arXiv 2311.08105.
//!
//! Each rank takes H optimizer steps (inner steps) on its own micro-batches alone. Then the ranks add how far
//! each of them came from the weights of the last exchange, in the order of ranks, and all take the same
//! outer step with the mean: SGD with Nesterov momentum. This is not the training that `--sync step` does,
//! and its weights depend on the number of ranks.
//!
//! Owns the weights of the last exchange, the outer momentum, and the ranks that one process stands for
//! (`--sum-as`), which it computes in turn. All outer arithmetic is f32 on the host, so that every process
//! has the same bits. Between two exchanges the weights of a rank are its own, so evaluations, checkpoints
//! and stops wait for the next outer step. A checkpoint has the optimizer of every rank and the outer
//! momentum.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use sparktune_cluster::Collective;
use sparktune_kernels::packed;

use crate::elapsed::milliseconds;
use crate::error::TrainError;
use crate::objective::Trainee;
use crate::optimizer::Optimizer;
use crate::ranks::{Ranks, bucket_of};
use crate::state::{read_beside_optimizer, read_optimizer};
use crate::trained::Trained;

/// The learning rate and the momentum of the outer steps, the paper's best ones.
const OUTER_LEARNING_RATE: f32 = 0.7;
const OUTER_MOMENTUM: f32 = 0.9;
/// The numbers of another rank's optimizer that are sent at a time.
const PIECE: usize = 4 << 20;
/// The prefix of the outer momentum's tensors in a checkpoint.
const OUTER: &str = "outer.";

/// The outer state of a process, and the ranks that it computes.
pub(crate) struct Diloco {
    /// The number of steps between two exchanges.
    every: u64,
    /// The weights of the last exchange, by name.
    start: BTreeMap<String, Vec<f32>>,
    momentum: BTreeMap<String, Vec<f32>>,
    /// The ranks that this process computes, in their order. The weights and the optimizer of the one that is
    /// being computed are in the trainee and in its optimizer.
    workers: Vec<Worker>,
}

/// What a rank has of its own between two exchanges.
#[derive(Default)]
struct Worker {
    weights: BTreeMap<String, Tensor<2>>,
    optimizer: Optimizer,
    /// The number of its last inner steps in a row that were not finite.
    skipped: u32,
}

/// Names the optimizer of a rank in a checkpoint. Rank 0's is where that of any run is.
fn prefix(rank: usize) -> String {
    if rank == 0 { String::new() } else { format!("rank{rank}.") }
}

impl Diloco {
    /// Starts at the trainee's weights, or goes on from a checkpoint. `skipped` is from its state: for each
    /// rank, the number of its last steps in a row that were not finite. `optimizer` becomes that of the
    /// first rank that this process computes.
    ///
    /// # Errors
    /// The checkpoint is damaged.
    pub(crate) fn start<T: Trainee>(
        every: u64,
        ranks: &Ranks,
        trainee: &T,
        optimizer: &mut Optimizer,
        resumed: Option<&Path>,
        skipped: &[u32],
    ) -> Result<Self, TrainError> {
        let device = trainee.model().device();
        let start: BTreeMap<_, _> =
            trainee.trained().iter().map(|param| (param.name().to_owned(), param.to_vec())).collect();
        let zeros = |(name, numbers): (&String, &Vec<f32>)| (name.clone(), vec![0.0; numbers.len()]);
        let mut momentum: BTreeMap<_, _> = start.iter().map(zeros).collect();
        let worker = |rank| Worker { skipped: skipped_of(skipped, rank), ..Worker::default() };
        let mut workers: Vec<Worker> = ranks.own().map(worker).collect();
        if let Some(folder) = resumed {
            for (name, numbers) in read_beside_optimizer(folder, OUTER)? {
                if let Some(own) = momentum.get_mut(&name).filter(|own| own.len() == numbers.len()) {
                    *own = numbers;
                }
            }
            for (rank, worker) in ranks.own().zip(&mut workers) {
                worker.optimizer = read_optimizer(folder, device, &prefix(rank))?;
                if worker.optimizer.moments.is_empty() {
                    // There are more ranks than before: the new ones go on with what rank 0 has.
                    worker.optimizer = read_optimizer(folder, device, "")?;
                }
            }
        }
        if let [only] = workers.as_mut_slice() {
            *optimizer = std::mem::take(&mut only.optimizer);
        } else {
            for worker in &mut workers {
                worker.weights = weights(trainee);
            }
        }
        Ok(Self { every, start, momentum, workers })
    }

    /// Returns whether the ranks exchange after this step.
    pub(crate) fn exchanges_after(&self, step: u64, total: u64) -> bool {
        step >= total || step.is_multiple_of(self.every)
    }

    /// Returns the first step after the exchange before this step, counted from 1.
    pub(crate) fn first_of_round(&self, step: u64) -> u64 {
        (step - 1) / self.every * self.every + 1
    }

    /// Calls `f` for every rank that this process computes, with its weights in the trainee and its optimizer
    /// in `optimizer`. `f` returns whether the rank's step was finite, if it took one. Stops early when `f`
    /// returns an error.
    pub(crate) fn for_each<T: Trainee, E>(
        &mut self,
        first: usize,
        trainee: &mut T,
        optimizer: &mut Optimizer,
        mut f: impl FnMut(usize, &mut T, &mut Optimizer) -> Result<Option<bool>, E>,
    ) -> Result<(), E> {
        let is_alone = self.workers.len() == 1;
        for (place, worker) in self.workers.iter_mut().enumerate() {
            if !is_alone {
                put(trainee, |name| worker.weights.remove(name));
                *optimizer = std::mem::take(&mut worker.optimizer);
            }
            let is_finite = f(first + place, trainee, optimizer)?;
            worker.skipped = match is_finite {
                Some(true) => 0,
                Some(false) => worker.skipped + 1,
                None => worker.skipped,
            };
            if !is_alone {
                worker.weights = weights(trainee);
                worker.optimizer = std::mem::take(optimizer);
            }
        }
        Ok(())
    }

    /// Takes the outer step with all ranks, after which all of them have the same weights. Returns, for each
    /// rank, the number of its last steps in a row that were not finite, and the milliseconds of the
    /// exchange.
    ///
    /// # Errors
    /// A rank is gone.
    pub(crate) fn exchange<T: Trainee>(
        &mut self,
        ranks: &mut Ranks,
        trainee: &mut T,
    ) -> Result<(Vec<u32>, f64), TrainError> {
        let trained = Trained::of(&trainee.trained());
        let started = Instant::now();
        let own: Vec<u32> = self.workers.iter().map(|worker| worker.skipped).collect();
        let skipped = ranks.gather(own)?.into_iter().flatten().collect();
        let mut changes: BTreeMap<String, Vec<f32>> = BTreeMap::new();
        if self.workers.len() == 1 {
            for param in trainee.trained() {
                changes.insert(param.name().to_owned(), change(&self.start[param.name()], &param.to_vec()));
            }
        } else {
            for worker in &mut self.workers {
                for (name, weights) in std::mem::take(&mut worker.weights) {
                    let change = change(&self.start[&name], &numbers(weights));
                    match changes.get_mut(&name) {
                        None => drop(changes.insert(name, change)),
                        Some(sums) => sums.iter_mut().zip(change).for_each(|(sum, more)| *sum += more),
                    }
                }
            }
        }
        let count = ranks.count();
        if let Some(collective) = ranks.collective() {
            add_over_ranks(collective, &trained, &mut changes)?;
        }
        for (name, sums) in &changes {
            let start = self.start.get_mut(name).expect("the trained parameters stay the same");
            let momentum = self.momentum.get_mut(name).expect("there is one for each parameter");
            outer_step(start, momentum, sums, count);
        }
        let device = trainee.model().device().clone();
        let Self { start, workers, .. } = self;
        let shapes: BTreeMap<&str, [usize; 2]> =
            trained.iter().map(|param| (param.name(), param.shape())).collect();
        put(trainee, |name| Some(tensor(start.get(name)?.clone(), *shapes.get(name)?, &device)));
        if workers.len() > 1 {
            workers.iter_mut().for_each(|worker| worker.weights = weights(trainee));
        }
        Ok((skipped, milliseconds(started)))
    }

    /// Returns what a checkpoint has beside the weights and the optimizer of rank 0. All ranks must call this
    /// together. `optimizer` is set to that of the first rank that this process computes.
    ///
    /// # Errors
    /// A rank is gone.
    pub(crate) fn checkpointed<T: Trainee>(
        &mut self,
        ranks: &mut Ranks,
        trainee: &T,
        optimizer: &mut Optimizer,
    ) -> Result<BTreeMap<String, Tensor<2>>, TrainError> {
        let trained = Trained::of(&trainee.trained());
        let device = Device::flex();
        let mut more = BTreeMap::new();
        for param in &trained {
            let momentum = self.momentum[param.name()].clone();
            more.insert(format!("{OUTER}{}", param.name()), tensor(momentum, param.shape(), &device));
        }
        match ranks.collective() {
            Some(collective) => {
                for param in &trained {
                    let moments = optimizer.moments.get(param.name());
                    for (which, own) in [("m", moments.map(|(m, _)| m)), ("v", moments.map(|(_, v)| v))] {
                        let zeros = || vec![0.0; param.count()];
                        let own = own.map_or_else(zeros, |moment| numbers(moment.clone()));
                        for (rank, numbers) in gathered(collective, &own)?.into_iter().enumerate().skip(1) {
                            let name = format!("{}{which}.{}", prefix(rank), param.name());
                            more.insert(name, tensor(numbers, param.shape(), &device));
                        }
                    }
                }
            }
            None if self.workers.len() > 1 => {
                for (rank, worker) in self.workers.iter().enumerate().skip(1) {
                    for (name, (m, v)) in &worker.optimizer.moments {
                        more.insert(format!("{}m.{name}", prefix(rank)), m.clone());
                        more.insert(format!("{}v.{name}", prefix(rank)), v.clone());
                    }
                }
                let of_first = &self.workers[0].optimizer.moments;
                optimizer.moments =
                    of_first.iter().map(|(name, pair)| (name.clone(), pair.clone())).collect();
            }
            None => {}
        }
        Ok(more)
    }
}

/// Returns how many of a rank's last steps in a row were not finite. A rank that has joined since has none.
fn skipped_of(skipped: &[u32], rank: usize) -> u32 {
    skipped.get(rank).copied().unwrap_or(0)
}

fn weights<T: Trainee>(trainee: &T) -> BTreeMap<String, Tensor<2>> {
    trainee.trained().iter().map(|param| (param.name().to_owned(), param.wide())).collect()
}

/// Gives trained parameters these numbers.
fn put<T: Trainee>(trainee: &mut T, mut numbers_of: impl FnMut(&str) -> Option<Tensor<2>>) {
    trainee.visit_mut(&mut |param| {
        if param.is_trainable()
            && let Some(numbers) = numbers_of(param.name())
        {
            param.put(numbers, true);
        }
    });
}

fn tensor(numbers: Vec<f32>, shape: [usize; 2], device: &Device) -> Tensor<2> {
    packed(Tensor::from_data(TensorData::new(numbers, shape), &device.clone().inner()))
}

fn numbers(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as::<f32>().expect("weights and moments are floats")
}

/// Returns by how much weights have to be lowered to come from `start` to `end`.
fn change(start: &[f32], end: &[f32]) -> Vec<f32> {
    start.iter().zip(end).map(|(start, end)| start - end).collect()
}

/// Moves the weights of the last exchange by the mean of the ranks' changes.
fn outer_step(weights: &mut [f32], momentum: &mut [f32], sums: &[f32], count: usize) {
    // There are at most 256 ranks.
    let share = 1.0 / count as f32;
    for ((weight, momentum), sum) in weights.iter_mut().zip(momentum).zip(sums) {
        let gradient = sum * share;
        *momentum = OUTER_MOMENTUM * *momentum + gradient;
        *weight -= OUTER_LEARNING_RATE * (gradient + OUTER_MOMENTUM * *momentum);
    }
}

/// Adds the changes of all ranks in their order, in buckets of whole parameters.
fn add_over_ranks(
    collective: &mut (dyn Collective + 'static),
    trained: &[Trained],
    changes: &mut BTreeMap<String, Vec<f32>>,
) -> Result<(), TrainError> {
    let least = bucket_of(trained.iter().map(Trained::count).sum());
    let (mut bucket, mut from) = (Vec::new(), 0);
    for (place, param) in trained.iter().enumerate() {
        bucket.extend_from_slice(&changes[param.name()]);
        if bucket.len() < least && place + 1 < trained.len() {
            continue;
        }
        collective.all_reduce(&mut bucket)?;
        let mut rest = bucket.as_slice();
        for param in &trained[from..=place] {
            let (sums, others) = rest.split_at(param.count());
            changes.insert(param.name().to_owned(), sums.to_vec());
            rest = others;
        }
        bucket.clear();
        from = place + 1;
    }
    Ok(())
}

/// Returns the numbers of all ranks, which have equally many.
fn gathered(collective: &mut (dyn Collective + 'static), own: &[f32]) -> Result<Vec<Vec<f32>>, TrainError> {
    let mut all = vec![Vec::with_capacity(own.len()); collective.world_size()];
    for piece in own.chunks(PIECE) {
        for (rank, bytes) in collective.all_gather(bytemuck::cast_slice(piece))?.into_iter().enumerate() {
            if bytes.len() != size_of_val(piece) {
                let what = format!("rank {rank} has an optimizer with pieces of {} bytes", bytes.len());
                return Err(TrainError::RanksDiffer { what });
            }
            let four = |four: &[u8]| f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
            all[rank].extend(bytes.chunks_exact(4).map(four));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outer_step_is_nesterovs_with_the_mean_of_the_changes() {
        let (mut weights, mut momentum) = ([1.0, 2.0], [0.0, 0.5]);
        outer_step(&mut weights, &mut momentum, &[0.2, -0.4], 2);
        // By hand: g = 0.1, -0.2; m = 0.1, 0.9 * 0.5 - 0.2; w -= 0.7 (g + 0.9 m).
        let close = |a: f32, b: f32| (a - b).abs() < 1e-6;
        assert!(close(momentum[0], 0.1) && close(momentum[1], 0.25), "{momentum:?}");
        assert!(close(weights[0], 1.0 - 0.7 * 0.19) && close(weights[1], 2.0 - 0.7 * 0.025), "{weights:?}");
    }

    #[test]
    fn a_rank_that_has_come_since_the_checkpoint_has_skipped_no_steps() {
        let of = |rank| skipped_of(&[0, 3], rank);
        assert_eq!([of(0), of(1), of(2)], [0, 3, 0]);
    }

    #[test]
    fn rounds_end_after_every_so_many_steps_and_at_the_end() {
        let of =
            |every| Diloco { every, start: BTreeMap::new(), momentum: BTreeMap::new(), workers: Vec::new() };
        let ends: Vec<u64> = (1..=8).filter(|step| of(3).exchanges_after(*step, 8)).collect();
        assert_eq!(ends, [3, 6, 8]);
        let first: Vec<u64> = [1, 3, 4, 6, 7, 8].into_iter().map(|step| of(3).first_of_round(step)).collect();
        assert_eq!(first, [1, 1, 4, 4, 7, 7]);
        assert!((1..=4).all(|step| of(1).exchanges_after(step, 9) && of(1).first_of_round(step) == step));
    }
}
