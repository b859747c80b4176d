//! The program: parse the command line, dispatch to the command, and turn what went wrong into an exit code
//! and a message.

mod cli;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::program::Program;
use sparktune_base::set_program_name;
use sparktune_commands::request::{Given, RunName, Style};
use sparktune_commands::{self as commands, crash, request};
use sparktune_plan::{Answers, Origin};
use sparktune_tui::output;

use crate::cli::{Cli, Command};

/// Tensors of many megabytes come and go in every layer: the system's allocator gives each back at once and
/// faults it in again, which cost full fine-tuning up to a third of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The variable by which `run.sh` says how it was called.
const CALLED_AS: &str = "SPARKTUNE_COMMAND";

fn main() -> ExitCode {
    set_program_name(std::env::var_os(CALLED_AS));
    if std::env::args_os().len() == 1 && !output::can_ask() {
        return commands::welcome().into();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(refused) => {
            // Help that is not read to its end is no failure.
            let _ = refused.print();
            return if refused.use_stderr() { Exit::Usage } else { Exit::Done }.into();
        }
    };
    crash::install();
    match catch_unwind(AssertUnwindSafe(|| run(cli))) {
        Ok(Ok(exit)) => exit,
        Ok(Err(failure)) => output::report(&failure),
        Err(_) => crash::report_panic(),
    }
    .into()
}

/// Carries a command out.
fn run(cli: Cli) -> Result<Exit, Failure> {
    let program = &Program::current(cfg!(feature = "cuda"));
    let Some(command) = cli.command else { return train(program, cli.train, true) };
    match command {
        Command::Train(args) => train(program, args, false),
        Command::Plan(args) => {
            let given = Given { flags: args.settings.0, demo: args.demo };
            let style = Style { json: args.json, non_interactive: args.non_interactive, plain: false };
            commands::plan(program, given, style, args.explain)
        }
        Command::Check(args) => {
            let flags = check_flags(&args)?;
            commands::check(flags, &args.data, args.eval_data, &args.rejected, args.json)
        }
        Command::Watch(args) => commands::watch(args.run.into(), style(args.plain, args.json)),
        Command::Runs(args) => commands::list(program, args.runs_dir, style(args.plain, args.json)),
        Command::Resume(args) => commands::resume(program, args.run.into(), style(args.plain, args.json)),
        Command::Stop(args) => commands::stop(args.run.into(), args.no_wait, args.json),
        Command::Export(args) => {
            commands::export(RunName { run: args.run, runs_dir: args.runs_dir }, args.best, args.json)
        }
        Command::Report(args) => commands::report(args.run.into(), args.output, args.json),
        Command::Pack(args) => commands::pack(&args.input, &args.output, args.skip_damaged, args.json),
        Command::Unpack(args) => {
            commands::unpack(&args.input, &args.output, args.to == "v1", args.skip_damaged, args.json)
        }
        Command::Verify(args) => commands::verify(&args.file, args.rebuild.as_deref(), args.json),
        Command::Doctor(args) => commands::doctor(program, args.runs_dir, args.json),
        Command::Bench(args) => commands::bench(program, args.into()),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "sparktune", &mut script);
            output::print(&String::from_utf8_lossy(&script))?;
            Ok(Exit::Done)
        }
        Command::Trainer { run_dir } => commands::trainer(program, &run_dir),
    }
}

fn train(program: &Program, args: cli::TrainArgs, is_front_door: bool) -> Result<Exit, Failure> {
    let given = Given { flags: args.settings.0, demo: args.demo };
    let style = Style { plain: args.plain, json: args.json, non_interactive: args.non_interactive };
    commands::train(program, given, style, args.dry_run, is_front_door)
}

fn style(plain: bool, json: bool) -> Style {
    Style { plain, json, non_interactive: false }
}

/// The settings that `check` takes, as the answers they are.
fn check_flags(args: &cli::CheckArgs) -> Result<Answers, Failure> {
    let given = [
        ("model", &args.model),
        ("format", &args.format),
        ("think", &args.think),
        ("max-rejected", &args.max_rejected),
    ];
    let mut flags = Answers::default();
    for (name, text) in given {
        if let Some(text) = text {
            flags.set(name, text, Origin::Flag)?;
        }
    }
    Ok(flags)
}

impl From<cli::RunName> for RunName {
    fn from(name: cli::RunName) -> Self {
        Self { run: name.run, runs_dir: name.runs_dir }
    }
}

impl From<cli::BenchArgs> for request::BenchArgs {
    fn from(args: cli::BenchArgs) -> Self {
        Self {
            command: args.command.map(|command| match command {
                cli::BenchCommand::Lossless(args) => {
                    let args = *args;
                    let given = Given { flags: args.settings.0, demo: args.demo };
                    let (peers, json) = (args.peers, args.json);
                    request::BenchCommand::Lossless(Box::new(request::LosslessArgs { given, peers, json }))
                }
                cli::BenchCommand::Stepper { plan, packs, adapter } => {
                    request::BenchCommand::Stepper { plan, packs, adapter }
                }
            }),
            sections: args.sections,
            json: args.json,
            quick: args.quick,
            peers: args.peers,
            model: args.model,
            gpu: args.gpu.map(|section| match section {
                cli::GpuSection::Kernels => request::GpuSection::Kernels,
                cli::GpuSection::Gemm => request::GpuSection::Gemm,
                cli::GpuSection::Steps => request::GpuSection::Steps,
                cli::GpuSection::Model => request::GpuSection::Model,
                cli::GpuSection::Probe => request::GpuSection::Probe,
            }),
            seconds: args.seconds,
        }
    }
}
