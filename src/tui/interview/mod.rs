//! The questions one after the other, without a full screen: for `--plain`, dumb terminals and screen
//! readers.
//!
//! Owns the order in which the questions of [`sparktune_app::questions`] are asked, and what is printed
//! between them. Enters: the answers so far. Leaves: a job that the user accepted. Notes go to standard
//! error.

mod data;
mod model;
mod plan;

use sparktune_app::data_sets::is_elsewhere;
use sparktune_app::failure::Failure;
use sparktune_app::folders::runs_dir_of;
use sparktune_app::job::Job;
use sparktune_app::listener::Listener;
use sparktune_app::machine::glance_at_machine;
use sparktune_app::planner::Planner;
use sparktune_app::program::Program;
use sparktune_app::questions::model::DEMO_LEFT;
use sparktune_app::questions::page::Page;
use sparktune_plan::{Answers, Origin};

use crate::output::{columns, note};
use crate::plain::finding_text;
use crate::prompts::Prompter;

/// The width in columns if the terminal does not report one.
const WIDTH: usize = 80;

fn width() -> usize {
    columns().unwrap_or(WIDTH)
}

/// Removes the model, so that another one is asked for.
fn drop_model(planner: &mut Planner) {
    if planner.drop_model() {
        note(DEMO_LEFT);
    }
}

/// Removes the data, so that other data is asked for.
fn drop_data(planner: &mut Planner) {
    if planner.drop_data() {
        note(DEMO_LEFT);
    }
}

/// Removes data that could not be read, so that other data is asked for.
fn drop_unread_data(planner: &mut Planner) {
    let mut paths = planner.answers.data.iter().flat_map(|answer| &answer.value);
    let is_missing = paths.any(|path| !is_elsewhere(path) && !path.exists());
    if !is_missing {
        drop_data(planner);
    } else if planner.drop_missing_data() {
        note(DEMO_LEFT);
    }
}

/// Asks the questions in plain text. The fields are what the questions need.
pub struct Interview<'a> {
    /// Asks the questions.
    pub prompter: &'a Prompter,
    /// This program.
    pub program: &'a Program,
    /// Receives progress.
    pub listener: &'a dyn Listener,
}

impl Interview<'_> {
    /// Asks until the user accepts a job.
    ///
    /// # Errors
    /// The user declined a question, or a failure occurred that no other answer would fix.
    pub fn until_agreed(&self, answers: Answers) -> Result<Job, Failure> {
        note(
            "sparktune asks a few questions. Enter accepts the recommended answer; Ctrl-C leaves without starting anything.\n",
        );
        self.show_machine(&answers);
        let flags = answers.only(Origin::Flag);
        let mut planner = Planner::new(answers);
        loop {
            let job = self.ask_for_missing(&mut planner, &flags)?;
            if let Some(job) = plan::agree(self, &mut planner, job)? {
                return Ok(job);
            }
        }
    }

    /// Asks only for the answers that have no default, until there is a plan.
    ///
    /// # Errors
    /// As [`until_agreed`](Self::until_agreed).
    pub fn until_planned(&self, answers: Answers) -> Result<Job, Failure> {
        let flags = answers.only(Origin::Flag);
        self.ask_for_missing(&mut Planner::new(answers), &flags)
    }

    /// Asks for the model and the data. `flags` are the answers from the command line.
    fn ask_for_missing(&self, planner: &mut Planner, flags: &Answers) -> Result<Job, Failure> {
        let mut shows_table = true;
        loop {
            let base = model::model(self, planner, flags, &mut shows_table)?;
            if let Some(job) = data::data(self, planner, base)? {
                return Ok(job);
            }
        }
    }

    /// Shows the machine and every problem that prevents training on it.
    fn show_machine(&self, answers: &Answers) {
        let findings = glance_at_machine(self.program, &runs_dir_of(answers));
        let width = findings.iter().map(|finding| finding.what.len()).max().unwrap_or(0);
        note(Page::Machine.question());
        let lines: String = findings.iter().map(|finding| finding_text(finding, "", width)).collect();
        note(&lines);
    }

    /// Asks for one of several labelled choices.
    fn choose<T: Copy>(&self, question: &str, choices: &[(T, String)], default: usize) -> Result<T, Failure> {
        let labels: Vec<String> = choices.iter().map(|(_, label)| label.clone()).collect();
        Ok(choices[self.prompter.choose(question, &labels, default)?].0)
    }
}
