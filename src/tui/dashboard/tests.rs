//! Tests of the dashboard as snapshots, and with real run folders. The file is long because all of them share
//! the runs and the screen that are made here.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use proptest::prelude::*;
use sparktune_plan::{
    Answers, Catalog, DataFacts, Gpu, GpuMemory, LengthBucket, MachineFacts, Origin, Plan, Rates,
};
use sparktune_runlog::{
    Action, CheckpointCommitted, ControlApplied, ControlInbox, DeviceSample, Eval, Event, EventWriter,
    GpuSample, HeadEval, Kind, Lease, MemberSample, MemberSamples, MemberState, Outcome, Phase, Progress,
    RunFinished, RunStarted, Sample, Step, Warning,
};

use super::*;
use crate::screen::picture::{self, ASCII, NO_COLOUR, TRUE_COLOUR};

const NAME: &str = "20261120T132730Z-qwen3.5-2b-lora-3fa9";

/// A made-up run, written event by event at fixed times.
struct Story {
    known: Known,
    attempt: u32,
    seq: u64,
    time_us: u64,
    noise: u64,
    /// An amount added to each loss.
    worse: f64,
    /// The loss rises after step 1,600.
    diverges: bool,
}

impl Story {
    fn new() -> Self {
        Self {
            known: Known::default(),
            attempt: 0,
            seq: 0,
            time_us: 1_763_645_250_000_000,
            noise: 7,
            worse: 0.0,
            diverges: false,
        }
    }

    fn tell(&mut self, ms: u64, kind: Kind) {
        self.seq += 1;
        self.time_us += ms * 1000;
        self.known.take(&Event { attempt: self.attempt, seq: self.seq, time_us: self.time_us, kind });
    }

    fn start(&mut self, resumed_from_step: Option<u64>) {
        (self.attempt, self.seq) = (self.attempt + 1, 0);
        self.tell(
            60_000,
            Kind::RunStarted(RunStarted {
                sparktune: "0.1.0".into(),
                model: "Qwen/Qwen3.5-2B".into(),
                method: "lora".into(),
                device: "NVIDIA GB10".into(),
                total_steps: Some(4000),
                epochs: Some(3.0),
                resumed_from_step,
                order_seed: None,
                from: None,
            }),
        );
    }

    fn phase(&mut self, phase: &str, detail: &str) {
        let phase = Phase { phase: phase.into(), detail: Some(detail.into()) };
        self.tell(2_000, Kind::Phase(phase));
    }

    fn random(&mut self) -> f64 {
        self.noise =
            self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.noise >> 40) as f64 / (1 << 24) as f64 - 0.5
    }

    fn step(&mut self, step: u64) {
        let (a, b, c) = (self.random(), self.random(), self.random());
        let at = step as f64;
        let loss = 1.12 + self.worse + 1.5 * (-at / 420.0).exp() + a * 0.3;
        let loss_nats = match step {
            902..=906 => f64::NAN,
            1290 => 2.6,
            1601.. if self.diverges => loss + (at - 1600.0) / 160.0,
            _ => loss,
        };
        let slow = if (1900..2150).contains(&step) { 1.35 } else { 1.0 };
        let step_ms = (1080.0 + b * 60.0) * slow;
        self.tell(
            step_ms as u64,
            Kind::Step(Step {
                step,
                epoch: Some(at / 1333.4),
                loss_nats,
                target_tokens: 2990,
                tokens: 5211,
                lr: Some(2e-4 * (at / 120.0).min(1.0) * (0.55 + 0.45 * (at / 1273.0).cos())),
                grad_norm: Some((0.6 + c * 0.4 + (-at / 200.0).exp() * 3.0).max(0.05)),
                step_ms: Some(step_ms),
                tokens_per_s: Some(5211.0 / step_ms * 1e3),
                mem_used_bytes: Some(38_654_705_664 + step * 1000),
                data_ms: Some(14.0 + b * 6.0),
                optimizer_ms: Some(61.0),
                exchange_ms: None,
                exchange_bytes: None,
            }),
        );
        if step.is_multiple_of(10) {
            self.tell(
                0,
                Kind::DeviceSample(DeviceSample {
                    mem_total_bytes: Some(128_000_000_000),
                    mem_available_bytes: Some(77_000_000_000),
                    mem_used_bytes: Some(51_000_000_000),
                    mem_unified: true,
                    mem_pressure_some_percent: Some((c * 4.0).max(0.0)),
                    mem_pressure_full_percent: Some(0.0),
                    process_rss_bytes: Some(39_000_000_000),
                    process_peak_rss_bytes: Some(41_500_000_000),
                    cpu_percent: Some(12.0 + b * 8.0),
                    gpus: vec![GpuSample {
                        busy_percent: Some(96),
                        temperature_celsius: Some((66.0 + a * 6.0) as u32),
                        power_watts: Some(88.0 + c * 9.0),
                        sm_clock_mhz: Some(if slow > 1.0 { 1_480 } else { 2_404 }),
                        sm_clock_max_mhz: Some(2_418),
                        ..GpuSample::default()
                    }],
                }),
            );
        }
        if step.is_multiple_of(200) {
            let best = step.is_multiple_of(400);
            let loss_nats = 1.16 + 1.45 * (-at / 430.0).exp() + if best { 0.0 } else { 0.04 };
            let (target_tokens, examples, eval_ms) = (81_234, 412, Some(9_321.0));
            self.tell(9_400, Kind::Eval(Eval { step, loss_nats, target_tokens, examples, eval_ms }));
            let (name, bytes) = (format!("step-{step:06}"), 412_000_000);
            let committed = CheckpointCommitted { step, name, bytes, commit_ms: Some(812.0), best };
            self.tell(900, Kind::CheckpointCommitted(committed));
        }
    }

    fn sample(&mut self, step: u64, prompt: &str, text: &str) {
        let (prompt, text) = (prompt.into(), text.into());
        self.tell(700, Kind::Sample(Sample { step, prompt, text, tokens: 48 }));
    }

    fn warn(&mut self, message: &str, step: u64) {
        self.tell(0, Kind::Warning(Warning { message: message.into(), step: Some(step) }));
    }

    fn early() -> Self {
        let mut story = Self::new();
        story.start(None);
        story.phase("load", "reading the weights of Qwen/Qwen3.5-2B");
        let (done, total) = (2_900_000_000, Some(4_400_000_000));
        story.tell(900, Kind::Progress(Progress { phase: "load".into(), done, total, unit: "bytes".into() }));
        story
    }

    /// A run that trained to step 1,700, resumed from 1,600, and is now at step `last`.
    fn until(last: u64) -> Self {
        let mut story = Self::early();
        story.phase("train", "4000 optimizer steps");
        story.tell(9_400, Kind::Eval(Eval { step: 0, loss_nats: 2.8, ..Eval::default() }));
        story.diverges = true;
        for step in 1..=1700.min(last) {
            story.step(step);
            if step == 907 {
                story.warn(
                    "5 steps had no finite loss (902 to 906) and changed nothing; see gradient norm",
                    906,
                );
            }
        }
        story.sample(1600, "What is a lease?", "A promise that ends by itself.");
        if last > 1700 {
            story.diverges = false;
            story.start(Some(1600));
            story.phase("train", "2400 optimizer steps");
            (1601..=last).for_each(|step| story.step(step));
            story.warn("the GPU's clock fell to 1480 MHz (2404 before); tok/s 3,570 (4,820 before)", 2000);
        }
        story
    }

    fn finish(mut self, outcome: Outcome, reason: Option<&str>) -> Self {
        let step = self.known.view.steps_done();
        let completed = outcome == Outcome::Completed;
        let outputs = ["outputs/adapter", "outputs/merged", "outputs/merged-mtp", "outputs/SERVE.md"];
        let finished = RunFinished {
            outcome,
            reason: reason.map(str::to_owned),
            step,
            final_loss_nats: Some(1.1234),
            eval_loss_nats: Some(1.1602),
            best_step: None,
            best_eval_nats: None,
            exported_step: completed.then_some(step),
            mem_peak_bytes: Some(42_000_000_000),
            mem_predicted_bytes: None,
            outputs: if completed { outputs.map(str::to_owned).to_vec() } else { Vec::new() },
        };
        self.tell(40_000, Kind::RunFinished(finished));
        self
    }

    fn dashboard(self, liveness: Liveness) -> Dashboard {
        let known = Known { liveness: Some(liveness), ..self.known };
        let mut dashboard = Dashboard::of(Reading::of(NAME.into(), known), None);
        dashboard.seen_warnings = dashboard.here.known.noted_warnings;
        dashboard
    }

    fn running(last: u64) -> Dashboard {
        Self::until(last).dashboard(Liveness::Running)
    }
}

fn press(dashboard: &mut Dashboard, keys: &str) -> Next {
    let mut next = Next::Keep;
    for c in keys.chars() {
        let code = match c {
            '←' => KeyCode::Left,
            '→' => KeyCode::Right,
            '↑' => KeyCode::Up,
            '↓' => KeyCode::Down,
            '⏎' => KeyCode::Enter,
            '⇥' => KeyCode::Tab,
            '⇟' => KeyCode::End,
            '⎋' => KeyCode::Esc,
            c => KeyCode::Char(c),
        };
        next = dashboard.update(Input::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    }
    next
}

/// Compares what `act` changes on the screen with a snapshot.
#[track_caller]
fn change<T>(name: &str, dashboard: &mut Dashboard, act: impl FnOnce(&mut Dashboard) -> T) {
    let before = picture::usual(dashboard);
    act(dashboard);
    picture::check_change(name, &before, &picture::usual(dashboard));
}

fn text(dashboard: &mut Dashboard) -> String {
    picture::text(&picture::drawn(dashboard, 100, 30, &NO_COLOUR))
}

#[test]
fn before_the_first_step_the_phase_and_its_progress_are_shown() {
    picture::check("dashboard-early", &mut Story::early().dashboard(Liveness::Running));
}

#[test]
fn a_run_midway_shows_its_course_with_evals_checkpoints_nan_and_what_was_replaced() {
    let mut dashboard = Story::running(2480);
    dashboard.seen_warnings = 1;
    picture::check_wide("dashboard-running", &mut dashboard);
    for (name, width, height, theme) in [("ascii", 80, 24, ASCII), ("60x16", 60, 16, TRUE_COLOUR)] {
        let text = picture::text(&picture::drawn(&mut dashboard, width, height, &theme));
        picture::check_text(&format!("dashboard-running-{name}"), &text);
    }
    picture::check_svg("dashboard-running-132x40", &picture::drawn(&mut dashboard, 132, 40, &TRUE_COLOUR));
}

#[test]
fn the_state_of_a_run_is_drawn_in_the_colour_of_its_role() {
    let finished = |outcome| Liveness::Finished { outcome };
    for (liveness, word, role) in [
        (Liveness::Running, "● running", Role::Good),
        (Liveness::Crashed, "✖ crashed", Role::Bad),
        (Liveness::Stalled { silent_s: 420 }, "▲ stalled", Role::Warn),
        (finished(Outcome::Completed), "✔ completed", Role::Good),
        (finished(Outcome::Stopped), "■ stopped", Role::Warn),
        (finished(Outcome::Failed), "✖ failed", Role::Bad),
        (finished(Outcome::Diverged), "▲ diverged", Role::Bad),
    ] {
        let mut dashboard = Story::until(300).dashboard(liveness);
        picture::assert_role(&picture::usual(&mut dashboard), word, role);
    }
}

#[test]
fn the_held_out_loss_of_the_head_is_a_chart_over_its_own_steps() {
    let mut story = Story::until(400);
    story.phase("mtp", "training the MTP head");
    for (step, loss_nats) in [(0, 3.5), (20, 2.75), (37, 2.5)] {
        story.tell(900, Kind::HeadEval(HeadEval { step, loss_nats, ..HeadEval::default() }));
    }
    let mut dashboard = story.dashboard(Liveness::Running);
    let screen = picture::text(&picture::drawn(&mut dashboard, 132, 60, &NO_COLOUR));
    assert!(screen.contains("held-out loss of the MTP head 2.5"), "{screen}");
}

#[test]
fn a_crashed_run_says_so_and_what_to_do() {
    picture::check("dashboard-crashed", &mut Story::until(1640).dashboard(Liveness::Crashed));
}

#[test]
fn the_running_time_goes_on_between_events_of_a_live_run_alone() {
    let mut dashboard = Story::until(1640).dashboard(Liveness::Running);
    let before = text(&mut dashboard);
    let last_us = dashboard.here.known.view.last_event_us.unwrap();
    dashboard.here.known.now_us = Some(last_us + 3_600_000_000);
    let after = text(&mut dashboard);
    assert!(before.contains("so far") && before != after, "{after}");
    dashboard.here.known.now_us = Some(0);
    assert_eq!(text(&mut dashboard), before, "a clock that was set back");
    dashboard.here.known.liveness = Some(Liveness::Crashed);
    let crashed = text(&mut dashboard);
    dashboard.here.known.now_us = Some(last_us + 3_600_000_000);
    assert_eq!(text(&mut dashboard), crashed);
}

#[test]
fn a_stalled_run_is_named_with_what_to_do() {
    let mut dashboard = Story::until(1640).dashboard(Liveness::Stalled { silent_s: 420 });
    dashboard.here.known.trainer = Some("process 4711 on spark".into());
    let screen = text(&mut dashboard);
    for words in [
        "stalled",
        "logged nothing for 7 min",
        "end process 4711 on spark",
        "sparktune resume",
        "trainer-0001.log",
    ] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
}

#[test]
fn a_finished_run_says_what_came_out_and_how_to_serve_it() {
    let story = Story::until(4000).finish(Outcome::Completed, None);
    let mut dashboard = story.dashboard(Liveness::Finished { outcome: Outcome::Completed });
    picture::check("dashboard-finished", &mut dashboard);
    picture::check_svg("dashboard-finished", &picture::usual(&mut dashboard));
    // What the machine did then is not what it does now.
    let shown = text(&mut dashboard);
    assert!(shown.contains("memory, at most") && !shown.contains("GPU "), "{shown}");
    press(&mut dashboard, "5");
    let shown = text(&mut dashboard);
    assert!(shown.contains("last measured, before the trainer ended"), "{shown}");
}

#[test]
fn a_frozen_screen_with_a_crosshair_reads_values_of_one_column() {
    let mut dashboard = Story::running(2480);
    press(&mut dashboard, "c←←←←←←←←←← ");
    picture::check("dashboard-frozen", &mut dashboard);
}

#[test]
fn another_run_is_laid_over() {
    let mut dashboard = Story::running(2480);
    let mut other = Story::new();
    other.worse = 0.42;
    other.start(None);
    (1..=2300).for_each(|step| other.step(step));
    let reading = Reading::of("20261118T090112Z-qwen3.5-2b-full-77c1".into(), other.known);
    dashboard.others.push(Other::of(reading, None));
    press(&mut dashboard, "y");
    picture::check("dashboard-compare", &mut dashboard);
}

#[test]
fn events_are_listed_newest_first() {
    let mut dashboard = Story::running(2480);
    press(&mut dashboard, "2");
    picture::check("dashboard-events", &mut dashboard);
}

#[test]
fn hostile_samples_are_spelled_out_and_wrapped() {
    let mut story = Story::until(800);
    story.sample(
        800,
        "Tell me about \u{1b}[2J\u{1b}]0;owned\u{7} terminals \u{202e}drawkcab\u{202c} and 世界",
        &format!(
            "A first line.\nA second one with a tab\there and {} which is one long word, then 端末の制御文字は表示されない。\r\nThe end.",
            "0123456789".repeat(14)
        ),
    );
    let mut dashboard = story.dashboard(Liveness::Running);
    press(&mut dashboard, "3");
    picture::check("dashboard-samples", &mut dashboard);
    let screen = text(&mut dashboard);
    assert!(!screen.contains(['\u{1b}', '\u{202e}', '\u{7}']), "{screen:?}");
}

#[test]
fn nothing_a_log_says_can_steer_the_terminal() {
    let evil = "\u{1b}[2J\u{9b}31m\n\u{202e}evil\u{7}";
    let text = || evil.to_owned();
    let mut story = Story::new();
    let started = RunStarted {
        sparktune: text(),
        model: text(),
        method: text(),
        device: text(),
        total_steps: Some(9),
        ..RunStarted::default()
    };
    story.attempt = 1;
    story.tell(1, Kind::RunStarted(started));
    story.sample(1, evil, evil);
    story.warn(evil, 1);
    let gpu = GpuSample { throttle: Some(text()), ..GpuSample::default() };
    story.tell(1, Kind::DeviceSample(DeviceSample { gpus: vec![gpu], ..DeviceSample::default() }));
    let ranks = vec![MemberSample { place: text(), ..MemberSample::default() }];
    story.tell(1, Kind::MemberSamples(MemberSamples { step: 1, ranks }));
    let committed = CheckpointCommitted { step: 1, name: text(), ..CheckpointCommitted::default() };
    story.tell(1, Kind::CheckpointCommitted(committed));
    story.step(1);
    story.tell(1, Kind::Unknown(text()));
    story.phase(evil, evil);
    for (progress, finished) in [(false, false), (true, false), (false, true)] {
        if progress {
            story.tell(1, Kind::Progress(Progress { phase: text(), done: 1, total: Some(2), unit: text() }));
        }
        if finished {
            let (reason, outputs) = (Some(text()), vec![text(), format!("{evil}SERVE.md")]);
            story.tell(1, Kind::RunFinished(RunFinished { reason, outputs, ..RunFinished::default() }));
        }
        for liveness in
            [Liveness::Running, Liveness::Crashed, Liveness::Finished { outcome: Outcome::Failed }]
        {
            let known = Known { liveness: Some(liveness), ..story.known.clone() };
            let mut dashboard = Dashboard::of(Reading::of(text(), known.clone()), None);
            dashboard.facts = Facts::of(plan(), evil);
            dashboard
                .others
                .push(Other::of(Reading::of(text(), known), Some(Plan { advice: None, ..plan() })));
            for tab in "123456".chars() {
                press(&mut dashboard, &tab.to_string());
                let screen = picture::drawn(&mut dashboard, 132, 60, &TRUE_COLOUR);
                for cell in &screen.content {
                    let symbol = cell.symbol();
                    assert!(
                        !symbol.contains(|c: char| c.is_control() || c == '\u{202e}'),
                        "{symbol:?} in panel {tab}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_parts_of_a_step_the_machine_and_the_run_have_panels() {
    let mut dashboard = Story::running(2480);
    press(&mut dashboard, "4");
    picture::check("dashboard-step", &mut dashboard);
    press(&mut dashboard, "5");
    picture::check_wide("dashboard-machine", &mut dashboard);
}

#[test]
fn the_ranks_of_a_run_of_several_machines_are_listed_and_who_is_missing_stands_out() {
    let mut story = Story::until(2480);
    let rank = |rank: usize, state, micro_batches, drops| MemberSample {
        rank,
        place: if rank == 0 { String::new() } else { format!("192.168.100.1{rank}") },
        state,
        micro_batches,
        micro_batch_ms: (state != MemberState::Gone).then_some(if rank == 2 { 1640.0 } else { 208.0 }),
        latency_ms: (rank > 0 && state != MemberState::Gone).then_some(0.21),
        drops,
    };
    let ranks = vec![
        rank(0, MemberState::Training, 8, 0),
        rank(3, MemberState::Training, 7, 1),
        rank(2, MemberState::Silent, 1, 0),
        rank(1, MemberState::Gone, 0, 2),
    ];
    story.tell(0, Kind::MemberSamples(MemberSamples { step: 2480, ranks }));
    let mut dashboard = story.dashboard(Liveness::Running);
    press(&mut dashboard, "5");
    picture::check_wide("dashboard-members", &mut dashboard);
    // However many there are, the curves keep their place.
    let mut story = Story::until(2480);
    let many = (0..40).map(|number| rank(number, MemberState::Training, 1, 0)).collect();
    story.tell(0, Kind::MemberSamples(MemberSamples { step: 2480, ranks: many }));
    let mut dashboard = story.dashboard(Liveness::Running);
    press(&mut dashboard, "5");
    let screen = text(&mut dashboard);
    assert!(screen.contains(" more") && !screen.contains("192.168.100.139"), "{screen}");
}

#[test]
fn the_time_that_a_step_waits_for_other_ranks_is_beside_them_and_a_part_of_the_step() {
    let mut story = Story::early();
    story.phase("train", "4000 optimizer steps");
    let step = Step {
        step: 1,
        loss_nats: 2.0,
        step_ms: Some(1400.0),
        data_ms: Some(14.0),
        exchange_ms: Some(120.0),
        ..Step::default()
    };
    story.tell(1400, Kind::Step(step));
    let mut dashboard = story.dashboard(Liveness::Running);
    let mut lone = Story::running(20);
    for (panel, line) in [
        ("4", "exchange      120 ms  8.6 %  waiting for other ranks"),
        ("5", "exchange  a step waits 120 ms of its 1.40 s (8.6 %), mean of the last 1"),
    ] {
        press(&mut dashboard, panel);
        let screen = text(&mut dashboard);
        assert!(screen.contains(line), "{screen}");
        press(&mut lone, panel);
        let screen = text(&mut lone);
        assert!(!screen.contains("exchange"), "a run of one process has none: {screen}");
    }
}

#[test]
fn a_run_tells_its_outputs_attempts_and_plan() {
    let story = Story::until(2480).finish(Outcome::Completed, None);
    let mut dashboard = story.dashboard(Liveness::Finished { outcome: Outcome::Completed });
    let page = "# Serving\n\n```sh\nvllm serve outputs/merged-mtp --max-model-len 8192\n```\n";
    dashboard.facts = Facts::of(Plan { advice: None, ..plan() }, page);
    press(&mut dashboard, "6");
    picture::check("dashboard-run", &mut dashboard);
    dashboard.facts = Facts::of(plan(), "a \u{1b}[31m page");
    let screen = text(&mut dashboard);
    assert!(screen.contains("\\u{1b}[31m page"), "{screen}");
    press(&mut dashboard, "↓⇟↓↓");
    let screen = text(&mut dashboard);
    assert!(screen.contains("memory  42.0 GB at most"), "{screen}");
    press(&mut dashboard, "↑");
    assert_ne!(text(&mut dashboard), screen, "up is felt at once after going beyond the end");
}

#[test]
fn esc_returns_from_the_page_on_serving_and_keys_of_the_charts_are_named_beside_them_alone() {
    let story = Story::until(2480).finish(Outcome::Completed, None);
    let mut dashboard = story.dashboard(Liveness::Finished { outcome: Outcome::Completed });
    dashboard.facts = Facts::of(Plan { advice: None, ..plan() }, "# Serving\n");
    assert!(text(&mut dashboard).contains("zoom"));
    press(&mut dashboard, "3");
    assert!(!text(&mut dashboard).contains("zoom"));
    press(&mut dashboard, "v");
    assert!(dashboard.tab == Tab::Facts && text(&mut dashboard).contains("esc back"));
    assert_eq!(press(&mut dashboard, "⎋"), Next::Draw);
    assert_eq!(dashboard.tab, Tab::Samples);
    assert_eq!(press(&mut dashboard, "⎋"), Next::Leave);
}

fn plan() -> Plan {
    let mut answers = Answers::default();
    for (name, value) in
        [("model", "Qwen/Qwen3.5-2B"), ("data", "train.jsonl"), ("method", "lora"), ("pack-length", "5376")]
    {
        answers.set(name, value, Origin::Flag).unwrap();
    }
    let catalog = Catalog::shipped();
    let facts = sparktune_plan::Facts {
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
            examples: 24_000,
            total_tokens: 24_000 * 1000,
            target_tokens: 24_000 * 600,
            p50: 1000,
            p90: 1000,
            p99: 1000,
            max: 1000,
            histogram: vec![LengthBucket { up_to: 1000, count: 24_000 }],
            ..DataFacts::default()
        },
        rates: Rates::default(),
        parent: None,
    };
    sparktune_plan::resolve(&answers, &facts).unwrap()
}

#[test]
fn a_phase_that_is_no_training_has_a_bar_of_its_own() {
    let mut story = Story::until(400);
    story.phase("mtp", "training the MTP head, 120 steps");
    story.phase("mtp", "step 24 of 120, loss 2.1234");
    let progress = Progress { phase: "mtp".into(), done: 30, total: Some(120), unit: "steps".into() };
    story.tell(2_000, Kind::Progress(progress));
    let mut dashboard = story.dashboard(Liveness::Running);
    let screen = text(&mut dashboard);
    assert!(screen.contains("30 of 120 steps · 25 %") && screen.contains("loss 2.1234"), "{screen}");
    assert!(!screen.contains(" left ="), "{screen}");
    press(&mut dashboard, "2");
    let screen = text(&mut dashboard);
    assert_eq!(screen.matches("mtp · ").count(), 1, "{screen}");
}

#[test]
fn a_run_in_folders_is_followed_asked_to_stop_and_heard() {
    let root = tempfile::tempdir().unwrap();
    let runs = RunsRoot::new(root.path());
    let run = runs.create("m", "lora").unwrap();
    let lease = Lease::acquire(&run).unwrap();
    let writer = EventWriter::open(&lease).unwrap();
    writer.emit(Kind::RunStarted(RunStarted { total_steps: Some(50), ..RunStarted::default() }));
    let step = |step| Kind::Step(Step { step, loss_nats: 1.0 / step as f64, ..Step::default() });
    writer.emit(step(1));
    let mut dashboard = Dashboard::open(run.clone(), Some(runs.clone()));
    assert_eq!(dashboard.liveness(), Some(Liveness::Running));
    assert!(text(&mut dashboard).contains("step 1/50"));
    assert_eq!(dashboard.update(Input::Tick), Next::Keep, "nothing new is not drawn");
    writer.emit(step(2));
    assert_eq!(dashboard.update(Input::Tick), Next::Draw);
    assert!(text(&mut dashboard).contains("step 2/50"));

    press(&mut dashboard, " ");
    writer.emit(step(3));
    assert_eq!(dashboard.update(Input::Tick), Next::Keep, "a frozen screen stands still");
    assert!(text(&mut dashboard).contains("step 2/50"));
    press(&mut dashboard, " ");
    assert!(text(&mut dashboard).contains("step 3/50"), "what was read meanwhile is there at once");

    press(&mut dashboard, "sn");
    let inbox = ControlInbox::new(&lease);
    assert!(inbox.poll().unwrap().requests.is_empty(), "no is no");
    press(&mut dashboard, "wsy");
    assert!(text(&mut dashboard).contains("stop after a checkpoint: requested"));
    let requests = inbox.poll().unwrap().requests;
    assert_eq!(requests.iter().map(|r| r.action).collect::<Vec<_>>(), [Action::Checkpoint, Action::Stop]);
    for request in &requests {
        let (id, action) = (request.id.clone(), request.action.as_str().into());
        writer.emit(Kind::ControlApplied(ControlApplied { id, action, step: 3 }));
        inbox.acknowledge(request).unwrap();
    }
    assert_eq!(dashboard.update(Input::Tick), Next::Draw);
    let screen = text(&mut dashboard);
    assert!(screen.contains("stop after a checkpoint: done at step 3"), "{screen}");
    assert!(screen.contains("checkpoint now: done at step 3"), "both in one look: {screen}");

    writer.emit(Kind::RunFinished(RunFinished {
        outcome: Outcome::Stopped,
        step: 3,
        ..RunFinished::default()
    }));
    drop((writer, lease));
    assert_eq!(dashboard.update(Input::Tick), Next::Draw);
    assert_eq!(dashboard.liveness(), Some(Liveness::Finished { outcome: Outcome::Stopped }));
    assert!(dashboard.how_it_stands().contains("stopped at step 3"));
    assert_eq!(dashboard.update(Input::Tick), Next::Keep);
    press(&mut dashboard, "s");
    assert!(text(&mut dashboard).contains("the run has ended"));
    assert_eq!(press(&mut dashboard, "q"), Next::Leave);
}

#[test]
fn damage_to_the_folder_is_told_in_words() {
    let root = tempfile::tempdir().unwrap();
    let runs = RunsRoot::new(root.path());
    let run = runs.create("m", "lora").unwrap();
    assert!(text(&mut Dashboard::open(run.clone(), Some(runs.clone()))).contains("not started"));
    let lease = Lease::acquire(&run).unwrap();
    let writer = EventWriter::open(&lease).unwrap();
    for step in 1..=3 {
        writer.emit(Kind::Step(Step { step, loss_nats: 1.0, ..Step::default() }));
    }
    drop((writer, lease));
    let whole = std::fs::read(run.event_file(1)).unwrap();

    let half = [&whole[..], b"{\"v\":1,\"attem"].concat();
    std::fs::write(run.event_file(1), half).unwrap();
    let mut dashboard = Dashboard::open(run.clone(), Some(runs.clone()));
    let screen = text(&mut dashboard);
    assert!(screen.contains("crashed after step 3") && screen.contains("(13 bytes)"), "{screen}");
    assert!(screen.contains("resume"), "{screen}");

    std::fs::write(run.event_file(1), &whole[..whole.len() / 2]).unwrap();
    assert_eq!(dashboard.update(Input::Tick), Next::Draw);
    let screen = text(&mut dashboard);
    let words = screen.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("was truncated or replaced"), "{screen}");

    std::fs::write(run.event_file(1), [&whole[..], b"no event\n"].concat()).unwrap();
    std::fs::write(run.event_file(2), "{\"v\":9}\n").unwrap();
    let mut newer = Dashboard::open(run.clone(), Some(runs.clone()));
    newer.update(Input::Tick);
    let screen = text(&mut newer);
    assert!(screen.contains("event format v9 is newer") && screen.contains("update sparktune"), "{screen}");
    assert!(screen.contains("unreadable") && screen.contains("step 3"), "{screen}");
    assert_eq!(newer.update(Input::Tick), Next::Keep, "said once");

    std::fs::remove_dir_all(run.path()).unwrap();
    dashboard.update(Input::Tick);
    let screen = text(&mut dashboard);
    assert!(screen.contains("gone") && screen.contains("moved or deleted"), "{screen}");
    press(&mut dashboard, "w");
    assert!(text(&mut dashboard).contains("not possible"));
}

/// Writes the log of an attempt that was killed, with this many steps and a warning after every hundredth.
/// Returns its size in bytes.
fn write_log(run: &RunDir, steps: u64) -> u64 {
    let mut log = String::new();
    let kinds = (1..=steps).flat_map(|step| {
        let kind = Kind::Step(Step {
            step,
            loss_nats: 0.7 + 1.0 / step as f64,
            target_tokens: 4_321,
            tokens: 13_000 + step,
            lr: Some(2e-4),
            grad_norm: Some(0.4),
            step_ms: Some(3_712.125),
            tokens_per_s: Some(3_461.5),
            mem_used_bytes: Some(23_456_789_012 + step),
            ..Step::default()
        });
        let message = format!("warning {step}");
        let warning =
            step.is_multiple_of(100).then_some(Kind::Warning(Warning { message, step: Some(step) }));
        std::iter::once(kind).chain(warning)
    });
    for (seq, kind) in (1..).zip(kinds) {
        log += &Event { attempt: 1, seq, time_us: seq * 1_000_000, kind }.to_line().unwrap();
    }
    std::fs::write(run.event_file(1), &log).unwrap();
    log.len() as u64
}

#[test]
fn a_long_log_is_read_in_several_looks_and_wholly() {
    let root = tempfile::tempdir().unwrap();
    let runs = RunsRoot::new(root.path());
    let run = runs.create("m", "lora").unwrap();
    let bytes = write_log(&run, 60_000);
    let mut dashboard = Dashboard::open(run, Some(runs));
    let mut looks = 0;
    while dashboard.hurries() {
        let screen = text(&mut dashboard);
        assert!(screen.contains("reading the log"), "{screen}");
        dashboard.update(Input::Tick);
        looks += 1;
        assert!(looks < 10_000);
    }
    assert_eq!((dashboard.here.bytes, dashboard.here.known.view.steps_done()), (bytes, 60_000));
    assert!(dashboard.here.known.notes.len() <= 500);
    let screen = text(&mut dashboard);
    assert!(!screen.contains("reading the log") && screen.contains("crashed"), "{screen}");
}

#[test]
fn the_bell_rings_for_an_end_and_not_for_a_backlog() {
    let root = tempfile::tempdir().unwrap();
    let runs = RunsRoot::new(root.path());
    let run = runs.create("m", "lora").unwrap();
    let lease = Lease::acquire(&run).unwrap();
    write_log(&run, 10);
    let mut dashboard = Dashboard::open(run.clone(), Some(runs));
    dashboard.update(Input::Tick);
    assert!(dashboard.liveness().is_some_and(Liveness::is_live) && !dashboard.rings());
    // As after hours in which the program was stopped: one look does not read it all.
    write_log(&run, 120_000);
    let mut looks = 0;
    loop {
        dashboard.update(Input::Tick);
        assert!(!dashboard.rings(), "the trainer goes on");
        if !dashboard.hurries() {
            break;
        }
        looks += 1;
    }
    println!("{looks} looks did not reach the end of the log");
    drop(lease);
    dashboard.update(Input::Tick);
    assert!(dashboard.rings() && !dashboard.rings());
}

#[test]
fn a_request_that_the_trainer_did_not_answer_goes_with_the_next_key_after_its_end() {
    let root = tempfile::tempdir().unwrap();
    let runs = RunsRoot::new(root.path());
    let run = runs.create("m", "lora").unwrap();
    let lease = Lease::acquire(&run).unwrap();
    write_log(&run, 10);
    let mut dashboard = Dashboard::open(run, Some(runs));
    press(&mut dashboard, "w2");
    assert_eq!(dashboard.asks.len(), 1, "it may still be answered");
    drop(lease);
    dashboard.update(Input::Tick);
    assert_eq!(dashboard.asks.len(), 1, "that it was not is told");
    press(&mut dashboard, "1");
    assert!(dashboard.asks.is_empty());
}

#[test]
fn another_run_is_chosen_from_the_list_and_taken_away_again() {
    let root = tempfile::tempdir().unwrap();
    let runs = RunsRoot::new(root.path());
    let run = runs.create("this", "lora").unwrap();
    let mut lonely = Dashboard::open(run.clone(), Some(runs.clone()));
    press(&mut lonely, "o");
    assert!(text(&mut lonely).contains("there is no other run"));
    press(&mut lonely, "⏎");
    assert!(lonely.overlay.is_none() && lonely.others.is_empty());
    for name in ["first", "second"] {
        let other = runs.create(name, "full").unwrap();
        write_log(&other, 30);
    }
    let mut dashboard = Dashboard::open(run, Some(runs));
    press(&mut dashboard, "o");
    let screen = text(&mut dashboard);
    assert!(screen.contains("first-full") && screen.contains("second-full"), "{screen}");
    assert!(!screen.lines().skip(8).any(|line| line.contains("this-lora")), "{screen}");
    press(&mut dashboard, "↓⏎");
    let (name, other, _) = dashboard.shown_others().next().unwrap();
    assert!(name.contains("-full-") && other.view.steps_done() == 30);
    press(&mut dashboard, "o⏎");
    let names: Vec<_> = dashboard.shown_others().map(|(name, _, role)| (name.to_owned(), role)).collect();
    assert!(names.len() == 2 && names[0].0 != names[1].0 && names[0].1 != names[1].1, "{names:?}");
    press(&mut dashboard, "6");
    let screen = text(&mut dashboard);
    assert!(screen.contains("settings that differ") && screen.contains("none: what differs"), "{screen}");
    // Enter on a run that is laid over takes it away, and O all of them.
    press(&mut dashboard, "o⏎");
    assert_eq!(dashboard.others.len(), 1);
    press(&mut dashboard, "O");
    assert!(dashboard.others.is_empty());
}

#[test]
fn the_settings_in_which_compared_runs_differ_are_a_table() {
    let changed = |rank: &str| {
        let mut plan = plan();
        let advice = plan.advice.as_mut().unwrap();
        let row = advice.explain.iter_mut().find(|row| row.key == "method.rank").unwrap();
        row.value = rank.to_owned();
        plan
    };
    let mut dashboard = Story::running(2480);
    dashboard.facts = Facts::of(plan(), "");
    for rank in ["7", "77"] {
        let reading = Reading::of(format!("20261118T090112Z-rank-{rank}"), Story::running(30).here.known);
        dashboard.others.push(Other::of(reading, Some(changed(rank))));
    }
    press(&mut dashboard, "6");
    let screen = text(&mut dashboard);
    let row = screen.lines().find(|line| line.contains("method.rank")).unwrap();
    let values: Vec<&str> = row.split_whitespace().filter(|word| word.parse::<u32>().is_ok()).collect();
    assert!(values.len() == 3 && values[1..] == ["7", "77"], "{row}");
    assert!(!screen.contains("optimizer.learning_rate"), "what agrees is not listed: {screen}");
}

#[test]
fn escape_leaves_what_is_open_before_it_leaves_the_run() {
    let mut dashboard = Story::running(300);
    for keys in ["?⎋", "s⎋", "o⎋", "c⎋"] {
        assert_eq!(press(&mut dashboard, keys), Next::Draw, "{keys}");
    }
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    press(&mut dashboard, "s");
    assert_eq!(dashboard.update(Input::Key(control_c)), Next::Leave, "whatever is open");
    assert_eq!(press(&mut dashboard, "n⎋"), Next::Leave);
}

#[test]
fn new_warnings_are_told_until_the_events_were_looked_at() {
    let mut dashboard = Story::running(2480);
    dashboard.seen_warnings = 0;
    let screen = text(&mut dashboard);
    assert!(screen.contains("2 new") && screen.contains("clock fell to 1480"), "{screen}");
    press(&mut dashboard, "21");
    let screen = text(&mut dashboard);
    assert!(!screen.contains(" new ") && !screen.contains("clock fell"), "{screen}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_keys_at_any_size_do_no_harm(
        keys in proptest::collection::vec(proptest::sample::select("123456+-0fcyohl ←→↑↓⏎⇥⎋?wn".chars().collect::<Vec<_>>()), 0..40),
        steps in 0_u64..60, width in 60_u16..210, height in 16_u16..60,
    ) {
        let mut dashboard = Story::running(steps);
        for chunk in keys.chunks(8) {
            press(&mut dashboard, &chunk.iter().collect::<String>());
            picture::drawn(&mut dashboard, width, height, &TRUE_COLOUR);
        }
    }
}

#[test]
fn the_help_lists_every_key_and_any_key_closes_it() {
    let mut dashboard = Story::running(300);
    change("dashboard-help", &mut dashboard, |dashboard| press(dashboard, "?"));
    let small = picture::text(&picture::drawn(&mut dashboard, 60, 16, &NO_COLOUR));
    for (_, table) in GROUPS {
        for binding in table.iter().filter(|binding| !binding.shown.is_empty()) {
            assert!(
                small.contains(binding.shown),
                "{} is not in the help at 60 × 16:\n{small}",
                binding.shown
            );
        }
    }
    press(&mut dashboard, "x");
    assert!(dashboard.overlay.is_none());
}

#[test]
fn stopping_asks_once() {
    let mut dashboard = Story::running(2480);
    change("dashboard-stop", &mut dashboard, |dashboard| press(dashboard, "s"));
    press(&mut dashboard, "n");
    assert!(dashboard.asks.is_empty() && dashboard.overlay.is_none());
    dashboard.here.known.liveness = None;
    press(&mut dashboard, "s");
    assert!(
        dashboard.asks.is_empty() && dashboard.overlay.is_some(),
        "while the log is still being read, too"
    );
}

#[test]
fn a_run_that_has_ended_offers_to_talk_to_its_model_and_not_to_stop_it() {
    let mut story = Story::until(2480);
    story.sample(2480, "<|im_start|>user\nA question?<|im_end|>\n<|im_start|>assistant\n", "An answer.");
    let mut dashboard =
        story.finish(Outcome::Completed, None).dashboard(Liveness::Finished { outcome: Outcome::Completed });
    let screen = text(&mut dashboard);
    assert!(screen.contains("t talk to it") && !screen.contains("s stop"), "{screen}");
    press(&mut dashboard, "3");
    let screen = text(&mut dashboard);
    assert!(screen.contains("A question?") && !screen.contains("im_start"), "{screen}");
    assert!(dashboard.takes_wish().is_none());
    assert_eq!(press(&mut dashboard, "t"), Next::Leave);
    assert!(dashboard.takes_wish() == Some(Wish::Talk) && dashboard.takes_wish().is_none());
    press(&mut dashboard, "v");
    assert!(text(&mut dashboard).contains("nothing can be served yet"), "there is no page");
    assert!(screen.contains("n again"), "{screen}");
    press(&mut dashboard, "n");
    assert!(dashboard.takes_wish().is_none(), "a view without a folder has no answers");
    dashboard.say("there is no room for the model");
    assert!(text(&mut dashboard).contains("no room for the model"));

    let mut running = Story::running(2480);
    let screen = text(&mut running);
    assert!(screen.contains("s stop") && !screen.contains("t talk"), "{screen}");
    assert_eq!(press(&mut running, "t"), Next::Draw);
    assert!(text(&mut running).contains("no model to talk to yet"));
}
