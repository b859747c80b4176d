//! Flags of the commands about a cluster.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::program::Program;
use sparktune_commands as commands;
use sparktune_commands::request::Style;
use sparktune_commands::{InitRequest, JoinRequest, TokenFrom};

#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    pub command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Start a cluster: print the line for the other machines, and coordinate until Ctrl-C
    Init(InitArgs),
    /// Become a member, and wait for work until Ctrl-C; later times need no token
    Join(JoinArgs),
    /// Show the members: address, build, GPU, free memory, link, what they do
    Status,
    /// Be a member no longer
    Leave,
    /// Check the members and what is between them: links, MTU, network card, NCCL, bandwidth, clocks, builds,
    /// base model
    Doctor(DoctorArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The base model that the members should have: a folder, or a model of the Hugging Face Hub that this
    /// machine has; by default that of the newest run. All members read its files
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// The name of this machine in the cluster; by default its host name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The TCP port of the agent, and the UDP port on which members find it; by default the first free TCP
    /// port from 7300 on, and UDP port 7300
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Make another token: all members have to leave, and join again with it
    #[arg(long)]
    pub new_token: bool,
}

#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// Where a member of the cluster listens; without it, the cluster is looked for on the local links
    #[arg(value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// The token, or `-` to read it from standard input. Safer is the variable SPARKTUNE_CLUSTER_TOKEN: other
    /// users of this machine can read command lines
    #[arg(long, value_name = "TOKEN", allow_hyphen_values = true)]
    pub token: Option<String>,
    /// The name of this machine in the cluster; by default its host name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The TCP port of the agent; by default the first free one from 7300 on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// The UDP port on which the cluster is looked for, if `cluster init` has a --port
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub call_port: Option<u16>,
}

impl ClusterCommand {
    /// Runs the command.
    pub(crate) fn run(
        self,
        program: &Program,
        runs_dir: Option<PathBuf>,
        style: Style,
    ) -> Result<Exit, Failure> {
        match self {
            Self::Init(InitArgs { name, port, new_token }) => {
                commands::cluster_init(program, &InitRequest { name, port, new_token }, runs_dir, style)
            }
            Self::Join(JoinArgs { address, token, name, port, call_port }) => {
                let token = match token.as_deref() {
                    None => TokenFrom::Environment,
                    Some("-") => TokenFrom::StandardInput,
                    Some(_) => TokenFrom::Flag(token.unwrap_or_default()),
                };
                let request = JoinRequest { address, token, name, port, call_port };
                commands::cluster_join(program, &request, runs_dir, style)
            }
            Self::Status => commands::cluster_status(style),
            Self::Leave => commands::cluster_leave(),
            Self::Doctor(DoctorArgs { model }) => {
                commands::cluster_doctor(program, model.as_deref(), runs_dir, style.json)
            }
        }
    }
}
