//! Runs to look at: a realistic one with everything that can happen to a run, and a hostile one.

use std::fs;

use serde_json::json;
use sparktune_data::{
    FileReport, Finding, Format, Kind as RejectedAs, LengthReport, Place, Rejection, RejectionCount, Report,
    SplitReport, TokenCounts, Unit,
};
use sparktune_plan::{
    Answer, Answers, Catalog, DataFacts, Facts, Gpu, GpuMemory, LengthBucket, MachineFacts, Plan, Rates,
    resolve,
};
use sparktune_runlog::{
    CheckpointCommitted, DeviceSample, Eval, Event, GpuSample, Kind, Outcome, Phase, RunDir, RunFinished,
    RunStarted, RunsRoot, Sample, Step, Warning,
};

/// An event log being written, with a clock of its own.
pub(crate) struct Log {
    run: RunDir,
    attempt: u32,
    seq: u64,
    pub time_us: u64,
    lines: String,
}

impl Log {
    pub(crate) fn of(run: &RunDir) -> Self {
        Log { run: run.clone(), attempt: 0, seq: 0, time_us: 1_795_190_400_000_000, lines: String::new() }
    }

    /// Begins an attempt; the one before has ended as it stands.
    pub(crate) fn start(&mut self, started: RunStarted) {
        (self.attempt, self.seq) = (self.attempt + 1, 0);
        self.lines.clear();
        self.emit(Kind::RunStarted(started));
    }

    pub(crate) fn emit(&mut self, kind: Kind) {
        self.seq += 1;
        let (attempt, seq, time_us) = (self.attempt, self.seq, self.time_us);
        self.lines.push_str(&Event { attempt, seq, time_us, kind }.to_line().unwrap());
    }

    /// Puts the attempt's events into the run folder.
    pub(crate) fn save(&self) {
        fs::write(self.run.event_file(self.attempt), &self.lines).unwrap();
    }
}

/// Noise between -1 and 1, the same each time.
pub(crate) fn noise(n: u64) -> f64 {
    let mixed = (n ^ (n >> 7)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}

pub(crate) const STEPS: u64 = 1240;

/// A step of an attempt; the first attempt runs away after step 600.
fn step(attempt: u32, n: u64) -> Step {
    let share = n as f64 / STEPS as f64;
    let spike = if n == 352 { 2.1 } else { 0.0 };
    let away = if attempt == 1 { n.saturating_sub(600) as f64 / 160.0 } else { 0.0 };
    let loss =
        0.62 + 1.5 * (-5.0 * share).exp() + 0.12 * noise(n + 5000 * u64::from(attempt)) + spike + away * away;
    let warm = (n as f64 / 37.0).min(1.0);
    let slow = if (880..960).contains(&n) { 0.62 } else { 1.0 };
    let ms = 2260.0 / slow + 90.0 * noise(n + 7);
    Step {
        step: n,
        epoch: Some(3.0 * share),
        loss_nats: if (471..475).contains(&n) { f64::NAN } else { loss },
        target_tokens: 4300,
        tokens: 8040,
        lr: Some(2e-4 * warm * (0.1 + 0.45 * (1.0 + (std::f64::consts::PI * share).cos()))),
        grad_norm: Some(0.5 + 0.9 * (-6.0 * share).exp() + 0.1 * noise(n + 3) + 9.0 * spike + 3.0 * away),
        step_ms: Some(ms),
        tokens_per_s: Some(8040.0 / ms * 1e3),
        mem_used_bytes: Some(27_000_000_000_u64.saturating_add_signed((noise(n / 40) * 4e9) as i64)),
        data_ms: Some(14.0 + 5.0 * noise(n)),
        optimizer_ms: Some(118.0),
        exchange_ms: None,
        exchange_bytes: None,
    }
}

fn started(resumed_from_step: Option<u64>) -> RunStarted {
    RunStarted {
        sparktune: "0.1.0".into(),
        model: "Qwen/Qwen3.5-2B".into(),
        method: "lora".into(),
        device: "NVIDIA GB10, bf16".into(),
        total_steps: Some(STEPS),
        epochs: Some(3.0),
        resumed_from_step,
        order_seed: None,
        from: None,
    }
}

const QUESTION: &str =
    "<|im_start|>user\nMy order has not arrived. What can I do?<|im_end|>\n<|im_start|>assistant\n";

fn train(log: &mut Log, from: u64, to: u64) {
    log.emit(Kind::Phase(Phase { phase: "load".into(), detail: None }));
    log.time_us += 41_000_000;
    log.emit(Kind::Phase(Phase { phase: "train".into(), detail: None }));
    if from == 1 {
        log.emit(Kind::Eval(Eval { step: 0, loss_nats: 2.013, ..Eval::default() }));
    }
    for n in from..=to {
        let step = step(log.attempt, n);
        log.time_us += (step.step_ms.unwrap() * 1e3) as u64;
        if step.loss_nats.is_nan() {
            let message = format!("the loss of step {n} is not a number; the step was left out");
            log.emit(Kind::Warning(Warning { message, step: Some(n) }));
        }
        log.emit(Kind::Step(step));
        if n % 20 == 0 {
            log.emit(Kind::DeviceSample(reading(n)));
        }
        if n % 100 == 0 || n == STEPS {
            let loss_nats =
                0.71 + 1.3 * (-5.5 * n as f64 / STEPS as f64).exp() + if n > 1000 { 0.02 } else { 0.0 };
            let eval =
                Eval { step: n, loss_nats, target_tokens: 61_000, examples: 180, eval_ms: Some(9100.0) };
            log.time_us += 9_100_000;
            log.emit(Kind::Eval(eval));
            let text = match n {
                ..300 => "I order not the arrive the the",
                300..900 => "I am sorry to hear that. You can check the parcel with its number.",
                _ => {
                    "I am sorry that your order is late.\n\n1. Check the tracking page.\n2. If it has not moved for \
                      three days, write to us and we send it again."
                }
            };
            let sample = Sample { step: n, prompt: QUESTION.into(), text: text.into(), tokens: 40 };
            log.emit(Kind::Sample(sample));
        }
        if n % 200 == 0 || n == STEPS {
            log.emit(Kind::CheckpointCommitted(CheckpointCommitted {
                step: n,
                name: format!("step-{n:06}"),
                bytes: 1_140_000_000,
                commit_ms: Some(3120.0),
                best: n <= 1000,
            }));
        }
    }
}

/// The machine at a step; it falls into its slow state for a while.
pub(crate) fn reading(n: u64) -> DeviceSample {
    let slow = (880..960).contains(&n);
    let around = |value: f64, by: f64| value + by * noise(n + value as u64);
    let gpu = GpuSample {
        busy_percent: Some(around(94.0, 4.0) as u32),
        temperature_celsius: Some(around(if slow { 58.0 } else { 71.0 }, 2.0) as u32),
        power_watts: Some(around(if slow { 34.0 } else { 82.0 }, 5.0)),
        sm_clock_mhz: Some(around(if slow { 850.0 } else { 2411.0 }, 12.0) as u32),
        ..GpuSample::default()
    };
    DeviceSample {
        mem_pressure_some_percent: Some(around(1.0, 1.0)),
        cpu_percent: Some(around(12.0, 4.0)),
        gpus: vec![gpu],
        ..DeviceSample::default()
    }
}

/// A plan of the 2B model on a Spark, with all its reasons.
pub(crate) fn plan() -> Plan {
    let lengths = lengths();
    let width = 128;
    let total: u64 = lengths.iter().map(|n| u64::from(*n)).sum();
    let at = |share: usize| lengths[(lengths.len() - 1) * share / 100];
    let bucket = |i: u32| LengthBucket {
        up_to: i * width,
        count: lengths.iter().filter(|n| **n > (i - 1) * width && **n <= i * width).count() as u64,
    };
    let catalog = Catalog::shipped();
    let facts = Facts {
        machine: MachineFacts {
            mem_total_bytes: 128_500_000_000,
            mem_available_bytes: 119_000_000_000,
            cores: 20,
            cpu_speed: None,
            disk_free_bytes: Some(3_000_000_000_000),
            gpus: vec![Gpu {
                name: "NVIDIA GB10".into(),
                memory: GpuMemory::Unified,
                compute_capability: Some((12, 1)),
            }],
            no_gpu_because: None,
            probe: None,
        },
        model: catalog.model_facts(catalog.find("Qwen/Qwen3.5-2B").unwrap()),
        data: DataFacts {
            examples: lengths.len() as u64,
            total_tokens: total,
            target_tokens: total * 53 / 100,
            p50: at(50),
            p90: at(90),
            p99: at(99),
            max: at(100),
            histogram: (1..=at(100).div_ceil(width)).map(bucket).collect(),
            ..DataFacts::default()
        },
        rates: Rates::default(),
        parent: None,
    };
    let answers = Answers {
        model: Some(Answer::flag("Qwen/Qwen3.5-2B".into())),
        data: Some(Answer::flag(vec!["train.jsonl".into()])),
        max_steps: Some(Answer::flag(STEPS)),
        ..Answers::default()
    };
    resolve(&answers, &facts).unwrap()
}

/// Lengths of 9,000 examples, ascending.
fn lengths() -> Vec<u32> {
    let length = |i: u64| (6.3 + 0.8 * (noise(i) + noise(i + 20_000) + noise(i + 40_000))).exp() as u32;
    let mut lengths: Vec<u32> = (0..9000).map(length).collect();
    lengths.sort_unstable();
    lengths
}

/// The findings about the data of the realistic run.
pub(crate) fn data() -> Report {
    let lengths = LengthReport::new(Unit::Tokens, &mut lengths()).unwrap();
    let place = |line| Place { file: "train.jsonl".into(), line };
    let rejection = |kind, field: &str, reason: &str, fix: &str| Rejection {
        kind,
        field: field.into(),
        reason: reason.into(),
        fix: fix.into(),
    };
    Report {
        files: vec![FileReport {
            name: "train.jsonl".into(),
            eval: false,
            bytes: 41_000_000,
            format: Some(Format::Messages),
            lines: 9023,
            examples: 9000,
            rejected: 22,
            refused: None,
        }],
        lines: 9023,
        blank_lines: 1,
        examples: 9000,
        rejected: 22,
        rejections: vec![
            RejectionCount {
                kind: RejectedAs::MissingField,
                count: 19,
                first: place(812),
                example: rejection(
                    RejectedAs::MissingField,
                    "messages[2].content",
                    "the field is missing",
                    "add the text, or leave the message out",
                ),
                alike: 17,
            },
            RejectionCount {
                kind: RejectedAs::InvalidJson,
                count: 3,
                first: place(4100),
                example: rejection(
                    RejectedAs::InvalidJson,
                    "",
                    "the line ends within a text",
                    "write it again",
                ),
                alike: 3,
            },
        ],
        duplicates: Finding { examples: 14, occurrences: 14, first: vec![place(77)], note: None },
        text_bytes: 30_000_000,
        tokens: Some(TokenCounts {
            total: lengths.total,
            targets: lengths.total * 53 / 100,
            target_share: 0.53,
        }),
        lengths: Some(lengths),
        split: Some(SplitReport { train_examples: 8820, eval_examples: 180 }),
        ..Report::default()
    }
}

/// Started from another run, with two evaluations so far.
pub(crate) fn child(root: &RunsRoot) -> RunDir {
    let run = root.create("qwen3.5-2b", "lora").unwrap();
    let mut log = Log::of(&run);
    log.start(RunStarted { from: Some("/runs/first".into()), ..started(None) });
    for (step, loss_nats) in [(0, 2.013), (20, 1.5)] {
        log.emit(Kind::Eval(Eval { step, loss_nats, ..Eval::default() }));
        for step in step + 1..=step + 20 {
            log.emit(Kind::Step(Step { step, loss_nats: 2.0, ..Step::default() }));
        }
    }
    log.save();
    run
}

/// Crashed after step 760, resumed from 600, finished; NaN, a spike, a slow stretch.
pub(crate) fn realistic(root: &RunsRoot) -> RunDir {
    let run = root.create("qwen3.5-2b", "lora").unwrap();
    let mut log = Log::of(&run);
    log.start(started(None));
    train(&mut log, 1, 760);
    log.save();
    log.time_us += 3_600_000_000;
    log.start(started(Some(600)));
    train(&mut log, 601, STEPS);
    log.emit(Kind::Phase(Phase { phase: "mtp".into(), detail: None }));
    log.time_us += 412_000_000;
    log.emit(Kind::Phase(Phase { phase: "export".into(), detail: None }));
    log.time_us += 63_000_000;
    log.emit(Kind::RunFinished(RunFinished {
        outcome: Outcome::Completed,
        reason: None,
        step: STEPS,
        final_loss_nats: Some(0.6312),
        eval_loss_nats: Some(0.7354),
        best_step: Some(1000),
        best_eval_nats: Some(0.7254),
        exported_step: Some(1000),
        mem_peak_bytes: Some(31_200_000_000),
        mem_predicted_bytes: None,
        outputs: vec!["outputs/adapter".into(), "outputs/merged-mtp".into(), "outputs/SERVE.md".into()],
    }));
    log.save();

    run.write_plan(&plan().to_toml().unwrap()).unwrap();
    run.write_provenance(&json!({"sparktune": "0.1.0", "command_line": ["sparktune", "train"], "machine": {"gpus": [{"name": "NVIDIA GB10"}]}}))
        .unwrap();
    fs::write(run.data().join("report.json"), serde_json::to_vec(&data()).unwrap()).unwrap();
    for (name, bytes) in [("adapter", 244_000), ("merged-mtp", 451_000)] {
        fs::create_dir(run.outputs().join(name)).unwrap();
        fs::write(run.outputs().join(name).join("model.safetensors"), vec![0; bytes]).unwrap();
    }
    fs::write(run.outputs().join("SERVE.md"), "# Serving this model\n\n```\nvllm serve ./merged-mtp\n```\n")
        .unwrap();
    for kept in ["step-001000", "step-001240"] {
        fs::create_dir(run.checkpoints().join(kept)).unwrap();
    }
    run
}

/// A run in which every text is `evil`; the trainer crashed.
pub(crate) fn hostile(root: &RunsRoot, evil: &str) -> RunDir {
    let run = root.create("m", "lora").unwrap();
    let text = || evil.to_owned();
    let mut log = Log::of(&run);
    log.start(RunStarted {
        sparktune: text(),
        model: text(),
        method: text(),
        device: text(),
        total_steps: Some(40),
        ..RunStarted::default()
    });
    log.emit(Kind::Phase(Phase { phase: text(), detail: Some(text()) }));
    for n in 1..=30 {
        log.time_us += 1_000_000;
        log.emit(Kind::Step(Step { step: n, loss_nats: 2.0 + noise(n), ..Step::default() }));
    }
    log.emit(Kind::Sample(Sample { step: 30, prompt: text(), text: text(), tokens: 1 }));
    log.emit(Kind::Warning(Warning { message: text(), step: None }));
    let checkpoint = CheckpointCommitted { step: 20, name: text(), ..CheckpointCommitted::default() };
    log.emit(Kind::CheckpointCommitted(checkpoint));
    log.save();
    log.start(RunStarted { device: text(), resumed_from_step: Some(20), ..RunStarted::default() });
    log.emit(Kind::RunFinished(RunFinished {
        outcome: Outcome::Failed,
        reason: Some(text()),
        step: 30,
        outputs: vec![text()],
        ..RunFinished::default()
    }));
    log.save();

    let mut plan = plan();
    plan.model.id = text();
    plan.preset = Some(text());
    let advice = plan.advice.as_mut().unwrap();
    (advice.memory.budget, advice.time.formula) = (text(), text());
    for row in &mut advice.explain {
        (row.value, row.reason) = (text(), text());
    }
    run.write_plan(&plan.to_toml().unwrap()).unwrap();
    run.write_provenance(&json!({ evil: [evil], "inner": {"list": [{"x": evil}]} })).unwrap();
    let mut data = data();
    data.files[0].name = text();
    for rejected in &mut data.rejections {
        rejected.first.file = text();
        (rejected.example.field, rejected.example.reason, rejected.example.fix) = (text(), text(), text());
    }
    data.duplicates.note = Some(text());
    fs::write(run.data().join("report.json"), serde_json::to_vec(&data).unwrap()).unwrap();
    fs::write(run.outputs().join("SERVE.md"), evil).unwrap();
    // As much of it as a file name may hold.
    let name: String = evil.chars().filter(|c| !matches!(c, '/' | '\0')).take(60).collect();
    if !matches!(name.as_str(), "" | "." | "..") {
        let _ = fs::write(run.outputs().join(name), "x");
    }
    run
}
