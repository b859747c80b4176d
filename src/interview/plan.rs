//! The plan: the MTP head, every value with its reason, presets, the command line, and whether to start.

use sparktune_plan::presets::{self, OF_ONE_RUN};
use sparktune_plan::{Answer, Answers, Mtp, Origin, Plan, SETTINGS, Setting, render, resolve};
use sparktune_tui::escape;
use sparktune_tui::wizard::desk::SaveOutcome;

use super::{model, width};
use crate::desk;
use crate::failure::Failure;
use crate::job::{self, Job};
use crate::output::note;
use crate::prompts::Prompter;

/// What to do next.
enum After {
    /// Ask what to do with the plan.
    Ask,
    /// Answers have changed that the data is read by: begin again.
    Again,
}

/// Shows the plan and lets it be changed. False: it has to be made anew, from other answers.
pub fn agree(ask: &Prompter, answers: &mut Answers, job: &mut Job) -> Result<bool, Failure> {
    const START: usize = 0;
    let choices = [
        "start",
        "change a value",
        "show every value with its reason",
        "show the command line",
        "load a preset",
        "save these values as a preset",
        "another model",
        "other data",
    ]
    .map(str::to_owned);
    if job.facts.model.has_mtp() {
        mtp(ask, answers, job)?;
    }
    loop {
        note(render::summary(&job.plan).trim_end());
        let after = match ask.choose("This is the plan:", &choices, START)? {
            START => return Ok(true),
            1 => change(ask, answers, job)?,
            2 => {
                note(&format!("{}\n{}", render::explain(&job.plan, width()), render::cost_curve(&job.plan)));
                After::Ask
            }
            3 => {
                match sparktune_plan::command_line(answers) {
                    Ok(line) => note(&line),
                    Err(error) => note(&error.to_string()),
                }
                After::Ask
            }
            4 => load(ask, answers, job)?,
            5 => {
                save(ask, answers, &job.plan)?;
                After::Ask
            }
            6 => {
                model::another(answers);
                After::Again
            }
            _ => {
                answers.clear("data");
                After::Again
            }
        };
        if matches!(after, After::Again) {
            return Ok(false);
        }
    }
}

/// What becomes of the MTP head, with what each choice costs and is good for.
fn mtp(ask: &Prompter, answers: &mut Answers, job: &mut Job) -> Result<(), Failure> {
    let head = job.facts.model.mtp_parameters();
    note(&format!(
        "\nThe MTP head ({} parameters) guesses tokens ahead for speculative decoding. It never changes what the model says, \
         only how fast.",
        render::parameters(head)
    ));
    let mut offers = Vec::new();
    for choice in Mtp::ALL {
        let with = Answers { mtp: Some(Answer::flag(*choice)), ..answers.clone() };
        let cost = match resolve(&with, &job.facts) {
            Ok(plan) => choice.cost(plan.advice.and_then(|advice| advice.time.mtp_s), head * 2),
            Err(error) => format!("not possible: {error}"),
        };
        note(&format!("  {choice}: {cost}. {}", choice.benefit()));
        offers.push(format!("{:8} {cost}", choice.word()));
    }
    let at = Mtp::ALL.iter().position(|choice| *choice == job.plan.mtp).unwrap_or(0);
    let chosen = Mtp::ALL[ask.choose("MTP head:", &offers, at)?];
    if chosen != job.plan.mtp {
        replan(answers, job, |answers| {
            answers.mtp = Some(Answer::flag(chosen));
            Ok(())
        });
    }
    Ok(())
}

/// Changes answers where a plan follows from them; else says why not, and nothing has changed. Whether it did.
fn replan(
    answers: &mut Answers,
    job: &mut Job,
    change: impl FnOnce(&mut Answers) -> Result<(), Failure>,
) -> bool {
    let mut changed = answers.clone();
    let planned = change(&mut changed).and_then(|()| Ok(resolve(&changed, &job.facts)?));
    match planned {
        Ok(plan) => {
            (*answers, job.plan) = (changed, plan);
            true
        }
        Err(failure) => {
            note(&format!("not changed: {}", failure.text));
            false
        }
    }
}

/// Changes one value; the plan follows, or says why it cannot.
fn change(ask: &Prompter, answers: &mut Answers, job: &mut Job) -> Result<After, Failure> {
    // Model and data decide everything else, and have a question of their own.
    let settings: Vec<&'static Setting> =
        SETTINGS.iter().filter(|setting| !matches!(setting.name, "model" | "revision" | "data")).collect();
    let value = |setting: &Setting| {
        let rows = job.plan.advice.iter().flat_map(|advice| &advice.explain);
        let row = rows.into_iter().find(|row| row.key == setting.key).map(|row| row.value.clone());
        answers.get(setting.name).map(|(value, _)| value).or(row).unwrap_or_default()
    };
    let offers: Vec<String> =
        settings.iter().map(|s| format!("{:22} {:>12}  {}", s.name, value(s), s.about)).collect();
    let setting = settings[ask.choose("Which?", &offers, 0)?];
    let usual = value(setting);
    let said = match setting.choices {
        [] => {
            let help = format!("{} Empty: decided by the plan.", setting.about);
            ask.value(&format!("{}:", setting.name), &usual, &help, move |text| match text.trim() {
                "" => Ok(()),
                text => Answers::default().set(setting.name, text, Origin::Flag).map_err(|e| e.to_string()),
            })?
        }
        words => {
            let at = words.iter().position(|word| *word == usual).unwrap_or(0);
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            words[ask.choose(&format!("{}:", setting.name), &words, at)?].clone()
        }
    };
    if said == usual {
        return Ok(After::Ask);
    }
    let changed = replan(answers, job, |answers| {
        answers.clear(setting.name);
        match said.trim() {
            "" => Ok(()),
            text => Ok(answers.set(setting.name, text, Origin::Flag)?),
        }
    });
    Ok(if changed && job::decides_tokens(setting) { After::Again } else { After::Ask })
}

/// Puts a preset in the place of the last one; what the user said in other ways still counts more.
fn load(ask: &Prompter, answers: &mut Answers, job: &mut Job) -> Result<After, Failure> {
    let presets = desk::presets(None);
    let offers: Vec<String> = presets
        .iter()
        .map(|preset| {
            let about = match (&preset.toml, preset.shipped) {
                (Err(problem), _) => format!("cannot be read: {problem}"),
                (Ok(_), true) => preset.about.clone(),
                (Ok(_), false) => format!("your own: {}", preset.about),
            };
            format!("{:12} {about}", preset.name)
        })
        .chain(["none".to_owned()])
        .collect();
    let Some(preset) = presets.get(ask.choose("Preset:", &offers, 0)?) else { return Ok(After::Ask) };
    let before = answers.clone();
    let changed = replan(answers, job, |answers| {
        let toml = preset.toml.as_ref().map_err(|problem| Failure::usage(problem.clone()))?;
        let loaded = Answers::from_toml(toml, Origin::Preset, &preset.name)?;
        let of_last = |origin, name: &str| origin == Origin::Preset && !OF_ONE_RUN.contains(&name);
        *answers = loaded.merge(answers.without(of_last));
        answers.preset = Some(Answer::flag(preset.name.clone()));
        Ok(())
    });
    let own = |setting: &&Setting| {
        answers.origin(setting.key) == Some(Origin::Flag) && !OF_ONE_RUN.contains(&setting.name)
    };
    if changed {
        let names: Vec<&str> = SETTINGS.iter().filter(own).map(|setting| setting.name).collect();
        let more = match names.is_empty() {
            true => String::new(),
            false => format!("; your own values of {} count more", names.join(", ")),
        };
        note(&format!("preset {} is loaded{more}", escape(&preset.name)));
    }
    let decides = |setting: &Setting| {
        job::decides_tokens(setting) && before.get(setting.name) != answers.get(setting.name)
    };
    Ok(if SETTINGS.iter().any(decides) { After::Again } else { After::Ask })
}

/// Keeps the answers under a name; model and data are left out.
fn save(ask: &Prompter, answers: &Answers, plan: &Plan) -> Result<(), Failure> {
    let help = "letters, digits, - and _; model and data are left out";
    let check = |name: &str| presets::check_name(name.trim()).map_err(|error| error.to_string());
    let name = ask.value("Name of the preset:", "", help, check)?;
    let about = format!("{}, pack length {}", plan.method.kind(), plan.pack.length);
    let text = presets::text(&about, &answers.without(|_, name| OF_ONE_RUN.contains(&name)));
    let saved =
        text.map_err(Failure::from).and_then(|toml| match desk::save_preset(name.trim(), &toml, false)? {
            SaveOutcome::Exists { path } => {
                let choices = ["keep the older one".to_owned(), "replace it".to_owned()];
                match ask.choose("There is a preset of this name:", &choices, 0)? {
                    0 => Ok(SaveOutcome::Exists { path }),
                    _ => desk::save_preset(name.trim(), &toml, true),
                }
            }
            saved => Ok(saved),
        });
    match saved {
        Ok(SaveOutcome::Saved { path }) => note(&format!("saved: {}", path.display())),
        Ok(SaveOutcome::Exists { .. }) => note("not saved"),
        Err(failure) => note(&failure.text),
    }
    Ok(())
}
