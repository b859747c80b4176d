//! Flags of `data`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sparktune_app::failure::{Exit, Failure};
use sparktune_base::field_map::FieldMap;
use sparktune_commands::request::Style;
use sparktune_commands::{self as commands, FetchRequest, ServeDataRequest};

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
    /// Serve token files to other machines, which name the printed address as data, until Ctrl-C
    Serve(ServeDataArgs),
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
    /// What the columns stand for, as in question=instruction,answer=output; `data list` knows it for its own
    #[arg(long, value_name = "COLUMN=FIELD,...")]
    pub map: Option<FieldMap>,
}

#[derive(Debug, Args)]
pub(crate) struct ServeDataArgs {
    /// Token files (.qubgpu), as `pack` makes them
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The address of this machine to listen on; by default all of them
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    pub host: String,
    /// The port; by default the first free one from 7272 on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
}

impl DataCommand {
    /// Runs the command.
    pub(crate) fn run(self, style: Style) -> Result<Exit, Failure> {
        match self {
            Self::List => commands::list_data(style.json),
            Self::Fetch(FetchArgs { name, output, limit, map }) => {
                commands::fetch_data(&FetchRequest { name, output, limit, map }, style)
            }
            Self::Serve(ServeDataArgs { files, host, port }) => {
                commands::serve_data(&ServeDataRequest { files, host, port }, style)
            }
        }
    }
}
