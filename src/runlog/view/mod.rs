//! The one fold over events: live view, replay, plain lines, resume summary and tests all see a run through
//! it.
//!
//! Pure: no clock, no file. Applying an event twice changes nothing, and memory stays bounded for any number
//! of steps. A later attempt supersedes the steps after the one it resumed from: their stretch moves to
//! `discarded`, and best, checkpoints and averages fall back to what they were.

use std::collections::VecDeque;
use std::fs;
use std::time::Duration;

use serde::Serialize;

use crate::charts::{Charts, Mark};
use crate::clock::now_us;
use crate::error::Result;
use crate::event::{
    CheckpointCommitted, ControlApplied, DeviceSample, Event, Fp8Loss, Kind, Outcome, Phase, Progress,
    RunFinished, RunStarted, Sample, Warning,
};
use crate::lease::Lease;
use crate::liveness::Liveness;
use crate::pace::{Eta, Pace, StepParts};
use crate::run_dir::RunDir;
use crate::series::Bucket;
use crate::step::{Eval, Step};
use crate::tailer::{EventTailer, Limit};

/// Weight of the newest loss in the moving average: about the last 20 steps.
const EMA_WEIGHT: f64 = 0.1;
const KEPT_SAMPLES: usize = 32;
const KEPT_WARNINGS: usize = 64;
const KEPT_ATTEMPTS: usize = 64;
const KEPT_CHECKPOINTS: usize = 1024;
const KEPT_BESTS: usize = 1024;
/// A glance reads this much of the end of the last attempt.
const GLANCE_BYTES: u64 = 512 * 1024;

/// One start of the trainer.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Attempt {
    /// From 1.
    pub number: u32,
    /// Time of its first event, microseconds since the Unix epoch.
    pub started_us: u64,
    /// Its note about itself.
    pub started: RunStarted,
    /// Its last step.
    pub last_step: u64,
    /// How it ended, if it said so.
    pub finished: Option<RunFinished>,
}

/// Something that was logged, and whether a later attempt superseded it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Seen<T> {
    /// Attempt that logged it.
    pub attempt: u32,
    /// When, microseconds since the Unix epoch.
    pub time_us: u64,
    /// It belongs to steps that a later attempt did again.
    pub discarded: bool,
    /// The event.
    #[serde(flatten)]
    pub what: T,
}

/// Everything a watcher shows, folded from events.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunView {
    /// Attempts so far, oldest first; only the newest few are kept.
    pub attempts: VecDeque<Attempt>,
    /// Current phase.
    pub phase: Option<Phase>,
    /// How far the phase is, where it is not counted in steps.
    pub progress: Option<Progress>,
    /// The last step.
    pub last_step: Option<Step>,
    /// Moving average of the training loss; values that are not finite are left out.
    pub loss_ema: Option<f64>,
    /// Last evaluation.
    pub last_eval: Option<Eval>,
    /// Last comparison of the losses with and without fp8.
    pub fp8_loss: Option<Fp8Loss>,
    /// Evaluations that were the best so far, in order; the last one is the best.
    bests: Vec<Eval>,
    /// Curves of the steps that count.
    pub charts: Charts,
    /// Curves of the steps that a later attempt did again, to be drawn greyed.
    pub discarded: Charts,
    /// Newest reading of the machine.
    pub device: Option<DeviceSample>,
    /// Committed checkpoints, oldest first, as far as their steps count. Retention may have deleted old
    /// ones.
    pub checkpoints: VecDeque<CheckpointCommitted>,
    /// Newest generations.
    pub samples: VecDeque<Seen<Sample>>,
    /// Newest warnings.
    pub warnings: VecDeque<Seen<Warning>>,
    /// All warnings ever.
    pub warning_count: u64,
    /// The last request that was carried out.
    pub last_control: Option<ControlApplied>,
    /// Events of kinds this sparktune does not know.
    pub unknown_events: u64,
    /// Time of the last event.
    pub last_event_us: Option<u64>,
    /// Time of the last event that shows work: all but device samples, which a thread of their own may write
    /// while training hangs.
    pub last_work_us: Option<u64>,
    #[serde(skip)]
    pace: Pace,
    #[serde(skip)]
    position: (u32, u64),
}

impl RunView {
    /// Folds one event in. Events seen before are passed over.
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
        if !matches!(event.kind, Kind::DeviceSample(_)) {
            self.last_work_us = Some(event.time_us);
        }
        match &event.kind {
            Kind::RunStarted(started) => self.run_started(started),
            Kind::Phase(phase) => {
                // What went on between two steps before this is no step's time.
                if phase.phase == "train" {
                    self.pace = Pace::default();
                }
                self.phase = Some(phase.clone());
                self.progress = None;
            }
            Kind::Progress(progress) => self.progress = Some(progress.clone()),
            Kind::Step(step) => self.step(step, event.time_us),
            Kind::Eval(eval) => self.eval(eval),
            Kind::Fp8Loss(losses) => self.fp8_loss = Some(losses.clone()),
            Kind::Sample(sample) => keep(&mut self.samples, seen(event, sample), KEPT_SAMPLES),
            Kind::DeviceSample(sample) => {
                self.charts.reading(self.steps_done(), sample);
                self.device = Some(sample.clone());
            }
            Kind::CheckpointCommitted(checkpoint) => {
                self.checkpoints.retain(|c| c.step != checkpoint.step);
                keep(&mut self.checkpoints, checkpoint.clone(), KEPT_CHECKPOINTS);
            }
            Kind::ControlApplied(control) => self.last_control = Some(control.clone()),
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
        self.pace = Pace::default();
        self.phase = None;
        self.progress = None;
    }

    fn run_started(&mut self, started: &RunStarted) {
        self.discard_after(started.resumed_from_step.unwrap_or(0));
        if let Some(attempt) = self.attempts.back_mut() {
            attempt.started = started.clone();
        }
    }

    /// A new attempt continues from `step`: what came after it will be done again.
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
        self.charts.eval_loss.push(eval.step, eval.loss_nats);
        let better = self.bests.last().is_none_or(|best| eval.loss_nats < best.loss_nats);
        if eval.loss_nats.is_finite() && better {
            self.bests.push(eval.clone());
            if self.bests.len() > KEPT_BESTS {
                // Thin the older half: only a resume from that far back would see the difference.
                let mut n = 0;
                self.bests.retain(|_| {
                    n += 1;
                    n > KEPT_BESTS / 2 || n % 2 == 1
                });
            }
        }
        self.last_eval = Some(eval.clone());
    }

    /// The evaluation with the lowest loss.
    pub fn best_eval(&self) -> Option<&Eval> {
        self.bests.last()
    }

    /// Steps done, counting those before a resume.
    pub fn steps_done(&self) -> u64 {
        let resumed = self.attempts.back().and_then(|a| a.started.resumed_from_step);
        self.last_step.as_ref().map(|s| s.step).or(resumed).unwrap_or(0)
    }

    /// Steps of the whole run, when the trainer said so.
    pub fn total_steps(&self) -> Option<u64> {
        self.attempts.iter().rev().find_map(|a| a.started.total_steps)
    }

    /// How the newest attempt ended, if it said so.
    pub fn finished(&self) -> Option<&RunFinished> {
        self.attempts.back()?.finished.as_ref()
    }

    /// Outcome of the newest attempt, if it said so.
    pub fn outcome(&self) -> Option<Outcome> {
        self.finished().map(|finished| finished.outcome)
    }

    /// Most memory that training took, of all attempts that ended by themselves and measured it.
    pub fn mem_peak_bytes(&self) -> Option<u64> {
        self.attempts.iter().filter_map(|attempt| attempt.finished.as_ref()?.mem_peak_bytes).max()
    }

    /// Tokens per second over the newest steps of this attempt, as the trainer measured them (evaluations not
    /// included); before its first step, that of the steps before.
    pub fn tokens_per_s(&self) -> Option<f64> {
        let before = || self.charts.tokens_per_s.buckets().last().and_then(Bucket::mean);
        self.pace.tokens_per_s().or_else(before)
    }

    /// Time left; `None` before the second step of an attempt, after the end, and when the total is unknown.
    pub fn eta(&self) -> Option<Eta> {
        if self.finished().is_some() { None } else { self.pace.eta(self.total_steps()?) }
    }

    /// Where the time of a step goes, over the recent steps of this attempt.
    pub fn step_parts(&self) -> Option<StepParts> {
        self.pace.parts()
    }

    /// Best evaluations, checkpoints and resumes, as far as their steps count, ascending by step.
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

    /// Whether the run is alive, from this view and the lease.
    ///
    /// # Errors
    /// [`crate::Error::Io`] when the lease cannot be probed.
    pub fn liveness(&self, run: &RunDir) -> Result<Liveness> {
        if matches!(run.events().try_exists(), Ok(false)) {
            return Ok(Liveness::Gone);
        }
        let held = Lease::is_held(run)?;
        // An attempt that has just begun is not silent because the one before ended long ago.
        let started_us = if held { Lease::holder_of(run).started_us } else { 0 };
        let last_us = self.last_work_us.unwrap_or(0).max(started_us);
        let silent = Duration::from_micros(if last_us == 0 { 0 } else { now_us().saturating_sub(last_us) });
        Ok(Liveness::judge(held, self.last_event_us.is_some(), self.outcome(), silent))
    }

    /// The view of everything logged so far.
    ///
    /// # Errors
    /// As [`EventTailer::poll`].
    pub fn replay(run: &RunDir) -> Result<RunView> {
        let mut view = RunView::default();
        view.catch_up(&mut EventTailer::new(run))?;
        Ok(view)
    }

    /// The view of a run's beginning and end, for lists: constant time however long the run is. In a long
    /// run, curves and averages cover only the end, and `best_eval` may miss an earlier one.
    ///
    /// # Errors
    /// As [`EventTailer::poll`].
    pub fn glance(run: &RunDir) -> Result<RunView> {
        let mut view = RunView::default();
        let (mut first, mut room) = (None, GLANCE_BYTES);
        // A resume that has just begun leaves the telling to the attempts before it.
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
        // The first events say what the attempt is.
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
