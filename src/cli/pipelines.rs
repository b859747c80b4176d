//! Flags of `bench pipelines` and `bench white-paper`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, ValueHint};
use sparktune_base::program_name;
use sparktune_base::shell::shown_word;
use sparktune_commands::request::{self, Given};
use sparktune_paper::Arrangement;

use crate::cli::settings::SettingFlags;

/// `bench pipelines`.
#[derive(Debug, Args)]
#[command(after_help = help())]
pub(crate) struct PipelinesArgs {
    #[command(flatten)]
    pub settings: SettingFlags,
    /// Compare on the included tiny model and data
    #[arg(long)]
    pub demo: bool,
    /// Optimizer steps of each training
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(2..=1_000_000))]
    pub steps: u64,
    /// How the pipelines are compared: `published` as QubGPU does (padded rows, its way of counting), `fair`
    /// (the same target tokens in the same order of examples), or `both`
    // Without the words' own help, which clap would list in a long form that no other command has.
    #[arg(long, value_name = "WHICH", default_value = "both", hide_possible_values = true)]
    pub arrangement: Which,
    /// Trainings of each pipeline; fewer than three say nothing about chance
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub seeds: u64,
    /// Examples of a step
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub batch: u64,
    /// Tokens of a row; longer examples are cut
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u64).range(8..=1_048_576))]
    pub max_tokens: u64,
    /// A suite of prompts that the base and the trained models answer; can be repeated
    #[arg(long, value_name = "NAME|FILE", default_values = ["coding"], value_hint = ValueHint::FilePath)]
    pub suite: Vec<String>,
    /// Run the code that models write, in a sandbox without network, to test it
    #[arg(long)]
    pub run_code: bool,
    /// Keep finished measurements in this folder, instead of one next to the runs
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub folder: Option<PathBuf>,
    /// Write the results into this file as JSON; `bench white-paper --results` reads it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
}

/// `bench white-paper`.
#[derive(Debug, Args)]
pub(crate) struct WhitePaperArgs {
    /// Results of `bench pipelines`, instead of those that the program carries
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub results: Option<PathBuf>,
    /// Rows that `bench loading --output` has written, instead of those that the program carries
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub loading: Option<PathBuf>,
    /// Results of `edit --measure` in a list, instead of those that the program carries
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub edits: Option<PathBuf>,
    /// Write the paper into this file, one page of HTML; without it, tables and verdicts are printed
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
}

/// Which arrangements are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Which {
    /// As QubGPU compares: padded rows, its way of counting
    Published,
    /// The same target tokens in the same order of examples
    Fair,
    /// One after the other
    Both,
}

/// The share that `qubgpu+drop` leaves out, which `--crc-drop` changes: QubGPU's.
const DROP: f64 = 0.05;

fn help() -> String {
    format!(
        "\
Pipelines: jsonl (parsed, tokenised and padded at each step), jsonl-packed, qubgpu (a mapped token file), qubgpu+drop (5 % \
of the examples left out, or --crc-drop), and the untuned base. All settings of `{program} train` can be given. Every \
measurement is a process of its own and is kept when it has ended, so the same command continues after an interruption. \
On a GPU, QubGPU's own size is measured too. --json prints the results as JSON.

  {program} bench pipelines --demo --steps 60 --max-tokens 256 --output results.json
  {program} bench white-paper --results results.json --output white-paper.html",
        program = program_name()
    )
}

impl PipelinesArgs {
    /// Returns the arguments of the command.
    pub(crate) fn request(self) -> request::PipelinesArgs {
        request::PipelinesArgs {
            given: Given { flags: self.settings.0, demo: self.demo, ..Given::default() },
            steps: self.steps,
            arrangements: match self.arrangement {
                Which::Published => vec![Arrangement::Published],
                Which::Fair => vec![Arrangement::Fair],
                Which::Both => vec![Arrangement::Published, Arrangement::Fair],
            },
            seeds: self.seeds,
            batch: self.batch,
            max_tokens: self.max_tokens,
            drop: DROP,
            suites: self.suite,
            run_code: self.run_code,
            folder: self.folder,
            output: self.output,
            command: typed(),
        }
    }
}

/// Returns the command line as it was typed, without folders: results are shared, and folders say who made
/// them and where.
fn typed() -> String {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| shown_word(without_folder(&word))).collect();
    format!("sparktune {}", words.join(" "))
}

/// Returns the last name of an absolute path; any other word as it is.
fn without_folder(word: &OsStr) -> &OsStr {
    let path = Path::new(word);
    if path.is_absolute() { path.file_name().unwrap_or(word) } else { word }
}
