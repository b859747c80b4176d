//! Comparisons that were made, each one private file of JSON next to the runs.
//!
//! The name of a file is made here and is the comparison's id. What is asked for by id is looked up in the
//! list of files, so that an id never leads anywhere else.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::SystemTime;

use rustix::process::geteuid;
use serde::Serialize;
use sparktune_base::escape::escape;
use sparktune_base::files::{create_private_folder, is_private_folder, write_shared_and_sync};
use sparktune_base::random::mix;
use sparktune_base::regular_file::read_regular;
use sparktune_compare::{Comparison, VERSION, Verdict};
use sparktune_runlog::now_us;

use crate::failure::{Exit, Failure};

/// The name of the folder, for the user who is there first.
const FOLDER: &str = ".comparisons";
/// The most bytes of a file.
const MOST_BYTES: u64 = 256 << 20;

/// A comparison in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Its id.
    pub id: String,
    /// The time of its end, in microseconds since the Unix epoch.
    pub created_us: u64,
    /// The name of its suite.
    pub suite: String,
    /// The number of its prompts.
    pub prompts: usize,
    /// The names of its models.
    pub models: Vec<String>,
    /// The verdict on each model after the first, by the most telling measure.
    pub verdicts: Vec<Verdict>,
}

impl Listed {
    fn of(comparison: &Comparison) -> Self {
        let names = || comparison.models.iter().map(|model| model.model.name.as_str());
        let verdict = |name| comparison.differences_of(name).next().map(|difference| difference.verdict);
        Self {
            id: comparison.id.clone(),
            created_us: comparison.created_us,
            suite: comparison.suite.clone(),
            prompts: comparison.prompts.len(),
            models: names().map(str::to_owned).collect(),
            verdicts: names().skip(1).filter_map(verdict).collect(),
        }
    }
}

/// Returns this user's folder of comparisons in a folder of runs. As that of tokens, it is one that nobody
/// else can write to.
fn folder(runs_dir: &Path) -> [PathBuf; 2] {
    [runs_dir.join(FOLDER), runs_dir.join(format!("{FOLDER}-{}", geteuid().as_raw()))]
}

/// Keeps a comparison, and gives it its id.
///
/// # Errors
/// The file cannot be written. Then it has no id.
pub fn keep(runs_dir: &Path, comparison: &mut Comparison) -> Result<(), Failure> {
    let place = folder(runs_dir).into_iter().find_map(|path| {
        if fs::symlink_metadata(&path).is_err()
            && let Err(error) = fs::create_dir_all(runs_dir).and_then(|()| create_private_folder(&path))
        {
            return Some(Err(Failure::io("create", &path, &error)));
        }
        is_private_folder(&path).then_some(Ok(path))
    });
    let place = place.unwrap_or_else(|| {
        let text = format!(
            "the comparison cannot be kept in {}, because {FOLDER} there is a link, belongs to another user, or can be written to by them",
            runs_dir.display()
        );
        Err(Failure::new(Exit::Usage, text).hint("Choose another folder with --runs-dir, or remove it"))
    })?;
    let suite: String = comparison.suite.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
    let suite = if suite.is_empty() { "suite".to_owned() } else { suite.to_lowercase() };
    let random = mix(now_us() ^ (u64::from(std::process::id()) << 32)) & 0xffff;
    comparison.id = format!("{}-{suite}-{random:04x}", comparison.created_us / 1_000_000);
    write(&place, comparison).inspect_err(|_| comparison.id.clear())
}

fn write(place: &Path, comparison: &Comparison) -> Result<(), Failure> {
    let path = place.join(format!("{}.json", comparison.id));
    let json = serde_json::to_vec_pretty(comparison).expect("a comparison is JSON");
    write_shared_and_sync(&path, json).map_err(|error| Failure::io("write", &path, &error))
}

/// What is listed of files that were read, with their length and the time of their last change: a list is
/// asked for again and again, and a file may have thousands of answers.
static READ: LazyLock<Mutex<HashMap<PathBuf, (Signature, Listed)>>> = LazyLock::new(Mutex::default);
type Signature = (u64, Option<SystemTime>);
/// The number of files that are remembered.
const REMEMBERED: usize = 1000;

/// Lists the comparisons next to the runs, the newest first. A file that is none is left out.
pub fn list(runs_dir: &Path) -> Vec<Listed> {
    let mut listed: Vec<Listed> =
        files(runs_dir).into_iter().filter_map(|(_, path)| listed_of(path)).collect();
    listed.sort_by(|a, b| b.created_us.cmp(&a.created_us).then_with(|| b.id.cmp(&a.id)));
    listed
}

/// Returns what is listed of a file; `None` if it is no comparison.
fn listed_of(path: PathBuf) -> Option<Listed> {
    let found = fs::symlink_metadata(&path).ok()?;
    let signature = (found.len(), found.modified().ok());
    let read = || READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((known, listed)) = read().get(&path)
        && *known == signature
    {
        return Some(listed.clone());
    }
    let listed = Listed::of(&open(&path).ok()?);
    let mut remembered = read();
    if remembered.len() >= REMEMBERED {
        remembered.clear();
    }
    remembered.insert(path, (signature, listed.clone()));
    Some(listed)
}

/// Returns whether there is a comparison of this id.
pub fn is_kept(runs_dir: &Path, id: &str) -> bool {
    files(runs_dir).iter().any(|(known, _)| known == id)
}

/// Reads the comparison of this id.
///
/// # Errors
/// There is none, or its file cannot be read.
pub fn read(runs_dir: &Path, id: &str) -> Result<Comparison, Failure> {
    open(&path_of(runs_dir, id)?)
}

/// Returns the newest comparison of a run with the model that it started from.
pub fn of_base_and_run(runs_dir: &Path, run: &str) -> Option<Comparison> {
    let (base, tuned) = (format!("run:{run}@base"), format!("run:{run}"));
    let comparisons = files(runs_dir).into_iter().filter_map(|(_, path)| open(&path).ok());
    let wanted = |comparison: &Comparison| {
        let ids: Vec<&String> = comparison.models.iter().map(|model| &model.model.id).collect();
        ids == [&base, &tuned]
    };
    comparisons.filter(wanted).max_by_key(|comparison| comparison.created_us)
}

/// Deletes the comparison of this id.
///
/// # Errors
/// There is none, or it cannot be deleted.
pub fn delete(runs_dir: &Path, id: &str) -> Result<(), Failure> {
    let path = path_of(runs_dir, id)?;
    fs::remove_file(&path).map_err(|error| Failure::io("delete", &path, &error))
}

/// Returns the ids of all files with their paths.
fn files(runs_dir: &Path) -> Vec<(String, PathBuf)> {
    let places = folder(runs_dir).into_iter().filter(|place| is_private_folder(place));
    let entries = places.filter_map(|place| fs::read_dir(place).ok()).flatten().filter_map(Result::ok);
    let files = entries.filter_map(|entry| {
        let id = entry.file_name().into_string().ok()?.strip_suffix(".json")?.to_owned();
        Some((id, entry.path()))
    });
    files.collect()
}

fn path_of(runs_dir: &Path, id: &str) -> Result<PathBuf, Failure> {
    let found = files(runs_dir).into_iter().find(|(known, _)| known == id).map(|(_, path)| path);
    found.ok_or_else(|| Failure::usage(format!("there is no comparison '{}'", escape(id))))
}

fn open(path: &Path) -> Result<Comparison, Failure> {
    let bytes = read_regular(path, MOST_BYTES).map_err(|error| Failure::io("read", path, &error))?;
    let damaged = |what: String| Failure::usage(format!("{}: {what}", path.display()));
    let mut comparison: Comparison = serde_json::from_slice(&bytes)
        .map_err(|error| damaged(format!("this is not a comparison: {error}")).hint("Delete it"))?;
    if comparison.version > VERSION {
        let text =
            format!("this comparison has version {}, which is newer than this program", comparison.version);
        return Err(damaged(text).hint("Open it with a newer sparktune"));
    }
    // The name of the file is the id, whatever a file that was copied or changed says of itself.
    comparison.id = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(comparison)
}
