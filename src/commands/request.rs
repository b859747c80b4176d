//! What the command line asks of each command, as plain values: no parser is known here.

use std::path::PathBuf;

use sparktune_plan::Answers;

/// How a command speaks and whether it may ask.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// Lines and plain questions instead of full screens.
    pub plain: bool,
    /// JSON instead of text.
    pub json: bool,
    /// Never ask.
    pub non_interactive: bool,
}

/// A run, among the runs of a folder.
#[derive(Clone, Debug)]
pub struct RunName {
    /// Folder, unique beginning of the name, or `latest`.
    pub run: String,
    /// The folder of runs, where a flag names it.
    pub runs_dir: Option<PathBuf>,
}

/// What `train` and `plan` start from.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Answers given as flags.
    pub flags: Answers,
    /// Fill in the demo.
    pub demo: bool,
}

/// What is measured on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// What a process of its own measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchPart {
    /// Training of adapters.
    Lora,
    /// Training of every parameter.
    Full,
}

/// What `bench` measures.
#[derive(Clone, Debug, Default)]
pub struct BenchArgs {
    /// JSON instead of a table; with `gpu` into this file.
    pub json: Option<Option<PathBuf>>,
    /// A few seconds in all, and less exact.
    pub quick: bool,
    /// One section on the first GPU instead.
    pub gpu: Option<GpuSection>,
    /// Leave out what would not end within so many seconds.
    pub seconds: Option<u32>,
    /// The model whose tokenizer is measured, instead of the demo's.
    pub model: Option<PathBuf>,
    /// One kind of training, in this process.
    pub part: Option<BenchPart>,
}
