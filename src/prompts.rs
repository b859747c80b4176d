//! One question at a time, without a full screen: inquire on a terminal that can move its cursor, numbered lines on one
//! that cannot (`TERM=dumb`, some screen readers).

use std::io::{self, Write};
use std::path::{MAIN_SEPARATOR, Path};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use inquire::autocompletion::Replacement;
use inquire::validator::Validation;
use inquire::{Autocomplete, CustomUserError, InquireError, Select, Text};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sparktune_tui::escape;

use crate::failure::Failure;
use crate::output::{columns, note, stderr_is_lively};

/// Choices shown at a time.
const PAGE: usize = 12;

/// Asks.
#[derive(Debug)]
pub struct Prompter {
    lively: bool,
    interrupted: Arc<AtomicBool>,
}

impl Prompter {
    /// As lively as the terminal allows. `interrupted` becomes true with Ctrl-C, where the terminal makes a signal of it.
    pub fn new(interrupted: Arc<AtomicBool>) -> Self {
        Self { lively: stderr_is_lively(), interrupted }
    }

    /// One of several; `usual` is chosen by pressing Enter.
    ///
    /// # Errors
    /// The question was declined.
    pub fn choose(&self, question: &str, choices: &[String], usual: usize) -> Result<usize, Failure> {
        // A choice that wraps is hard to tell from two. Two columns are the cursor's.
        let room = columns().unwrap_or(usize::MAX).saturating_sub(3);
        let fitting = |choice: &String| escape(choice).chars().take(room).collect();
        let choices: Vec<String> = choices.iter().map(fitting).collect();
        if self.lively {
            let select = Select::new(question, choices).with_starting_cursor(usual).with_page_size(PAGE);
            return Ok(select.raw_prompt().map_err(declined)?.index);
        }
        for (i, choice) in choices.iter().enumerate() {
            note(&format!("  {}  {choice}", i + 1));
        }
        let number = |text: &str| {
            let known = text.trim().parse().ok().filter(|n| (1..=choices.len()).contains(n));
            known.ok_or_else(|| format!("a number from 1 to {} is needed", choices.len()))
        };
        let said = self.line(question, &(usual + 1).to_string(), |text| number(text).map(drop))?;
        Ok(number(&said).unwrap_or(usual + 1) - 1)
    }

    /// Text that `check` accepts; `usual` is taken by pressing Enter.
    ///
    /// # Errors
    /// The question was declined.
    pub fn text(
        &self,
        question: &str,
        usual: &str,
        help: &str,
        check: impl Fn(&str) -> Result<(), String>,
    ) -> Result<String, Failure> {
        if !self.lively {
            return self.line(&format!("{question} ({help})"), usual, check);
        }
        loop {
            let mut text = Text::new(question).with_help_message(help).with_autocomplete(Paths);
            if !usual.is_empty() {
                text = text.with_default(usual);
            }
            let said = text.prompt().map_err(declined)?;
            match check(&said) {
                Ok(()) => return Ok(said),
                Err(why) => note(&format!("  {}", escape(&why))),
            }
        }
    }

    /// A number or a word for a setting, checked while it is typed.
    ///
    /// # Errors
    /// The question was declined.
    pub fn value(
        &self,
        question: &str,
        usual: &str,
        help: &str,
        check: impl Fn(&str) -> Result<(), String> + Clone + 'static,
    ) -> Result<String, Failure> {
        if !self.lively {
            return self.line(&format!("{question} ({help})"), usual, check);
        }
        let validator = move |text: &str| -> Result<Validation, CustomUserError> {
            Ok(match check(text) {
                Ok(()) => Validation::Valid,
                Err(why) => Validation::Invalid(escape(&why).into_owned().into()),
            })
        };
        Text::new(question)
            .with_initial_value(usual)
            .with_help_message(help)
            .with_validator(validator)
            .prompt()
            .map_err(declined)
    }

    /// Prints the question, reads a line, and asks again until `check` is content. The end of the input declines.
    fn line(
        &self,
        question: &str,
        usual: &str,
        check: impl Fn(&str) -> Result<(), String>,
    ) -> Result<String, Failure> {
        loop {
            let mut out = io::stderr();
            let shown = if usual.is_empty() { String::new() } else { format!(" [{}]", escape(usual)) };
            let _ = write!(out, "{question}{shown}: ").and_then(|()| out.flush());
            let Some(said) = self.read_line() else { return Err(declined(InquireError::OperationCanceled)) };
            let said = said.trim_end_matches(['\r', '\n']);
            let said = if said.trim().is_empty() { usual } else { said };
            match check(said) {
                Ok(()) => return Ok(said.to_owned()),
                Err(why) => note(&format!("  {}", escape(&why))),
            }
        }
    }

    /// A line of standard input; nothing at its end, and after Ctrl-C, which a plain read would not notice.
    fn read_line(&self) -> Option<String> {
        const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let stdin = io::stdin();
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            if self.interrupted.load(Ordering::Relaxed) {
                note("");
                return None;
            }
            match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&LOOK)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(_) => return None,
            }
            // One byte at a time: what follows the line is for the next question.
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
    Failure::usage(match error {
        InquireError::OperationCanceled | InquireError::OperationInterrupted => {
            "left before everything was answered; nothing was started. The flags --model and --data answer without questions"
                .to_owned()
        }
        error => format!("cannot ask ({error}). Say it with --model and --data"),
    })
}

/// Completes paths of files and folders.
#[derive(Clone, Default)]
struct Paths;

/// What a path being typed may become: the entries of its folder that begin like its last part.
pub fn completions(typed: &str) -> Vec<String> {
    let (folder, beginning) = match typed.rfind(MAIN_SEPARATOR) {
        Some(at) => typed.split_at(at + 1),
        None => ("", typed),
    };
    let read = std::fs::read_dir(if folder.is_empty() { Path::new(".") } else { Path::new(folder) });
    let mut found: Vec<String> = read
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let hidden = name.starts_with('.') && !beginning.starts_with('.');
            let end = if entry.path().is_dir() { "/" } else { "" };
            (name.starts_with(beginning) && !hidden).then(|| format!("{folder}{name}{end}"))
        })
        .collect();
    found.sort();
    found
}

/// The longest beginning that all completions share.
pub fn common_beginning(completions: &[String]) -> Option<String> {
    let (first, others) = completions.split_first()?;
    let shared = others.iter().fold(first.as_str(), |shared, other| {
        let same = shared.char_indices().zip(other.chars()).find(|((_, a), b)| a != b).map(|((at, _), _)| at);
        &shared[..same.unwrap_or(shared.len().min(other.len()))]
    });
    Some(shared.to_owned())
}

impl Autocomplete for Paths {
    fn get_suggestions(&mut self, typed: &str) -> Result<Vec<String>, CustomUserError> {
        let found = completions(typed);
        // Names are untrusted; one that could steer the terminal is not offered, and can still be typed.
        Ok(found.into_iter().filter(|path| escape(path) == path.as_str()).collect())
    }

    fn get_completion(
        &mut self,
        typed: &str,
        chosen: Option<String>,
    ) -> Result<Replacement, CustomUserError> {
        Ok(chosen
            .or_else(|| common_beginning(&completions(typed)).filter(|shared| shared.len() > typed.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_completed_to_what_all_candidates_share() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["träin-a.jsonl", "träin-b.jsonl", ".hidden"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::create_dir(folder.path().join("sets")).unwrap();
        let at = |name: &str| format!("{}/{name}", folder.path().display());
        assert_eq!(completions(&at("tr")), [at("träin-a.jsonl"), at("träin-b.jsonl")]);
        assert_eq!(common_beginning(&completions(&at("tr"))), Some(at("träin-")));
        assert_eq!(completions(&at("s")), [at("sets/")]);
        assert_eq!(completions(&at("")).len(), 3);
        assert_eq!(completions(&at(".h")), [at(".hidden")]);
        assert_eq!(common_beginning(&completions(&at("nothing"))), None);
    }
}
