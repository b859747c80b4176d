//! Which model: the catalog with what each would be like here, the demo, or another that its config is judged by.

use sparktune_hub::{Cached, Hub};
use sparktune_plan::{
    Answer, Answers, Architecture, Catalog, CatalogModel, MethodOutlook, Origin, Outlooks, RateBasis, render,
};

use crate::answers::{self, runs_dir_of};
use crate::failure::Failure;
use crate::job::{self, Base};
use crate::output::note;
use crate::progress::Listener;
use crate::prompts::Prompter;

/// Asks for the model until one can be trained. One that was said on the command line is not asked for.
pub fn model(ask: &Prompter, answers: &mut Answers, listener: &dyn Listener) -> Result<Base, Failure> {
    loop {
        if answers.model.is_none() {
            choose(ask, answers, listener)?;
        }
        let known = match job::unknown_family(answers) {
            Ok(Some((family, computed_as))) if answers.architecture.is_none() => {
                confirmed(ask, answers, &family, computed_as)?
            }
            _ => true,
        };
        let found = match known {
            true => job::find_base(answers, listener),
            false => Err(Failure::usage("another model is needed")),
        };
        match found {
            Ok(base) => return Ok(base),
            Err(failure) if sparktune_data::Progress::cancelled(listener) => return Err(failure),
            Err(failure) => {
                note(&failure.text);
                another(answers);
            }
        }
    }
}

/// Lets the model go, and what belongs to it alone.
pub fn another(answers: &mut Answers) {
    ["model", "revision", "model-path", "architecture"].iter().for_each(|name| answers.clear(name));
}

/// A family that is not known is trained only when the user says so.
fn confirmed(
    ask: &Prompter,
    answers: &mut Answers,
    family: &str,
    computed_as: Architecture,
) -> Result<bool, Failure> {
    let name = answers.model.as_ref().map_or("", |answer| &answer.value);
    note(&format!(
        "{name} is of the family {family}, which is not known here. It would be computed as {computed_as}; only its authors' \
         code can tell whether that is right."
    ));
    let choices = ["take another model".to_owned(), format!("train it as {computed_as} all the same")];
    if ask.choose("Unknown architecture:", &choices, 0)? == 0 {
        return Ok(false);
    }
    answers.architecture = Some(Answer::flag(computed_as));
    Ok(true)
}

fn choose(ask: &Prompter, answers: &mut Answers, listener: &dyn Listener) -> Result<(), Failure> {
    let catalog = Catalog::shipped();
    let runs_dir = runs_dir_of(answers);
    let (machine, rates) = job::machine_and_rates(&runs_dir, listener)?;
    let outlooks = Outlooks::new(&machine, &rates, None);
    let hub = Hub::from_env(|name| std::env::var(name).ok()).ok();

    let mut usual = None;
    note(&format!("Models, and the longest rows in tokens that fit here ({}):", outlooks.data_in_words()));
    for (at, model) in catalog.models.iter().enumerate() {
        let outlook = outlooks.of(&model.id, &catalog.model_facts(model));
        if outlook.lora.fits()
            && (usual.is_none() || (model.id == Catalog::RECOMMENDED && !machine.gpus.is_empty()))
        {
            usual = Some(at);
        }
        let row = |outlook: &MethodOutlook| {
            outlook.longest_row.map_or("no".to_owned(), |row| render::count(row.into()))
        };
        note(&format!(
            "  {:24} LoRA {}, full {}; {}",
            model.id,
            row(&outlook.lora),
            row(&outlook.full),
            speed(&outlook.lora)
        ));
    }
    let offer = |model: &CatalogModel| {
        let here = match hub.as_ref().map(|hub| hub.cached(&model.id)) {
            Some(Cached::Whole { .. }) => "here",
            Some(Cached::Partial { .. }) => "partly here",
            _ => "to fetch",
        };
        format!("{:24} {:>8} {here:11}  {}", model.id, render::bytes(model.weight_bytes), model.note)
    };
    let mut choices: Vec<String> = catalog.models.iter().map(offer).collect();
    choices.push("another: a Hugging Face id or a folder".into());
    choices.push("the demo: the whole job with a tiny model and its data, in about two minutes".into());
    let chosen = ask.choose("Model:", &choices, usual.unwrap_or(0))?;
    if chosen == catalog.models.len() + 1 {
        *answers = answers::gather(answers.only(Origin::Flag), true)?;
        return Ok(());
    }
    let name = match catalog.models.get(chosen) {
        Some(model) => model.id.clone(),
        None => ask.text("Id or folder:", "", "org/name, or a folder with config.json", |text| match text
            .trim()
        {
            "" => Err("an id or a folder is needed".into()),
            _ => Ok(()),
        })?,
    };
    answers.model = Some(Answer::flag(name.trim().to_owned()));
    Ok(())
}

fn speed(outlook: &MethodOutlook) -> String {
    let word = match outlook.basis {
        RateBasis::MeasuredHere => "measured here",
        RateBasis::Measured => "measured on such a device",
        RateBasis::OriginalRecipe => "of the original recipe, unmeasured here",
        RateBasis::Estimate => "an estimate",
        RateBasis::Unknown => return "speed unknown".into(),
    };
    match outlook.tokens_per_s {
        Some(rate) => format!("{} tokens/s, {word}", render::tokens_per_s(rate)),
        None => "speed unknown".into(),
    }
}
