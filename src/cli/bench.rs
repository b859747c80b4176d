//! Flags of `bench`.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use sparktune_base::program_name;
use sparktune_bench::{PlainText, Section};
use sparktune_commands::request::{self, Given};
use sparktune_plan::Products;

use crate::cli::pipelines::{PipelinesArgs, WhitePaperArgs};
use crate::cli::settings::SettingFlags;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// Measure only these sections
    #[arg(value_name = "SECTION", value_parser = section_parser(), conflicts_with = "gpu")]
    pub sections: Vec<Section>,
    /// Write the rows into this file as JSON: as one array, or with --gpu as one object per line while it
    /// measures
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Measure less of everything, in a few seconds and less exactly; with --gpu only to see whether it
    /// works
    #[arg(long)]
    pub quick: bool,
    /// Run the peers too, in turn with sparktune: a Python with torch, transformers and peft
    #[arg(long, value_name = "PYTHON", conflicts_with = "gpu")]
    pub peers: Option<PathBuf>,
    /// Measure the tokenizer of the model in this folder, instead of the demo's, and one edit of this model;
    /// with --gpu whole the new folder for a model
    #[arg(long, value_name = "FOLDER", value_hint = clap::ValueHint::DirPath)]
    pub model: Option<PathBuf>,
    /// Measure this tokenizer.json by itself, on the files of --text
    #[arg(long, value_name = "FILE", requires = "text", conflicts_with = "model")]
    pub tokenizer: Option<PathBuf>,
    /// The folder of text for --tokenizer
    #[arg(long, value_name = "FOLDER", requires = "tokenizer", value_hint = clap::ValueHint::DirPath)]
    pub text: Option<PathBuf>,
    /// Measure one section on the first GPU instead; tests/gpu/run.sh runs all of them and makes tables
    #[arg(long, value_name = "SECTION")]
    pub gpu: Option<GpuSection>,
    /// Skip what would not end within this many seconds
    #[arg(long, value_name = "N", requires = "gpu")]
    pub seconds: Option<u32>,
    /// Measure steps with the matrix products computed as in a run with this setting: own always uses
    /// sparktune's kernels; auto leaves each to cuBLASLt where that is faster. Default: as for a run
    #[arg(long, value_name = "own|auto", value_parser = products_parser(), hide_possible_values = true, requires = "gpu")]
    pub products: Option<Products>,
}

/// Measurements with flags of their own.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Compare each step's loss with transformers and peft, on your model and data
    #[command(after_help = lossless_help())]
    Lossless(Box<LosslessArgs>),
    /// Make the optimizer steps requested on standard input, in the protocol of tests/peers/train_steps.py
    #[command(hide = true)]
    Stepper {
        /// The plan, as TOML, with the folder of its model
        #[arg(long, value_name = "FILE")]
        plan: PathBuf,
        /// The packs of each step
        #[arg(long, value_name = "FILE")]
        packs: PathBuf,
        /// Write the initial values of the adapters into this folder
        #[arg(long, value_name = "FOLDER")]
        adapter: Option<PathBuf>,
    },
    /// Measure for half a second how fast the CPU multiplies matrices and reads weights, for plans
    #[command(hide = true)]
    CpuSpeed,
    /// Compare pipelines that bring data into training: JSON Lines against token files
    Pipelines(Box<PipelinesArgs>),
    /// Make one measurement of `pipelines`, in a process of its own
    #[command(hide = true)]
    Pipeline {
        /// The file that describes it
        #[arg(long, value_name = "FILE")]
        job: PathBuf,
    },
    /// Be one rank of a measurement of `cluster`
    #[command(hide = true)]
    ClusterRank {
        /// What it does, as JSON
        #[arg(long, value_name = "JSON")]
        job: String,
    },
    /// Record the gradients of shares of real steps, or judge recorded ones, honest and not
    #[command(hide = true)]
    Sentry(Box<SentryArgs>),
    /// Write the white paper about QubGPU's claims, or print its tables
    WhitePaper(WhitePaperArgs),
}

fn lossless_help() -> String {
    format!(
        "\
Both sides make the same optimizer steps (30, or --max-steps) on the packs that `{program} train` would train on, from the \
same weights and the same initial adapters; with LoRA and in full, or with the given --method only. All settings of \
`{program} train` can be given. The exit code is 0 if the losses of every step lie within the bound, and 70 if not. The \
bound, relative to the peer's loss, is 1e-3 in f32 on the CPU, and 1e-2 in bf16 on a CUDA device.",
        program = program_name()
    )
}

/// `bench sentry`.
#[derive(Debug, Args)]
pub(crate) struct SentryArgs {
    #[command(flatten)]
    pub settings: SettingFlags,
    /// Train the included tiny model on its data
    #[arg(long)]
    pub demo: bool,
    /// Train, and write the gradients' norms, inner products and projections into this file
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Judge these recordings and print the tables
    #[arg(long, value_name = "FILE", conflicts_with = "record", required_unless_present = "record", num_args = 1..)]
    pub recording: Vec<PathBuf>,
    /// Judge at least so many honest steps for each number of ranks
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub honest_steps: u64,
}

/// `bench lossless`.
#[derive(Debug, Args)]
pub(crate) struct LosslessArgs {
    #[command(flatten)]
    pub settings: SettingFlags,
    /// A Python with torch, transformers and peft
    #[arg(long, value_name = "PYTHON")]
    pub peers: PathBuf,
    /// Compare on the included tiny model and data
    #[arg(long)]
    pub demo: bool,
}

/// Reads the name of a section, which help and completions list.
fn section_parser() -> impl TypedValueParser<Value = Section> {
    let names = Section::ALL.map(|section| PossibleValue::new(section.name()).help(section.about()));
    PossibleValuesParser::new(names)
        .map(|name| Section::from_name(&name).expect("only their names are possible"))
}

fn products_parser() -> impl TypedValueParser<Value = Products> {
    PossibleValuesParser::new(Products::WORDS)
        .map(|word| word.parse().expect("only these words are possible"))
}

/// Sections that are measured on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GpuSection {
    /// Every kernel, compared with its reference and its floor
    Kernels,
    /// The matrix products of all model sizes
    Gemm,
    /// Training steps: loss compared with the CPU's, speed, memory
    Steps,
    /// Steps of all five sizes: LoRA, and full where it fits
    Sizes,
    /// Steps of the MTP head's training
    Head,
    /// What kernels, kept activations and fewer targets are each worth: from plain operations to a full step
    Ladder,
    /// Loss and gradients of a random 2B, which is written into the folder of --model for other programs
    Whole,
    /// The bytes and FLOPs of a step, op by op, and the speed that they allow on GB10; needs no GPU
    Model,
    /// The two rates that the plan uses, in two seconds
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
            plain_text: self.tokenizer.zip(self.text).map(|(tokenizer, text)| PlainText { tokenizer, text }),
            gpu: self.gpu.map(|section| match section {
                GpuSection::Kernels => request::GpuSection::Kernels,
                GpuSection::Gemm => request::GpuSection::Gemm,
                GpuSection::Steps => request::GpuSection::Steps,
                GpuSection::Sizes => request::GpuSection::Sizes,
                GpuSection::Head => request::GpuSection::Head,
                GpuSection::Ladder => request::GpuSection::Ladder,
                GpuSection::Whole => request::GpuSection::Whole,
                GpuSection::Model => request::GpuSection::Model,
                GpuSection::Probe => request::GpuSection::Probe,
            }),
            seconds: self.seconds,
            products: self.products,
        }
    }
}

impl BenchCommand {
    fn request(self) -> request::BenchCommand {
        match self {
            Self::Lossless(args) => request::BenchCommand::Lossless(Box::new(request::LosslessArgs {
                given: Given { flags: args.settings.0, demo: args.demo, ..Given::default() },
                peers: args.peers,
            })),
            Self::Stepper { plan, packs, adapter } => request::BenchCommand::Stepper { plan, packs, adapter },
            Self::CpuSpeed => request::BenchCommand::CpuSpeed,
            Self::Sentry(args) => request::BenchCommand::Sentry(Box::new(request::SentryArgs {
                given: Given { flags: args.settings.0, demo: args.demo, ..Given::default() },
                record: args.record,
                recordings: args.recording,
                honest_steps: args.honest_steps,
            })),
            Self::Pipelines(args) => request::BenchCommand::Pipelines(Box::new(args.request())),
            Self::Pipeline { job } => request::BenchCommand::Pipeline { job },
            Self::ClusterRank { job } => request::BenchCommand::ClusterRank { job },
            Self::WhitePaper(WhitePaperArgs { results, loading, edits, output }) => {
                request::BenchCommand::WhitePaper(request::WhitePaperArgs { results, loading, edits, output })
            }
        }
    }
}
