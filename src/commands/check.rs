//! `check`: examines the data before training.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Serialize;
use sparktune_app::answers::gather;
use sparktune_app::data::{self, Checked, refusal};
use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::escape;
use sparktune_data::{Rejected, Report};
use sparktune_plan::Answers;
use sparktune_tui::output::{print, print_json, report as report_failure};
use sparktune_tui::progress::OnStderr;

use crate::interrupt::Interrupts;

/// The largest number of rejected lines on the screen; the file has all of them.
const LISTED: usize = 20;

#[derive(Serialize)]
struct CheckReport<'a> {
    accepted: bool,
    max_rejected: f64,
    rejected_path: Option<&'a Path>,
    report: &'a Report,
}

/// Runs `sparktune check`. `rejected` is the file for rejected lines.
///
/// # Errors
/// Inputs or a model cannot be read. Refused data is not an error but the exit code 3.
pub fn check(flags: Answers, inputs: &[PathBuf], rejected: &Path, json: bool) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let answers = gather(flags, false)?;
    let listener = OnStderr::new(interrupts.flag());
    let Checked { report, max_rejected, accepted } =
        data::check(&answers, inputs, rejected.to_owned(), &listener)?;

    let rejected_path = (report.rejected > 0).then_some(rejected);
    if json {
        print_json(&CheckReport { accepted, max_rejected, rejected_path, report: &report })?;
    } else {
        if let Some(path) = rejected_path {
            print(&rejected_lines(path)?)?;
        }
        print(&report.to_string())?;
        if let Some(path) = rejected_path {
            print(&format!("rejected lines, with reasons, are in {}\n", path.display()))?;
        }
    }
    let Some(refusal) = refusal(&answers, &report) else { return Ok(Exit::Done) };
    Ok(report_failure(&match report.rejected {
        0 => refusal,
        _ => refusal.hint("Correct the lines, or raise --max-rejected"),
    }))
}

/// Describes the first rejected lines: place, field, reason, fix.
fn rejected_lines(path: &Path) -> Result<String, Failure> {
    let unreadable = |error: std::io::Error| Failure::io("read", path, &error);
    let mut text = String::new();
    for line in BufReader::new(File::open(path).map_err(unreadable)?).lines().take(LISTED) {
        let line = line.map_err(unreadable)?;
        let rejected: Rejected = serde_json::from_str(&line).map_err(|error| unreadable(error.into()))?;
        let place = format!("{}:{}: {}", rejected.file, rejected.line, rejected.rejection);
        text.push_str(&escape(&place));
        text.push('\n');
    }
    Ok(text)
}
