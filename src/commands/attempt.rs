//! Starts an attempt of a run and follows it to its end: as lines, as JSON, or on the dashboard.

use std::io;

use sparktune_app::failure::{Exit, Failure};
use sparktune_app::launch::{Conditions, Following, launch};
use sparktune_app::next_steps::{compare_command, is_of_demo, training_on};
use sparktune_app::program::Program;
use sparktune_app::shell::run_argument;
use sparktune_app::summary::Summary;
use sparktune_base::program_name;
use sparktune_plan::Plan;
use sparktune_runlog::{Liveness, RunDir, RunView};
use sparktune_tui::output::{WrappedLines, columns, note, print_json, report, stderr_columns};
use sparktune_tui::screen::can_fill_the_screen;
use sparktune_tui::screens::Screens;
use sparktune_tui::{Ended, Output, follow, how_it_stands};

use crate::interrupt::Interrupts;
use crate::request::Style;

/// How the progress of a run is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Display {
    /// One line per event.
    Lines,
    /// One JSON object per event.
    Json,
    /// A full screen.
    Screen,
}

impl Display {
    /// Returns a full screen if the terminal supports it and the user asked for nothing else.
    pub(crate) fn suited_to(style: Style) -> Self {
        if style.json {
            Self::Json
        } else if !style.plain && can_fill_the_screen() {
            Self::Screen
        } else {
            Self::Lines
        }
    }
}

/// Carries out a command that trains a run. The command stores the run in its argument before it starts the
/// trainer. With `--json`, a failure is an object too, the last line of the output.
///
/// # Errors
/// The failure of the command, or the output cannot be written.
pub(crate) fn with_result(
    style: Style,
    command: impl FnOnce(&mut Option<RunDir>) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let mut run = None;
    let done = command(&mut run);
    if let (Err(failure), true) = (&done, style.json) {
        print_json(&Summary::from_failure(failure, run.as_ref()))?;
    }
    done
}

/// Says that a run was stopped before its training began.
///
/// # Errors
/// The output cannot be written.
pub(crate) fn stopped_before_the_first_step(run: &RunDir, style: Style) -> Result<Exit, Failure> {
    note(&format!(
        "stopped before the first step; `{} resume {}` starts the training",
        program_name(),
        run_argument(run)
    ));
    if style.json {
        print_json(&Summary::of_unstarted(run))?;
    }
    Ok(Exit::Stopped)
}

/// Starts the next attempt of a run and follows it: as lines to its end, or as a screen until the user leaves
/// it.
///
/// # Errors
/// The trainer cannot be started or followed. The outcome of the attempt is not an error but the exit code.
pub(crate) fn run_attempt(
    program: &Program,
    run: &RunDir,
    conditions: impl Into<Conditions>,
    display: Display,
    interrupts: &Interrupts,
) -> Result<Exit, Failure> {
    let following = launch(program, run, conditions)?;
    match display {
        Display::Screen => {
            Screens::open()?.dashboard(program, run)?;
            after_the_screen(following)
        }
        Display::Lines => follow_to_the_end(following, Output::Plain, interrupts),
        Display::Json => follow_to_the_end(following, Output::Json, interrupts),
    }
}

fn follow_to_the_end(
    mut following: Following,
    output: Output,
    interrupts: &Interrupts,
) -> Result<Exit, Failure> {
    interrupts.follow();
    let run = following.run().clone();
    let first = following.attempt();
    let width = columns().filter(|_| output == Output::Plain);
    let mut out = WrappedLines::new(io::stdout().lock(), width);
    let mut notes = WrappedLines::new(io::stderr(), stderr_columns());
    let mut stop_requested = false;
    let goes_on = |_| {
        if following.has_ended() {
            return false;
        }
        let is_awaited = answer_signals(interrupts.count(), &mut stop_requested, || following.request_stop());
        if is_awaited {
            following.insist();
        }
        is_awaited
    };
    let followed = follow(&run, output, first, &mut out, &mut notes, goes_on)?;
    drop(out);
    let Ended::Enough { liveness, view } = followed else {
        note_that_it_goes_on(&run);
        return Ok(Exit::Done);
    };
    let exit = match report_ending(&mut following, &view) {
        Some(exit) => exit,
        None => {
            note(&format!(
                "detached: the trainer saves a checkpoint and ends. Watch it with `{} watch {}`",
                program_name(),
                run_argument(&run)
            ));
            Exit::Stopped
        }
    };
    if output == Output::Json {
        print_json(&Summary::from_run(&run, liveness, &view))?;
    } else if matches!(exit, Exit::Done | Exit::Diverged) {
        note_outputs(&run, &view);
    }
    Ok(exit)
}

/// Requests a stop at the first signal, and returns whether the trainer is still awaited: not after the
/// second one. Both may have come since the last call.
fn answer_signals(count: usize, stop_requested: &mut bool, request_stop: impl FnOnce()) -> bool {
    if count > 0 && !*stop_requested {
        *stop_requested = true;
        // A terminal has echoed `^C` on this line.
        let fresh_line = if stderr_columns().is_some() { "\n" } else { "" };
        note(&format!(
            "{fresh_line}stopping: the trainer saves a checkpoint and ends (Ctrl-C again: do not wait for it)"
        ));
        request_stop();
    }
    count < 2
}

/// Prints the state of the run below the closed dashboard.
fn after_the_screen(mut following: Following) -> Result<Exit, Failure> {
    let run = following.run().clone();
    let view = RunView::replay(&run)?;
    note(&how_it_stands(&run, view.liveness(&run)?, &view));
    let Some(exit) = report_ending(&mut following, &view) else {
        // A trainer that has nothing left to train may still run the command of --on-end.
        if view.liveness(&run)?.is_live() {
            note_that_it_goes_on(&run);
        }
        return Ok(Exit::Done);
    };
    if matches!(exit, Exit::Done | Exit::Diverged) {
        note_outputs(&run, &view);
    }
    Ok(exit)
}

/// Prints, below a closed screen, the state of a run that another process started.
///
/// # Errors
/// The run cannot be read.
pub(crate) fn note_how_it_stands(run: &RunDir) -> Result<Exit, Failure> {
    let view = RunView::replay(run)?;
    let liveness = view.liveness(run)?;
    note(&how_it_stands(run, liveness, &view));
    match liveness {
        Liveness::Finished { outcome } if outcome.is_complete() => note_outputs(run, &view),
        liveness if liveness.is_live() => note_that_it_goes_on(run),
        _ => {}
    }
    Ok(Exit::Done)
}

/// Prints how the trainer process ended, if its events do not contain it. Returns the exit code, or `None`
/// while it runs.
fn report_ending(following: &mut Following, view: &RunView) -> Option<Exit> {
    let ending = following.ending(view)?;
    if let Some(failure) = &ending.failure {
        report(failure);
    }
    if let Some(log) = &ending.log {
        log.lines.iter().for_each(|line| note(line));
        note(&format!("the trainer's log is {}", log.path.display()));
    }
    Some(ending.exit)
}

fn note_that_it_goes_on(run: &RunDir) {
    note(&format!(
        "training continues in the background; watch it with `{} watch {}`",
        program_name(),
        run_argument(run)
    ));
}

fn note_outputs(run: &RunDir, view: &RunView) {
    let Some(finished) = view.finished() else { return };
    for name in &finished.outputs {
        note(&format!("  {}", run.path().join(name).display()));
    }
    let name = run_argument(run);
    let plan = run.read_plan().ok().and_then(|text| Plan::from_toml(&text, "plan.toml").ok());
    if let Some(words) = plan.as_ref().and_then(|plan| training_on(&name, plan, view)) {
        note(&words);
    }
    let serving = run.outputs().join("SERVE.md");
    if serving.is_file() {
        note(&format!("How to serve it: {}", serving.display()));
        note(&format!("Talk to it: {} chat {name}", program_name()));
        let asks = match &plan {
            Some(plan) if is_of_demo(plan) => "",
            _ => " (how both follow instructions; --suite FILE asks about your own data)",
        };
        note(&format!("Before against after: {}{asks}", compare_command(&name, plan.as_ref())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trainer_is_asked_once_to_stop_also_if_two_signals_come_together() {
        for (counts, answers) in [
            (&[0, 1, 1, 2][..], &[true, true, true, false][..]),
            (&[0, 2], &[true, false]),
            (&[3], &[false]),
            (&[0, 0], &[true, true]),
        ] {
            let (mut stop_requested, mut asked) = (false, 0);
            let given: Vec<bool> = counts
                .iter()
                .map(|count| answer_signals(*count, &mut stop_requested, || asked += 1))
                .collect();
            assert_eq!(given, answers, "{counts:?}");
            assert_eq!(asked, usize::from(counts.last() > Some(&0)), "{counts:?}");
        }
    }
}
