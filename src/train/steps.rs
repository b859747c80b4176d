//! The optimizer steps of a stage. Each one is queued on the device, and settled when the device has computed
//! it.
//!
//! An asynchronous device gets the next step before the last one is settled, so that it never waits for the
//! host. At most one step is in flight. Its loss, and whether it is finite, is only read when the step is
//! settled.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Instant;

use burn::tensor::{Device, Tensor};
use sparktune_cluster::Error as ClusterError;
use sparktune_kernels::adamw::Clip;
use sparktune_model::Loss;
use sparktune_plan::OptimizerPlan;
use sparktune_runlog::{Kind, Step};

use crate::batches::{Batch, Batches};
use crate::diloco::Diloco;
use crate::elapsed::milliseconds;
use crate::error::TrainError;
use crate::health::Given;
use crate::judged::JudgedRanks;
use crate::micro_batches::MicroBatches;
use crate::objective::{Objective, Trainee};
use crate::optimizer::Optimizer;
use crate::ranks::Summed;
use crate::schedule::learning_rate;
use crate::session::Session;
use crate::state::{Stage, State};

/// The number of consecutive steps that are skipped because their values are not finite. After them, a
/// further one is an error.
pub(crate) const MOST_SKIPPED: u32 = 3;

/// A trainee, its training settings, and the step in flight.
pub(crate) struct Steps<'a, O: Objective> {
    pub(crate) objective: &'a O,
    pub(crate) trainee: &'a mut O::Trainee,
    /// The position in the stage. A step in flight counts as done.
    pub(crate) state: &'a mut State,
    pub(crate) optimizer: &'a mut Optimizer,
    pub(crate) batches: Batches,
    settings: OptimizerPlan,
    /// The rare exchanges of the ranks, if they do not exchange in every step.
    pub(crate) diloco: Option<Diloco>,
    /// How the gradients of several ranks are judged, if they are.
    judged: Option<JudgedRanks>,
    in_flight: Option<InFlight>,
    /// The gradient norm of the last step that was settled in this attempt.
    last_norm: Option<f64>,
    /// The time when the last step was settled.
    settled_at: Instant,
}

/// The result of queueing a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Queued {
    /// The step counts as done, even if it had no trained tokens.
    Step,
    /// Memory ran out during the step; weights, optimizer and state are those of the previous step.
    OutOfMemory,
    /// The same, because another rank is gone or cannot go on, for this reason.
    RankLost(String),
}

/// A step that the device may still be computing.
struct InFlight {
    started: Instant,
    step: u64,
    epoch: f64,
    loss: StepLoss,
    clip: Clip,
    learning_rate: f64,
    trained_tokens: u64,
    tokens: u64,
    data_ms: f64,
    /// The duration of the optimizer, which is only known if the host does the work itself.
    optimizer_ms: Option<f64>,
    /// How long the step has waited for the sums of several ranks, in milliseconds, and the bytes of the
    /// exchange.
    exchange: Option<(f64, u64)>,
}

/// The loss of a step, already divided by the number of its terms.
enum StepLoss {
    /// One per micro-batch, which the device may still be computing.
    Queued(Vec<Loss>),
    /// Their sum.
    Known(f64),
}

impl StepLoss {
    fn nats(&self) -> f64 {
        match self {
            Self::Queued(losses) => losses.iter().map(Loss::nats).sum(),
            Self::Known(loss) => *loss,
        }
    }
}

impl<'a, O: Objective> Steps<'a, O> {
    pub(crate) fn new(
        objective: &'a O,
        trainee: &'a mut O::Trainee,
        state: &'a mut State,
        optimizer: &'a mut Optimizer,
        batches: Batches,
        settings: OptimizerPlan,
    ) -> Self {
        let settled_at = Instant::now();
        Self {
            objective,
            trainee,
            state,
            optimizer,
            batches,
            settings,
            diloco: None,
            judged: None,
            in_flight: None,
            last_norm: None,
            settled_at,
        }
    }

    /// Returns the number of steps in the stage.
    pub(crate) fn total(&self) -> u64 {
        self.batches.total_steps()
    }

    pub(crate) fn is_last_done(&self) -> bool {
        self.state.step >= self.total()
    }

    pub(crate) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Queues the step after `state.step` on the device, then settles the previous step.
    ///
    /// # Errors
    /// When the previous step is one too many with values that are not finite, an example is damaged, a
    /// parameter has no gradient, or a checkpoint that this had to wait for could not be written.
    pub(crate) fn queue_next(&mut self, session: &mut Session) -> Result<Queued, TrainError> {
        let previous = self.in_flight.take();
        let queued = self.queue(session);
        // The previous step is checked first: if both fail, its failure is the cause.
        self.settle_step(session, previous)?;
        queued
    }

    /// Waits for the step in flight, if there is one, and records it.
    ///
    /// # Errors
    /// When it is one too many whose loss or gradients are not finite; its update has then changed nothing.
    pub(crate) fn settle(&mut self, session: &mut Session) -> Result<(), TrainError> {
        let step = self.in_flight.take();
        self.settle_step(session, step)
    }

    /// Computes loss and gradients of the longest micro-batch of the next step, and forgets them: it shows
    /// which products a step has.
    ///
    /// # Errors
    /// When an example is damaged.
    pub(crate) fn rehearse(&mut self, session: &Session) -> Result<(), TrainError> {
        let Self { objective, trainee, state, batches, .. } = self;
        let batch = batches.step(state.step)?;
        let sequences = batch.sequences.iter().enumerate();
        let with_terms = sequences.filter(|(_, sequence)| objective.loss_terms(sequence) > 0);
        let Some((longest, _)) = with_terms.max_by_key(|(_, sequence)| sequence.len()) else { return Ok(()) };
        let (step, scale) = (state.step, 1.0);
        MicroBatches { objective: *objective, trainee: &mut **trainee, batch: &batch, step, scale }
            .at(&[longest], session);
        Ok(())
    }

    fn queue(&mut self, session: &mut Session) -> Result<Queued, TrainError> {
        let started = Instant::now();
        session.ranks.begin_step(self.state.step + 1);
        session.record_members(self.state.step + 1);
        let batch = self.batches.step(self.state.step)?;
        let data_ms = milliseconds(started);
        let terms: usize = batch.sequences.iter().map(|sequence| self.objective.loss_terms(sequence)).sum();
        let learning_rate = learning_rate(&self.settings, self.state.step, self.total());
        let step = self.state.step + 1;
        if terms == 0 && self.diloco.is_none() {
            session.warn("no token of this step is trained, so the weights stay as they are", Some(step));
            self.state.step = step;
            if O::Trainee::STAGE == Stage::Main {
                self.state.main_steps = step;
            }
            return Ok(Queued::Step);
        }
        let before = session.ranks.traffic();
        if self.diloco.is_some() {
            return self.inner_step(session, &batch, started, data_ms);
        }
        if self.judged.is_none() && O::Trainee::STAGE == Stage::Main && !session.ranks.is_alone() {
            self.judged = JudgedRanks::of(&session.plan, session.sums_are_seen);
        }
        let Self { objective, trainee, last_norm, judged, state, .. } = self;
        let mut micro_batches = MicroBatches {
            objective: *objective,
            trainee: &mut **trainee,
            batch: &batch,
            step: state.step,
            scale: 1.0 / terms as f64,
        };
        let (loss, gradients, waited_ms) = if session.ranks.is_alone() {
            match micro_batches.alone(session) {
                Some((losses, gradients)) => (StepLoss::Queued(losses), gradients, None),
                None => return Ok(Queued::OutOfMemory),
            }
        } else {
            // Weights, optimizer and state are as they were until all sums of the step are here, so it can be
            // done again by the ranks that are left.
            let summed = loop {
                let summed = match judged {
                    None => micro_batches.over_ranks(session, *last_norm),
                    Some(judged) => micro_batches.judged(session, *last_norm, judged, &mut state.judge),
                };
                match summed {
                    Err(TrainError::Cluster(ClusterError::Regrouped)) => session.record_members(step),
                    summed => break summed,
                }
            };
            for sentence in judged.as_mut().map(JudgedRanks::told).unwrap_or_default() {
                session.warn(sentence, Some(step));
            }
            match summed {
                Ok((Summed::Step(loss, gradients), waited_ms)) => {
                    (StepLoss::Known(loss), gradients, waited_ms)
                }
                Ok((Summed::GivenUp(reason), _)) => return Ok(Queued::RankLost(reason)),
                Err(TrainError::Cluster(error)) if error.is_of_a_rank() => {
                    return Ok(Queued::RankLost(error.to_string()));
                }
                Err(error) => return Err(error),
            }
        };
        session.make_room_for_update()?;
        let update_started = Instant::now();
        let Self { trainee, optimizer, settings, .. } = self;
        let clip = optimizer.step(settings, learning_rate, step, gradients, &mut |f| trainee.visit_mut(f))?;
        let optimizer_ms = is_host(trainee.model().device()).then(|| milliseconds(update_started));
        self.state.step = step;
        let is_seen = self.judged.as_ref().is_some_and(|judged| !judged.adds_unseen(&session.ranks));
        if let Some(summed_by) = session.ranks.summed_by(is_seen) {
            self.state.summed_by = Some(summed_by);
        }
        if let Some(collective) = session.ranks.collective() {
            self.state.muted = collective.muted();
        }
        self.in_flight = Some(InFlight {
            started,
            step,
            epoch: batch.epoch,
            loss,
            clip,
            learning_rate,
            trained_tokens: batch.trained_tokens(),
            tokens: batch.tokens(),
            data_ms,
            optimizer_ms,
            exchange: waited_ms.map(|ms| (ms, session.ranks.traffic().since(before))),
        });
        Ok(Queued::Step)
    }

    /// Takes an inner step of each rank that this process computes, each on its own micro-batches, and the
    /// outer step if it is due. What is recorded of the step is that of the first of these ranks.
    fn inner_step(
        &mut self,
        session: &mut Session,
        batch: &Batch,
        started: Instant,
        data_ms: f64,
    ) -> Result<Queued, TrainError> {
        let (done, total) = (self.state.step, self.total());
        let (step, count, first) = (done + 1, session.ranks.count(), session.ranks.own().start);
        let learning_rate = learning_rate(&self.settings, done, total);
        session.make_room_for_update()?;
        let Self { objective, trainee, state, optimizer, settings, diloco, .. } = self;
        let diloco = diloco.as_mut().expect("called with it");
        let mut of_first = None;
        let mut out_of_memory = false;
        diloco.for_each(first, &mut **trainee, optimizer, |rank, trainee, optimizer| {
            let mut micro_batches =
                MicroBatches { objective: *objective, trainee: &mut *trainee, batch, step: done, scale: 1.0 };
            let places = micro_batches.of_rank(rank, &count.into());
            let terms = micro_batches.terms(&places);
            if terms == 0 || out_of_memory {
                return Ok(None);
            }
            micro_batches.scale = 1.0 / terms as f64;
            let Some((losses, gradients)) = micro_batches.at(&places, session) else {
                out_of_memory = true;
                return Ok(None);
            };
            let loss: f64 = losses.iter().map(Loss::nats).sum();
            let clip =
                optimizer.step(settings, learning_rate, step, gradients, &mut |f| trainee.visit_mut(f))?;
            let is_finite = loss.is_finite() && clip.norm().is_finite();
            if rank == first {
                of_first = Some((loss, clip));
            }
            Ok::<_, TrainError>(Some(is_finite))
        })?;
        if out_of_memory {
            return Ok(Queued::OutOfMemory);
        }
        let optimizer_ms = None;
        let mut exchange = None;
        if diloco.exchanges_after(step, total) {
            let before = session.ranks.traffic();
            let (skipped, exchange_ms) = match diloco.exchange(&mut session.ranks, &mut **trainee) {
                Ok(exchanged) => exchanged,
                Err(TrainError::Cluster(error)) if error.is_of_a_rank() => {
                    return Ok(Queued::RankLost(error.to_string()));
                }
                Err(error) => return Err(error),
            };
            let most_skipped = skipped.iter().copied().max().unwrap_or(0);
            state.skipped_of_ranks = if most_skipped > 0 { skipped } else { Vec::new() };
            // All ranks hear of it, so they end or return to a checkpoint together.
            if most_skipped > MOST_SKIPPED {
                return Err(TrainError::NotFinite { what: "loss or gradient norm", value: f64::NAN, step });
            }
            if session.ranks.has_others() {
                exchange = Some((exchange_ms, session.ranks.traffic().since(before)));
            }
            self.state.summed_by = session.ranks.summed_by(false);
        }
        self.state.step = step;
        let Some((loss, clip)) = of_first else {
            session.warn("no token of this rank's share of the step is trained", Some(step));
            self.state.main_steps = step;
            return Ok(Queued::Step);
        };
        self.in_flight = Some(InFlight {
            started,
            step,
            epoch: batch.epoch,
            loss: StepLoss::Known(loss),
            clip,
            learning_rate,
            trained_tokens: batch.trained_tokens(),
            tokens: batch.tokens(),
            data_ms,
            optimizer_ms,
            exchange,
        });
        Ok(Queued::Step)
    }

    /// Says in words what was judged of the ranks, and what it took; nothing if they are not judged.
    pub(crate) fn judged_in_words(&self) -> Option<String> {
        self.judged.as_ref()?.in_words(self.state.judge.as_ref()?)
    }

    /// Returns whether all ranks have the same weights now, so that they may be evaluated and saved.
    pub(crate) fn is_exchanged(&self) -> bool {
        self.diloco.as_ref().is_none_or(|diloco| diloco.exchanges_after(self.state.step, self.total()))
    }

    /// Returns the steps for which actions are due after this one: itself, and those before it after which
    /// the ranks did not exchange.
    pub(crate) fn since_exchange(&self) -> RangeInclusive<u64> {
        let step = self.state.step;
        self.diloco.as_ref().map_or(step, |diloco| diloco.first_of_round(step.max(1)))..=step
    }

    /// Returns what a checkpoint has beside weights and optimizer. All ranks must call this together.
    ///
    /// # Errors
    /// A rank is gone.
    pub(crate) fn beside_optimizer(
        &mut self,
        session: &mut Session,
    ) -> Result<BTreeMap<String, Tensor<2>>, TrainError> {
        let Self { trainee, optimizer, diloco, .. } = self;
        match diloco {
            None => Ok(BTreeMap::new()),
            Some(diloco) => diloco.checkpointed(&mut session.ranks, &**trainee, optimizer),
        }
    }

    fn settle_step(&mut self, session: &mut Session, step: Option<InFlight>) -> Result<(), TrainError> {
        let Some(settling) = step else { return Ok(()) };
        let step = settling.step;
        let loss = settling.loss.nats();
        let grad_norm = settling.clip.norm();
        self.last_norm = Some(grad_norm);
        let is_finite = loss.is_finite() && grad_norm.is_finite();
        match O::Trainee::STAGE {
            Stage::Main if is_finite => self.record_step(session, &settling, loss, grad_norm),
            Stage::Main => self.skip(session, step, loss, grad_norm)?,
            Stage::Mtp => {
                TrainError::require_finite("loss", loss, step)?;
                TrainError::require_finite("gradient norm", grad_norm, step)?;
                self.record_head_step(session, step, loss);
            }
        }
        self.settled_at = Instant::now();
        Ok(())
    }

    /// Records a step that is not finite. Its update has changed nothing.
    ///
    /// # Errors
    /// When too many steps in a row were skipped.
    fn skip(
        &mut self,
        session: &mut Session,
        step: u64,
        loss: f64,
        grad_norm: f64,
    ) -> Result<(), TrainError> {
        // The event shows in the curve where the loss became invalid.
        let seen = Step { step, loss_nats: loss, grad_norm: Some(grad_norm), ..Step::default() };
        session.events.emit(Kind::Step(seen));
        let (what, value) = if loss.is_finite() { ("gradient norm", grad_norm) } else { ("loss", loss) };
        self.state.main_steps = self.state.main_steps.max(step);
        self.state.skipped_in_a_row += 1;
        let skipped = self.state.skipped_in_a_row;
        // Ranks that exchange rarely decide it together, when they do.
        if skipped > MOST_SKIPPED && self.diloco.is_none() {
            return Err(TrainError::NotFinite { what, value, step });
        }
        session.warn(
            format!(
                "the {what} of step {step} is {value}, so the step was skipped ({skipped} of at most {MOST_SKIPPED} in a row). If it happens often, check the examples of this step, or use a lower --learning-rate"
            ),
            Some(step),
        );
        Ok(())
    }

    fn record_step(&mut self, session: &mut Session, settled: &InFlight, loss: f64, grad_norm: f64) {
        // A step is queued while the previous one is still computed, so its own time begins when that one
        // ended.
        let step_ms = milliseconds(settled.started.max(self.settled_at));
        // A later step without trained tokens may be done already.
        self.state.main_steps = self.state.main_steps.max(settled.step);
        self.state.set_last_loss(loss);
        self.state.skipped_in_a_row = 0;
        let health = &mut self.state.health;
        let warnings = [health.step(loss, Given::of(&session.plan)), health.gradients(grad_norm)];
        let mem_used_bytes = session.memory_bytes(self.trainee.model().device());
        session.record_step(Step {
            step: settled.step,
            epoch: Some(settled.epoch),
            loss_nats: loss,
            target_tokens: settled.trained_tokens,
            tokens: settled.tokens,
            lr: Some(settled.learning_rate),
            grad_norm: Some(grad_norm),
            step_ms: Some(step_ms),
            tokens_per_s: Some((settled.tokens as f64 / step_ms * 1e4).round() / 10.0),
            mem_used_bytes,
            data_ms: Some(settled.data_ms),
            optimizer_ms: settled.optimizer_ms,
            exchange_ms: settled.exchange.map(|(ms, _)| ms),
            exchange_bytes: settled.exchange.map(|(_, bytes)| bytes),
        });
        for warning in warnings.into_iter().flatten() {
            session.warn(warning, Some(settled.step));
        }
    }

    /// Records a step of the head. As a step event it would corrupt the text model's curve. Progress events
    /// show that the trainer is alive; the loss is recorded in words, about ten times.
    fn record_head_step(&self, session: &mut Session, step: u64, loss: f64) {
        // The peak is updated here, because the head's activations count as well.
        session.memory_bytes(self.trainee.model().device());
        let total = self.total();
        if step == 1 || step == total || step.is_multiple_of((total / 10).max(1)) {
            session.phase("mtp", format!("step {step} of {total}, loss {loss:.4}"));
        }
        session.progress("mtp", step, total, "steps");
    }
}

/// Returns whether a device computes on the calling thread, so that all its work is done when a call returns.
pub(crate) fn is_host(device: &Device) -> bool {
    *device == Device::flex()
}
