//! `head`: trains the MTP head of a finished run, in a run of its own.

use sparktune_app::answers::gather;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::job;
use sparktune_app::launch::Changes;
use sparktune_app::program::Program;
use sparktune_app::run_folder::fill_run;
use sparktune_base::program_name;
use sparktune_plan::{Answer, Answers, Mtp, Origin, Plan, render};
use sparktune_tui::output::note;
use sparktune_tui::progress::OnStderr;

use crate::attempt::{Display, run_attempt};
use crate::failure::from_training;
use crate::interrupt::Interrupts;
use crate::request::{RunName, Style};
use crate::runs::find_run;
use crate::trainer::make_files_private;

/// Runs `sparktune head`: plans a run with the settings and the data of a finished one, gives it that one's
/// text model, and trains its head.
///
/// # Errors
/// The run does not exist, its text model is not finished or has no head, or anything that prevents a plan.
pub fn head(program: &Program, name: RunName, flags: Answers, style: Style) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let listener = OnStderr::new(interrupts.flag());
    let from = find_run(name)?;
    let of_run = Plan::from_toml(&from.read_plan()?, "plan.toml")?;
    let preset = Answer::flag(from.plan().display().to_string());
    // A folder is named in the plan as the user named it, from wherever that was.
    let model = Some(Answer::flag(of_run.model.reference().into_owned()));
    let mtp = Some(Answer::flag(Mtp::Trained));
    let mut answers = gather(Answers { preset: Some(preset), model, mtp, ..flags }, false)?;
    if has_usual_eval_set(&of_run) {
        // As an answer, the same share would choose other examples, and the text model was trained on those.
        answers.eval_fraction = answers.eval_fraction.filter(|answer| answer.origin > Origin::Preset);
    }
    let mut job = job::plan(program, &answers, &listener)?;
    // The weights were trained with this method, whatever other settings say.
    job.plan.method = of_run.method;
    note(render::summary(&job.plan).trim_end());
    make_files_private();
    let new = fill_run(program, job, &listener)?;
    // The run is visible only with that text model: without, it would train one of its own.
    sparktune_train::begin_head_run(&from, new.dir()).map_err(from_training)?;
    let run = new.finish()?;
    note(&format!("run   {}", run.path().display()));
    note(&format!("only the MTP head is trained, on the text model of {}", from.name()));
    if interrupts.count() > 0 {
        note(&format!("stopped before the first step; `{} resume` starts it", program_name()));
        return Ok(Exit::Stopped);
    }
    let style = Style { plain: style.plain || style.non_interactive, ..style };
    run_attempt(program, &run, Changes::Refused, Display::suited_to(style), &interrupts)
}

/// Returns whether nobody asked for a share of the examples as the eval set of a run. It then has at least a
/// number of examples.
fn has_usual_eval_set(plan: &Plan) -> bool {
    let explained = plan.advice.iter().flat_map(|advice| &advice.explain);
    let mut of_share = explained.filter(|row| row.key == "data.eval_fraction");
    of_share.any(|row| row.origin == Origin::BuiltIn)
}
