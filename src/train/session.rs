//! The resources of one attempt: lease, events, requests, checkpoints being written, and the machine's state.
//!
//! Everything that leaves the loop goes through here into the run folder. It must not know objectives or
//! steps.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use sparktune_kernels::reserved_bytes;
use sparktune_plan::memory::{copies_beside_checkpoint, system_reserve};
use sparktune_plan::{Device as DeviceKind, Plan};
use sparktune_runlog::{
    Action, ControlApplied, ControlInbox, DriftWatch, EventWriter, Kind, Lease, Phase, PressureWatch,
    Progress, RunDir, Step, Warning, now_us,
};
use sparktune_telemetry::{MemoryGuard, Sampler, peak_rss_bytes, rss_bytes};

use crate::control::ControlRequests;
use crate::error::TrainError;
use crate::members::MemberWatch;
use crate::ranks::Ranks;
use crate::saver::{Committer, Saver};
use crate::snapshot::Snapshot;

/// The shortest time between two samples of the machine.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// The time between two signs of work that is not counted in steps.
const SHOW_EVERY: Duration = Duration::from_secs(5);

pub(crate) struct Session<'a> {
    pub(crate) run: &'a RunDir,
    pub(crate) plan: Plan,
    pub(crate) events: Arc<EventWriter>,
    pub(crate) lease: Arc<Lease>,
    /// The other processes that train the same steps, if there are any.
    pub(crate) ranks: Ranks<'a>,
    /// How the others do, at rank 0 of several.
    pub(crate) members: Option<MemberWatch>,
    saver: Saver,
    /// The requests that the checkpoint being written answers, and its step.
    answering: Option<(ControlRequests, u64)>,
    inbox: ControlInbox,
    /// A flag that signal handlers set.
    stop: &'a AtomicBool,
    /// The number of changes of the members since the ranks met.
    pub(crate) epoch: u64,
    /// Whether the ranks have met again, or lost one before they trained, and so continue from a checkpoint.
    pub(crate) has_healed: bool,
    /// Whether the gradients of judged ranks go over TCP, where each is seen, because they did so when the
    /// checkpoint was written: a sum may not have been that of what was announced.
    pub(crate) sums_are_seen: bool,
    sampler: Sampler,
    sampled_at: Option<Instant>,
    /// When work was last shown by [`still`](Self::still).
    shown_at: Cell<Instant>,
    /// The memory of the process in bytes before it loaded anything, which no plan counts.
    own_bytes: u64,
    /// The largest value that [`memory_bytes`](Self::memory_bytes) has returned.
    most_bytes: Option<u64>,
    drift: DriftWatch,
    /// The memory guard; `None` only if the system could not start a thread.
    guard: Option<MemoryGuard>,
}

impl<'a> Session<'a> {
    /// Takes the lease of a run and opens its next attempt. `reserve_bytes` of memory are left to other
    /// processes; `None` uses the plan's rule.
    pub(crate) fn open(
        run: &'a RunDir,
        stop: &'a AtomicBool,
        reserve_bytes: Option<u64>,
        ranks: Ranks<'a>,
    ) -> Result<Self, TrainError> {
        let lease = Arc::new(Lease::acquire(run)?);
        let plan = read_plan(run)?;
        let events = Arc::new(EventWriter::open(&lease)?);
        if plan.log.tensorboard {
            events.mirror_to_tensorboard(&lease);
        }
        let mut committer = Committer::new(run, lease.clone(), events.clone(), plan.checkpoint);
        let saver = Saver::start(move |snapshot| committer.commit(snapshot))
            .map_err(TrainError::io(run.checkpoints()))?;
        let inbox = ControlInbox::new(&lease);
        let mut sampler = Sampler::new();
        let reserve = reserve_bytes.unwrap_or_else(|| default_reserve_bytes(&plan, &mut sampler));
        let guard = start_memory_guard(PressureWatch::new(reserve, plan.lighter()), events.clone());
        Ok(Self {
            run,
            plan,
            events,
            lease,
            ranks,
            members: None,
            saver,
            answering: None,
            inbox,
            stop,
            epoch: 0,
            has_healed: false,
            sums_are_seen: false,
            sampler,
            sampled_at: None,
            shown_at: Cell::new(Instant::now()),
            own_bytes: rss_bytes().unwrap_or(0),
            most_bytes: None,
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

    /// Records the progress of work between two steps that may take longer than several of them, at most
    /// every few seconds, so that the trainer does not seem to have stalled.
    pub(crate) fn still(&self, phase: &str, done: u64, total: u64, unit: &str) {
        if self.shown_at.get().elapsed() >= SHOW_EVERY {
            self.shown_at.set(Instant::now());
            self.progress(phase, done, total, unit);
        }
    }

    pub(crate) fn warn(&self, message: impl Into<String>, step: Option<u64>) {
        self.events.emit(Kind::Warning(Warning { message: message.into(), step }));
    }

    /// Records the state of the machine, at most every ten seconds.
    pub(crate) fn sample_machine(&mut self) {
        if self.sampled_at.is_none_or(|at| at.elapsed() >= SAMPLE_EVERY) {
            self.sampled_at = Some(Instant::now());
            let sample = self.sampler.sample();
            let warnings = self.drift.reading(&sample, now_us());
            self.events.emit(Kind::DeviceSample(sample));
            warnings.into_iter().for_each(|warning| self.events.emit(Kind::Warning(warning)));
        }
    }

    /// Records a step, and a warning when steps have become slow.
    pub(crate) fn record_step(&mut self, step: Step) {
        let warnings = self.drift.step(&step);
        self.events.emit(Kind::Step(step));
        warnings.into_iter().for_each(|warning| self.events.emit(Kind::Warning(warning)));
    }

    /// Returns the memory in bytes that training on `device` takes now, counted as in the plan's prediction:
    /// the process on the CPU without what it took at its start, the reserved memory on a GPU, and the sum of
    /// both if they share memory.
    pub(crate) fn memory_bytes(&mut self, device: &Device) -> Option<u64> {
        let process = rss_bytes().map(|bytes| self.without_own(bytes));
        let bytes = match reserved_bytes(device) {
            None => process,
            Some(reserved) if self.sampler.memory().unified => process.map(|process| process + reserved),
            Some(reserved) => Some(reserved),
        };
        self.most_bytes = self.most_bytes.max(bytes);
        bytes
    }

    /// Returns the peak of [`memory_bytes`](Self::memory_bytes) so far. The system reports a process's peak
    /// at any time; a device is queried after each step.
    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        match self.plan.device {
            DeviceKind::Cpu => peak_rss_bytes().map(|bytes| self.without_own(bytes)),
            DeviceKind::Cuda => self.most_bytes,
        }
    }

    /// Returns the memory of the process without what it took at its start. The plan has it in the reserve,
    /// which is not part of its prediction.
    fn without_own(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.own_bytes)
    }

    /// Returns the GPU's name.
    pub(crate) fn gpu_name(&self) -> String {
        self.sampler.gpu_name().unwrap_or_else(|| "a GPU without a name".into())
    }

    /// Describes the device and its number formats in training, and which of several ranks this is.
    pub(crate) fn describe_device(&self) -> String {
        let device = match self.plan.device {
            DeviceKind::Cpu => format!("CPU, {} threads, f32", rayon::current_num_threads()),
            DeviceKind::Cuda => {
                let fp8 = if self.plan.fp8 { " and fp8 (not lossless)" } else { "" };
                format!("{}, bf16{fp8}", self.sampler.gpu_name().as_deref().unwrap_or("CUDA"))
            }
        };
        format!("{device}{}", self.ranks.in_words())
    }

    /// Returns the reason why the run must end at once, even in the middle of a step, because memory runs
    /// out.
    pub(crate) fn out_of_memory(&self) -> Option<String> {
        self.guard.as_ref().and_then(MemoryGuard::must_stop)
    }

    /// Returns the requests since the last call, except those that the checkpoint being written already
    /// answers.
    pub(crate) fn poll_requests(&self) -> ControlRequests {
        let mut polled =
            ControlRequests { signal: self.stop.swap(false, Ordering::SeqCst), ..ControlRequests::default() };
        match self.inbox.poll() {
            Ok(incoming) => {
                incoming.ignored.into_iter().for_each(|line| self.warn(line, None));
                let answering = self.answering.as_ref().map_or(&[][..], |(answered, _)| &answered.requests);
                polled.requests = incoming.requests;
                polled.requests.retain(|request| !answering.contains(request));
            }
            Err(error) => self.warn(error.to_string(), None),
        }
        polled.out_of_memory = self.out_of_memory();
        polled
    }

    /// Returns whether the next [`poll_requests`](Self::poll_requests) will stop the run.
    pub(crate) fn is_stop_requested(&self) -> bool {
        let polled = self.poll_requests();
        // Requests stay in the inbox until they are acknowledged, but a signal is reported only once, so it
        // is stored again.
        self.stop.fetch_or(polled.signal, Ordering::SeqCst);
        polled.stops()
    }

    /// Records that all requests in `answered` were carried out at `step`.
    pub(crate) fn acknowledge(&self, answered: ControlRequests, step: u64) {
        let record = |id: &str, action: Action| {
            let action = action.as_str().to_owned();
            self.events.emit(Kind::ControlApplied(ControlApplied { id: id.to_owned(), action, step }));
        };
        if answered.signal {
            record("signal", Action::Stop);
        }
        if answered.out_of_memory.is_some() {
            record("memory", Action::Stop);
        }
        for request in answered.requests {
            record(&request.id, request.action);
            if let Err(error) = self.inbox.acknowledge(&request) {
                self.warn(error.to_string(), Some(step));
            }
        }
    }

    /// Starts to write a checkpoint in the background, which answers `requests`. First waits for the previous
    /// checkpoint. Of several ranks, only the first one writes it, and in a swarm the second, which takes its
    /// place if it is lost.
    ///
    /// # Errors
    /// When the previous checkpoint could not be written.
    pub(crate) fn save(&mut self, snapshot: Snapshot, requests: ControlRequests) -> Result<(), TrainError> {
        if !self.ranks.is_first() && !self.ranks.is_deputy(&self.plan) {
            // Rank 0 writes it for all.
            self.acknowledge(requests, snapshot.state.checkpoint_step());
            return Ok(());
        }
        self.wait_for_checkpoint()?;
        self.answering = Some((requests, snapshot.state.checkpoint_step()));
        self.saver.save(snapshot);
        Ok(())
    }

    /// Waits until the last checkpoint is committed.
    ///
    /// # Errors
    /// When it could not be written.
    pub(crate) fn wait_for_checkpoint(&mut self) -> Result<(), TrainError> {
        while self.saver.is_busy() {
            self.poll_saver(SAMPLE_EVERY)?;
            self.sample_machine();
        }
        Ok(())
    }

    /// Acknowledges the requests of a checkpoint that has been committed, without waiting.
    ///
    /// # Errors
    /// When it could not be written.
    pub(crate) fn poll_checkpoint(&mut self) -> Result<(), TrainError> {
        self.poll_saver(Duration::ZERO)
    }

    /// Must be called before each update of the weights. Waits for the checkpoint being written if memory
    /// does not suffice for its copies and an update at the same time.
    ///
    /// # Errors
    /// When the checkpoint could not be written.
    pub(crate) fn make_room_for_update(&mut self) -> Result<(), TrainError> {
        if copies_beside_checkpoint(self.plan.method.kind()) { Ok(()) } else { self.wait_for_checkpoint() }
    }

    fn poll_saver(&mut self, timeout: Duration) -> Result<(), TrainError> {
        let Some(outcome) = self.saver.outcome(timeout) else { return Ok(()) };
        let answered = self.answering.take();
        outcome?;
        if let Some((answered, step)) = answered {
            self.acknowledge(answered, step);
        }
        Ok(())
    }
}

/// Returns the bytes of this machine's memory that the plan leaves to other processes.
fn default_reserve_bytes(plan: &Plan, sampler: &mut Sampler) -> u64 {
    let memory = sampler.memory();
    system_reserve(memory.total_bytes, memory.unified && plan.device == DeviceKind::Cuda)
}

/// Starts the thread that watches memory during the attempt.
fn start_memory_guard(watch: PressureWatch, events: Arc<EventWriter>) -> Option<MemoryGuard> {
    let log = events.clone();
    let warn = move |message| log.emit(Kind::Warning(Warning { message, step: None }));
    match MemoryGuard::start(watch, warn) {
        Ok(guard) => Some(guard),
        Err(error) => {
            let message = format!("memory is not monitored in this run: {error}");
            events.emit(Kind::Warning(Warning { message, step: None }));
            None
        }
    }
}

/// Reads the plan of a run.
pub(crate) fn read_plan(run: &RunDir) -> Result<Plan, TrainError> {
    Plan::from_toml(&run.read_plan()?, "plan.toml").map_err(|e| TrainError::Plan(e.to_string()))
}
