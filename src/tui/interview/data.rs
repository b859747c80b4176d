//! The question for the data: reads and checks it, and shows it as the model will see it.

use std::path::PathBuf;

use sparktune_app::data::{RejectedLines, prepare_data, preview, refusal, think};
use sparktune_app::failure::Failure;
use sparktune_app::files::Sought;
use sparktune_app::job::{Job, gather_facts};
use sparktune_app::model::{BaseModel, weigh};
use sparktune_app::planner::Planner;
use sparktune_app::questions::data::{
    DataAction, PATH_HELP, actions, check_path, format_position, other_think, suggested_map,
};
use sparktune_app::questions::page::Page;
use sparktune_base::choices::Think;
use sparktune_base::escape::escape;
use sparktune_base::units::count;
use sparktune_data::{Place, Prepared};
use sparktune_plan::{Answer, Answers, DataFormat, resolve};

use super::{Interview, drop_data, drop_model, drop_unread_data, width};
use crate::example_text::example_lines;
use crate::output::note;
use crate::prompts::Completer;

/// The largest number of rejected lines that are listed; the file has all of them.
const LISTED: usize = 20;
/// The number of bytes shown of a rejected line.
const SHOWN_BYTES: usize = 300;
/// The number of examples in a preview; each takes half a screen.
const EXAMPLES: usize = 4;

/// Asks for the data until it can be used, and makes the first plan. Returns `None` if the user wants another
/// model.
pub(super) fn data(
    interview: &Interview<'_>,
    planner: &mut Planner,
    mut base: BaseModel,
) -> Result<Option<Job>, Failure> {
    let download = weigh(&mut base, interview.listener)?;
    loop {
        if planner.answers.data.is_none() {
            planner.choose_data(vec![ask_path(interview)?]);
        }
        let prepared = match prepare_data(&planner.answers, &base, interview.listener) {
            Ok(prepared) => prepared,
            Err(failure) if interview.listener.is_cancelled() => return Err(failure),
            Err(failure) => {
                note(&failure.to_string());
                drop_unread_data(planner);
                continue;
            }
        };
        note(prepared.report.to_string().trim_end());
        if !is_accepted(interview, planner, &base, &prepared)? {
            continue;
        }
        let answers = &planner.answers;
        let facts = gather_facts(interview.program, answers, &base, &prepared, interview.listener)?;
        match resolve(answers, &facts) {
            Ok(plan) => {
                return Ok(Some(Job {
                    plan,
                    facts,
                    prepared,
                    download,
                    tokenizer: base.tokenizer,
                    hub: base.hub,
                }));
            }
            Err(error) => {
                note(&error.to_string());
                if error.setting().is_some_and(|setting| setting.name == "data") {
                    drop_data(planner);
                    continue;
                }
                drop_model(planner);
                return Ok(None);
            }
        }
    }
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from)
}

fn ask_path(interview: &Interview<'_>) -> Result<PathBuf, Failure> {
    let home = home();
    let check = |text: &str| check_path(text, home.as_deref()).map(drop);
    let help = format!("{PATH_HELP}; Tab completes");
    let completer = Completer { sought: Sought::Data, names: Vec::new() };
    let typed = interview.prompter.path(Page::Data.question(), &help, &completer, check)?;
    check_path(&typed, home.as_deref()).map_err(Failure::usage)
}

/// Shows the data for as long as the user wants. Returns false if it has to be read again or the user wants
/// other data.
fn is_accepted(
    interview: &Interview<'_>,
    planner: &mut Planner,
    base: &BaseModel,
    prepared: &Prepared,
) -> Result<bool, Failure> {
    let report = &prepared.report;
    let answers = &mut planner.answers;
    if let Some(refusal) = refusal(answers, report) {
        note(&refusal.text);
    }
    let thinking = base.tokenizer.thinking_now();
    let choices: Vec<(DataAction, String)> = actions(answers, report, thinking.inserts_block)
        .into_iter()
        .map(|action| match (action, think(answers, thinking)) {
            (DataAction::MapColumns, _) => {
                let map = suggested_map(answers, report).map(ToString::to_string).unwrap_or_default();
                (action, format!("{}: {}", action.label(), escape(&map)))
            }
            (DataAction::SwitchThink, Think::Skip) => (action, format!("{} (now skipped)", action.label())),
            (DataAction::SwitchThink, Think::Train) => (action, format!("{} (now trained)", action.label())),
            _ => (action, action.label().to_owned()),
        })
        .collect();
    loop {
        match interview.choose("Use this data?", &choices, 0)? {
            DataAction::Accept => return Ok(true),
            DataAction::AcceptTheRest => {
                planner.accept_the_rest(report);
                return Ok(true);
            }
            DataAction::ShowExamples => show_examples(answers, base, interview)?,
            DataAction::ShowRejected => show_rejected(prepared)?,
            DataAction::SwitchThink => {
                answers.think = Some(Answer::flag(other_think(answers, thinking)));
                return Ok(false);
            }
            DataAction::MapColumns => {
                answers.map = suggested_map(answers, report).cloned().map(Answer::flag);
                return Ok(false);
            }
            DataAction::ReadAs => {
                let formats: Vec<(DataFormat, String)> =
                    DataFormat::ALL.iter().map(|format| (*format, format.to_string())).collect();
                let format = interview.choose("Format:", &formats, format_position(answers))?;
                planner.read_as(format);
                return Ok(false);
            }
            DataAction::Other => {
                drop_data(planner);
                return Ok(false);
            }
        }
    }
}

fn show_examples(answers: &Answers, base: &BaseModel, interview: &Interview<'_>) -> Result<(), Failure> {
    let preview = preview(answers, base, Some(EXAMPLES), interview.listener)?;
    let think = think(answers, base.tokenizer.thinking_now());
    for example in &preview.examples {
        let rendering = if think == Think::Train { &example.train } else { &example.skip };
        note(&format!(
            "\n{}, {} tokens, {} of them trained",
            example.place,
            count(example.tokens.into()),
            count(rendering.target_tokens.into())
        ));
        example_lines(rendering, width()).iter().for_each(|line| note(line));
    }
    note(&format!("\n{}", preview.thinking_in_words()));
    Ok(())
}

fn show_rejected(prepared: &Prepared) -> Result<(), Failure> {
    let Some(mut lines) = RejectedLines::open(prepared)? else { return Ok(()) };
    let page = lines.page(0, LISTED, SHOWN_BYTES)?;
    for line in &page.rows {
        let rejected = &line.rejected;
        let place = Place { file: rejected.file.clone(), line: rejected.line };
        note(&format!("{place}: {}", escape(&rejected.rejection.to_string())));
        note(&format!("    {}{}", escape(&rejected.text), if line.cut { " …" } else { "" }));
    }
    let more = page.total.saturating_sub(page.rows.len() as u64);
    if more > 0 {
        note(&format!("and {} more", count(more)));
    }
    if let Some(file) = &page.file {
        note(&format!("all of them are in {}", file.display()));
    }
    Ok(())
}
