//! Compares models: the same prompts, one model in memory at a time, every answer checked.
//!
//! Enters: models, a suite, and whether a command judges and whether code is run. Leaves: a [`Comparison`],
//! which [`store`] keeps as one private file next to the runs. The checks and the statistics are
//! `sparktune_compare`'s; the answers come from inference workers ([`crate::inference`]).

mod asking;
mod judge;
mod process;
mod sandbox;
pub mod store;
mod suites;

use std::time::Instant;

use sparktune_base::escape::escape;
use sparktune_compare::{
    Answer, Answered, CodeRuns, Comparison, ModelAnswers, ModelRef, Outcome, Suite, SuitePrompt, Summary,
    VERSION,
};
use sparktune_runlog::now_us;

use self::asking::ask_all;
pub use self::judge::Judge;
use self::sandbox::Sandbox;
pub use self::suites::{SuiteName, find_suite, read_suite, suites};
use crate::failure::{Exit, Failure};
use crate::inference::{Decoding, Worker, WorkerOptions};
use crate::listener::{Listener, Progress, Unit};
use crate::models::OpenableModel;
use crate::program::Program;

/// The largest number of models in a comparison.
pub const MOST_MODELS: usize = 16;
/// The largest number of answers at a time.
pub const MOST_AT_A_TIME: usize = 64;

/// What is compared, and how.
#[derive(Debug, Clone)]
pub struct Request {
    /// The models. The others are compared with the first.
    pub models: Vec<OpenableModel>,
    /// The prompts with their checks.
    pub suite: Suite,
    /// The command that judges each answer.
    pub judge: Option<Judge>,
    /// Whether code that models write may be run, in a sandbox.
    pub run_code: bool,
    /// The largest number of answers that are computed at a time.
    pub at_a_time: usize,
    /// Where and how the models decode.
    pub decoding: Decoding,
}

/// Asks all models and checks their answers. The result has no id until it is kept ([`store::keep`]): its
/// answers may have taken an hour, and a caller must not lose them because the disk is full.
///
/// # Errors
/// A model cannot be loaded, or the work was cancelled. A prompt that a model cannot answer is no error of
/// the comparison; its answer says why.
pub fn compare(program: &Program, request: &Request, listener: &dyn Listener) -> Result<Comparison, Failure> {
    check(request)?;
    let mut notes = Vec::new();
    let sandbox = match (request.suite.has_code(), request.run_code) {
        (false, _) => Err((CodeRuns::NotNeeded, String::new())),
        (true, false) => Err((CodeRuns::NotAsked, "code is not run without --run-code".to_owned())),
        (true, true) => Sandbox::open().map_err(|why| (CodeRuns::Refused, why)),
    };
    let code = sandbox.as_ref().map_or_else(|(code, _)| *code, |_| CodeRuns::Ran);
    match (&sandbox, code) {
        (Err(_), CodeRuns::NotAsked) => notes.push(
            "Code that the models wrote was not run, so no answer with code passes (--run-code runs it in a sandbox)."
                .to_owned(),
        ),
        (Err((_, why)), CodeRuns::Refused) => {
            notes.push(format!("Code that the models wrote was not run, so no answer with code passes: {why}."));
        }
        _ => {}
    }
    notes.iter().for_each(|note| listener.note(&format!("note: {}", escape(note))));
    let mut models = Vec::new();
    for (i, model) in request.models.iter().enumerate() {
        let answers = answers_of(program, request, i, model, &names(&request.models)[i], listener)?;
        models.push(check_answers(request, i, answers, &sandbox, listener)?);
    }
    let mut comparison = Comparison {
        version: VERSION,
        id: String::new(),
        created_us: now_us(),
        suite: request.suite.name.clone(),
        about: request.suite.about.clone(),
        judge: request.judge.as_ref().map(|judge| judge.text().to_owned()),
        code,
        at_a_time: request.at_a_time,
        notes,
        prompts: request.suite.prompts.iter().map(SuitePrompt::shown).collect(),
        models,
        differences: Vec::new(),
    };
    comparison.summarise();
    comparison.notes.extend(failures_in_words(&comparison));
    Ok(comparison)
}

fn check(request: &Request) -> Result<(), Failure> {
    if request.models.is_empty() || request.models.len() > MOST_MODELS {
        let text = format!("{} models cannot be compared", request.models.len());
        return Err(Failure::usage(text).hint(format!("Name 1 to {MOST_MODELS} models")));
    }
    if !(1..=MOST_AT_A_TIME).contains(&request.at_a_time) {
        let text = format!("{} answers cannot be computed at a time", request.at_a_time);
        return Err(Failure::usage(text).hint(format!("Choose 1 to {MOST_AT_A_TIME}")));
    }
    Ok(())
}

/// Returns a name for each model that no other one has.
fn names(models: &[OpenableModel]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for model in models {
        let numbered = (2..).map(|number| format!("{} ({number})", model.name));
        let mut candidates = std::iter::once(model.name.clone()).chain(numbered);
        names.extend(candidates.find(|name| !names.contains(name)));
    }
    names
}

fn cancelled() -> Failure {
    Failure::new(Exit::Interrupted, "the comparison was cancelled; nothing was kept of it")
}

/// Loads a model, asks it all prompts, and ends its process.
fn answers_of(
    program: &Program,
    request: &Request,
    number: usize,
    model: &OpenableModel,
    name: &str,
    listener: &dyn Listener,
) -> Result<ModelAnswers, Failure> {
    let of_all = match request.models.len() {
        1 => String::new(),
        all => format!(" ({} of {all})", number + 1),
    };
    let shown = escape(name).into_owned();
    let mut progress = Progress {
        what: format!("loading {shown}{of_all}"),
        done: 0,
        total: None,
        unit: Unit::Count,
        note: None,
    };
    listener.progress(&progress);
    let started = Instant::now();
    let options = WorkerOptions {
        model: model.path.clone(),
        base: None,
        max_sequences: request.at_a_time,
        decoding: request.decoding,
    };
    let mut worker = Worker::start(program, &options)
        .map_err(|failure| Failure { text: format!("{shown}: {}", failure.text), ..failure })?;
    let load_ms = started.elapsed().as_secs_f64() * 1000.0;
    if listener.is_cancelled() {
        return Err(cancelled());
    }
    progress.what = format!("{shown} answers{of_all}");
    progress.total = Some(request.suite.prompts.len() as u64);
    let asked = ask_all(&mut worker, &request.suite.prompts, request.at_a_time, &mut |done| {
        progress.done = done as u64;
        listener.progress(&progress);
        !listener.is_cancelled()
    })?;
    let Some((answers, generating_ms)) = asked else { return Err(cancelled()) };
    let model = ModelRef { id: model.id.clone(), name: name.to_owned() };
    Ok(ModelAnswers { model, answers, generating_ms, load_ms, summary: Summary::default() })
}

/// Makes all checks of a model's answers, and asks the judge.
fn check_answers(
    request: &Request,
    number: usize,
    mut model: ModelAnswers,
    sandbox: &Result<Sandbox, (CodeRuns, String)>,
    listener: &dyn Listener,
) -> Result<ModelAnswers, Failure> {
    let mut progress = Progress {
        what: format!("checking the answers of {}", escape(&model.model.name)),
        done: 0,
        total: Some(model.answers.len() as u64),
        unit: Unit::Count,
        note: (request.models.len() > 1).then(|| format!("{} of {}", number + 1, request.models.len())),
    };
    for (answer, prompt) in model.answers.iter_mut().zip(&request.suite.prompts) {
        if listener.is_cancelled() {
            return Err(cancelled());
        }
        listener.progress(&progress);
        let is_cancelled = || listener.is_cancelled();
        let run = |job: &_| match sandbox {
            Ok(sandbox) => sandbox.run(job, &is_cancelled),
            Err((_, why)) => Err(why.clone()),
        };
        let answered = Answered {
            text: &answer.text,
            reference: prompt.reference.as_deref(),
            reference_loss: answer.reference.ok_or_else(|| {
                let why = answer.reference_error.as_deref().map_or(String::new(), |why| format!(": {why}"));
                format!("the loss of the reference is not known{why}")
            }),
            run: &run,
        };
        let mut outcomes: Vec<Outcome> = prompt.checks.iter().map(|check| check.outcome(&answered)).collect();
        if answer.error.is_some() {
            // What was not answered fails, whatever an empty text would pass.
            for outcome in &mut outcomes {
                outcome.passed = Some(false);
                outcome.score = Some(0.0);
                outcome.note = Some("there is no answer".to_owned());
            }
        } else if let Some(judge) = &request.judge {
            let name = &model.model.name;
            outcomes.push(judge.outcome(&request.suite.name, prompt, answer, name, &is_cancelled));
        }
        answer.outcomes = outcomes;
        answer.settle();
        progress.done += 1;
    }
    // What was cancelled during the last answer has not judged it.
    if listener.is_cancelled() {
        return Err(cancelled());
    }
    listener.progress(&progress);
    Ok(model)
}

/// Returns a sentence for each kind of failure that is easily overlooked among many answers.
fn failures_in_words(comparison: &Comparison) -> Vec<String> {
    let mut notes = Vec::new();
    for ModelAnswers { model, answers, summary, .. } in &comparison.models {
        let first_error = answers.iter().find_map(|answer: &Answer| answer.error.as_ref());
        if let Some(error) = first_error {
            notes.push(format!("{} did not answer {} prompts: {error}", model.name, summary.errors));
        }
        if summary.cut > 0 {
            notes.push(format!(
                "{} of {} answers of {} were cut at their largest length.",
                summary.cut,
                answers.len(),
                model.name
            ));
        }
        let judge_failures =
            answers.iter().flat_map(|a| &a.outcomes).filter(|o| o.kind == "judge" && o.score.is_none());
        let judge_failures: Vec<&Outcome> = judge_failures.collect();
        if let Some(first) = judge_failures.first() {
            let why = first.note.as_deref().unwrap_or_default();
            notes.push(format!(
                "The judge failed for {} answers of {}: {why}",
                judge_failures.len(),
                model.name
            ));
        }
    }
    notes
}
