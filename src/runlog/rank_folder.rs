//! The folders of ranks other than 0, hidden next to the runs, and how one becomes a run when its rank has
//! taken rank 0's place.
//!
//! As long as the rank trains there, paths in the folder are in use, so it keeps its name, and a link with
//! the name of the run leads to it: the run is in the list, and is found, watched and stopped like any other.
//! Afterwards the folder takes the place of the link.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use sparktune_base::files::private_file;

use crate::error::{Doing, Error, Result};
use crate::lease::Lease;
use crate::run_dir::{RunDir, random_hex};
use crate::runs_root::{RunsRoot, is_made_by};

/// The longest name of a run that another machine may give.
const LONGEST_NAME: usize = 200;

impl RunsRoot {
    /// Opens or creates the folder in which a rank other than 0 keeps its part of the run `name` of rank 0.
    /// It is hidden: no list has it.
    ///
    /// # Errors
    /// [`Error::NotARun`] when `name` is no name of a run; [`Error::Io`] when the folder cannot be created.
    pub fn of_rank(&self, name: &str, rank: usize) -> Result<RunDir> {
        let path = self.path().join(format!(".rank-{rank}-of-{name}"));
        let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_safe) {
            return Err(Error::NotARun { path });
        }
        fs::create_dir_all(self.path()).doing("create", self.path())?;
        if path.exists() { RunDir::open(path) } else { RunDir::create(path) }
    }

    /// Opens the folder of a rank like [`of_rank`](Self::of_rank). One that was
    /// [marked](RunDir::mark_as_taken_over) and whose rank ended before it could [promote](Self::promote) it
    /// is promoted first. Returns it as the second value.
    ///
    /// # Errors
    /// The same as for both.
    pub fn fresh_of_rank(&self, name: &str, rank: usize) -> Result<(RunDir, Option<RunDir>)> {
        let run = self.of_rank(name, rank)?;
        if !run.was_taken_over() {
            return Ok((run, None));
        }
        let kept = self.promote(&run, name)?;
        Ok((self.of_rank(name, rank)?, Some(kept)))
    }

    /// Gives the folder of a rank that has taken rank 0's place the name of the run for good, or one that
    /// begins with it if that is taken.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be renamed.
    pub fn promote(&self, rank: &RunDir, name: &str) -> Result<RunDir> {
        let path = match link_to(rank)? {
            Some(link) => {
                fs::remove_file(&link).doing("remove", &link)?;
                link
            }
            None => free_name(self.path(), name),
        };
        fs::rename(rank.path(), &path).doing("rename", rank.path())?;
        RunDir::open(path)
    }

    /// Lists what ranks of this machine have made of the run of this name since they took rank 0's place.
    ///
    /// # Errors
    /// [`Error::Io`] when the folder cannot be listed.
    pub fn taken_over(&self, name: &str) -> Result<Vec<RunDir>> {
        let is_of = |run: &RunDir| {
            let of_run = run.name();
            let rest = of_run.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) && run.was_taken_over()
        };
        Ok(self.list()?.into_iter().filter(is_of).collect())
    }

    /// Lists the folders of ranks that have not become runs. Those that this user may not read are left out.
    ///
    /// # Errors
    /// [`Error::Io`] when the folder cannot be listed.
    pub fn rank_folders(&self) -> Result<Vec<RunDir>> {
        let entries = match fs::read_dir(self.path()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.doing("list", self.path())?,
        };
        let hidden = entries.flatten().filter(|entry| {
            entry.file_type().is_ok_and(|kind| kind.is_dir()) && run_of_rank(&entry.path()).is_some()
        });
        let mut folders: Vec<RunDir> = hidden
            .filter_map(|entry| RunDir::open(entry.path()).ok())
            .filter(|run| !run.was_taken_over())
            .collect();
        folders.sort_by(|one, other| one.path().cmp(other.path()));
        Ok(folders)
    }
}

impl RunDir {
    /// Returns the name of the run that this is the hidden folder of a rank of; `None` for any other folder.
    pub fn of_run(&self) -> Option<&str> {
        run_of_rank(self.path())
    }

    /// Marks this folder of a rank other than 0 as the run's own from here on, because the rank has taken the
    /// place of rank 0, and makes the link that leads to it.
    ///
    /// # Errors
    /// [`Error::Io`] when the mark or the link cannot be made.
    pub fn mark_as_taken_over(&self) -> Result<()> {
        let path = self.taken_over();
        let words = "This rank took the place of rank 0.\n";
        let marked = private_file().write(true).create(true).truncate(true).open(&path);
        marked.and_then(|mut file| file.write_all(words.as_bytes())).doing("write", &path)?;
        let (Some(root), Some(folder)) = (self.path().parent(), self.path().file_name()) else {
            return Ok(());
        };
        let Some(name) = run_of_rank(self.path()) else { return Ok(()) };
        if link_to(self)?.is_some() {
            return Ok(());
        }
        let link = free_name(root, name);
        symlink(folder, &link).doing("create", link)
    }

    /// Lets the folder of a rank that has taken rank 0's place, and does not train any more, take the place
    /// of the link that leads to it. Does nothing with any other run.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be renamed.
    pub fn settle(&self) -> Result<()> {
        let Ok(target) = fs::read_link(self.path()) else { return Ok(()) };
        if target.components().count() != 1 || run_of_rank(&target).is_none() {
            return Ok(());
        }
        if !self.was_taken_over() || Lease::is_held(self)? {
            return Ok(());
        }
        let folder = self.path().with_file_name(&target);
        fs::remove_file(self.path()).doing("remove", self.path())?;
        fs::rename(&folder, self.path()).doing("rename", folder)
    }
}

/// Returns the name of the run that the folder of a rank is of.
fn run_of_rank(folder: &Path) -> Option<&str> {
    let (rank, run) = folder.file_name()?.to_str()?.strip_prefix(".rank-")?.split_once("-of-")?;
    (!run.is_empty() && rank.parse::<usize>().is_ok()).then_some(run)
}

/// Returns the link that leads to the folder of a rank, made by this user or the owner of the runs.
fn link_to(rank: &RunDir) -> Result<Option<PathBuf>> {
    let (Some(root), Some(folder)) = (rank.path().parent(), rank.path().file_name()) else { return Ok(None) };
    let root = if root.as_os_str().is_empty() { Path::new(".") } else { root };
    let trusted = RunsRoot::new(root).trusted()?;
    let entries = fs::read_dir(root).doing("list", root)?;
    let leads_there = |path: &PathBuf| fs::read_link(path).is_ok_and(|target| target.as_os_str() == folder);
    let mut paths = entries.flatten().map(|entry| entry.path());
    Ok(paths.find(|path| leads_there(path) && is_made_by(path, trusted)))
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
        let folder = runs.of_rank(&name, 3).unwrap();
        assert_eq!(runs.of_rank(&name, 3).unwrap(), folder, "it is used again");
        assert_ne!(runs.of_rank(&name, 2).unwrap(), folder);
        assert_eq!(folder.path().parent(), Some(root.path()));
        assert_eq!(runs.list().unwrap().len(), 1);
        let other = runs.promote(&runs.of_rank(&name, 2).unwrap(), &name).unwrap();
        assert!(other.name().starts_with(&format!("{name}-")) && other.name() != name);
        assert_eq!(runs.list().unwrap().len(), 2);
        assert_eq!(runs.promote(&runs.of_rank("gone", 2).unwrap(), "gone").unwrap().name(), "gone");
        assert_eq!(runs.rank_folders().unwrap(), [folder]);
        for name in ["", "a/b", "..", "a b", "a\u{1b}"] {
            let made = runs.of_rank(name, 3);
            assert!(name == ".." || made.is_err(), "{name:?}");
        }
        let dots = runs.of_rank("..", 3).unwrap();
        assert_eq!(dots.path().parent(), Some(root.path()));
    }

    #[test]
    fn a_run_that_a_rank_goes_on_with_is_in_the_list_and_gets_its_name_for_good_when_the_rank_has_ended() {
        let root = tempfile::tempdir().unwrap();
        let runs = RunsRoot::new(root.path());
        let name = runs.create("m", "lora").unwrap().name();
        let rank = runs.of_rank(&name, 1).unwrap();
        assert_eq!(runs.fresh_of_rank(&name, 1).unwrap(), (rank.clone(), None));
        let lease = Lease::acquire(&rank).unwrap();
        rank.mark_as_taken_over().unwrap();
        rank.mark_as_taken_over().unwrap();
        let listed = runs.list().unwrap();
        let [_, shown] = &listed[..] else { panic!("{listed:?}") };
        assert!(shown.name().starts_with(&format!("{name}-")) && Lease::is_held(shown).unwrap());
        assert_eq!(runs.resolve(&shown.name()).unwrap(), *shown);
        assert_eq!(runs.taken_over(&name).unwrap(), [shown.clone()]);
        assert!(runs.taken_over(&name[..name.len() - 1]).unwrap().is_empty());
        shown.settle().unwrap();
        assert!(rank.path().is_dir(), "its paths are in use");
        assert!(runs.rank_folders().unwrap().is_empty(), "it is a run");
        drop(lease);
        // A process that another test starts has it too until it becomes another program.
        while Lease::is_held(shown).unwrap() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        shown.settle().unwrap();
        assert!(!rank.path().exists() && shown.was_taken_over());
        assert!(!shown.path().is_symlink() && runs.list().unwrap() == listed);
        shown.settle().unwrap();

        let again = runs.of_rank(&name, 1).unwrap();
        again.mark_as_taken_over().unwrap();
        let shown = link_to(&again).unwrap().unwrap();
        let (fresh, kept) = runs.fresh_of_rank(&name, 1).unwrap();
        assert_eq!(kept.unwrap().path(), shown, "what only it has is kept, under the name that it had");
        assert!(!shown.is_symlink() && !fresh.was_taken_over() && runs.list().unwrap().len() == 3);
    }

    #[test]
    fn a_link_to_anything_else_stays_a_link() {
        let root = tempfile::tempdir().unwrap();
        let runs = RunsRoot::new(root.path().join("runs"));
        let elsewhere = RunsRoot::new(root.path().join("elsewhere"));
        let rank = elsewhere.of_rank("a", 1).unwrap();
        rank.mark_as_taken_over().unwrap();
        fs::create_dir(runs.path()).unwrap();
        for (link, target) in [("b", rank.path().to_owned()), ("c", "../elsewhere/.rank-1-of-a".into())] {
            let link = runs.path().join(link);
            symlink(target, &link).unwrap();
            RunDir::open(&link).unwrap().settle().unwrap();
            assert!(link.is_symlink() && rank.path().is_dir());
        }
    }
}
