//! `train`, `plan`, `--demo`, `--dry-run`: the way from answers to a run.

use sparktune_plan::{Plan, render};

use crate::answers;
use crate::cli::{PlanArgs, TrainArgs};
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::job;
use crate::launch::{self, Summary};
use crate::output::{columns, note, print, print_json};

/// Columns of a table that is not printed on a terminal.
const WIDTH: usize = 110;

/// `sparktune train`.
///
/// # Errors
/// Whatever ended it before the trainer took over.
pub fn train(args: TrainArgs) -> Result<Exit, Failure> {
    let json = args.json;
    let done = start(args);
    if let (Err(failure), true) = (&done, json) {
        print_json(&Summary::of_failure(failure))?;
    }
    done
}

fn start(args: TrainArgs) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let may_ask = !args.non_interactive && !args.json && answers::can_ask();
    let answers = answers::complete(answers::gather(args.settings.0, args.demo)?, may_ask)?;
    let job = job::plan(&answers, &interrupts.flag())?;
    if args.dry_run {
        show(&job.plan, args.json, false)?;
        return Ok(Exit::Done);
    }
    note(render::summary(&job.plan).trim_end());
    let run = launch::make_run(job, &interrupts)?;
    note(&format!("run   {}", run.path().display()));
    if interrupts.count() > 0 {
        note(&format!("stopped before the first step; `sparktune resume {}` starts it", run.name()));
        return Ok(Exit::Stopped);
    }
    launch::run_attempt(&run, args.json, &interrupts)
}

/// `sparktune plan`.
///
/// # Errors
/// Whatever stands in the way of a plan.
pub fn plan(args: PlanArgs) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let may_ask = !args.non_interactive && !args.json && answers::can_ask();
    let answers = answers::complete(answers::gather(args.settings.0, args.demo)?, may_ask)?;
    let job = job::plan(&answers, &interrupts.flag())?;
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
