//! The wizard as plain questions, for `--plain`, dumb terminals and screen readers: model, data, then the plan with its
//! reasons, every value of which can be changed before the start.

use sparktune_plan::{Answer, Answers, Catalog, Origin, SETTINGS, Setting, render, resolve};
use sparktune_tui::escape;

use crate::failure::Failure;
use crate::job::{self, Base, Job};
use crate::output::{columns, note};
use crate::progress::Listener;
use crate::prompts::Prompter;

/// Columns where the terminal does not tell.
const WIDTH: usize = 80;

/// Asks until there is a job that was agreed to.
///
/// # Errors
/// A question was declined, or something failed that no other answer would mend.
pub fn interview(answers: &mut Answers, listener: &dyn Listener) -> Result<Job, Failure> {
    note("sparktune: a few questions. Enter takes what is offered; Ctrl-C leaves, nothing is started.");
    loop {
        let mut job = complete(answers, listener)?;
        if agree(Prompter::new(), answers, &mut job)? {
            return Ok(job);
        }
    }
}

/// Asks for what only the user can say, until there is a plan.
///
/// # Errors
/// As [`interview`].
pub fn complete(answers: &mut Answers, listener: &dyn Listener) -> Result<Job, Failure> {
    let ask = Prompter::new();
    loop {
        let base = model(ask, answers, listener)?;
        if let Some(job) = data(ask, answers, base, listener)? {
            return Ok(job);
        }
    }
}

/// Asks for the model until one can be trained. One that was said on the command line is not asked for.
fn model(ask: Prompter, answers: &mut Answers, listener: &dyn Listener) -> Result<Base, Failure> {
    loop {
        if answers.model.is_none() {
            answers.model = Some(Answer::flag(choose_model(ask)?));
        }
        match job::find_base(answers, listener) {
            Ok(base) => return Ok(base),
            Err(failure) => {
                note(&failure.text);
                answers.model = None;
            }
        }
    }
}

fn choose_model(ask: Prompter) -> Result<String, Failure> {
    let catalog = Catalog::shipped();
    let offer = |model: &sparktune_plan::CatalogModel| {
        format!("{:24} {:>8}  {}", model.id, render::bytes(model.weight_bytes), model.note)
    };
    let mut choices: Vec<String> = catalog.models.iter().map(offer).collect();
    choices.push("another: a Hugging Face id or a folder".into());
    match catalog.models.get(ask.choose("Model:", &choices, 0)?) {
        Some(model) => Ok(model.id.clone()),
        None => ask.text("Id or folder:", "", "org/name, or a folder with config.json", |text| {
            match text.trim() {
                "" => Err("an id or a folder is needed".into()),
                _ => Ok(()),
            }
        }),
    }
}

/// Asks for the data until enough of it can be used, and makes the first plan. `None`: another model is wanted.
fn data(
    ask: Prompter,
    answers: &mut Answers,
    mut base: Base,
    listener: &dyn Listener,
) -> Result<Option<Job>, Failure> {
    let download = job::weigh(&mut base)?;
    loop {
        if answers.data.is_none() {
            let path =
                ask.text("Training data:", "", "a .jsonl file or a folder of them; Tab completes", |text| {
                    match text.trim() {
                        "" => Err("a file or a folder is needed".into()),
                        path if !std::path::Path::new(path).exists() => {
                            Err(format!("{path}: there is no such file or folder"))
                        }
                        _ => Ok(()),
                    }
                })?;
            answers.data = Some(Answer::flag(vec![path.trim().into()]));
        }
        let prepared = job::prepare_data(answers, &base.tokenizer, &base.facts, listener)
            .and_then(|prepared| job::accept(answers, &prepared).map(|()| prepared));
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(failure) => {
                note(&failure.text);
                answers.data = None;
                continue;
            }
        };
        note(prepared.report.to_string().trim_end());
        let facts = job::facts(answers, base.facts.clone(), &prepared, listener)?;
        return match resolve(answers, &facts) {
            Ok(plan) => Ok(Some(Job { plan, facts, prepared, download, hub: base.hub })),
            Err(error) => {
                note(&error.to_string());
                answers.model = None;
                Ok(None)
            }
        };
    }
}

/// Shows the plan and lets it be changed. False: it has to be made anew, from other answers.
fn agree(ask: Prompter, answers: &mut Answers, job: &mut Job) -> Result<bool, Failure> {
    const START: usize = 0;
    let choices = [
        "start",
        "change a value",
        "show every value with its reason",
        "show the command line",
        "another model",
        "other data",
    ]
    .map(str::to_owned);
    loop {
        note(render::summary(&job.plan).trim_end());
        match ask.choose("This is the plan:", &choices, START)? {
            START => return Ok(true),
            1 if change(ask, answers, job)? => {}
            1 => return Ok(false),
            2 => {
                let width = columns().unwrap_or(WIDTH);
                note(&format!("{}\n{}", render::explain(&job.plan, width), render::cost_curve(&job.plan)));
            }
            3 => match sparktune_plan::command_line(answers) {
                Ok(line) => note(&line),
                Err(error) => note(&error.to_string()),
            },
            other => {
                let missing = if other == 4 { "model" } else { "data" };
                answers.clear(missing);
                return Ok(false);
            }
        }
    }
}

/// Changes one value; the plan follows, or says why it cannot. False: the data has to be read again.
fn change(ask: Prompter, answers: &mut Answers, job: &mut Job) -> Result<bool, Failure> {
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
    let before = answers.clone();
    match said.trim() {
        "" => answers.clear(setting.name),
        text => answers.set(setting.name, text, Origin::Flag)?,
    }
    match resolve(answers, &job.facts) {
        Ok(plan) => job.plan = plan,
        Err(error) => {
            note(&format!("not changed: {}", escape(&error.to_string())));
            *answers = before;
            return Ok(true);
        }
    }
    Ok(!job::decides_tokens(setting))
}
