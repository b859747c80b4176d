//! One attempt of a run: its lease, events, requests and checkpoints, and what the machine is doing meanwhile.

use crate::TrainError;
use crate::saver::{Committing, Saver};
use crate::snapshot::Snapshot;
use burn::tensor::Device;
use sparktune_kernels::reserved_bytes;
use sparktune_plan::memory::{copies_beside_checkpoint, system_reserve};
use sparktune_plan::{Device as DeviceKind, Plan};
use sparktune_runlog::{
    Action, ControlApplied, ControlInbox, DriftWatch, EventWriter, Kind, Lease, Phase, PressureWatch,
    Progress, Request, RunDir, Step, Warning, now_us,
};
use sparktune_telemetry::{MemoryGuard, Sampler, peak_rss_bytes, rss_bytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the machine is looked at.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);

pub(crate) struct Session<'a> {
    pub(crate) run: &'a RunDir,
    pub(crate) plan: Plan,
    pub(crate) events: Arc<EventWriter>,
    pub(crate) lease: Arc<Lease>,
    saver: Saver,
    /// What the checkpoint that is being written answers, and its step.
    answering: Option<(Asked, u64)>,
    inbox: ControlInbox,
    stop: &'a AtomicBool,
    sampler: Sampler,
    sampled: Option<Instant>,
    /// Most memory that [`memory_bytes`](Self::memory_bytes) has seen.
    most_bytes: Option<u64>,
    drift: DriftWatch,
    /// Where tiles that are measured go; nothing where none are to be.
    #[cfg(feature = "cuda")]
    pub(crate) tiles: Option<crate::tiles::TileFile>,
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
        let lease = Arc::new(Lease::acquire(run)?);
        let plan = read_plan(run)?;
        let events = Arc::new(EventWriter::open(&lease)?);
        if plan.log.tensorboard {
            events.mirror_to_tensorboard(&lease);
        }
        let keep = plan.checkpoint.keep.max(1) as usize;
        let mut committing = Committing::new(run, lease.clone(), events.clone(), keep);
        let saver = Saver::start(move |snapshot| committing.commit(snapshot))
            .map_err(TrainError::io(run.checkpoints()))?;
        let inbox = ControlInbox::new(&lease);
        let mut sampler = Sampler::new();
        let reserve = reserve_bytes.unwrap_or_else(|| reserve(&plan, &mut sampler));
        let guard = guard(PressureWatch::new(reserve, plan.lighter()), events.clone());
        Ok(Self {
            run,
            plan,
            events,
            lease,
            saver,
            answering: None,
            inbox,
            stop,
            sampler,
            sampled: None,
            most_bytes: None,
            drift: DriftWatch::new(),
            #[cfg(feature = "cuda")]
            tiles: None,
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

    /// Memory that training on `device` takes now, in what the plan predicts: the process's on the CPU, what is reserved on
    /// a GPU, and both together where they share the memory.
    pub(crate) fn memory_bytes(&mut self, device: &Device) -> Option<u64> {
        let process = rss_bytes();
        let bytes = match reserved_bytes(device) {
            None => process,
            Some(reserved) if self.sampler.memory().unified => process.map(|process| process + reserved),
            Some(reserved) => Some(reserved),
        };
        self.most_bytes = self.most_bytes.max(bytes);
        bytes
    }

    /// The most of it so far. The system knows that of a process at any time; a device was asked after each step.
    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        match self.plan.device {
            DeviceKind::Cpu => peak_rss_bytes(),
            DeviceKind::Cuda => self.most_bytes,
        }
    }

    /// What trains, and in which numbers.
    pub(crate) fn device_in_words(&self) -> String {
        match self.plan.device {
            DeviceKind::Cpu => format!("CPU, {} threads, f32", rayon::current_num_threads()),
            DeviceKind::Cuda => {
                let fp8 = if self.plan.fp8 { " and fp8 (not lossless)" } else { "" };
                format!("{}, bf16{fp8}", self.sampler.gpu_name().as_deref().unwrap_or("CUDA"))
            }
        }
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
                let answering = self.answering.as_ref().map_or(&[][..], |(asked, _)| &asked.requests);
                asked.requests = incoming.requests;
                asked.requests.retain(|request| !answering.contains(request));
            }
            Err(error) => self.warn(error.to_string(), None),
        }
        asked.because = self.must_stop();
        let stop = |request: &Request| request.action == Action::Stop;
        asked.stop = asked.signal || asked.because.is_some() || asked.requests.iter().any(stop);
        asked.checkpoint = asked.stop || !asked.requests.is_empty();
        asked
    }

    /// Whether [`asked`](Self::asked) will say to stop.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_to_stop(&self) -> bool {
        let asked = self.asked();
        // Requests wait until they are acknowledged; a signal is told once.
        self.stop.fetch_or(asked.signal, Ordering::SeqCst);
        asked.stop
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

    /// Has a checkpoint written while training goes on, which answers what was asked; waits for the one before.
    ///
    /// # Errors
    /// That the one before could not be written.
    pub(crate) fn save(&mut self, snapshot: Snapshot, asked: Asked) -> Result<(), TrainError> {
        self.saved()?;
        self.answering = Some((asked, snapshot.state.checkpoint_step()));
        self.saver.save(snapshot);
        Ok(())
    }

    /// Waits until the last checkpoint is committed.
    ///
    /// # Errors
    /// That it could not be written.
    pub(crate) fn saved(&mut self) -> Result<(), TrainError> {
        while self.saver.is_busy() {
            self.hear(SAMPLE_EVERY)?;
            self.sample_machine();
        }
        Ok(())
    }

    /// Takes note of a checkpoint that is committed by now.
    ///
    /// # Errors
    /// That it could not be written.
    pub(crate) fn look_after_checkpoint(&mut self) -> Result<(), TrainError> {
        self.hear(Duration::ZERO)
    }

    /// To be called before an update: waits for a checkpoint where there is no memory for an update beside it.
    ///
    /// # Errors
    /// That it could not be written.
    pub(crate) fn before_update(&mut self) -> Result<(), TrainError> {
        if copies_beside_checkpoint(self.plan.method.kind()) { Ok(()) } else { self.saved() }
    }

    fn hear(&mut self, patience: Duration) -> Result<(), TrainError> {
        let Some(outcome) = self.saver.outcome(patience) else { return Ok(()) };
        let answered = self.answering.take();
        outcome?;
        if let Some((asked, step)) = answered {
            self.done(asked, step);
        }
        Ok(())
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
