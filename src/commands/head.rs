//! `head`: trains the MTP head of a finished run or of a model, in a run of its own.

use sparktune_app::answers::gather;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::finished_model::FinishedModel;
use sparktune_app::job;
use sparktune_app::launch::Changes;
use sparktune_app::program::Program;
use sparktune_app::run_folder::fill_run;
use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_plan::{Answer, Answers, Method, MethodKind, Mtp, Origin, Plan};
use sparktune_runlog::{RunDir, label_of};
use sparktune_tui::output::note;
use sparktune_tui::progress::OnStderr;

use crate::attempt::{Display, run_attempt, stopped_before_the_first_step, with_result};
use crate::failure::from_training;
use crate::interrupt::Interrupts;
use crate::request::{RunName, Style};
use crate::train::summary;
use crate::trainer::make_files_private;

/// Runs `sparktune head`: plans the training of a head, on the text model of a finished run with its settings
/// and data, or on a model as it is, and trains it in a new run.
///
/// # Errors
/// There is no such run or model, its text model is not finished or has no head, or anything that prevents a
/// plan.
pub fn head(program: &Program, name: RunName, flags: Answers, style: Style) -> Result<Exit, Failure> {
    with_result(style, |run| start(program, name, flags, style, run))
}

fn start(
    program: &Program,
    name: RunName,
    flags: Answers,
    style: Style,
    made: &mut Option<RunDir>,
) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let listener = OnStderr::new(interrupts.flag());
    let finished = FinishedModel::find(&name.run, name.runs_dir)?;
    let flags = Answers { mtp: Some(Answer::flag(Mtp::Trained)), ..flags };
    let (answers, method, whose) = match &finished {
        FinishedModel::OfRun(run) => of_run(run, flags)?,
        FinishedModel::Model(model) => of_model(model, flags)?,
    };
    let job = job::plan_head(program, &answers, method, &listener)?;
    note(summary(&job.plan).trim_end());
    make_files_private();
    let new = fill_run(program, job, &listener)?;
    // The run is visible only with a finished text model: without, it would train one of its own.
    match &finished {
        FinishedModel::OfRun(from) => sparktune_train::begin_head_run(from, new.dir()),
        FinishedModel::Model(_) => sparktune_train::begin_head_of_model(new.dir()),
    }
    .map_err(from_training)?;
    let run = new.finish()?;
    *made = Some(run.clone());
    note(&format!("run   {}", run.path().display()));
    note(&format!("only the MTP head is trained, on {whose}"));
    if interrupts.count() > 0 {
        return stopped_before_the_first_step(&run, style);
    }
    let style = Style { plain: style.plain || style.non_interactive, ..style };
    run_attempt(program, &run, Changes::Refused, Display::suited_to(style), &interrupts)
}

/// Returns the answers, the method and the description of the finished text model of a run: its settings,
/// without those that were meant for that run alone.
fn of_run(run: &RunDir, flags: Answers) -> Result<(Answers, Method, String), Failure> {
    let plan = Plan::from_toml(&run.read_plan()?, "plan.toml")?;
    if plan.method == Method::Head {
        let model = escape(&plan.model.id);
        let text = format!("{} trained only the MTP head of {model}", run.name());
        return Err(Failure::usage(text).hint(format!("`{} head {model}` trains it again", program_name())));
    }
    let preset = Answer::flag(run.plan().display().to_string());
    // A folder is named in the plan as the user named it, from wherever that was.
    let model = Answer::flag(plan.model.reference().into_owned());
    let mut answers = gather(Answers { preset: Some(preset), model: Some(model), ..flags }, false)?;
    if has_usual_eval_set(&plan) {
        // As an answer, the same share would choose other examples, and the text model was trained on those.
        answers.eval_fraction = own(answers.eval_fraction);
    }
    answers.max_steps = own(answers.max_steps);
    answers.save_steps = own(answers.save_steps);
    answers.eval_every_steps = own(answers.eval_every_steps);
    let label = label_of(&run.name()).map(|label| format!("{}-head", label.trim_end_matches("-head")));
    answers.name = own(answers.name).or(label.map(Answer::flag));
    Ok((answers, plan.method, format!("the text model of {}", run.name())))
}

/// Returns the answers, the method and the description of a model whose head is trained.
fn of_model(model: &str, flags: Answers) -> Result<(Answers, Method, String), Failure> {
    // The packs are chosen as for the smallest adapters, which are not made.
    let answers = Answers {
        model: Some(Answer::flag(model.to_owned())),
        method: Some(Answer::flag(MethodKind::Lora)),
        rank: Some(Answer::flag(1)),
        ..flags
    };
    Ok((gather(answers, false)?, Method::Head, format!("{} as it is", escape(model))))
}

/// Returns an answer unless it comes from the plan of the other run.
fn own<T>(answer: Option<Answer<T>>) -> Option<Answer<T>> {
    answer.filter(|answer| answer.origin > Origin::Preset)
}

/// Returns whether nobody asked for a share of the examples as the eval set of a run. It then has at least a
/// number of examples.
fn has_usual_eval_set(plan: &Plan) -> bool {
    let explained = plan.advice.iter().flat_map(|advice| &advice.explain);
    let mut of_share = explained.filter(|row| row.key == "data.eval_fraction");
    of_share.any(|row| row.origin == Origin::BuiltIn)
}
