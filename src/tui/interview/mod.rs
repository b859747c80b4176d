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
use sparktune_base::escape::escape;
use sparktune_plan::Answers;
use unicode_width::UnicodeWidthStr;

use crate::output::{columns, note};
use crate::plain::finding_text;
use crate::prompts::Prompter;
use crate::wrap::wrap;

/// The width in columns if the terminal does not report one.
const WIDTH: usize = 80;

fn width() -> usize {
    columns().unwrap_or(WIDTH)
}

/// Writes a note. On a terminal its lines are wrapped between words, and what continues a line stands below
/// its beginning, or below the second column of a row of a table.
fn told(text: &str) {
    match columns() {
        Some(width) => {
            note(&text.split('\n').map(|line| wrapped(line, width)).collect::<Vec<_>>().join("\n"))
        }
        None => note(text),
    }
}

fn wrapped(line: &str, width: usize) -> String {
    let line = escape(line);
    if line.width() <= width {
        return line.into_owned();
    }
    let text_at = |from: usize| line.len() - line[from..].trim_start_matches(' ').len();
    let start = text_at(0);
    let column =
        line[start..].find("  ").map(|gap| text_at(start + gap)).filter(|column| *column < width / 2);
    let (head, rest) = line.split_at(column.unwrap_or(start));
    let indent = head.width();
    let parts = wrap(rest, width.saturating_sub(indent));
    head.to_owned() + &parts.join(&format!("\n{:indent$}", ""))
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
        told(
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
        told(Page::Machine.question());
        let lines: String = findings.iter().map(|finding| finding_text(finding, "", width)).collect();
        told(&lines);
    }

    /// Asks for one of several labelled choices.
    fn choose<T: Copy>(&self, question: &str, choices: &[(T, String)], default: usize) -> Result<T, Failure> {
        let labels: Vec<String> = choices.iter().map(|(_, label)| label.clone()).collect();
        Ok(choices[self.prompter.choose(question, &labels, default)?].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_goes_on_below_its_beginning_or_the_second_column_of_its_row() {
        assert_eq!(wrapped("one two three", 20), "one two three");
        assert_eq!(wrapped("  one two three four", 12), "  one two\n  three four");
        assert_eq!(
            wrapped("disk      one two three four five", 24),
            "disk      one two three\n          four five"
        );
        assert_eq!(wrapped("a\u{1b}[2Jb", 80), "a\\u{1b}[2Jb");
        // A first column that takes most of the line is none.
        assert_eq!(
            wrapped("a name as long as the line  and more", 20),
            "a name as long as\nthe line  and more"
        );
    }
}
