//! Flags of the commands about a run that exists.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use sparktune_commands::{GgufRequest, GgufType, Length, RankCounts, Weights};
use sparktune_plan::Setting;

use crate::cli::elsewhere::ElsewhereFlags;
use crate::cli::settings::HeadFlags;

/// Which run.
#[derive(Debug, Args)]
pub(crate) struct RunName {
    /// The run's folder, a unique beginning of its name, or `latest`
    #[arg(default_value = "latest")]
    pub run: String,
}

#[derive(Debug, Args)]
pub(crate) struct RunsArgs {
    /// Show all runs, not only the newest 50
    #[arg(long)]
    pub all: bool,
    /// Show only runs that have all of these words in their name, state or model
    #[arg(long, value_name = "WORDS")]
    pub matching: Option<String>,
    #[command(subcommand)]
    pub action: Option<RunsAction>,
}

/// What is done with runs instead of listing them.
#[derive(Debug, Subcommand)]
pub(crate) enum RunsAction {
    /// Delete runs with everything in their folders; without --yes, say what that would be
    Delete {
        /// The runs' folders, or unique beginnings of their names
        #[arg(required = true)]
        run: Vec<String>,
        /// Delete them
        #[arg(long)]
        yes: bool,
    },
    /// Delete what is kept next to the runs and can be made again; without --yes, say what that would be
    Clean {
        /// Delete it
        #[arg(long)]
        yes: bool,
    },
}

/// What is run at the end of a training.
#[derive(Debug, Args)]
pub(crate) struct OnEnd {
    /// Run this shell command when the training ends, however it ends. SPARKTUNE_RUN_FOLDER and
    /// SPARKTUNE_RUN_STATE (completed, diverged, stopped or failed) say of which run, and how
    #[arg(long, value_name = "COMMAND")]
    pub on_end: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub run: RunName,
    /// Continue from the checkpoint of this step instead of the newest; later ones are kept, renamed
    #[arg(long, value_name = "STEP")]
    pub checkpoint: Option<u64>,
    /// Train this many epochs in all, also if the run is complete; a fraction ends within an epoch. The
    /// learning rate goes on as in a run of this length
    #[arg(long, value_name = "N", value_parser = epochs)]
    pub epochs: Option<f64>,
    /// Train this many optimizer steps in all, also if the run is complete
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_steps: Option<u64>,
    /// Continue although another machine has gone on with the run, or the plan, tokens, chat template, base
    /// model, the way in which ranks sum, cuBLASLt or its GPU have changed since it started
    #[arg(long)]
    pub accept_changes: bool,
    /// Add gradients like this many ranks, in one process: it gives the bits of a cluster
    #[arg(long, value_name = "RANKS", hide = true)]
    pub sum_as: Option<RankCounts>,
    /// Continue on all members of the cluster, which may be others than before
    #[arg(long, conflicts_with = "sum_as")]
    pub cluster: bool,
    #[command(flatten)]
    pub on_end: OnEnd,
}

impl ResumeArgs {
    /// Returns the length that the run shall have, if the flags say one.
    pub(crate) fn length(&self) -> Option<Length> {
        let length = Length { epochs: self.epochs, max_steps: self.max_steps };
        (length != Length::default()).then_some(length)
    }
}

/// Reads a number of epochs, in the range of its setting.
fn epochs(text: &str) -> Result<f64, String> {
    let setting = Setting::of("duration.epochs").expect("the table has the epochs");
    let range = setting.number.expect("epochs are a number");
    let given = text.trim().parse().ok().filter(|epochs| (range.min..=range.max).contains(epochs));
    given.ok_or_else(|| setting.expects())
}

#[derive(Debug, Args)]
pub(crate) struct HeadArgs {
    /// The finished run (its folder, a unique beginning of its name, or `latest`), or a model (its folder, or
    /// its id on the hub)
    #[arg(default_value = "latest", value_name = "RUN|MODEL")]
    pub run: String,
    #[command(flatten)]
    pub settings: HeadFlags,
    #[command(flatten)]
    pub on_end: OnEnd,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// The run's folder, a unique beginning of its name, or `latest`; without it, the run that is being
    /// trained
    pub run: Option<String>,
    /// Send the request and return at once
    #[arg(long)]
    pub no_wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub run: RunName,
    /// Export the weights with the lowest held-out loss into outputs/best
    #[arg(long)]
    pub best: bool,
    /// Export the checkpoint of this step into a folder of its own, outputs/step-…
    #[arg(long, value_name = "STEP", conflicts_with = "best")]
    pub checkpoint: Option<u64>,
    /// Write the complete model as a GGUF file for llama.cpp and Ollama into the folder gguf, instead of the
    /// usual outputs
    #[arg(long, value_name = "TYPE", value_parser = gguf_type_parser())]
    pub gguf: Option<GgufType>,
    /// Write the LoRA adapter alone as a GGUF file, instead of the usual outputs
    #[arg(long)]
    pub gguf_adapter: bool,
}

fn gguf_type_parser() -> impl TypedValueParser<Value = GgufType> {
    PossibleValuesParser::new(GgufType::WORDS).try_map(|word| word.parse::<GgufType>())
}

impl ExportArgs {
    /// Returns which GGUF files the flags ask for, if any.
    pub(crate) fn gguf(&self) -> Option<GgufRequest> {
        let request = GgufRequest { model: self.gguf, adapter: self.gguf_adapter };
        (request.model.is_some() || request.adapter).then_some(request)
    }

    /// Returns which weights the flags name.
    pub(crate) fn weights(&self) -> Weights {
        match self.checkpoint {
            Some(step) => Weights::Step(step),
            None if self.best => Weights::Best,
            None => Weights::Planned,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub run: RunName,
    /// The file to write, instead of report.html in the run folder
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub elsewhere: ElsewhereFlags,
}
