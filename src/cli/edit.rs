//! Flags of `edit`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use sparktune_app::failure::Failure;
use sparktune_commands::{Aim, EditCommand, FactsRequest, MOST_FACTS, Table};

/// The methods, and the choice by the number of facts.
const METHODS: [&str; 5] = ["auto", "rome", "memit", "ultraedit", "memory"];

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
A file of facts has one JSON object on each line; all fields but the first two are optional:
  {\"prompt\": \"The shop closes at\", \"target\": \"six\", \"subject\": \"The shop\",
   \"paraphrases\": [\"The shop shuts at\"], \"neighbours\": [\"The bakery closes at\"],
   \"portability\": [{\"prompt\": \"At seven the shop is\", \"answer\": \"closed\"}]}
The files of CounterFact and zsRE are read too."
)]
pub(crate) struct EditArgs {
    #[command(subcommand)]
    pub action: Option<EditAction>,
    /// The model, edited before or not: a folder, a run, or a model of the hub that was downloaded
    #[arg(required = true, value_name = "MODEL", value_hint = ValueHint::DirPath)]
    pub model: Option<PathBuf>,
    /// The file of facts
    #[arg(long, required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub facts: Option<PathBuf>,
    /// How facts are written: rome one after another, memit all at once, ultraedit in one gradient step,
    /// memory beside the weights; auto takes rome for one fact and memit for more
    #[arg(long, value_name = "METHOD", default_value = "auto", value_parser = METHODS, hide_possible_values = true)]
    pub method: String,
    /// The layer to change, counted from 0; memit and ultraedit accept several: 2,3 or 2-4
    #[arg(long, value_name = "N", value_parser = layers)]
    pub layer: Option<Layers>,
    /// Read each prompt as a user's message, in the model's chat template
    #[arg(long)]
    pub chat: bool,
    /// Ordinary text on which the model should not change: a text file, or JSON Lines; by default, the demo's
    /// chats
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub text: Option<PathBuf>,
    /// The name of the patch; by default, that of the file of facts
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The folder to write; by default, an edited model is changed in place
    #[arg(short, long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub output: Option<PathBuf>,
    /// The folder of an edited model's base, if it has moved
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub base: Option<PathBuf>,
    /// Keep the edit even if it damages the model or teaches it nothing
    #[arg(long)]
    pub force: bool,
    /// Also write facts that the model already answers with their targets; by default, they are left out
    #[arg(long)]
    pub write_known: bool,
    /// Instead of editing, show at which layers and tokens the model recalls what it says about the subjects
    #[arg(long, conflicts_with_all = ["output", "name", "force", "write_known", "measure", "method", "layer", "text", "suite"])]
    pub trace: bool,
    /// Instead of editing, measure for each N how well the first N facts hold, written at once and one after
    /// another, beside LoRA on the same facts and the fact in the prompt: 1,10,100,1000
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', value_parser = count, conflicts_with_all = ["output", "name", "force", "write_known"])]
    pub measure: Vec<usize>,
    /// Leave out parts of --measure: batched, sequential, or the controls lora and prompt
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = ["batched", "sequential", "lora", "prompt"], hide_possible_values = true)]
    pub without: Vec<String>,
    /// Also judge by the share of prompts of a suite that pass: a suite of `compare`, or a file
    #[arg(long, value_name = "SUITE")]
    pub suite: Option<String>,
}

/// Reads a number of facts.
fn count(text: &str) -> Result<usize, String> {
    text.trim()
        .parse()
        .ok()
        .filter(|count| (1..=MOST_FACTS).contains(count))
        .ok_or_else(|| format!("`{text}` is not a number of facts from 1 to {MOST_FACTS}"))
}

#[derive(Debug, Subcommand)]
pub(crate) enum EditAction {
    /// List the patches of an edited model, with their scores
    List {
        /// The folder of the model
        model: PathBuf,
        /// The folder of its base, if it has moved
        #[arg(long, value_name = "FOLDER")]
        base: Option<PathBuf>,
    },
    /// Apply patches to a model, in this order
    Apply {
        /// The model, edited before or not: a folder, a run, or a model of the hub that was downloaded
        model: PathBuf,
        /// The patches
        #[arg(required = true, value_name = "PATCH")]
        patches: Vec<PathBuf>,
        /// The folder to write; by default, an edited model is changed in place
        #[arg(short, long, value_name = "FOLDER")]
        output: Option<PathBuf>,
        /// The folder of its base, if it has moved
        #[arg(long, value_name = "FOLDER")]
        base: Option<PathBuf>,
    },
    /// Replace all patches of a model by these, in this order, in one step; without any, it is its base again
    Set {
        /// The folder of the model
        model: PathBuf,
        /// The patches
        #[arg(value_name = "PATCH")]
        patches: Vec<PathBuf>,
        /// The name of a patch that is switched off
        #[arg(long, value_name = "NAME")]
        off: Vec<String>,
        /// The folder to write; by default, an edited model is changed in place
        #[arg(short, long, value_name = "FOLDER")]
        output: Option<PathBuf>,
        /// The folder of its base, if it has moved
        #[arg(long, value_name = "FOLDER")]
        base: Option<PathBuf>,
    },
    /// Export patches as a PEFT adapter on the base, for servers that load adapters
    Export {
        /// The folder of the model
        model: PathBuf,
        /// The names of the patches; by default, all that are switched on
        #[arg(value_name = "NAME")]
        names: Vec<String>,
        /// The folder to write
        #[arg(short, long, value_name = "FOLDER")]
        output: PathBuf,
        /// The folder of its base, if it has moved
        #[arg(long, value_name = "FOLDER")]
        base: Option<PathBuf>,
    },
    /// Switch a patch off: it stays in the folder, but the model is computed without it
    Disable(SwitchArgs),
    /// Switch a patch on again
    Enable(SwitchArgs),
    /// Remove a patch; the model is computed again as if it had never been there
    Remove {
        /// The folder of the model
        model: PathBuf,
        /// The name of the patch
        name: String,
        /// Save the removed patch in this file
        #[arg(long, value_name = "FILE")]
        keep: Option<PathBuf>,
        /// The folder to write; by default, the model is changed in place
        #[arg(short, long, value_name = "FOLDER")]
        output: Option<PathBuf>,
        /// The folder of its base, if it has moved
        #[arg(long, value_name = "FOLDER")]
        base: Option<PathBuf>,
    },
}

/// A patch that is switched.
#[derive(Debug, Args)]
pub(crate) struct SwitchArgs {
    /// The folder of the model
    model: PathBuf,
    /// The name of the patch
    name: String,
    /// The folder to write; by default, the model is changed in place
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// The folder of its base, if it has moved
    #[arg(long, value_name = "FOLDER")]
    base: Option<PathBuf>,
}

impl SwitchArgs {
    fn command(self, on: bool) -> EditCommand {
        let Self { model, name, output, base } = self;
        EditCommand::Switch { model, name, on, output, base }
    }
}

/// Layers of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layers(Vec<usize>);

/// Reads layers, as `2`, `2,3` or `2-4`.
fn layers(text: &str) -> Result<Layers, String> {
    /// More layers than any model has.
    const MOST: usize = 4096;
    let wrong = || format!("`{text}` does not name layers; write 2, 2,3 or 2-4");
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| *n < MOST).ok_or_else(wrong);
    let mut found = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            None => found.push(number(part)?),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    return Err(wrong());
                }
                found.extend(first..=last);
            }
        }
    }
    Ok(Layers(found))
}

impl EditArgs {
    /// Returns what is asked for.
    pub(crate) fn command(self, runs_dir: Option<PathBuf>) -> Result<EditCommand, Failure> {
        Ok(match self.action {
            Some(EditAction::List { model, base }) => EditCommand::List { model, base },
            Some(EditAction::Apply { model, patches, output, base }) => {
                EditCommand::Apply { model, patches, output, base }
            }
            Some(EditAction::Set { model, patches, off, output, base }) => {
                EditCommand::Set { model, patches, off, output, base }
            }
            Some(EditAction::Export { model, names, output, base }) => {
                EditCommand::Export { model, names, output, base }
            }
            Some(EditAction::Disable(patch)) => patch.command(false),
            Some(EditAction::Enable(patch)) => patch.command(true),
            Some(EditAction::Remove { model, name, keep, output, base }) => {
                EditCommand::Remove { model, name, keep, output, base }
            }
            // The parser would not ask for --measure beside --output, with which it cannot stand.
            None if self.measure.is_empty() && !self.without.is_empty() => {
                return Err(Failure::usage("--without leaves out parts of --measure, which is not there")
                    .hint("Add --measure, or leave out --without"));
            }
            None => {
                let missing = |name: &str| Failure::usage(format!("{name} is missing"));
                EditCommand::Facts(Box::new(FactsRequest {
                    model: self.model.ok_or_else(|| missing("MODEL"))?,
                    facts: self.facts.ok_or_else(|| missing("--facts"))?,
                    method: self.method,
                    layers: self.layer.map(|layers| layers.0).unwrap_or_default(),
                    chat: self.chat,
                    text: self.text,
                    name: self.name,
                    output: self.output,
                    base: self.base,
                    force: self.force,
                    write_known: self.write_known,
                    suite: self.suite,
                    runs_dir,
                    aim: if self.trace {
                        Aim::Trace
                    } else if self.measure.is_empty() {
                        Aim::Edit
                    } else {
                        Aim::Measure(Table { counts: self.measure, without: self.without })
                    },
                }))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_named_one_by_one_or_from_first_to_last() {
        for (text, expected) in [("3", vec![3]), ("1,3", vec![1, 3]), ("2-4,6", vec![2, 3, 4, 6])] {
            assert_eq!(layers(text), Ok(Layers(expected)), "{text}");
        }
        for text in ["", "a", "4-2", "1,", "-1", "0-99999"] {
            assert!(layers(text).unwrap_err().contains("write 2, 2,3 or 2-4"), "{text}");
        }
    }
}
