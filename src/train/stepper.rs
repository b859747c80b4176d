//! Optimizer steps one at a time, without a run folder, for measurements and for comparisons with other
//! programs.
//!
//! Enters: a plan, or a model and the settings of its optimizer. Leaves: losses. The objective, the
//! optimizer, the schedule and the choice of packs are those of a run. It must not know events, checkpoints
//! or evaluation.

use std::path::Path;

use sparktune_kernels::adamw::Clip;
use sparktune_model::{BaseClass, Checkpoint, Gradients, Loss, Model, Mtp, PackedSequence};
use sparktune_plan::{ModelConfig, OptimizerPlan, Plan};

use crate::TrainError;
use crate::batches::Batches;
use crate::dropout::Dropout;
use crate::examples::Examples;
use crate::load::{base, device, lora, text_model};
use crate::objective::{
    DraftHead, DraftedTokens, NextToken, Objective, TextModel, Trainee, trained_parameters,
};
use crate::optimizer::Optimizer;
use crate::schedule::learning_rate;

/// A model in training.
pub struct Stepper {
    trainee: TextModel,
    optimizer: Optimizer,
    settings: OptimizerPlan,
    /// The number of steps done.
    step: u64,
}

/// Returns the packs of the first `steps` optimizer steps of this plan, read from a token file over as many
/// epochs as necessary. Steps without a trained token, which a run skips, are left out.
///
/// # Errors
/// When the token file cannot be read or does not belong to the model.
pub fn step_inputs(plan: &Plan, tokens: &Path, steps: u64) -> Result<Vec<Vec<PackedSequence>>, TrainError> {
    let vocabulary = base(plan)?.config().vocab_size;
    let examples = || Examples::open(tokens, vocabulary, NextToken.examples_per_group());
    let one_epoch = Batches::new(examples()?, plan, 1.0, None)?.total_steps();
    let epochs = steps.div_ceil(one_epoch) as f64;
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
    /// Loads the plan's model on the plan's device, with new adapters if the plan trains adapters.
    ///
    /// # Errors
    /// When the model or the device does not exist.
    pub fn from_plan(plan: &Plan) -> Result<Self, TrainError> {
        let model = text_model(plan, &base(plan)?, None, &device(plan)?, &mut |_, _| ())?;
        let trainee = TextModel { model, recompute: plan.recompute, fp8: plan.fp8, dropout: Dropout::OFF };
        Ok(Self { trainee, optimizer: Optimizer::default(), settings: plan.optimizer, step: 0 })
    }

    /// Like [`from_plan`](Self::from_plan), for a model of another shape with random weights, which depend on
    /// the plan's seed.
    ///
    /// # Errors
    /// When the device does not exist.
    pub fn of_shape(plan: &Plan, config: ModelConfig) -> Result<Self, TrainError> {
        let shape = Checkpoint::random(config, plan.seed);
        let model = text_model(plan, &shape, None, &device(plan)?, &mut |_, _| ())?;
        Ok(Self::from_model(model, plan.optimizer, plan.recompute))
    }

    /// Trains the trainable parameters of this model. With `recompute`, layers are computed again in the
    /// backward pass.
    pub fn from_model(model: Model, settings: OptimizerPlan, recompute: bool) -> Self {
        let trainee = TextModel { model, recompute, fp8: false, dropout: Dropout::OFF };
        Self { trainee, optimizer: Optimizer::default(), settings, step: 0 }
    }

    /// Returns the model in its current state.
    pub fn model(&self) -> &Model {
        &self.trainee.model
    }

    /// Returns the model and drops the state of its training.
    pub fn into_model(self) -> Model {
        self.trainee.model
    }

    /// Returns the learning rate of the next step, in the schedule of a run with this many steps.
    pub fn next_learning_rate(&self, total_steps: u64) -> f64 {
        learning_rate(&self.settings, self.step, total_steps)
    }

    /// Returns the number of trained parameters.
    pub fn trained_parameters(&self) -> u64 {
        let count = |shape: &[usize]| shape.iter().product::<usize>() as u64;
        trained_parameters(&self.trainee.model).iter().map(|param| count(param.shape())).sum()
    }

    /// Writes the plan's adapters in their current state into an existing folder, in PEFT's format. Does
    /// nothing for a plan without adapters.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn save_adapter(&mut self, plan: &Plan, folder: &Path) -> Result<(), TrainError> {
        let Some(config) = lora(plan) else { return Ok(()) };
        let base = base(plan)?;
        let name = base.dir().display().to_string();
        Ok(self.trainee.model.save_lora(folder, config, &base, &name, BaseClass::OfConfig)?)
    }

    /// Returns `scale · Σ losses` of a pack, and adds the gradients of all trained parameters. On an
    /// asynchronous device neither may be computed yet when this returns.
    pub fn loss_and_gradients(&self, row: &PackedSequence, scale: f64, gradients: &mut Gradients) -> Loss {
        NextToken.loss_and_gradients(&self.trainee, row, scale, gradients)
    }

    /// Updates the parameters with the gradients of the mean loss.
    ///
    /// # Errors
    /// When a trained parameter has no gradient.
    pub fn update(&mut self, gradients: Gradients, learning_rate: f64) -> Result<Clip, TrainError> {
        self.step += 1;
        let Self { trainee, optimizer, settings, step } = self;
        optimizer.step(settings, learning_rate, *step, gradients, &mut |f| trainee.visit_mut(f))
    }

    /// Takes one optimizer step on packs that contain a trained token. Returns the mean loss per trained
    /// token before the update, as one summand per pack. On an asynchronous device they may not be computed
    /// yet when this returns.
    ///
    /// # Errors
    /// The same as for [`Self::update`].
    pub fn step(&mut self, rows: &[PackedSequence], learning_rate: f64) -> Result<Vec<Loss>, TrainError> {
        let (losses, gradients) = summed(&NextToken, &self.trainee, rows);
        self.update(gradients, learning_rate)?;
        Ok(losses)
    }
}

/// Returns the losses of packs, divided by all their terms, and the sum of their gradients.
fn summed<O: Objective>(
    objective: &O,
    trainee: &O::Trainee,
    rows: &[PackedSequence],
) -> (Vec<Loss>, Gradients) {
    let terms: usize = rows.iter().map(|row| objective.loss_terms(row)).sum();
    let scale = 1.0 / terms as f64;
    let mut gradients = Gradients::default();
    let losses =
        rows.iter().map(|row| objective.loss_and_gradients(trainee, row, scale, &mut gradients)).collect();
    (losses, gradients)
}

/// An MTP head in training, on a text model that is frozen.
pub struct HeadStepper {
    trainee: DraftHead,
    objective: DraftedTokens,
    optimizer: Optimizer,
    settings: OptimizerPlan,
    /// The number of steps done.
    step: u64,
}

impl HeadStepper {
    /// Trains `head` to draft `draft_tokens` tokens in a row.
    pub fn new(head: Mtp, text_model: &Model, draft_tokens: usize, settings: OptimizerPlan) -> Self {
        Self {
            trainee: DraftHead::new(head, text_model),
            objective: DraftedTokens { count: draft_tokens },
            optimizer: Optimizer::default(),
            settings,
            step: 0,
        }
    }

    /// Takes one optimizer step, as [`Stepper::step`].
    ///
    /// # Errors
    /// When a trained parameter has no gradient.
    pub fn step(&mut self, rows: &[PackedSequence], learning_rate: f64) -> Result<Vec<Loss>, TrainError> {
        let Self { trainee, objective, optimizer, settings, step } = self;
        let (losses, gradients) = summed(objective, trainee, rows);
        *step += 1;
        optimizer.step(settings, learning_rate, *step, gradients, &mut |f| trainee.visit_mut(f))?;
        Ok(losses)
    }
}
