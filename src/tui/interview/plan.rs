//! The questions about the plan: the MTP head, every value with its reason, presets, the command line, and
//! whether to start.

use sparktune_app::data::accept;
use sparktune_app::failure::Failure;
use sparktune_app::job::Job;
use sparktune_app::planner::{Planner, Problem};
use sparktune_app::presets::{self, Saved};
use sparktune_app::questions::mtp::{self, MtpQuestion};
use sparktune_app::questions::page::Page;
use sparktune_app::questions::plan::{PRESET_ABOUT, PRESET_EXISTS, PlanAction, check_preset_name};
use sparktune_base::escape::escape;
use sparktune_plan::{Answers, Mtp, Origin, SETTINGS, Setting, render, setting};

use super::{Interview, drop_data, drop_model, width};
use crate::output::note;

/// The action after an answer.
enum After {
    /// Ask again what to do with the plan.
    Ask,
    /// Make the plan again from other answers.
    StartOver,
}

/// Shows the plan and lets the user change it until they accept it. Returns `None` if it has to be made again
/// from other answers.
pub(super) fn agree(
    interview: &Interview<'_>,
    planner: &mut Planner,
    job: Job,
) -> Result<Option<Job>, Failure> {
    planner.set_facts(Some(job.facts.clone()));
    if job.facts.model.has_mtp() {
        ask_mtp(interview, planner)?;
    }
    let choices = PlanAction::ALL.map(|action| (action, action.label().to_owned()));
    loop {
        let plan = planner.plan.clone().unwrap_or_else(|| job.plan.clone());
        note(render::summary(&plan).trim_end());
        let after = match interview.choose(Page::Review.question(), &choices, 0)? {
            PlanAction::Start => {
                // The limit on rejected lines may have changed since the data was accepted.
                if let Err(failure) = accept(&planner.answers, &job.prepared) {
                    note(&failure.to_string());
                    continue;
                }
                return Ok(Some(Job { plan, ..job }));
            }
            PlanAction::Change => change(interview, planner)?,
            PlanAction::Explain => {
                note(&format!("{}\n{}", render::explain(&plan, width()), render::cost_curve(&plan)));
                After::Ask
            }
            PlanAction::CommandLine => {
                match sparktune_plan::command_line(&planner.answers) {
                    Ok(line) => note(&line),
                    Err(error) => note(&error.to_string()),
                }
                After::Ask
            }
            PlanAction::LoadPreset => load_preset(interview, planner)?,
            PlanAction::SavePreset => {
                save_preset(interview, planner)?;
                After::Ask
            }
            PlanAction::OtherModel => {
                drop_model(planner);
                After::StartOver
            }
            PlanAction::OtherData => {
                drop_data(planner);
                After::StartOver
            }
        };
        if matches!(after, After::StartOver) {
            // The facts belong to the model and the data of before.
            planner.set_facts(None);
            return Ok(None);
        }
    }
}

/// Asks whether to train the MTP head, with the cost and use of each choice.
fn ask_mtp(interview: &Interview<'_>, planner: &mut Planner) -> Result<(), Failure> {
    let Some(question) = MtpQuestion::new(planner) else { return Ok(()) };
    note(&format!("\n{}", question.explanation));
    for choice in &question.choices {
        note(&format!("  {}: {}. {}", choice.value.word(), choice.cost_in_words(), choice.note()));
    }
    let choices: Vec<(Mtp, String)> = question
        .choices
        .iter()
        .map(|choice| (choice.value, format!("{:8} {}", choice.value.word(), choice.cost_in_words())))
        .collect();
    let now = planner.plan.as_ref().map(|plan| plan.mtp);
    let default = choices.iter().position(|(value, _)| Some(*value) == now).unwrap_or(0);
    let chosen = interview.choose(Page::Mtp.question(), &choices, default)?;
    if Some(chosen) != now {
        report(planner.try_answer(mtp::setting(), chosen.word()));
    }
    Ok(())
}

/// Prints why an answer was rejected. Returns whether it was accepted.
fn report(taken: Result<(), Problem>) -> bool {
    if let Err(problem) = &taken {
        note(&format!("not changed: {}", problem.text));
    }
    taken.is_ok()
}

/// Changes one value. The plan is made again, or the reason why it cannot be is printed.
fn change(interview: &Interview<'_>, planner: &mut Planner) -> Result<After, Failure> {
    // Settings with a page of their own have a question of their own here too.
    let settings = SETTINGS.iter().filter(|setting| setting.page != setting::Page::Own);
    let choices: Vec<(&'static Setting, String)> = settings
        .map(|setting| {
            let value = planner.value(setting);
            (setting, format!("{:22} {value:>12}  {}", setting.name, setting.about))
        })
        .collect();
    let setting = interview.choose("Which?", &choices, 0)?;
    let before = planner.value(setting);
    let question = format!("{}:", setting.name);
    let answer = match setting.choices() {
        [] => {
            let help = format!("{} Leave empty to use the recommended value.", setting.about);
            let check = move |text: &str| match text.trim() {
                "" => Ok(()),
                text => Answers::default().set(setting.name, text, Origin::Flag).map_err(|e| e.to_string()),
            };
            interview.prompter.value(&question, &before, &help, check)?
        }
        words => {
            let choices: Vec<(&str, String)> = words.iter().map(|word| (*word, (*word).to_owned())).collect();
            let default = words.iter().position(|word| *word == before).unwrap_or(0);
            interview.choose(&question, &choices, default)?.to_owned()
        }
    };
    if answer == before || !report(planner.answer_as_typed(setting, &answer)) {
        return Ok(After::Ask);
    }
    Ok(if setting.reads_data { After::StartOver } else { After::Ask })
}

/// Replaces the loaded preset. Answers that the user gave in other ways override it.
fn load_preset(interview: &Interview<'_>, planner: &mut Planner) -> Result<After, Failure> {
    let presets = presets::list(None);
    let choices: Vec<(Option<usize>, String)> = presets
        .iter()
        .enumerate()
        .map(|(at, preset)| (Some(at), format!("{:12} {}", preset.name, preset.label())))
        .chain([(None, "none".to_owned())])
        .collect();
    let Some(at) = interview.choose("Preset:", &choices, 0)? else { return Ok(After::Ask) };
    let preset = &presets[at];
    let mut changed = planner.clone();
    let refused = match changed.use_preset(preset) {
        Ok(overriding) => match &changed.problem {
            None => {
                note(&escape(&overriding.in_words(&preset.name, "")));
                None
            }
            Some(problem) => Some(problem.text.clone()),
        },
        Err(failure) => Some(failure.to_string()),
    };
    if let Some(why) = refused {
        note(&format!("not changed: {why}"));
        return Ok(After::Ask);
    }
    let differs = |setting: &Setting| planner.answers.get(setting.name) != changed.answers.get(setting.name);
    let reads_again = SETTINGS.iter().any(|setting| setting.reads_data && differs(setting));
    *planner = changed;
    Ok(if reads_again { After::StartOver } else { After::Ask })
}

/// Saves the answers under a name, without model and data.
fn save_preset(interview: &Interview<'_>, planner: &Planner) -> Result<(), Failure> {
    note(PRESET_ABOUT);
    let help = "letters, digits, - and _";
    let name = interview.prompter.value("Name of the preset:", "", help, check_preset_name)?;
    let saved =
        presets::text(&planner.answers, planner.plan.as_ref()).and_then(|toml| {
            match presets::save(&name, &toml, false)? {
                Saved::Exists { path } => {
                    let choices =
                        [(false, "keep the existing one".to_owned()), (true, "replace it".to_owned())];
                    let replace = interview.choose(PRESET_EXISTS, &choices, 0)?;
                    if replace { presets::save(&name, &toml, true) } else { Ok(Saved::Exists { path }) }
                }
                saved => Ok(saved),
            }
        });
    match saved {
        Ok(Saved::Written { path }) => note(&format!("saved: {}", path.display())),
        Ok(Saved::Exists { .. }) => note("not saved"),
        Err(failure) => note(&failure.to_string()),
    }
    Ok(())
}
