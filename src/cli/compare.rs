//! Flags of `compare`.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueHint};
use sparktune_app::comparison::MOST_AT_A_TIME;
use sparktune_commands::CompareRequest;

use crate::cli::generate::DecodingFlags;

/// The words that say which answers are printed.
const WHICH: [&str; 3] = ["none", "differing", "all"];

#[derive(Debug, Args)]
#[command(after_help = "\
With one finished run alone, its base model is compared with it, and with an edited model alone, its base.

Suites that are included: instructions (the default), arithmetic, coding, demo.
A suite of your own is a file with a prompt and its checks on each line, such as
  {\"prompt\": \"What is 2 + 2?\", \"checks\": [{\"type\": \"number\", \"value\": 4}]}")]
pub(crate) struct CompareArgs {
    /// Finished runs, folders of models or adapters, or models of the hub that were downloaded; the others
    /// are compared with the first, and NAME@base is the base model of a run or of an edited model
    #[arg(required = true, value_name = "MODEL")]
    pub run: Vec<String>,
    /// The suite of prompts: the name of one that is included, or a file
    #[arg(long, value_name = "NAME|FILE", default_value = "instructions", value_hint = ValueHint::FilePath)]
    pub suite: String,
    /// A command that judges each answer: reads one JSON object, writes a score from 0 to 1
    #[arg(long, value_name = "COMMAND")]
    pub judge: Option<String>,
    /// Run the code that models write, in a sandbox without network, to test it
    #[arg(long)]
    pub run_code: bool,
    /// Ask at most this many prompts, spread over the suite
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_prompts: Option<u32>,
    /// The number of answers that are computed at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = at_a_time_parser())]
    pub at_a_time: u32,
    #[command(flatten)]
    pub decoding: DecodingFlags,
    /// Print only the tables, or also the answers that differ, or all answers
    #[arg(long, value_name = "WHICH", default_value = "differing", value_parser = WHICH)]
    pub answers: String,
}

fn at_a_time_parser() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..=MOST_AT_A_TIME as u64)
}

impl CompareArgs {
    /// Returns the request that the flags describe.
    pub(crate) fn request(self, runs_dir: Option<PathBuf>) -> CompareRequest {
        let Self { run, suite, judge, run_code, max_prompts, at_a_time, decoding, answers } = self;
        CompareRequest {
            models: run,
            suite,
            judge,
            run_code,
            max_prompts: max_prompts.map(|most| most as usize),
            at_a_time: at_a_time as usize,
            decoding: decoding.decoding(),
            answers: match answers.as_str() {
                "none" => sparktune_commands::Answers::None,
                "all" => sparktune_commands::Answers::All,
                _ => sparktune_commands::Answers::Differing,
            },
            runs_dir,
        }
    }
}
