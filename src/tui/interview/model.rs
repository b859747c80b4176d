//! The question for the model: the catalog with an outlook for each model on this machine, the demo, or
//! another model that is judged by its config.

use sparktune_app::answers::gather_demo;
use sparktune_app::failure::Failure;
use sparktune_app::files::Sought;
use sparktune_app::folders::runs_dir_of;
use sparktune_app::machine::machine_and_rates;
use sparktune_app::model::{BaseModel, Cached, cached_models, find_base, unknown_family};
use sparktune_app::models::named;
use sparktune_app::planner::Planner;
use sparktune_app::questions::model::{DEMO, ModelQuestion, OTHER, Offer, UnknownFamily, check_name};
use sparktune_app::questions::page::Page;
use sparktune_base::units;
use sparktune_plan::{Answer, Answers, CatalogModel, MethodOutlook};

use super::{Interview, drop_model};
use crate::output::note;
use crate::prompts::Completer;

/// Asks for the model until one can be trained. A model that was given on the command line is not asked for.
/// `flags` are the answers from there. The table of models is shown once, because it fills the screen, and a
/// problem below it.
pub(super) fn model(
    interview: &Interview<'_>,
    planner: &mut Planner,
    flags: &Answers,
    shows_table: &mut bool,
) -> Result<BaseModel, Failure> {
    let mut problem: Option<Failure> = None;
    loop {
        if planner.answers.model.is_none() {
            let runs_dir = runs_dir_of(&planner.answers);
            let (machine, rates) = machine_and_rates(interview.program, &runs_dir, interview.listener)?;
            let question = ModelQuestion::new(&machine, &rates, None, None);
            if std::mem::take(shows_table) {
                show_table(&question);
            }
            if let Some(problem) = problem.take() {
                note(&problem.to_string());
            }
            choose(interview, planner, flags, &question)?;
        }
        let answers = &mut planner.answers;
        let found = match unknown_family(answers, interview.listener) {
            Ok(Some((family, treated_as))) if answers.architecture.is_none() => {
                let name = answers.model.as_ref().map_or_else(String::new, |answer| answer.value.clone());
                if !confirm(interview, answers, &UnknownFamily { name: &name, family: &family, treated_as })?
                {
                    drop_model(planner);
                    continue;
                }
                find_base(answers, interview.listener)
            }
            Ok(_) => find_base(answers, interview.listener),
            // It would be the same, after another wait for a hub that cannot be reached.
            Err(failure) => Err(failure),
        };
        match found {
            Ok(base) => return Ok(base),
            Err(failure) if interview.listener.is_cancelled() => return Err(failure),
            Err(failure) => {
                problem = Some(failure);
                drop_model(planner);
            }
        }
    }
}

/// Asks whether a model of an unknown family should be trained as a known one.
fn confirm(
    interview: &Interview<'_>,
    answers: &mut Answers,
    unknown: &UnknownFamily<'_>,
) -> Result<bool, Failure> {
    note(&unknown.explanation());
    let choices = [(false, UnknownFamily::TAKE_ANOTHER.to_owned()), (true, unknown.train_anyway())];
    let is_confirmed = interview.choose("Unknown architecture:", &choices, 0)?;
    if is_confirmed {
        answers.architecture = Some(Answer::flag(unknown.treated_as));
    }
    Ok(is_confirmed)
}

#[derive(Clone, Copy)]
enum Choice {
    Catalog(&'static CatalogModel),
    Other,
    Demo,
}

fn show_table(question: &ModelQuestion) {
    note(&format!("Models, and the longest packs (in tokens) that fit on this machine ({}):", question.data));
    for Offer { name, outlook, catalog } in &question.offers {
        let (lora, full) = (longest_pack(&outlook.lora), longest_pack(&outlook.full));
        let about = catalog.map_or(&*outlook.lora.basis_in_words, |model| &*model.note);
        note(&format!("  {name:24}  LoRA {lora}, full {full}; {about}"));
    }
    let recommended = question.recommended();
    let first = question.offers.iter().find(|offer| Some(offer.name.as_str()) == recommended);
    if let Some(Offer { name, outlook, .. }) = first {
        note(&format!("Speed of {name}: {}", outlook.lora.basis_in_words));
    }
}

fn choose(
    interview: &Interview<'_>,
    planner: &mut Planner,
    flags: &Answers,
    question: &ModelQuestion,
) -> Result<(), Failure> {
    let cached = cached_models();
    let here = |id: &str| match cached.iter().find(|model| model.id == id).map(|model| model.cached) {
        Some(Cached::Whole { .. }) => "here",
        Some(Cached::Partial { .. }) => "incomplete",
        _ => "not downloaded",
    };
    let label = |model: &CatalogModel| {
        let size = units::bytes(model.weight_bytes);
        format!("{:24} {size:>8} {:11}  {}", model.id, here(&model.id), model.note)
    };
    let catalog = question.offers.iter().filter_map(|offer| offer.catalog);
    let mut choices: Vec<(Choice, String)> =
        catalog.map(|model| (Choice::Catalog(model), label(model))).collect();
    choices.push((Choice::Other, OTHER.to_owned()));
    choices.push((Choice::Demo, DEMO.to_owned()));
    let recommended = question.recommended();
    let default = question.offers.iter().position(|offer| Some(offer.name.as_str()) == recommended);
    let name = match interview.choose(Page::Model.question(), &choices, default.unwrap_or(0))? {
        Choice::Catalog(model) => model.id.clone(),
        Choice::Other => interview.prompter.path(
            "Id or folder:",
            "org/name, or a folder with config.json; Tab completes",
            &Completer { sought: Sought::Model, names: cached.into_iter().map(|model| model.id).collect() },
            check_name,
        )?,
        Choice::Demo => {
            // Answers that were given for another model or other data do not suit the demo.
            let demo = gather_demo(flags.clone(), |given| planner.without_what_was_left(given))?;
            planner.start_from(demo);
            return Ok(());
        }
    };
    planner.choose_model(&named(name.trim()));
    Ok(())
}

fn longest_pack(outlook: &MethodOutlook) -> String {
    outlook.longest_pack.map_or_else(|| "no".to_owned(), |tokens| units::count(tokens.into()))
}
