//! Folds events into the state of a run, for the live view, replay, plain lines, the resume summary and
//! tests.
//!
//! Events say their times themselves; the clock of this process only tells how long none was read. Files are
//! opened by a tailer alone. Applying an event twice changes nothing, and memory is
//! bounded for any number of steps. A later attempt replaces the steps after the one it resumed from: their
//! values move to `discarded`, and the best evaluation, checkpoints and averages are restored.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use serde::Serialize;

use crate::charts::{Charts, Mark};
use crate::clock::{SinceBoot, now_us};
use crate::error::Result;
use crate::event::{
    CheckpointCommitted, ControlApplied, DeviceSample, Event, Fp8Loss, HeadEval, Kind, MemberSamples,
    Members, Outcome, Phase, Progress, RunFinished, RunStarted, Sample, Warning,
};
use crate::holder::Holder;
use crate::lease::Lease;
use crate::liveness::{Liveness, STALLED_AFTER, STALLED_AT_LEAST, STALLED_STEPS};
use crate::pace::{Eta, Pace, Planned, StepParts};
use crate::run_dir::RunDir;
use crate::series::Bucket;
use crate::step::{Eval, Step};
use crate::tailer::{EventTailer, Limit};

/// The weight of the newest loss in the moving average over about the last 20 steps.
const EMA_WEIGHT: f64 = 0.1;
/// The share by which a loss on the eval set that is still falling is lower than the best one before.
const CLEAR_GAIN: f64 = 0.02;
const KEPT_SAMPLES: usize = 32;
const KEPT_WARNINGS: usize = 64;
const KEPT_ATTEMPTS: usize = 64;
const KEPT_CHECKPOINTS: usize = 1024;
const KEPT_BESTS: usize = 1024;
const KEPT_HEAD_EVALS: usize = 256;
/// The number of bytes that a glance reads at the end of the last attempt.
const GLANCE_BYTES: u64 = 512 * 1024;

/// One attempt.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Attempt {
    /// The number, from 1.
    pub number: u32,
    /// The time of its first event, in microseconds since the Unix epoch.
    pub started_us: u64,
    /// Its first event.
    pub started: RunStarted,
    /// Its last step.
    pub last_step: u64,
    /// Its last event, if it ended by itself.
    pub finished: Option<RunFinished>,
}

/// A logged event, and whether a later attempt replaced it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Seen<T> {
    /// The attempt that logged it.
    pub attempt: u32,
    /// The time in microseconds since the Unix epoch.
    pub time_us: u64,
    /// Whether it belongs to steps that a later attempt repeated.
    pub discarded: bool,
    /// The event.
    #[serde(flatten)]
    pub what: T,
}

/// When the last event that shows work was read, by a clock that nobody sets. Views of the same events are
/// equal and have the same text, whenever they were read.
#[derive(Clone, Copy, Default)]
struct Heard(Option<Instant>);

impl fmt::Debug for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Heard")
    }
}

impl PartialEq for Heard {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The phase in which the MTP head is trained. Each of its steps is a progress event of this name.
const HEAD_PHASE: &str = "mtp";

/// Everything that watchers show, computed from events.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunView {
    /// The attempts, oldest first; only the newest few are kept.
    pub attempts: VecDeque<Attempt>,
    /// Current phase.
    pub phase: Option<Phase>,
    /// The progress of the phase, if it is not counted in steps.
    pub progress: Option<Progress>,
    /// The last step.
    pub last_step: Option<Step>,
    /// The moving average of the training loss, without values that are not finite.
    pub loss_ema: Option<f64>,
    /// The evaluation before the first step: the base model's loss, with which the others are compared. It is
    /// never the best one, because it belongs to no trained weights.
    pub base_eval: Option<Eval>,
    /// Last evaluation of trained weights.
    pub last_eval: Option<Eval>,
    /// Last comparison of the losses with and without fp8.
    pub fp8_loss: Option<Fp8Loss>,
    /// The newest evaluations of the MTP head while it is trained, ascending by step.
    pub head_evals: VecDeque<HeadEval>,
    /// Evaluations that were the best so far, in order; the last one is the best of all.
    bests: Vec<Eval>,
    /// The curves of the steps that count.
    pub charts: Charts,
    /// The curves of the steps that a later attempt repeated, which are drawn in grey.
    pub discarded: Charts,
    /// The newest sample of the machine.
    pub device: Option<DeviceSample>,
    /// Committed checkpoints whose steps count, oldest first. Old ones may have been deleted since.
    pub checkpoints: VecDeque<CheckpointCommitted>,
    /// Newest generations.
    pub samples: VecDeque<Seen<Sample>>,
    /// Newest warnings.
    pub warnings: VecDeque<Seen<Warning>>,
    /// The number of all warnings.
    pub warning_count: u64,
    /// The last request that was carried out.
    pub last_control: Option<ControlApplied>,
    /// Who trains, in a run of several ranks that goes on without those that are gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<Members>,
    /// The most ranks that a swarm had, in all attempts; 0 without one.
    #[serde(skip)]
    pub most_ranks: usize,
    /// How the ranks of a run of several did when they were last seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member_samples: Option<MemberSamples>,
    /// The number of events whose kind is unknown to this sparktune.
    pub unknown_events: u64,
    /// Time of the last event.
    pub last_event_us: Option<u64>,
    /// The time of the last event that shows work. Samples of the machine and of the ranks do not count,
    /// because a thread may write them while training hangs.
    pub last_work_us: Option<u64>,
    #[serde(skip)]
    heard: Heard,
    #[serde(skip)]
    pace: Pace,
    /// The steps of the MTP head.
    #[serde(skip)]
    head_pace: Pace,
    /// The number of steps in which the MTP head is trained, if the trainer logged it.
    #[serde(skip)]
    head_steps: Option<u64>,
    #[serde(skip)]
    position: (u32, u64),
}

impl RunView {
    /// Applies one event. Events that were applied before are ignored.
    pub fn apply(&mut self, event: &Event) {
        let position = (event.attempt, event.seq);
        if position <= self.position {
            return;
        }
        if event.attempt > self.position.0 {
            self.begin_attempt(event);
        }
        self.position = position;
        self.last_event_us = Some(event.time_us);
        if !matches!(event.kind, Kind::DeviceSample(_) | Kind::MemberSamples(_)) {
            self.last_work_us = Some(event.time_us);
            self.heard = Heard(Some(Instant::now()));
        }
        match &event.kind {
            Kind::RunStarted(started) => self.run_started(started),
            Kind::Phase(phase) => {
                // Time between two steps before this event does not belong to a step.
                if phase.phase == "train" {
                    self.pace.begin_again();
                }
                self.phase = Some(phase.clone());
                self.progress = None;
            }
            Kind::Progress(progress) => {
                if progress.phase == HEAD_PHASE {
                    let step = Step { step: progress.done, ..Step::default() };
                    self.head_pace.step(&step, event.time_us, progress.total);
                    self.head_steps = progress.total;
                    // What follows the last step is none.
                    if progress.total == Some(progress.done) {
                        self.head_pace.begin_again();
                    }
                }
                self.progress = Some(progress.clone());
            }
            Kind::Step(step) => {
                // That of an evaluation or of samples between the steps is over.
                self.progress = None;
                self.step(step, event.time_us);
            }
            Kind::Eval(eval) => {
                self.progress = None;
                self.eval(eval);
            }
            Kind::Fp8Loss(losses) => self.fp8_loss = Some(losses.clone()),
            Kind::HeadEval(eval) => {
                // A later attempt repeats the steps after its checkpoint.
                self.head_evals.retain(|earlier| earlier.step < eval.step);
                self.charts.head_eval(eval, &mut self.discarded);
                keep(&mut self.head_evals, eval.clone(), KEPT_HEAD_EVALS);
            }
            Kind::Sample(sample) => {
                // What the base answered is what all others are compared with.
                if self.samples.len() >= KEPT_SAMPLES
                    && let Some(oldest) = self.samples.iter().position(|kept| kept.what.step > 0)
                {
                    self.samples.remove(oldest);
                }
                keep(&mut self.samples, seen(event, sample), KEPT_SAMPLES);
            }
            Kind::DeviceSample(sample) => {
                self.charts.reading(self.steps_done(), sample);
                self.device = Some(sample.clone());
            }
            Kind::CheckpointCommitted(checkpoint) => {
                self.checkpoints.retain(|c| c.step != checkpoint.step);
                keep(&mut self.checkpoints, checkpoint.clone(), KEPT_CHECKPOINTS);
            }
            Kind::ControlApplied(control) => self.last_control = Some(control.clone()),
            Kind::Members(members) => {
                self.most_ranks = self.most_ranks.max(members.members.len());
                self.members = Some(members.clone());
            }
            Kind::MemberSamples(samples) => self.member_samples = Some(samples.clone()),
            Kind::Warning(warning) => {
                self.warning_count += 1;
                keep(&mut self.warnings, seen(event, warning), KEPT_WARNINGS);
            }
            Kind::RunFinished(finished) => {
                if let Some(attempt) = self.attempts.back_mut() {
                    attempt.finished = Some(finished.clone());
                }
            }
            Kind::Unknown(_) => self.unknown_events += 1,
        }
    }

    fn begin_attempt(&mut self, event: &Event) {
        let attempt = Attempt { number: event.attempt, started_us: event.time_us, ..Attempt::default() };
        keep(&mut self.attempts, attempt, KEPT_ATTEMPTS);
        self.pace.begin_again();
        self.head_pace.begin_again();
        self.members = None;
        self.member_samples = None;
        self.phase = None;
        self.progress = None;
    }

    fn run_started(&mut self, started: &RunStarted) {
        self.discard_after(started.resumed_from_step.unwrap_or(0));
        if let Some(attempt) = self.attempts.back_mut() {
            attempt.started = started.clone();
        }
    }

    /// A new attempt continues from `step`, so later steps will be repeated.
    fn discard_after(&mut self, step: u64) {
        self.charts.discard_after(step, &mut self.discarded);
        self.bests.retain(|eval| eval.step <= step);
        self.checkpoints.retain(|checkpoint| checkpoint.step <= step);
        for sample in self.samples.iter_mut().filter(|s| s.what.step > step) {
            sample.discarded = true;
        }
        for warning in self.warnings.iter_mut().filter(|w| w.what.step.is_some_and(|s| s > step)) {
            warning.discarded = true;
        }
        if self.last_eval.as_ref().is_some_and(|eval| eval.step > step) {
            self.last_eval = self.bests.last().cloned();
        }
        if self.last_step.as_ref().is_some_and(|last| last.step > step) {
            self.last_step = None;
            self.loss_ema = self.charts.loss.buckets().last().and_then(Bucket::mean);
        }
    }

    fn step(&mut self, step: &Step, time_us: u64) {
        self.charts.step(step);
        if step.loss_nats.is_finite() {
            let ema = self.loss_ema.unwrap_or(step.loss_nats);
            self.loss_ema = Some(ema + EMA_WEIGHT * (step.loss_nats - ema));
        }
        self.pace.step(step, time_us, self.total_steps());
        if let Some(attempt) = self.attempts.back_mut() {
            attempt.last_step = step.step;
        }
        self.last_step = Some(step.clone());
    }

    fn eval(&mut self, eval: &Eval) {
        if eval.step == 0 {
            self.base_eval = Some(eval.clone());
            return;
        }
        self.charts.eval_loss.push(eval.step, eval.loss_nats);
        let better = self.bests.last().is_none_or(|best| eval.loss_nats < best.loss_nats);
        if eval.loss_nats.is_finite() && better {
            self.bests.push(eval.clone());
            if self.bests.len() > KEPT_BESTS {
                // Thins out the older half; only a resume from that far back would notice it.
                let mut n = 0;
                self.bests.retain(|_| {
                    n += 1;
                    n > KEPT_BESTS / 2 || n % 2 == 1
                });
            }
        }
        self.last_eval = Some(eval.clone());
    }

    /// Returns the evaluation with the lowest loss.
    pub fn best_eval(&self) -> Option<&Eval> {
        self.bests.last()
    }

    /// Returns the step and the loss of the best evaluation, as the trainer knew it at its end, otherwise of
    /// the best one that was read.
    pub fn best(&self) -> Option<(u64, f64)> {
        let logged = self.finished().and_then(|finished| finished.best_step.zip(finished.best_eval_nats));
        logged.or_else(|| self.best_eval().map(|eval| (eval.step, eval.loss_nats)))
    }

    /// Returns whether the loss on the eval set was still falling when it was last computed: it was clearly
    /// lower than ever before. The base model's does not count, because the first steps gain much in any run.
    pub fn is_still_falling(&self) -> bool {
        let [.., before, last] = &self.bests[..] else { return false };
        let is_newest = self.last_eval.as_ref().is_some_and(|eval| eval.step == last.step);
        is_newest && last.loss_nats < before.loss_nats * (1.0 - CLEAR_GAIN)
    }

    /// Returns whether the run started from the weights of another run or of an adapter.
    pub fn has_parent(&self) -> bool {
        self.attempts.back().is_some_and(|attempt| attempt.started.from.is_some())
    }

    /// Returns the step of the weights that the outputs contain, if the newest attempt logged it.
    pub fn exported_step(&self) -> Option<u64> {
        self.finished()?.exported_step
    }

    /// Returns the number of steps done, including those before a resume.
    pub fn steps_done(&self) -> u64 {
        let resumed = self.attempts.back().and_then(|a| a.started.resumed_from_step);
        self.last_step.as_ref().map(|s| s.step).or(resumed).unwrap_or(0)
    }

    /// Returns the number of steps in the whole run, if the trainer logged it.
    pub fn total_steps(&self) -> Option<u64> {
        self.attempts.iter().rev().find_map(|a| a.started.total_steps)
    }

    /// Returns the last event of the newest attempt, if it ended by itself.
    pub fn finished(&self) -> Option<&RunFinished> {
        self.attempts.back()?.finished.as_ref()
    }

    /// Returns the outcome of the newest attempt, if it ended by itself.
    pub fn outcome(&self) -> Option<Outcome> {
        self.finished().map(|finished| finished.outcome)
    }

    /// Returns the peak memory of training in bytes, over all attempts that ended by themselves and measured
    /// it.
    pub fn mem_peak_bytes(&self) -> Option<u64> {
        self.attempts.iter().filter_map(|attempt| attempt.finished.as_ref()?.mem_peak_bytes).max()
    }

    /// Returns the tokens per second over the newest steps of this attempt, as measured by the trainer
    /// without evaluations; before its first step, those of the previous attempt.
    pub fn tokens_per_s(&self) -> Option<f64> {
        let before = || self.charts.tokens_per_s.buckets().last().and_then(Bucket::mean);
        self.pace.tokens_per_s().or_else(before)
    }

    /// Takes what the run's plan says of the time, so that the remaining time includes what follows the
    /// steps.
    pub fn expect(&mut self, planned: Planned) {
        self.pace.expect(planned);
        self.head_pace.expect(Planned { head_s: 0.0, ..planned });
    }

    /// Returns the remaining time; `None` before the second step of an attempt, between the last step and the
    /// second one of the MTP head, while outputs are written, after the end, and when the total is unknown.
    /// While the head is trained, the steps are those of the head.
    pub fn eta(&self) -> Option<Eta> {
        if self.finished().is_some() {
            return None;
        }
        let of_steps = || self.pace.eta(self.total_steps()?);
        let of_head = || self.head_pace.eta(self.head_steps?);
        match self.phase.as_ref().map_or("", |phase| &phase.phase) {
            "" | "train" => of_steps(),
            HEAD_PHASE => of_head(),
            // How long this takes is only planned, and not how much of it is done.
            "export" => None,
            // Matrix products are measured before and between the steps, of the text model and of the head.
            _ => of_head().or_else(|| of_steps().filter(|eta| eta.steps_left > 0)),
        }
    }

    /// Returns how the time of a step is spent, over the recent steps of this attempt.
    pub fn step_parts(&self) -> Option<StepParts> {
        self.pace.parts()
    }

    /// Returns the best evaluations, checkpoints and resumes whose steps count, ascending by step.
    pub fn marks(&self) -> Vec<Mark> {
        let bests = self.bests.iter().map(|e| Mark::Best { step: e.step, loss_nats: e.loss_nats });
        let checkpoints = self.checkpoints.iter().map(|c| Mark::Checkpoint { step: c.step, best: c.best });
        let resumed = self.attempts.iter().filter_map(|a| {
            a.started.resumed_from_step.map(|step| Mark::Resumed { step, attempt: a.number })
        });
        let mut marks: Vec<Mark> = bests.chain(checkpoints).chain(resumed).collect();
        marks.sort_by_key(Mark::step);
        marks
    }

    /// Returns the state of the run, from this view and the lease.
    ///
    /// # Errors
    /// [`crate::Error::Io`] when the lease cannot be probed.
    pub fn liveness(&self, run: &RunDir) -> Result<Liveness> {
        if matches!(run.events().try_exists(), Ok(false)) {
            return Ok(Liveness::Gone);
        }
        let held = Lease::is_held(run)?;
        let holder = if held { Lease::holder_of(run) } else { Holder::default() };
        let silent = self.silence(&holder, now_us(), &SinceBoot::now(), self.heard.0.map(|at| at.elapsed()));
        Ok(Liveness::judge(held, self.last_event_us.is_some(), self.outcome(), silent, self.patience()))
    }

    /// Returns the time since the last sign of work of a trainer that took the lease as `holder` says.
    ///
    /// By the time of day it is too short, or nothing, after that was set back. On the trainer's machine the
    /// clock since its start tells the same, and too little only after the time of day was set forward.
    /// On another machine, who has read the log for longer knows better: `unheard` is the time since the
    /// last sign was read. None of the three is too long while nobody sets a clock forward.
    fn silence(
        &self,
        holder: &Holder,
        now_us: u64,
        since_boot: &SinceBoot,
        unheard: Option<Duration>,
    ) -> Duration {
        // A new attempt must not count as silent because the previous one ended long ago.
        let last_us = self.last_work_us.unwrap_or(0).max(holder.started_us);
        let until = |now_us: u64| {
            Duration::from_micros(if last_us == 0 { 0 } else { now_us.saturating_sub(last_us) })
        };
        let undisturbed = holder.undisturbed_us(since_boot).map_or(Duration::ZERO, until);
        let is_its_own = self.attempts.back().is_some_and(|attempt| attempt.started_us >= holder.started_us);
        let unheard = unheard.filter(|_| is_its_own && self.finished().is_none()).unwrap_or_default();
        until(now_us).max(undisturbed).max(unheard)
    }

    /// Returns the time without a sign of work after which the trainer counts as stalled: ten step times
    /// while it trains.
    pub fn patience(&self) -> Duration {
        let step = match self.phase.as_ref().map_or("", |phase| &phase.phase) {
            "train" => self.pace.step_time(),
            HEAD_PHASE => self.head_pace.step_time(),
            _ => None,
        };
        step.map_or(STALLED_AFTER, |step| (step * STALLED_STEPS).max(STALLED_AT_LEAST))
    }

    /// Reads everything logged so far.
    ///
    /// # Errors
    /// The same as for [`EventTailer::poll`].
    pub fn replay(run: &RunDir) -> Result<RunView> {
        let mut view = RunView::default();
        view.catch_up(&mut EventTailer::new(run))?;
        Ok(view)
    }

    /// Reads a run's beginning and end, for lists, in constant time. In a long run, curves and averages cover
    /// only the end, `best_eval` may miss an earlier one, and `base_eval` may be missing.
    ///
    /// # Errors
    /// The same as for [`EventTailer::poll`].
    pub fn glance(run: &RunDir) -> Result<RunView> {
        let mut view = RunView::default();
        let (mut first, mut room) = (None, GLANCE_BYTES);
        // If a resume has just begun, the previous attempts have the steps.
        for attempt in run.attempts()?.into_iter().rev() {
            first = Some(attempt);
            let bytes = fs::metadata(run.event_file(attempt)).map_or(0, |file| file.len());
            if bytes >= room {
                break;
            }
            room -= bytes;
        }
        let Some(first) = first else { return Ok(view) };
        let mut tailer = EventTailer::new(run);
        tailer.begin(first);
        // The first events describe the attempt.
        let head = tailer.poll_with(Limit { lines: 8, ..Limit::default() }, |event, _| view.apply(&event))?;
        if !head.at_end {
            tailer.skip_to_last(first, room);
            view.catch_up(&mut tailer)?;
        }
        Ok(view)
    }

    fn catch_up(&mut self, tailer: &mut EventTailer) -> Result<()> {
        while !tailer.poll_with(Limit::NONE, |event, _| self.apply(&event))?.at_end {}
        Ok(())
    }
}

fn seen<T: Clone>(event: &Event, what: &T) -> Seen<T> {
    Seen { attempt: event.attempt, time_us: event.time_us, discarded: false, what: what.clone() }
}

fn keep<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
mod tests;
