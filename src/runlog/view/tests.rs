use super::*;
use crate::event::GpuSample;
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
        // Compared as text, in which NaN equals NaN.
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
        Some(Eta {
            seconds: 998.0,
            steps_left: 998,
            ms_per_step: 1000.0,
            over_steps: 1,
            after_s: 0.0,
            drift_s: None
        })
    );
    log.step(3, f64::NAN);
    assert!((log.view.loss_ema.unwrap() - 1.9).abs() < 1e-12, "NaN does not spoil the average");
    log.emit(Kind::RunFinished(RunFinished { outcome: Outcome::Stopped, ..RunFinished::default() }));
    assert_eq!((log.view.outcome(), log.view.eta()), (Some(Outcome::Stopped), None));
}

#[test]
fn time_between_steps_that_was_no_training_is_not_expected_again() {
    let mut log = Log::new();
    let phase = |name: &str| Kind::Phase(Phase { phase: name.into(), detail: None });
    log.start(None);
    log.emit(phase("train"));
    log.step(1, 2.0);
    log.emit(phase("tiles"));
    for done in 0..40 {
        log.emit(Kind::Progress(Progress {
            phase: "tiles".into(),
            done,
            total: Some(40),
            unit: "products".into(),
        }));
    }
    log.emit(phase("train"));
    log.step(2, 2.0);
    assert_eq!(log.view.eta(), None);
    log.step(3, 2.0);
    assert_eq!(log.view.eta().map(|eta| eta.ms_per_step), Some(1000.0));
}

#[test]
fn the_time_left_includes_head_and_outputs_and_is_that_of_the_heads_steps_while_those_are_made() {
    let mut log = Log::new();
    let phase = |name: &str| Kind::Phase(Phase { phase: name.into(), detail: None });
    let head =
        |done| Kind::Progress(Progress { phase: "mtp".into(), done, total: Some(9), unit: "steps".into() });
    let left = |log: &Log| log.view.eta().map(|eta| (eta.seconds, eta.steps_left));
    log.view.expect(Planned { step_ms: 1000.0, head_s: 40.0, finish_s: 20.0 });
    log.start(None);
    log.emit(phase("train"));
    log.step(998, 2.0);
    log.step(999, 2.0);
    // A report on a measurement between the steps ends nothing.
    log.emit(phase("products"));
    assert_eq!(left(&log), Some((61.0, 1)));
    log.emit(phase("train"));
    log.step(1000, 2.0);
    log.emit(phase("mtp"));
    assert_eq!(left(&log), None, "no step of the head was timed");
    log.emit(head(1));
    log.emit(head(2));
    assert_eq!(left(&log), Some((27.0, 7)));
    // An evaluation of the head.
    log.emit(Kind::Progress(Progress { phase: "eval".into(), ..Progress::default() }));
    assert_eq!(left(&log), Some((27.0, 7)));
    log.emit(head(9));
    assert_eq!(left(&log), None);
    log.emit(phase("export"));
    assert_eq!(left(&log), None);

    // A text model that was stopped early has steps left that nobody makes.
    let mut log = Log::new();
    log.start(None);
    log.emit(phase("train"));
    log.step(1, 2.0);
    log.step(2, 2.0);
    assert_eq!(left(&log), Some((998.0, 998)));
    for after in ["mtp", "export"] {
        log.emit(phase(after));
        assert_eq!(left(&log), None, "{after}");
    }
}

#[test]
fn the_most_ranks_of_a_swarm_are_those_of_all_attempts() {
    let mut log = Log::new();
    log.start(None);
    for members in [vec![0, 1, 2], vec![0, 1]] {
        log.emit(Kind::Members(Members { members, ..Members::default() }));
    }
    log.start(Some(3));
    assert_eq!((log.view.most_ranks, log.view.members.is_some()), (3, false));
}

#[test]
fn silence_of_ten_step_times_is_a_stall_while_steps_are_made() {
    let mut log = Log::new();
    let phase = |name: &str| Kind::Phase(Phase { phase: name.into(), detail: None });
    log.start(None);
    assert_eq!(log.view.patience(), STALLED_AFTER);
    log.emit(phase("train"));
    log.step(1, 2.0);
    assert_eq!(log.view.patience(), STALLED_AFTER, "one step has no time");
    for step in [2, 3, 4] {
        log.emit(Kind::Progress(Progress { phase: "eval".into(), ..Progress::default() }));
        assert!(log.view.progress.is_some());
        log.emit(Kind::Warning(Warning { message: String::new(), step: None }));
        log.step(step, 2.0);
        assert_eq!(log.view.progress, None, "the evaluation is over");
    }
    assert_eq!(log.view.patience(), Duration::from_secs(30));
    log.emit(phase("export"));
    assert_eq!(log.view.patience(), STALLED_AFTER);
    log.emit(phase("mtp"));
    let head = |done| Progress { phase: "mtp".into(), done, total: Some(9), unit: "steps".into() };
    log.emit(Kind::Progress(head(1)));
    assert_eq!(log.view.patience(), STALLED_AFTER, "one step has no time");
    for step in 2..=4 {
        log.emit(Kind::Progress(head(step)));
    }
    assert_eq!(log.view.patience(), STALLED_AT_LEAST);
    log.emit(Kind::Progress(head(9)));
    assert_eq!(log.view.patience(), STALLED_AFTER);
}

#[test]
fn a_clock_that_jumps_changes_no_loss_and_every_time_stays_finite() {
    let told = |times: &[u64]| {
        let mut view = RunView::default();
        let started = RunStarted { total_steps: Some(1000), ..RunStarted::default() };
        let phase = Phase { phase: "train".into(), detail: None };
        let first = [Kind::RunStarted(started), Kind::Phase(phase)];
        let step = |step: u64| Kind::Step(Step { step, loss_nats: 1.0 / step as f64, ..Step::default() });
        for ((seq, kind), time_us) in (1..).zip(first.into_iter().chain((1..).map(step))).zip(times) {
            view.apply(&Event { attempt: 1, seq, time_us: *time_us, kind });
        }
        view
    };
    let steady = told(&[1, 2, 3, 4, 5, 6, 7, 8].map(|second| second * 1_000_000));
    let day = 86_400_000_000;
    for times in [
        [10 * day, 11 * day, 12 * day, 3, 4 * day, 0, u64::MAX, day],
        [0, 0, 0, u64::MAX, u64::MAX, 1, 1, 1],
        [8, 7, 6, 5, 4, 3, 2, 1],
    ] {
        let view = told(&times);
        assert_eq!((view.steps_done(), view.loss_ema), (steady.steps_done(), steady.loss_ema));
        let eta = view.eta().unwrap();
        assert!(eta.seconds.is_finite() && eta.seconds >= 0.0, "{eta:?}");
        let patience = view.patience();
        assert!(patience >= STALLED_AT_LEAST && patience <= Duration::from_secs(36_000), "{patience:?}");
    }
}

#[test]
fn the_highest_memory_of_all_attempts_counts_and_one_that_crashed_has_told_none() {
    let mut log = Log::new();
    assert_eq!(log.view.mem_peak_bytes(), None);
    for mem_peak_bytes in [Some(3), Some(5), None, Some(4)] {
        log.start(Some(0));
        log.emit(Kind::RunFinished(RunFinished { mem_peak_bytes, ..RunFinished::default() }));
    }
    log.start(Some(0));
    assert_eq!(log.view.mem_peak_bytes(), Some(5));
}

#[test]
fn the_bases_loss_is_the_zero_line_and_never_the_best() {
    let mut log = Log::new();
    log.start(None);
    log.eval(0, 1.5);
    assert_eq!(log.view.base_eval.as_ref().map(|eval| eval.loss_nats), Some(1.5));
    assert_eq!((log.view.best(), log.view.last_eval.is_none()), (None, true));
    log.step(1, 2.0);
    log.eval(1, 1.8);
    assert_eq!(log.view.best(), Some((1, 1.8)), "although the base was better");
    assert!(log.view.charts.eval_loss.buckets().iter().all(|bucket| bucket.first_step == 1));
    log.start(None);
    assert_eq!(log.view.base_eval.as_ref().map(|eval| eval.loss_nats), Some(1.5), "the base stays the same");
    let finished = RunFinished {
        best_step: Some(7),
        best_eval_nats: Some(0.5),
        exported_step: Some(7),
        ..RunFinished::default()
    };
    log.emit(Kind::RunFinished(finished));
    assert_eq!((log.view.best(), log.view.exported_step()), (Some((7, 0.5)), Some(7)), "as the trainer says");
}

#[test]
fn a_loss_is_still_falling_while_the_newest_one_is_clearly_the_best() {
    let mut log = Log::new();
    log.start(None);
    for (step, loss, is_falling) in [
        (0, 7.0, false),
        (1, 3.0, false),
        (2, 2.5, true),
        (3, 2.49, false),
        (4, 2.6, false),
        (5, 2.0, true),
        (6, f64::NAN, false),
    ] {
        log.eval(step, loss);
        assert_eq!(log.view.is_still_falling(), is_falling, "step {step}");
    }
}

#[test]
fn an_attempt_that_returns_to_a_checkpoint_discards_the_steps_after_it() {
    let mut log = Log::new();
    log.start(None);
    (1..=9).for_each(|step| log.step(step, if step > 5 { f64::NAN } else { 2.0 }));
    let order_seed = Some(77);
    log.emit(Kind::RunStarted(RunStarted {
        resumed_from_step: Some(4),
        order_seed,
        ..RunStarted::default()
    }));
    assert_eq!((log.view.steps_done(), log.view.attempts.len()), (4, 1));
    assert_eq!(log.view.attempts[0].started.order_seed, order_seed);
    assert_eq!(log.view.charts.loss.buckets().last().unwrap().last_step, 4);
    assert_eq!(log.view.discarded.loss.buckets().iter().map(|bucket| bucket.nonfinite).sum::<u64>(), 4);
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
fn readings_of_the_machine_are_curves_over_the_steps_and_are_discarded_with_them() {
    let mut log = Log::new();
    let reading = |clock: u32| {
        let gpu = GpuSample { sm_clock_mhz: Some(clock), power_watts: Some(60.5), ..GpuSample::default() };
        Kind::DeviceSample(DeviceSample {
            cpu_percent: Some(12.0),
            gpus: vec![gpu],
            ..DeviceSample::default()
        })
    };
    log.start(None);
    log.emit(reading(400));
    for step in 1..=6 {
        log.step(step, 2.0);
        log.emit(reading(2000 + step as u32));
    }
    let clock = |charts: &Charts| -> Vec<(u64, f64)> {
        charts.sm_clock_mhz.buckets().iter().map(|b| (b.first_step, b.last)).collect()
    };
    let all = [(0, 400.0), (1, 2001.0), (2, 2002.0), (3, 2003.0), (4, 2004.0), (5, 2005.0), (6, 2006.0)];
    assert_eq!(clock(&log.view.charts), all);
    assert!(log.view.charts.temperature_celsius.is_empty(), "nobody measured it");
    assert_eq!(log.view.charts.power_watts.buckets().len(), 7);
    log.start(Some(4));
    log.emit(reading(800));
    assert_eq!(clock(&log.view.charts)[4], (4, 800.0), "a reading after a resume stands at the resumed step");
    assert_eq!(clock(&log.view.discarded), all[5..]);
    assert_eq!(log.view.discarded.cpu_percent.buckets().len(), 2);
}

#[test]
fn bests_checkpoints_and_resumes_are_marked_in_order() {
    let mut log = Log::new();
    log.start(None);
    for step in 1..=6 {
        log.step(step, 2.0);
    }
    log.eval(2, 1.5);
    log.eval(4, 1.75);
    log.emit(Kind::CheckpointCommitted(CheckpointCommitted { step: 4, ..Default::default() }));
    log.emit(Kind::CheckpointCommitted(CheckpointCommitted { step: 6, ..Default::default() }));
    log.start(Some(4));
    let marks = [
        Mark::Best { step: 2, loss_nats: 1.5 },
        Mark::Checkpoint { step: 4, best: false },
        Mark::Resumed { step: 4, attempt: 2 },
    ];
    assert_eq!(log.view.marks(), marks);
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
fn a_glance_at_a_run_that_was_just_resumed_has_its_curve_and_checkpoints() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path().join("r")).unwrap();
    for (from, to) in [(1, 8_000), (7_001, 7_003)] {
        let lease = Lease::acquire(&run).unwrap();
        let writer = EventWriter::open(&lease).unwrap();
        let resumed_from_step = (from > 1).then_some(from - 1);
        writer.emit(Kind::RunStarted(RunStarted { resumed_from_step, ..RunStarted::default() }));
        for step in from..=to {
            writer.emit(Kind::Step(Step { step, loss_nats: 1.5, ..Step::default() }));
            if step == 7_000 {
                let checkpoint = CheckpointCommitted { step, ..CheckpointCommitted::default() };
                writer.emit(Kind::CheckpointCommitted(checkpoint));
            }
        }
    }
    let view = RunView::glance(&run).unwrap();
    assert_eq!(view.steps_done(), 7_003);
    assert_eq!(view.checkpoints.back().unwrap().step, 7_000);
    assert!(view.charts.loss.buckets().iter().map(|bucket| bucket.count).sum::<u64>() > 1_000);
    assert_eq!(view.attempts.len(), 2);
}

#[test]
fn the_curve_of_the_head_has_its_own_steps_and_those_that_are_repeated_are_replaced() {
    let mut log = Log::new();
    log.start(None);
    (1..=9).for_each(|step| log.step(step, 2.0));
    let head = |log: &mut Log, step, loss_nats| {
        log.emit(Kind::HeadEval(HeadEval { step, loss_nats, ..HeadEval::default() }));
    };
    [(0, 4.0), (2, 3.0), (4, 2.5)].into_iter().for_each(|(step, loss)| head(&mut log, step, loss));
    // The text model is finished, and the head goes on from its second step.
    log.start(Some(9));
    head(&mut log, 4, 2.25);
    head(&mut log, 12, 2.0);
    let points = |charts: &Charts| {
        let buckets = charts.head_loss.buckets();
        buckets.iter().map(|bucket| (bucket.first_step, bucket.last)).collect::<Vec<_>>()
    };
    assert_eq!(points(&log.view.charts), [(0, 4.0), (2, 3.0), (4, 2.25), (12, 2.0)]);
    assert_eq!(points(&log.view.discarded), [(4, 2.5)]);
    assert_eq!(log.view.charts.loss.buckets().len(), 9);
}

#[test]
fn samples_alone_are_no_sign_of_work() {
    let mut log = Log::new();
    log.start(None);
    let work = log.view.last_work_us;
    log.emit(Kind::DeviceSample(DeviceSample::default()));
    log.emit(Kind::MemberSamples(MemberSamples { step: 3, ranks: Vec::new() }));
    assert_eq!(log.view.last_work_us, work);
    assert_eq!(log.view.member_samples.as_ref().map(|seen| seen.step), Some(3));
    assert!(log.view.last_event_us > work);
    // Another attempt may have other ranks, or none.
    log.start(Some(3));
    assert_eq!(log.view.member_samples, None);
}

#[test]
fn a_clock_that_was_set_back_hides_no_stall_from_who_reads_on() {
    let mut log = Log::new();
    log.start(None);
    log.step(1, 2.0);
    let heard = log.view.heard.0.unwrap();
    log.emit(Kind::DeviceSample(DeviceSample::default()));
    assert_eq!(log.view.heard.0, Some(heard), "a sample of the machine is no sign of work");
    let (began, last) = (log.view.attempts[0].started_us, log.view.last_work_us.unwrap());
    let elsewhere = SinceBoot::default();
    let holder = |started_us| Holder { started_us, ..Holder::default() };
    let silence = |now_us, unheard| {
        log.view.silence(&holder(began), now_us, &elsewhere, Some(Duration::from_secs(unheard)))
    };
    assert_eq!(silence(last - 3_600_000_000, 400), Duration::from_secs(400), "set back by an hour");
    assert_eq!(silence(last + 400_000_000, 1), Duration::from_secs(400), "the log was read late");
    // Another trainer has taken the lease and logged nothing yet.
    let next = last + 900_000_000;
    let unheard = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(log.view.silence(&holder(next), next, &elsewhere, unheard(900)), Duration::ZERO);
    log.emit(Kind::RunFinished(RunFinished::default()));
    assert_eq!(log.view.silence(&holder(began), last, &elsewhere, unheard(400)), Duration::ZERO);
}

/// A list reads a log once, so it knows only what the folder says.
#[test]
fn a_clock_that_was_set_back_hides_no_stall_from_who_looks_once() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path().join("r")).unwrap();
    let lease = Lease::acquire(&run).unwrap();
    let writer = EventWriter::open(&lease).unwrap();
    writer.emit(Kind::Phase(Phase { phase: "train".into(), detail: None }));
    (1..=2).for_each(|step| writer.emit(Kind::Step(Step { step, ..Step::default() })));
    let liveness = || RunView::glance(&run).unwrap().liveness(&run).unwrap();
    assert_eq!(liveness(), Liveness::Running);
    // As if the trainer had logged its steps 20 s ago and the clock had then been set back by an hour: its
    // files have times that are still to come.
    let later = |us: u64| us + 3_600_000_000 - 20_000_000;
    let holder = Lease::holder_of(&run);
    let set = |boot: SinceBoot| {
        let holder = Holder { started_us: later(lease.started_us()), boot, ..holder.clone() };
        fs::write(run.lease_lock(), serde_json::to_vec(&holder).unwrap()).unwrap();
    };
    let lines = fs::read_to_string(run.event_file(1)).unwrap();
    let lines = lines.lines().map(|line| {
        let event = Event::parse(line.as_bytes()).unwrap();
        Event { time_us: later(event.time_us), ..event }.to_line().unwrap()
    });
    fs::write(run.event_file(1), lines.collect::<String>()).unwrap();
    set(SinceBoot { us: holder.boot.us - 20_000_000, ..holder.boot.clone() });
    let Liveness::Stalled { silent_s } = liveness() else { panic!("{:?}", liveness()) };
    assert!((19..300).contains(&silent_s), "{silent_s}");
    // The trainer of another machine has another clock, of which nothing is known here.
    set(SinceBoot { boot_id: "another".into(), us: 0 });
    assert_eq!(liveness(), Liveness::Running);
}
