//! `train`, `plan`, `--demo`, `--dry-run`: the way from answers to a run.

use sparktune_plan::{Plan, render};
use sparktune_tui::run_argument;

use crate::answers;
use crate::cli::{PlanArgs, TrainArgs};
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::interview;
use crate::job;
use crate::launch::{self, Following, Summary};
use crate::output::{columns, note, print, print_json};
use crate::progress::OnStderr;
use crate::prompts::Prompter;
use crate::screens::Screens;

/// Columns of a table that is not printed on a terminal.
const WIDTH: usize = 110;

/// `sparktune train`; `front_door` where no command was said, so that flags are the first answers of the wizard.
///
/// # Errors
/// Whatever ended it before the trainer took over.
pub fn train(args: TrainArgs, front_door: bool) -> Result<Exit, Failure> {
    let json = args.json;
    let done = start(args, front_door);
    if let (Err(failure), true) = (&done, json) {
        print_json(&Summary::of_failure(failure))?;
    }
    done
}

fn start(args: TrainArgs, front_door: bool) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let listener = OnStderr::new(interrupts.flag());
    let ask = Prompter::new(interrupts.flag());
    let answers = answers::gather(args.settings.0, args.demo)?;
    let missing = !sparktune_plan::missing(&answers).is_empty();
    let may_ask = !args.non_interactive && !args.json && !args.demo && answers::can_ask();
    let job = match may_ask && (missing || front_door) {
        true if args.dry_run => interview::complete(&ask, &mut answers.clone(), &listener)?,
        true if Following::suited(args.plain, false) == Following::Screen => {
            return Screens::open()?.wizard(answers);
        }
        true => interview::interview(&ask, &mut answers.clone(), &listener)?,
        false => job::plan(&answers, &listener)?,
    };
    if args.dry_run {
        show(&job.plan, args.json, false)?;
        return Ok(Exit::Done);
    }
    note(render::summary(&job.plan).trim_end());
    let run = launch::make_run(job, &listener)?;
    note(&format!("run   {}", run.path().display()));
    if interrupts.count() > 0 {
        note(&format!("stopped before the first step; `sparktune resume {}` starts it", run_argument(&run)));
        return Ok(Exit::Stopped);
    }
    let plain = args.plain || args.non_interactive;
    launch::run_attempt(&run, Following::suited(plain, args.json), &interrupts)
}

/// `sparktune plan`.
///
/// # Errors
/// Whatever stands in the way of a plan.
pub fn plan(args: PlanArgs) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let listener = OnStderr::new(interrupts.flag());
    let mut answers = answers::gather(args.settings.0, args.demo)?;
    let missing = !sparktune_plan::missing(&answers).is_empty();
    let job = match missing && !args.non_interactive && !args.json && answers::can_ask() {
        true => interview::complete(&Prompter::new(interrupts.flag()), &mut answers, &listener)?,
        false => job::plan(&answers, &listener)?,
    };
    show(&job.plan, args.json, args.explain)?;
    Ok(Exit::Done)
}

fn show(plan: &Plan, json: bool, explain: bool) -> Result<(), Failure> {
    if json {
        return Ok(print_json(plan)?);
    }
    print(&render::summary(plan))?;
    if explain {
        let table = render::explain(plan, columns().unwrap_or(WIDTH));
        print(&format!("\n{table}\n{}", render::cost_curve(plan)))?;
    }
    Ok(())
}
