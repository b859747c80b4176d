//! Flags of `bench`.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use sparktune_base::program_name;
use sparktune_bench::Section;
use sparktune_commands::request::{self, Given};

use crate::cli::settings::SettingFlags;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// Measure these sections only
    #[arg(value_name = "SECTION", value_parser = section_parser(), conflicts_with = "gpu")]
    pub sections: Vec<Section>,
    /// Write the rows into this file as JSON: one array; with --gpu one object on a line, as soon as each is
    /// known
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Measure less of everything: a few seconds in all, and less exact; with --gpu only to try whether it
    /// works
    #[arg(long)]
    pub quick: bool,
    /// Run the peers too, side by side: a Python with torch, transformers and peft; without it no peer in
    /// Python is run
    #[arg(long, value_name = "PYTHON", conflicts_with = "gpu")]
    pub peers: Option<PathBuf>,
    /// Measure the tokenizer of the model in this folder instead of the demo's
    #[arg(long, value_name = "FOLDER", value_hint = clap::ValueHint::DirPath)]
    pub model: Option<PathBuf>,
    /// Measure one thing on the first GPU instead; tests/gpu/run.sh makes tables of all of them
    #[arg(long, value_name = "SECTION")]
    pub gpu: Option<GpuSection>,
    /// Leave out what would not end within so many seconds
    #[arg(long, value_name = "N", requires = "gpu")]
    pub seconds: Option<u32>,
}

/// Measurements with flags of their own.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Compare each step's loss with transformers and peft, on your model and data
    #[command(after_help = lossless_help())]
    Lossless(Box<LosslessArgs>),
    /// Make optimizer steps as asked on standard input, by the protocol of tests/peers/train_steps.py
    #[command(hide = true)]
    Stepper {
        /// The plan, as TOML, with the folder of its model
        #[arg(long, value_name = "FILE")]
        plan: PathBuf,
        /// The packs of each step
        #[arg(long, value_name = "FILE")]
        packs: PathBuf,
        /// Write the adapters' initial values into this folder
        #[arg(long, value_name = "FOLDER")]
        adapter: Option<PathBuf>,
    },
}

fn lossless_help() -> String {
    format!(
        "\
Both sides make the same optimizer steps (30, or --max-steps) on the packs that `{program} train` would train on, from the
same weights and the same initial adapters; LoRA and full, or what --method says. All settings of `{program} train` can be
given. Exit code: 0 when the losses of every step lie within the bound, 70 when they do not. The bound, relative to the
peer's loss, is 1e-3 in f32 on the CPU, and 1e-2 in bf16 on a CUDA device.",
        program = program_name()
    )
}

/// `bench lossless`.
#[derive(Debug, Args)]
pub(crate) struct LosslessArgs {
    #[command(flatten)]
    pub settings: SettingFlags,
    /// A Python with torch, transformers and peft
    #[arg(long, value_name = "PYTHON")]
    pub peers: PathBuf,
    /// Compare on the shipped tiny model and data
    #[arg(long)]
    pub demo: bool,
}

/// Reads the name of a section, which help and completions list.
fn section_parser() -> impl TypedValueParser<Value = Section> {
    let names = Section::ALL.map(|section| PossibleValue::new(section.name()).help(section.about()));
    PossibleValuesParser::new(names)
        .map(|name| Section::from_name(&name).expect("only their names are possible"))
}

/// Sections that are measured on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GpuSection {
    /// Every kernel against its reference and its floor
    Kernels,
    /// The matrix products of all model sizes
    Gemm,
    /// Training steps: loss beside the CPU's, speed, memory
    Steps,
    /// What a step moves and computes, op by op, and the speed that allows on GB10: arithmetic that needs no
    /// GPU
    Model,
    /// What the plan asks for: two rates, in two seconds
    #[value(hide = true)]
    Probe,
}

impl BenchArgs {
    /// Returns the arguments of the command.
    pub(crate) fn request(self, json: bool) -> request::BenchArgs {
        request::BenchArgs {
            command: self.command.map(BenchCommand::request),
            sections: self.sections,
            json,
            output: self.output,
            quick: self.quick,
            peers: self.peers,
            model: self.model,
            gpu: self.gpu.map(|section| match section {
                GpuSection::Kernels => request::GpuSection::Kernels,
                GpuSection::Gemm => request::GpuSection::Gemm,
                GpuSection::Steps => request::GpuSection::Steps,
                GpuSection::Model => request::GpuSection::Model,
                GpuSection::Probe => request::GpuSection::Probe,
            }),
            seconds: self.seconds,
        }
    }
}

impl BenchCommand {
    fn request(self) -> request::BenchCommand {
        match self {
            Self::Lossless(args) => request::BenchCommand::Lossless(Box::new(request::LosslessArgs {
                given: Given { flags: args.settings.0, demo: args.demo },
                peers: args.peers,
            })),
            Self::Stepper { plan, packs, adapter } => request::BenchCommand::Stepper { plan, packs, adapter },
        }
    }
}
