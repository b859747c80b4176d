//! The list of rejected lines that `check` and `pack` write: what it replaces, and what is said of it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use sparktune_app::failure::Failure;
use sparktune_base::escape::escape;
use sparktune_base::units::{count, counted};
use sparktune_data::{Kind, Place, Rejected, RejectedList, Report, is_list_of_rejected, list_is_taken};
use sparktune_tui::output::note;

/// The largest number of reasons on the screen, and of rejected lines and their bytes that are read for them.
const REASONS: usize = 20;
/// The largest number of examples over the limit on tokens among them. They differ in their lengths alone,
/// and the report counts them.
const TOO_LONG: usize = 3;
const READ: usize = 1000;
const READ_BYTES: usize = 16 << 20;

/// The number of lines of an earlier list that are read at a time.
const PAGE: usize = 1000;

/// What is in the place of the list before a command writes it.
pub(crate) struct Before<'a> {
    list: &'a Path,
    /// The files that an earlier list is of.
    data: Vec<String>,
    is_taken: bool,
}

impl<'a> Before<'a> {
    /// Looks at the place of the list.
    pub(crate) fn at(list: &'a Path) -> Self {
        let is_list = is_list_of_rejected(list);
        let data = if is_list { files_of(list) } else { Vec::new() };
        // One that cannot be read is an error of whoever writes it.
        let is_taken = list.is_file() && !is_list && File::open(list).is_ok();
        Self { list, data, is_taken }
    }

    /// Returns where to write the list: nowhere if a file of the user's has its name.
    pub(crate) fn place(&self) -> Option<&'a Path> {
        (!self.is_taken).then_some(self.list)
    }

    /// Says so if the list of other data than that of the report is not there any more.
    pub(crate) fn note_what_is_gone(&self, report: &Report) {
        let whole = |name: &str| Path::new(name).canonicalize().unwrap_or_else(|_| name.into());
        let now: Vec<PathBuf> = report.files.iter().map(|file| whole(&file.name)).collect();
        let gone: Vec<&str> =
            self.data.iter().map(String::as_str).filter(|file| !now.contains(&whole(file))).collect();
        let data = match gone[..] {
            [] => return,
            [file] => file.to_owned(),
            [file, ..] => format!("{file} and {}", counted(gone.len() as u64 - 1, "other file")),
        };
        let what = if report.listed_lines() > 0 { "is replaced" } else { "was removed" };
        note(&format!("{}: the earlier list, of rejected lines of {data}, {what}", self.list.display()));
    }

    /// Returns that the list could not be written because its name is taken.
    pub(crate) fn not_written(&self) -> Failure {
        list_is_taken(self.list).into()
    }
}

/// Returns the files whose lines are in a list, as far as it can be read.
fn files_of(list: &Path) -> Vec<String> {
    let mut files: Vec<String> = Vec::new();
    let Ok(mut list) = RejectedList::open(list) else { return files };
    let mut read = 0;
    while let Ok(page) = list.page(read, PAGE, 0)
        && !page.is_empty()
    {
        read += page.len() as u64;
        for line in page {
            if files.last() != Some(&line.rejected.file) && !files.contains(&line.rejected.file) {
                files.push(line.rejected.file);
            }
        }
    }
    files
}

/// Leaves out the list that an earlier command wrote to `rejected`: `*.jsonl` names it together with the data
/// beside it. A list that is named alone stays, and is refused as data. Another file of this name is data to
/// `check`, which then writes no list, and refused by `pack`.
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
