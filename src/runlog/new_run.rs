//! A run folder while it is being made.
//!
//! It has a hidden name, which no list shows, until everything that a run needs is in it. If the process is
//! killed before, only the hidden folder is left, and the next new run of this root removes it. A lock on the
//! folder shows that it is still being made; the kernel drops the lock when the process ends.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
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
        match RunDir::create(hidden) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists => Ok(None),
            Err(Error::Io { source, .. }) if is_removed(&source, root) => Ok(None),
            created => Self::lock(created?, path),
        }
    }

    /// Locks the hidden folder of the run that will be at `path`. Returns `None` if another process took the
    /// folder for an abandoned one before it was locked, and has removed it or a part of it.
    fn lock(run: RunDir, path: PathBuf) -> Result<Option<Self>> {
        let hidden = run.path();
        let lock = match File::open(hidden) {
            Err(error) if is_removed(&error, hidden.parent().unwrap_or(hidden)) => return Ok(None),
            opened => opened.doing("open", hidden)?,
        };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked.doing("lock", hidden)?,
        }
        let is_whole = run.parts().iter().all(|part| part.is_dir());
        Ok(is_whole.then_some(Self { run, path, is_finished: false, _lock: lock }))
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

/// Returns whether an error says that a hidden folder no longer exists, although the root does.
fn is_removed(error: &io::Error, root: &Path) -> bool {
    error.kind() == ErrorKind::NotFound && root.is_dir()
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

    #[test]
    fn a_folder_that_another_process_removed_before_it_was_locked_is_replaced_by_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let create = |name: &str| RunDir::create(folder.path().join(name)).unwrap();
        let lock = |run: RunDir| NewRun::lock(run, folder.path().join("r"));
        assert!(lock(create(".new-a")).unwrap().is_some());

        let removed = create(".new-b");
        fs::remove_dir_all(removed.path()).unwrap();
        assert!(lock(removed).unwrap().is_none());
        // The other process may get as far as this, and then find that the folder is not empty.
        for part in create(".new-c").parts() {
            let damaged = create(&format!(".new-{}", part.file_name().unwrap().to_str().unwrap()));
            fs::remove_dir(damaged.path().join(part.file_name().unwrap())).unwrap();
            assert!(lock(damaged).unwrap().is_none());
        }
        // Without the root, this is an error.
        let lost = create(".new-d");
        fs::remove_dir_all(folder.path()).unwrap();
        assert!(matches!(lock(lost), Err(Error::Io { .. })));
    }

    #[test]
    fn many_runs_that_begin_at_once_in_one_folder_are_all_created() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| {
                    for _ in 0..20 {
                        RunsRoot::new(folder.path()).create("m", "lora").unwrap();
                    }
                });
            }
        });
        assert_eq!(RunsRoot::new(folder.path()).list().unwrap().len(), 160);
        // Two may have been in each other's way, and the next one tidies up.
        remove_abandoned(folder.path());
        assert!(hidden(folder.path()).is_empty());
    }
}
