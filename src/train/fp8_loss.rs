//! The effect of fp8 on the loss: a comparison that a run trained with fp8 records at its start and at its
//! end.

use sparktune_model::PackedSequence;
use sparktune_runlog::{Fp8Loss, Kind};

use crate::batches::Batches;
use crate::error::TrainError;
use crate::evaluate::EvalSet;
use crate::objective::{Objective, Trainee};
use crate::session::Session;

/// Records the loss in fp8 and the loss in bf16, on the eval set or else on the packs of the first step. Does
/// nothing if training steps do not use fp8.
///
/// # Errors
/// When an example is damaged.
pub(crate) fn record<O: Objective>(
    session: &mut Session,
    objective: &O,
    trainee: &O::Trainee,
    batches: &mut Batches,
    eval_set: Option<&EvalSet>,
    step: u64,
) -> Result<(), TrainError> {
    let Some(in_fp8) = trainee.evaluated_in_fp8() else { return Ok(()) };
    let sequences: Box<dyn ExactSizeIterator<Item = Result<PackedSequence, TrainError>>> = match eval_set {
        Some(eval_set) => Box::new(eval_set.sequences()),
        None => Box::new(batches.step(0)?.sequences.into_iter().map(Ok)),
    };
    let total = sequences.len() as u64;
    let (mut fp8, mut bf16, mut terms, mut trained_tokens) = (0.0, 0.0, 0, 0);
    for (done, sequence) in (1..).zip(sequences) {
        let sequence = sequence?;
        fp8 += objective.loss_sum(&in_fp8, &sequence).nats();
        bf16 += objective.loss_sum(trainee, &sequence).nats();
        terms += objective.loss_terms(&sequence) as u64;
        trained_tokens += sequence.target_tokens() as u64;
        session.sample_machine();
        if done % 8 == 0 {
            session.progress("fp8", done, total, "packs");
        }
    }
    // A mean that is not finite is recorded as unknown instead of as an error, because the training step that
    // encounters it reports more.
    let mean = |sum: f64| Some(sum / terms.max(1) as f64).filter(|mean| mean.is_finite());
    session.events.emit(Kind::Fp8Loss(Fp8Loss {
        step,
        fp8_nats: mean(fp8),
        bf16_nats: mean(bf16),
        target_tokens: trained_tokens,
        held_out: eval_set.is_some(),
    }));
    Ok(())
}
