//! The questions one after the other, without a full screen: for `--plain`, dumb terminals and screen
//! readers.
//!
//! Owns the order in which the questions of [`sparktune_app::questions`] are asked, and what is printed
//! between them. Enters: the answers so far. Leaves: a job that the user accepted. Notes go to standard
//! error.

mod data;
mod model;
mod plan;

use sparktune_app::failure::Failure;
use sparktune_app::folders::runs_dir_of;
use sparktune_app::job::Job;
use sparktune_app::listener::Listener;
use sparktune_app::machine::glance_at_machine;
use sparktune_app::program::Program;
use sparktune_app::questions::page::Page;
use sparktune_plan::Answers;

use crate::output::{columns, note};
use crate::plain::finding_text;
use crate::prompts::Prompter;

/// The width in columns if the terminal does not report one.
const WIDTH: usize = 80;

fn width() -> usize {
    columns().unwrap_or(WIDTH)
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
    pub fn until_agreed(&self, mut answers: Answers) -> Result<Job, Failure> {
        note(
            "sparktune asks a few questions. Enter accepts the recommended answer; Ctrl-C leaves without starting anything.\n",
        );
        self.show_machine(&answers);
        loop {
            let job = self.ask_for_missing(&mut answers)?;
            if let Some(job) = plan::agree(self, &mut answers, job)? {
                return Ok(job);
            }
        }
    }

    /// Asks only for the answers that have no default, until there is a plan.
    ///
    /// # Errors
    /// As [`until_agreed`](Self::until_agreed).
    pub fn until_planned(&self, mut answers: Answers) -> Result<Job, Failure> {
        self.ask_for_missing(&mut answers)
    }

    fn ask_for_missing(&self, answers: &mut Answers) -> Result<Job, Failure> {
        loop {
            let base = model::model(self, answers)?;
            if let Some(job) = data::data(self, answers, base)? {
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
