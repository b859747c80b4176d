//! The program: parse, dispatch, and turn what went wrong into an exit code and words.

mod answers;
mod cli;
mod commands;
mod crash;
mod desk;
mod failure;
mod interrupt;
mod interview;
mod job;
mod launch;
mod machine;
mod output;
mod probe;
mod progress;
mod prompts;
mod screens;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;
use crate::failure::Exit;

/// Tensors of many megabytes come and go in every layer: the system's allocator gives each back at once and faults it
/// in again, which cost full fine-tuning up to a third of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if std::env::args_os().len() == 1 && !answers::can_ask() {
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
