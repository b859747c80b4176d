//! One attempt of a run: its lease, events, requests and checkpoints, and what the machine is doing meanwhile.

use crate::TrainError;
use sparktune_plan::{Device as DeviceKind, Plan, memory::system_reserve};
use sparktune_runlog::{
    Action, Checkpoint, Checkpoints, ControlApplied, ControlInbox, DriftWatch, EventWriter, Kind, Lease,
    Phase, PressureWatch, Progress, Request, RunDir, Step, Warning, now_us,
};
use sparktune_telemetry::{MemoryGuard, Sampler};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the machine is looked at.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);

pub(crate) struct Session<'a> {
    pub(crate) run: &'a RunDir,
    pub(crate) plan: Plan,
    pub(crate) events: Arc<EventWriter>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) lease: Lease,
    inbox: ControlInbox,
    stop: &'a AtomicBool,
    sampler: Sampler,
    sampled: Option<Instant>,
    drift: DriftWatch,
    /// Missing only where the system had no thread for it.
    guard: Option<MemoryGuard>,
}

/// What is asked of the loop between two steps.
#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) stop: bool,
    /// Why it must stop, where nobody asked for it: memory runs out.
    pub(crate) because: Option<String>,
    pub(crate) checkpoint: bool,
    requests: Vec<Request>,
    signal: bool,
}

impl<'a> Session<'a> {
    /// Takes the lease and opens the next attempt. `reserve_bytes` of memory are left alone, by the plan's rule if none is
    /// given.
    pub(crate) fn open(
        run: &'a RunDir,
        stop: &'a AtomicBool,
        reserve_bytes: Option<u64>,
    ) -> Result<Self, TrainError> {
        let lease = Lease::acquire(run)?;
        let plan = read_plan(run)?;
        let events = Arc::new(EventWriter::open(&lease)?);
        if plan.log.tensorboard {
            events.mirror_to_tensorboard(&lease);
        }
        let checkpoints = Checkpoints::new(run);
        let inbox = ControlInbox::new(&lease);
        let mut sampler = Sampler::new();
        let reserve = reserve_bytes.unwrap_or_else(|| reserve(&plan, &mut sampler));
        let guard = guard(PressureWatch::new(reserve, plan.lighter()), events.clone());
        Ok(Self {
            run,
            plan,
            events,
            checkpoints,
            lease,
            inbox,
            stop,
            sampler,
            sampled: None,
            drift: DriftWatch::new(),
            guard,
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

    /// Why the run must end now, also in the middle of a step: memory runs out.
    pub(crate) fn must_stop(&self) -> Option<String> {
        self.guard.as_ref().and_then(MemoryGuard::must_stop)
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
        asked.because = self.must_stop();
        let stop = |request: &Request| request.action == Action::Stop;
        asked.stop = asked.signal || asked.because.is_some() || asked.requests.iter().any(stop);
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
        if asked.because.is_some() {
            applied("memory", Action::Stop);
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

/// What is to be left alone of this machine's memory.
fn reserve(plan: &Plan, sampler: &mut Sampler) -> u64 {
    let memory = sampler.memory();
    system_reserve(memory.total_bytes, memory.unified && plan.device == DeviceKind::Cuda)
}

/// Watches memory for as long as the attempt goes on.
fn guard(watch: PressureWatch, events: Arc<EventWriter>) -> Option<MemoryGuard> {
    let log = events.clone();
    let warn = move |message| log.emit(Kind::Warning(Warning { message, step: None }));
    match MemoryGuard::start(watch, warn) {
        Ok(guard) => Some(guard),
        Err(error) => {
            let message = format!("nobody watches memory in this run: {error}");
            events.emit(Kind::Warning(Warning { message, step: None }));
            None
        }
    }
}

/// The run's plan.
pub(crate) fn read_plan(run: &RunDir) -> Result<Plan, TrainError> {
    Plan::from_toml(&run.read_plan()?, "plan.toml").map_err(|e| TrainError::Plan(e.to_string()))
}
