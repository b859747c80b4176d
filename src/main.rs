//! The program: parse, dispatch, and turn what went wrong into an exit code and words.

mod answers;
mod cli;
mod commands;
mod crash;
mod failure;
mod interrupt;
mod job;
mod launch;
mod output;
mod progress;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;
use crate::failure::Exit;

fn main() -> ExitCode {
    if std::env::args_os().len() == 1 {
        return commands::welcome();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(refused) => {
            // Help that nobody reads to its end is no failure.
            let _ = refused.print();
            return if refused.use_stderr() { Exit::Usage } else { Exit::Done }.into();
        }
    };
    crash::install();
    match catch_unwind(AssertUnwindSafe(|| commands::run(cli))) {
        Ok(Ok(exit)) => exit.into(),
        Ok(Err(failure)) => failure.report(),
        Err(_) => crash::confess(),
    }
}
