//! `check`: examines the data before training.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sparktune_app::answers::gather;
use sparktune_app::check::{self, Checked, Show, ShownExample};
use sparktune_app::clean::{Cleaned, refuse_output, write_clean};
use sparktune_app::data::{refusal, with_correction_in_check};
use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::escape;
use sparktune_base::units::{count, counted};
use sparktune_data::Report;
use sparktune_plan::Answers;
use sparktune_tui::output::{columns, print, print_json, print_lines, report as report_failure};
use sparktune_tui::progress::OnStderr;
use sparktune_tui::{coloured_example_lines, example_lines, stdout_has_colours};

use crate::interrupt::Interrupts;
use crate::outputs::refuse_as_list_of_rejected;
use crate::rejected::{Before, rejected_lines, without_list};
use crate::request::Style;

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
    let before = Before::at(rejected);
    if let Some(clean) = clean {
        refuse_as_list_of_rejected(rejected, ("--write-clean", clean))?;
        refuse_output(clean)?;
        // The list says which lines not to copy.
        before.place().ok_or_else(|| before.not_written())?;
    }
    let answers = gather(flags, false)?;
    let listener = OnStderr::new(interrupts.flag());
    let list = before.place().map(Path::to_owned);
    let Checked { report, max_rejected, accepted, shown, not_found } =
        check::check(&answers, &without_list(inputs, rejected), list, show, &listener)?;
    before.note_what_is_gone(&report);

    let has_lines_to_list = report.listed_lines() > 0;
    let rejected_path = before.place().filter(|_| has_lines_to_list);
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
        // Of the eval set, nothing was left out.
        if kept > 0 && report.files.iter().all(|file| !file.eval || file.rejected == 0) {
            return Ok(Exit::Done);
        }
    }
    // The report stands, whatever became of the list.
    let not_written =
        (has_lines_to_list && rejected_path.is_none()).then(|| report_failure(&before.not_written()));
    let Some(refusal) = refusal(&answers, &report) else { return Ok(not_written.unwrap_or(Exit::Done)) };
    Ok(report_failure(&with_correction_in_check(refusal, &report)))
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
