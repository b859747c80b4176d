//! `train`, `plan`, `--demo`, `--dry-run`: from answers to a run.

use sparktune_app::answers::gather;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::job;
use sparktune_app::launch::{Changes, Conditions};
use sparktune_app::program::Program;
use sparktune_app::run_folder::create_run;
use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_cluster::Placement;
use sparktune_plan::elsewhere::{Elsewhere, Job};
use sparktune_plan::{Answers, Plan, render};
use sparktune_runlog::RunDir;
use sparktune_tui::interview::Interview;
use sparktune_tui::output::{can_ask, columns, note, print, print_json};
use sparktune_tui::progress::OnStderr;
use sparktune_tui::prompts::Prompter;
use sparktune_tui::screens::{Screens, WizardEnd};

use crate::attempt::{Display, note_how_it_stands, run_attempt, stopped_before_the_first_step, with_result};
use crate::cluster_train::{gather as members_of, refuse_a_launcher_with, run_on_members, with_work_for_all};
use crate::follow_rank::follow_rank_0;
use crate::interrupt::Interrupts;
use crate::rank::{placement, refuse_missing_token};
use crate::request::{Given, RunName, Style};
use crate::runs::find_run;
use crate::turn::wait_for;

/// The width of a table in columns, if it is not printed on a terminal.
const WIDTH: usize = 110;

/// Runs `sparktune train`. `is_front_door` means that no command was given, so that flags are the first
/// answers of the wizard. With `dry_run` it stops after the plan.
///
/// # Errors
/// Any failure before the trainer was started.
pub fn train(
    program: &Program,
    given: Given,
    style: Style,
    dry_run: bool,
    is_front_door: bool,
) -> Result<Exit, Failure> {
    with_result(style, |run| start(program, given, style, dry_run, is_front_door, run))
}

fn start(
    program: &Program,
    given: Given,
    style: Style,
    dry_run: bool,
    is_front_door: bool,
    made: &mut Option<RunDir>,
) -> Result<Exit, Failure> {
    refuse_a_launcher_with(given.on_cluster)?;
    let placement = if dry_run { None } else { placement()? };
    if let Some(placement) = placement.as_ref().filter(|placement| placement.rank > 0) {
        return follow_rank_0(program, placement, given.flags.runs_dir.map(|answer| answer.value));
    }
    if let Some(placement) = &placement {
        refuse_missing_token(placement)?;
    }
    // Nobody sits in front of the ranks that a launcher starts.
    let alone = placement.is_none();
    let style = Style { non_interactive: style.non_interactive || !alone, ..style };
    let interrupts = Interrupts::listen()?;
    let listener = OnStderr::new(interrupts.flag());
    let prompter = Prompter::new(interrupts.flag());
    let first = given.after.as_ref().map(|name| {
        let runs_dir = given.flags.runs_dir.as_ref().map(|answer| answer.value.clone());
        find_run(RunName { run: name.clone(), runs_dir })
    });
    if let Some(first) = first.transpose()? {
        // A mistake is told now, and not in the night when the other run ends. What the other run takes of
        // the machine is not missing then.
        match gather(given.flags.clone(), given.demo)
            .and_then(|answers| job::plan(program, &answers, &listener))
        {
            Err(failure) if failure.exit != Exit::Device => return Err(failure),
            _ => wait_for(&first, &interrupts)?,
        }
    }
    let members = given.on_cluster.then(|| members_of(program, &interrupts)).transpose()?;
    let is_demo = given.demo;
    let answers = gather(given.flags, is_demo)?;
    let is_missing = !sparktune_plan::missing(&answers).is_empty();
    let asks = may_ask(style)
        && !is_demo
        && members.is_none()
        && given.after.is_none()
        && (is_missing || is_front_door);
    let interview = Interview { prompter: &prompter, program, listener: &listener };
    let job = if !asks {
        let job = job::plan(program, &answers, &listener)?;
        match &members {
            Some(members) => with_work_for_all(job, &answers, members)?,
            None => job,
        }
    } else if dry_run {
        interview.until_planned(answers)?
    } else if Display::suited_to(style) == Display::Screen {
        return wizard(program, answers);
    } else {
        interview.until_agreed(answers)?
    };
    if dry_run {
        show(&job.plan, style.json, false, None)?;
        return Ok(Exit::Done);
    }
    // The questions have shown it already.
    if !asks {
        note(summary(&job.plan).trim_end());
    }
    let run = create_run(program, job, &listener)?;
    *made = Some(run.clone());
    note(&format!("run   {}", run.path().display()));
    if interrupts.count() > 0 {
        return stopped_before_the_first_step(&run, style);
    }
    let style = Style { plain: style.plain || style.non_interactive, ..style };
    if let Some(Placement { world_size, host, port, .. }) = placement {
        note(&format!("rank 0 of {world_size} waits for the others at {}, port {port}", escape(&host)));
    }
    let conditions = Conditions { changes: Changes::Refused, sum_as: given.sum_as, environment: Vec::new() };
    let display = Display::suited_to(style);
    match members {
        Some(members) => run_on_members(program, &run, &members, conditions, display, &interrupts),
        None => run_attempt(program, &run, conditions, display, &interrupts),
    }
}

/// Returns the plan in a few lines, wrapped to the terminal.
pub(crate) fn summary(plan: &Plan) -> String {
    let summary = render::summary(plan);
    columns().map_or_else(|| summary.clone(), |width| render::fitted(&summary, width))
}

fn wizard(program: &Program, answers: Answers) -> Result<Exit, Failure> {
    match Screens::open()?.wizard(program, answers)? {
        WizardEnd::Started(run) => note_how_it_stands(&run),
        WizardEnd::DraftKept => {
            note(&format!(
                "nothing was started; your answers are saved, and the next `{}` offers to continue",
                program_name()
            ));
            Ok(Exit::Done)
        }
        WizardEnd::Left => Ok(Exit::Done),
    }
}

fn may_ask(style: Style) -> bool {
    !style.non_interactive && !style.json && can_ask()
}

/// Runs `sparktune plan`. With `explain` it prints every value with its origin and reason, and with another
/// machine what the job would take there.
///
/// # Errors
/// Anything that prevents a plan.
pub fn plan(
    program: &Program,
    given: Given,
    style: Style,
    explain: bool,
    elsewhere: Option<Elsewhere>,
) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let listener = OnStderr::new(interrupts.flag());
    let answers = gather(given.flags, given.demo)?;
    let is_missing = !sparktune_plan::missing(&answers).is_empty();
    let job = if is_missing && may_ask(style) {
        let prompter = Prompter::new(interrupts.flag());
        Interview { prompter: &prompter, program, listener: &listener }.until_planned(answers)?
    } else {
        job::plan(program, &answers, &listener)?
    };
    show(&job.plan, style.json, explain, elsewhere)?;
    Ok(Exit::Done)
}

fn show(plan: &Plan, json: bool, explain: bool, elsewhere: Option<Elsewhere>) -> Result<(), Failure> {
    let there = elsewhere.zip(plan.advice.as_ref()).map(|(there, advice)| there.planned(&advice.time));
    if json {
        #[derive(serde::Serialize)]
        struct Shown<'a> {
            #[serde(flatten)]
            plan: &'a Plan,
            #[serde(skip_serializing_if = "Option::is_none")]
            elsewhere: Option<Job>,
        }
        return Ok(print_json(&Shown { plan, elsewhere: there })?);
    }
    // A line for a program stays one.
    let fitted = |text: String| columns().map_or_else(|| text.clone(), |width| render::fitted(&text, width));
    print(&fitted(render::summary(plan)))?;
    if let Some(there) = there {
        print(&fitted(there.line()))?;
    }
    if explain {
        let table = render::explain(plan, columns().unwrap_or(WIDTH));
        print(&format!("\n{table}\n{}", render::cost_curve(plan)))?;
    }
    Ok(())
}
