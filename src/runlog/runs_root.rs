//! The folder of the runs: new names, the list, and finding a run by name.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use time::OffsetDateTime;
use time::macros::format_description;

use crate::error::{Doing, Error, Result};
use crate::new_run::{NewRun, remove_abandoned};
use crate::run_dir::{RunDir, random_hex, run_of};

const LABEL_CHARS: usize = 48;

/// A folder of runs. It need not exist before the first run.
#[derive(Debug, Clone)]
pub struct RunsRoot {
    path: PathBuf,
}

impl RunsRoot {
    /// Creates the value for the folder at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        RunsRoot { path: path.into() }
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins the run `<utc>-<label>-<method>-<rand4>/`, which is in the list only when it is finished.
    /// `label` is the model's id or a name that the user chose; characters that are unsafe in a path or on a
    /// terminal become `-`. Removes the unfinished runs of killed processes.
    ///
    /// # Errors
    /// [`Error::Io`] when the folder cannot be created.
    pub fn begin(&self, label: &str, method: &str) -> Result<NewRun> {
        fs::create_dir_all(&self.path).doing("create", &self.path)?;
        remove_abandoned(&self.path);
        let utc = OffsetDateTime::now_utc()
            .format(format_description!("[year][month][day]T[hour][minute][second]Z"))
            .expect("the current time has a calendar form");
        let stem = format!("{utc}-{}-{}", safe_name(label), safe_name(method));
        loop {
            if let Some(new) = NewRun::begin(self.path.join(format!("{stem}-{}", random_hex::<2>())))? {
                return Ok(new);
            }
        }
    }

    /// Creates a run without a plan and data.
    ///
    /// # Errors
    /// As [`begin`](Self::begin) and [`NewRun::finish`].
    pub fn create(&self, label: &str, method: &str) -> Result<RunDir> {
        self.begin(label, method)?.finish()
    }

    /// Lists all runs, oldest first. Other files and hidden folders, which are being made or deleted, or
    /// belong to ranks, are skipped; a missing root has no runs. A folder that this user may not read is
    /// in the list, so that it does not seem to be missing; reading it returns the error. A link is a run,
    /// because a run may have been moved to another disk, if this user or the owner of the root has made
    /// it.
    ///
    /// # Errors
    /// [`Error::Io`] when the folder cannot be listed.
    pub fn list(&self) -> Result<Vec<RunDir>> {
        let entries = match fs::read_dir(&self.path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.doing("list", &self.path)?,
        };
        let trusted = self.trusted()?;
        let mut paths = Vec::new();
        for entry in entries {
            let entry = entry.doing("list", &self.path)?;
            let is_link = entry.file_type().doing("list", &self.path)?.is_symlink();
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                // On some disks, that of a successor stays hidden for a while.
                let is_successor = || RunDir::open(entry.path()).is_ok_and(|run| run.is_successor());
                if is_link || run_of(&entry.path()).is_none() || !is_successor() {
                    continue;
                }
            }
            // Anyone may be able to make a link in a shared folder, which `latest` would lead through.
            if !is_link || is_made_by(&entry.path(), trusted) {
                paths.push(entry.path());
            }
        }
        paths.sort();
        Ok(paths.into_iter().filter_map(listed).collect())
    }

    /// Returns this user and the owner of the root.
    pub(crate) fn trusted(&self) -> Result<[u32; 2]> {
        Ok([geteuid().as_raw(), fs::metadata(&self.path).doing("list", &self.path)?.uid()])
    }

    /// Finds a run by a folder's path, `latest`, the name of its folder, the name that the user chose for it,
    /// or a unique prefix of the folder's name, with or without its date (`20261120T13`, `qwen3.5-2b-lora`).
    /// A whole name wins over a prefix: `a` is the run `a`, even if there is a run `ab`.
    ///
    /// # Errors
    /// [`Error::NoRuns`], [`Error::NoSuchRun`], or [`Error::Ambiguous`] with the candidates.
    pub fn resolve(&self, name: &str) -> Result<RunDir> {
        // `./x`, `runs/x` and `/x` are paths. A plain name is first searched among the runs, even if the
        // working directory contains such a file.
        if name.contains('/') || name == "." {
            return RunDir::open(name);
        }
        let mut runs = self.list()?;
        if name == "latest" {
            // The newest of those that this user may read. In a shared folder anyone can give a run a name
            // that makes it the newest, so those of others count only where there is no other.
            runs.retain(|run| run.events().is_dir());
            let newest = runs.last().cloned().ok_or_else(|| Error::NoRuns { root: self.path.clone() })?;
            let trusted = self.trusted()?;
            return Ok(runs.into_iter().rfind(|run| is_made_by(run.path(), trusted)).unwrap_or(newest));
        }
        if let Some(exact) = runs.iter().find(|run| run.name() == name) {
            return Ok(exact.clone());
        }
        runs.retain(|run| may_be_called(&run.name(), name));
        let label = safe_name(name);
        let wholes: [&dyn Fn(&str) -> bool; 2] =
            [&|run| without_date(run).is_some_and(|rest| rest == name), &|run| {
                label_of(run) == Some(label.as_str())
            }];
        for is_whole in wholes {
            if runs.iter().any(|run| is_whole(&run.name())) {
                runs.retain(|run| is_whole(&run.name()));
            }
        }
        match runs.len() {
            1 => Ok(runs.swap_remove(0)),
            0 => RunDir::open(name)
                .map_err(|_| Error::NoSuchRun { name: name.to_owned(), root: self.path.clone() }),
            _ => Err(Error::Ambiguous {
                name: name.to_owned(),
                candidates: runs.iter().map(RunDir::name).collect(),
            }),
        }
    }
}

/// Returns whether a user may mean the run with this folder's name by `name`: a prefix of it, with or without
/// its date.
pub fn may_be_called(run: &str, name: &str) -> bool {
    let begins = |text: &str| text.starts_with(name);
    let run = run_of(Path::new(run)).unwrap_or(run);
    !name.is_empty() && (begins(run) || without_date(run).is_some_and(begins))
}

/// Returns the label in the name of a run's folder: the name that the user chose, or that of the model.
/// `None` if the folder was renamed.
pub fn label_of(run: &str) -> Option<&str> {
    // Behind the label are the method and the random digits.
    without_date(run)?.rsplitn(3, '-').nth(2)
}

fn without_date(run: &str) -> Option<&str> {
    run.split_once("Z-").map(|(_, rest)| rest)
}

/// Returns whether one of these users has made a file, folder or link.
pub(crate) fn is_made_by(path: &Path, users: [u32; 2]) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| users.contains(&found.uid()))
}

fn listed(path: PathBuf) -> Option<RunDir> {
    match RunDir::open(&path) {
        Ok(run) => Some(run),
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Some(RunDir::unseen(path))
        }
        Err(_) => None,
    }
}

/// Returns the last part of a model id or path in characters that are safe in a file name and on a terminal.
fn safe_name(label: &str) -> String {
    let last = label.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let mut name = String::new();
    for c in last.chars().take(LABEL_CHARS) {
        match c.to_ascii_lowercase() {
            c if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') => name.push(c),
            _ if name.is_empty() || name.ends_with('-') => {}
            _ => name.push('-'),
        }
    }
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() { "model".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_time_model_method_and_four_random_digits() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path().join("runs")).create("Qwen/Qwen3.5-2B", "lora").unwrap();
        let name = run.name();
        let (utc, rest) = name.split_once('-').unwrap();
        assert!(utc.len() == 16 && utc.ends_with('Z') && utc.contains('T'), "{name}");
        let random = rest.strip_prefix("qwen3.5-2b-lora-").unwrap();
        assert!(random.len() == 4 && random.chars().all(|c| c.is_ascii_hexdigit()), "{name}");
    }

    #[test]
    fn model_names_cannot_leave_the_root_or_touch_the_terminal() {
        assert_eq!(safe_name("../../etc/passwd"), "passwd");
        assert_eq!(safe_name(".."), "model");
        assert_eq!(safe_name("/"), "model");
        assert_eq!(safe_name("a\u{1b}[31m b\u{202e}"), "a-31m-b");
        assert_eq!(safe_name("-rf"), "rf");
        assert_eq!(safe_name(&"x".repeat(500)).len(), LABEL_CHARS);
    }

    #[test]
    fn a_run_is_found_by_path_prefix_label_and_latest() {
        let folder = tempfile::tempdir().unwrap();
        let root = RunsRoot::new(folder.path());
        assert!(root.list().unwrap().is_empty());
        assert!(matches!(root.resolve("latest"), Err(Error::NoRuns { .. })));
        for name in
            ["20260101T000000Z-a-lora-0001", "20260102T000000Z-a-full-0002", "20260103T000000Z-b-lora-0003"]
        {
            RunDir::create(folder.path().join(name)).unwrap();
        }
        fs::create_dir(folder.path().join("notes")).unwrap();
        assert_eq!(root.list().unwrap().len(), 3);
        let name = |query: &str| root.resolve(query).unwrap().name();
        assert_eq!(name("latest"), "20260103T000000Z-b-lora-0003");
        assert_eq!(name("20260102"), "20260102T000000Z-a-full-0002");
        assert_eq!(name("b"), "20260103T000000Z-b-lora-0003");
        assert_eq!(name("a-lora"), "20260101T000000Z-a-lora-0001");
        assert_eq!(name("20260101T000000Z-a-lora-0001"), "20260101T000000Z-a-lora-0001");
        let path = folder.path().join("20260101T000000Z-a-lora-0001");
        assert_eq!(name(path.to_str().unwrap()), "20260101T000000Z-a-lora-0001");
        for missing in ["zzz", "", "notes"] {
            assert!(matches!(root.resolve(missing), Err(Error::NoSuchRun { .. })), "{missing}");
        }
    }

    #[test]
    fn a_link_to_a_run_is_listed_unless_somebody_else_has_made_it() {
        let [runs, elsewhere] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let name = "20260101T000000Z-a-lora-0001";
        RunDir::create(elsewhere.path().join(name)).unwrap();
        let (root, link) = (RunsRoot::new(runs.path()), runs.path().join(name));
        std::os::unix::fs::symlink(elsewhere.path().join(name), &link).unwrap();
        assert_eq!(root.list().unwrap().len(), 1);
        assert_eq!(root.resolve("latest").unwrap().name(), name);
        if std::os::unix::fs::lchown(&link, Some(65_534), None).is_err() {
            println!("the rest is skipped: only root can give a link away");
            return;
        }
        assert!(root.list().unwrap().is_empty());
        assert!(root.resolve("latest").is_err());
        // A folder of somebody else is listed, and is the latest run only where there is no other.
        let [own, planted] = ["20260101T000000Z-b-lora-0001", "99990101T000000Z-c-lora-0001"];
        let planted = RunDir::create(runs.path().join(planted)).unwrap();
        std::os::unix::fs::lchown(planted.path(), Some(65_534), None).unwrap();
        assert_eq!(root.resolve("latest").unwrap().path(), planted.path());
        RunDir::create(runs.path().join(own)).unwrap();
        assert_eq!(root.resolve("latest").unwrap().name(), own);
        assert_eq!(root.list().unwrap().len(), 2);
    }

    #[test]
    fn a_whole_name_wins_over_a_prefix_of_others() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "20260101T000000Z-mine-lora-0001",
            "20260102T000000Z-mine-2-lora-0002",
            "20260103T000000Z-mine-lora-0001-full-0003",
            "20260104T000000Z-miner-lora-0004",
            "20260105T000000Z-twice-lora-0005",
            "20260106T000000Z-twice-full-0006",
            "20260107T000000Z-twice-more-full-0007",
        ] {
            RunDir::create(folder.path().join(name)).unwrap();
        }
        let root = RunsRoot::new(folder.path());
        let name = |query: &str| root.resolve(query).map(|run| run.name()[17..].to_owned());
        assert_eq!(name("mine").unwrap(), "mine-lora-0001");
        assert_eq!(name("mine-2").unwrap(), "mine-2-lora-0002");
        assert_eq!(name("mine-lora-0001").unwrap(), "mine-lora-0001");
        assert_eq!(name("miner").unwrap(), "miner-lora-0004");
        let Err(Error::Ambiguous { candidates, .. }) = name("min") else { panic!("four begin so") };
        assert_eq!(candidates.len(), 4);
        let Err(Error::Ambiguous { candidates, .. }) = name("twice") else { panic!("two are called so") };
        assert_eq!(candidates.len(), 2);
    }

    #[test]
    fn an_ambiguous_name_lists_its_candidates() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["20260101T000000Z-a-lora-0001", "20260102T000000Z-a-full-0002"] {
            RunDir::create(folder.path().join(name)).unwrap();
        }
        let error = RunsRoot::new(folder.path()).resolve("2026").unwrap_err().to_string();
        assert!(error.contains("matches 2 runs"), "{error}");
        assert!(error.contains("20260101T000000Z-a-lora-0001\n  20260102T000000Z-a-full-0002"), "{error}");
    }
}
