//! `bench`: measures the parts of the program on this machine, alone or together with their peers.
//!
//! `sparktune_bench` defines the measurements; this module contains the output and the exit codes.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use sparktune_app::answers::gather;
use sparktune_app::data_worker::ModelTokenizer;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::folders::demo_folder;
use sparktune_app::job;
use sparktune_app::model::fetch;
use sparktune_app::program::Program;
use sparktune_bench::lossless::{self, Comparison, Training};
use sparktune_bench::{Options, cluster, cpu_speed, predicted, section, sentry, stepper, table};
use sparktune_plan::{Answer, Answers, MethodKind};
use sparktune_tui::output::{note, print, print_json};
use sparktune_tui::progress::OnStderr;

use crate::failure::from_measuring;
use crate::interrupt::Interrupts;
use crate::pipelines;
use crate::request::{BenchArgs, BenchCommand, GpuSection, LosslessArgs, SentryArgs};
use crate::trainer::guard_tokenizer;

/// How long the CPU is measured: every plan for the CPU waits for this.
const CPU_SPEED: Duration = Duration::from_millis(500);

/// Runs `sparktune bench`.
///
/// # Errors
/// There is too little disk space for the samples, a section fails, or a peer fails.
pub fn bench(program: &Program, mut args: BenchArgs) -> Result<Exit, Failure> {
    let json = args.json;
    match args.command.take() {
        Some(BenchCommand::Lossless(args)) => return lossless(program, *args, json),
        Some(BenchCommand::Stepper { plan, packs, adapter }) => {
            let training = stepper::Training { plan, packs, adapter };
            stepper::serve(&training, io::stdin().lock(), io::stdout().lock()).map_err(from_measuring)?;
            return Ok(Exit::Done);
        }
        Some(BenchCommand::CpuSpeed) => {
            print_json(&cpu_speed::measure(CPU_SPEED))?;
            return Ok(Exit::Done);
        }
        Some(BenchCommand::Sentry(args)) => return judge(program, &args),
        Some(BenchCommand::Pipelines(args)) => return pipelines::pipelines(program, *args, json),
        Some(BenchCommand::Pipeline { job }) => return pipelines::pipeline(&job),
        Some(BenchCommand::ClusterRank { job }) => {
            cluster::serve(&job, io::stdout().lock()).map_err(from_measuring)?;
            return Ok(Exit::Done);
        }
        Some(BenchCommand::WhitePaper(args)) => return pipelines::white_paper(&args, json),
        None => {}
    }
    if let Some(section) = args.gpu {
        return gpu(section, &args);
    }
    sections(program, args)
}

/// Runs the sections that need no GPU.
fn sections(program: &Program, args: BenchArgs) -> Result<Exit, Failure> {
    guard_tokenizer()?;
    if let Some(model) = &args.model {
        // A template that nests too deeply would end this process without a word: a worker reads it first.
        drop(ModelTokenizer::open(model, None, &())?);
    }
    let mut file = output_file(&args)?;
    let options = Options {
        program: program.path()?.to_owned(),
        tokenizer: args.model.or_else(|| demo_folder().map(|folder| folder.join("model"))),
        plain_text: args.plain_text,
        peers: args.peers,
        quick: args.quick,
    };
    let rows = section::measure(&args.sections, &options, &note).map_err(from_measuring)?;
    if let Some((file, path)) = file.as_mut().zip(args.output.as_ref()) {
        put(file, &rows).map_err(|error| Failure::io("write", path, &error))?;
    }
    if args.json {
        print_json(&rows)?;
    } else {
        print(&table(&rows))?;
    }
    Ok(Exit::Done)
}

/// The output of `bench lossless --json`.
#[derive(Serialize)]
struct Compared<'a> {
    within_bound: bool,
    comparisons: &'a [Comparison],
}

/// Runs `sparktune bench lossless`. The exit code is 70 if a step differs from the peer's by more than the
/// bound.
fn lossless(program: &Program, args: LosslessArgs, json: bool) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let listener = OnStderr::new(interrupts.flag());
    let given = gather(args.given.flags, args.given.demo)?;
    let methods = match &given.method {
        Some(method) => vec![method.value],
        None => vec![MethodKind::Lora, MethodKind::Full],
    };
    let mut comparisons = Vec::new();
    for method in methods {
        let answers = Answers { method: Some(Answer::flag(method)), ..given.clone() };
        let job = job::plan(program, &answers, &listener)?;
        let snapshot = fetch(&job.hub, &job.download, &listener)?;
        let folder = std::path::absolute(&snapshot.folder)
            .map_err(|error| Failure::io("find", &snapshot.folder, &error))?;
        let mut plan = job.plan;
        plan.model.path = Some(folder);
        note(&format!("comparing the steps of {method}"));
        let training = Training { plan, tokens: job.prepared.train };
        let comparison = lossless::compare(&training, program.path()?, &args.peers).map_err(|error| {
            // The interrupt reaches both sides first, and their messages are then not the cause.
            if interrupts.count() > 0 {
                return Failure::new(Exit::Interrupted, "interrupted: nothing was compared");
            }
            from_measuring(error)
        })?;
        if !json {
            print(&format!("{}\n", comparison.table()))?;
        }
        comparisons.push(comparison);
    }
    let within_bound = comparisons.iter().all(|comparison| comparison.within_bound);
    if json {
        print_json(&Compared { within_bound, comparisons: &comparisons })?;
    }
    Ok(if within_bound { Exit::Done } else { Exit::Bug })
}

/// Runs `sparktune bench sentry`.
fn judge(program: &Program, args: &SentryArgs) -> Result<Exit, Failure> {
    let Some(file) = &args.record else {
        let tables = sentry::tables(&args.recordings, args.honest_steps, &note).map_err(from_measuring)?;
        print(&tables)?;
        return Ok(Exit::Done);
    };
    let interrupts = Interrupts::listen()?;
    let listener = OnStderr::new(interrupts.flag());
    let answers = gather(args.given.flags.clone(), args.given.demo)?;
    let job = job::plan(program, &answers, &listener)?;
    let snapshot = fetch(&job.hub, &job.download, &listener)?;
    let folder = std::path::absolute(&snapshot.folder)
        .map_err(|error| Failure::io("find", &snapshot.folder, &error))?;
    let mut plan = job.plan;
    plan.model.path = Some(folder);
    sentry::record(&plan, &job.prepared.train, file, &note).map_err(from_measuring)?;
    Ok(Exit::Done)
}

/// Runs `sparktune bench --gpu SECTION`. The exit code is 77, with the reason as the last line, if it cannot
/// be measured here.
fn gpu(section: GpuSection, args: &BenchArgs) -> Result<Exit, Failure> {
    if section == GpuSection::Model {
        return predict(args);
    }
    measured(section, args).or_else(|why| match why {
        Stopped::NotHere(why) => {
            print(&format!("{why}\n"))?;
            Ok(Exit::Skipped)
        }
        Stopped::Failed(failure) => Err(failure),
    })
}

/// The reason why nothing, or not everything, was measured on a GPU.
enum Stopped {
    NotHere(String),
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "without CUDA nothing is tried that could fail")
    )]
    Failed(Failure),
}

/// Opens the file of `--output`.
fn output_file(args: &BenchArgs) -> Result<Option<File>, Failure> {
    let create = |path: &Path| File::create(path).map_err(|error| Failure::io("write", path, &error));
    args.output.as_deref().map(create).transpose()
}

/// Writes one object on a line of its own.
fn put(file: &mut File, row: &impl Serialize) -> io::Result<()> {
    file.write_all(format!("{}\n", serde_json::to_string(row)?).as_bytes())
}

/// Runs `bench --gpu model`.
fn predict(args: &BenchArgs) -> Result<Exit, Failure> {
    let mut file = output_file(args)?;
    let (predictions, summary) = predicted::predict();
    for prediction in predictions {
        if let Some(file) = &mut file {
            put(file, &prediction.row)?;
        }
        print(&prediction.table)?;
    }
    print(&summary)?;
    Ok(Exit::Done)
}

#[cfg(not(feature = "cuda"))]
fn measured(_: GpuSection, _: &BenchArgs) -> Result<Exit, Stopped> {
    Err(Stopped::NotHere("this build of sparktune has no CUDA".into()))
}

/// Measures a section on the first CUDA device. Each row is written to the file and the screen at once.
#[cfg(feature = "cuda")]
fn measured(section: GpuSection, args: &BenchArgs) -> Result<Exit, Stopped> {
    use sparktune_bench::gpu::{Bench, Row, line};
    use sparktune_plan::Products;

    let mut file = output_file(args).map_err(Stopped::Failed)?;
    let mut unwritten = None;
    let mut report = |row: Row| {
        let written = file.as_mut().map_or(Ok(()), |file| put(file, &row)).and_then(|()| print(&line(&row)));
        if let Err(error) = written {
            unwritten.get_or_insert(error);
        }
    };
    let machine = sparktune_app::machine::machine(true, &std::env::temp_dir());
    let limit = args.seconds.map(|seconds| std::time::Duration::from_secs(seconds.into()));
    let capability = machine.gpus.first().and_then(|gpu| gpu.compute_capability);
    let products = args.products.unwrap_or_else(|| Products::recommended(capability));
    let mut bench = Bench::new(limit, args.quick, products, &mut report).map_err(Stopped::NotHere)?;
    match section {
        GpuSection::Kernels => bench.kernels(),
        GpuSection::Gemm => bench.gemm(),
        GpuSection::Steps => bench.steps(&machine),
        GpuSection::Sizes => bench.sizes(&machine),
        GpuSection::Head => bench.head(),
        GpuSection::Ladder => bench.ladder(),
        GpuSection::Whole => match &args.model {
            Some(folder) => bench.whole(folder),
            None => {
                let text = "--gpu whole needs --model FOLDER: a new folder, into which it writes the model";
                return Err(Stopped::Failed(Failure::usage(text)));
            }
        },
        GpuSection::Probe => {
            let failed = |text| Stopped::Failed(Failure::new(Exit::Device, text));
            let probe = bench.probe().map_err(failed)?;
            print_json(&probe).map_err(|error| Stopped::Failed(error.into()))?;
        }
        GpuSection::Model => unreachable!("needs no device"),
    }
    match (unwritten, args.output.as_deref()) {
        (None, _) => Ok(Exit::Done),
        (Some(error), Some(path)) => Err(Stopped::Failed(Failure::io("write", path, &error))),
        (Some(error), None) => Err(Stopped::Failed(error.into())),
    }
}
