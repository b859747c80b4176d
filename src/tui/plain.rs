//! Formats each event as one line, and the state of a run as one sentence.

use sparktune_app::findings::{Finding, Severity};
use sparktune_app::members_of_run::{MemberRow, members};
use sparktune_app::next_steps::{gone_on_elsewhere, resume_command};
use sparktune_app::shell::run_argument;
use sparktune_base::escape::escape;
use sparktune_base::units::{
    bytes, clock, count, counted, duration, loss, milliseconds, or_unknown, tokens_per_s,
};
use sparktune_runlog::{
    CheckpointCommitted, DeviceSample, Eval, Event, Fp8Loss, GpuSample, HeadEval, Kind, Liveness, Members,
    Outcome, Progress, RunDir, RunFinished, RunStarted, RunView, Sample, Step,
};

use crate::held_out::{base_to_best, exported, of_zero_line};
use crate::spoken::{answered, spoken};
use crate::state::outcome_word;

/// The largest number of characters shown of a generation; the log has all of it.
const SAMPLE_CHARS: usize = 300;

/// Formats the event as one line without a newline. `view`, to which the event was already applied, supplies
/// totals, averages and the remaining time.
pub fn event_line(event: &Event, view: &RunView) -> String {
    let (kind, words) = event_words(event, view);
    format!("{} UTC {kind:<10} {words}", clock(event.time_us))
}

/// Returns the event's kind in one word and its content as text, escaped.
pub(crate) fn event_words(event: &Event, view: &RunView) -> (&'static str, String) {
    let (kind, parts) = match &event.kind {
        Kind::RunStarted(started) => ("start", run_started(event.attempt, started)),
        Kind::Phase(phase) => {
            let detail = phase.detail.as_deref().map(|detail| escape(detail).into_owned());
            ("phase", [Some(escape(&phase.phase).into_owned()), detail].into_iter().flatten().collect())
        }
        Kind::Progress(progress) => ("progress", vec![progress_words(progress)]),
        Kind::Step(step) => ("step", step_parts(step, view)),
        Kind::Eval(eval) => ("eval", eval_parts(eval, view)),
        Kind::Fp8Loss(losses) => ("fp8", vec![format!("step {}", count(losses.step)), fp8_loss(losses)]),
        Kind::HeadEval(eval) => ("mtp", vec![format!("step {}", count(eval.step)), head_eval(eval)]),
        Kind::Sample(sample) => ("sample", sample_parts(sample)),
        Kind::DeviceSample(sample) => ("device", device_parts(sample)),
        Kind::CheckpointCommitted(checkpoint) => ("checkpoint", checkpoint_parts(checkpoint)),
        Kind::ControlApplied(control) => (
            "control",
            vec![format!("{} carried out at step {}", escape(&control.action), count(control.step))],
        ),
        Kind::Members(members) => ("members", members_parts(members)),
        Kind::MemberSamples(_) => ("ranks", members(view).iter().map(member_words).collect()),
        Kind::Warning(warning) => ("warning", vec![escape(&warning.message).into_owned()]),
        Kind::RunFinished(finished) => ("finished", run_finished(finished, view)),
        Kind::Unknown(kind) => ("other", vec![format!("'{}', written by a newer sparktune", escape(kind))]),
    };
    (kind, parts.join(" · "))
}

fn run_started(attempt: u32, started: &RunStarted) -> Vec<String> {
    let mut parts = vec![format!("attempt {attempt}")];
    let texts = [&started.model, &started.method, &started.device];
    parts.extend(texts.into_iter().filter(|t| !t.is_empty()).map(|t| escape(t).into_owned()));
    parts.extend(started.total_steps.map(|steps| counted(steps, "step")));
    parts.extend(
        started.epochs.map(|epochs| format!("{epochs} epoch{}", if epochs == 1.0 { "" } else { "s" })),
    );
    parts.extend(started.resumed_from_step.map(|step| format!("resumed from step {}", count(step))));
    parts.extend(started.order_seed.map(|seed| format!("data in another order, of seed {seed}")));
    if !started.sparktune.is_empty() {
        parts.push(format!("sparktune {}", escape(&started.sparktune)));
    }
    parts
}

fn members_parts(said: &Members) -> Vec<String> {
    let ranks: Vec<String> = said.members.iter().map(ToString::to_string).collect();
    let mut parts = vec![format!("from step {}", count(said.step)), format!("ranks {}", ranks.join(", "))];
    if !said.shares.is_empty() {
        let shares: Vec<String> = said.shares.iter().map(ToString::to_string).collect();
        parts.push(format!("in shares of {}", shares.join(", ")));
    }
    parts.extend(said.lost.iter().map(|lost| format!("without {}: {}", lost.rank, escape(&lost.reason))));
    parts
}

/// `rank 2 at 10.0.0.3: training, 3 of 6, 41 ms each, latency 0.40 ms, drops 1`
fn member_words(row: &MemberRow) -> String {
    let MemberRow { rank, at, state, share, speed, latency, drops, .. } = row;
    format!("rank {rank} at {at}: {state}, {share}, {speed}, latency {latency}, drops {drops}")
}

fn progress_words(progress: &Progress) -> String {
    let Progress { phase, done, total, unit } = progress;
    let amount = |n: u64| if unit == "bytes" { bytes(n) } else { count(n) };
    let share = total.filter(|total| *total > 0).map(|total| {
        let percent = u128::from(*done) * 100 / u128::from(total);
        format!(" of {} ({percent} %)", amount(total))
    });
    let unit = if unit == "bytes" { "" } else { unit };
    format!("{} {}{} {}", escape(phase), amount(*done), share.unwrap_or_default(), escape(unit))
        .trim_end()
        .to_owned()
}

fn step_parts(step: &Step, view: &RunView) -> Vec<String> {
    let total = or_unknown(view.total_steps(), count);
    let average = view.loss_ema.map(|ema| format!(" (avg {})", loss(ema))).unwrap_or_default();
    let exchange = step
        .exchange_ms
        .map(|ms| format!("exchange {} of {}", milliseconds(ms), or_unknown(step.exchange_bytes, bytes)));
    let parts = [
        format!("{}/{total}", count(step.step)),
        format!("epoch {}", or_unknown(step.epoch, |e| format!("{e:.2}"))),
        format!("loss {}{average}", loss(step.loss_nats)),
        format!("lr {}", or_unknown(step.lr, |lr| format!("{lr:.2e}"))),
        format!("grad {}", or_unknown(step.grad_norm, |norm| format!("{norm:.3}"))),
        format!("took {}", or_unknown(step.step_ms, milliseconds)),
        format!("{} tok/s", or_unknown(step.tokens_per_s, tokens_per_s)),
        format!("mem {}", or_unknown(step.mem_used_bytes, bytes)),
        format!("left {}", or_unknown(view.eta(), |eta| duration(eta.seconds))),
    ];
    parts.into_iter().chain(exchange).collect()
}

fn eval_parts(eval: &Eval, view: &RunView) -> Vec<String> {
    let note = if eval.step == 0 {
        format!(" ({})", of_zero_line(view))
    } else if view.best_eval().is_some_and(|best| best.step == eval.step) {
        " (best)".to_owned()
    } else {
        String::new()
    };
    vec![
        format!("step {}", count(eval.step)),
        format!("loss {}{note}", loss(eval.loss_nats)),
        counted(eval.examples, "example"),
        counted(eval.target_tokens, "trained token"),
        format!("took {}", or_unknown(eval.eval_ms, milliseconds)),
    ]
}

/// `held-out loss 1.2345 with fp8, 1.2340 in bf16 (+0.04 %)`
pub(crate) fn fp8_loss(losses: &Fp8Loss) -> String {
    let Fp8Loss { fp8_nats, bf16_nats, held_out, .. } = losses;
    let rows = if *held_out { "held-out loss" } else { "loss on the first step's packs" };
    let more = fp8_nats.zip(*bf16_nats).map(|(fp8, bf16)| format!(" ({:+.2} %)", 100.0 * (fp8 / bf16 - 1.0)));
    format!(
        "{rows} {} with fp8, {} in bf16{}",
        or_unknown(*fp8_nats, loss),
        or_unknown(*bf16_nats, loss),
        more.unwrap_or_default()
    )
}

/// `eval loss of the MTP head 1.2345 (drafted tokens 1.0000, 1.3333, 1.7000)`
fn head_eval(eval: &HeadEval) -> String {
    let each: Vec<String> = eval.draft_nats.iter().map(|nats| loss(*nats)).collect();
    let each = if each.len() > 1 { format!(" (drafted tokens {})", each.join(", ")) } else { String::new() };
    format!("eval loss of the MTP head {}{each}", loss(eval.loss_nats))
}

fn sample_parts(sample: &Sample) -> Vec<String> {
    let quoted = |text: &str| {
        let cut: String = text.chars().take(SAMPLE_CHARS).collect();
        let more = if cut.len() < text.len() { "…" } else { "" };
        format!("\"{}{more}\"", escape(&cut))
    };
    vec![
        format!("step {}", count(sample.step)),
        format!("{} → {}", quoted(&spoken(&sample.prompt)), quoted(answered(&sample.text))),
    ]
}

fn checkpoint_parts(checkpoint: &CheckpointCommitted) -> Vec<String> {
    let mut parts = vec![
        escape(&checkpoint.name).into_owned(),
        bytes(checkpoint.bytes),
        format!("took {}", or_unknown(checkpoint.commit_ms, milliseconds)),
    ];
    if checkpoint.best {
        parts.push("best".to_owned());
    }
    parts
}

fn device_parts(sample: &DeviceSample) -> Vec<String> {
    let mut parts = vec![
        format!(
            "mem {} of {}{}",
            or_unknown(sample.mem_used_bytes, bytes),
            or_unknown(sample.mem_total_bytes, bytes),
            if sample.mem_unified { " unified" } else { "" }
        ),
        format!("process {}", or_unknown(sample.process_rss_bytes, bytes)),
        format!("pressure {}", or_unknown(sample.mem_pressure_some_percent, |p| format!("{p:.0} %"))),
        format!("cpu {}", or_unknown(sample.cpu_percent, |p| format!("{p:.0} %"))),
    ];
    parts.extend(sample.gpus.iter().map(gpu_words));
    parts
}

fn gpu_words(gpu: &GpuSample) -> String {
    let mut words = format!(
        "gpu{} {} % {} °C {} W {} MHz",
        gpu.index,
        or_unknown(gpu.busy_percent, |v| v.to_string()),
        or_unknown(gpu.temperature_celsius, |v| v.to_string()),
        or_unknown(gpu.power_watts, |v| format!("{v:.0}")),
        or_unknown(gpu.sm_clock_mhz, |v| v.to_string()),
    );
    if let Some(throttle) = &gpu.throttle {
        words.push_str(&format!(" limited by {}", escape(throttle)));
    }
    words
}

fn run_finished(finished: &RunFinished, view: &RunView) -> Vec<String> {
    let mut parts = vec![outcome_word(finished.outcome).to_owned()];
    parts.extend(finished.reason.as_deref().map(|reason| escape(reason).into_owned()));
    parts.push(steps_in_words(finished.step, view));
    match view.head_evals.back() {
        Some(eval) if finished.step == 0 => {
            parts.push(format!("eval loss of the MTP head {}", loss(eval.loss_nats)));
        }
        _ => {
            parts.push(format!("loss {}", or_unknown(finished.final_loss_nats, loss)));
            parts.push(format!("eval {}", or_unknown(finished.eval_loss_nats, loss)));
        }
    }
    parts.extend(base_to_best(view));
    parts.extend(exported(view));
    // How far the estimate was off is a matter of our tests.
    parts.extend(finished.mem_peak_bytes.map(|peak| format!("memory at most {}", bytes(peak))));
    parts.extend(finished.outputs.iter().map(|output| escape(output).into_owned()));
    parts
}

/// Formats a finding about the machine as lines of text. `mark` precedes what was found, and `width` is that
/// of the first column.
pub fn finding_text(finding: &Finding, mark: &str, width: usize) -> String {
    let Finding { what, found, advice, severity } = finding;
    let advice = advice.as_ref().map_or(String::new(), |advice| {
        let sign = if *severity == Severity::Problem { "!" } else { "·" };
        format!("{:width$}  {sign} {}\n", "", escape(advice))
    });
    format!("{what:width$}  {mark}{}\n{advice}", escape(found))
}

/// Describes in one sentence the state of the run and the next step for the user.
pub fn how_it_stands(run: &RunDir, liveness: Liveness, view: &RunView) -> String {
    format!("{}: {}", escape(&run.name()), standing(&run_argument(run), liveness, view))
}

fn steps_of_text_model(view: &RunView) -> u64 {
    // At the end of a long log, there may be no event of a step.
    view.finished().map_or(0, |finished| finished.step).max(view.steps_done())
}

/// Counts the steps of the text model, or those of the MTP head if there are none.
fn steps_in_words(of_text_model: u64, view: &RunView) -> String {
    match (of_text_model, view.checkpoints.back()) {
        (0, Some(checkpoint)) if checkpoint.step > 0 => {
            format!("{} of the MTP head", counted(checkpoint.step, "step"))
        }
        (steps, _) => counted(steps, "step"),
    }
}

/// Says where a run continues that has a checkpoint of this step. Checkpoints count the steps of the text
/// model and of the MTP head, and the events of steps those of the text model.
pub(crate) fn from_checkpoint(step: u64, view: &RunView) -> String {
    let text_model = steps_of_text_model(view);
    match step.saturating_sub(text_model) {
        of_head if of_head > 0 && text_model > 0 => {
            format!("after {} of the MTP head", counted(of_head, "step"))
        }
        _ => format!("from step {}", count(step)),
    }
}

/// Like [`how_it_stands`], without the name. `run` is the argument for `sparktune resume`, quoted for a shell
/// and escaped for a terminal.
pub(crate) fn standing(run: &str, liveness: Liveness, view: &RunView) -> String {
    let step = count(view.steps_done());
    let resume = || {
        let command = resume_command(run, view);
        match view.checkpoints.back() {
            Some(checkpoint) => format!("{command} continues {}", from_checkpoint(checkpoint.step, view)),
            None => {
                format!("{command} starts again from the beginning, because there is no checkpoint yet")
            }
        }
    };
    match liveness {
        Liveness::NotStarted => "the trainer has not started".into(),
        Liveness::Running => format!("running, step {step}"),
        Liveness::Stalled { silent_s } => format!(
            "stalled; the trainer is alive but has logged nothing for {} (step {step})",
            duration(std::time::Duration::from_secs(silent_s).as_secs_f64())
        ),
        Liveness::Crashed => format!(
            "crashed after step {step}: the trainer was killed, or its log (in logs/) says why. {}{}",
            gone_on_elsewhere(view).map(|elsewhere| elsewhere + ". Otherwise ").unwrap_or_default(),
            resume()
        ),
        Liveness::Gone => "the run folder is gone; was it moved or deleted?".into(),
        Liveness::Finished { outcome: Outcome::Completed } => {
            let parts = [Some(format!("completed, {}", steps_in_words(steps_of_text_model(view), view)))];
            let parts = parts.into_iter().chain([base_to_best(view), exported(view)]);
            parts.flatten().collect::<Vec<_>>().join("; ")
        }
        Liveness::Finished { outcome: Outcome::Diverged } => {
            let why = view.finished().and_then(|finished| finished.reason.as_deref()).unwrap_or_default();
            format!("diverged, {}: {}", counted(view.steps_done(), "step"), escape(why))
        }
        Liveness::Finished { outcome } => {
            let reason =
                view.finished().and_then(|f| f.reason.as_deref()).map(|r| format!(" ({})", escape(r)));
            // What failed would fail again, and the reason says what to do about it.
            let is_mended = outcome != Outcome::Failed || reason.is_none();
            let first = if is_mended { "" } else { "When that is put right, " };
            let reason = reason.unwrap_or_default();
            format!("{} at step {step}{reason}. {first}{}", outcome_word(outcome), resume())
        }
    }
}

#[cfg(test)]
mod tests {
    use sparktune_runlog::{ControlApplied, LostMember, Phase, Warning};

    use super::*;

    struct Log {
        view: RunView,
        seq: u64,
    }

    fn log() -> Log {
        Log { view: RunView::default(), seq: 0 }
    }

    impl Log {
        fn line(&mut self, kind: Kind) -> String {
            self.seq += 1;
            let event = Event {
                attempt: 1,
                seq: self.seq,
                time_us: 1_763_645_250_000_000 + self.seq * 500_000,
                kind,
            };
            self.view.apply(&event);
            event_line(&event, &self.view)
        }
    }

    #[test]
    fn a_run_reads_as_lines() {
        let mut log = log();
        let mut lines = Vec::new();
        for kind in [
            Kind::RunStarted(RunStarted {
                sparktune: "0.1.0".into(),
                model: "Qwen/Qwen3.5-2B".into(),
                method: "lora".into(),
                device: "cpu, 2 cores".into(),
                total_steps: Some(1200),
                epochs: Some(3.0),
                resumed_from_step: None,
                order_seed: None,
                from: None,
            }),
            Kind::Phase(Phase { phase: "train".into(), detail: Some("2 epochs left".into()) }),
            Kind::Progress(Progress {
                phase: "tokenise".into(),
                done: 1500,
                total: Some(3000),
                unit: "examples".into(),
            }),
            Kind::Progress(Progress {
                phase: "load".into(),
                done: 1 << 30,
                total: Some(4 << 30),
                unit: "bytes".into(),
            }),
            Kind::Eval(Eval { step: 0, loss_nats: 2.31, examples: 8, ..Eval::default() }),
            Kind::Step(Step { step: 1, loss_nats: 2.5, ..Step::default() }),
            Kind::Step(Step {
                step: 2,
                epoch: Some(0.005),
                loss_nats: 2.0,
                target_tokens: 900,
                tokens: 2048,
                lr: Some(1.9e-4),
                grad_norm: Some(0.8312),
                step_ms: Some(412.4),
                tokens_per_s: Some(4966.0),
                mem_used_bytes: Some(3 << 30),
                ..Step::default()
            }),
            Kind::Step(Step { step: 3, loss_nats: f64::NAN, ..Step::default() }),
            Kind::Eval(Eval {
                step: 3,
                loss_nats: 1.25,
                target_tokens: 1234,
                examples: 8,
                eval_ms: Some(80.0),
            }),
            Kind::Fp8Loss(Fp8Loss {
                step: 3,
                fp8_nats: Some(1.2505),
                bf16_nats: Some(1.25),
                target_tokens: 1234,
                held_out: true,
            }),
            Kind::Fp8Loss(Fp8Loss { step: 3, bf16_nats: Some(1.25), ..Fp8Loss::default() }),
            Kind::HeadEval(HeadEval {
                step: 3,
                loss_nats: 1.5,
                draft_nats: vec![1.25, 1.75],
                ..HeadEval::default()
            }),
            Kind::CheckpointCommitted(CheckpointCommitted {
                step: 3,
                name: "step-000003".into(),
                bytes: 12 << 20,
                commit_ms: Some(34.0),
                best: true,
            }),
            Kind::DeviceSample(DeviceSample {
                mem_used_bytes: Some(1 << 30),
                mem_total_bytes: Some(128 << 30),
                mem_unified: true,
                gpus: vec![GpuSample {
                    sm_clock_mhz: Some(850),
                    throttle: Some("power cap".into()),
                    ..Default::default()
                }],
                ..DeviceSample::default()
            }),
            Kind::Members(Members {
                step: 4,
                epoch: 1,
                members: vec![0, 2],
                shares: vec![2, 1],
                lost: vec![LostMember { rank: 1, reason: "it was silent for 5 s".into() }],
            }),
            Kind::ControlApplied(ControlApplied { id: "a".into(), action: "stop".into(), step: 3 }),
            Kind::RunFinished(RunFinished {
                outcome: Outcome::Stopped,
                reason: Some("asked to".into()),
                step: 3,
                final_loss_nats: None,
                eval_loss_nats: Some(1.25),
                best_step: Some(3),
                best_eval_nats: Some(1.25),
                exported_step: None,
                mem_peak_bytes: Some(2_900_000_000),
                mem_predicted_bytes: Some(3_100_000_000),
                outputs: vec!["outputs/adapter".into()],
            }),
            Kind::Unknown("weather".into()),
        ] {
            lines.push(log.line(kind));
        }
        let expected = "\
13:27:30 UTC start      attempt 1 · Qwen/Qwen3.5-2B · lora · cpu, 2 cores · 1,200 steps · 3 epochs · sparktune 0.1.0
13:27:31 UTC phase      train · 2 epochs left
13:27:31 UTC progress   tokenise 1,500 of 3,000 (50 %) examples
13:27:32 UTC progress   load 1.1 GB of 4.3 GB (25 %)
13:27:32 UTC eval       step 0 · loss 2.3100 (the base model) · 8 examples · 0 trained tokens · took –
13:27:33 UTC step       1/1,200 · epoch – · loss 2.5000 (avg 2.5000) · lr – · grad – · took – · – tok/s · mem – · left –
13:27:33 UTC step       2/1,200 · epoch 0.01 · loss 2.0000 (avg 2.4500) · lr 1.90e-4 · grad 0.831 · took 412 ms · 4,966 tok/s · mem 3.2 GB · left 9 min 59 s
13:27:34 UTC step       3/1,200 · epoch – · loss NaN (avg 2.4500) · lr – · grad – · took – · – tok/s · mem – · left 9 min 59 s
13:27:34 UTC eval       step 3 · loss 1.2500 (best) · 8 examples · 1,234 trained tokens · took 80 ms
13:27:35 UTC fp8        step 3 · held-out loss 1.2505 with fp8, 1.2500 in bf16 (+0.04 %)
13:27:35 UTC fp8        step 3 · loss on the first step's packs – with fp8, 1.2500 in bf16
13:27:36 UTC mtp        step 3 · eval loss of the MTP head 1.5000 (drafted tokens 1.2500, 1.7500)
13:27:36 UTC checkpoint step-000003 · 12.6 MB · took 34 ms · best
13:27:37 UTC device     mem 1.1 GB of 137 GB unified · process – · pressure – · cpu – · gpu0 – % – °C – W 850 MHz limited by power cap
13:27:37 UTC members    from step 4 · ranks 0, 2 · in shares of 2, 1 · without 1: it was silent for 5 s
13:27:38 UTC control    stop carried out at step 3
13:27:38 UTC finished   stopped · asked to · 3 steps · loss – · eval 1.2500 · base 2.3100 → best 1.2500 at step 3 · memory at most 2.9 GB · outputs/adapter
13:27:39 UTC other      'weather', written by a newer sparktune";
        assert_eq!(lines.join("\n"), expected);
        assert_eq!(
            standing("r", Liveness::Finished { outcome: Outcome::Stopped }, &log.view),
            "stopped at step 3 (asked to). `sparktune resume --cluster r` (or `sparktune resume r` on every rank, where another launcher started them) continues from step 3"
        );
        let killed = standing("r", Liveness::Crashed, &log.view);
        assert!(!killed.contains("go on without this one"), "{killed}");
        log.line(Kind::Members(Members { step: 4, members: vec![0, 1, 2], ..Members::default() }));
        let killed = standing("r", Liveness::Crashed, &log.view);
        let told = ["The other ranks may go on without this one", "Otherwise `sparktune resume --cluster r`"];
        assert!(told.iter().all(|words| killed.contains(words)), "{killed}");
        let head = CheckpointCommitted { step: 3 + 18, name: "step-000021".into(), ..Default::default() };
        log.line(Kind::CheckpointCommitted(head));
        assert_eq!(
            standing("r", Liveness::Finished { outcome: Outcome::Stopped }, &log.view),
            "stopped at step 3 (asked to). `sparktune resume --cluster r` (or `sparktune resume r` on every rank, where another launcher started them) continues after 18 steps of the MTP head"
        );
    }

    #[test]
    fn a_run_of_the_head_alone_counts_the_steps_of_the_head() {
        let mut log = log();
        log.line(Kind::HeadEval(HeadEval { step: 120, loss_nats: 1.5, ..HeadEval::default() }));
        log.line(Kind::CheckpointCommitted(CheckpointCommitted { step: 120, ..Default::default() }));
        let outcome = Outcome::Completed;
        let line = log.line(Kind::RunFinished(RunFinished { outcome, ..RunFinished::default() }));
        let words = "completed · 120 steps of the MTP head · eval loss of the MTP head 1.5000";
        assert!(line.ends_with(words), "{line}");
        let stands = standing("r", Liveness::Finished { outcome }, &log.view);
        assert!(stands.starts_with("completed, 120 steps of the MTP head"), "{stands}");
    }

    #[test]
    fn text_from_data_and_models_stays_on_its_line_and_cannot_steer_the_terminal() {
        let evil = "a\u{1b}[2J\nb\u{202e}c\u{9b}1m".to_owned();
        let kinds = [
            Kind::RunStarted(RunStarted {
                model: evil.clone(),
                device: evil.clone(),
                ..RunStarted::default()
            }),
            Kind::Phase(Phase { phase: evil.clone(), detail: Some(evil.clone()) }),
            Kind::Progress(Progress { phase: evil.clone(), unit: evil.clone(), ..Progress::default() }),
            Kind::Sample(Sample { prompt: evil.clone(), text: evil.clone(), ..Sample::default() }),
            Kind::CheckpointCommitted(CheckpointCommitted {
                name: evil.clone(),
                ..CheckpointCommitted::default()
            }),
            Kind::ControlApplied(ControlApplied { action: evil.clone(), ..ControlApplied::default() }),
            Kind::Members(Members {
                lost: vec![LostMember { rank: 1, reason: evil.clone() }],
                ..Members::default()
            }),
            Kind::Warning(Warning { message: evil.clone(), step: None }),
            Kind::RunFinished(RunFinished {
                reason: Some(evil.clone()),
                outputs: vec![evil.clone()],
                ..RunFinished::default()
            }),
            Kind::Unknown(evil.clone()),
        ];
        let mut log = log();
        for kind in kinds {
            let line = log.line(kind);
            assert!(line.contains("a\\u{1b}[2J\\nb\\u{202e}c\\u{9b}1m"), "{line}");
            assert!(!line.contains(['\u{1b}', '\n', '\u{202e}', '\u{9b}']), "{line:?}");
        }
    }

    #[test]
    fn a_long_generation_is_cut_where_a_character_ends() {
        let line = log().line(Kind::Sample(Sample { text: "ü".repeat(5000), ..Sample::default() }));
        assert!(line.ends_with("ü…\""), "{line}");
        assert_eq!(line.matches('ü').count(), SAMPLE_CHARS);
    }
}
