//! The loop of one stage: batches in, optimizer steps out, with evaluation, checkpoints and requests in between.

use crate::TrainError;
use crate::batches::Batches;
use crate::evaluate::Evaluation;
use crate::optimizer::Optimizer;
use crate::schedule::learning_rate;
use crate::session::Session;
use crate::state::{Stage, State};
use sparktune_model::{Gradients, Model, Mtp, Param, Row};
use sparktune_plan::OptimizerPlan;
use sparktune_runlog::{CheckpointCommitted, Kind, Step};
use std::time::{Duration, Instant};

/// What a stage trains.
pub(crate) trait Subject {
    fn stage(&self) -> Stage;

    /// Tokens of a row that carry loss here.
    fn target_tokens(&self, row: &Row) -> usize;

    /// `scale · Σ losses`, with the gradients of all trained parameters added up.
    fn loss_and_gradients(&self, row: &Row, scale: f64, gradients: &mut Gradients) -> f64;

    /// `Σ losses` in nats without gradients.
    fn loss_sum(&self, row: &Row) -> f64;

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param));

    /// The parameters a checkpoint must hold.
    fn saved(&self) -> Vec<&Param>;

    /// The text model as it stands.
    fn model(&self) -> &Model;
}

/// The text model, or its adapters.
pub(crate) struct Main {
    pub(crate) model: Model,
    pub(crate) recompute: bool,
}

impl Subject for Main {
    fn stage(&self) -> Stage {
        Stage::Main
    }

    fn target_tokens(&self, row: &Row) -> usize {
        row.target_tokens()
    }

    fn loss_and_gradients(&self, row: &Row, scale: f64, gradients: &mut Gradients) -> f64 {
        self.model.loss_and_gradients(row, scale, self.recompute, gradients)
    }

    fn loss_sum(&self, row: &Row) -> f64 {
        self.model.loss_sum(row)
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.model.visit_mut(f);
    }

    fn saved(&self) -> Vec<&Param> {
        trained(&self.model)
    }

    fn model(&self) -> &Model {
        &self.model
    }
}

/// The MTP head on a frozen text model. Each example is seen once, so its hidden states are not worth caching.
pub(crate) struct Head {
    pub(crate) mtp: Mtp,
    pub(crate) trunk: Model,
    /// Names of the text model's trained parameters, which the checkpoint goes on holding.
    pub(crate) trained: Vec<String>,
}

impl Subject for Head {
    fn stage(&self) -> Stage {
        Stage::Mtp
    }

    fn target_tokens(&self, row: &Row) -> usize {
        Mtp::target_tokens(row)
    }

    fn loss_and_gradients(&self, row: &Row, scale: f64, gradients: &mut Gradients) -> f64 {
        self.mtp.loss_and_gradients(&self.trunk, self.trunk.hidden(row), row, scale, gradients)
    }

    fn loss_sum(&self, row: &Row) -> f64 {
        self.mtp.loss_sum(&self.trunk, self.trunk.hidden(row), row)
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.mtp.visit_mut(f);
    }

    fn saved(&self) -> Vec<&Param> {
        let mut all = Vec::new();
        self.trunk.visit(&mut |param| {
            if self.trained.iter().any(|name| name == param.name()) {
                all.push(param);
            }
        });
        self.mtp.visit(&mut |param| all.push(param));
        all
    }

    fn model(&self) -> &Model {
        &self.trunk
    }
}

/// The parameters of a model that are being trained.
pub(crate) fn trained(model: &Model) -> Vec<&Param> {
    let mut trained = Vec::new();
    model.visit(&mut |param| {
        if param.is_trainable() {
            trained.push(param);
        }
    });
    trained
}

/// How a stage ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All steps done, or stopped early because evaluation got no better.
    Done,
    /// A request came in; a checkpoint holds everything.
    Stopped,
}

/// Trains `subject` from where `state` stands to the end of the stage.
pub(crate) fn run_stage(
    session: &mut Session,
    subject: &mut dyn Subject,
    state: &mut State,
    optimizer: &mut Optimizer,
    batches: &mut Batches,
    settings: &OptimizerPlan,
    evaluation: Option<&Evaluation>,
) -> Result<End, TrainError> {
    let total = batches.total_steps();
    let mut saved_at = Instant::now();
    while state.step < total {
        one_step(session, subject, state, optimizer, batches, settings)?;
        session.sample_machine();

        let mut best = false;
        let plan = &session.plan;
        let last = state.step == total;
        if let Some(evaluation) =
            evaluation.filter(|_| last || state.step.is_multiple_of(plan.eval.every_steps.max(1)))
        {
            let loss = evaluation.loss(session, subject, state.checkpoint_step())?;
            best = state.evaluated(loss);
            evaluation.samples(session, subject.model(), state.checkpoint_step());
        }
        let patience = session.plan.eval.early_stop_patience;
        let enough = evaluation.is_some()
            && patience.is_some_and(|patience| state.evals_without_gain >= patience.max(1));
        if enough && !last {
            let evaluations = state.evals_without_gain;
            let step = state.step;
            session.warn(
                format!("stopping early: {evaluations} evaluations in a row were no better than the best; the outputs hold the last weights, `sparktune export --best` writes the best"),
                Some(step),
            );
        }
        if last || enough {
            state.main_done = true;
        }

        let asked = session.asked();
        let due = state.step.is_multiple_of(session.plan.checkpoint.save_steps.max(1))
            || saved_at.elapsed()
                >= Duration::from_secs(60 * u64::from(session.plan.checkpoint.save_minutes.max(1)));
        if due || best || last || enough || asked.checkpoint {
            if best {
                state.best_step = Some(state.checkpoint_step());
            }
            save(session, subject, state, optimizer, best)?;
            saved_at = Instant::now();
        }
        let stop = asked.stop;
        session.done(asked, state.checkpoint_step());
        // Also after the last step: what follows (the head, the export) is the resumed run's.
        if stop {
            return Ok(End::Stopped);
        }
        if enough {
            break;
        }
    }
    Ok(End::Done)
}

fn one_step(
    session: &mut Session,
    subject: &mut dyn Subject,
    state: &mut State,
    optimizer: &mut Optimizer,
    batches: &mut Batches,
    settings: &OptimizerPlan,
) -> Result<(), TrainError> {
    let started = Instant::now();
    let batch = batches.step(state.step)?;
    let data_ms = milliseconds(started);
    let target_tokens: usize = batch.rows.iter().map(|row| subject.target_tokens(row)).sum();
    let rate = learning_rate(settings, state.step, batches.total_steps());
    let step = state.step + 1;
    if target_tokens == 0 {
        session.warn(
            "no token of this step carries loss: nothing to learn from it, the weights stay",
            Some(step),
        );
        state.step = step;
        if subject.stage() == Stage::Main {
            state.main_steps = step;
        }
        return Ok(());
    }
    let mut gradients = Gradients::default();
    let scale = 1.0 / target_tokens as f64;
    let loss: f64 = batch.rows.iter().map(|row| subject.loss_and_gradients(row, scale, &mut gradients)).sum();
    if !loss.is_finite() {
        if subject.stage() == Stage::Main {
            session.events.emit(Kind::Step(Step { step, loss_nats: loss, ..Step::default() }));
        }
        return Err(TrainError::NotFinite { what: "loss", value: loss, step });
    }
    let before_update = Instant::now();
    let grad_norm = optimizer.step(settings, rate, step, gradients, &mut |f| subject.visit_mut(f))?;
    state.step = step;
    let step_ms = milliseconds(started);
    match subject.stage() {
        Stage::Main => {
            state.main_steps = step;
            state.set_last_loss(loss);
            session.step(Step {
                step,
                epoch: Some(batch.epoch),
                loss_nats: loss,
                target_tokens: target_tokens as u64,
                tokens: batch.tokens(),
                lr: Some(rate),
                grad_norm: Some(grad_norm),
                step_ms: Some(step_ms),
                tokens_per_s: Some((batch.tokens() as f64 / step_ms * 1e4).round() / 10.0),
                mem_used_bytes: sparktune_telemetry::rss_bytes(),
                data_ms: Some(data_ms),
                optimizer_ms: Some(milliseconds(before_update)),
                ..Step::default()
            });
        }
        // Steps of the head would break the text model's curve: each is told as progress, for an hour without a word
        // would look like a trainer that hangs; their loss in words, now and then.
        Stage::Mtp => {
            let total = batches.total_steps();
            if step == 1 || step == total || step.is_multiple_of((total / 10).max(1)) {
                session.phase("mtp", format!("step {step} of {total}, loss {loss:.4}"));
            }
            session.progress("mtp", step, total, "steps");
        }
    }
    Ok(())
}

fn save(
    session: &mut Session,
    subject: &dyn Subject,
    state: &State,
    optimizer: &Optimizer,
    best: bool,
) -> Result<(), TrainError> {
    let started = Instant::now();
    let step = state.checkpoint_step();
    let parameters = subject.saved();
    let checkpoint = session.commit(step, |folder| state.write(folder, &parameters, optimizer))?;
    session.events.emit(Kind::CheckpointCommitted(CheckpointCommitted {
        step,
        name: checkpoint.name(),
        bytes: checkpoint.bytes,
        commit_ms: Some(milliseconds(started)),
        best,
    }));
    let keep = session.plan.checkpoint.keep.max(1) as usize;
    if let Err(error) = session.checkpoints.retain(keep, state.best_step, &session.lease) {
        session.warn(format!("old checkpoints could not be deleted: {error}"), Some(step));
    }
    Ok(())
}

/// To the microsecond: more digits are noise, and make a log longer.
pub(crate) fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_micros() as f64 / 1e3
}
