//! The resources of one attempt: lease, events, requests, checkpoints being written, and the machine's state.
//!
//! Everything that leaves the loop goes through here into the run folder. It must not know objectives or
//! steps.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use sparktune_cluster::Collective;
use sparktune_cluster::swarm::Change;
use sparktune_kernels::reserved_bytes;
use sparktune_plan::memory::{copies_beside_checkpoint, system_reserve};
use sparktune_plan::{Device as DeviceKind, Plan};
use sparktune_runlog::{
    Action, ControlApplied, ControlInbox, DriftWatch, EventWriter, Kind, Lease, LostMember, Members, Phase,
    PressureWatch, Progress, RunDir, Step, Warning, now_us,
};
use sparktune_telemetry::{MemoryGuard, Sampler, peak_rss_bytes, rss_bytes};

use crate::control::ControlRequests;
use crate::error::TrainError;
use crate::members::{Computed, MemberWatch};
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
    members: Option<MemberWatch>,
    saver: Saver,
    /// The requests that the checkpoint being written answers, and its step.
    answering: Option<(ControlRequests, u64)>,
    inbox: ControlInbox,
    /// A flag that signal handlers set.
    stop: &'a AtomicBool,
    /// The number of changes of the members since the ranks met.
    epoch: u64,
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

    /// Records who trains from this step on, counted from 1, if the members of a swarm have changed.
    pub(crate) fn record_members(&mut self, step: u64) {
        for Change { epoch, members, lost } in self.ranks.changes() {
            let left = match members.len() {
                1 => "rank 0 goes on alone".to_owned(),
                more => format!("the other {more} go on without it"),
            };
            for (rank, why) in &lost {
                self.warn(format!("rank {rank} is gone: {why}; {left}, from step {step}"), Some(step));
            }
            if let Some(watch) = &self.members {
                watch.lose(lost.iter().map(|(rank, _)| *rank));
            }
            let lost: Vec<LostMember> =
                lost.into_iter().map(|(rank, reason)| LostMember { rank, reason }).collect();
            if members.first().is_some_and(|first| lost.iter().any(|gone| gone.rank < *first))
                && self.ranks.is_first()
            {
                self.warn(
                    "this rank takes the place of rank 0: the run goes on in this folder, with its checkpoints and outputs. Do not resume the run of rank 0: it would be another one",
                    Some(step),
                );
            }
            // Those that are left have equal shares at first.
            self.events.emit(Kind::Members(Members { step, epoch, members, shares: Vec::new(), lost }));
            self.epoch = epoch;
            self.watch_members(step.saturating_sub(1));
        }
    }

    /// Records who trains from this step on, counted from 1, at the start of a swarm.
    pub(crate) fn record_first_members(&mut self, step: u64) {
        self.record_shares(step, 0);
        self.epoch = 0;
    }

    fn record_shares(&mut self, step: u64, epoch: u64) {
        let (members, shares) = (self.ranks.members(), self.ranks.shares().unequal().to_vec());
        self.events.emit(Kind::Members(Members { step, epoch, members, shares, lost: Vec::new() }));
    }

    /// Records at rank 0 how the other processes do from here on, if there are any.
    pub(crate) fn watch_members(&mut self, step: u64) {
        let micro_batches = self.plan.batch.grad_accum_steps as usize;
        if self.members.is_some() || !self.ranks.has_others() || !self.ranks.is_first() {
            return;
        }
        let events = Arc::clone(&self.events);
        let watch = |collective: &dyn Collective| MemberWatch::start(collective, micro_batches, step, events);
        self.members = self.ranks.collective().map(|collective| watch(collective));
    }

    /// Records what each rank has computed of this step, counted from 1.
    pub(crate) fn computed(&self, step: u64, computed: &[Computed]) {
        if let Some(watch) = &self.members {
            watch.computed(step, computed);
        }
    }

    /// Takes the members that have met again, of which all after the first `known` have just come.
    pub(crate) fn members_met(&mut self, known: usize) {
        self.ranks.share_equally();
        if let (Some(watch), Some(collective)) = (&self.members, self.ranks.collective()) {
            watch.meet(collective, known);
        }
    }

    /// Returns the shares of the next step, if rank 0 of a swarm has seen that others are clearly better.
    pub(crate) fn better_shares(&self) -> Option<Vec<u32>> {
        let watch = self.members.as_ref().filter(|_| self.plan.ranks.swarm)?;
        let better = watch.better_shares()?;
        Some(better.counts(self.plan.batch.grad_accum_steps as usize))
    }

    /// Takes what rank 0 says of the shares from this step on, counted from 1.
    pub(crate) fn take_shares(&mut self, said: Vec<u32>, step: u64) {
        if !self.ranks.take_shares(said) {
            return;
        }
        self.record_shares(step, self.epoch);
        let shares = self.ranks.shares();
        if let Some(watch) = &self.members {
            let parts = shares.counts(self.plan.batch.grad_accum_steps as usize);
            let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
            let of = parts.join(", ");
            watch.shared(shares);
            self.phase(
                "train",
                format!("the ranks compute {of} micro-batches of a step from step {step} on, by their speed"),
            );
        }
    }

    /// Does without the other processes from here on.
    pub(crate) fn part(&mut self) {
        self.members = None;
        self.ranks.part();
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
