//! The command line: flags → [`Command`]. Cheap, so that `--help` is there at once; nothing is opened or
//! decided here.
//!
//! The flags of a plan come from the plan's own table, so that a setting has one name, one help text and one
//! reader.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use sparktune_base::program_name;
use sparktune_bench::Section;
use sparktune_plan::{Answer, Answers, Origin, SETTINGS, Setting};

fn after_help() -> String {
    format!(
        "\
Begin:
  {program}                       the wizard: one question at a time, all answered already
  {program} --demo                the whole job on a tiny model that is included
  {program} check train.jsonl --model Qwen/Qwen3.5-0.8B
  {program} train --model Qwen/Qwen3.5-0.8B --data train.jsonl
  {program} watch                 follow the newest run; leaving never touches it
  {program} runs                  all runs: watch, resume, export, delete

Without a command, flags are the first answers of the wizard on a terminal, and mean `train` elsewhere. Exit codes:
0 done, 2 wrong usage, 3 data rejected, 4 device or memory, 5 stopped and resumable, 70 bug in sparktune.",
        program = program_name()
    )
}

/// Fine-tune small language models on the machine under your desk.
#[derive(Debug, Parser)]
#[command(name = "sparktune", bin_name = program_name(), version, about, after_help = after_help())]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub train: TrainArgs,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Read data and say what is in it: formats, rejected lines with reason and fix, duplicates, lengths
    Check(CheckArgs),
    /// Recommend how to train, with the reason for each value; starts nothing and fetches no weights
    Plan(PlanArgs),
    /// Train: check, plan, fetch, train, export
    Train(TrainArgs),
    /// Follow a run; leaving never touches it
    Watch(WatchArgs),
    /// List all runs
    Runs(RunsArgs),
    /// Continue a run from its newest whole checkpoint
    Resume(ResumeArgs),
    /// Ask a running trainer to save a checkpoint and end
    Stop(StopArgs),
    /// Write a run's outputs again from a checkpoint
    Export(ExportArgs),
    /// Draw a run as one page for a browser: curves, plan, data, samples
    Report(ReportArgs),
    /// Make a token file from v1 packets or JSON lines of token ids
    Pack(PackArgs),
    /// Write a token file as v1 packets or JSON lines
    Unpack(UnpackArgs),
    /// Find every defect of a token file
    Verify(VerifyArgs),
    /// Say what this machine is and whether training is exact on it
    Doctor(DoctorArgs),
    /// Measure the speed of every part on this machine
    Bench(BenchArgs),
    /// Print the completions of a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// The trainer process of a run folder
    #[command(hide = true)]
    Trainer {
        /// The run folder
        run_dir: PathBuf,
    },
}

/// Answers given as flags.
#[derive(Debug, Clone, Default)]
pub struct SettingFlags(pub Answers);

/// Flags that take several values.
fn is_list(setting: &Setting) -> bool {
    matches!(setting.key, "data.train" | "data.eval" | "model.ignored_fields")
}

fn flags() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| setting.has_flag)
}

/// `lora|full` from "lora or full"; else the kind of value.
fn value_name(expects: &str) -> String {
    match expects {
        "text" => "TEXT".into(),
        "true or false" => "BOOL".into(),
        _ if expects.contains("path") => "PATH".into(),
        _ if expects.contains("name") => "NAME".into(),
        _ if expects.starts_with("a ") => "N".into(),
        words => words.replace(", ", "|").replace(" or ", "|"),
    }
}

impl Args for SettingFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(flags().map(|setting| {
            let arg = Arg::new(setting.name)
                .long(setting.name)
                .value_name(value_name(setting.expects))
                .help(setting.about.trim_end_matches('.'))
                .help_heading("Settings");
            if is_list(setting) { arg.action(ArgAction::Append).num_args(1..) } else { arg }
        }))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Self::default();
        given.update_from_arg_matches(matches)?;
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in flags() {
            let Some(values) = matches.get_many::<String>(setting.name) else { continue };
            let paths = || Some(Answer::flag(values.clone().map(PathBuf::from).collect()));
            match setting.key {
                "data.train" => self.0.data = paths(),
                "data.eval" => self.0.eval_data = paths(),
                _ => {
                    // Several names are one text with commas.
                    let joined = values.clone().map(String::as_str).collect::<Vec<_>>().join(",");
                    let texts: Vec<&str> =
                        if is_list(setting) { vec![&joined] } else { values.map(String::as_str).collect() };
                    for text in texts {
                        self.0.set(setting.name, text, Origin::Flag).map_err(|error| {
                            clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{error}\n"))
                        })?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// `train`, and `sparktune` with flags alone.
#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub settings: SettingFlags,
    /// Train the shipped tiny model on the shipped data; takes all other flags too
    #[arg(long)]
    pub demo: bool,
    /// Never ask; a missing answer ends with the name of its flag
    #[arg(long)]
    pub non_interactive: bool,
    /// Plain questions and lines instead of full screens; what is not a terminal gets lines anyway
    #[arg(long)]
    pub plain: bool,
    /// Events as JSON lines; the last line is one object with the result
    #[arg(long)]
    pub json: bool,
    /// Do everything up to the plan, print it, and stop; no weights are fetched
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub settings: SettingFlags,
    /// Plan for the shipped tiny model and data
    #[arg(long)]
    pub demo: bool,
    /// Every value with its origin and reason, and what each pack length would cost
    #[arg(long)]
    pub explain: bool,
    /// The plan as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Never ask; a missing answer ends with the name of its flag
    #[arg(long)]
    pub non_interactive: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Files (.jsonl, .jsonl.gz, .jsonl.zst) and folders
    #[arg(required = true)]
    pub data: Vec<PathBuf>,
    /// Also render, tokenise and count tokens for this model: Hugging Face id or local folder
    #[arg(long)]
    pub model: Option<String>,
    /// Evaluation data: checked too, and compared with DATA
    #[arg(long, num_args(1..))]
    pub eval_data: Vec<PathBuf>,
    /// Shape of the data's lines: auto, messages, sharegpt, alpaca or prompt-completion
    #[arg(long)]
    pub format: Option<String>,
    /// Whether the empty think block that a template inserts carries loss: train or skip
    #[arg(long)]
    pub think: Option<String>,
    /// Share of rejected lines above which the data is refused
    #[arg(long, value_name = "N")]
    pub max_rejected: Option<String>,
    /// Where rejected lines are kept
    #[arg(long, value_name = "PATH", default_value = "rejected.jsonl")]
    pub rejected: PathBuf,
    /// The report as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Which run, among which runs.
#[derive(Debug, Args)]
pub struct RunName {
    /// Folder, unique beginning of the name, or `latest`
    #[arg(default_value = "latest")]
    pub run: String,
    /// Folder that holds the runs
    #[arg(long, value_name = "PATH")]
    pub runs_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub run: RunName,
    /// Plain lines instead of the dashboard; what is not a terminal gets them anyway
    #[arg(long)]
    pub plain: bool,
    /// The events themselves, one JSON object a line
    #[arg(long, conflicts_with = "plain")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunsArgs {
    /// Folder that holds the runs
    #[arg(long, value_name = "PATH")]
    pub runs_dir: Option<PathBuf>,
    /// A plain table; what is not a terminal gets it anyway
    #[arg(long, conflicts_with = "json")]
    pub plain: bool,
    /// One JSON array
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub run: RunName,
    /// Plain lines instead of the dashboard; what is not a terminal gets them anyway
    #[arg(long)]
    pub plain: bool,
    /// Events as JSON lines; the last line is one object with the result
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub run: RunName,
    /// Ask and return at once
    #[arg(long)]
    pub no_wait: bool,
    /// How the run stands afterwards, as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Folder, unique beginning of the name, or `latest`
    pub run: String,
    /// Folder that holds the runs
    #[arg(long, value_name = "PATH")]
    pub runs_dir: Option<PathBuf>,
    /// The checkpoint with the lowest evaluation loss instead of the newest
    #[arg(long)]
    pub best: bool,
    /// What was written, as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub run: RunName,
    /// The page to write, instead of report.html in the run folder
    #[arg(long, value_name = "PATH")]
    pub output: Option<PathBuf>,
    /// What was written, as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// v1 packets, or JSON lines with input_ids and, if wanted, loss_mask and source_line
    pub input: PathBuf,
    /// The token file to write
    pub output: PathBuf,
    /// Leave damaged packets out and list them, instead of ending with the first
    #[arg(long)]
    pub skip_damaged: bool,
    /// What was done, as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UnpackArgs {
    /// A token file
    pub input: PathBuf,
    /// The file to write
    pub output: PathBuf,
    /// `v1` packets (tokens only) or `jsonl`
    #[arg(long, default_value = "jsonl", value_parser = ["v1", "jsonl"])]
    pub to: String,
    /// Leave damaged examples out and list them, instead of ending with the first
    #[arg(long)]
    pub skip_damaged: bool,
    /// What was done, as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The token file
    pub file: PathBuf,
    /// Write its intact examples into a new token file
    #[arg(long, value_name = "OUT")]
    pub rebuild: Option<PathBuf>,
    /// The report as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Folder that holds the runs
    #[arg(long, value_name = "PATH")]
    pub runs_dir: Option<PathBuf>,
    /// The findings as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// Measure these sections only
    #[arg(value_name = "SECTION", value_parser = section_parser(), conflicts_with = "gpu")]
    pub sections: Vec<Section>,
    /// The rows as one JSON array; with --gpu one object on a line, into FILE as soon as each is known
    #[arg(long, value_name = "FILE")]
    pub json: Option<Option<PathBuf>>,
    /// Measure less of everything: a few seconds in all, and less exact; with --gpu only to try whether it
    /// works
    #[arg(long)]
    pub quick: bool,
    /// Run the peers too, side by side: a Python with torch, transformers and peft; without it no peer in
    /// Python is run
    #[arg(long, value_name = "PYTHON", conflicts_with = "gpu")]
    pub peers: Option<PathBuf>,
    /// Measure the tokenizer of the model in this folder instead of the demo's
    #[arg(long, value_name = "PATH")]
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
pub enum BenchCommand {
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
pub struct LosslessArgs {
    #[command(flatten)]
    pub settings: SettingFlags,
    /// A Python with torch, transformers and peft
    #[arg(long, value_name = "PYTHON")]
    pub peers: PathBuf,
    /// Compare on the shipped tiny model and data
    #[arg(long)]
    pub demo: bool,
    /// The losses of every step as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Reads the name of a section, which help and completions list.
fn section_parser() -> impl TypedValueParser<Value = Section> {
    let names = Section::ALL.map(|section| PossibleValue::new(section.name()).help(section.about()));
    PossibleValuesParser::new(names)
        .map(|name| Section::from_name(&name).expect("only their names are possible"))
}

/// What is measured on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GpuSection {
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_without_a_command_are_a_training() {
        let cli = Cli::try_parse_from(["sparktune", "--demo", "--rank", "4", "--data", "a", "b"]).unwrap();
        assert!(cli.command.is_none() && cli.train.demo);
        let answers = cli.train.settings.0;
        assert_eq!(answers.rank, Some(Answer::flag(4)));
        assert_eq!(answers.data.unwrap().value, [PathBuf::from("a"), PathBuf::from("b")]);
    }

    #[test]
    fn fields_to_ignore_may_be_given_one_by_one_or_together() {
        let line = ["sparktune", "--ignore-config-field", "a", "b", "--ignore-config-field", "c,d", "--demo"];
        let cli = Cli::try_parse_from(line).unwrap();
        let names = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        assert_eq!(cli.train.settings.0.ignore_config_field, Some(Answer::flag(names)));
    }

    #[test]
    fn a_value_of_the_wrong_kind_names_its_flag_and_what_is_expected() {
        let error = Cli::try_parse_from(["sparktune", "train", "--method", "magic"]).unwrap_err().to_string();
        assert!(error.contains("--method") && error.contains("lora or full"), "{error}");
    }

    #[test]
    fn sections_of_the_bench_are_selected_by_name() {
        let bench = |args: &[&str]| {
            let cli = Cli::try_parse_from(["sparktune", "bench"].iter().chain(args))?;
            let Some(Command::Bench(args)) = cli.command else { unreachable!("the command is bench") };
            Ok::<_, clap::Error>(args)
        };
        let chosen = bench(&["start", "tokens", "--json"]).unwrap();
        assert_eq!(chosen.sections, [Section::Start, Section::Tokens]);
        assert!(bench(&[]).unwrap().sections.is_empty());
        let error = bench(&["everything"]).unwrap_err().to_string();
        assert!(error.contains("everything") && error.contains("validation"), "{error}");
        assert!(bench(&["start", "--gpu", "model"]).is_err());
        let gpu = bench(&["--gpu", "gemm", "--seconds", "50", "--json", "rows.json"]).unwrap();
        assert_eq!((gpu.gpu, gpu.json), (Some(GpuSection::Gemm), Some(Some("rows.json".into()))));
        let lossless = bench(&["lossless", "--peers", "python3", "--model", "m", "--data", "d"]).unwrap();
        assert!(matches!(lossless.command, Some(BenchCommand::Lossless(_))));
        assert!(bench(&["lossless", "--model", "m", "--data", "d"]).is_err(), "there is no peer");
    }

    #[test]
    fn every_flag_that_scripts_rely_on_is_there() {
        let train = Cli::command();
        let promised = "model data eval-data preset method rank pack-length pack-strategy epochs max-steps save-steps \
                        learning-rate seed mtp runs-dir name device non-interactive plain json dry-run demo";
        for flag in promised.split_whitespace() {
            assert!(train.get_arguments().any(|arg| arg.get_long() == Some(flag)), "--{flag}");
        }
    }
}
