//! The loop of one stage: optimizer steps, and the actions that are due between them.
//!
//! `steps` defines a step, `due` the actions after one, and `objective` the loss of a batch.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use sparktune_base::program_name;
use sparktune_base::units::counted;
use sparktune_cluster::Error as ClusterError;
use sparktune_plan::{Exported, too_little_to_judge};
use sparktune_runlog::RunView;

use crate::control::ControlRequests;
use crate::cuda::tuning;
use crate::due::{Due, Evaluated, Intervals, StageEnd};
use crate::error::TrainError;
use crate::evaluate::EvalSet;
use crate::health::Given;
use crate::objective::{Objective, Trainee};
use crate::products::Library;
use crate::session::Session;
use crate::snapshot::Snapshot;
use crate::state::{Stage, State};
use crate::state_hash::{MOST_AT_CHECKPOINT, numbers, require_the_same, state_hash};
use crate::steps::{Queued, Steps, is_host};
use crate::tiles::TileFile;
use crate::{fp8_loss, neighbours};

/// A stage and its resources.
pub(crate) struct StageLoop<'a, 'run, O: Objective> {
    pub(crate) session: &'a mut Session<'run>,
    pub(crate) steps: Steps<'a, O>,
    pub(crate) eval_set: Option<&'a EvalSet>,
    /// The file of measured tiles; `None` if none are measured.
    pub(crate) tiles: Option<&'a TileFile>,
    /// The vendor's library, if products may be left to it.
    pub(crate) library: Option<&'a mut Library>,
}

/// What a rank says at the border of a step.
#[derive(Debug, Serialize, Deserialize)]
struct Wish {
    /// The number that its launcher gave it.
    rank: usize,
    stop: bool,
    save: bool,
    /// Why it has to stop.
    reason: Option<String>,
    /// How many wait to be let in.
    newcomers: usize,
    /// The shares of the next step, if they change.
    shares: Option<Vec<u32>>,
}

/// What all ranks do at the border of a step.
struct Agreed {
    due: Due,
    /// Why a rank has to stop, and therefore all.
    reason: Option<String>,
    /// Another rank that was asked to stop, if this one was not.
    asked: Option<usize>,
    others_join: bool,
    /// The shares of the next step, if they change.
    shares: Option<Vec<u32>>,
}

/// How a stage ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StageOutcome {
    /// All steps are done, or the loss on the eval set no longer improves.
    Done,
    /// The run must stop. A checkpoint contains every step that was done.
    Stopped {
        /// The reason if memory ran out, or another rank was stopped; `None` if the user stopped this one.
        reason: Option<String>,
    },
}

impl<O: Objective> StageLoop<'_, '_, O> {
    /// Trains from the current state to the end of the stage, or until the run must stop.
    ///
    /// # Errors
    /// When too many steps in a row have values that are not finite, an example is damaged, or a checkpoint
    /// cannot be written.
    pub(crate) fn run(mut self) -> Result<StageOutcome, TrainError> {
        let intervals = Intervals::from_plan(&self.session.plan, self.steps.total());
        let intervals = match O::Trainee::STAGE {
            Stage::Main => intervals,
            Stage::Mtp => intervals.of_head(),
        };
        let is_host = is_host(self.steps.trainee.model().device());
        let mut saved_at = Instant::now();
        let mut has_unsaved_steps = false;
        if !self.decide_products()? {
            return self.give_up(false, None);
        }
        self.before_first_step()?;
        while !self.steps.is_last_done() {
            self.session.poll_checkpoint()?;
            match self.steps.queue_next(self.session)? {
                Queued::Step => {}
                // Between two exchanges the weights are those of one rank, which no checkpoint may have.
                Queued::OutOfMemory => {
                    let is_whole = self.steps.diloco.is_none();
                    return self.give_up(has_unsaved_steps && is_whole, None);
                }
                Queued::RankLost(reason) => {
                    let is_whole = self.steps.diloco.is_none();
                    return self.give_up(has_unsaved_steps && is_whole, Some(reason));
                }
            }
            has_unsaved_steps = true;
            self.session.sample_machine();
            self.measure_new_tiles()?;
            if let Some(library) = self.library.as_mut() {
                library.record_refusals(self.session, O::Trainee::STAGE)?;
            }

            if !self.steps.is_exchanged() {
                self.steps.settle(self.session)?;
                continue;
            }
            let steps = self.steps.since_exchange();
            let mut due = Due::by_schedule(&intervals, steps, saved_at.elapsed());
            // All actions rely on a valid step. The host has computed the step already.
            if is_host || due.is_anything() {
                self.steps.settle(self.session)?;
            }
            if let Some(eval_set) = self.eval_set.filter(|_| due.evaluate) {
                due = due.after_evaluation(&intervals, self.evaluate(eval_set)?);
            }
            if let Some(end) = due.end {
                self.end(end)?;
            }
            // An evaluation may take minutes; requests in the meantime are answered with the same checkpoint.
            let requests = self.session.poll_requests();
            let mut reason = requests.out_of_memory.clone();
            due = due.with_requests(&requests);
            let mut others_join = false;
            let mut have_agreed = false;
            if self.session.ranks.has_others() {
                let (asked, shares);
                Agreed { due, reason, asked, others_join, shares } = match self.agreed(due, reason) {
                    Err(TrainError::Cluster(error)) if error.is_of_a_rank() => Agreed {
                        due: Due { save: true, stop: true, ..due },
                        reason: Some(error.to_string()),
                        asked: None,
                        others_join: false,
                        shares: None,
                    },
                    agreed => agreed?,
                };
                have_agreed = reason.is_none();
                reason = reason.or_else(|| Some(format!("rank {} was stopped", asked?)));
                let next = self.steps.state.step + 1;
                self.session.record_members(next);
                if let Some(said) = shares.filter(|_| !self.steps.is_last_done()) {
                    self.session.take_shares(said, next);
                }
            }
            if due.save {
                self.steps.settle(self.session)?;
                if have_agreed && let Some(lost) = self.compared()? {
                    (due.stop, reason) = (true, Some(lost));
                }
                self.save(due.is_best, requests)?;
                (saved_at, has_unsaved_steps) = (Instant::now(), false);
            }
            if due.stop || due.end.is_some() || others_join {
                self.session.wait_for_checkpoint()?;
            }
            // This holds even after the last step: the head or the export is then left to the resumed run.
            if due.stop {
                return Ok(StageOutcome::Stopped { reason });
            }
            if due.end.is_some() {
                break;
            }
            if others_join {
                return Err(ClusterError::Newcomers.into());
            }
        }
        if let Some(judged) = self.steps.judged_in_words() {
            self.session.phase("sentry", judged);
        }
        if let Some(blocks) = self.session.ranks.collective().and_then(|ranks| ranks.blocks_for_gpu()) {
            self.session.phase("exchange", blocks.to_string());
        }
        Ok(StageOutcome::Done)
    }

    /// Decides by whom the products of the stage are computed, if the vendor's library may and nothing of the
    /// stage has been computed yet. Returns false if a stop was requested meanwhile; then nothing is decided.
    fn decide_products(&mut self) -> Result<bool, TrainError> {
        let Self { session, steps, tiles, library, .. } = self;
        let (Some(tiles), Some(library)) = (*tiles, library.as_mut()) else { return Ok(true) };
        let stage = O::Trainee::STAGE;
        if !library.begin(session, stage, steps.state.step)? {
            return Ok(true);
        }
        session.phase("products", "computing a pack to see which matrix products a step has");
        tuning::begin_deciding();
        tuning::listen();
        steps.rehearse(session)?;
        let products = tuning::missed();
        let is_whole = tiles.measure(session, steps.trainee.model().device(), &products);
        tuning::settle_decisions();
        if is_whole {
            library.record(session, stage)?;
        }
        Ok(is_whole)
    }

    fn before_first_step(&mut self) -> Result<(), TrainError> {
        if O::Trainee::STAGE == Stage::Main {
            let warning = neighbours::warning(self.session.run, self.session.plan.device);
            warning.into_iter().for_each(|warning| self.session.warn(warning, None));
            self.keep_new_order()?;
        }
        if self.steps.state.step == 0 {
            match O::Trainee::STAGE {
                Stage::Main => self.evaluate_base()?,
                Stage::Mtp => self.evaluate_base_head()?,
            }
            self.record_fp8_loss()?;
        }
        if self.tiles.is_some() {
            tuning::listen();
        }
        Ok(())
    }

    /// Saves the checkpoint that the run has returned to again, with the order of the data from there on.
    fn keep_new_order(&mut self) -> Result<(), TrainError> {
        let State { step, order, best_step, .. } = *self.steps.state;
        if order.is_some_and(|order| order.from_step == step) {
            self.save(best_step == Some(step), ControlRequests::default())?;
        }
        Ok(())
    }

    /// Records what is known before the first step: the warnings of the plan, and the loss on the eval set,
    /// the base's or the parent's, with which all later ones are compared. An earlier attempt may have
    /// recorded them before it was killed.
    fn evaluate_base(&mut self) -> Result<(), TrainError> {
        let Self { session, steps, eval_set, .. } = self;
        let logged = RunView::replay(session.run)?;
        let mut warnings = session.plan.warnings().to_vec();
        // Plans of older versions do not have this one.
        let too_little = too_little_to_judge(eval_set.map(EvalSet::size));
        warnings.extend(too_little.filter(|warning| !session.plan.warnings().contains(warning)));
        for warning in warnings {
            if !logged.warnings.iter().any(|seen| seen.what.message == warning) {
                session.warn(warning, None);
            }
        }
        let Some(eval_set) = eval_set else { return Ok(()) };
        // The ranks evaluate together, or none of them does.
        let known = session.ranks.of_first(logged.base_eval.map(|eval| eval.loss_nats.to_bits()))?;
        let loss = match known {
            Some(bits) => f64::from_bits(bits),
            None => eval_set.loss(session, steps.objective, steps.trainee, 0)?,
        };
        steps.state.health.base(loss, session.plan.model.from.is_some());
        // What the untrained model answers is what all later answers are compared with.
        if logged.samples.is_empty() {
            eval_set.record_samples(session, steps.trainee.model(), 0);
        }
        // The peak is updated here, because an evaluation may take more memory than a step.
        session.memory_bytes(steps.trainee.model().device());
        Ok(())
    }

    /// Records the loss of the base's head, which is never the best one, because it belongs to no trained
    /// weights.
    fn evaluate_base_head(&mut self) -> Result<(), TrainError> {
        let Self { session, steps, eval_set, .. } = self;
        if let Some(eval_set) = eval_set {
            eval_set.loss(session, steps.objective, steps.trainee, 0)?;
        }
        Ok(())
    }

    /// Measures the products that the step in flight computed in estimated tiles. Only the first step of a
    /// stage has such products.
    fn measure_new_tiles(&mut self) -> Result<(), TrainError> {
        let Some(tiles) = self.tiles else { return Ok(()) };
        // After the last step, no product would use them.
        if !self.steps.is_in_flight() || self.steps.is_last_done() {
            return Ok(());
        }
        let products = tuning::missed();
        if products.is_empty() {
            return Ok(());
        }
        self.steps.settle(self.session)?;
        tiles.measure(self.session, self.steps.trainee.model().device(), &products);
        let total = counted(self.steps.total(), "optimizer step");
        self.session.phase(O::Trainee::STAGE.phase(), format!("continuing with {total}"));
        Ok(())
    }

    /// Evaluates and, in the main stage, generates samples.
    fn evaluate(&mut self, eval_set: &EvalSet) -> Result<Evaluated, TrainError> {
        let Self { session, steps, .. } = self;
        if O::Trainee::STAGE == Stage::Mtp {
            let loss = eval_set.loss(session, steps.objective, steps.trainee, steps.state.step)?;
            return Ok(Evaluated { is_best: steps.state.record_head_eval(loss), without_gain: 0 });
        }
        let step = steps.state.checkpoint_step();
        let loss = eval_set.loss(session, steps.objective, steps.trainee, step)?;
        let is_best = steps.state.record_eval(loss);
        let total = steps.total();
        for warning in steps.state.health.evaluated(step, total, loss, Given::of(&session.plan)) {
            session.warn(warning, Some(step));
        }
        let model = steps.trainee.model();
        eval_set.record_samples(session, model, step);
        // The peak is updated here, because an evaluation may take more memory than a step.
        session.memory_bytes(model.device());
        Ok(Evaluated { is_best, without_gain: steps.state.evals_without_gain })
    }

    /// Records that the stage is complete, before the checkpoint that contains this.
    fn end(&mut self, end: StageEnd) -> Result<(), TrainError> {
        if end == StageEnd::EarlyStop {
            let evaluations = self.steps.state.evals_without_gain;
            let exported = match self.session.plan.export {
                Exported::Best => "the best weights are exported".to_owned(),
                Exported::Last => format!(
                    "the last weights are exported, `{} export --best` exports the best",
                    program_name()
                ),
            };
            self.session.warn(
                format!(
                    "stopping early: {} did not improve on the best loss; {exported}",
                    match evaluations {
                        1 => "the last evaluation".to_owned(),
                        more => format!("the last {more} evaluations"),
                    }
                ),
                Some(self.steps.state.step),
            );
        }
        self.record_fp8_loss()?;
        self.steps.state.main_done = true;
        Ok(())
    }

    fn record_fp8_loss(&mut self) -> Result<(), TrainError> {
        let Self { session, steps, eval_set, .. } = self;
        let Steps { objective, trainee, state, batches, .. } = steps;
        fp8_loss::record(session, *objective, trainee, batches, *eval_set, state.checkpoint_step())
    }

    /// Returns what is due if any rank was asked to stop: then all stop after this step, and rank 0 saves it.
    /// Rank 0 decides whether a checkpoint is written, to which the others may have to contribute, whether
    /// all ranks meet again now, because others wait at rank 0, and which shares they have from the next step
    /// on.
    fn agreed(&mut self, due: Due, reason: Option<String>) -> Result<Agreed, TrainError> {
        let newcomers = self.session.ranks.newcomers();
        let shares = self.session.better_shares();
        let wish = Wish {
            rank: self.session.ranks.number(),
            stop: due.stop,
            save: due.save,
            reason,
            newcomers,
            shares,
        };
        let wishes = self.session.ranks.gather(wish)?;
        let stop = wishes.iter().any(|wish| wish.stop);
        let reason = wishes
            .iter()
            .find_map(|wish| wish.reason.as_ref().map(|reason| format!("rank {}: {reason}", wish.rank)));
        let asked = wishes.iter().find(|wish| wish.stop).filter(|_| !due.stop).map(|wish| wish.rank);
        let Some(first) = wishes.into_iter().next() else {
            return Ok(Agreed { due, reason, asked, others_join: false, shares: None });
        };
        let others_join = first.newcomers > 0 && !stop && due.end.is_none();
        let due = Due { stop, save: stop || first.save || others_join, ..due };
        let shares = first.shares.filter(|_| !stop && !others_join);
        Ok(Agreed { due, reason, asked, others_join, shares })
    }

    /// Compares what all ranks have trained, unless that takes long. Returns why they end if one is gone.
    ///
    /// # Errors
    /// A rank has something else.
    fn compared(&mut self) -> Result<Option<String>, TrainError> {
        let Steps { trainee, state, optimizer, diloco, .. } = &self.steps;
        let trained = trainee.trained();
        if diloco.is_some() || numbers(&trained) > MOST_AT_CHECKPOINT {
            return Ok(None);
        }
        let step = state.step;
        let hash = state_hash(step, &trained, optimizer);
        let number = self.session.ranks.number();
        match self.session.ranks.gather((number, hash)) {
            Err(TrainError::Cluster(error)) if error.is_of_a_rank() => Ok(Some(error.to_string())),
            hashes => require_the_same(&hashes?, step).map(|()| None),
        }
    }

    /// Stops because memory ran out or a rank was lost in the middle of a step, with all previous steps in a
    /// checkpoint.
    fn give_up(mut self, has_unsaved_steps: bool, lost: Option<String>) -> Result<StageOutcome, TrainError> {
        let requests = self.session.poll_requests();
        let reason = lost.or_else(|| requests.out_of_memory.clone());
        if has_unsaved_steps {
            self.save(false, requests)?;
            self.session.wait_for_checkpoint()?;
        } else {
            self.session.wait_for_checkpoint()?;
            self.session.acknowledge(requests, self.steps.state.checkpoint_step());
        }
        Ok(StageOutcome::Stopped { reason })
    }

    /// Starts to write everything trained so far as a checkpoint, which answers `requests`. No step may be in
    /// flight.
    fn save(&mut self, is_best: bool, requests: ControlRequests) -> Result<(), TrainError> {
        let more = self.steps.beside_optimizer(self.session)?;
        let Steps { trainee, state, optimizer, .. } = &mut self.steps;
        // The state says of itself which checkpoint has the best head.
        let is_best = is_best && O::Trainee::STAGE == Stage::Main;
        if is_best {
            state.best_step = Some(state.checkpoint_step());
        }
        let device = trainee.model().device();
        let snapshot = Snapshot::take(state, &trainee.checkpointed(), optimizer, device, is_best).with(more);
        self.session.save(snapshot, requests)
    }
}
