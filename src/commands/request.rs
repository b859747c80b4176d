//! The requests of the command line to each command, as plain values that know no parser.

use std::path::PathBuf;

use sparktune_bench::Section;
use sparktune_plan::Answers;

/// How a command speaks and whether it may ask.
#[derive(Debug, Clone, Copy, Default)]
pub struct Style {
    /// Lines and plain questions instead of full screens.
    pub plain: bool,
    /// JSON instead of text.
    pub json: bool,
    /// Never ask.
    pub non_interactive: bool,
}

/// A run, among the runs of a folder.
#[derive(Debug, Clone)]
pub struct RunName {
    /// Folder, unique beginning of the name, or `latest`.
    pub run: String,
    /// The folder of runs, where a flag names it.
    pub runs_dir: Option<PathBuf>,
}

/// The input of `train` and `plan`.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Answers given as flags.
    pub flags: Answers,
    /// Fill in the demo.
    pub demo: bool,
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
    /// What a step moves and computes, op by op: arithmetic that needs no GPU.
    Model,
    /// What the plan asks for: two rates, in two seconds.
    Probe,
}

/// The sections of `bench`.
#[derive(Debug, Clone, Default)]
pub struct BenchArgs {
    /// Something other than sections.
    pub command: Option<BenchCommand>,
    /// These sections; without any, all.
    pub sections: Vec<Section>,
    /// JSON instead of a table.
    pub json: bool,
    /// The file for the rows, as JSON; with `gpu` one object on a line, as soon as each is known.
    pub output: Option<PathBuf>,
    /// A few seconds in all, and less exact.
    pub quick: bool,
    /// The Python that runs the peers.
    pub peers: Option<PathBuf>,
    /// The model whose tokenizer is measured, instead of the demo's.
    pub model: Option<PathBuf>,
    /// One section on the first GPU instead.
    pub gpu: Option<GpuSection>,
    /// Leave out what would not end within so many seconds.
    pub seconds: Option<u32>,
}

/// Measurements with flags of their own.
#[derive(Debug, Clone)]
pub enum BenchCommand {
    /// The losses of each step next to a peer's.
    Lossless(Box<LosslessArgs>),
    /// Optimizer steps as asked on standard input.
    Stepper {
        /// The plan, as TOML.
        plan: PathBuf,
        /// The packs of each step.
        packs: PathBuf,
        /// The folder for the adapters' initial values.
        adapter: Option<PathBuf>,
    },
}

/// `bench lossless`.
#[derive(Debug, Clone)]
pub struct LosslessArgs {
    /// The model, the data and the settings.
    pub given: Given,
    /// The Python that runs the peer.
    pub peers: PathBuf,
}
