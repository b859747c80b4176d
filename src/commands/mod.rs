//! The commands, one file for each or for each few that share a subject.

mod bench;
mod check;
mod doctor;
mod report;
mod runs;
mod token_files;
mod train;
mod trainer;

use std::process::ExitCode;

use clap::CommandFactory;

use crate::cli::{Cli, Command};
use crate::failure::{Exit, Failure};
use crate::output::{note, print};

/// Carries a command out.
///
/// # Errors
/// Whatever ended it early.
pub fn run(cli: Cli) -> Result<Exit, Failure> {
    match cli.command {
        None => train::train(cli.train, true),
        Some(Command::Train(args)) => train::train(args, false),
        Some(Command::Plan(args)) => train::plan(args),
        Some(Command::Check(args)) => check::check(args),
        Some(Command::Watch(args)) => runs::watch(args),
        Some(Command::Runs(args)) => runs::list(args),
        Some(Command::Resume(args)) => runs::resume(args),
        Some(Command::Stop(args)) => runs::stop(args),
        Some(Command::Export(args)) => runs::export(args),
        Some(Command::Report(args)) => report::report(args),
        Some(Command::Pack(args)) => token_files::pack(args),
        Some(Command::Unpack(args)) => token_files::unpack(args),
        Some(Command::Verify(args)) => token_files::verify(args),
        Some(Command::Doctor(args)) => doctor::doctor(args),
        Some(Command::Bench(args)) => bench::bench(args),
        Some(Command::Completions { shell }) => completions(shell),
        Some(Command::Trainer { run_dir }) => trainer::trainer(&run_dir),
    }
}

/// What the bare name says where nobody can be asked.
pub fn welcome() -> ExitCode {
    note(
        "\
sparktune fine-tunes small language models on this machine. On a terminal, the bare name opens the wizard.

  sparktune --demo                                          see the whole job on a shipped tiny model
  sparktune check train.jsonl --model Qwen/Qwen3.5-0.8B     is my data good?
  sparktune plan --model Qwen/Qwen3.5-0.8B --data train.jsonl --explain
  sparktune train --model Qwen/Qwen3.5-0.8B --data train.jsonl
  sparktune --help                                          everything else",
    );
    Exit::Usage.into()
}

fn completions(shell: clap_complete::Shell) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sparktune", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
