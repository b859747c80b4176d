//! Flags of `serve`, and what it prints.

use std::path::PathBuf;

use clap::Args;
use sparktune_app::answers::runs_dir;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::folders::state_folder;
use sparktune_app::program::Program;
use sparktune_serve::{Limits, ModelLimits, Options};
use sparktune_tui::output::{note, print, print_json};

use crate::cli::generate::DecodingFlags;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The address to listen on; one that other machines can reach also needs --allow-host
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: String,
    /// The port; by default the first free one from 7171 on
    #[arg(long, value_name = "N")]
    pub port: Option<u16>,
    /// A model that can be opened, besides those that are found: a folder or a run
    #[arg(long, value_name = "DIR|RUN", num_args = 1..)]
    pub model: Vec<String>,
    #[command(flatten)]
    pub decoding: DecodingFlags,
    /// A folder whose data sets can be used
    #[arg(long, value_name = "DIR", num_args = 1..)]
    pub data_dir: Vec<PathBuf>,
    /// Another name of this machine that browsers may use
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub allow_host: Vec<String>,
}

/// Runs `sparktune serve` until Ctrl-C or SIGTERM.
///
/// # Errors
/// The server cannot be started.
pub(crate) fn serve(
    program: &Program,
    args: ServeArgs,
    runs_dir_flag: Option<PathBuf>,
    json: bool,
) -> Result<Exit, Failure> {
    let runs_dir = runs_dir(runs_dir_flag)?;
    let options = Options {
        program: program.clone(),
        host: args.host,
        port: args.port,
        models: args.model,
        runs_dir,
        data_dirs: args.data_dir,
        allowed_hosts: args.allow_host,
        state_dir: state_folder(),
        limits: Limits {
            models: ModelLimits { decoding: args.decoding.decoding(), ..ModelLimits::default() },
            ..Limits::default()
        },
    };
    sparktune_serve::serve(options, |listening| {
        listening.notes.iter().for_each(|text| note(&format!("note: {text}")));
        if json {
            return Ok(print_json(listening)?);
        }
        print(&format!("{}\n", listening.url))?;
        note(
            "Open this address in a browser; it is a password. Ctrl-C ends the server, and no training run.",
        );
        Ok(())
    })?;
    Ok(Exit::Done)
}
