//! Flags of the commands about data and token files.

use std::path::{Path, PathBuf};

use clap::Args;
use sparktune_app::check::Show;
use sparktune_app::failure::Failure;
use sparktune_commands::Wanted;
use sparktune_plan::OnDamage;

use crate::cli::settings::{CheckFlags, PackFlags};

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Files (JSON Lines, CSV, TSV, Parquet, .txt, .md; .gz and .zst too), folders of such files, data sets
    /// of the hub (hf:OWNER/NAME), or token files (.qubgpu), also of another machine (ndp://…)
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
    /// Print the example of this line as the model will see it, of every file or of one, as in
    /// train.jsonl:812; needs --model
    #[arg(long, value_name = "[FILE:]LINE", value_parser = place, conflicts_with = "find")]
    pub example: Option<Wanted>,
    /// Print examples of lines that contain this text, three of them or as many as --show says; needs --model
    #[arg(long, value_name = "TEXT")]
    pub find: Option<String>,
    /// Also write the lines that were not rejected into this new file of JSON Lines
    #[arg(long, value_name = "FILE")]
    pub write_clean: Option<PathBuf>,
}

/// The number of examples that are shown of those that were looked for, if nothing else is said.
const FOUND: usize = 3;

impl CheckArgs {
    /// Returns which examples the flags ask for.
    pub(crate) fn shown(&self) -> Show {
        let wanted = self.example.clone().or_else(|| self.find.clone().map(Wanted::Text));
        let limit = if wanted.is_some() && self.show == 0 { FOUND } else { self.show };
        Show { limit, wanted }
    }
}

/// Reads `812` or `train.jsonl:812`.
fn place(text: &str) -> Result<Wanted, String> {
    let (file, line) = match text.rsplit_once(':') {
        Some((file, line)) => (Some(file.to_owned()), line),
        None => (None, text),
    };
    match line.parse() {
        Ok(line) if line > 0 && file.as_ref().is_none_or(|file| !file.is_empty()) => {
            Ok(Wanted::Line { file, line })
        }
        _ => Err("expected the number of a line, from 1, or FILE:LINE".to_owned()),
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Text needs --model. Files that contain token ids already are converted without it: v1 packets, and JSON Lines with \
input_ids and, optionally, loss_mask and source_line.

As with QubGPU's convert.py, the output may also come second:
  pack dataset.jsonl dataset.qubgpu --tokenizer Qwen/Qwen3.5-0.8B --max-tokens 512")]
pub(crate) struct PackArgs {
    /// Data as for `check`, other than token files, or one file of token ids
    #[arg(required = true)]
    pub data: Vec<PathBuf>,
    /// The file to write, which replaces a token file of this name; without it, the last of two files is the
    /// output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Version 2 keeps loss masks, source lines and hashes; `v1` packets hold token ids only
    #[arg(long, value_name = "v1|v2", default_value = "v2", value_parser = ["v1", "v2"], hide_possible_values = true)]
    pub to: String,
    #[command(flatten)]
    pub settings: PackFlags,
    /// Where to save the rejected lines
    #[arg(long, value_name = "FILE", default_value = "rejected.jsonl")]
    pub rejected: PathBuf,
}

impl PackArgs {
    /// Returns whether damaged packets are left out.
    pub(crate) fn drops_damaged(&self) -> bool {
        let answer = self.settings.0.on_damage.as_ref();
        answer.is_some_and(|answer| answer.value == OnDamage::Drop)
    }

    /// Returns the inputs and the output.
    pub(crate) fn places(self) -> Result<(Vec<PathBuf>, PathBuf), Failure> {
        let Self { mut data, output, .. } = self;
        let given_last = if output.is_none() && data.len() == 2 { data.pop() } else { None };
        match output.or(given_last) {
            Some(output) => Ok((data, output)),
            None => Err(Failure::usage("no file to write was named").hint("Name it with --output FILE")),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct UnpackArgs {
    /// A token file
    pub input: PathBuf,
    /// The file to write
    #[arg(required_unless_present = "named")]
    output: Option<PathBuf>,
    /// The file to write, as for `pack`
    #[arg(short = 'o', long = "output", id = "named", value_name = "FILE", conflicts_with = "output")]
    named: Option<PathBuf>,
    /// `v1` packets (tokens only) or `jsonl`
    #[arg(long, default_value = "jsonl", value_parser = ["v1", "jsonl"])]
    pub to: String,
    /// Whether damage ends this, or damaged examples are left out, listed and counted
    #[arg(long, value_name = "stop|drop", default_value = "stop", value_parser = ["stop", "drop"], hide_possible_values = true)]
    pub on_damage: String,
}

impl UnpackArgs {
    /// Returns the file to write.
    pub(crate) fn output(&self) -> &Path {
        self.output.as_deref().or(self.named.as_deref()).expect("one of both is required")
    }
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The token file
    pub file: PathBuf,
    /// Save its intact examples as a new token file; damage still ends with exit code 3
    #[arg(long, value_name = "FILE")]
    pub rebuild: Option<PathBuf>,
}
