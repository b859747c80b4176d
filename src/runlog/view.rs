//! The one fold over events: live view, replay, plain lines, resume summary and tests all see a run through it.
//!
//! Pure: no clock, no file. Applying an event twice changes nothing, and memory stays bounded for any number of steps.
//! A later attempt supersedes the steps after the one it resumed from: their stretch moves to `discarded`, and best,
//! checkpoints and averages fall back to what they were.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use crate::error::Result;
use crate::event::{
    CheckpointCommitted, ControlApplied, DeviceSample, Eval, Event, Kind, Outcome, Phase, Progress,
    RunFinished, RunStarted, Sample, Step, Warning,
};
use crate::lease::Lease;
use crate::liveness::Liveness;
use crate::now_us;
use crate::run_dir::RunDir;
use crate::series::Series;
use crate::tailer::{EventTailer, Limit};

/// Weight of the newest loss in the moving average: about the last 20 steps.
const EMA_WEIGHT: f64 = 0.1;
/// Steps over which rates and the remaining time are measured.
const RATE_STEPS: usize = 200;
const KEPT_SAMPLES: usize = 32;
const KEPT_WARNINGS: usize = 64;
const KEPT_ATTEMPTS: usize = 64;
const KEPT_CHECKPOINTS: usize = 64;
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
    /// What it said about itself.
    pub started: RunStarted,
    /// Its last step.
    pub last_step: u64,
    /// How it ended, if it said so.
    pub finished: Option<RunFinished>,
}

/// The curves of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Charts {
    /// Training loss, nats per target token.
    pub loss: Series,
    /// Eval loss.
    pub eval_loss: Series,
    /// Learning rate.
    pub lr: Series,
    /// Gradient norm before clipping.
    pub grad_norm: Series,
    /// Tokens per second.
    pub tokens_per_s: Series,
    /// Memory used, bytes.
    pub mem_used_bytes: Series,
}

impl Charts {
    fn each(&mut self) -> [&mut Series; 6] {
        let Charts { loss, eval_loss, lr, grad_norm, tokens_per_s, mem_used_bytes } = self;
        [loss, eval_loss, lr, grad_norm, tokens_per_s, mem_used_bytes]
    }
}

/// Time left, with how it was computed: `steps_left × ms_per_step`, the latter measured over the last `over_steps` steps
/// by the clock, so evaluations and checkpoints between them are included.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Eta {
    /// Seconds left.
    pub seconds: f64,
    /// Steps left.
    pub steps_left: u64,
    /// Measured time per step.
    pub ms_per_step: f64,
    /// Steps the measurement spans.
    pub over_steps: u64,
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
    /// Evaluations that were the best so far, in order; the last one is the best.
    bests: Vec<Eval>,
    /// Curves of the steps that count.
    pub charts: Charts,
    /// Curves of the steps that a later attempt did again, to be drawn greyed.
    pub discarded: Charts,
    /// Newest reading of the machine.
    pub device: Option<DeviceSample>,
    /// Committed checkpoints, oldest first, as far as their steps count. Retention may have deleted old ones.
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
    /// Time of the last event that shows work: all but device samples, which a thread of their own may write while
    /// training hangs.
    pub last_work_us: Option<u64>,
    /// (step, time) of recent steps of this attempt.
    #[serde(skip)]
    recent: VecDeque<(u64, u64)>,
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
                self.phase = Some(phase.clone());
                self.progress = None;
            }
            Kind::Progress(progress) => self.progress = Some(progress.clone()),
            Kind::Step(step) => self.step(step, event.time_us),
            Kind::Eval(eval) => self.eval(eval),
            Kind::Sample(sample) => keep(&mut self.samples, seen(event, sample), KEPT_SAMPLES),
            Kind::DeviceSample(sample) => self.device = Some(sample.clone()),
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
        self.recent.clear();
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
        for (kept, discarded) in self.charts.each().into_iter().zip(self.discarded.each()) {
            discarded.absorb(kept.cut_after(step));
        }
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
            self.loss_ema = self.charts.loss.buckets().last().and_then(crate::series::Bucket::mean);
        }
    }

    fn step(&mut self, step: &Step, time_us: u64) {
        let at = step.step;
        self.charts.loss.push(at, step.loss_nats);
        let Charts { lr, grad_norm, tokens_per_s, mem_used_bytes, .. } = &mut self.charts;
        #[allow(clippy::cast_precision_loss)] // bytes on a chart
        let mem = step.mem_used_bytes.map(|bytes| bytes as f64);
        for (series, value) in [
            (lr, step.lr),
            (grad_norm, step.grad_norm),
            (tokens_per_s, step.tokens_per_s),
            (mem_used_bytes, mem),
        ] {
            if let Some(value) = value {
                series.push(at, value);
            }
        }
        if step.loss_nats.is_finite() {
            let ema = self.loss_ema.unwrap_or(step.loss_nats);
            self.loss_ema = Some(ema + EMA_WEIGHT * (step.loss_nats - ema));
        }
        keep(&mut self.recent, (at, time_us), RATE_STEPS + 1);
        if let Some(attempt) = self.attempts.back_mut() {
            attempt.last_step = at;
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

    /// Mean tokens per second over the recent steps, as the trainer measured them (evaluations not included).
    pub fn tokens_per_s(&self) -> Option<f64> {
        let bucket = self.charts.tokens_per_s.buckets().last()?;
        self.last_step.as_ref().and_then(|s| s.tokens_per_s).or(bucket.mean())
    }

    /// Time left; `None` before the second step of an attempt, after the end, and when the total is unknown.
    pub fn eta(&self) -> Option<Eta> {
        let (&(first, from_us), &(last, to_us)) = (self.recent.front()?, self.recent.back()?);
        let steps_left = self.total_steps()?.saturating_sub(last);
        let over_steps = last.saturating_sub(first);
        if over_steps == 0 || self.finished().is_some() {
            return None;
        }
        #[allow(clippy::cast_precision_loss)]
        let (ms_per_step, left) =
            (to_us.saturating_sub(from_us) as f64 / 1e3 / over_steps as f64, steps_left as f64);
        Some(Eta { seconds: left * ms_per_step / 1e3, steps_left, ms_per_step, over_steps })
    }

    /// For how long no work was logged, at the time `now_us`.
    pub fn silent_for(&self, now_us: u64) -> Option<Duration> {
        self.last_work_us.map(|last| Duration::from_micros(now_us.saturating_sub(last)))
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

    /// The view of a run's beginning and end, for lists: constant time however long the run is. In a long run,
    /// curves and averages cover only the end, and `best_eval` may miss an earlier one.
    ///
    /// # Errors
    /// As [`EventTailer::poll`].
    pub fn glance(run: &RunDir) -> Result<RunView> {
        let mut view = RunView::default();
        let Some(last) = run.attempts()?.pop() else { return Ok(view) };
        let mut tailer = EventTailer::new(run);
        tailer.begin(last);
        // The first events say what the attempt is.
        let head = tailer.poll_with(Limit { lines: 8, ..Limit::default() }, |event, _| view.apply(&event))?;
        if !head.at_end {
            tailer.skip_to_last(last, GLANCE_BYTES);
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
mod tests {
    use super::*;
    use crate::writer::EventWriter;

    struct Log {
        view: RunView,
        attempt: u32,
        seq: u64,
    }

    impl Log {
        fn new() -> Self {
            Log { view: RunView::default(), attempt: 0, seq: 0 }
        }
        fn start(&mut self, resumed_from_step: Option<u64>) {
            self.attempt += 1;
            self.seq = 0;
            self.emit(Kind::RunStarted(RunStarted {
                total_steps: Some(1000),
                resumed_from_step,
                ..RunStarted::default()
            }));
        }
        fn emit(&mut self, kind: Kind) {
            self.seq += 1;
            // One event per second.
            let time_us = 1_000_000 * (u64::from(self.attempt) * 10_000 + self.seq);
            let event = Event { attempt: self.attempt, seq: self.seq, time_us, kind };
            self.view.apply(&event);
            // As text, in which NaN equals NaN.
            let before = format!("{:?}", self.view);
            self.view.apply(&event);
            assert_eq!(format!("{:?}", self.view), before, "applying twice changes nothing");
        }
        fn step(&mut self, step: u64, loss_nats: f64) {
            self.emit(Kind::Step(Step { step, loss_nats, tokens_per_s: Some(500.0), ..Step::default() }));
        }
        fn eval(&mut self, step: u64, loss_nats: f64) {
            self.emit(Kind::Eval(Eval { step, loss_nats, ..Eval::default() }));
        }
    }

    #[test]
    fn the_fold_knows_where_a_run_stands() {
        let mut log = Log::new();
        assert_eq!(log.view.eta(), None);
        log.start(None);
        log.emit(Kind::Phase(Phase { phase: "train".into(), detail: None }));
        log.step(1, 2.0);
        assert_eq!(log.view.eta(), None, "one step is no rate");
        log.step(2, 1.0);
        assert_eq!(log.view.steps_done(), 2);
        assert_eq!(log.view.total_steps(), Some(1000));
        assert!((log.view.loss_ema.unwrap() - 1.9).abs() < 1e-12);
        assert_eq!(
            log.view.eta(),
            Some(Eta { seconds: 998.0, steps_left: 998, ms_per_step: 1000.0, over_steps: 1 })
        );
        log.step(3, f64::NAN);
        assert!((log.view.loss_ema.unwrap() - 1.9).abs() < 1e-12, "NaN does not spoil the average");
        log.emit(Kind::RunFinished(RunFinished { outcome: Outcome::Stopped, ..RunFinished::default() }));
        assert_eq!((log.view.outcome(), log.view.eta()), (Some(Outcome::Stopped), None));
    }

    #[test]
    fn a_resumed_attempt_supersedes_the_steps_after_its_checkpoint() {
        let mut log = Log::new();
        log.start(None);
        for step in 1..=10 {
            log.step(step, 2.0);
            if step % 2 == 0 {
                log.eval(step, 2.0 - step as f64 / 10.0);
                log.emit(Kind::CheckpointCommitted(CheckpointCommitted { step, ..Default::default() }));
                log.emit(Kind::Sample(Sample { step, ..Sample::default() }));
            }
        }
        assert_eq!(log.view.best_eval().unwrap().step, 10);
        log.start(Some(4));
        let view = &log.view;
        assert_eq!(view.steps_done(), 4);
        assert_eq!(view.best_eval().unwrap().step, 4);
        assert_eq!(view.checkpoints.back().unwrap().step, 4);
        assert_eq!(view.charts.loss.buckets().last().unwrap().last_step, 4);
        let discarded: Vec<u64> = view.discarded.loss.buckets().iter().map(|b| b.first_step).collect();
        assert_eq!(discarded, [5, 6, 7, 8, 9, 10]);
        assert_eq!(view.samples.iter().filter(|s| s.discarded).count(), 3);
        assert_eq!((view.attempts.len(), view.attempts[0].last_step), (2, 10));
        log.step(5, 7.0);
        assert_eq!(log.view.steps_done(), 5);
        assert_eq!(log.view.charts.loss.buckets().last().unwrap().max, 7.0);
        log.start(None);
        assert_eq!((log.view.steps_done(), log.view.charts.loss.is_empty()), (0, true));
    }

    #[test]
    fn a_million_steps_and_many_attempts_stay_small() {
        let mut view = RunView::default();
        let (mut attempt, mut seq) = (1, 0);
        for step in 1..=1_000_000 {
            if step % 10_000 == 0 {
                attempt += 1;
                seq = 1;
                let started = RunStarted { resumed_from_step: Some(step - 5), ..RunStarted::default() };
                view.apply(&Event { attempt, seq, time_us: step, kind: Kind::RunStarted(started) });
            }
            for kind in [
                Kind::Step(Step { step, loss_nats: 1.0, grad_norm: Some(1.0), ..Step::default() }),
                Kind::Eval(Eval { step, loss_nats: 1.0 / step as f64, ..Eval::default() }),
                Kind::Warning(Warning { message: "hot".into(), step: None }),
            ] {
                seq += 1;
                view.apply(&Event { attempt, seq, time_us: step, kind });
            }
        }
        assert_eq!(view.best_eval().unwrap().step, 1_000_000);
        assert_eq!(view.warning_count, 1_000_000);
        assert!(view.bests.len() <= KEPT_BESTS && view.attempts.len() <= KEPT_ATTEMPTS);
        assert!(serde_json::to_vec(&view).unwrap().len() < 2_000_000);
    }

    #[test]
    fn a_glance_at_a_long_run_agrees_with_its_replay_about_where_it_stands() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path().join("r")).unwrap();
        assert_eq!(RunView::glance(&run).unwrap(), RunView::default());
        for (from, to) in [(1, 40), (41, 12_000)] {
            let lease = Lease::acquire(&run).unwrap();
            let writer = EventWriter::open(&lease).unwrap();
            let resumed_from_step = (from > 1).then_some(from - 1);
            writer.emit(Kind::RunStarted(RunStarted {
                total_steps: Some(20_000),
                resumed_from_step,
                ..RunStarted::default()
            }));
            for step in from..=to {
                writer.emit(Kind::Step(Step { step, loss_nats: 1.5, ..Step::default() }));
            }
        }
        let (glance, replay) = (RunView::glance(&run).unwrap(), RunView::replay(&run).unwrap());
        for view in [&glance, &replay] {
            assert_eq!((view.steps_done(), view.total_steps()), (12_000, Some(20_000)));
            assert_eq!(view.last_step.as_ref().unwrap().loss_nats, 1.5);
            assert_eq!(view.liveness(&run).unwrap(), Liveness::Crashed);
        }
        assert_eq!(replay.attempts.len(), 2);
    }

    #[test]
    fn device_samples_alone_are_no_sign_of_work() {
        let mut log = Log::new();
        log.start(None);
        let work = log.view.last_work_us;
        log.emit(Kind::DeviceSample(DeviceSample::default()));
        assert_eq!(log.view.last_work_us, work);
        assert!(log.view.last_event_us > work);
    }
}
