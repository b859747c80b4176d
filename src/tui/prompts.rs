//! One question at a time, without a full screen: with inquire on a terminal that can move its cursor, with
//! numbered lines on one that cannot (`TERM=dumb`, some screen readers).

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use inquire::autocompletion::Replacement;
use inquire::validator::Validation;
use inquire::{Autocomplete, CustomUserError, InquireError, Select, Text};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sparktune_app::failure::Failure;
use sparktune_app::files::{self, Sought, common_beginning, completions, expand_home, split_typed};
use sparktune_base::escape::escape;

use crate::output::{note, stderr_can_redraw, stderr_columns};
use crate::wrap::cut;

/// The number of choices that are visible at once.
const PAGE: usize = 12;

/// Asks questions on standard error and reads the answers from the terminal.
#[derive(Debug)]
pub struct Prompter {
    can_redraw: bool,
    interrupted: Arc<AtomicBool>,
}

impl Prompter {
    /// Uses the capabilities of the terminal. A signal handler sets `interrupted` on Ctrl-C where the
    /// terminal turns it into a signal.
    pub fn new(interrupted: Arc<AtomicBool>) -> Self {
        Self { can_redraw: stderr_can_redraw(), interrupted }
    }

    /// Asks for one of several choices, and returns its position. Enter takes `default`.
    ///
    /// # Errors
    /// The question was declined.
    pub fn choose(&self, question: &str, choices: &[String], default: usize) -> Result<usize, Failure> {
        if self.can_redraw {
            // A choice that wraps would look like two. The cursor takes two columns.
            let room = stderr_columns().unwrap_or(usize::MAX).saturating_sub(3);
            let fitting = |choice: &String| cut(&escape(choice), room);
            let choices: Vec<String> = choices.iter().map(fitting).collect();
            let select = Select::new(question, choices).with_starting_cursor(default).with_page_size(PAGE);
            return Ok(select.raw_prompt().map_err(declined)?.index);
        }
        let digits = choices.len().to_string().len();
        for (i, choice) in choices.iter().enumerate() {
            note(&format!("  {:>digits$}  {choice}", i + 1));
        }
        let number = |text: &str| {
            let known = text.trim().parse().ok().filter(|n| (1..=choices.len()).contains(n));
            known.ok_or_else(|| format!("type a number from 1 to {}", choices.len()))
        };
        let answer = self.line(question, &(default + 1).to_string(), |text| number(text).map(drop))?;
        Ok(number(&answer).unwrap_or(default + 1) - 1)
    }

    /// Asks for a path or a name that `check` accepts. Tab completes it, and Enter alone takes the only one
    /// that is here.
    ///
    /// # Errors
    /// The question was declined.
    pub fn path(
        &self,
        question: &str,
        help: &str,
        completer: &Completer,
        check: impl Fn(&str) -> Result<(), String>,
    ) -> Result<String, Failure> {
        let only = completer.only_one();
        if !self.can_redraw {
            let default = only.as_deref().unwrap_or_default();
            return self.line(&format!("{question} ({help})"), default, check);
        }
        let mut typed = String::new();
        loop {
            let mut text = Text::new(question).with_help_message(help).with_autocomplete(completer.clone());
            text.default = only.as_deref();
            let answer = text.with_initial_value(&typed).prompt().map_err(declined)?;
            match check(&answer) {
                Ok(()) => return Ok(answer),
                Err(why) => note(&format!("  {}", escape(&why))),
            }
            // A path with a mistake can be corrected, and need not be typed again.
            typed = answer;
        }
    }

    /// Asks for a number or a word, which is checked while it is typed. `initial` can be edited. A terminal
    /// that cannot edit a line shows it, and there an empty line is an empty answer.
    ///
    /// # Errors
    /// The question was declined.
    pub fn value(
        &self,
        question: &str,
        initial: &str,
        help: &str,
        check: impl Fn(&str) -> Result<(), String> + Clone + 'static,
    ) -> Result<String, Failure> {
        if !self.can_redraw {
            let now = if initial.is_empty() { String::new() } else { format!(" Now: {}", escape(initial)) };
            return self.line(&format!("{question} ({help}{now})"), "", check);
        }
        let validator = move |text: &str| -> Result<Validation, CustomUserError> {
            Ok(match check(text) {
                Ok(()) => Validation::Valid,
                Err(why) => Validation::Invalid(escape(&why).into_owned().into()),
            })
        };
        Text::new(question)
            .with_initial_value(initial)
            .with_help_message(help)
            .with_validator(validator)
            .prompt()
            .map_err(declined)
    }

    /// Prints the question, reads a line, and asks again until `check` accepts it. An empty line takes
    /// `default`; the end of the input declines the question.
    fn line(
        &self,
        question: &str,
        default: &str,
        check: impl Fn(&str) -> Result<(), String>,
    ) -> Result<String, Failure> {
        loop {
            let mut out = io::stderr();
            let shown = if default.is_empty() { String::new() } else { format!(" [{}]", escape(default)) };
            // In one piece, because the answer may be typed as soon as there is something to read.
            let asked = format!("{question}{shown}: ");
            let _ = out.write_all(asked.as_bytes()).and_then(|()| out.flush());
            let Some(line) = self.read_line() else { return Err(declined(InquireError::OperationCanceled)) };
            let line = line.trim_end_matches(['\r', '\n']);
            let answer = if line.trim().is_empty() { default } else { line };
            match check(answer) {
                Ok(()) => return Ok(answer.to_owned()),
                Err(why) => note(&format!("  {}", escape(&why))),
            }
        }
    }

    /// Reads a line of standard input. Returns `None` at its end and after Ctrl-C, which a plain read would
    /// not notice.
    fn read_line(&self) -> Option<String> {
        const INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let stdin = io::stdin();
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            if self.interrupted.load(Ordering::Relaxed) {
                note("");
                return None;
            }
            match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&INTERVAL)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(_) => return None,
            }
            // The line is read byte by byte, because everything after it belongs to the next question.
            let mut byte = [0];
            match rustix::io::read(&stdin, &mut byte) {
                Ok(0) if line.is_empty() => return None,
                Ok(0) => break,
                Ok(_) => line.extend(byte),
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        Some(String::from_utf8_lossy(&line).into_owned())
    }
}

fn declined(error: InquireError) -> Failure {
    let text = match error {
        InquireError::OperationCanceled | InquireError::OperationInterrupted => {
            "left before all questions were answered; nothing was started".to_owned()
        }
        error => format!("cannot ask: {error}"),
    };
    Failure::usage(text).hint("Give --model and --data to skip the questions")
}

/// Completes paths and names.
#[derive(Debug, Clone)]
pub struct Completer {
    /// What the path is wanted for.
    pub sought: Sought,
    /// Answers that are not paths, such as the ids of models.
    pub names: Vec<String>,
}

impl Completer {
    /// Returns the data file or the model in the working directory, if there is exactly one. A README does
    /// not count.
    fn only_one(&self) -> Option<String> {
        // Beyond what is listed there may be others.
        let listing = files::list(Path::new("."), false).ok().filter(|listing| listing.left_out == 0)?;
        let mut suited = listing.entries.iter().filter(|entry| entry.rank(self.sought) == Some(0));
        let name = suited.next().filter(|_| suited.next().is_none())?.name.to_str()?;
        (escape(name) == name).then(|| name.to_owned())
    }

    /// Returns the completions of what is typed, paths first. There are no paths if their folder cannot be
    /// read.
    fn suggestions(&self, typed: &str) -> Vec<String> {
        let (folder, beginning) = split_typed(typed);
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let folder =
            if folder.is_empty() { PathBuf::from(".") } else { expand_home(folder, home.as_deref()) };
        let listing = files::list(&folder, beginning.starts_with('.'));
        let paths = listing.map(|listing| completions(typed, &listing.entries, self.sought));
        let names = self.names.iter().filter(|name| name.starts_with(typed)).cloned();
        // Names are untrusted. A name that could control the terminal is not suggested but can still be
        // typed.
        let suggestions = paths.unwrap_or_default().into_iter().chain(names);
        suggestions.filter(|text| escape(text) == text.as_str()).collect()
    }
}

impl Autocomplete for Completer {
    fn get_suggestions(&mut self, typed: &str) -> Result<Vec<String>, CustomUserError> {
        Ok(self.suggestions(typed))
    }

    fn get_completion(
        &mut self,
        typed: &str,
        chosen: Option<String>,
    ) -> Result<Replacement, CustomUserError> {
        let suggestions = self.suggestions(typed);
        let shared = common_beginning(&suggestions);
        Ok(chosen.or_else(|| (shared.len() > typed.len()).then(|| shared.to_owned())))
    }
}
