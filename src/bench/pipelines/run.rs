//! All measurements of a benchmark, in turn: the pipelines follow each other, and each seed begins with
//! another one.

use std::path::PathBuf;

use sparktune_paper::{Arrangement, Data, Loading, Pipeline, Settings, Trained, Training};
use sparktune_plan::{MethodKind, Plan};

use super::child;
use super::job::{BUG, Job, Reply, Work, Written};
use super::kept::Kept;
use crate::error::BenchError;

/// Rounds of loading.
const ROUNDS: u64 = 5;
/// Bytes around a v1 packet, and of a token in it.
const V1_OVERHEAD: u64 = 8;
const V1_TOKEN: u64 = 4;

/// What is measured.
pub struct Request {
    /// The plan, with the folder of its model.
    pub plan: Plan,
    /// The name of the data.
    pub data: String,
    /// The token files of the training examples and of the eval set.
    pub tokens: PathBuf,
    /// The token file of the eval set.
    pub eval: PathBuf,
    /// The number of its examples.
    pub eval_examples: u64,
    /// The files that the token file was made of, in their order.
    pub sources: Vec<PathBuf>,
    /// The arrangements.
    pub arrangements: Vec<Arrangement>,
    /// Steps, batch, row, share that is dropped, seeds.
    pub settings: Settings,
    /// The program, which is started for each measurement.
    pub program: PathBuf,
}

/// How far it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What is measured.
    pub what: String,
    /// The measurements that have ended.
    pub done: u64,
    /// All measurements.
    pub total: u64,
}

/// What was measured.
pub struct Measured {
    /// The data.
    pub data: Data,
    /// Loading alone.
    pub loading: Vec<Loading>,
    /// Trainings.
    pub training: Vec<Training>,
    /// The trained models, with the folders of their adapters; none if nothing but adapters was trained.
    pub adapters: Vec<(Trained, PathBuf)>,
}

/// One measurement of the list.
struct Cell {
    arrangement: Arrangement,
    pipeline: Pipeline,
    /// Training with this seed, or loading.
    seed: Option<u64>,
}

impl Cell {
    fn name(&self) -> String {
        let (arrangement, pipeline) = (self.arrangement.name(), self.pipeline.name());
        match self.seed {
            None => format!("loading-{arrangement}-{pipeline}"),
            Some(seed) => format!("training-{arrangement}-{pipeline}-seed{seed}"),
        }
    }
}

/// Returns all measurements in their order.
fn cells(request: &Request) -> Vec<Cell> {
    let mut cells = Vec::new();
    for arrangement in request.arrangements.iter().copied() {
        let loading = |pipeline: &Pipeline| Cell { arrangement, pipeline: *pipeline, seed: None };
        cells.extend(arrangement.pipelines().iter().map(loading));
    }
    for (turn, seed) in request.settings.seeds.iter().copied().enumerate() {
        for arrangement in request.arrangements.iter().copied() {
            let pipelines = arrangement.pipelines();
            let in_turn = pipelines.iter().cycle().skip(turn % pipelines.len()).take(pipelines.len());
            cells.extend(in_turn.map(|pipeline| Cell { arrangement, pipeline: *pipeline, seed: Some(seed) }));
        }
    }
    cells
}

/// Makes all measurements that are not kept yet.
///
/// # Errors
/// A measurement fails, cannot be kept, or the user wants to stop; what has ended before is kept.
pub fn measure(
    request: &Request,
    kept: &Kept,
    progress: &mut dyn FnMut(&Progress),
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Measured, BenchError> {
    let folder = kept.folder();
    let plan = folder.join("plan.toml");
    std::fs::write(&plan, request.plan.to_toml()?).map_err(BenchError::io("write", &plan))?;
    let settings = &request.settings;
    let first = request.arrangements.first().copied().unwrap_or(Arrangement::Fair);
    let job = Job {
        work: Work::Lines,
        arrangement: first,
        pipeline: Pipeline::Jsonl,
        seed: request.plan.seed,
        steps: settings.steps,
        batch: settings.batch,
        row_tokens: settings.max_tokens,
        drop: settings.drop,
        plan,
        lines: folder.join("train.jsonl"),
        tokens: request.tokens.clone(),
        eval: request.eval.clone(),
        sources: request.sources.clone(),
    };
    let cells = cells(request);
    let mut state = Progress { what: "writing the lines".into(), done: 0, total: cells.len() as u64 };
    let ask =
        |job: &Job, told: &mut dyn FnMut(u64)| child::run(&request.program, folder, job, told, is_cancelled);
    let written: Written = match kept.read("lines").filter(|_| job.lines.is_file()) {
        Some(written) => written,
        None => {
            progress(&state);
            let Reply::Written(written) = ask(&job, &mut |_| ())? else { return Err(unexpected()) };
            kept.write("lines", &written)?;
            written
        }
    };
    let (mut loading, mut training, mut adapters) = (Vec::new(), Vec::new(), Vec::new());
    let trains_adapters = request.plan.method.kind() == MethodKind::Lora;
    for cell in &cells {
        let name = cell.name();
        let (arrangement, pipeline) = (cell.arrangement, cell.pipeline);
        let of_cell = |work| Job {
            work,
            arrangement,
            pipeline,
            seed: cell.seed.unwrap_or(request.plan.seed),
            ..job.clone()
        };
        let words = format!("{} {}", arrangement.name(), pipeline.name());
        match cell.seed {
            None => {
                let found = match kept.read::<Loading>(&name) {
                    Some(found) => found,
                    None => {
                        state.what = format!("{words}: loading alone");
                        progress(&state);
                        let answer = ask(&of_cell(Work::Load { rounds: ROUNDS }), &mut |_| ())?;
                        let Reply::Loading(found) = answer else { return Err(unexpected()) };
                        kept.write(&name, &found)?;
                        *found
                    }
                };
                loading.push(found);
            }
            Some(seed) => {
                let keeps_adapter = trains_adapters && arrangement != Arrangement::QubgpuSize;
                let adapter = keeps_adapter.then(|| folder.join(format!("adapter-{name}")));
                let is_whole = adapter.as_ref().is_none_or(|folder| folder.is_dir());
                let found = match kept.read::<Training>(&name).filter(|_| is_whole) {
                    Some(found) => found,
                    None => {
                        let all = settings.steps;
                        let mut told = |step| {
                            state.what = format!("{words}, seed {seed}: step {step} of {all}");
                            progress(&state);
                        };
                        told(0);
                        let work = Work::Train { adapter: adapter.clone() };
                        let answer = ask(&of_cell(work), &mut told)?;
                        let Reply::Training(found) = answer else { return Err(unexpected()) };
                        kept.write(&name, &found)?;
                        *found
                    }
                };
                training.push(found);
                adapters.extend(adapter.map(|folder| (Trained { arrangement, pipeline, seed }, folder)));
            }
        }
        state.done += 1;
        progress(&state);
    }
    let data = Data {
        name: request.data.clone(),
        examples: written.examples,
        tokens: written.tokens,
        target_tokens: written.target_tokens,
        eval_examples: request.eval_examples,
        cut_examples: written.cut_examples,
        jsonl_bytes: written.jsonl_bytes,
        token_file_bytes: written.token_file_bytes,
        v1_bytes: V1_OVERHEAD * written.examples + V1_TOKEN * written.tokens,
    };
    Ok(Measured { data, loading, training, adapters })
}

fn unexpected() -> BenchError {
    BenchError::Measuring {
        what: "answered something else than it was asked".into(),
        last_lines: String::new(),
        exit_code: BUG,
    }
}
