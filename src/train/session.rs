//! One attempt of a run: its lease, events, requests and checkpoints, and what the machine is doing meanwhile.

use crate::TrainError;
use sparktune_plan::Plan;
use sparktune_runlog::{
    Action, Checkpoint, Checkpoints, ControlApplied, ControlInbox, DriftWatch, EventWriter, Kind, Lease,
    Phase, Progress, Request, RunDir, Step, Warning, now_us,
};
use sparktune_telemetry::Sampler;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the machine is looked at.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);

pub(crate) struct Session<'a> {
    pub(crate) run: &'a RunDir,
    pub(crate) plan: Plan,
    pub(crate) events: EventWriter,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) lease: Lease,
    inbox: ControlInbox,
    stop: &'a AtomicBool,
    sampler: Sampler,
    sampled: Option<Instant>,
    drift: DriftWatch,
}

/// What is asked of the loop between two steps.
#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) stop: bool,
    pub(crate) checkpoint: bool,
    requests: Vec<Request>,
    signal: bool,
}

impl<'a> Session<'a> {
    /// Takes the lease and opens the next attempt.
    pub(crate) fn open(run: &'a RunDir, stop: &'a AtomicBool) -> Result<Self, TrainError> {
        let lease = Lease::acquire(run)?;
        let plan = read_plan(run)?;
        let events = EventWriter::open(&lease)?;
        if plan.log.tensorboard {
            events.mirror_to_tensorboard(&lease);
        }
        let checkpoints = Checkpoints::new(run);
        let inbox = ControlInbox::new(&lease);
        Ok(Self {
            run,
            plan,
            events,
            checkpoints,
            lease,
            inbox,
            stop,
            sampler: Sampler::new(),
            sampled: None,
            drift: DriftWatch::new(),
        })
    }

    pub(crate) fn phase(&self, phase: &str, detail: impl Into<String>) {
        self.events.emit(Kind::Phase(Phase { phase: phase.into(), detail: Some(detail.into()) }));
    }

    pub(crate) fn progress(&self, phase: &str, done: u64, total: u64, unit: &str) {
        self.events.emit(Kind::Progress(Progress {
            phase: phase.into(),
            done,
            total: Some(total),
            unit: unit.into(),
        }));
    }

    pub(crate) fn warn(&self, message: impl Into<String>, step: Option<u64>) {
        self.events.emit(Kind::Warning(Warning { message: message.into(), step }));
    }

    /// Records how the machine is doing, every ten seconds at most.
    pub(crate) fn sample_machine(&mut self) {
        if self.sampled.is_none_or(|at| at.elapsed() >= SAMPLE_EVERY) {
            self.sampled = Some(Instant::now());
            let sample = self.sampler.sample();
            let slow = self.drift.reading(&sample, now_us());
            self.events.emit(Kind::DeviceSample(sample));
            slow.into_iter().for_each(|warning| self.events.emit(Kind::Warning(warning)));
        }
    }

    /// Records a step, and a warning when the steps have become slow.
    pub(crate) fn step(&mut self, step: Step) {
        let slow = self.drift.step(&step);
        self.events.emit(Kind::Step(step));
        slow.into_iter().for_each(|warning| self.events.emit(Kind::Warning(warning)));
    }

    /// Requests and signals that came in since the last look.
    pub(crate) fn asked(&self) -> Asked {
        let mut asked = Asked { signal: self.stop.swap(false, Ordering::SeqCst), ..Asked::default() };
        match self.inbox.poll() {
            Ok(incoming) => {
                incoming.ignored.into_iter().for_each(|line| self.warn(line, None));
                asked.requests = incoming.requests;
            }
            Err(error) => self.warn(error.to_string(), None),
        }
        asked.stop = asked.signal || asked.requests.iter().any(|request| request.action == Action::Stop);
        asked.checkpoint = asked.stop || !asked.requests.is_empty();
        asked
    }

    /// Says that what was asked is done.
    pub(crate) fn done(&self, asked: Asked, step: u64) {
        let applied = |id: &str, action: Action| {
            let action = action.as_str().to_owned();
            self.events.emit(Kind::ControlApplied(ControlApplied { id: id.to_owned(), action, step }));
        };
        if asked.signal {
            applied("signal", Action::Stop);
        }
        for request in asked.requests {
            applied(&request.id, request.action);
            if let Err(error) = self.inbox.acknowledge(&request) {
                self.warn(error.to_string(), Some(step));
            }
        }
    }

    /// Commits a checkpoint whose files `write` puts into a folder; tries once more before it gives up.
    pub(crate) fn commit(
        &mut self,
        step: u64,
        write: impl Fn(&Path) -> Result<(), TrainError>,
    ) -> Result<Checkpoint, TrainError> {
        let mut attempt = || -> Result<Checkpoint, TrainError> {
            let writer = self.checkpoints.begin(step, &self.lease)?;
            write(writer.path())?;
            Ok(writer.commit()?)
        };
        let first = match attempt() {
            Ok(checkpoint) => return Ok(checkpoint),
            Err(error) => error,
        };
        let retried = attempt();
        let how = if retried.is_ok() { "the second try succeeded" } else { "the second try failed too" };
        self.warn(format!("the checkpoint of step {step} could not be written: {first}; {how}"), Some(step));
        retried
    }
}

/// The run's plan.
pub(crate) fn read_plan(run: &RunDir) -> Result<Plan, TrainError> {
    Plan::from_toml(&run.read_plan()?, "plan.toml").map_err(|e| TrainError::Plan(e.to_string()))
}
