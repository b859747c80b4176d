//! The wizard as plain questions, for `--plain`, dumb terminals and screen readers: machine, model, data, MTP head, then the
//! plan with its reasons, every value of which can be changed before the start.

mod data;
mod model;
mod plan;

use sparktune_plan::Answers;

use crate::answers::runs_dir_of;
use crate::failure::Failure;
use crate::job::Job;
use crate::machine;
use crate::output::{columns, note};
use crate::progress::Listener;
use crate::prompts::Prompter;

/// Columns where the terminal does not tell.
const WIDTH: usize = 80;

fn width() -> usize {
    columns().unwrap_or(WIDTH)
}

/// Asks until there is a job that was agreed to.
///
/// # Errors
/// A question was declined, or something failed that no other answer would mend.
pub fn interview(ask: &Prompter, answers: &mut Answers, listener: &dyn Listener) -> Result<Job, Failure> {
    note("sparktune: a few questions. Enter takes what is offered; Ctrl-C leaves, nothing is started.\n");
    show_machine(answers);
    loop {
        let mut job = complete(ask, answers, listener)?;
        if plan::agree(ask, answers, &mut job)? {
            return Ok(job);
        }
    }
}

/// Asks for what only the user can say, until there is a plan.
///
/// # Errors
/// As [`interview`].
pub fn complete(ask: &Prompter, answers: &mut Answers, listener: &dyn Listener) -> Result<Job, Failure> {
    loop {
        let base = model::model(ask, answers, listener)?;
        if let Some(job) = data::data(ask, answers, base, listener)? {
            return Ok(job);
        }
    }
}

/// What it will run on, and what stands in the way of that.
fn show_machine(answers: &Answers) {
    let runs_dir = runs_dir_of(answers);
    let facts = sparktune_telemetry::MachineFacts::gather();
    let free = sparktune_telemetry::disk_free_bytes(&runs_dir);
    let findings = machine::at_a_glance(&facts, cfg!(feature = "cuda"), &runs_dir, free);
    let width = findings.iter().map(|finding| finding.what.len()).max().unwrap_or(0);
    note("What it will run on");
    let lines: String = findings.iter().map(|finding| machine::text(finding, "", width)).collect();
    note(&lines);
}
