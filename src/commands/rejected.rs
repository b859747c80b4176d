//! The list of rejected lines that `check` and `pack` write: what it replaces, and what is said of it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use sparktune_app::failure::Failure;
use sparktune_base::escape::escape;
use sparktune_base::units::{count, counted};
use sparktune_data::{Kind, Place, Rejected, RejectedList, Report, is_list_of_rejected};
use sparktune_tui::output::note;

/// The largest number of reasons on the screen, and of rejected lines and their bytes that are read for them.
const REASONS: usize = 20;
/// The largest number of examples over the limit on tokens among them. They differ in their lengths alone,
/// and the report counts them.
const TOO_LONG: usize = 3;
const READ: usize = 1000;
const READ_BYTES: usize = 16 << 20;

/// What is in the place of the list before a command writes it.
pub(crate) struct Before<'a> {
    list: &'a Path,
    /// The data of an earlier list: the file of its first line.
    data: Option<String>,
    is_taken: bool,
}

impl<'a> Before<'a> {
    /// Looks at the place of the list.
    pub(crate) fn at(list: &'a Path) -> Self {
        let is_list = is_list_of_rejected(list);
        let first = || RejectedList::open(list).ok()?.page(0, 1, 0).ok()?.pop();
        let data = first().filter(|_| is_list).map(|line| line.rejected.file);
        Self { list, data, is_taken: list.is_file() && !is_list }
    }

    /// Returns where to write the list: nowhere if a file of the user's has its name.
    pub(crate) fn place(&self) -> Option<&'a Path> {
        (!self.is_taken).then_some(self.list)
    }

    /// Says so if the list of other data than that of the report is not there any more.
    pub(crate) fn note_what_is_gone(&self, report: &Report) {
        let Some(data) = self.data.as_deref() else { return };
        if report.files.iter().any(|file| file.name == data) {
            return;
        }
        let gone = if report.listed_lines() > 0 { "is replaced" } else { "was removed" };
        let (list, data) = (self.list.display().to_string(), escape(data));
        note(&format!("{}: the earlier list, of rejected lines of {data}, {gone}", escape(&list)));
    }

    /// Returns that the list could not be written because its name is taken.
    pub(crate) fn not_written(&self) -> Failure {
        let list = self.list.display().to_string();
        let text = format!(
            "{} exists and is not a list of rejected lines, so they are not written there",
            escape(&list)
        );
        Failure::usage(text).hint("Choose another path with --rejected")
    }
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
