//! The loop of one stage: batches in, optimizer steps out, with evaluation, checkpoints and requests in between.

use crate::TrainError;
use crate::batches::Batches;
use crate::evaluate::Evaluation;
use crate::optimizer::Optimizer;
use crate::schedule::learning_rate;
use crate::session::{Asked, Session};
use crate::snapshot::Snapshot;
use crate::state::{Stage, State};
use burn::tensor::Device;
use sparktune_kernels::adamw::Clip;
#[cfg(feature = "cuda")]
use sparktune_kernels::linear::tuning;
use sparktune_model::{Gradients, Loss, Model, Mtp, Param, Row};
use sparktune_plan::OptimizerPlan;
use sparktune_runlog::{Fp8Loss, Kind, Step};
use std::time::{Duration, Instant};

/// What a stage trains.
pub(crate) trait Subject {
    fn stage(&self) -> Stage;

    /// Tokens of a row that carry loss here.
    fn target_tokens(&self, row: &Row) -> usize;

    /// `scale · Σ losses`, with the gradients of all trained parameters added up.
    fn loss_and_gradients(&self, row: &Row, scale: f64, gradients: &mut Gradients) -> Loss;

    /// `Σ losses` in nats without gradients.
    fn loss_sum(&self, row: &Row) -> Loss;

    /// The same as training steps compute it, where they round more: with fp8.
    fn fp8_loss_sum(&self, row: &Row) -> Option<Loss>;

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
    /// Steps are trained with it; all else, as what is made of the weights later, is without.
    pub(crate) fp8: bool,
}

impl Subject for Main {
    fn stage(&self) -> Stage {
        Stage::Main
    }

    fn target_tokens(&self, row: &Row) -> usize {
        row.target_tokens()
    }

    fn loss_and_gradients(&self, row: &Row, scale: f64, gradients: &mut Gradients) -> Loss {
        match self.fp8 {
            true => self.model.with_fp8().loss_and_gradients(row, scale, self.recompute, gradients),
            false => self.model.loss_and_gradients(row, scale, self.recompute, gradients),
        }
    }

    fn loss_sum(&self, row: &Row) -> Loss {
        self.model.loss_sum(row)
    }

    fn fp8_loss_sum(&self, row: &Row) -> Option<Loss> {
        self.fp8.then(|| self.model.with_fp8().loss_sum(row))
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

    fn loss_and_gradients(&self, row: &Row, scale: f64, gradients: &mut Gradients) -> Loss {
        self.mtp.loss_and_gradients(&self.trunk, self.trunk.hidden(row), row, scale, gradients)
    }

    fn loss_sum(&self, row: &Row) -> Loss {
        self.mtp.loss_sum(&self.trunk, self.trunk.hidden(row), row)
    }

    fn fp8_loss_sum(&self, _: &Row) -> Option<Loss> {
        None
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All steps done, or stopped early because evaluation got no better.
    Done,
    /// A request came in, or memory ran out for the reason given; a checkpoint holds every step that was done.
    Stopped {
        /// Nothing where somebody asked for it.
        because: Option<String>,
    },
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
    // Steps take the CPU's own time; a device is given the next one before the last is looked at.
    let works_by_itself = *subject.model().device() != Device::flex();
    let (mut under_way, mut settled_at): (Option<Queued>, _) = (None, Instant::now());
    let mut unsaved = false;
    if state.step == 0 {
        tell_fp8_loss(session, subject, batches, evaluation, 0)?;
    }
    #[cfg(feature = "cuda")]
    if session.tiles.is_some() {
        tuning::listen();
    }
    while state.step < total {
        session.look_after_checkpoint()?;
        let before = under_way.take();
        let next = queue_step(session, subject, state, optimizer, batches, settings);
        settled_at = settle(session, subject, state, before, settled_at, total)?;
        under_way = match next? {
            Next::Queued(step) => Some(*step),
            Next::Nothing => None,
            Next::GivenUp => {
                let asked = session.asked();
                let because = asked.because.clone();
                // Every step before this one is in a checkpoint already, or is saved now.
                if unsaved {
                    save(session, subject, state, optimizer, false, asked)?;
                    session.saved()?;
                } else {
                    session.saved()?;
                    session.done(asked, state.checkpoint_step());
                }
                return Ok(End::Stopped { because });
            }
        };
        unsaved = true;
        session.sample_machine();
        #[cfg(feature = "cuda")]
        if under_way.is_some() && state.step < total {
            let products = tuning::missed();
            if !products.is_empty() {
                settled_at = settle(session, subject, state, under_way.take(), settled_at, total)?;
                measure_tiles(session, subject, &products, total);
            }
        }

        let mut best = false;
        let plan = &session.plan;
        let last = state.step == total;
        let evaluates = last || state.step.is_multiple_of(plan.eval.every_steps.max(1));
        let due = state.step.is_multiple_of(plan.checkpoint.save_steps.max(1))
            || saved_at.elapsed() >= Duration::from_secs(60 * u64::from(plan.checkpoint.save_minutes.max(1)));
        // What follows builds on this step being sound.
        if !works_by_itself || evaluates || due {
            settled_at = settle(session, subject, state, under_way.take(), settled_at, total)?;
        }
        if let Some(evaluation) = evaluation.filter(|_| evaluates) {
            let loss = evaluation.loss(session, subject, state.checkpoint_step())?;
            best = state.evaluated(loss);
            evaluation.samples(session, subject.model(), state.checkpoint_step());
            // For the peak: an evaluation may take more than a step.
            session.memory_bytes(subject.model().device());
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
            tell_fp8_loss(session, subject, batches, evaluation, state.checkpoint_step())?;
            state.main_done = true;
        }

        let asked = session.asked();
        let (stop, because) = (asked.stop, asked.because.clone());
        if asked.checkpoint {
            settled_at = settle(session, subject, state, under_way.take(), settled_at, total)?;
        }
        if due || best || last || enough || asked.checkpoint {
            if best {
                state.best_step = Some(state.checkpoint_step());
            }
            save(session, subject, state, optimizer, best, asked)?;
            saved_at = Instant::now();
            unsaved = false;
        }
        if stop || last || enough {
            session.saved()?;
        }
        // Also after the last step: what follows (the head, the export) is the resumed run's.
        if stop {
            return Ok(End::Stopped { because });
        }
        if enough {
            break;
        }
    }
    Ok(End::Done)
}

/// Tells, where steps are trained with fp8, what it makes of the loss: on the held-out examples, or on the rows of the first step.
fn tell_fp8_loss(
    session: &mut Session,
    subject: &dyn Subject,
    batches: &mut Batches,
    evaluation: Option<&Evaluation>,
    step: u64,
) -> Result<(), TrainError> {
    let rows: Box<dyn ExactSizeIterator<Item = Result<Row, TrainError>>> = match evaluation {
        Some(evaluation) => Box::new(evaluation.rows()),
        None => Box::new(batches.step(0)?.rows.into_iter().map(Ok)),
    };
    let total = rows.len() as u64;
    let (mut fp8, mut bf16, mut target_tokens) = (0.0, 0.0, 0);
    for (done, row) in (1..).zip(rows) {
        let row = row?;
        let Some(loss) = subject.fp8_loss_sum(&row) else { return Ok(()) };
        fp8 += loss.nats();
        bf16 += subject.loss_sum(&row).nats();
        target_tokens += subject.target_tokens(&row) as u64;
        session.sample_machine();
        if done % 8 == 0 {
            session.progress("fp8", done, total, "packs");
        }
    }
    let mean = |sum: f64| Some(sum / target_tokens.max(1) as f64).filter(|mean| mean.is_finite());
    session.events.emit(Kind::Fp8Loss(Fp8Loss {
        step,
        fp8_nats: mean(fp8),
        bf16_nats: mean(bf16),
        target_tokens,
        held_out: evaluation.is_some(),
    }));
    Ok(())
}

/// Has the products measured that the step before computed in estimated tiles.
#[cfg(feature = "cuda")]
fn measure_tiles(session: &Session, subject: &dyn Subject, products: &[tuning::Problem], total: u64) {
    let Some(tiles) = &session.tiles else { return };
    tiles.measure(session, subject.model().device(), products);
    let stage = match subject.stage() {
        Stage::Main => "train",
        Stage::Mtp => "mtp",
    };
    session.phase(stage, format!("going on with {total} optimizer steps"));
}

/// What became of a step that was to be prepared.
enum Next {
    /// It is on the device's queue.
    Queued(Box<Queued>),
    /// No token of it carries loss.
    Nothing,
    /// Memory ran out in the middle of it: weights, optimizer and state are those of the step before.
    GivenUp,
}

/// A step the device may still be working on.
struct Queued {
    started: Instant,
    step: u64,
    epoch: f64,
    /// Of each micro-batch.
    losses: Vec<Loss>,
    clip: Clip,
    learning_rate: f64,
    target_tokens: u64,
    tokens: u64,
    data_ms: f64,
    /// Where the host does the work itself.
    optimizer_ms: Option<f64>,
}

/// Prepares one step and puts it on the device's queue.
fn queue_step(
    session: &mut Session,
    subject: &mut dyn Subject,
    state: &mut State,
    optimizer: &mut Optimizer,
    batches: &mut Batches,
    settings: &OptimizerPlan,
) -> Result<Next, TrainError> {
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
        return Ok(Next::Nothing);
    }
    let mut gradients = Gradients::default();
    let scale = 1.0 / target_tokens as f64;
    let mut losses: Vec<Loss> = Vec::with_capacity(batch.rows.len());
    for row in &batch.rows {
        // A step may take half a minute, which is longer than a machine lasts whose memory runs out.
        if session.must_stop().is_some() {
            return Ok(Next::GivenUp);
        }
        losses.push(subject.loss_and_gradients(row, scale, &mut gradients));
    }
    session.before_update()?;
    let before_update = Instant::now();
    let clip = optimizer.step(settings, rate, step, gradients, &mut |f| subject.visit_mut(f))?;
    let host_works = *subject.model().device() == Device::flex();
    state.step = step;
    Ok(Next::Queued(Box::new(Queued {
        started,
        step,
        epoch: batch.epoch,
        losses,
        clip,
        learning_rate: rate,
        target_tokens: target_tokens as u64,
        tokens: batch.tokens(),
        data_ms,
        optimizer_ms: host_works.then(|| milliseconds(before_update)),
    })))
}

/// Waits for a step, if there is one, and records it; returns when it was done. `before` is when the step before was.
///
/// # Errors
/// When its loss or its gradients are not finite; its update has then changed nothing.
fn settle(
    session: &mut Session,
    subject: &dyn Subject,
    state: &mut State,
    queued: Option<Queued>,
    before: Instant,
    total: u64,
) -> Result<Instant, TrainError> {
    let Some(queued) = queued else { return Ok(before) };
    let step = queued.step;
    let loss: f64 = queued.losses.iter().map(Loss::nats).sum();
    if !loss.is_finite() {
        if subject.stage() == Stage::Main {
            session.events.emit(Kind::Step(Step { step, loss_nats: loss, ..Step::default() }));
        }
        return Err(TrainError::NotFinite { what: "loss", value: loss, step });
    }
    let grad_norm = queued.clip.norm();
    if !grad_norm.is_finite() {
        return Err(TrainError::NotFinite { what: "gradient norm", value: grad_norm, step });
    }
    // While one step is under way the next is already queued: each takes from the end of the one before.
    let step_ms = milliseconds(queued.started.max(before));
    let mem_used_bytes = session.memory_bytes(subject.model().device());
    match subject.stage() {
        Stage::Main => {
            state.main_steps = step;
            state.set_last_loss(loss);
            session.step(Step {
                step,
                epoch: Some(queued.epoch),
                loss_nats: loss,
                target_tokens: queued.target_tokens,
                tokens: queued.tokens,
                lr: Some(queued.learning_rate),
                grad_norm: Some(grad_norm),
                step_ms: Some(step_ms),
                tokens_per_s: Some((queued.tokens as f64 / step_ms * 1e4).round() / 10.0),
                mem_used_bytes,
                data_ms: Some(queued.data_ms),
                optimizer_ms: queued.optimizer_ms,
                ..Step::default()
            });
        }
        // Steps of the head would break the text model's curve: each is told as progress, for an hour without a word
        // would look like a trainer that hangs; their loss in words, now and then.
        Stage::Mtp => {
            if step == 1 || step == total || step.is_multiple_of((total / 10).max(1)) {
                session.phase("mtp", format!("step {step} of {total}, loss {loss:.4}"));
            }
            session.progress("mtp", step, total, "steps");
        }
    }
    Ok(Instant::now())
}

/// Has what was trained so far written as a checkpoint, which answers what was `asked`. Every step must be settled.
fn save(
    session: &mut Session,
    subject: &dyn Subject,
    state: &State,
    optimizer: &Optimizer,
    best: bool,
    asked: Asked,
) -> Result<(), TrainError> {
    let snapshot = Snapshot::take(state, &subject.saved(), optimizer, subject.model().device(), best);
    session.save(snapshot, asked)
}

/// To the microsecond: more digits are noise, and make a log longer.
pub(crate) fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_micros() as f64 / 1e3
}
