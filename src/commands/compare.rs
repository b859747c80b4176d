//! `compare`: the same prompts for several models, and whether their answers differ by more than chance.

use std::path::PathBuf;

use sparktune_app::answers::runs_dir;
use sparktune_app::comparison::{Judge, Request, compare as compare_models, find_suite, store};
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::inference::Decoding;
use sparktune_app::models::{ModelKind, OpenableModel, find_named};
use sparktune_app::program::Program;
use sparktune_base::escape::escape;
pub use sparktune_tui::comparison::Answers;
use sparktune_tui::comparison::text;
use sparktune_tui::output::{columns, note, print, print_json};
use sparktune_tui::progress::OnStderr;

use crate::interrupt::Interrupts;
use crate::request::Style;

/// The width of the output where nobody says it.
const COLUMNS: usize = 100;

/// What `compare` is asked for.
#[derive(Debug, Clone)]
pub struct CompareRequest {
    /// Runs, folders, and models of the hub's cache.
    pub models: Vec<String>,
    /// The name or the file of the suite.
    pub suite: String,
    /// The command that judges.
    pub judge: Option<String>,
    /// Whether code that models write may be run.
    pub run_code: bool,
    /// The largest number of prompts.
    pub max_prompts: Option<usize>,
    /// The number of answers at a time.
    pub at_a_time: usize,
    /// Where and how the models decode.
    pub decoding: Decoding,
    /// Which answers are printed.
    pub answers: Answers,
    /// The folder of the runs, if a flag names it.
    pub runs_dir: Option<PathBuf>,
}

/// Runs `sparktune compare`.
///
/// # Errors
/// A model or the suite cannot be found or used, a model does not fit into memory, or it was interrupted.
pub fn compare(program: &Program, request: CompareRequest, style: Style) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let runs_dir = runs_dir(request.runs_dir)?;
    let mut suite = find_suite(&request.suite)?;
    if let Some(most) = request.max_prompts {
        suite.limit(most);
    }
    let judge = request.judge.as_deref().map(Judge::new).transpose()?;
    let named =
        request.models.iter().map(|name| find_named(name, &runs_dir)).collect::<Result<Vec<_>, _>>()?;
    let models = with_base(named);
    let has_judge = judge.is_some();
    let listener = OnStderr::new(interrupts.flag());
    let answers = request.answers;
    let request = Request {
        models,
        suite,
        judge,
        run_code: request.run_code,
        at_a_time: request.at_a_time,
        decoding: request.decoding,
    };
    let mut comparison = compare_models(program, &request, &listener)?;
    drop(listener);
    // What was found is printed even if it cannot be kept, for example because the disk is full.
    let kept = store::keep(&runs_dir, &mut comparison);
    if style.json {
        print_json(&comparison)?;
        kept?;
    } else {
        print(&text(&comparison, answers, columns().unwrap_or(COLUMNS)))?;
        kept?;
        note(&format!("kept as {}", escape(&comparison.id)));
    }
    let mut judged = comparison.models.iter().flat_map(|model| &model.answers).flat_map(|a| &a.outcomes);
    if has_judge && judged.by_ref().filter(|outcome| outcome.kind == "judge").all(|one| one.score.is_none()) {
        return Err(Failure::usage("the judge gave no score to any answer; the notes above say why")
            .hint("Try the command by hand with one JSON object on its standard input"));
    }
    Ok(Exit::Done)
}

/// Puts the model that a run started from, or the base of an edited model, before one that was named alone.
fn with_base(named: Vec<OpenableModel>) -> Vec<OpenableModel> {
    let [model] = &named[..] else { return named };
    if !matches!(model.kind, ModelKind::Run | ModelKind::Edited) {
        return named;
    }
    match model.started_from() {
        Ok(base) => vec![base, model.clone()],
        Err(failure) => {
            note(&format!("note: {failure}"));
            named
        }
    }
}
