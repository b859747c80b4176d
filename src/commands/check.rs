//! `check`: what is in the data, before anyone trains on it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Serialize;
use sparktune_data::{CheckOptions, Report, check as examine};
use sparktune_plan::{Answers, Origin};
use sparktune_tui::escape;

use crate::answers;
use crate::cli::CheckArgs;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::job;
use crate::output::{note, print, print_json};
use crate::progress::OnStderr;

/// Rejected lines that are listed on the screen; the file has all of them.
const LISTED: usize = 20;

#[derive(Serialize)]
struct Checked<'a> {
    accepted: bool,
    max_rejected: f64,
    rejected_path: Option<&'a Path>,
    report: &'a Report,
}

/// `sparktune check`.
///
/// # Errors
/// Inputs or a model that cannot be read. Refused data is no error but the exit code 3.
pub fn check(args: CheckArgs) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let mut flags = Answers::default();
    let given = [
        ("model", &args.model),
        ("format", &args.format),
        ("think", &args.think),
        ("max-rejected", &args.max_rejected),
    ];
    for (name, text) in given {
        if let Some(text) = text {
            flags.set(name, text, Origin::Flag)?;
        }
    }
    let answers = answers::gather(flags, false)?;
    let listener = OnStderr::new(interrupts.flag());
    let base = answers.model.as_ref().map(|_| job::find_base(&answers, &listener)).transpose()?;
    let options = CheckOptions {
        format: job::format(&answers),
        tokenizer: base.as_ref().map(|base| &base.tokenizer),
        policy: job::mask_policy(&answers),
        max_example_tokens: base.as_ref().map(|base| job::max_example_tokens(&answers, &base.facts)),
        eval_data: args.eval_data,
        rejected_path: Some(args.rejected.clone()),
    };
    let max_rejected = answers.max_rejected.as_ref().map_or(job::MAX_REJECTED, |answer| answer.value);
    if !(0.0..=1.0).contains(&max_rejected) {
        return Err(Failure::usage(format!(
            "--max-rejected is a share from 0 to 1 (0.01 is 1 %), not {max_rejected}"
        )));
    }
    let report = examine(&args.data, &options, &listener)?;

    let accepted = !report.exceeds(max_rejected);
    let rejected_path = (report.rejected > 0).then_some(args.rejected.as_path());
    if args.json {
        print_json(&Checked { accepted, max_rejected, rejected_path, report: &report })?;
    } else {
        if let Some(path) = rejected_path {
            print(&rejected_lines(path)?)?;
        }
        print(&report.to_string())?;
        if let Some(path) = rejected_path {
            print(&format!("rejected lines, with reasons, are in {}\n", path.display()))?;
        }
    }
    if accepted {
        return Ok(Exit::Done);
    }
    if report.examples + report.rejected == 0 {
        note("error: the data holds no example: every line is blank, or there is none");
        return Ok(Exit::Data);
    }
    note(&format!(
        "error: the data was refused: {} of {} lines were rejected, at most {} % may be. Correct them, or raise --max-rejected",
        report.rejected,
        report.rejected + report.examples,
        max_rejected * 100.0
    ));
    Ok(Exit::Data)
}

/// The first rejected lines: place, field, reason, fix.
fn rejected_lines(path: &Path) -> Result<String, Failure> {
    let unreadable = |error: std::io::Error| Failure::io("read", path, &error);
    let mut text = String::new();
    for line in BufReader::new(File::open(path).map_err(unreadable)?).lines().take(LISTED) {
        let line = line.map_err(unreadable)?;
        let rejected: sparktune_data::Rejected =
            serde_json::from_str(&line).map_err(|error| unreadable(error.into()))?;
        let place = format!("{}:{}: {}", rejected.file, rejected.line, rejected.rejection);
        text.push_str(&escape(&place));
        text.push('\n');
    }
    Ok(text)
}
