//! Flags of `data`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sparktune_base::field_map::FieldMap;
use sparktune_commands::FetchRequest;

#[derive(Debug, Args)]
pub(crate) struct DataArgs {
    #[command(subcommand)]
    pub command: DataCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DataCommand {
    /// List the data sets that are known by a short name, with licence, size and columns
    List,
    /// Download a data set of the hub and write its examples as JSON Lines; the same command continues an
    /// interrupted download
    Fetch(FetchArgs),
}

#[derive(Debug, Args)]
pub(crate) struct FetchArgs {
    /// A name from `data list`, or any data set of the hub: hf:OWNER/NAME@REVISION/CONFIG:SPLIT
    #[arg(value_name = "ID")]
    pub name: String,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Stop after this many examples, and download no file of the data set that is not needed for them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// What the columns stand for, as in question=prompt,answer=completion; `data list` knows it for its own
    #[arg(long, value_name = "COLUMN=FIELD,...")]
    pub map: Option<FieldMap>,
}

impl DataArgs {
    /// Returns what is to be fetched, or `None` to list what is known.
    pub(crate) fn request(self) -> Option<FetchRequest> {
        match self.command {
            DataCommand::List => None,
            DataCommand::Fetch(FetchArgs { name, output, limit, map }) => {
                Some(FetchRequest { name, output, limit, map })
            }
        }
    }
}
