//! Which data: read, judged, and shown as the model will see it before anybody goes on with it.

use std::path::{Path, PathBuf};

use sparktune_data::{Prepared, PreviewOptions, RejectedList, preview};
use sparktune_plan::{Answer, Answers, DataFormat, Think, resolve};
use sparktune_tui::{count, escape, example_lines};

use super::{model, width};
use crate::failure::Failure;
use crate::job::{self, Base, Job};
use crate::output::note;
use crate::progress::Listener;
use crate::prompts::Prompter;

/// Rejected lines that are listed at once; the file has all of them.
const LISTED: usize = 20;
/// Bytes of a rejected line that are shown.
const SHOWN_BYTES: usize = 300;
/// Examples of a preview: each takes half a screen.
const EXAMPLES: usize = 4;

/// Asks for the data until enough of it can be used, and makes the first plan. `None`: another model is wanted.
pub fn data(
    ask: &Prompter,
    answers: &mut Answers,
    mut base: Base,
    listener: &dyn Listener,
) -> Result<Option<Job>, Failure> {
    let download = job::weigh(&mut base)?;
    loop {
        if answers.data.is_none() {
            answers.data = Some(Answer::flag(vec![path(ask)?]));
        }
        let prepared = match job::prepare_data(answers, &base.tokenizer, &base.facts, listener) {
            Ok(prepared) => prepared,
            Err(failure) if sparktune_data::Progress::cancelled(listener) => return Err(failure),
            Err(failure) => {
                note(&failure.text);
                answers.data = None;
                continue;
            }
        };
        note(prepared.report.to_string().trim_end());
        if !is_right(ask, answers, &base, &prepared)? {
            continue;
        }
        let facts = job::facts(answers, base.facts.clone(), &prepared, listener)?;
        return match resolve(answers, &facts) {
            Ok(plan) => Ok(Some(Job { plan, facts, prepared, download, hub: base.hub })),
            Err(error) if error.setting().is_some_and(|setting| setting.name == "data") => {
                note(&error.to_string());
                answers.data = None;
                continue;
            }
            Err(error) => {
                note(&error.to_string());
                model::another(answers);
                Ok(None)
            }
        };
    }
}

fn path(ask: &Prompter) -> Result<PathBuf, Failure> {
    let said = ask.text(
        "Training data:",
        "",
        "a .jsonl file or a folder of them; Tab completes",
        |text| match text.trim() {
            "" => Err("a file or a folder is needed".into()),
            path if !at_home(path).exists() => Err(format!("{path}: there is no such file or folder")),
            _ => Ok(()),
        },
    )?;
    Ok(at_home(said.trim()))
}

/// A path as typed: `~/` is the home folder, as in a shell.
fn at_home(typed: &str) -> PathBuf {
    match (typed.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => typed.into(),
    }
}

/// What can be done about the data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    GoOn,
    TakeTheRest,
    Examples,
    Rejected,
    Think(Think),
    Format,
    Other,
}

/// Shows the data as long as that is wished. False: it has to be read again, or other data is wanted.
fn is_right(
    ask: &Prompter,
    answers: &mut Answers,
    base: &Base,
    prepared: &Prepared,
) -> Result<bool, Failure> {
    let report = &prepared.report;
    let refused = job::accept(answers, prepared).err();
    let mut acts: Vec<(Act, String)> = Vec::new();
    match &refused {
        None => acts.push((Act::GoOn, "go on with it".into())),
        Some(failure) => note(failure.text.lines().next().unwrap_or_default()),
    }
    if report.rejected > 0 {
        acts.push((Act::Rejected, "show the rejected lines with reason and fix".into()));
    }
    if refused.is_some() && report.examples > 0 {
        acts.push((Act::TakeTheRest, "leave the rejected lines out and train on the rest".into()));
    }
    let has_block = base.tokenizer.thinking().is_some_and(|thinking| thinking.empty_block.is_some());
    let think = answers.think.as_ref().map_or(Think::Skip, |answer| answer.value);
    if report.examples > 0 {
        acts.push((Act::Examples, "show examples as the model sees them, and what is trained".into()));
        if has_block {
            acts.push(match think {
                Think::Skip => (
                    Act::Think(Think::Train),
                    "train the inserted empty think block too (now context)".into(),
                ),
                Think::Train => (
                    Act::Think(Think::Skip),
                    "make the inserted empty think block context (now trained)".into(),
                ),
            });
        }
    }
    acts.push((Act::Format, "read the lines as another format".into()));
    acts.push((Act::Other, "other data".into()));
    let choices: Vec<String> = acts.iter().map(|(_, words)| words.clone()).collect();
    loop {
        match acts[ask.choose("Is this data right?", &choices, 0)?].0 {
            Act::GoOn => return Ok(true),
            Act::TakeTheRest => {
                // The next whole percent.
                let share = (report.rejected_share() * 100.0).ceil() / 100.0;
                answers.max_rejected = Some(Answer::flag(share));
                return Ok(true);
            }
            Act::Examples => show_examples(answers, base, think)?,
            Act::Rejected => show_rejected(prepared)?,
            Act::Think(think) => {
                answers.think = Some(Answer::flag(think));
                return Ok(false);
            }
            Act::Format => {
                let words: Vec<String> = DataFormat::ALL.iter().map(ToString::to_string).collect();
                let now = answers.format.as_ref().map_or(DataFormat::Auto, |answer| answer.value);
                let at = DataFormat::ALL.iter().position(|format| *format == now).unwrap_or(0);
                answers.format = Some(Answer::flag(DataFormat::ALL[ask.choose("Format:", &words, at)?]));
                return Ok(false);
            }
            Act::Other => {
                answers.data = None;
                return Ok(false);
            }
        }
    }
}

fn show_examples(answers: &Answers, base: &Base, think: Think) -> Result<(), Failure> {
    let inputs = answers.data.as_ref().map(|answer| answer.value.clone()).unwrap_or_default();
    let options = PreviewOptions {
        format: job::format(answers),
        max_example_tokens: Some(job::max_example_tokens(answers, &base.facts)),
        limit: EXAMPLES,
        ..PreviewOptions::default()
    };
    let preview = preview(&inputs, &base.tokenizer, &options)?;
    for example in &preview.examples {
        let rendering = if think == Think::Train { &example.train } else { &example.skip };
        note(&format!(
            "\n{}:{}, {} tokens, {} of them trained",
            escape(&example.place.file),
            example.place.line,
            count(example.tokens.into()),
            count(rendering.target_tokens.into())
        ));
        example_lines(rendering, width()).iter().for_each(|line| note(line));
    }
    note(&format!("\n{}", preview.thinking_in_words()));
    Ok(())
}

fn show_rejected(prepared: &Prepared) -> Result<(), Failure> {
    let Some(path) = &prepared.rejected else { return Ok(()) };
    let page = RejectedList::open(path)?.page(0, LISTED, SHOWN_BYTES)?;
    for line in &page {
        let rejected = &line.rejected;
        note(&format!(
            "{}:{}: {}",
            escape(&rejected.file),
            rejected.line,
            escape(&rejected.rejection.to_string())
        ));
        note(&format!("    {}{}", escape(&rejected.text), if line.cut { " …" } else { "" }));
    }
    let more = prepared.report.rejected.saturating_sub(page.len() as u64);
    if more > 0 {
        note(&format!("and {} more", count(more)));
    }
    note(&format!("all of them are in {}", path.display()));
    Ok(())
}
