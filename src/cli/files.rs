//! Flags of the commands about data and token files.

use std::path::PathBuf;

use clap::Args;

use crate::cli::settings::CheckFlags;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Files (.jsonl, .jsonl.gz, .jsonl.zst), or folders that contain them
    #[arg(required = true)]
    pub data: Vec<PathBuf>,
    #[command(flatten)]
    pub settings: CheckFlags,
    /// Where to save the rejected lines
    #[arg(long, value_name = "FILE", default_value = "rejected.jsonl")]
    pub rejected: PathBuf,
    /// Print this many examples as the model will see them, with the trained tokens marked; needs --model
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub show: usize,
}

#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// v1 packets, or JSON Lines with input_ids and, optionally, loss_mask and source_line
    pub input: PathBuf,
    /// The token file to write
    pub output: PathBuf,
    /// Skip damaged packets and list them, instead of stopping at the first
    #[arg(long)]
    pub skip_damaged: bool,
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
    /// Skip damaged examples and list them, instead of stopping at the first
    #[arg(long)]
    pub skip_damaged: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The token file
    pub file: PathBuf,
    /// Save its intact examples as a new token file
    #[arg(long, value_name = "FILE")]
    pub rebuild: Option<PathBuf>,
}
