//! `bench pipelines` and `bench white-paper`: what JSON Lines and token files are worth to a training, and
//! what is to be said about QubGPU's claims.
//!
//! `sparktune_bench` measures loading and training, `sparktune_app` compares the models' answers, and
//! `sparktune_paper` judges. This module puts them together.

use std::path::Path;

use serde::{Deserialize, Serialize};
use sparktune_app::answers::gather;
use sparktune_app::comparison::{Request as Comparing, compare, find_suite};
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::folders::{private_folder_of_user, runs_dir_of};
use sparktune_app::inference::Decoding;
use sparktune_app::job;
use sparktune_app::listener::{Listener, Progress, Unit};
use sparktune_app::model::fetch;
use sparktune_app::models::{OpenableModel, find_named};
use sparktune_app::program::Program;
use sparktune_base::regular_file::read_regular;
use sparktune_base::shell::shown_word;
use sparktune_base::units::{bytes, counted};
use sparktune_bench::pipelines::{Kept, Measured, Request, load_average, measure};
use sparktune_compare::CodeRuns;
use sparktune_data::Source;
use sparktune_data::token_file::TokenFile;
use sparktune_paper::{
    Arrangement, EditResults, Machine, Model, Quality, Results, ResultsError, Settings, Speeds, Trained,
    VERSION, committed, html, table, write,
};
use sparktune_plan::{Device, Method, Plan};
use sparktune_tui::output::{columns, note, print, print_json};
use sparktune_tui::progress::OnStderr;

use crate::failure::from_measuring;
use crate::interrupt::Interrupts;
use crate::outputs::refuse_same_file;
use crate::request::{PipelinesArgs, WhitePaperArgs};
use crate::trainer::guard_tokenizer;

/// The width of the output where nobody says it.
const COLUMNS: usize = 100;
/// The folder of finished measurements, next to the runs.
const FOLDER: &str = ".pipelines";
/// The most bytes of results: those of a long benchmark have a few megabytes.
const MOST_RESULTS: u64 = 256 << 20;

/// What makes measurements comparable: those of different values are kept in different folders. The suites
/// are part of the names of the answers' files.
#[derive(Serialize)]
struct Identity<'a> {
    build: &'a str,
    plan: &'a str,
    tokens: &'a str,
    steps: u64,
    batch: u64,
    max_tokens: u64,
    drop: f64,
    run_code: bool,
}

/// Runs `sparktune bench pipelines`.
///
/// # Errors
/// The model or the data cannot be used, a measurement fails, or it was interrupted; what was measured before
/// is kept.
pub(crate) fn pipelines(program: &Program, args: PipelinesArgs, json: bool) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let listener = OnStderr::new(interrupts.flag());
    let suites = args.suites.iter().map(|name| find_suite(name)).collect::<Result<Vec<_>, _>>()?;
    let answers = gather(args.given.flags.clone(), args.given.demo)?;
    let job = job::plan(program, &answers, &listener)?;
    let snapshot = fetch(&job.hub, &job.download, &listener)?;
    let folder = std::path::absolute(&snapshot.folder)
        .map_err(|error| Failure::io("find", &snapshot.folder, &error))?;
    let mut plan = job.plan;
    plan.model.path = Some(folder.clone());
    let share = if plan.data.crc_drop > 0.0 { plan.data.crc_drop } else { args.drop };
    let settings = Settings {
        steps: args.steps,
        batch: args.batch,
        max_tokens: args.max_tokens,
        drop: share,
        seeds: (0..args.seeds).map(|turn| plan.seed + turn).collect(),
        suites: suites.iter().map(|suite| suite.name.clone()).collect(),
    };
    let mut notes = Vec::new();
    let arrangements = arrangements(&args.arrangements, &plan, &mut notes);
    let sources = Source::open(&job.prepared.inputs)?;
    // Those of a separate eval set come after those of the training data.
    let tokens = TokenFile::open(&job.prepared.train)?;
    let sources = sources.files().iter().take(tokens.header().sources.len());
    let kept = open_kept(program, &args, &settings, &plan, &tokens.file_hash(), &runs_dir_of(&answers))?;
    note(&format!("measurements are kept in {}", shown_word(kept.folder().as_os_str())));
    let request = Request {
        data: data_name(&plan, args.given.demo),
        tokens: job.prepared.train.clone(),
        eval_examples: TokenFile::open(&job.prepared.eval)?.len() as u64,
        eval: job.prepared.eval.clone(),
        sources: sources.map(|file| file.path.clone()).collect(),
        arrangements,
        settings,
        program: program.path()?.to_owned(),
        plan,
    };
    let mut progress = |state: &sparktune_bench::pipelines::Progress| {
        listener.progress(&Progress {
            what: state.what.clone(),
            done: state.done,
            total: Some(state.total),
            unit: Unit::Count,
            note: None,
        });
    };
    let stopped = || interrupts.count() > 0;
    let measured = measure(&request, &kept, &mut progress, &stopped)
        .map_err(|error| if stopped() { interrupted() } else { from_measuring(error) })?;
    let base = folder.display().to_string();
    let quality = Asking { program, listener: &listener, kept: &kept, run_code: args.run_code }
        .all(&base, &measured, &suites)
        .map_err(|failure| if stopped() { interrupted() } else { failure })?;
    if measured.adapters.is_empty() {
        notes.push(
            "Nothing but adapters can be compared by their answers, so only the base was asked.".into(),
        );
    }
    let Request { settings, plan, .. } = request;
    let results = Results {
        version: VERSION,
        created_us: sparktune_runlog::now_us(),
        program: format!("sparktune {}", env!("CARGO_PKG_VERSION")),
        command: args.command,
        machine: machine(plan.device),
        model: Model { name: model_name(&plan, args.given.demo), method: method(&plan) },
        data: measured.data,
        settings,
        loading: measured.loading,
        training: measured.training,
        quality,
        notes,
    };
    // The progress on the screen ends before the results are printed.
    drop(listener);
    // What is kept may have been changed by hand.
    Results::from_json(&results.to_json()).map_err(|error| {
        let folder = shown_word(kept.folder().as_os_str());
        Failure::usage(format!("a measurement that is kept in {folder} is damaged: {error}"))
            .hint("Delete this folder and measure again")
    })?;
    if let Some(path) = &args.output {
        std::fs::write(path, results.to_json()).map_err(|error| Failure::io("write", path, &error))?;
    }
    if json {
        print_json(&results)?;
    } else {
        let speeds = Speeds::committed().map_err(|error| Failure::new(Exit::Bug, error.to_string()))?;
        print(&table(&results, &speeds, columns().unwrap_or(COLUMNS).min(COLUMNS)))?;
    }
    Ok(Exit::Done)
}

fn interrupted() -> Failure {
    Failure::new(Exit::Interrupted, "interrupted; what was measured is kept")
        .hint("The same command continues with what is missing")
}

/// Returns the arrangements that can be measured on this device, and says what is left out.
fn arrangements(wanted: &[Arrangement], plan: &Plan, notes: &mut Vec<String>) -> Vec<Arrangement> {
    let mut found = wanted.to_vec();
    if wanted.contains(&Arrangement::Published) {
        match plan.device {
            Device::Cuda => found.push(Arrangement::QubgpuSize),
            Device::Cpu => notes.push(
                "QubGPU's own size (the shape of Qwen2.5-Coder-1.5B) was not measured, because that needs a GPU."
                    .into(),
            ),
        }
    }
    found
}

/// Opens the folder of measurements that agree in everything that decides their values.
fn open_kept(
    program: &Program,
    args: &PipelinesArgs,
    settings: &Settings,
    plan: &Plan,
    tokens: &str,
    runs_dir: &Path,
) -> Result<Kept, Failure> {
    // Its reasons and estimates depend on how much memory and disk is free at the moment.
    let plan = Plan { advice: None, ..plan.clone() };
    let identity = Identity {
        build: &program.build_hash()?,
        plan: &plan.to_toml()?,
        tokens,
        steps: settings.steps,
        batch: settings.batch,
        max_tokens: settings.max_tokens,
        drop: settings.drop,
        run_code: args.run_code,
    };
    let text = serde_json::to_string(&identity).map_err(|error| Failure::usage(error.to_string()))?;
    let identity = blake3::hash(text.as_bytes()).to_hex();
    let folder = match &args.folder {
        Some(folder) => folder.clone(),
        None => private_folder_of_user(runs_dir, FOLDER)?.join(&identity[..16]),
    };
    Kept::open(folder, &identity).map_err(from_measuring)
}

/// Asks models the prompts of suites, each model and suite once.
struct Asking<'a> {
    program: &'a Program,
    listener: &'a OnStderr,
    kept: &'a Kept,
    run_code: bool,
}

/// The answers to a suite as they are kept.
#[derive(Serialize, Deserialize)]
struct KeptQuality {
    quality: Quality,
}

impl Asking<'_> {
    /// Asks the base and every trained model.
    fn all(
        &self,
        base: &str,
        measured: &Measured,
        suites: &[sparktune_compare::Suite],
    ) -> Result<Vec<Quality>, Failure> {
        let mut found = Vec::new();
        for suite in suites {
            let models = measured
                .adapters
                .iter()
                .map(|(trained, folder)| (Some(*trained), folder.display().to_string()));
            for (trained, folder) in std::iter::once((None, base.to_owned())).chain(models) {
                found.push(self.one(trained, &folder, suite)?);
            }
        }
        Ok(found)
    }

    fn one(
        &self,
        trained: Option<Trained>,
        folder: &str,
        suite: &sparktune_compare::Suite,
    ) -> Result<Quality, Failure> {
        let model = trained.map_or("base".to_owned(), |Trained { arrangement, pipeline, seed }| {
            format!("{}-{}-seed{seed}", arrangement.name(), pipeline.name())
        });
        let suite_name: String =
            suite.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        // Another suite of the same name has other answers.
        let content = blake3::hash(format!("{suite:?}").as_bytes()).to_hex();
        let name = format!("quality-{suite_name}-{}-{model}", &content[..8]);
        if let Some(KeptQuality { quality }) = self.kept.read(&name) {
            return Ok(quality);
        }
        let found = find_named(folder, self.kept.folder())?;
        // A name of the model in words, because its folder says nothing to a reader.
        let request = Comparing {
            models: vec![OpenableModel { name: model, ..found }],
            suite: suite.clone(),
            judge: None,
            run_code: self.run_code,
            at_a_time: 1,
            decoding: Decoding::default(),
        };
        let comparison = compare(self.program, &request, self.listener)?;
        let answers = comparison.models.first().map(|model| (&model.summary, &model.answers));
        let Some((summary, answers)) = answers else {
            return Err(Failure::new(Exit::Bug, "a comparison of one model has none"));
        };
        let quality = Quality {
            trained,
            suite: suite.name.clone(),
            decided: summary.decided as u64,
            passed: summary.passed as u64,
            tokens: answers.iter().map(|answer| answer.completion_tokens as u64).sum(),
            answers: answers.len() as u64,
            generating_ms: answers.iter().filter_map(|answer| answer.total_ms).sum(),
            code_ran: comparison.code == CodeRuns::Ran,
            load_average: load_average(),
        };
        let kept = KeptQuality { quality };
        self.kept.write(&name, &kept).map_err(from_measuring)?;
        Ok(kept.quality)
    }
}

fn data_name(plan: &Plan, demo: bool) -> String {
    if demo {
        return "the demo's chats".into();
    }
    let names = plan.data.train.iter().filter_map(|path| path.file_name());
    names.map(|name| name.to_string_lossy().into_owned()).collect::<Vec<_>>().join(", ")
}

fn model_name(plan: &Plan, demo: bool) -> String {
    let is_path = Path::new(&plan.model.id).is_absolute();
    match (demo, is_path) {
        (true, _) => "the demo's model".into(),
        (false, true) => plan.model.id.rsplit('/').next().unwrap_or_default().to_owned(),
        (false, false) => plan.model.id.clone(),
    }
}

fn method(plan: &Plan) -> String {
    match plan.method {
        Method::Lora { rank, .. } => format!("LoRA r={rank}"),
        Method::Full => "full fine-tuning".into(),
        Method::Head => "MTP head".into(),
    }
}

/// Describes this machine without its name.
fn machine(device: Device) -> Machine {
    let facts = sparktune_telemetry::Machine::gather();
    let cores = facts.cores_usable;
    let gpu = match (device, facts.gpus.first()) {
        (Device::Cuda, Some(gpu)) => gpu.name.clone().unwrap_or_else(|| "a GPU without a name".into()),
        (Device::Cuda, None) => "a GPU that says nothing of itself".into(),
        (Device::Cpu, _) => "trained without a GPU".into(),
    };
    let words = format!(
        "{} of an {} processor, {} of memory, {gpu}",
        counted(cores as u64, "core"),
        facts.arch,
        bytes(facts.mem_total_bytes)
    );
    Machine { words, cores: cores as u32, device: device.to_string() }
}

/// Runs `sparktune bench white-paper`.
///
/// # Errors
/// The results cannot be read, or the paper not written.
pub(crate) fn white_paper(args: &WhitePaperArgs, json: bool) -> Result<Exit, Failure> {
    let bug = |error: ResultsError| Failure::new(Exit::Bug, error.to_string());
    let results = match &args.results {
        None => committed().map_err(bug)?,
        Some(path) => given(path, Results::from_json)?,
    };
    let speeds = match &args.loading {
        None => Speeds::committed().map_err(bug)?,
        Some(path) => given(path, Speeds::from_json)?,
    };
    let edits = match &args.edits {
        None => EditResults::committed().map_err(bug)?,
        Some(path) => given(path, EditResults::from_json)?,
    };
    let document = write(&results, &speeds, &edits);
    for input in [&args.results, &args.loading, &args.edits].into_iter().flatten() {
        args.output.as_deref().map_or(Ok(()), |output| refuse_same_file(input, output))?;
    }
    match &args.output {
        Some(path) => {
            std::fs::write(path, html(&document)).map_err(|error| Failure::io("write", path, &error))?;
            note(&format!("written to {}", shown_word(path.as_os_str())));
        }
        None if json => print_json(&document)?,
        None => print(&table(&results, &speeds, columns().unwrap_or(COLUMNS).min(COLUMNS)))?,
    }
    Ok(Exit::Done)
}

/// Reads what a benchmark has written into a file.
fn given<T>(path: &Path, read: fn(&str) -> Result<T, ResultsError>) -> Result<T, Failure> {
    let bytes = read_regular(path, MOST_RESULTS).map_err(|error| Failure::io("read", path, &error))?;
    read(&String::from_utf8_lossy(&bytes))
        .map_err(|error| Failure::usage(format!("{}: {error}", shown_word(path.as_os_str()))))
}

/// Runs the process of one measurement.
///
/// # Errors
/// The job cannot be read.
pub(crate) fn pipeline(job: &Path) -> Result<Exit, Failure> {
    guard_tokenizer()?;
    sparktune_bench::pipelines::serve(job, std::io::stdout().lock()).map_err(from_measuring)?;
    Ok(Exit::Done)
}
