//! Tests whether training is lossless on the user's own model and data, by comparing the losses of our steps
//! with the peer's, on the same packs, from the same start.
//!
//! Enters: plans that know the folder of their model, a token file, a Python with transformers and peft.
//! Leaves: both losses of each step, and their difference. Both sides train on the packs that a run of this
//! plan trains on, with its learning rates; adapters start from the same numbers, which ours writes and the
//! peer reads. The peer gives every example of a pack to the model alone.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sparktune_plan::{Device, MethodKind, Plan};
use sparktune_train::stepper::step_inputs;

use crate::BenchError;
use crate::section::temporary_folder;
use crate::worker::{Work, Worker};

/// The number of optimizer steps to compare, unless the plan ends earlier.
pub const STEPS: u64 = 30;

/// Returns the largest allowed difference of two losses of a step, relative to the peer's.
///
/// Both sides compute in f32 on the CPU. `README.md` in this folder has the measured differences that the
/// bound is chosen from. On a CUDA device both compute in bf16, which rounds each number to 8 bits; this
/// bound has not been measured.
pub const fn bound(device: Device) -> f64 {
    match device {
        Device::Cpu => 1e-3,
        Device::Cuda => 1e-2,
    }
}

/// One training that is compared.
pub struct Training {
    /// The plan, with the folder of its model.
    pub plan: Plan,
    /// The token file.
    pub tokens: PathBuf,
}

/// The losses of one step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StepLosses {
    /// The step, from 1.
    pub step: u64,
    /// Our mean loss per trained token before the update, nats.
    pub loss: Option<f64>,
    /// The peer's loss.
    pub peer_loss: Option<f64>,
    /// The difference relative to the peer's loss; `None` if one of them is not finite.
    pub relative_difference: Option<f64>,
}

/// All steps of one training.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Which parameters were trained.
    pub method: MethodKind,
    /// Rank of the adapters, 0 for full.
    pub rank: u32,
    /// The device.
    pub device: Device,
    /// The peer, with versions.
    pub peer: String,
    /// The number of parameters that each side trains.
    pub trained_parameters: u64,
    /// Every step.
    pub steps: Vec<StepLosses>,
    /// The largest relative difference of all steps; `None` where a loss is not finite.
    pub largest_difference: Option<f64>,
    /// The largest allowed relative difference.
    pub bound: f64,
    /// Whether every step is within the bound.
    pub within_bound: bool,
}

/// Trains on both sides, step by step in turn.
///
/// # Errors
/// The model or token file cannot be trained on, or the peer fails.
pub fn compare(training: &Training, program: &Path, python: &Path) -> Result<Comparison, BenchError> {
    let Training { plan, tokens } = training;
    let inputs = step_inputs(plan, tokens, plan.duration.max_steps.unwrap_or(STEPS))?;
    let folder = temporary_folder()?;
    let work = Work::new(plan, folder.path(), &inputs.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    let mut ours = Worker::ours(program, &work)?;
    let mut peer = Worker::peer(python, &work)?;
    let parameters = ours.ready.trained_parameters;
    if peer.ready.trained_parameters != parameters {
        let theirs = peer.ready.trained_parameters;
        return Err(different(
            &peer,
            format!("trains {theirs} parameters of this model and sparktune {parameters}"),
        ));
    }
    let mut losses = Vec::with_capacity(inputs.len());
    for step in 1..=inputs.len() as u64 {
        let (own, other) = (ours.step()?, peer.step()?);
        if own.trained_tokens != other.trained_tokens {
            let words = (other.trained_tokens, own.trained_tokens, step);
            let what = format!("trains {} tokens and sparktune {} in step {}", words.0, words.1, words.2);
            return Err(different(&peer, what));
        }
        if (own.learning_rate - other.learning_rate).abs() > 1e-9 * own.learning_rate {
            let words = (other.learning_rate, own.learning_rate, step);
            let what =
                format!("has the learning rate {} and sparktune {} in step {}", words.0, words.1, words.2);
            return Err(different(&peer, what));
        }
        losses.push(StepLosses::new(step, own.loss, other.loss));
    }
    Ok(Comparison::new(plan, peer.name(), parameters, losses))
}

/// Returns the error for a peer that does something other than our side.
fn different(peer: &Worker, what: String) -> BenchError {
    BenchError::Peer {
        peer: peer.name(),
        what: format!("{what}, so the two trainings differ"),
        advice: "This is a bug in sparktune or in tests/peers/train_steps.py; please report it with the name of the model".into(),
    }
}

impl StepLosses {
    fn new(step: u64, loss: Option<f64>, peer_loss: Option<f64>) -> Self {
        let relative_difference = loss
            .zip(peer_loss)
            .map(|(loss, peer)| (loss - peer).abs() / peer.abs())
            .filter(|difference| difference.is_finite());
        Self { step, loss, peer_loss, relative_difference }
    }
}

impl Comparison {
    fn new(plan: &Plan, peer: String, trained_parameters: u64, steps: Vec<StepLosses>) -> Self {
        let differences: Option<Vec<f64>> = steps.iter().map(|step| step.relative_difference).collect();
        let largest_difference = differences.map(|all| all.into_iter().fold(0.0, f64::max));
        let bound = bound(plan.device);
        Self {
            method: plan.method.kind(),
            rank: plan.method.rank(),
            device: plan.device,
            peer,
            trained_parameters,
            largest_difference,
            bound,
            within_bound: !steps.is_empty() && largest_difference.is_some_and(|largest| largest <= bound),
            steps,
        }
    }

    /// Formats the steps as a table.
    pub fn table(&self) -> String {
        let method = match self.method {
            MethodKind::Lora => format!("LoRA r={}", self.rank),
            MethodKind::Full => "full".to_owned(),
        };
        let mut text = format!(
            "{method} on {}, {} parameters trained; peer: {}\n{:>4}  {:>12}  {:>12}  {:>10}\n",
            self.device,
            sparktune_base::units::count(self.trained_parameters),
            self.peer,
            "step",
            "sparktune",
            "peer",
            "difference"
        );
        let loss = |loss: Option<f64>| loss.map_or("not finite".to_owned(), |loss| format!("{loss:.7}"));
        let difference = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.1e}"));
        for step in &self.steps {
            text.push_str(&format!(
                "{:>4}  {:>12}  {:>12}  {:>10}\n",
                step.step,
                loss(step.loss),
                loss(step.peer_loss),
                difference(step.relative_difference)
            ));
        }
        text.push_str(&format!(
            "largest difference {}, target: ≤ {:.0e}, {}\n",
            difference(self.largest_difference),
            self.bound,
            if self.within_bound { "met" } else { "missed" }
        ));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        crate::model::plan(Path::new("/model"), MethodKind::Lora, 1024).unwrap()
    }

    fn comparison(losses: &[(Option<f64>, Option<f64>)]) -> Comparison {
        let steps = losses.iter().zip(1..).map(|((ours, peer), step)| StepLosses::new(step, *ours, *peer));
        Comparison::new(&plan(), "torch 9".into(), 1234, steps.collect())
    }

    #[test]
    fn the_largest_difference_of_all_steps_decides() {
        let near = comparison(&[(Some(2.0), Some(2.0)), (Some(1.0005), Some(1.0))]);
        assert!(near.within_bound && (near.largest_difference.unwrap() - 5e-4).abs() < 1e-9, "{near:?}");
        let far = comparison(&[(Some(1.002), Some(1.0)), (Some(1.0), Some(1.0))]);
        assert!(!far.within_bound, "{far:?}");
    }

    #[test]
    fn a_loss_that_is_not_finite_is_within_no_bound_and_so_is_no_step_at_all() {
        for losses in [&[(Some(1.0), Some(1.0)), (None, Some(1.0))][..], &[(Some(0.0), Some(0.0))], &[]] {
            assert!(!comparison(losses).within_bound, "{losses:?}");
        }
    }

    #[test]
    fn the_table_shows_both_losses_of_each_step_and_says_whether_the_bound_was_met() {
        let text = comparison(&[(Some(2.000001), Some(2.0)), (Some(1.1), Some(1.0))]).table();
        let expected = "\
LoRA r=16 on cpu, 1,234 parameters trained; peer: torch 9
step     sparktune          peer  difference
   1     2.0000010     2.0000000      5.0e-7
   2     1.1000000     1.0000000      1.0e-1
largest difference 1.0e-1, target: ≤ 1e-3, missed
";
        assert_eq!(text, expected);
    }
}
