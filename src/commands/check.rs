//! `check`: examines the data before training.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Serialize;
use sparktune_app::answers::gather;
use sparktune_app::check::{self, Checked, Show, ShownExample};
use sparktune_app::clean::{Cleaned, refuse_existing, write_clean};
use sparktune_app::data::{refusal, with_correction_in_check};
use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::escape;
use sparktune_base::units::{count, counted};
use sparktune_data::{Kind, Place, Rejected, Report, is_list_of_rejected};
use sparktune_plan::Answers;
use sparktune_tui::output::{columns, note, print, print_json, print_lines, report as report_failure};
use sparktune_tui::progress::OnStderr;
use sparktune_tui::{coloured_example_lines, example_lines, stdout_has_colours};

use crate::interrupt::Interrupts;
use crate::outputs::refuse_as_list_of_rejected;
use crate::request::Style;

/// The largest number of reasons on the screen, and of rejected lines and their bytes that are read for them.
const REASONS: usize = 20;
/// The largest number of examples over the limit on tokens among them. They differ in their lengths alone,
/// and the report counts them.
const TOO_LONG: usize = 3;
const READ: usize = 1000;
const READ_BYTES: usize = 16 << 20;
/// The width of examples if standard output is not a terminal.
const WIDTH: usize = 100;

#[derive(Serialize)]
struct CheckReport<'a> {
    accepted: bool,
    max_rejected: f64,
    rejected_path: Option<&'a Path>,
    report: &'a Report,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    examples: &'a [ShownExample],
}

/// The answer of `--json` where nothing could be examined.
#[derive(Serialize)]
struct NotChecked {
    accepted: bool,
    error: String,
}

/// Runs `sparktune check`. `rejected` is the file for rejected lines, and `show` which examples to
/// print. With `clean`, the lines that were not rejected are written into that file, which is then the
/// result.
///
/// # Errors
/// Inputs or a model cannot be read, or the clean file cannot be written. Refused data is not an error but
/// the exit code 3.
pub fn check(
    flags: Answers,
    inputs: &[PathBuf],
    rejected: &Path,
    show: Show,
    clean: Option<&Path>,
    style: Style,
) -> Result<Exit, Failure> {
    let done = examine(flags, inputs, rejected, show, clean, style);
    if let (Err(failure), true) = (&done, style.json) {
        print_json(&NotChecked { accepted: false, error: failure.to_string() })?;
    }
    done
}

fn examine(
    flags: Answers,
    inputs: &[PathBuf],
    rejected: &Path,
    show: Show,
    clean: Option<&Path>,
    style: Style,
) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    if let Some(clean) = clean {
        refuse_as_list_of_rejected(rejected, ("--write-clean", clean))?;
        refuse_existing(clean)?;
    }
    let answers = gather(flags, false)?;
    let listener = OnStderr::new(interrupts.flag());
    let Checked { report, max_rejected, accepted, shown, not_found } =
        check::check(&answers, &without_list(inputs, rejected), rejected.to_owned(), show, &listener)?;

    let rejected_path = (report.listed_lines() > 0).then_some(rejected);
    if style.json {
        let examples = shown.as_slice();
        print_json(&CheckReport { accepted, max_rejected, rejected_path, report: &report, examples })?;
    } else {
        for example in &shown {
            print(&example_text(example, style.plain))?;
        }
        if let Some(why) = not_found {
            print_lines(&format!("{}\n\n", escape(&why)))?;
        }
        if let Some(hint) = report.map_hint() {
            print_lines(&format!("{hint}\n"))?;
        }
        if let Some(path) = rejected_path.filter(|_| !names_every_reason(&report)) {
            print_lines(&rejected_lines(path, report.listed_lines())?)?;
        }
        print_lines(&report.to_string())?;
        if let Some(path) = rejected_path {
            let too_long = if report.overlong.left_out.examples > 0 { " and those too long" } else { "" };
            let path = escape(&path.display().to_string()).into_owned();
            print_lines(&format!("rejected lines{too_long}, with reasons, are in {path}\n"))?;
        }
    }
    if let Some(clean) = clean {
        let Cleaned { kept, left_out } = write_clean(&report, rejected, clean)?;
        if !style.json {
            let path = escape(&clean.display().to_string()).into_owned();
            let kept = counted(kept, "line");
            print_lines(&format!("{path} has {kept}; left out: {}\n", count(left_out)))?;
        }
        if kept > 0 {
            return Ok(Exit::Done);
        }
    }
    let Some(refusal) = refusal(&answers, &report) else { return Ok(Exit::Done) };
    Ok(report_failure(&with_correction_in_check(refusal, &report)))
}

/// Leaves out the list that an earlier command wrote to `rejected`: `*.jsonl` names it together with the data
/// beside it. A list that is named alone stays, and so does any other file there; both are refused as data.
pub(crate) fn without_list(inputs: &[PathBuf], rejected: &Path) -> Vec<PathBuf> {
    let list = rejected.canonicalize().ok().filter(|list| is_list_of_rejected(list));
    let is_data = |input: &&PathBuf| list.is_none() || input.canonicalize().ok() != list;
    let data: Vec<PathBuf> = inputs.iter().filter(is_data).cloned().collect();
    if data.is_empty() || data.len() == inputs.len() {
        return inputs.to_vec();
    }
    note(&format!("{}: passed over, because it is an earlier list of rejected lines", rejected.display()));
    data
}

/// Returns whether the report itself has the reason of every line in the list of rejected lines: those of one
/// kind have the same.
fn names_every_reason(report: &Report) -> bool {
    report.rejections.iter().all(|kind| kind.alike == kind.count) && report.listed_lines() == report.rejected
}

/// Renders an example: a line with its place and counts, then its text with the trained part marked.
fn example_text(example: &ShownExample, plain: bool) -> String {
    let ShownExample { place, tokens, rendering } = example;
    let trained = count(rendering.target_tokens.into());
    let mut text = format!("{place}, {} tokens, {trained} of them trained\n", count((*tokens).into()));
    let width = columns().unwrap_or(WIDTH);
    let has_colours = !plain && stdout_has_colours();
    let lines = if has_colours { coloured_example_lines } else { example_lines };
    for line in lines(rendering, width) {
        text.push_str(&line);
        text.push('\n');
    }
    text.push('\n');
    text
}

/// Describes the first rejected lines: place, field, reason, fix. Each reason comes once, with the first
/// place and the number of lines that have it.
pub(crate) fn rejected_lines(path: &Path, total: u64) -> Result<String, Failure> {
    let unreadable = |error: std::io::Error| Failure::io("read", path, &error);
    let mut reasons: Vec<(String, String, u64)> = Vec::new();
    let (mut described, mut too_long, mut bytes) = (0, 0, 0);
    for line in BufReader::new(File::open(path).map_err(unreadable)?).lines().take(READ) {
        let line = line.map_err(unreadable)?;
        if bytes > READ_BYTES {
            break;
        }
        bytes += line.len();
        let rejected: Rejected = serde_json::from_str(&line).map_err(|error| unreadable(error.into()))?;
        let Rejected { file, line, rejection, .. } = rejected;
        let (kind, reason) = (rejection.kind, rejection.to_string());
        match reasons.iter().position(|(_, known, _)| *known == reason) {
            Some(at) => reasons[at].2 += 1,
            None if kind == Kind::TooManyTokens && too_long == TOO_LONG => continue,
            None if reasons.len() == REASONS => break,
            None => {
                too_long += usize::from(kind == Kind::TooManyTokens);
                reasons.push((Place { file, line }.to_string(), reason, 1));
            }
        }
        described += 1;
    }
    let mut text = String::new();
    for (place, reason, lines) in reasons {
        let others = match lines - 1 {
            0 => String::new(),
            others => format!(" and {}", counted(others, "more line")),
        };
        text.push_str(&format!("{place}{others}: {}\n", escape(&reason)));
    }
    if total > described {
        text.push_str(&format!("… and {} more\n", count(total - described)));
    }
    Ok(text)
}
