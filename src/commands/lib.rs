//! The commands: their output and exit codes. There is one file for each, or for a few that share a subject.
//!
//! Enters: the requests of the command line, as plain values ([`request`]). Leaves: an exit code, or a
//! failure. Everything is done by [`sparktune_app`] and shown through [`sparktune_tui`]; the trainer, the
//! export, the self-tests and the measurements run in this process, so this is the only interface that
//! depends on the tensor library.

mod attempt;
mod bench;
mod chat;
mod check;
mod cluster;
mod cluster_doctor;
mod cluster_train;
mod compare;
pub mod crash;
mod cuda_toolkit;
mod data;
mod data_serve;
mod doctor;
mod edit;
mod edit_in_words;
mod edit_measure;
mod edit_request;
mod edit_stack;
mod edit_trace;
mod engine;
mod failure;
mod follow_rank;
mod generate;
mod guide;
mod head;
mod infer_worker;
mod interrupt;
mod meeting_places;
mod on_end;
mod outputs;
mod pack;
mod packet;
mod packet_in_words;
mod pipelines;
mod rank;
mod rejected;
mod report;
pub mod request;
mod runs;
mod tidy;
mod token_files;
mod train;
mod trainer;
mod turn;

pub use bench::bench;
pub use chat::{ChatRequest, chat};
pub use check::check;
pub use cluster::{
    InitRequest, JoinRequest, TokenFrom, cluster_init, cluster_join, cluster_leave, cluster_status,
};
pub use cluster_doctor::cluster_doctor;
pub use compare::{Answers, CompareRequest, compare};
pub use cuda_toolkit::find_cuda_toolkit;
pub use data::{FetchRequest, fetch_data, list_data};
pub use data_serve::{ServeDataRequest, serve_data};
pub use doctor::doctor;
pub use edit::{EditCommand, edit};
pub use edit_request::{Aim, FactsRequest, Table};
pub use generate::{GenerateRequest, generate};
pub use guide::guide;
pub use head::head;
pub use infer_worker::infer_worker;
pub use pack::{PackRequest, pack};
pub use packet::{PacketContent, PacketRequest, packet};
pub use report::report;
pub use runs::{GgufRequest, GgufType, Length, Resumed, Weights, export, list, resume, stop, watch};
use sparktune_app::failure::Exit;
use sparktune_base::program_name;
pub use sparktune_cluster::RankCounts;
pub use sparktune_data::Wanted;
pub use sparktune_edit::facts::MOST_FACTS;
use sparktune_tui::output::note;
pub use tidy::{clean, delete_runs};
pub use token_files::{unpack, verify};
pub use train::{plan, train};
pub use trainer::trainer;

/// Prints a message when the program is started without arguments and no user can be asked.
pub fn welcome() -> Exit {
    let program = program_name();
    note(&format!(
        "\
sparktune fine-tunes small language models on this machine. On a terminal, running it without arguments opens the wizard.

try it on an included tiny model            {program} --demo
check your data                             {program} check train.jsonl --model Qwen/Qwen3.5-0.8B
see the plan with its reasons               {program} plan --model Qwen/Qwen3.5-0.8B --data train.jsonl --explain
train                                       {program} train --model Qwen/Qwen3.5-0.8B --data train.jsonl
everything else                             {program} --help"
    ));
    Exit::Usage
}
