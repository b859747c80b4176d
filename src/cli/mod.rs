//! The command line: parses flags into a [`Command`]. It must be cheap, so that `--help` is printed at once:
//! nothing is opened or decided here.
//!
//! The flags of a plan come from the plan's own table (`settings`), and a shell's completions from the
//! declarations here (`complete`).

mod bench;
mod chat;
mod cluster;
mod compare;
mod complete;
mod data;
mod edit;
mod elsewhere;
mod files;
mod generate;
mod packet;
mod pipelines;
mod refusal;
mod runs;
#[cfg(feature = "serve")]
mod serve;
mod settings;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use sparktune_app::{comparison, presets, runs as existing_runs};
use sparktune_base::program_name;
use sparktune_commands::RankCounts;
use sparktune_commands::request::Style;
use sparktune_plan::{Catalog, Setting};

use crate::cli::bench::BenchArgs;
use crate::cli::chat::ChatArgs;
use crate::cli::cluster::ClusterArgs;
use crate::cli::compare::CompareArgs;
use crate::cli::complete::Shell;
use crate::cli::data::DataArgs;
use crate::cli::edit::EditArgs;
use crate::cli::elsewhere::ElsewhereFlags;
pub(crate) use crate::cli::files::CheckArgs;
use crate::cli::files::{PackArgs, UnpackArgs, VerifyArgs};
use crate::cli::generate::{GenerateArgs, WorkerArgs};
use crate::cli::packet::PacketArgs;
use crate::cli::runs::{ExportArgs, HeadArgs, OnEnd, ReportArgs, ResumeArgs, RunsArgs, StopArgs};
pub(crate) use crate::cli::runs::{RunName, RunsAction};
#[cfg(feature = "serve")]
pub(crate) use crate::cli::serve::{ServeArgs, serve};
use crate::cli::settings::{GLOBAL, HELP_ALL, SettingFlags};

fn after_help() -> String {
    format!(
        "\
Getting started:
  {program}                       the wizard: one question at a time, each with a recommended answer
  {program} --demo                the complete workflow on a tiny model that is included
  {program} check train.jsonl --model Qwen/Qwen3.5-0.8B
  {program} train --model Qwen/Qwen3.5-0.8B --data train.jsonl
  {program} watch                 follow the newest run; leaving does not stop it
  {program} runs                  list the runs; watch, resume, export or delete them
  {program} guide                 the guide's topics; `help TOPIC` prints one

Without a command, the flags are passed to the wizard if the output is a terminal, and to `train` otherwise.

Exit codes:
    0 done
    2 wrong usage
    3 data rejected or damaged, or an edit not kept
    4 device, memory or disk, or a loss that is not finite
    5 stopped before the end (`resume` continues the run)
    7 trained to the end, but the loss diverged
   69 the network or the Hub failed before a run (the same command continues)
   70 bug in sparktune, or losses beyond the bound of `bench lossless`
   77 not possible on this machine
  130 interrupted, nothing to resume",
        program = program_name()
    )
}

fn after_help_of_train() -> String {
    format!(
        "\
The same again with changes: a run's plan is a preset, and flags count more than it:
  {program} train --preset runs/RUN/plan.toml --rank 16

`{program} resume RUN --epochs N` trains a run longer, and --from RUN starts a new one from its weights.",
        program = program_name()
    )
}

/// Fine-tune small language models on the machine under your desk.
#[derive(Debug, Parser)]
#[command(name = "sparktune", bin_name = program_name(), version, about, after_help = after_help())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub style: GlobalFlags,
    /// Without a command; `--runs-dir` is here for every command.
    #[command(flatten)]
    pub train: TrainArgs,
}

/// Flags of every command, before or after its name. Where a command prints nothing that they would change,
/// they change nothing.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct GlobalFlags {
    /// Never prompt; if an answer is missing, fail and name its flag
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub non_interactive: bool,
    /// Print lines and ask plain questions instead of using full screens; always on if the output is not a
    /// terminal
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub plain: bool,
    /// Print JSON instead of text; during training, one event per line, the last of which is the result
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub json: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check data: formats, rejected lines with reason and fix, duplicates, lengths
    Check(CheckArgs),
    /// List well-known data sets, download one as JSON Lines, or serve token files to other machines
    Data(DataArgs),
    /// Several machines that train one model: start a cluster, join it, see its members, leave it
    Cluster(ClusterArgs),
    /// Recommend how to train, with a reason for each value; downloads no weights and starts nothing
    Plan(PlanArgs),
    /// Train: check, plan, download, train, export
    #[command(after_help = after_help_of_train())]
    Train(TrainArgs),
    /// Print a page of the user's guide, or list them
    Guide {
        /// The page
        page: Option<String>,
    },
    /// Follow a run; leaving does not stop it
    Watch(RunName),
    /// List the runs, newest first
    Runs(RunsArgs),
    /// Continue a run from its newest complete checkpoint
    Resume(ResumeArgs),
    /// Train only the MTP head of a finished run or of a model, in a new run
    Head(HeadArgs),
    /// Ask a running trainer to save a checkpoint and stop
    Stop(StopArgs),
    /// Write a run's outputs again from a checkpoint
    Export(ExportArgs),
    /// Write a run's report as one HTML page: curves, plan, data, samples
    Report(ReportArgs),
    /// Talk to a model, or to a run and its base side by side
    Chat(ChatArgs),
    /// Answer one prompt with a model, a run or an adapter
    Generate(GenerateArgs),
    /// Compare models: the same prompts, checks of each answer, and whether a difference is noise
    Compare(CompareArgs),
    /// Write facts into a model without training, judge what it learned and lost, and take them back
    Edit(EditArgs),
    /// Make a token file of text, v1 packets or JSON Lines of token ids
    Pack(PackArgs),
    /// Convert a token file to v1 packets or JSON Lines
    Unpack(UnpackArgs),
    /// Find every defect in a token file
    Verify(VerifyArgs),
    /// Make, take apart and damage single packets; list what a file of packets carries
    Packet(PacketArgs),
    /// Serve the web interface and an HTTP API to this machine's browsers and programs
    #[cfg(feature = "serve")]
    Serve(ServeArgs),
    /// Check this machine, and whether training on it is exact
    Doctor,
    /// Measure the speed of every part of sparktune on this machine
    Bench(BenchArgs),
    /// Print a shell script that completes commands, settings, presets and runs
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Print what may stand at the last of these words: for the scripts of `completions`
    #[command(hide = true)]
    Complete {
        /// The words after the program's name
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// The process that runs a model's tokenizer and chat template, for another sparktune
    #[command(hide = true)]
    DataWorker,
    /// The process that holds a model and answers requests
    #[command(hide = true)]
    InferWorker(WorkerArgs),
    /// The trainer process of a run folder
    #[command(hide = true)]
    Trainer {
        /// The run folder
        run_dir: PathBuf,
        /// Continue although its inputs have changed
        #[arg(long)]
        accept_changes: bool,
        /// Add gradients like this many ranks
        #[arg(long)]
        sum_as: Option<RankCounts>,
    },
}

/// `train`, and `sparktune` with flags alone.
#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub settings: SettingFlags,
    /// Train the included tiny model on the included data; can be combined with all other flags
    #[arg(long)]
    pub demo: bool,
    /// Print the plan and stop; no weights are downloaded
    #[arg(long)]
    pub dry_run: bool,
    /// Add gradients like this many ranks, in one process: it gives the bits of a cluster
    #[arg(long, value_name = "RANKS", hide = true)]
    pub sum_as: Option<RankCounts>,
    /// Train on all members of the cluster; the run stays on this machine
    #[arg(long, conflicts_with_all = ["dry_run", "sum_as"])]
    pub cluster: bool,
    /// Start when this run has ended, however it ends: a run's folder, a unique beginning of its name, or
    /// `latest`
    #[arg(long, value_name = "RUN", conflicts_with = "dry_run")]
    pub after: Option<String>,
    #[command(flatten)]
    pub on_end: OnEnd,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub settings: SettingFlags,
    /// Plan for the included tiny model and data
    #[arg(long)]
    pub demo: bool,
    /// Print every value with its origin and reason, and the cost of each pack length
    #[arg(long)]
    pub explain: bool,
    #[command(flatten)]
    pub elsewhere: ElsewhereFlags,
}

impl GlobalFlags {
    /// Returns the style of the command's output, and whether it may ask questions.
    pub(crate) const fn style(self) -> Style {
        Style { plain: self.plain, json: self.json, non_interactive: self.non_interactive }
    }
}

/// Parses a command line, whose first word is the program's.
///
/// # Errors
/// Wrong usage, with the most similar valid word; also help and the version, which are printed in the same
/// way.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut words: Vec<OsString> = words.into_iter().collect();
    let mut command = with_pages(Cli::command());
    let help_all = format!("--{HELP_ALL}");
    let flags = words.iter().position(|word| word == "--").unwrap_or(words.len());
    if let Some(word) = words[..flags].iter_mut().find(|word| **word == *help_all) {
        *word = "--help".into();
        command = with_all_settings(command);
    }
    help_of_a_page(&mut words, &command);
    let matches = command
        .try_get_matches_from_mut(words)
        .map_err(|error| refusal::escaped(refusal::explained(error, &command)))?;
    refusal::flags_before_a_command(&matches, &command)?;
    Cli::from_arg_matches(&matches)
}

/// Makes `guide PAGE` of `help PAGE`, if that is no command: who asks for help does not know which of the two
/// explains it. `help help` is `help`, which says what there is of both.
fn help_of_a_page(words: &mut Vec<OsString>, command: &clap::Command) {
    let [_, help, topic] = &mut words[..] else { return };
    let is_command =
        |word: &str| command.get_subcommands().map(clap::Command::get_name).any(|name| name == word);
    if help != "help" {
        return;
    }
    if topic == "help" {
        words.truncate(2);
    } else if topic.to_str().is_some_and(|word| !word.starts_with('-') && !is_command(word)) {
        *help = "guide".into();
    }
}

/// The page of the guide about each command that has one.
const PAGES: [(&str, &str); 14] = [
    ("chat", "chat"),
    ("check", "data"),
    ("cluster", "cluster"),
    ("compare", "compare"),
    ("data", "data"),
    ("edit", "editing"),
    ("generate", "chat"),
    ("pack", "data"),
    ("packet", "packets"),
    ("plan", "planning"),
    ("report", "outputs"),
    ("runs", "runs"),
    ("serve", "serve"),
    ("train", "first-model"),
];

/// Names the page of the guide at the end of the help of each command that has one.
fn with_pages(command: clap::Command) -> clap::Command {
    command.mut_subcommands(|sub| {
        let Some((_, page)) = PAGES.iter().find(|(name, _)| *name == sub.get_name()) else { return sub };
        let before = sub.get_after_help().map_or_else(String::new, |help| format!("{help}\n\n"));
        sub.after_help(format!("{before}The guide: `{} guide {page}`", program_name()))
    })
}

/// Returns the completions of the last of `words`, for the script of a shell; see `cli/complete.rs`.
pub(crate) fn complete(words: &[String]) -> String {
    let mut command = Cli::command();
    command.build();
    complete::complete(&command, words, &Listed)
}

/// The names that exist on this machine.
struct Listed;

impl complete::Names for Listed {
    fn presets(&self) -> Vec<String> {
        presets::list(None).into_iter().map(|preset| preset.name).collect()
    }

    fn models(&self) -> Vec<String> {
        Catalog::shipped().models.iter().map(|model| model.id.clone()).collect()
    }

    fn suites(&self) -> Vec<String> {
        comparison::suites().into_iter().map(|suite| suite.name.to_owned()).collect()
    }

    fn runs(&self, runs_dir: Option<&str>) -> Vec<String> {
        existing_runs::names(runs_dir.map(PathBuf::from)).unwrap_or_default()
    }
}

/// Returns the command with all settings in its help.
fn with_all_settings(command: clap::Command) -> clap::Command {
    let shown = command.mut_args(|arg| {
        let is_setting = Setting::named(arg.get_id().as_str()).is_some();
        if is_setting { arg.hide(false) } else { arg }
    });
    shown.mut_subcommands(with_all_settings)
}

#[cfg(test)]
mod tests {
    use sparktune_bench::Section;
    use sparktune_plan::{Answer, Products};

    use super::*;
    use crate::cli::bench::{BenchCommand, GpuSection};

    fn read(line: &str) -> Result<Cli, clap::Error> {
        parse(["sparktune"].into_iter().chain(line.split_whitespace()).map(OsString::from))
    }

    fn refusal(line: &str) -> String {
        read(line).unwrap_err().to_string()
    }

    #[test]
    fn what_an_error_quotes_of_the_command_line_cannot_command_the_terminal() {
        for line in ["train --method \u{1b}]0;x\u{7}full", "train --\u{1b}[2Jx", "\u{1b}[31mtrian"] {
            let text = refusal(line);
            assert!(!text.contains('\u{1b}') && text.contains("\\u{1b}"), "{text:?}");
        }
    }

    #[test]
    fn the_command_line_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_without_a_command_are_a_training() {
        let cli = read("--demo --rank 4 --data a b").unwrap();
        assert!(cli.command.is_none() && cli.train.demo);
        let answers = cli.train.settings.0;
        assert_eq!(answers.rank, Some(Answer::flag(4)));
        assert_eq!(answers.data.unwrap().value, [PathBuf::from("a"), PathBuf::from("b")]);
    }

    #[test]
    fn global_flags_are_taken_by_every_command_before_and_after_its_name() {
        let commands = [
            "check a.jsonl",
            "data list",
            "data fetch gsm8k -o a.jsonl",
            "data serve a.qubgpu",
            "cluster init",
            "cluster join spark1:7300",
            "cluster status",
            "cluster doctor --model m",
            "plan",
            "train",
            "watch",
            "runs",
            "resume",
            "head",
            "stop",
            "export",
            "report",
            "compare latest",
            "edit model --facts a.jsonl -o b",
            "edit list a",
            "pack a b",
            "unpack a b",
            "verify a",
            "doctor",
            "bench",
            "bench lossless --peers python",
            "completions bash",
        ];
        let flags = "--non-interactive --plain --json --runs-dir mine";
        for command in commands {
            for line in [format!("{flags} {command}"), format!("{command} {flags}")] {
                let cli = read(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
                let Style { plain, json, non_interactive } = cli.style.style();
                assert!(plain && json && non_interactive, "{line}");
                assert_eq!(cli.train.settings.0.runs_dir, Some(Answer::flag("mine".into())), "{line}");
            }
        }
        let Some(Command::Plan(plan)) = read("--runs-dir mine plan").unwrap().command else { panic!("plan") };
        assert_eq!(plan.settings.0.runs_dir, Some(Answer::flag("mine".into())));
    }

    #[test]
    fn a_flag_before_a_command_that_is_not_for_every_command_is_refused() {
        let error = refusal("--rank 4 train");
        assert!(error.contains("--rank") && error.contains("after `train`"), "{error}");
        assert!(refusal("bench --quick lossless --peers p").contains("after `lossless`"));
    }

    #[test]
    fn a_word_of_another_kind_is_refused_with_the_words_there_are() {
        let error = refusal("train --method fuull");
        assert!(error.contains("lora, full") && error.contains("similar value exists: 'full'"), "{error}");
    }

    #[test]
    fn what_other_programs_call_it_is_answered_with_the_nearest_setting() {
        let error = refusal("train --batch-size 4");
        assert!(error.contains("--grad-accum-steps") && error.contains("Micro-batches"), "{error}");
        for (flag, words) in [
            ("mode", "--method lora"),
            ("per-device-batch-size", "--grad-accum-steps"),
            ("max-seq-length", "--pack-length"),
            ("pack", "--pack-strategy"),
            ("resume-from-checkpoint", "resume [RUN]"),
        ] {
            let error = refusal(&format!("train --{flag} 4"));
            assert!(error.contains(words) && error.matches("tip:").count() == 1, "{flag}: {error}");
        }
        for (word, value) in [("no", false), ("off", false), ("yes", true), ("true", true)] {
            let Some(Command::Train(train)) = read(&format!("train --tensorboard {word}")).unwrap().command
            else {
                panic!("train")
            };
            assert_eq!(train.settings.0.tensorboard, Some(Answer::flag(value)), "{word}");
        }
        assert!(refusal("train --tensorboard maybe").contains("true, false"));
        let error = refusal("train --modle x");
        assert!(error.contains("--model"), "{error}");
    }

    #[test]
    fn help_explains_a_command_or_shows_a_page_of_the_guide() {
        let page = |line: &str| match read(line).unwrap().command {
            Some(Command::Guide { page }) => page,
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(page("help first-model").as_deref(), Some("first-model"));
        assert_eq!(page("guide first-model").as_deref(), Some("first-model"));
        // The command answers what it does not know with the names of all pages.
        assert_eq!(page("help no-such-thing").as_deref(), Some("no-such-thing"));
        assert!(refusal("help train").contains("--rank") && refusal("help chat").contains("chat [OPTIONS]"));
        assert!(refusal("help").contains("Commands:") && refusal("help help").contains("help TOPIC"));
    }

    #[test]
    fn the_help_of_a_command_names_its_page_of_the_guide() {
        let guide = |page: &str| format!("The guide: `{} guide {page}`", program_name());
        let is_built = |name: &str| cfg!(feature = "serve") || name != "serve";
        for (command, page) in PAGES.into_iter().filter(|(name, _)| is_built(name)) {
            let file = format!("{}/src/guide/{page}.md", env!("CARGO_MANIFEST_DIR"));
            assert!(std::path::Path::new(&file).is_file(), "{file}");
            for line in [format!("help {command}"), format!("{command} --help")] {
                assert!(refusal(&line).trim_end().ends_with(&guide(page)), "{line}: {}", refusal(&line));
            }
        }
        assert!(refusal("help train").contains("runs/RUN/plan.toml"), "what the help said before stays");
    }

    #[test]
    fn a_prompt_without_its_flag_is_refused_with_the_flag() {
        let error = refusal("generate latest hello");
        assert!(
            error.contains("'hello'") && error.contains("tip: the prompt comes after its flag"),
            "{error}"
        );
        assert!(!refusal("chat latest hello").contains("tip: the prompt"));
    }

    #[test]
    fn the_exit_codes_fit_a_terminal_of_80_columns() {
        let help = after_help();
        let (_, codes) = help.split_once("Exit codes:").unwrap();
        assert!(codes.lines().all(|line| line.chars().count() <= 80), "{codes}");
    }

    #[test]
    fn a_run_can_be_resumed_with_another_length() {
        let resume = |line: &str| match read(line).unwrap().command {
            Some(Command::Resume(args)) => args.length(),
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(resume("resume latest"), None);
        let length = resume("resume latest --epochs 1.5").unwrap();
        assert_eq!((length.epochs, length.max_steps), (Some(1.5), None));
        assert_eq!(resume("resume --max-steps 20").unwrap().max_steps, Some(20));
        assert!(refusal("resume --epochs 0").contains("from 0.001"), "{}", refusal("resume --epochs 0"));
        assert!(refusal("check a.jsonl --example 0").contains("FILE:LINE"));
    }

    #[test]
    fn hidden_commands_are_not_proposed() {
        let error = refusal("trian");
        assert!(error.contains("'train'") && !error.contains("trainer"), "{error}");
        assert!(!refusal("completf").contains("'complete'"));
    }

    #[test]
    fn help_shows_the_common_settings_and_help_all_shows_all() {
        for command in ["", "train", "plan", "bench lossless"] {
            let short = refusal(&format!("{command} --help"));
            assert!(short.contains("--rank") && !short.contains("--beta1"), "{command}: {short}");
            assert!(short.contains("--help-all"), "{command}: {short}");
            let all = refusal(&format!("{command} --help-all"));
            for setting in sparktune_plan::SETTINGS {
                assert!(all.contains(&format!("--{} ", setting.name)), "{command}: {}", setting.name);
            }
        }
    }

    #[test]
    fn help_lists_words_of_a_flag_in_its_line() {
        // Sections of `bench` have a sentence each.
        for command in ["chat", "runs", "runs delete", "bench pipelines", "compare"] {
            let help = refusal(&format!("{command} --help"));
            assert!(
                !help.contains("Possible values:") && help.contains("For all commands:"),
                "{command}: {help}"
            );
        }
    }

    #[test]
    fn the_head_takes_who_computes_its_products() {
        let Some(Command::Head(head)) = read("head latest --products own").unwrap().command else {
            panic!("head")
        };
        assert_eq!(head.settings.0.products, Some(Answer::flag(Products::Own)));
    }

    #[test]
    fn sections_of_the_bench_are_selected_by_name() {
        let bench = |args: &str| {
            let Some(Command::Bench(args)) = read(&format!("bench {args}"))?.command else {
                unreachable!("the command is bench")
            };
            Ok::<_, clap::Error>(args)
        };
        assert_eq!(bench("start tokens --json").unwrap().sections, [Section::Start, Section::Tokens]);
        assert_eq!(bench("--json start").unwrap().sections, [Section::Start]);
        assert!(bench("").unwrap().sections.is_empty());
        let error = bench("everything").unwrap_err().to_string();
        assert!(error.contains("everything") && error.contains("validation"), "{error}");
        assert!(bench("start --gpu model").is_err());
        let gpu = bench("--gpu gemm --seconds 50 --output rows.json").unwrap();
        assert_eq!((gpu.gpu, gpu.output), (Some(GpuSection::Gemm), Some("rows.json".into())));
        assert_eq!(gpu.products, None);
        let steps = bench("--gpu steps --products auto").unwrap();
        assert_eq!(steps.products, Some(Products::Auto));
        assert!(bench("--gpu steps --products all").is_err() && bench("--products own").is_err());
        let whole = bench("--gpu whole --model m").unwrap();
        assert_eq!((whole.gpu, whole.model), (Some(GpuSection::Whole), Some("m".into())));
        let lossless = bench("lossless --peers python3 --model m --data d").unwrap();
        assert!(matches!(lossless.command, Some(BenchCommand::Lossless(_))));
        assert!(bench("lossless --model m --data d").is_err(), "there is no peer");
    }
}
