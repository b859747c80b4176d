//! Objectives define the loss of a packed sequence and the parameters that it trains.
//!
//! A stage of a run pairs an [`Objective`] with a [`Trainee`], and the rest of the crate knows only these two
//! traits. Objectives know models and packed sequences; they must not know the run folder, the optimizer or
//! the schedule of checkpoints.
//!
//! To add an objective on the text model, implement [`Objective`] with [`Model::gradients_of`] and
//! [`Model::loss_of`], which give it hidden states and the output head, and choose it in `run::train_with`.
//! `objective/tests.rs` does so for pairs of answers.

use std::borrow::Cow;
use std::path::Path;

use sparktune_model::{Gradients, Loss, Model, Mtp, PackedSequence, Param};

use crate::dropout::Dropout;
use crate::error::TrainError;
use crate::state::{Stage, read_head};

/// Turns packed sequences into a loss and its gradients.
pub(crate) trait Objective {
    /// The parameters that the loss trains.
    type Trainee: Trainee;

    /// The number of consecutive examples of the token file that form a group, such as a chosen and a
    /// rejected answer.
    ///
    /// A group is packed whole, its examples in the order of the file, so a loss over a group finds all of it
    /// in one packed sequence. Groups of more than one example are always packed by best fit, because
    /// `stream` would cut them.
    fn examples_per_group(&self) -> usize {
        1
    }

    /// Returns the number of terms in the loss of `sequence`: trained tokens, or groups.
    ///
    /// Losses and gradients of a step are divided by the terms of all its sequences together.
    fn loss_terms(&self, sequence: &PackedSequence) -> usize;

    /// Returns `scale · Σ terms` in nats as a training step computes it, and adds its gradients to
    /// `gradients`.
    fn loss_and_gradients(
        &self,
        trainee: &Self::Trainee,
        sequence: &PackedSequence,
        scale: f64,
        gradients: &mut Gradients,
    ) -> Loss;

    /// Returns `Σ terms` in nats as an evaluation computes it, without gradients.
    fn loss_sum(&self, trainee: &Self::Trainee, sequence: &PackedSequence) -> Loss;

    /// Returns the parts that an evaluation reports one by one: `Σ terms` in nats and the number of terms of
    /// each.
    fn parts(&self, trainee: &Self::Trainee, sequence: &PackedSequence) -> Vec<(Loss, usize)> {
        vec![(self.loss_sum(trainee, sequence), self.loss_terms(sequence))]
    }

    /// Returns the loss of an evaluation from the mean of each part.
    fn loss_of_parts(&self, means: &[f64]) -> f64 {
        means.first().copied().unwrap_or(0.0)
    }
}

/// The parameters that a stage trains.
pub(crate) trait Trainee: Sized {
    /// The stage that trains them.
    const STAGE: Stage;

    /// Returns the text model as evaluations, samples and exports use it.
    fn model(&self) -> &Model;

    /// Calls `f` with every parameter that the optimizer may update, including frozen ones.
    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param));

    /// Returns the parameters that a checkpoint of this stage must contain.
    fn checkpointed(&self) -> Vec<&Param>;

    /// Returns the parameters that the optimizer updates.
    fn trained(&self) -> Vec<&Param>;

    /// Returns the parameters of [`trained`](Self::trained) in the order in which a backward pass finishes
    /// their gradients, as far as it is known.
    fn in_backward_order(&self) -> Vec<&Param> {
        let mut all = self.trained();
        all.reverse();
        all
    }

    /// Is called before each sequence of a training step, with the number of steps before it and the place of
    /// the sequence in it.
    fn begin_sequence(&mut self, _step: u64, _place: usize) {}

    /// Returns a copy whose evaluation rounds like training steps, if those use fp8.
    fn evaluated_in_fp8(&self) -> Option<Self> {
        None
    }
}

/// The text model, trained completely or through its adapters.
pub(crate) struct TextModel {
    pub(crate) model: Model,
    /// Whether training steps compute each layer again in the backward pass.
    pub(crate) recompute: bool,
    /// Whether training steps multiply in fp8. Evaluations and exports never do.
    pub(crate) fp8: bool,
    /// The dropout of training steps. Evaluations and exports have none.
    pub(crate) dropout: Dropout,
}

impl TextModel {
    /// Returns the model as training steps compute it.
    pub(crate) fn in_training(&self) -> Cow<'_, Model> {
        let model = if self.fp8 { Cow::Owned(self.model.with_fp8()) } else { Cow::Borrowed(&self.model) };
        self.dropout.applied(model)
    }
}

impl Trainee for TextModel {
    const STAGE: Stage = Stage::Main;

    fn model(&self) -> &Model {
        &self.model
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.model.visit_mut(f);
    }

    fn checkpointed(&self) -> Vec<&Param> {
        trained_parameters(&self.model)
    }

    fn trained(&self) -> Vec<&Param> {
        trained_parameters(&self.model)
    }

    fn in_backward_order(&self) -> Vec<&Param> {
        self.model.trained_in_backward_order()
    }

    fn begin_sequence(&mut self, step: u64, place: usize) {
        self.dropout.begin(step, place);
    }

    fn evaluated_in_fp8(&self) -> Option<Self> {
        self.fp8.then(|| Self { model: self.model.with_fp8(), ..*self })
    }
}

/// The MTP head on the finished text model, which is frozen. Each example is used once in an epoch, so the
/// text model's hidden states are computed on the fly instead of being cached.
pub(crate) struct DraftHead {
    mtp: Mtp,
    text_model: Model,
    /// The names of the text model's trained parameters, which checkpoints of this stage still contain.
    trained_names: Vec<String>,
}

impl DraftHead {
    pub(crate) fn new(mut mtp: Mtp, text_model: &Model) -> Self {
        mtp.set_trainable(true);
        let trained_names =
            trained_parameters(text_model).iter().map(|param| param.name().to_owned()).collect();
        Self { mtp, text_model: text_model.frozen(), trained_names }
    }

    /// Replaces the weights of the head by those of a checkpoint of this stage.
    ///
    /// # Errors
    /// When the checkpoint does not contain exactly the head's parameters.
    pub(crate) fn restore(&mut self, folder: &Path) -> Result<(), TrainError> {
        read_head(folder, &mut self.mtp)
    }

    /// Ends training and returns the head.
    pub(crate) fn into_frozen(mut self) -> Mtp {
        self.mtp.set_trainable(false);
        self.mtp
    }
}

impl Trainee for DraftHead {
    const STAGE: Stage = Stage::Mtp;

    fn model(&self) -> &Model {
        &self.text_model
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.mtp.visit_mut(f);
    }

    fn checkpointed(&self) -> Vec<&Param> {
        let mut all = Vec::new();
        self.text_model.visit(&mut |param| {
            if self.trained_names.iter().any(|name| name == param.name()) {
                all.push(param);
            }
        });
        self.mtp.visit(&mut |param| all.push(param));
        all
    }

    fn trained(&self) -> Vec<&Param> {
        let mut trained = Vec::new();
        self.mtp.visit(&mut |param| trained.push(param));
        trained
    }
}

/// Returns the parameters of a model that are being trained.
pub(crate) fn trained_parameters(model: &Model) -> Vec<&Param> {
    let mut trained = Vec::new();
    model.visit(&mut |param| {
        if param.is_trainable() {
            trained.push(param);
        }
    });
    trained
}

/// The language-model objective: the cross-entropy of each trained token, predicted from the tokens before
/// it.
pub(crate) struct NextToken;

impl Objective for NextToken {
    type Trainee = TextModel;

    fn loss_terms(&self, sequence: &PackedSequence) -> usize {
        sequence.target_tokens()
    }

    fn loss_and_gradients(
        &self,
        text: &TextModel,
        sequence: &PackedSequence,
        scale: f64,
        gradients: &mut Gradients,
    ) -> Loss {
        text.in_training().loss_and_gradients(sequence, scale, text.recompute, gradients)
    }

    fn loss_sum(&self, text: &TextModel, sequence: &PackedSequence) -> Loss {
        text.model.loss_sum(sequence)
    }
}

/// The objective of the MTP head: the cross-entropy of each trained token, predicted two positions ahead, and
/// further ahead from its own outputs, as it drafts. A term is a token; its losses as the first drafted
/// token, the second, … are weighted (`Mtp::loss_and_gradients`).
pub(crate) struct DraftedTokens {
    /// The number of tokens that the head learns to draft in a row.
    pub(crate) count: usize,
}

impl Objective for DraftedTokens {
    type Trainee = DraftHead;

    fn loss_terms(&self, sequence: &PackedSequence) -> usize {
        Mtp::target_tokens(sequence)
    }

    fn loss_and_gradients(
        &self,
        head: &DraftHead,
        sequence: &PackedSequence,
        scale: f64,
        gradients: &mut Gradients,
    ) -> Loss {
        let DraftHead { mtp, text_model, .. } = head;
        let hidden = text_model.hidden(sequence);
        mtp.loss_and_gradients(text_model, hidden, sequence, self.count, scale, gradients)
    }

    fn loss_sum(&self, head: &DraftHead, sequence: &PackedSequence) -> Loss {
        let DraftHead { mtp, text_model, .. } = head;
        let mut first = mtp.loss_sums(text_model, text_model.hidden(sequence), sequence, 1);
        first.pop().expect("one drafted token has one sum")
    }

    fn parts(&self, head: &DraftHead, sequence: &PackedSequence) -> Vec<(Loss, usize)> {
        let DraftHead { mtp, text_model, .. } = head;
        let sums = mtp.loss_sums(text_model, text_model.hidden(sequence), sequence, self.count);
        sums.into_iter().zip(Mtp::targets_of_drafts(sequence, self.count)).collect()
    }

    fn loss_of_parts(&self, means: &[f64]) -> f64 {
        Mtp::weighted_mean(means)
    }
}

#[cfg(test)]
mod tests;
