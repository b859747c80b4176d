//! A run folder while it is being made.
//!
//! It has a hidden name, which no list shows, until everything that a run needs is in it. If the process is
//! killed before, only the hidden folder is left, and the next new run of this root removes it. A lock on the
//! folder shows that it is still being made; the kernel drops the lock when the process ends.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sparktune_base::files::sync;

use crate::error::{Doing, Error, Result};
use crate::run_dir::RunDir;

/// The prefix of the hidden name. [`crate::RunsRoot::list`] skips hidden names.
const UNFINISHED: &str = ".new-";

/// A run that is not in the list yet. Dropping it removes its folder.
#[derive(Debug)]
pub struct NewRun {
    run: RunDir,
    path: PathBuf,
    is_finished: bool,
    _lock: File,
}

impl NewRun {
    /// Creates the hidden folder of the run that will be at `path`. Returns `None` if that name is taken.
    pub(crate) fn begin(path: PathBuf) -> Result<Option<Self>> {
        let (Some(root), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::NotARun { path });
        };
        if path.exists() {
            return Ok(None);
        }
        let hidden = root.join(format!("{UNFINISHED}{}", name.to_string_lossy()));
        let run = match RunDir::create(hidden.clone()) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => {
                return Ok(None);
            }
            created => created?,
        };
        let lock = File::open(&hidden).doing("open", &hidden)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            // Another process has just taken this folder, which was not locked yet, for an abandoned one.
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked.doing("lock", &hidden)?,
        }
        Ok(hidden.is_dir().then_some(Self { run, path, is_finished: false, _lock: lock }))
    }

    /// Returns the folder, to be filled.
    pub fn dir(&self) -> &RunDir {
        &self.run
    }

    /// Makes the run visible under its name. Its files must have been flushed to the disk; their names are
    /// flushed here.
    ///
    /// # Errors
    /// [`Error::Io`] when the folder cannot be flushed or renamed; it is removed then.
    pub fn finish(mut self) -> Result<RunDir> {
        for folder in [&self.run.data(), self.run.path()] {
            sync(folder).doing("flush to disk", folder)?;
        }
        fs::rename(self.run.path(), &self.path).doing("create", &self.path)?;
        self.is_finished = true;
        let root = self.path.parent().unwrap_or(Path::new("."));
        sync(root).doing("flush to disk", root)?;
        RunDir::open(&self.path)
    }
}

impl Drop for NewRun {
    fn drop(&mut self) {
        if !self.is_finished {
            // What cannot be removed now is removed by the next new run.
            let _ = fs::remove_dir_all(self.run.path());
        }
    }
}

/// Removes the folders of runs whose process ended before they were finished. One that cannot be removed, for
/// example another user's, stays: it is hidden and in nobody's way.
pub(crate) fn remove_abandoned(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_folder || !entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
            continue;
        }
        let Ok(folder) = File::open(entry.path()) else { continue };
        if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs_root::RunsRoot;

    fn hidden(root: &Path) -> Vec<PathBuf> {
        let names = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.file_name().unwrap().as_encoded_bytes().starts_with(b".new-")).collect()
    }

    #[test]
    fn a_run_is_in_the_list_only_when_it_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        let root = RunsRoot::new(folder.path());
        let new = root.begin("m", "lora").unwrap();
        new.dir().write_plan("seed = 1\n").unwrap();
        assert!(root.list().unwrap().is_empty());
        assert!(matches!(root.resolve("latest"), Err(Error::NoRuns { .. })));
        let run = new.finish().unwrap();
        assert_eq!(root.list().unwrap(), std::slice::from_ref(&run));
        assert_eq!(run.read_plan().unwrap(), "seed = 1\n");
        assert!(run.name().contains("-m-lora-") && !run.name().contains(".new"), "{}", run.name());
        assert!(hidden(folder.path()).is_empty());
    }

    #[test]
    fn a_run_that_is_given_up_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let new = RunsRoot::new(folder.path()).begin("m", "lora").unwrap();
        new.dir().write_plan("seed = 1\n").unwrap();
        drop(new);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_what_another_one_is_making_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let root = RunsRoot::new(folder.path());
        let other = root.begin("other", "lora").unwrap();
        // The kernel drops the lock of a killed process; its folder stays.
        let left = folder.path().join(".new-20260101T000000Z-m-lora-0001");
        RunDir::create(left.clone()).unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), folder.path().join(".new-link")).unwrap();

        root.create("next", "lora").unwrap();
        assert!(!left.exists());
        assert!(other.dir().path().is_dir() && outside.path().is_dir());
        other.finish().unwrap();
        assert_eq!(root.list().unwrap().len(), 2);
    }
}
