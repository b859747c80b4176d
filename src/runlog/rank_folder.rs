//! The folders of ranks other than 0, which are hidden next to the runs, and how one becomes a run: that of a
//! *successor*, a rank that has taken the place of rank 0 and goes on with the run.
//!
//! The folder of a successor gets the name of the run at once, so that the run is in the list and is watched
//! and stopped like any other. A link with the hidden name leads to it, because the process of the rank goes
//! on using the paths that it has. On a disk without links, the folder keeps the hidden name until the
//! process has ended.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use sparktune_base::files::{exchange, is_plain_name, write_shared_and_sync};
use sparktune_base::regular_file::read_regular;

use crate::error::{Doing, Error, Result};
use crate::lease::Lease;
use crate::run_dir::{EARLIER, RunDir, random_hex, run_of};
use crate::runs_root::{RunsRoot, is_made_by};

/// The file that marks the run of a successor.
const MARK: &str = "taken-over";
/// The most bytes of the list of earlier runs that are read.
const MOST_BYTES: u64 = 64 << 10;

impl RunsRoot {
    /// Opens or creates the hidden folder in which a rank other than 0 keeps its part of the run `name` of
    /// rank 0. If this rank was a successor in an earlier process, what it made stays a run, which is the
    /// second value.
    ///
    /// # Errors
    /// [`Error::NotARun`] when `name` is no name of a run; [`Error::AlreadyRunning`] when another process of
    /// this rank is a successor and trains; [`Error::Io`] when the folder cannot be created.
    pub fn of_rank(&self, name: &str, rank: usize) -> Result<(RunDir, Option<RunDir>)> {
        let path = self.path().join(format!(".rank-{rank}-of-{name}"));
        if !is_plain_name(name) {
            return Err(Error::NotARun { path });
        }
        fs::create_dir_all(self.path()).doing("create", self.path())?;
        let before = RunDir::open(&path).ok();
        let successor = before.filter(RunDir::is_successor).map(|run| self.named(&run)).transpose()?;
        if path.is_symlink() {
            // What it led to has been deleted, or is no successor.
            self.remove_link(&path)?;
        }
        let run = if path.exists() { RunDir::open(path) } else { RunDir::create(path) }?;
        Ok((run, successor))
    }

    /// Gives the folder of a successor its name, if it does not have it yet, and removes the link with the
    /// hidden one. Returns the run by its name.
    ///
    /// # Errors
    /// [`Error::AlreadyRunning`] while a process trains in it; [`Error::Io`] when it cannot be renamed.
    pub fn named(&self, successor: &RunDir) -> Result<RunDir> {
        if Lease::is_held(successor)? {
            let (run, holder) = (successor.path().to_owned(), Lease::holder_of(successor));
            return Err(Error::AlreadyRunning { run, holder });
        }
        let hidden = successor.path();
        if let Ok(target) = fs::read_link(hidden) {
            self.remove_link(hidden)?;
            return RunDir::open(self.path().join(target));
        }
        let Some(name) = successor.followed() else { return Ok(successor.clone()) };
        let path = free_name(self.path(), name);
        fs::rename(hidden, &path).doing("rename", hidden)?;
        RunDir::open(path)
    }

    /// Lists this user's runs of successors that go on with the run `name`.
    ///
    /// # Errors
    /// [`Error::Io`] when the folder cannot be listed.
    pub fn successors_of(&self, name: &str) -> Result<Vec<RunDir>> {
        let trusted = self.trusted()?;
        let mut runs = self.list()?;
        runs.retain(|run| run.is_successor() && is_made_by(run.path(), trusted));
        runs.retain(|run| run.continued().iter().any(|other| other == name));
        Ok(runs)
    }

    /// Lists the hidden folders of this user's ranks that are no runs.
    ///
    /// # Errors
    /// [`Error::Io`] when the folder cannot be listed.
    pub fn rank_folders(&self) -> Result<Vec<RunDir>> {
        let entries = match fs::read_dir(self.path()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.doing("list", self.path())?,
        };
        let folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let paths = folders.map(|entry| entry.path()).filter(|path| run_of(path).is_some());
        let trusted = self.trusted()?;
        let own = paths.filter(|path| is_made_by(path, trusted));
        let mut folders: Vec<RunDir> = own.filter_map(|path| RunDir::open(path).ok()).collect();
        folders.retain(|folder| !folder.is_successor());
        folders.sort_by(|one, other| one.path().cmp(other.path()));
        Ok(folders)
    }

    /// Removes a link, if this user or the owner of the runs has made it.
    fn remove_link(&self, path: &Path) -> Result<()> {
        if !is_made_by(path, self.trusted()?) {
            return Err(Error::NotARun { path: path.to_owned() });
        }
        fs::remove_file(path).doing("remove", path)
    }
}

impl RunDir {
    /// Returns the name of the run to which this hidden folder of a rank belongs; `None` for any other
    /// folder.
    pub fn followed(&self) -> Option<&str> {
        run_of(self.path())
    }

    /// Marks this folder of a rank as that of a successor, and gives it the name of the run, or one that
    /// begins with it if that is taken.
    ///
    /// # Errors
    /// [`Error::Io`] when the mark cannot be written.
    pub fn become_successor(&self) -> Result<()> {
        let hidden = self.path();
        let Some(name) = run_of(hidden).filter(|_| !hidden.is_symlink()) else { return Ok(()) };
        let mut earlier = self.continued();
        earlier.retain(|other| other != name);
        earlier.push(name.to_owned());
        let write = |file: &str, text: String| {
            let path = hidden.join(file);
            write_shared_and_sync(&path, text).doing("write", path)
        };
        write(EARLIER, earlier.join("\n"))?;
        write(MARK, "This rank took the place of rank 0.\n".to_owned())?;
        let path = free_name(hidden.parent().unwrap_or(Path::new("")), name);
        let Some(target) = path.file_name() else { return Ok(()) };
        // It leads to itself until the two have changed places.
        if symlink(target, &path).is_err() {
            return Ok(());
        }
        if !exchange(hidden, &path).unwrap_or(false) {
            let _ = fs::remove_file(&path);
            // For a moment, the process's own paths lead nowhere.
            if fs::rename(hidden, &path).is_ok() && symlink(target, hidden).is_err() {
                let _ = fs::rename(&path, hidden);
            }
        }
        Ok(())
    }

    /// Returns whether this is the run of a successor.
    pub fn is_successor(&self) -> bool {
        self.path().join(MARK).is_file()
    }

    /// Returns the names of the runs that this one goes on with, because ranks were successors in turn; none
    /// for a run that was always led from one machine.
    pub fn continued(&self) -> Vec<String> {
        let text = read_regular(&self.path().join(EARLIER), MOST_BYTES).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.lines().filter(|name| is_plain_name(name)).map(str::to_owned).collect()
    }
}

/// Returns a path in `root` with this name, or one that begins with it, at which there is nothing.
fn free_name(root: &Path, name: &str) -> PathBuf {
    let mut path = root.join(name);
    while fs::symlink_metadata(&path).is_ok() {
        path = root.join(format!("{name}-{}", random_hex::<2>()));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_rank_is_in_no_list_and_a_name_of_another_machine_leads_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let runs = RunsRoot::new(root.path());
        let name = runs.create("m", "lora").unwrap().name();
        let of_rank = |rank| runs.of_rank(&name, rank).unwrap();
        let (folder, none) = of_rank(3);
        assert_eq!((of_rank(3).0, none), (folder.clone(), None), "it is used again");
        assert_ne!(of_rank(2).0, folder);
        assert_eq!(folder.path().parent(), Some(root.path()));
        assert_eq!(folder.followed(), Some(name.as_str()));
        assert_eq!(runs.list().unwrap().len(), 1);
        assert_eq!(runs.rank_folders().unwrap(), [of_rank(2).0, folder]);
        for name in ["", "a/b", "..", ".tokens", "a b", "a\u{1b}", &"a".repeat(129)] {
            assert!(matches!(runs.of_rank(name, 3), Err(Error::NotARun { .. })), "{name:?}");
        }
        assert!(RunsRoot::new(root.path().join("none")).rank_folders().unwrap().is_empty());
    }

    #[test]
    fn a_successor_has_the_name_of_the_run_at_once_and_its_process_keeps_its_paths() {
        let root = tempfile::tempdir().unwrap();
        let runs = RunsRoot::new(root.path());
        let name = runs.create("m", "lora").unwrap().name();
        let (rank, _) = runs.of_rank(&name, 1).unwrap();
        let lease = Lease::acquire(&rank).unwrap();
        rank.become_successor().unwrap();
        rank.become_successor().unwrap();
        let listed = runs.list().unwrap();
        let [_, successor] = &listed[..] else { panic!("{listed:?}") };
        assert!(successor.name().starts_with(&format!("{name}-")) && rank.name() == successor.name());
        assert!(!successor.path().is_symlink() && Lease::is_held(successor).unwrap());
        assert_eq!(successor.continued(), [name.as_str()]);
        assert_eq!(runs.successors_of(&name).unwrap(), std::slice::from_ref(successor));
        assert!(runs.successors_of(&successor.name()).unwrap().is_empty());
        fs::write(rank.events().join("0001.jsonl"), "").unwrap();
        assert_eq!(successor.attempts().unwrap(), [1]);
        assert!(runs.rank_folders().unwrap().is_empty(), "it is a run");
        for refused in [runs.named(&rank).map(drop), runs.of_rank(&name, 1).map(drop)] {
            assert!(
                matches!(refused, Err(Error::AlreadyRunning { .. })),
                "its paths are in use: {refused:?}"
            );
        }
        drop(lease);
        for of in [&rank, successor] {
            assert_eq!(runs.named(of).unwrap(), *successor);
        }
        assert!(!rank.path().is_symlink() && runs.list().unwrap() == listed);
    }

    #[test]
    fn what_a_successor_that_was_killed_has_made_is_kept_when_its_rank_is_started_again() {
        let root = tempfile::tempdir().unwrap();
        let runs = RunsRoot::new(root.path());
        let rank = |name: &str| runs.of_rank(name, 1).unwrap();
        rank("a").0.become_successor().unwrap();
        let (fresh, kept) = rank("a");
        let kept = kept.unwrap();
        assert_eq!((kept.name(), kept.continued()), ("a".into(), vec!["a".into()]));
        assert!(!fresh.is_successor() && !fresh.path().is_symlink() && fresh != kept);
        // One that was deleted leaves its link behind.
        fs::remove_dir_all(fresh.path()).unwrap();
        symlink("deleted", fresh.path()).unwrap();
        assert!(matches!(rank("a"), (fresh, None) if !fresh.path().is_symlink()));
        // On a disk without links, or by an older program, it is still hidden. What rank 0 said of earlier
        // runs stays true.
        let (hidden, _) = rank("b");
        fs::write(hidden.path().join(EARLIER), "first\n../etc\nb").unwrap();
        fs::write(hidden.path().join(MARK), "").unwrap();
        for earlier in ["first", "b"] {
            assert_eq!(runs.successors_of(earlier).unwrap(), std::slice::from_ref(&hidden));
        }
        let (_, kept) = rank("b");
        assert_eq!(kept.unwrap().path(), root.path().join("b"));
        assert_eq!(runs.list().unwrap().len(), 2);
    }
}
