//! Deletes a run. It never deletes a run that is being trained or a folder that is not a run, and reports an
//! incomplete deletion.
//!
//! The folder is first renamed to a hidden name and then emptied, so a kill in between never leaves an
//! incomplete run in the list. Links inside are removed, not followed.

use std::path::Path;
use std::{fs, io};

use crate::error::{Doing, Error, Result};
use crate::lease::Lease;
use crate::run_dir::{RunDir, random_hex};

/// The prefix of the name of a folder that is being deleted. [`crate::RunsRoot::list`] skips hidden names.
const DELETED: &str = ".deleted-";

impl RunDir {
    /// Deletes the run with everything in it. Returns the bytes freed.
    ///
    /// # Errors
    /// [`Error::AlreadyRunning`] while it is being trained; [`Error::NotDeletable`] for a link, or a folder
    /// that does not look like a run; [`Error::HalfDeleted`] names the rest that could not be removed;
    /// [`Error::Io`] when nothing could be changed.
    pub fn delete(self) -> Result<u64> {
        self.delete_with(|folder| fs::remove_dir_all(folder))
    }

    fn delete_with(self, remove: impl FnOnce(&Path) -> io::Result<()>) -> Result<u64> {
        let path = self.path().to_owned();
        let refuse = |reason: &str| Err(Error::NotDeletable { path: path.clone(), reason: reason.into() });
        if fs::symlink_metadata(&path).doing("delete", &path)?.is_symlink() {
            return refuse("it is a link; delete the run at its real location");
        }
        let here = |part: &Path| fs::symlink_metadata(part).is_ok_and(|meta| !meta.is_symlink());
        if !(here(&self.events()) && self.events().is_dir() && here(&self.plan()) && self.plan().is_file()) {
            return refuse("it has no plan.toml and events/, so it may not be a run");
        }
        // The lease is held to the end, so that no trainer starts in a folder that is being deleted.
        let _lease = Lease::acquire(&self)?;
        let bytes = self.size_bytes();
        let whole = fs::canonicalize(&path).doing("delete", &path)?;
        let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else {
            return refuse("it is the root of the file system");
        };
        let doomed = parent.join(format!("{DELETED}{}-{}", name.to_string_lossy(), random_hex::<4>()));
        fs::rename(&whole, &doomed).doing("delete", &path)?;
        remove(&doomed).map_err(|source| {
            let left = RunDir::size_of(&doomed);
            Error::HalfDeleted { run: path, left_in: doomed, left_bytes: left, source }
        })?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::runs_root::RunsRoot;

    fn run(root: &Path) -> RunDir {
        let run = RunsRoot::new(root.join("runs")).create("m", "lora").unwrap();
        run.write_plan("seed = 1\n").unwrap();
        fs::write(run.checkpoints().join("weights"), [7; 1000]).unwrap();
        run
    }

    fn names(root: &Path) -> usize {
        fs::read_dir(root.join("runs")).unwrap().count()
    }

    #[test]
    fn a_deleted_run_is_gone_whole_and_what_its_links_point_at_stays() {
        let root = tempfile::tempdir().unwrap();
        let run = run(root.path());
        let outside = root.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("data.jsonl"), "mine").unwrap();
        symlink(&outside, run.data().join("link")).unwrap();
        symlink(outside.join("data.jsonl"), run.data().join("file")).unwrap();
        let freed = run.delete().unwrap();
        assert!((1000..2000).contains(&freed), "{freed}");
        assert_eq!(names(root.path()), 0);
        assert_eq!(fs::read_to_string(outside.join("data.jsonl")).unwrap(), "mine");
    }

    #[test]
    fn a_run_that_is_being_trained_is_refused_and_untouched() {
        let root = tempfile::tempdir().unwrap();
        let run = run(root.path());
        let lease = Lease::acquire(&run).unwrap();
        assert!(matches!(run.clone().delete(), Err(Error::AlreadyRunning { .. })));
        assert!(run.checkpoints().join("weights").is_file() && run.path().is_dir());
        drop(lease);
        run.delete().unwrap();
    }

    #[test]
    fn a_folder_that_is_no_run_and_a_link_to_one_are_refused_and_untouched() {
        let root = tempfile::tempdir().unwrap();
        let other = root.path().join("project");
        fs::create_dir_all(other.join("events")).unwrap();
        let error = RunDir::open(&other).unwrap().delete().unwrap_err();
        assert!(error.to_string().contains("may not be a run"), "{error}");
        assert!(other.join("events").is_dir());

        // Somebody else's plan and events, linked into a folder.
        let run = run(root.path());
        symlink(run.plan(), other.join("plan.toml")).unwrap();
        assert!(matches!(RunDir::open(&other).unwrap().delete(), Err(Error::NotDeletable { .. })));

        let link = root.path().join("link");
        symlink(run.path(), &link).unwrap();
        let error = RunDir::open(&link).unwrap().delete().unwrap_err();
        assert!(error.to_string().contains("it is a link"), "{error}");
        assert!(run.checkpoints().join("weights").is_file());
    }

    #[test]
    fn what_could_not_be_removed_is_named_and_is_no_run_any_more() {
        let root = tempfile::tempdir().unwrap();
        let run = run(root.path());
        let name = run.name();
        let error = run
            .delete_with(|folder| {
                fs::remove_file(folder.join("plan.toml"))?;
                Err(io::ErrorKind::PermissionDenied.into())
            })
            .unwrap_err();
        let Error::HalfDeleted { left_in, left_bytes, .. } = &error else { panic!("{error}") };
        assert!(left_in.is_dir() && *left_bytes >= 1000);
        assert!(error.to_string().contains("permission denied") && error.to_string().contains(".deleted-"));
        let runs = RunsRoot::new(root.path().join("runs"));
        assert!(runs.list().unwrap().is_empty());
        assert!(matches!(runs.resolve(&name), Err(Error::NoSuchRun { .. })));
    }
}
