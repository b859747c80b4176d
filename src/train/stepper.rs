//! Optimizer steps one at a time, without a run folder: for measuring, and for comparing them with another
//! program's.
//!
//! Enters: a plan, or a model and the settings of its optimizer. Leaves: losses. The objective, the
//! optimizer, the schedule and the choice of packs are those of a run; what a run adds to them (events,
//! checkpoints, evaluation) is left out.

use std::path::Path;

use sparktune_kernels::adamw::Clip;
use sparktune_model::{Gradients, Loss, Model, PackedSequence};
use sparktune_plan::{OptimizerPlan, Plan};

use crate::TrainError;
use crate::batches::Batches;
use crate::examples::Examples;
use crate::load::{base, device, lora, text_model};
use crate::objective::{NextToken, Objective, TextModel, Trainee, trained_parameters};
use crate::optimizer::Optimizer;
use crate::schedule::learning_rate;

/// A model in training.
pub struct Stepper {
    trainee: TextModel,
    optimizer: Optimizer,
    settings: OptimizerPlan,
    /// Steps done.
    step: u64,
}

/// The packs that the first `steps` optimizer steps of this plan train on, taken from a token file; epochs
/// follow each other until there are enough. Steps that a run skips, because no token of them carries loss,
/// are left out.
///
/// # Errors
/// A token file that cannot be read, or that does not belong to the model.
pub fn step_inputs(plan: &Plan, tokens: &Path, steps: u64) -> Result<Vec<Vec<PackedSequence>>, TrainError> {
    let vocabulary = base(plan)?.config().vocab_size;
    let examples = || Examples::open(tokens, vocabulary, NextToken.examples_per_group());
    let one_epoch = Batches::new(examples()?, plan, 1, None)?.total_steps();
    let epochs = steps.div_ceil(one_epoch) as u32;
    let mut batches = Batches::new(examples()?, plan, epochs, Some(steps))?;
    let mut inputs = Vec::new();
    for step in 0..steps {
        let sequences = batches.step(step)?.sequences;
        if sequences.iter().any(|sequence| NextToken.loss_terms(sequence) > 0) {
            inputs.push(sequences);
        }
    }
    Ok(inputs)
}

impl Stepper {
    /// The plan's model on the plan's device, with fresh adapters where it trains adapters.
    ///
    /// # Errors
    /// A model or a device that is not there.
    pub fn from_plan(plan: &Plan) -> Result<Self, TrainError> {
        let model = text_model(plan, &base(plan)?, &device(plan)?, &mut |_, _| ())?;
        let trainee = TextModel { model, recompute: plan.recompute, fp8: plan.fp8 };
        Ok(Self { trainee, optimizer: Optimizer::default(), settings: plan.optimizer, step: 0 })
    }

    /// This model, of which what is trainable is trained. With `recompute` layers are computed again in the
    /// backward pass.
    pub fn from_model(model: Model, settings: OptimizerPlan, recompute: bool) -> Self {
        let trainee = TextModel { model, recompute, fp8: false };
        Self { trainee, optimizer: Optimizer::default(), settings, step: 0 }
    }

    /// The model as it stands.
    pub fn model(&self) -> &Model {
        &self.trainee.model
    }

    /// The model, without what its training keeps.
    pub fn into_model(self) -> Model {
        self.trainee.model
    }

    /// The learning rate that the schedule of a run of so many steps has for the next step.
    pub fn next_learning_rate(&self, total_steps: u64) -> f64 {
        learning_rate(&self.settings, self.step, total_steps)
    }

    /// How many numbers are trained.
    pub fn trained_parameters(&self) -> u64 {
        let count = |shape: &[usize]| shape.iter().product::<usize>() as u64;
        trained_parameters(&self.trainee.model).iter().map(|param| count(param.shape())).sum()
    }

    /// Writes the plan's adapters as they stand into an existing folder, in PEFT's format. A plan without
    /// adapters writes nothing.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save_adapter(&mut self, plan: &Plan, folder: &Path) -> Result<(), TrainError> {
        let Some(config) = lora(plan) else { return Ok(()) };
        let base = base(plan)?;
        let name = base.dir().display().to_string();
        Ok(self.trainee.model.save_lora(folder, config, &base, &name)?)
    }

    /// `scale · Σ losses` of a pack, with the gradients of all trained parameters added up. On a device that
    /// works by itself neither may be known yet when this returns.
    pub fn loss_and_gradients(&self, row: &PackedSequence, scale: f64, gradients: &mut Gradients) -> Loss {
        NextToken.loss_and_gradients(&self.trainee, row, scale, gradients)
    }

    /// Updates the parameters by gradients of the mean loss.
    ///
    /// # Errors
    /// When a trained parameter has no gradient.
    pub fn update(&mut self, gradients: Gradients, learning_rate: f64) -> Result<Clip, TrainError> {
        self.step += 1;
        let Self { trainee, optimizer, settings, step } = self;
        optimizer.step(settings, learning_rate, *step, gradients, &mut |f| trainee.visit_mut(f))
    }

    /// One optimizer step on packs of which some token carries loss: the mean loss per trained token before
    /// the update, in one part for each pack. On a device that works by itself they may not be known yet
    /// when this returns.
    ///
    /// # Errors
    /// As [`Self::update`].
    pub fn step(&mut self, rows: &[PackedSequence], learning_rate: f64) -> Result<Vec<Loss>, TrainError> {
        let trained_tokens: usize = rows.iter().map(|row| NextToken.loss_terms(row)).sum();
        let scale = 1.0 / trained_tokens as f64;
        let mut gradients = Gradients::default();
        let losses = rows.iter().map(|row| self.loss_and_gradients(row, scale, &mut gradients)).collect();
        self.update(gradients, learning_rate)?;
        Ok(losses)
    }
}
