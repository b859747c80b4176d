//! Speed of the run log: a long log is opened, a live one is followed, and many runs are listed.
//!
//! The log is one that a trainer could have written: every field of a step is set, and between the steps is
//! what a run of days leaves: evaluations, checkpoints, samples, readings of the machine.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use sparktune_base::units::{bytes, count};
use sparktune_runlog::{
    CheckpointCommitted, DeviceSample, Eval, Event, EventTailer, EventWriter, GpuSample, Kind, Lease, Limit,
    RunDir, RunStarted, RunView, RunsRoot, Sample, Step,
};
use sparktune_tui::newest_rows;

use crate::context::Context;
use crate::error::BenchError;
use crate::row::{Row, Target};

/// The interval at which a dashboard reads new events.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// The interval between the steps of the followed trainer, which is faster than any realistic run.
const STEP_EVERY: Duration = Duration::from_millis(50);
/// Steps for which the target of opening a log is stated.
const STATED_STEPS: u64 = 1_000_000;

/// The number of runs that `sparktune runs` shows.
const LISTED: usize = 50;
/// Runs for which the target of listing them is stated.
const STATED_RUNS: u64 = 10_000;

pub(crate) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let reading = measure_reading(context.folder, context.size.logged_steps, context.size.follow)?;
    let what = format!("opening a log of {} steps", count(reading.steps));
    let open = Row::new(what, reading.open_s * 1e3, "ms", format!("{} read", bytes(reading.bytes)));
    // A shorter log would meet the target with ease, which says nothing.
    let is_whole = reading.steps >= STATED_STEPS;
    let mut rows = vec![if is_whole { open.with_target(Target::LessThan(1000.0)) } else { open }];
    if let Some(share) = reading.follow_cpu_share {
        let follow = Row::new("following a live log", share * 100.0, "% of a core", "20 steps a second");
        rows.push(follow.with_target(Target::LessThan(1.0)));
    }
    let (runs, ms) = measure_listing(context.folder, context.size.logged_steps / 100)?;
    let what = format!("listing the newest {LISTED} of {} runs", count(runs));
    let list = Row::new(what, ms, "ms", "names of all, logs of those");
    rows.push(if runs >= STATED_RUNS { list.with_target(Target::LessThan(300.0)) } else { list });
    Ok(rows)
}

/// Makes this many short runs below `folder`, and returns their number and the milliseconds that the table of
/// the newest takes.
fn measure_listing(folder: &Path, runs: u64) -> Result<(u64, f64), BenchError> {
    let root = folder.join("many");
    let line =
        Event { attempt: 1, seq: 1, time_us: 1, kind: Kind::RunStarted(RunStarted::default()) }.to_line();
    let line = line.expect("every kind here is known");
    for run in 0..runs {
        let events = root.join(format!("20260101T000000Z-bench-lora-{run:08}/events"));
        fs::create_dir_all(&events).map_err(BenchError::io("create", &events))?;
        let path = events.join("0001.jsonl");
        fs::write(&path, &line).map_err(BenchError::io("write", &path))?;
    }
    let began = Instant::now();
    let (rows, older) = newest_rows(&RunsRoot::new(root), LISTED)?;
    Ok(((rows.len() + older) as u64, began.elapsed().as_secs_f64() * 1e3))
}

/// The cost of reading a log.
#[derive(Debug)]
struct Reading {
    steps: u64,
    /// Size of the log.
    bytes: u64,
    /// Seconds from nothing to the whole [`RunView`].
    open_s: f64,
    /// Share of one core that following takes at 20 steps and 10 polls a second; `None` where the system
    /// does not count the time of a thread.
    follow_cpu_share: Option<f64>,
}

/// Writes a log of `steps` steps into a new run folder below `folder`, opens it, and follows a trainer that
/// continues it for the time `follow`.
fn measure_reading(folder: &Path, steps: u64, follow: Duration) -> Result<Reading, BenchError> {
    let run = RunsRoot::new(folder).create("bench", "log")?;
    let bytes = write_log(&run, steps)?;
    // The first pass brings the file into the page cache.
    RunView::replay(&run)?;
    let began = Instant::now();
    let view = RunView::replay(&run)?;
    let open_s = began.elapsed().as_secs_f64();
    let follow_cpu_share = follow_live(&run, view, follow)?;
    Ok(Reading { steps, bytes, open_s, follow_cpu_share })
}

/// Writes attempt 1 of a run with this many steps and returns its size in bytes.
fn write_log(run: &RunDir, steps: u64) -> Result<u64, BenchError> {
    let path = run.event_file(1);
    let file = fs::File::create_new(&path).map_err(BenchError::io("create", &path))?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let mut seq = 0;
    let mut time_us = 1_763_645_250_000_000;
    let mut emit = |kind: Kind| -> Result<(), BenchError> {
        seq += 1;
        time_us += 1_003_127;
        let line = Event { attempt: 1, seq, time_us, kind }.to_line().expect("every kind here is known");
        out.write_all(line.as_bytes()).map_err(BenchError::io("write", &path))
    };
    emit(Kind::RunStarted(RunStarted {
        sparktune: env!("CARGO_PKG_VERSION").into(),
        model: "Qwen/Qwen3.5-2B".into(),
        method: "lora".into(),
        device: "CUDA".into(),
        total_steps: Some(steps),
        ..RunStarted::default()
    }))?;
    for step in 1..=steps {
        emit(Kind::Step(step_event(step, steps)))?;
        if step.is_multiple_of(10) {
            emit(Kind::DeviceSample(device_sample(step)))?;
        }
        if step.is_multiple_of(200) {
            let loss_nats = loss_at(step, steps) + 0.05;
            emit(Kind::Eval(Eval {
                step,
                loss_nats,
                target_tokens: 81_234,
                examples: 400,
                eval_ms: Some(9_321.5),
            }))?;
            let name = format!("step-{step:06}");
            emit(Kind::CheckpointCommitted(CheckpointCommitted {
                step,
                name,
                bytes: 410_000_000,
                commit_ms: Some(812.25),
                best: true,
            }))?;
        }
        if step.is_multiple_of(2_000) {
            let (prompt, text) = ("What is a lease?".into(), "A promise with an end. ".repeat(20));
            emit(Kind::Sample(Sample { step, prompt, text, tokens: 120 }))?;
        }
    }
    out.flush().map_err(BenchError::io("write", &path))?;
    Ok(fs::metadata(&path).map_err(BenchError::io("read", &path))?.len())
}

/// The share of a core that it takes to follow what a live trainer logs.
fn follow_live(run: &RunDir, mut view: RunView, length: Duration) -> Result<Option<f64>, BenchError> {
    let lease = Lease::acquire(run)?;
    let writer = EventWriter::open(&lease)?;
    let mut tailer = EventTailer::new(run);
    // The first attempt is in the view already.
    while !tailer.poll_with(Limit::NONE, |_, _| ())?.at_end {}
    let began = Instant::now();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            // At least one, however late this thread gets a processor.
            for step in 1.. {
                writer.emit(Kind::Step(step_event(step, 1_000)));
                std::thread::sleep(STEP_EVERY);
                if began.elapsed() >= length {
                    break;
                }
            }
        });
        let before = thread_time();
        while began.elapsed() < length {
            tailer.poll_with(Limit::default(), |event, _| view.apply(&event))?;
            std::thread::sleep(POLL_EVERY);
        }
        let spent = thread_time().zip(before).map(|(after, before)| after.saturating_sub(before));
        Ok(spent.map(|spent| spent.as_secs_f64() / began.elapsed().as_secs_f64()))
    })
}

/// Processor time of this thread.
fn thread_time() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

/// A loss that falls as losses do.
fn loss_at(step: u64, steps: u64) -> f64 {
    0.7 + 1.9 * (-5.0 * step as f64 / steps as f64).exp()
}

/// An event with every field of a step set.
fn step_event(step: u64, steps: u64) -> Step {
    // Jitter without a random generator: the same log every time.
    let noise = (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / (1 << 24) as f64;
    // Rounded to microseconds, like the trainer's times.
    let ms = |ms: f64| (ms * 1e3).round() / 1e3;
    let step_ms = ms(3_700.0 + 150.0 * noise);
    let tokens = 13_000 + (900.0 * noise) as u64;
    Step {
        step,
        epoch: Some(3.0 * step as f64 / steps as f64),
        loss_nats: loss_at(step, steps) + 0.2 * noise,
        target_tokens: tokens / 3,
        tokens,
        lr: Some(2e-4 * (1.0 - 0.9 * step as f64 / steps as f64)),
        grad_norm: Some(0.4 + noise),
        step_ms: Some(step_ms),
        tokens_per_s: Some((tokens as f64 / step_ms * 1e4).round() / 10.0),
        mem_used_bytes: Some(23_456_789_012 + step),
        data_ms: Some(ms(1.5 + noise)),
        optimizer_ms: Some(ms(step_ms * 0.05)),
        exchange_ms: None,
        exchange_bytes: None,
    }
}

/// An event with every reading of a machine with one GPU.
fn device_sample(step: u64) -> DeviceSample {
    let gpu = GpuSample {
        busy_percent: Some(97),
        temperature_celsius: Some(61 + (step % 7) as u32),
        power_watts: Some(71.5 + (step % 11) as f64),
        sm_clock_mhz: Some(2_396),
        sm_clock_max_mhz: Some(2_600),
        ..GpuSample::default()
    };
    DeviceSample {
        mem_total_bytes: Some(128_000_000_000),
        mem_available_bytes: Some(88_000_000_000 - step),
        mem_used_bytes: Some(40_000_000_000 + step),
        mem_unified: true,
        mem_pressure_some_percent: Some(0.0),
        mem_pressure_full_percent: Some(0.0),
        process_rss_bytes: Some(21_000_000_000 + step),
        process_peak_rss_bytes: Some(23_000_000_000),
        cpu_percent: Some(11.5),
        gpus: vec![gpu],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_runs_are_counted_and_the_newest_are_read() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(measure_listing(root.path(), 60).unwrap().0, 60);
        let (rows, older) = newest_rows(&RunsRoot::new(root.path().join("many")), 2).unwrap();
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        let newest = ["20260101T000000Z-bench-lora-00000059", "20260101T000000Z-bench-lora-00000058"];
        assert_eq!((names.as_slice(), older), (&newest[..], 58));
    }

    /// Bytes that this thread has read from files, if the system counts them.
    fn bytes_read() -> Option<u64> {
        let text = fs::read_to_string("/proc/thread-self/io").ok()?;
        text.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok())
    }

    #[test]
    fn a_log_is_read_once_and_lists_read_the_ends_of_the_newest_alone() {
        if bytes_read().is_none() {
            println!("skipped: the system does not count the bytes that a thread reads");
            return;
        }
        let read_by = |read: &dyn Fn()| {
            let before = bytes_read().unwrap();
            read();
            bytes_read().unwrap() - before
        };
        const ASIDE: u64 = 64 * 1024;
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("bench", "log").unwrap();
        let log = write_log(&run, 20_000).unwrap();
        assert!(log > 6_000_000, "{log}");
        let whole = read_by(&|| assert_eq!(RunView::replay(&run).unwrap().steps_done(), 20_000));
        assert!((log..log + ASIDE).contains(&whole), "{whole} of {log}");
        // Some KiB at the beginning, and 512 KiB at the end.
        let glance = read_by(&|| assert_eq!(RunView::glance(&run).unwrap().steps_done(), 20_000));
        assert!(glance < 512 * 1024 + ASIDE, "{glance}");

        measure_listing(root.path(), 400).unwrap();
        let many = RunsRoot::new(root.path().join("many"));
        let [two, four] = [2, 4].map(|most| read_by(&|| drop(newest_rows(&many, most).unwrap())));
        assert!(
            four > two && four < 2 * two,
            "{two}, {four}: as much for each run that is shown, and no other"
        );
        assert!(four < 16 * 1024, "{four}");
    }

    #[test]
    fn a_watcher_understands_every_line_of_the_log() {
        let root = tempfile::tempdir().unwrap();
        let reading = measure_reading(root.path(), 4_000, Duration::from_millis(150)).unwrap();
        assert!(reading.bytes > 4_000 * 300 && reading.open_s > 0.0, "{reading:?}");
        let folder = std::fs::read_dir(root.path()).unwrap().next().unwrap().unwrap().path();
        let run = RunDir::open(folder).unwrap();
        let mut tailer = EventTailer::new(&run);
        let mut view = RunView::default();
        let polled = tailer.poll_with(Limit::NONE, |event, _| view.apply(&event)).unwrap();
        assert!(polled.at_end && polled.notices.is_empty() && tailer.malformed() == 0);
        assert_eq!((view.attempts[0].last_step, view.attempts.len(), view.unknown_events), (4_000, 2, 0));
        assert!(view.attempts[1].last_step > 0, "the followed trainer made steps");
    }
}
