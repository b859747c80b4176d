//! The requests of the command line to each command, as plain values. They must not know the parser.

use std::path::PathBuf;

use sparktune_bench::{PlainText, Section};
use sparktune_cluster::RankCounts;
use sparktune_paper::Arrangement;
use sparktune_plan::{Answers, Products};

/// The style of a command's output, and whether it may ask questions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Style {
    /// Lines and plain questions instead of full screens.
    pub plain: bool,
    /// JSON instead of text.
    pub json: bool,
    /// Never ask questions.
    pub non_interactive: bool,
}

/// A run in a folder of runs.
#[derive(Debug, Clone)]
pub struct RunName {
    /// The folder, a unique prefix of the name, or `latest`.
    pub run: String,
    /// The folder of the runs, if a flag names it.
    pub runs_dir: Option<PathBuf>,
}

/// The input of `train` and `plan`.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Answers given as flags.
    pub flags: Answers,
    /// Fill in the demo.
    pub demo: bool,
    /// The number of ranks whose order of sums one process keeps.
    pub sum_as: Option<RankCounts>,
    /// Train on all members of the cluster.
    pub on_cluster: bool,
    /// The name of the run that has to end first.
    pub after: Option<String>,
}

/// Sections that are measured on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuSection {
    /// Every kernel against its reference and its floor.
    Kernels,
    /// The matrix products of all model sizes.
    Gemm,
    /// Training steps: loss next to the CPU's, speed, memory.
    Steps,
    /// Steps of all sizes.
    Sizes,
    /// Steps of the MTP head's training.
    Head,
    /// What each part of a fast step is worth.
    Ladder,
    /// Loss and gradients of a whole model, for a comparison with other programs.
    Whole,
    /// The work of a step, op by op: a calculation that needs no GPU.
    Model,
    /// The measurement that the plan uses: two rates, in two seconds.
    Probe,
}

/// The sections of `bench`.
#[derive(Debug, Clone, Default)]
pub struct BenchArgs {
    /// A measurement other than sections.
    pub command: Option<BenchCommand>,
    /// The sections; all of them if empty.
    pub sections: Vec<Section>,
    /// JSON instead of a table.
    pub json: bool,
    /// The file for the rows, as JSON; with `gpu` one object per line, written at once.
    pub output: Option<PathBuf>,
    /// Whether to measure less: a few seconds in total, and less exact.
    pub quick: bool,
    /// The Python that runs the peers.
    pub peers: Option<PathBuf>,
    /// The model whose tokenizer is measured, instead of the demo's; with [`GpuSection::Whole`] the folder
    /// that is made.
    pub model: Option<PathBuf>,
    /// A `tokenizer.json` and text that are measured instead of a model's tokenizer.
    pub plain_text: Option<PlainText>,
    /// A section on the first GPU, instead of the other sections.
    pub gpu: Option<GpuSection>,
    /// The number of seconds after which remaining measurements are left out.
    pub seconds: Option<u32>,
    /// By whom the products of steps are computed on the GPU; as a plan recommends if not given.
    pub products: Option<Products>,
}

/// Measurements with flags of their own.
#[derive(Debug, Clone)]
pub enum BenchCommand {
    /// The losses of each step next to a peer's.
    Lossless(Box<LosslessArgs>),
    /// Optimizer steps on request from standard input.
    Stepper {
        /// The plan, as TOML.
        plan: PathBuf,
        /// The packs of each step.
        packs: PathBuf,
        /// The folder for the adapters' initial values.
        adapter: Option<PathBuf>,
    },
    /// The speed of the CPU in products of matrices and in reading weights.
    CpuSpeed,
    /// Gradients of shares of real steps, recorded or judged.
    Sentry(Box<SentryArgs>),
    /// JSON Lines against token files.
    Pipelines(Box<PipelinesArgs>),
    /// One measurement of that, in a process of its own.
    Pipeline {
        /// The file that describes it.
        job: PathBuf,
    },
    /// One rank of a measurement of sums over ranks, in a process of its own.
    ClusterRank {
        /// What it does, as JSON.
        job: String,
    },
    /// The white paper about the results.
    WhitePaper(WhitePaperArgs),
}

/// The arguments of `bench pipelines`.
#[derive(Debug, Clone)]
pub struct PipelinesArgs {
    /// The model, the data and the settings.
    pub given: Given,
    /// The optimizer steps of each training.
    pub steps: u64,
    /// The arrangements.
    pub arrangements: Vec<Arrangement>,
    /// The number of seeds.
    pub seeds: u64,
    /// The examples of a step.
    pub batch: u64,
    /// The tokens of a row.
    pub max_tokens: u64,
    /// The share that `qubgpu+drop` leaves out, unless a setting says it.
    pub drop: f64,
    /// The suites of prompts.
    pub suites: Vec<String>,
    /// Whether code that models write may be run.
    pub run_code: bool,
    /// The folder of finished measurements, if it is not chosen by what is measured.
    pub folder: Option<PathBuf>,
    /// The file for the results.
    pub output: Option<PathBuf>,
    /// The command as it was typed.
    pub command: String,
}

/// The arguments of `bench white-paper`.
#[derive(Debug, Clone)]
pub struct WhitePaperArgs {
    /// A file of results; those that the program carries by default.
    pub results: Option<PathBuf>,
    /// A file of rows about loading; those that the program carries by default.
    pub loading: Option<PathBuf>,
    /// A file of results of edits; those that the program carries by default.
    pub edits: Option<PathBuf>,
    /// The file for the paper; without one, the tables are printed.
    pub output: Option<PathBuf>,
}

/// The arguments of `bench sentry`.
#[derive(Debug, Clone)]
pub struct SentryArgs {
    /// The model, the data and the settings.
    pub given: Given,
    /// The file for a recording.
    pub record: Option<PathBuf>,
    /// The recordings that are judged.
    pub recordings: Vec<PathBuf>,
    /// The honest steps that are judged for each number of ranks.
    pub honest_steps: u64,
}

/// The arguments of `bench lossless`.
#[derive(Debug, Clone)]
pub struct LosslessArgs {
    /// The model, the data and the settings.
    pub given: Given,
    /// The Python that runs the peer.
    pub peers: PathBuf,
}
