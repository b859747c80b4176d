//! Flags of the commands about a run that exists.

use std::path::PathBuf;

use clap::Args;

/// Which run.
#[derive(Debug, Args)]
pub(crate) struct RunName {
    /// The run's folder, a unique beginning of its name, or `latest`
    #[arg(default_value = "latest")]
    pub run: String,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub run: RunName,
    /// Send the request and return at once
    #[arg(long)]
    pub no_wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub run: RunName,
    /// Export the weights with the lowest evaluation loss into outputs/best
    #[arg(long)]
    pub best: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub run: RunName,
    /// The file to write, instead of report.html in the run folder
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}
