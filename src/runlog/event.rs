//! The events: the envelope and the kinds. Each event is one line of an event file:
//!
//! `{"v":1,"attempt":1,"seq":412,"time_us":1763645250000000,"kind":"step","step":120,"loss_nats":1.25,…}`
//!
//! Readers may rely on these rules: `seq` starts at 1 in each attempt and has no gaps; the names of fields
//! contain their unit; a value that was not measured is absent; a loss or gradient norm that is not finite is
//! `null` next to `"loss_nonfinite":"nan"` (`"inf"`, `"-inf"`). Unknown kinds and fields are skipped; an
//! unknown `v` is refused.

use serde::{Deserialize, Serialize};

use crate::step::{Eval, Step};

/// The major version of the envelope. Kinds and fields may be added without changing it.
pub const EVENT_VERSION: u32 = 1;

/// One event as read from, or written to, an event file.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The number of the attempt that wrote it, from 1.
    pub attempt: u32,
    /// The position within the attempt, from 1, without gaps.
    pub seq: u64,
    /// The time in microseconds since the Unix epoch; it never decreases within an attempt.
    pub time_us: u64,
    /// The payload.
    pub kind: Kind,
}

/// The payload of an event.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each payload is documented at its type")]
pub enum Kind {
    RunStarted(RunStarted),
    Phase(Phase),
    Progress(Progress),
    Step(Step),
    Eval(Eval),
    Fp8Loss(Fp8Loss),
    HeadEval(HeadEval),
    Sample(Sample),
    DeviceSample(DeviceSample),
    CheckpointCommitted(CheckpointCommitted),
    ControlApplied(ControlApplied),
    Members(Members),
    MemberSamples(MemberSamples),
    Warning(Warning),
    RunFinished(RunFinished),
    /// A kind of a later sparktune, which readers count and no one writes.
    #[serde(skip_serializing)]
    Unknown(String),
}

/// The first event of every attempt. An attempt that returns to an earlier checkpoint, because too many steps
/// were not finite, logs it again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunStarted {
    /// Version of sparktune.
    pub sparktune: String,
    /// Model id or path.
    pub model: String,
    /// `lora` or `full`.
    pub method: String,
    /// The device that the trainer chose, in words.
    pub device: String,
    /// Optimizer steps of the whole run, when known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// Epochs of the whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    /// The step of the checkpoint that this attempt continues from; absent when it starts from the base
    /// model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_from_step: Option<u64>,
    /// The seed of the data's order, if steps that were not finite made the run return to a checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_seed: Option<u64>,
    /// The folder of the run or of the adapter that the run started from; absent when it started from a
    /// published model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// The start of a new phase of the run: `validate`, `tokenise`, `load`, `train`, `eval`, `export`, `mtp`, …
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Phase {
    /// The name of the phase.
    pub phase: String,
    /// A description in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// The progress of the current phase, if it is not counted in steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Name of the phase.
    pub phase: String,
    /// Units done.
    pub done: u64,
    /// The total number of units, when known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// The unit: `bytes`, `examples`, `tensors`, …
    pub unit: String,
}

/// The effect of fp8: the losses of the same packs and weights with and without it. A loss that is not finite
/// is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fp8Loss {
    /// Steps trained so far.
    pub step: u64,
    /// The mean loss per target token in nats as the training steps compute it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp8_nats: Option<f64>,
    /// The same loss in bf16, as evaluations compute it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bf16_nats: Option<f64>,
    /// The number of target tokens in these packs.
    pub target_tokens: u64,
    /// Whether the packs are the eval set; otherwise they are those of the first step.
    pub held_out: bool,
}

/// An evaluation of the MTP head on the eval set while it is trained. The losses are finite.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeadEval {
    /// Steps of the head trained so far; 0 for the base model's head.
    pub step: u64,
    /// The mean loss per target token in nats, weighted over the drafted tokens as in training.
    pub loss_nats: f64,
    /// The mean loss per target token of the first drafted token, of the second, ….
    pub draft_nats: Vec<f64>,
    /// Target tokens of the first drafted token.
    pub target_tokens: u64,
    /// Wall time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_ms: Option<f64>,
}

/// Text generated during training. It is untrusted and has to be escaped before it is shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Steps trained so far.
    pub step: u64,
    /// The prompt.
    pub prompt: String,
    /// The model's answer.
    pub text: String,
    /// Tokens generated.
    pub tokens: u64,
}

/// One sample of machine and process. Values that could not be measured are absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceSample {
    /// The physical memory, or the container's limit if that is lower, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_total_bytes: Option<u64>,
    /// The memory that can still be allocated without swapping (MemAvailable, or the rest under the
    /// container's limit), in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_available_bytes: Option<u64>,
    /// Total minus available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_used_bytes: Option<u64>,
    /// Whether CPU and GPU share this memory.
    pub mem_unified: bool,
    /// Percent of the last 10 s in which some task waited for memory (PSI).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_pressure_some_percent: Option<f64>,
    /// Percent of the last 10 s in which all tasks waited for memory (PSI).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_pressure_full_percent: Option<f64>,
    /// Resident memory of the trainer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_rss_bytes: Option<u64>,
    /// Highest resident memory of the trainer so far (VmHWM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_peak_rss_bytes: Option<u64>,
    /// Load of all CPU cores together, 0 to 100, since the last sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    /// One entry per GPU that the driver shows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuSample>,
}

/// One sample of one GPU. On GB10 the memory fields are empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuSample {
    /// The index used by the driver.
    pub index: u32,
    /// The share of time with a kernel running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_percent: Option<u32>,
    /// Core temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<u32>,
    /// Power draw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// The current SM clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<u32>,
    /// The highest SM clock of this model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_max_mhz: Option<u32>,
    /// The current memory clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_clock_mhz: Option<u32>,
    /// Dedicated memory in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_used_bytes: Option<u64>,
    /// Dedicated memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_total_bytes: Option<u64>,
    /// The reason why the driver limits the clocks, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttle: Option<String>,
}

/// A checkpoint is complete on disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointCommitted {
    /// Steps trained so far.
    pub step: u64,
    /// Folder name under `checkpoints/`.
    pub name: String,
    /// Size of its files.
    pub bytes: u64,
    /// Wall time from the first byte to the commit, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit_ms: Option<f64>,
    /// Whether it has the lowest eval loss so far.
    pub best: bool,
}

/// A request from `control/` was carried out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControlApplied {
    /// The id of the request; `signal` for SIGTERM, SIGINT and SIGUSR1, `memory` if memory ran out.
    pub id: String,
    /// `stop` or `checkpoint`.
    pub action: String,
    /// Steps trained so far.
    pub step: u64,
}

/// Who trains from a step on and in which shares, in a run of several ranks that goes on without those that
/// are gone. The first such event of an attempt names all, and so does one after others have joined; each
/// other one is a change.
/// They suffice to replay the run in one process (`--sum-as`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Members {
    /// The first step that they take, from 1. Later steps of an earlier event or attempt do not count.
    pub step: u64,
    /// The number of changes since the ranks met.
    pub epoch: u64,
    /// The members in the order in which their gradients are added, by the numbers that their launcher gave
    /// them.
    pub members: Vec<usize>,
    /// Their shares of a step, in the same order; empty if all have equal ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<u32>,
    /// Who is gone since the event before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostMember>,
}

/// A rank that is gone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LostMember {
    /// The number that its launcher gave it.
    pub rank: usize,
    /// What the others have seen, in words.
    pub reason: String,
}

/// How each rank of a run of several does, as rank 0 sees it: every ten seconds, and when a state or a share
/// changes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberSamples {
    /// Steps trained so far.
    pub step: u64,
    /// The ranks that train, in the order of their numbers, then the newest ones that are gone.
    pub ranks: Vec<MemberSample>,
}

/// How one rank does.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberSample {
    /// The number that its launcher gave it. It stays when the ranks meet again.
    pub rank: usize,
    /// Its address as rank 0 sees it; empty for rank 0 itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub place: String,
    /// What it does.
    pub state: MemberState,
    /// Its micro-batches of a step.
    pub micro_batches: u32,
    /// The time in which it computes one of them, the median of its last steps, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_batch_ms: Option<f64>,
    /// The smoothed time from a question to its answer, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<f64>,
    /// How often the others went on without it in this attempt.
    pub drops: u32,
}

/// What a rank does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// It trains.
    Training,
    /// Nothing was heard of it for two seconds.
    Silent,
    /// It has come, or come back, and continues from the others' checkpoint; it has taken no step yet.
    Healing,
    /// The others go on without it.
    Gone,
    /// A state of a later sparktune.
    #[default]
    #[serde(other)]
    Unknown,
}

impl MemberState {
    /// Returns the state in one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Silent => "silent",
            Self::Healing => "healing",
            Self::Gone => "gone",
            Self::Unknown => "unknown",
        }
    }
}

/// A warning for the user that does not end the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Warning {
    /// One line: what happened, where, what to do.
    pub message: String,
    /// Steps trained so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
}

/// The outcome of an attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything planned is done (including an early stop).
    Completed,
    /// Everything planned is done, but at the end the loss was far above that of the start, as `reason` says.
    Diverged,
    /// Ended after a checkpoint, on request or, then with a `reason`, because memory ran out. `resume`
    /// continues the run.
    Stopped,
    /// Ended by an error, which `reason` describes.
    Failed,
    /// An outcome of a later sparktune.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Outcome {
    /// Returns whether everything planned is done, so that there is nothing to resume.
    pub fn is_complete(self) -> bool {
        matches!(self, Outcome::Completed | Outcome::Diverged)
    }
}

/// The last event of an attempt that ended by itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunFinished {
    /// The outcome.
    pub outcome: Outcome,
    /// The reason, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Steps trained.
    pub step: u64,
    /// Loss of the last step, when finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_loss_nats: Option<f64>,
    /// Last eval loss, when finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_loss_nats: Option<f64>,
    /// The step of the checkpoint with the lowest eval loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_step: Option<u64>,
    /// The lowest eval loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_eval_nats: Option<f64>,
    /// The step of the weights that the outputs contain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exported_step: Option<u64>,
    /// The peak memory of this attempt's training, counted as in the plan's prediction: of the process on a
    /// CPU, without what it took at its start; of the device on a GPU; and the sum if they share memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_peak_bytes: Option<u64>,
    /// The plan's prediction in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_predicted_bytes: Option<u64>,
    /// The written paths, relative to the run folder.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
}

/// The reason why a line is not an event of this version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreadable {
    /// The line is not JSON, or a known kind without its fields.
    Malformed(String),
    /// The envelope has a newer version.
    Newer(u64),
}

#[derive(Serialize)]
struct Envelope<'a> {
    v: u32,
    attempt: u32,
    seq: u64,
    time_us: u64,
    #[serde(flatten)]
    kind: &'a Kind,
}

#[derive(Deserialize)]
struct Head<'a> {
    v: u64,
    attempt: u32,
    seq: u64,
    time_us: u64,
    #[serde(borrow)]
    kind: std::borrow::Cow<'a, str>,
}

#[derive(Deserialize)]
struct VersionOnly {
    v: u64,
}

impl Event {
    /// Returns the event as one line with its newline.
    ///
    /// # Errors
    /// Only for [`Kind::Unknown`], which has no representation here.
    pub fn to_line(&self) -> serde_json::Result<String> {
        let Event { attempt, seq, time_us, kind } = self;
        let envelope = Envelope { v: EVENT_VERSION, attempt: *attempt, seq: *seq, time_us: *time_us, kind };
        let mut line = serde_json::to_string(&envelope)?;
        line.push('\n');
        Ok(line)
    }

    /// Reads one line of any spelling without its newline.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub(crate) fn parse_json(line: &[u8]) -> Result<Event, Unreadable> {
        let malformed = |error: serde_json::Error| Unreadable::Malformed(error.to_string());
        let head: Head = match serde_json::from_slice(line) {
            Ok(head) => head,
            // In a newer envelope every field but the version may have changed.
            Err(error) => match serde_json::from_slice(line) {
                Ok(VersionOnly { v }) if v != u64::from(EVENT_VERSION) => return Err(Unreadable::Newer(v)),
                _ => return Err(malformed(error)),
            },
        };
        if head.v != u64::from(EVENT_VERSION) {
            return Err(Unreadable::Newer(head.v));
        }
        macro_rules! payload {
            ($variant:ident) => {
                Kind::$variant(serde_json::from_slice(line).map_err(malformed)?)
            };
        }
        let kind = match &*head.kind {
            "run_started" => payload!(RunStarted),
            "phase" => payload!(Phase),
            "progress" => payload!(Progress),
            "step" => payload!(Step),
            "eval" => payload!(Eval),
            "fp8_loss" => payload!(Fp8Loss),
            "head_eval" => payload!(HeadEval),
            "sample" => payload!(Sample),
            "device_sample" => payload!(DeviceSample),
            "checkpoint_committed" => payload!(CheckpointCommitted),
            "control_applied" => payload!(ControlApplied),
            "members" => payload!(Members),
            "member_samples" => payload!(MemberSamples),
            "warning" => payload!(Warning),
            "run_finished" => payload!(RunFinished),
            unknown => Kind::Unknown(unknown.to_owned()),
        };
        Ok(Event { attempt: head.attempt, seq: head.seq, time_us: head.time_us, kind })
    }
}

impl Kind {
    /// Returns whether the event must survive a power failure right after it.
    pub(crate) fn is_durable(&self) -> bool {
        matches!(self, Kind::CheckpointCommitted(_) | Kind::RunFinished(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind) -> Event {
        Event { attempt: 1, seq: 412, time_us: 1_763_645_250_000_000, kind }
    }

    fn read_back(kind: Kind) -> Kind {
        let line = event(kind).to_line().unwrap();
        Event::parse(line.trim_end().as_bytes()).unwrap().kind
    }

    #[test]
    fn a_step_is_written_as_the_design_shows_it() {
        let step = Step { step: 120, loss_nats: 1.25, tokens: 9, target_tokens: 4, ..Step::default() };
        assert_eq!(
            event(Kind::Step(step)).to_line().unwrap(),
            "{\"v\":1,\"attempt\":1,\"seq\":412,\"time_us\":1763645250000000,\"kind\":\"step\",\"step\":120,\
             \"loss_nats\":1.25,\"target_tokens\":4,\"tokens\":9}\n"
        );
    }

    #[test]
    fn a_step_with_parts_that_are_not_told_apart_any_more_is_read_without_them() {
        let line = r#"{"v":1,"attempt":1,"seq":1,"time_us":1,"kind":"step","step":4,"loss_nats":1.5,"target_tokens":1,"tokens":2,"data_ms":3.0,"forward_ms":5.0,"backward_ms":9.0,"optimizer_ms":7.0}"#;
        let Ok(Event { kind: Kind::Step(step), .. }) = Event::parse(line.as_bytes()) else {
            panic!("a step")
        };
        assert_eq!((step.step, step.data_ms, step.optimizer_ms), (4, Some(3.0), Some(7.0)));
    }

    #[test]
    fn a_loss_that_is_not_finite_is_null_beside_its_name_and_comes_back() {
        for (loss, name) in [(f64::NAN, "nan"), (f64::INFINITY, "inf"), (f64::NEG_INFINITY, "-inf")] {
            let step = Step { step: 1, loss_nats: loss, grad_norm: Some(loss), ..Step::default() };
            let line = event(Kind::Step(step.clone())).to_line().unwrap();
            assert!(line.contains(&format!("\"loss_nats\":null,\"loss_nonfinite\":\"{name}\"")), "{line}");
            assert!(line.contains(&format!("\"grad_norm_nonfinite\":\"{name}\"")), "{line}");
            let Kind::Step(back) = read_back(Kind::Step(step)) else { panic!("a step") };
            assert_eq!(back.loss_nats.to_bits(), loss.to_bits());
            assert_eq!(back.grad_norm.unwrap().to_bits(), loss.to_bits());
            let Kind::Eval(back) = read_back(Kind::Eval(Eval { loss_nats: loss, ..Eval::default() })) else {
                panic!("an eval")
            };
            assert_eq!(back.loss_nats.to_bits(), loss.to_bits());
        }
    }

    #[test]
    fn every_kind_survives_the_way_to_a_line_and_back() {
        let gpu = GpuSample { index: 1, power_watts: Some(41.5), ..GpuSample::default() };
        let kinds = [
            Kind::RunStarted(RunStarted { total_steps: Some(9), epochs: Some(3.0), ..RunStarted::default() }),
            Kind::Phase(Phase { phase: "train".into(), detail: Some("x\ny".into()) }),
            Kind::Progress(Progress { phase: "load".into(), done: 1, total: None, unit: "tensors".into() }),
            Kind::Step(Step { step: 3, loss_nats: 0.5, lr: Some(2e-4), ..Step::default() }),
            Kind::Eval(Eval { step: 3, loss_nats: 0.25, examples: 8, ..Eval::default() }),
            Kind::Fp8Loss(Fp8Loss {
                step: 3,
                fp8_nats: None,
                bf16_nats: Some(0.25),
                held_out: true,
                target_tokens: 9,
            }),
            Kind::HeadEval(HeadEval {
                step: 3,
                loss_nats: 0.5,
                draft_nats: vec![0.25, 1.5],
                target_tokens: 9,
                eval_ms: Some(1.5),
            }),
            Kind::Sample(Sample {
                step: 3,
                prompt: "ü".into(),
                text: "\u{202e}\u{1b}[31m".into(),
                tokens: 5,
            }),
            Kind::DeviceSample(DeviceSample {
                mem_unified: true,
                gpus: vec![gpu],
                ..DeviceSample::default()
            }),
            Kind::CheckpointCommitted(CheckpointCommitted { step: 3, best: true, ..Default::default() }),
            Kind::ControlApplied(ControlApplied { id: "a".into(), action: "stop".into(), step: 3 }),
            Kind::Members(Members {
                step: 4,
                epoch: 1,
                members: vec![0, 2],
                shares: vec![2, 1],
                lost: vec![LostMember { rank: 1, reason: "silent".into() }],
            }),
            Kind::MemberSamples(MemberSamples {
                step: 4,
                ranks: vec![MemberSample {
                    rank: 2,
                    place: "10.0.0.2".into(),
                    state: MemberState::Silent,
                    micro_batches: 3,
                    micro_batch_ms: Some(40.5),
                    latency_ms: Some(0.25),
                    drops: 1,
                }],
            }),
            Kind::Warning(Warning { message: "hot".into(), step: Some(3) }),
            Kind::RunFinished(RunFinished {
                outcome: Outcome::Stopped,
                step: 3,
                mem_peak_bytes: Some(u64::MAX),
                mem_predicted_bytes: Some(0),
                ..RunFinished::default()
            }),
            Kind::RunFinished(RunFinished {
                outcome: Outcome::Diverged,
                best_step: Some(2),
                best_eval_nats: Some(0.25),
                exported_step: Some(2),
                ..RunFinished::default()
            }),
        ];
        for kind in kinds {
            assert_eq!(read_back(kind.clone()), kind);
        }
    }

    #[test]
    fn unknown_kinds_and_fields_are_tolerated_and_unknown_versions_are_not() {
        let parse = |text: &str| Event::parse(text.as_bytes());
        let future =
            parse(r#"{"v":1,"attempt":1,"seq":1,"time_us":1,"kind":"weather","rain":true}"#).unwrap();
        assert_eq!(future.kind, Kind::Unknown("weather".into()));
        assert!(event(future.kind).to_line().is_err(), "an unknown kind is never written");
        let extra =
            parse(r#"{"v":1,"attempt":1,"seq":1,"time_us":1,"kind":"warning","message":"m","extra":[1]}"#);
        assert_eq!(extra.unwrap().kind, Kind::Warning(Warning { message: "m".into(), step: None }));
        let outcome =
            parse(r#"{"v":1,"attempt":1,"seq":1,"time_us":1,"kind":"run_finished","outcome":"paused"}"#);
        let Kind::RunFinished(finished) = outcome.unwrap().kind else { panic!("finished") };
        assert_eq!(finished.outcome, Outcome::Unknown);
        assert_eq!(parse(r#"{"v":2,"whatever":1}"#), Err(Unreadable::Newer(2)));
    }

    #[test]
    fn garbage_and_a_step_without_its_loss_are_malformed() {
        for text in [
            "",
            "{",
            "null",
            "[1]",
            r#"{"v":1}"#,
            "\u{0}",
            r#"{"v":1,"attempt":1,"seq":1,"time_us":1,"kind":"step","step":1}"#,
        ] {
            assert!(matches!(Event::parse(text.as_bytes()), Err(Unreadable::Malformed(_))), "{text:?}");
        }
        assert!(matches!(Event::parse(b"\xff\xfe"), Err(Unreadable::Malformed(_))));
    }
}
