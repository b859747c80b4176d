//! Reads the contents of the page from a run folder, once, and writes the finished page to its file.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use serde::de::DeserializeOwned;
use sparktune_app::comparison::store::of_base_and_run;
use sparktune_app::shell::run_argument;
use sparktune_compare::Comparison;
use sparktune_data::Report;
use sparktune_plan::Plan;
use sparktune_plan::elsewhere::Elsewhere;
use sparktune_runlog::{EventTailer, Limit, Liveness, RunDir, RunView, in_words, now_us};

use super::times::Times;

/// The largest number of bytes read from a file; the program's own files are far smaller.
const MOST_BYTES: u64 = 4 << 20;
/// The end of a page's title, by which pages are recognised.
pub(super) const TITLE_END: &str = " · sparktune";
/// The number of bytes of a page in which its title ends.
const HEAD_BYTES: u64 = 16 << 10;
/// The largest number of problems found in the log that are listed.
const MOST_NOTES: usize = 20;

/// A part of the run folder, or a sentence that says why it is missing.
pub type Part<T> = Result<T, String>;

/// Everything the page shows.
#[derive(Debug, Clone)]
pub struct ReportInput {
    /// The run's name.
    pub name: String,
    /// The argument that `sparktune watch` takes for this run.
    pub argument: String,
    /// The run folded from its events, as far as they could be read.
    pub view: RunView,
    /// Measured times of all attempts.
    pub times: Times,
    /// The state of the trainer.
    pub liveness: Part<Liveness>,
    /// The problems found in the log, one sentence each.
    pub notes: Vec<String>,
    /// The contents of `plan.toml`.
    pub plan: Part<Plan>,
    /// The contents of `data/report.json`.
    pub data: Part<Report>,
    /// The contents of `provenance.json`.
    pub provenance: Part<serde_json::Value>,
    /// The contents of `outputs/SERVE.md`.
    pub serve: Part<String>,
    /// The newest comparison of the run with the model that it started from.
    pub comparison: Option<Comparison>,
    /// The files and folders in `outputs/`.
    pub outputs: Vec<OnDisk>,
    /// The names of the checkpoints that still exist.
    pub checkpoints: BTreeSet<String>,
    /// The time of reading, in microseconds since the Unix epoch.
    pub read_us: u64,
    /// Another machine; the page then says what the job would have taken there.
    pub elsewhere: Option<Elsewhere>,
}

/// A file or folder, and its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnDisk {
    /// Its name.
    pub name: String,
    /// The size in bytes; for a folder, that of all files in it.
    pub bytes: u64,
}

impl ReportInput {
    /// Reads a run. A part that cannot be read is replaced by a sentence that says why.
    pub fn read(run: &RunDir) -> Self {
        let mut input = ReportInput {
            name: run.name(),
            argument: run_argument(run),
            view: RunView::default(),
            times: Times::default(),
            liveness: Ok(Liveness::NotStarted),
            notes: Vec::new(),
            plan: text_of(&run.plan()).and_then(|text| {
                Plan::from_toml(&text, "plan.toml").map_err(|error| {
                    format!("The plan was written by another version of sparktune, or was edited: {error}")
                })
            }),
            data: json_of(&run.data().join("report.json")),
            provenance: json_of(&run.provenance()),
            serve: text_of(&run.outputs().join("SERVE.md")),
            comparison: run.path().parent().and_then(|runs| of_base_and_run(runs, &run.name())),
            outputs: listed(&run.outputs())
                .into_iter()
                .map(|(name, path)| OnDisk { bytes: size_of(&path), name })
                .collect(),
            checkpoints: listed(&run.checkpoints()).into_iter().map(|(name, _)| name).collect(),
            read_us: now_us(),
            elsewhere: None,
        };
        let mut tailer = EventTailer::new(run);
        input.read_events(&mut tailer);
        input.liveness = input.view.liveness(run).map_err(|error| error.to_string());
        if !input.is_live() {
            // The last events may have been logged between reading the log and checking the state.
            input.read_events(&mut tailer);
            input.liveness = input.view.liveness(run).map_err(|error| error.to_string());
        }
        input
    }

    /// Returns whether a trainer is running.
    pub(super) fn is_live(&self) -> bool {
        self.liveness.as_ref().is_ok_and(|liveness| liveness.is_live())
    }

    fn read_events(&mut self, tailer: &mut EventTailer) {
        loop {
            let batch = match tailer.poll(Limit::default()) {
                Ok(batch) => batch,
                Err(error) => return self.note(error.to_string()),
            };
            for record in &batch.records {
                self.view.apply(&record.event);
                self.times.add(&record.event);
            }
            for notice in &batch.notices {
                self.note(notice.to_string());
            }
            if batch.at_end {
                return;
            }
        }
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < MOST_NOTES && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

fn json_of<T: DeserializeOwned>(path: &Path) -> Part<T> {
    let text = text_of(path)?;
    serde_json::from_str(&text).map_err(|error| {
        format!("{} was written by another version of sparktune, or is damaged: {error}", name_of(path))
    })
}

fn text_of(path: &Path) -> Part<String> {
    let read = || {
        // Reading a named pipe could block for ever, so only regular files are read.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is not a file"));
        }
        let mut text = String::new();
        File::open(path)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MOST_BYTES {
            return Err(io::Error::other("it is much larger than any that sparktune writes"));
        }
        Ok(text)
    };
    read().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("There is no {} in this run folder.", name_of(path)),
        _ => format!("{} cannot be read: {}.", name_of(path), in_words(&error)),
    })
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Lists the folder's entries by name, or none when it cannot be listed.
fn listed(folder: &Path) -> Vec<(String, std::path::PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(super::MOST_ROWS);
    let mut entries: Vec<_> = entries.map(|entry| (name_of(&entry.path()), entry.path())).collect();
    entries.sort();
    entries
}

/// Returns the size in bytes of a file, or of all files in a folder and its subfolders. Symbolic links count
/// as 0.
fn size_of(path: &Path) -> u64 {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => listed(path).iter().map(|(_, path)| size_of(path)).sum(),
        Ok(meta) if meta.is_file() => meta.len(),
        _ => 0,
    }
}

/// Returns whether a file begins like a page.
///
/// # Errors
/// The file cannot be read.
pub fn is_page(path: &Path) -> io::Result<bool> {
    let mut start = Vec::new();
    File::open(path)?.take(HEAD_BYTES).read_to_end(&mut start)?;
    let title = format!("{TITLE_END}</title>");
    let is_ours = |text: &str| text.starts_with("<!DOCTYPE html>") && text.contains(&title);
    Ok(is_ours(&String::from_utf8_lossy(&start)))
}

/// Writes the page to a temporary file in the same folder and then renames it, so that a browser never reads
/// half of it. Only its owner may read it, because it shows the user's data.
///
/// # Errors
/// The folder does not exist or cannot be written, or `path` is a folder.
pub fn write_page(path: &Path, html: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The temporary file has mode 0600 from the beginning.
    let mut file = tempfile::Builder::new().prefix(".report-").tempfile_in(folder)?;
    file.write_all(html.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}
