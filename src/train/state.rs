//! The content of a checkpoint: trained weights, optimizer, and the numbers that the loop continues from.
//!
//! `weights.safetensors` and `optimizer.safetensors` are f32, so that a resumed run continues with the same
//! bits; `state.json` contains the rest. This module reads them; a [`Snapshot`](crate::snapshot::Snapshot)
//! writes them.

use std::fs;
use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use sparktune_cluster::SummedBy;
use sparktune_cluster::sentry::Judge;
use sparktune_model::{Mtp, WeightFile};
use sparktune_plan::{Exported, Plan};

use crate::batches::NewOrder;
use crate::error::TrainError;
use crate::health::{Given, Health};
use crate::inputs::Inputs;
use crate::optimizer::Optimizer;

pub(crate) const WEIGHTS: &str = "weights.safetensors";
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
pub(crate) const STATE: &str = "state.json";

/// The part of the run that is being trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// The text model or its adapters.
    Main,
    /// The MTP head on the finished text model.
    Mtp,
}

impl Stage {
    /// The name of the stage in `phase` events.
    pub(crate) fn phase(self) -> &'static str {
        match self {
            Self::Main => "train",
            Self::Mtp => "mtp",
        }
    }
}

/// The position of the loop. Floats are stored as bits, so that no comparison after a resume depends on
/// decimal rounding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) stage: Stage,
    /// The number of steps done in this stage.
    pub(crate) step: u64,
    /// The number of steps trained in the main stage, which is smaller than planned after an early stop.
    pub(crate) main_steps: u64,
    /// Whether the text model is finished, as planned or by an early stop.
    pub(crate) main_done: bool,
    last_loss: Option<u64>,
    last_eval: Option<u64>,
    best_eval: Option<u64>,
    /// The step of the checkpoint with the best eval loss.
    pub(crate) best_step: Option<u64>,
    /// The number of consecutive evaluations without a better loss.
    pub(crate) evals_without_gain: u32,
    /// The losses so far, as far as the warnings about them need them. Checkpoints of older programs do not
    /// have them.
    #[serde(default)]
    pub(crate) health: Health,
    /// The number of steps just before this one that were skipped, because they were not finite.
    #[serde(default)]
    pub(crate) skipped_in_a_row: u32,
    /// The same number for each rank, where ranks exchange rarely and skip steps of their own; empty if all
    /// are 0. Checkpoints of older programs do not have it: there each rank counted from 0 after a start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) skipped_of_ranks: Vec<u32>,
    /// The order of the data since the run returned to a checkpoint, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) order: Option<NewOrder>,
    /// The step of the text model's weights that are exported and that the head is trained on, once they are
    /// chosen. Checkpoints of older programs do not say it: they have the last weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exported_step: Option<u64>,
    /// The evaluation of the MTP head with the lowest loss, which has a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) best_head: Option<BestHead>,
    /// What is usual of the ranks' gradients, if they are judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) judge: Option<Judge>,
    /// The ranks whose contributions count as zeros, because they have lied. Checkpoints of older programs do
    /// not have them: there a rank was heard again after each start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) muted: Vec<usize>,
    /// How the gradients of several ranks were summed last, if they were. Checkpoints of older programs do
    /// not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) summed_by: Option<SummedBy>,
    /// The files that everything here was trained from.
    #[serde(flatten)]
    pub(crate) inputs: Inputs,
}

/// The evaluation of the MTP head with the lowest loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BestHead {
    /// The number in the name of its checkpoint's folder.
    pub(crate) step: u64,
    loss: u64,
}

impl State {
    /// Returns the state before the first step.
    pub(crate) fn start() -> Self {
        Self {
            stage: Stage::Main,
            step: 0,
            main_steps: 0,
            main_done: false,
            last_loss: None,
            last_eval: None,
            best_eval: None,
            best_step: None,
            evals_without_gain: 0,
            health: Health::default(),
            skipped_in_a_row: 0,
            skipped_of_ranks: Vec::new(),
            order: None,
            exported_step: None,
            best_head: None,
            judge: None,
            muted: Vec::new(),
            summed_by: None,
            inputs: Inputs::default(),
        }
    }

    pub(crate) fn last_loss(&self) -> Option<f64> {
        self.last_loss.map(f64::from_bits)
    }

    pub(crate) fn set_last_loss(&mut self, loss: f64) {
        self.last_loss = Some(loss.to_bits());
    }

    pub(crate) fn last_eval(&self) -> Option<f64> {
        self.last_eval.map(f64::from_bits)
    }

    /// Returns the lowest loss of an evaluation.
    pub(crate) fn best_eval(&self) -> Option<f64> {
        self.best_eval.map(f64::from_bits)
    }

    /// Returns why the run counts as diverged, or `None` if it does not.
    pub(crate) fn diverged(&self, given: Given) -> Option<String> {
        let is_best = self.exported_step.is_some() && self.exported_step == self.best_step;
        self.health.diverged(if is_best { self.best_eval() } else { self.last_eval() }, given)
    }

    /// Returns the step of the text model's weights in the checkpoint of this state.
    pub(crate) fn weights_step(&self) -> u64 {
        match self.stage {
            Stage::Main => self.step,
            Stage::Mtp => self.exported_step.unwrap_or(self.main_steps),
        }
    }

    /// Records the loss of an evaluation. Returns whether it is the lowest so far.
    pub(crate) fn record_eval(&mut self, loss: f64) -> bool {
        self.last_eval = Some(loss.to_bits());
        let better = self.best_eval().is_none_or(|best| loss < best);
        if better {
            self.best_eval = Some(loss.to_bits());
            self.evals_without_gain = 0;
        } else {
            self.evals_without_gain += 1;
        }
        better
    }

    /// Returns the state of a run whose text model is finished with the weights of `step`, and whose head is
    /// not trained.
    pub(crate) fn with_untrained_head(self, step: u64) -> Self {
        Self {
            stage: Stage::Main,
            step,
            best_step: self.best_step.filter(|best| *best == step),
            skipped_in_a_row: 0,
            skipped_of_ranks: Vec::new(),
            order: None,
            exported_step: None,
            best_head: None,
            inputs: self.inputs.of_base(),
            ..self
        }
    }

    /// Continues the training of a text model that was finished when the run was planned to be shorter.
    pub(crate) fn go_on(&mut self) {
        if self.main_done {
            self.main_done = false;
            self.evals_without_gain = 0;
        }
        self.exported_step = None;
        self.best_head = None;
    }

    /// Records the loss of an evaluation of the MTP head. Returns whether it is the lowest so far.
    pub(crate) fn record_head_eval(&mut self, loss: f64) -> bool {
        let is_best = self.best_head.is_none_or(|best| loss < f64::from_bits(best.loss));
        if is_best {
            self.best_head = Some(BestHead { step: self.checkpoint_step(), loss: loss.to_bits() });
        }
        is_best
    }

    /// Returns the steps of the checkpoints that stay as long as this one: those with the lowest losses of
    /// text model and MTP head, and while the head is trained, the last of the text model, with which a
    /// longer run begins.
    pub(crate) fn lasting_checkpoints(&self) -> Vec<u64> {
        let text_model = (self.stage == Stage::Mtp).then_some(self.main_steps);
        self.best_step.into_iter().chain(self.best_head.map(|best| best.step)).chain(text_model).collect()
    }

    /// Returns the number in the name of a checkpoint's folder: the steps of both stages together.
    pub(crate) fn checkpoint_step(&self) -> u64 {
        match self.stage {
            Stage::Main => self.step,
            Stage::Mtp => self.main_steps + self.step,
        }
    }

    /// Returns whether every run of the same plan has a checkpoint of this state: it is at a planned step, at
    /// the end of the text model, or has the best weights of text model or head so far. Others were saved by
    /// the clock or on request.
    pub(crate) fn is_planned(&self, save_steps: u64) -> bool {
        let is_best = self.lasting_checkpoints().contains(&self.checkpoint_step());
        let ends_text_model = self.stage == Stage::Main && self.main_done;
        self.step.is_multiple_of(save_steps.max(1)) || ends_text_model || is_best
    }

    /// Reads the state of a committed checkpoint.
    pub(crate) fn read(folder: &Path) -> Result<Self, TrainError> {
        let path = folder.join(STATE);
        let text = fs::read_to_string(&path).map_err(TrainError::io(&path))?;
        serde_json::from_str(&text).map_err(|e| foreign(folder, e.to_string()))
    }
}

/// Returns the step of the text model's weights that are exported for the newest checkpoint's state. A text
/// model that is not finished has no choice, nor has one that a head was trained on.
pub(crate) fn chosen_step(plan: &Plan, state: &State) -> u64 {
    let is_free = plan.export == Exported::Best && state.stage == Stage::Main && state.main_done;
    state.best_step.filter(|_| is_free).unwrap_or_else(|| state.weights_step())
}

/// Reads the weights of a checkpoint into the parameters of the same names. There must be exactly `expected`
/// of them.
pub(crate) fn read_weights(
    folder: &Path,
    expected: usize,
    visit: &mut crate::optimizer::Visit,
) -> Result<(), TrainError> {
    let (set, stored) = read_into(folder, visit)?;
    if set != stored {
        let reason = format!("{} of its {stored} tensors belong to no parameter", stored - set);
        return Err(foreign(folder, reason));
    }
    require_count(folder, set, expected)
}

/// Reads the weights of the MTP head from a checkpoint of its stage, which also has those of the text model.
pub(crate) fn read_head(folder: &Path, head: &mut Mtp) -> Result<(), TrainError> {
    let mut expected = 0;
    head.visit(&mut |_| expected += 1);
    let (set, _) = read_into(folder, &mut |f| head.visit_mut(f))?;
    require_count(folder, set, expected)
}

fn require_count(folder: &Path, set: usize, expected: usize) -> Result<(), TrainError> {
    if set == expected {
        return Ok(());
    }
    Err(foreign(folder, format!("it contains {set} of the {expected} trained parameters")))
}

/// Reads the weights of a checkpoint into the parameters of the same names. Returns their number and that of
/// all its tensors.
fn read_into(folder: &Path, visit: &mut crate::optimizer::Visit) -> Result<(usize, usize), TrainError> {
    let file = open(&folder.join(WEIGHTS))?;
    let stored = SafeTensors::deserialize(file.bytes()).map_err(|e| foreign(folder, e.to_string()))?;
    let (mut set, mut wrong) = (0, None);
    visit(&mut |param| {
        let Ok(view) = stored.tensor(param.name()) else { return };
        let device = param.tensor().device().inner();
        match tensor(&view, &device).filter(|value| value.shape() == param.tensor().shape()) {
            Some(value) => {
                let trainable = param.is_trainable();
                param.put(value, trainable);
                set += 1;
            }
            None => wrong = Some(format!("`{}` has a different shape or type", param.name())),
        }
        file.forget_piece(view.data());
    });
    match wrong {
        Some(reason) => Err(foreign(folder, reason)),
        None => Ok((set, stored.len())),
    }
}

/// Reads the optimizer of a checkpoint whose tensors have this prefix, which is empty for that of rank 0. An
/// optimizer that is not there has no moments.
pub(crate) fn read_optimizer(folder: &Path, device: &Device, prefix: &str) -> Result<Optimizer, TrainError> {
    let file = open(&folder.join(OPTIMIZER))?;
    let stored = SafeTensors::deserialize(file.bytes()).map_err(|e| foreign(folder, e.to_string()))?;
    let device = device.clone().inner();
    let mut optimizer = Optimizer::default();
    for (name, view) in stored.iter() {
        let Some(name) = name.strip_prefix(prefix).and_then(|name| name.strip_prefix("m.")) else { continue };
        let second =
            stored.tensor(&format!("{prefix}v.{name}")).map_err(|e| foreign(folder, e.to_string()))?;
        let pair = tensor(&view, &device).zip(tensor(&second, &device));
        let pair = pair.ok_or_else(|| foreign(folder, format!("the moments of `{name}` are no matrices")))?;
        optimizer.moments.insert(name.to_owned(), pair);
        file.forget_piece(view.data());
        file.forget_piece(second.data());
    }
    Ok(optimizer)
}

/// Reads the numbers of all tensors with this prefix that are beside the optimizer in a checkpoint.
pub(crate) fn read_beside_optimizer(
    folder: &Path,
    prefix: &str,
) -> Result<Vec<(String, Vec<f32>)>, TrainError> {
    let file = open(&folder.join(OPTIMIZER))?;
    let stored = SafeTensors::deserialize(file.bytes()).map_err(|e| foreign(folder, e.to_string()))?;
    let mut found = Vec::new();
    for (name, view) in stored.iter() {
        let Some(name) = name.strip_prefix(prefix).filter(|_| view.dtype() == Dtype::F32) else { continue };
        found.push((name.to_owned(), numbers(&view)));
        file.forget_piece(view.data());
    }
    Ok(found)
}

fn numbers(view: &safetensors::tensor::TensorView) -> Vec<f32> {
    view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Opens a file of a committed checkpoint. Its pages are dropped after use, so that it is not in memory
/// twice.
fn open(path: &Path) -> Result<WeightFile, TrainError> {
    WeightFile::open(path).map_err(TrainError::io(path))
}

fn foreign(folder: &Path, reason: String) -> TrainError {
    TrainError::ForeignCheckpoint { path: folder.to_owned(), reason }
}

fn tensor(view: &safetensors::tensor::TensorView, device: &Device) -> Option<Tensor<2>> {
    let [rows, columns] = *view.shape() else { return None };
    if view.dtype() != Dtype::F32 {
        return None;
    }
    Some(Tensor::from_data(TensorData::new(numbers(view), [rows, columns]), device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_the_head_is_trained_the_last_of_the_text_model_stays_and_the_clock_pushes_no_checkpoint_out() {
        let of_text = State { step: 12, main_done: true, best_step: Some(9), ..State::start() };
        assert!(of_text.is_planned(5) && of_text.lasting_checkpoints() == [9], "the end of the text model");
        let of_head = || State {
            stage: Stage::Mtp,
            main_done: true,
            main_steps: 12,
            step: 3,
            best_step: Some(9),
            ..State::start()
        };
        assert_eq!(of_head().lasting_checkpoints(), [9, 12]);
        assert!(of_head().is_planned(3) && !of_head().is_planned(5), "saved by the clock");
        let best = State { best_head: Some(BestHead { step: 15, loss: 1 }), ..of_head() };
        assert!(best.is_planned(5) && best.lasting_checkpoints() == [9, 15, 12]);
    }

    #[test]
    fn a_state_with_any_changed_byte_is_read_as_it_is_written_again_or_refused_with_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(STATE);
        let best_head = Some(BestHead { step: 12, loss: 1 });
        let judge = Some(Judge::default());
        let summed_by = Some(SummedBy::Nccl(22_903));
        let (muted, skipped_of_ranks) = (vec![1], vec![0, 2]);
        let state = State {
            step: 9,
            best_head,
            exported_step: Some(6),
            judge,
            muted,
            skipped_of_ranks,
            summed_by,
            ..State::start()
        };
        let text = serde_json::to_string(&state).unwrap();
        let changes = ["", "0", "9", "-", "e", "\"", "{", "]", ",", "\\", "\u{1b}", "99999999999999999999"];
        for (at, change) in (0..text.len()).flat_map(|at| changes.map(|change| (at, change))) {
            fs::write(&path, format!("{}{change}{}", &text[..at], &text[at + 1..])).unwrap();
            match State::read(folder.path()) {
                Ok(read) => {
                    fs::write(&path, serde_json::to_string(&read).unwrap()).unwrap();
                    assert_eq!(State::read(folder.path()).unwrap(), read);
                    let _ =
                        (read.checkpoint_step(), read.weights_step(), read.is_planned(0), read.best_eval());
                }
                Err(error) => assert!(error.to_string().contains(&*folder.path().to_string_lossy())),
            }
        }
    }
}
