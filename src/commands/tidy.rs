//! `runs delete` and `runs clean`: what takes space, and making room.

use std::path::PathBuf;

use sparktune_app::answers::runs_dir;
use sparktune_app::caches;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::runs::find;
use sparktune_base::escape::escape;
use sparktune_base::units::bytes;
use sparktune_runlog::{Error, Lease, RunDir, RunsRoot};
use sparktune_tui::output::{note, print};

/// Runs `sparktune runs delete`. Without `yes`, nothing is deleted.
///
/// # Errors
/// A run does not exist, or is being trained; or `yes` is missing. Then none was deleted, except where one
/// could only be deleted in part, or its training began just then.
pub fn delete_runs(names: &[String], runs_dir: Option<PathBuf>, yes: bool) -> Result<Exit, Failure> {
    let mut runs: Vec<RunDir> = Vec::new();
    for name in names {
        let run = find(name, runs_dir.clone())?;
        if !runs.contains(&run) {
            runs.push(run);
        }
    }
    if !yes {
        let line = |run: &RunDir| format!("{} with {}\n", escape(&run.name()), bytes(run.size_bytes()));
        print(&runs.iter().map(line).collect::<String>())?;
        return Err(Failure::usage("nothing was deleted").hint("Add --yes to delete these runs for good"));
    }
    for run in &runs {
        if Lease::is_held(run)? {
            let (run, holder) = (run.path().to_owned(), Lease::holder_of(run));
            return Err(Error::AlreadyRunning { run, holder }.into());
        }
    }
    for run in runs {
        let name = run.name();
        let freed = run.delete()?;
        print(&format!("{} was deleted; this freed {}\n", escape(&name), bytes(freed)))?;
    }
    Ok(Exit::Done)
}

/// Runs `sparktune runs clean`. Without `yes`, nothing is deleted.
///
/// # Errors
/// A cache cannot be deleted.
pub fn clean(runs_dir_flag: Option<PathBuf>, yes: bool) -> Result<Exit, Failure> {
    let root = runs_dir(runs_dir_flag)?;
    let found = caches::caches(&root);
    let mut of_ranks = RunsRoot::new(&root).rank_folders().unwrap_or_default();
    of_ranks.retain(|folder| !Lease::is_held(folder).unwrap_or(true));
    if found.is_empty() && of_ranks.is_empty() {
        note(&format!("there is nothing to clean in {}", escape(&root.display().to_string())));
    }
    for cache in &found {
        let (path, size) = (escape(&cache.path.display().to_string()).into_owned(), bytes(cache.size_bytes));
        if yes {
            caches::delete(cache)?;
        }
        let done = if yes { "deleted: " } else { "" };
        print(&format!("{done}{path}: {}, {size}\n", cache.what))?;
    }
    if !yes && !found.is_empty() {
        note("all of this is made or sent again when it is needed; --yes deletes it");
    }
    for folder in of_ranks {
        note(&format!(
            "{} ({}) is kept: it is what a rank of this machine has of the run {} of another machine. If you no longer need that run, delete the folder",
            escape(&folder.path().display().to_string()),
            bytes(folder.size_bytes()),
            folder.followed().unwrap_or_default()
        ));
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_deleted_if_one_of_the_runs_is_being_trained() {
        let root = tempfile::tempdir().unwrap();
        let runs = ["a", "b"].map(|label| {
            let run = RunsRoot::new(root.path()).create(label, "lora").unwrap();
            run.write_plan("seed = 1\n").unwrap();
            run
        });
        let names = runs.each_ref().map(RunDir::name);
        let delete = || delete_runs(&names, Some(root.path().to_owned()), true);
        let lease = Lease::acquire(&runs[1]).unwrap();
        assert_eq!(delete().unwrap_err().exit, Exit::Usage);
        assert!(runs.iter().all(|run| run.path().exists()));
        drop(lease);
        delete().unwrap();
        assert!(runs.iter().all(|run| !run.path().exists()));
    }
}
