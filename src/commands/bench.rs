//! `bench`: one table with the speed of every part on this machine, each beside the peer or limit it is held against.
//!
//! Training runs in a process of its own for each method, so that its peak memory is its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sparktune_data::token_file::measure_rates;
use sparktune_data::{ChatTokenizer, measure_tokenising, measure_validation, write_sample};
use sparktune_plan::ModelConfig;
use sparktune_runlog::bench::measure_reading;
use sparktune_tui::bench::measure_dashboard;
use sparktune_tui::{bytes, count};

use sparktune_app::failure::{Exit, Failure};
use sparktune_app::folders::demo_folder;
use sparktune_tui::output::{note, print, print_json};

use crate::failure::from_training;
use crate::gpu_bench;
use crate::request::{BenchArgs, BenchPart};

/// A Qwen3.5-shaped decoder of 42.5 M parameters: large enough that its matrices are what takes the time.
const MODEL: &str = include_str!("bench-model.json");
const SEQUENCE: usize = 1024;
const RANK: usize = 16;

/// How much of everything is measured.
struct Size {
    validate_bytes: u64,
    tokenise_bytes: u64,
    tokens: u64,
    train_steps: usize,
    starts: usize,
    logged_steps: u64,
    follow: Duration,
}

const WHOLE: Size = Size {
    validate_bytes: 512 << 20,
    tokenise_bytes: 16 << 20,
    tokens: 32 << 20,
    train_steps: 7,
    starts: 21,
    logged_steps: 1_000_000,
    follow: Duration::from_secs(5),
};
const QUICK: Size = Size {
    validate_bytes: 32 << 20,
    tokenise_bytes: 1 << 20,
    tokens: 2 << 20,
    train_steps: 1,
    starts: 5,
    logged_steps: 20_000,
    follow: Duration::from_secs(1),
};

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    what: String,
    value: f64,
    unit: &'static str,
    beside: String,
}

impl Row {
    fn new(what: impl Into<String>, value: f64, unit: &'static str, beside: impl Into<String>) -> Self {
        Self { what: what.into(), value, unit, beside: beside.into() }
    }

    fn shown(&self) -> String {
        if self.unit == "bytes" {
            return bytes(self.value as u64);
        }
        let digits =
            if self.value < 100.0 { format!("{:.1}", self.value) } else { count(self.value.round() as u64) };
        format!("{digits} {}", self.unit)
    }
}

/// Speed of training as its own process reports it.
#[derive(Debug, Serialize, Deserialize)]
struct Training {
    tokens_per_s: f64,
    peak_rss_bytes: Option<u64>,
}

/// `sparktune bench`.
///
/// # Errors
/// Too little room for the samples, or a part that fails.
pub fn bench(args: BenchArgs) -> Result<Exit, Failure> {
    if let Some(section) = args.gpu {
        return gpu_bench::gpu_bench(section, &args);
    }
    if let Some(Some(file)) = args.json {
        return Err(Failure::usage(format!(
            "--json takes a file only beside --gpu: redirect the output to {}",
            file.display()
        )));
    }
    let size = if args.quick { &QUICK } else { &WHOLE };
    let folder = tempfile::Builder::new()
        .prefix("sparktune-bench-")
        .tempdir()
        .map_err(|error| Failure::io("create a folder in", &std::env::temp_dir(), &error))?;
    if let Some(part) = args.part {
        let rank = (part == BenchPart::Lora).then_some(RANK);
        let model = ModelConfig::from_json(MODEL)?;
        let rate = sparktune_train::bench::training(model, SEQUENCE, size.train_steps, rank)
            .map_err(from_training)?;
        print_json(&Training { tokens_per_s: rate.tokens_per_s, peak_rss_bytes: rate.peak_rss_bytes })?;
        return Ok(Exit::Done);
    }
    let mut rows = start_time(size)?;
    rows.extend(data(size, args.model.as_deref(), folder.path())?);
    rows.extend(watching(size, folder.path())?);
    rows.extend(training(args.quick)?);
    if args.json.is_some() {
        print_json(&rows)?;
    } else {
        print(&table(&rows))?;
    }
    Ok(Exit::Done)
}

fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::usage(format!("cannot find the program itself: {error}")))
}

fn start_time(size: &Size) -> Result<Vec<Row>, Failure> {
    let program = program()?;
    let mut times = Vec::new();
    for _ in 0..size.starts {
        let started = Instant::now();
        let ended = Command::new(&program).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status();
        ended.map_err(|error| Failure::io("start", &program, &error))?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(vec![Row::new("sparktune --help", times[times.len() / 2], "ms", "to reach: under 30 ms")])
}

fn data(size: &Size, model: Option<&Path>, folder: &Path) -> Result<Vec<Row>, Failure> {
    note("measuring the data front");
    let sample = folder.join("sample.jsonl");
    write_sample(&sample, size.validate_bytes)?;
    let inputs = [sample];
    // The first pass brings the file into the page cache.
    measure_validation(&inputs)?;
    let validated = measure_validation(&inputs)?;
    let mut rows = vec![Row::new(
        "validation",
        validated.megabytes_per_s(),
        "MB/s",
        "Python json.loads 440 MB/s; to reach: 1,000 MB/s",
    )];

    let demo = demo_folder().map(|folder| folder.join("model"));
    if let Some(model) = model.map(Path::to_owned).or(demo) {
        let tokenizer = ChatTokenizer::from_dir(&model)?;
        let [sample] = &inputs;
        write_sample(sample, size.tokenise_bytes)?;
        measure_tokenising(&inputs, &tokenizer)?;
        let done = measure_tokenising(&inputs, &tokenizer)?;
        let with = format!("tokenising ({} ids)", count(tokenizer.vocab_size() as u64));
        rows.push(Row::new(
            with,
            done.megabytes_per_s(),
            "MB/s",
            "tokenizers' batch encode 7 MB/s with 248,320 ids",
        ));
        rows.push(Row::new(
            "tokenising",
            done.tokens_per_s(),
            "tokens/s",
            "once, then read from the token file",
        ));
    } else {
        note("skipped: tokenising, as presets/demo was not found; --model FOLDER names a tokenizer");
    }

    note("measuring packing and token files");
    let rates = measure_rates(folder, size.tokens)?;
    let copy = rates.memcpy_tokens_per_s;
    rows.extend([
        Row::new("memory copy of tokens and masks", copy, "tokens/s", "the limit of the next rows"),
        Row::new(
            "token file, reading",
            rates.reading_tokens_per_s,
            "tokens/s",
            format!("{:.2} of a memory copy; to reach: 0.5", rates.reading_tokens_per_s / copy),
        ),
        Row::new(
            "token file, first reading",
            rates.first_reading_tokens_per_s,
            "tokens/s",
            "page faults and checksums included",
        ),
        Row::new(
            "packing (bfd, 4,096)",
            rates.packing_tokens_per_s,
            "tokens/s",
            "which examples share a row",
        ),
        Row::new("building rows", rates.building_tokens_per_s, "tokens/s", "ids, positions, borders, masks"),
    ]);
    Ok(rows)
}

/// What looking at a run costs: its log, the time from a key to its frame, and the bytes that go over the line.
fn watching(size: &Size, folder: &Path) -> Result<Vec<Row>, Failure> {
    note("measuring the log and the dashboard");
    let log = measure_reading(folder, size.logged_steps, size.follow)?;
    let opening = format!("opening a log of {} steps", count(log.steps));
    let read = format!("{} read; to reach: under 1,000 ms for 1,000,000 steps", bytes(log.bytes));
    let mut rows = vec![Row::new(opening, log.open_s * 1e3, "ms", read)];
    if let Some(share) = log.follow_cpu_share {
        let beside = "20 steps a second; to reach: under 1 %";
        rows.push(Row::new("following a live log", share * 100.0, "% of a core", beside));
    }
    let screen = measure_dashboard()?;
    let keys = format!("dashboard {}×{}, key to frame", screen.size.width, screen.size.height);
    let median = format!("median of {} keys; to reach: under 16 ms", screen.keys);
    let idle = format!("in {} s; to reach: 0", screen.idle_ticks / 4);
    rows.extend([
        Row::new(keys, screen.median_ms, "ms", median),
        Row::new("  the slowest key", screen.worst_ms, "ms", "to reach: under 16 ms"),
        Row::new("  the first frame", screen.first_frame_bytes as f64, "bytes", "every cell"),
        Row::new("  a frame after a key", screen.frame_bytes, "bytes", "mean: only cells that changed"),
        Row::new("  written while idle", screen.idle_bytes as f64, "bytes", idle),
    ]);
    Ok(rows)
}

fn training(quick: bool) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let peers = [("lora", "LoRA r=16", 515.0, 2720), ("full", "full", 372.0, 2826)];
    for (part, name, peer_rate, peer_mb) in peers {
        note(&format!("measuring training, {name}"));
        let rate = measure_apart(part, quick)?;
        rows.push(Row::new(
            format!("training 42.5 M, {name}, {SEQUENCE} tokens"),
            rate.tokens_per_s,
            "tokens/s",
            format!(
                "transformers + peft {peer_rate} tokens/s: {:.2}×; to reach: 1.5×",
                rate.tokens_per_s / peer_rate
            ),
        ));
        if let Some(peak) = rate.peak_rss_bytes {
            let share = peak as f64 / (f64::from(peer_mb) * 1e6);
            let beside = format!("transformers + peft {peer_mb} MB: {share:.2}×; to reach: 0.5×");
            rows.push(Row::new(format!("  its peak memory, {name}"), peak as f64, "bytes", beside));
        }
    }
    Ok(rows)
}

fn measure_apart(part: &str, quick: bool) -> Result<Training, Failure> {
    let program = program()?;
    let mut command = Command::new(&program);
    command.args(["bench", "--part", part]).args(quick.then_some("--quick")).stderr(Stdio::inherit());
    let done = command.output().map_err(|error| Failure::io("start", &program, &error))?;
    serde_json::from_slice(&done.stdout).map_err(|_| {
        let exit = done.status.code().map_or(Exit::Bug, Exit::from_code);
        Failure::new(exit, format!("measuring training ({part}) ended with {}", done.status))
    })
}

fn table(rows: &[Row]) -> String {
    let shown: Vec<String> = rows.iter().map(Row::shown).collect();
    let width = |cells: &mut dyn Iterator<Item = usize>| cells.max().unwrap_or(0);
    let what = width(&mut rows.iter().map(|row| row.what.chars().count()));
    let value = width(&mut shown.iter().map(|shown| shown.chars().count()));
    let line =
        |(row, shown): (&Row, &String)| format!("{:what$}  {shown:>value$}  {}\n", row.what, row.beside);
    rows.iter().zip(&shown).map(line).collect()
}
