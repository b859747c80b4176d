//! Errors of run folders. Each message says what is wrong, where, and what to do.

use std::io;
use std::path::{Path, PathBuf};

use sparktune_base::program_name;

use crate::holder::Holder;
use crate::manifest::Damage;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The errors of this crate. Each message says what happened, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation of the operating system failed.
    #[error("cannot {doing} {}: {}", .path.display(), in_words(.source))]
    Io {
        /// The attempted action, as a verb phrase: "create", "read", "flush to disk".
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error, whose `kind` identifies a full disk.
        source: io::Error,
    },
    /// There is no run at all in the folder.
    #[error(
        "there are no runs in {} yet; start one with `{program} train`, or name another folder with --runs-dir",
        whole(.root), program = program_name()
    )]
    NoRuns {
        /// The folder of the runs.
        root: PathBuf,
    },
    /// No run has this name.
    #[error(
        "no run named '{name}' in {}; `{program} runs --all` lists its runs, and --runs-dir names another folder",
        whole(.root), program = program_name()
    )]
    NoSuchRun {
        /// The name that the user gave.
        name: String,
        /// The folder of the runs.
        root: PathBuf,
    },
    /// Several runs match the prefix.
    #[error("'{name}' matches {} runs; type more of the name:\n  {}", .candidates.len(), .candidates.join("\n  "))]
    Ambiguous {
        /// The name that the user gave.
        name: String,
        /// All matching runs, oldest first.
        candidates: Vec<String>,
    },
    /// The folder exists but is not a run.
    #[error(
        "{} is not a run folder: it contains no events/; `{program} runs --all` lists all runs",
        .path.display(), program = program_name()
    )]
    NotARun {
        /// Returns the folder.
        path: PathBuf,
    },
    /// The run already has a trainer.
    #[error(
        "{} is already being trained by {holder}; watch it with `{program} watch`, or end it with `{program} stop`",
        .run.display(), program = program_name()
    )]
    AlreadyRunning {
        /// The run folder.
        run: PathBuf,
        /// The trainer that holds the lease.
        holder: Holder,
    },
    /// A request was sent to a run without a trainer.
    #[error(
        "no trainer is running in {}, so there is nothing to stop. `{program} resume` continues a run that has not finished",
        .run.display(), program = program_name()
    )]
    NotRunning {
        /// The run folder, or that of all runs if none of them has a trainer.
        run: PathBuf,
    },
    /// A record that is written only once exists already.
    #[error("{} already exists and never changes; start a new run to use other settings", .path.display())]
    AlreadyWritten {
        /// The record.
        path: PathBuf,
    },
    /// The folder cannot be deleted as a run.
    #[error("{} was not deleted: {reason}", .path.display())]
    NotDeletable {
        /// Returns the folder.
        path: PathBuf,
        /// The reason, and what to do.
        reason: String,
    },
    /// The run was removed from the list, but part of it is still on the disk.
    #[error(
        "{} was deleted, but {left_bytes} bytes of it could not be removed: {}. They are in {}; delete that folder by hand",
        .run.display(), in_words(.source), .left_in.display()
    )]
    HalfDeleted {
        /// The original path of the run folder.
        run: PathBuf,
        /// The folder that contains the rest.
        left_in: PathBuf,
        /// The size of the rest in bytes.
        left_bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The events were written by a newer sparktune.
    #[error("{}: event format v{found} is newer than v{known}, the newest that this sparktune can read; update sparktune", .path.display())]
    NewerEvents {
        /// The event file.
        path: PathBuf,
        /// The version in the file.
        found: u64,
        /// The newest supported version.
        known: u32,
    },
    /// The run has no checkpoint of this step.
    #[error("{} has no checkpoint of step {step}; {}", .run.display(), listed(.existing))]
    NoSuchCheckpoint {
        /// The run folder.
        run: PathBuf,
        /// The step that the user gave.
        step: u64,
        /// The steps that have one, ascending.
        existing: Vec<u64>,
    },
    /// The requested checkpoint is damaged.
    #[error(
        "checkpoint {} is damaged: {damage}; name another step with --checkpoint", .path.display()
    )]
    DamagedCheckpoint {
        /// The checkpoint folder.
        path: PathBuf,
        /// The problem.
        damage: Damage,
    },
}

impl Error {
    /// Creates the error for a caller that writes into the run folder itself (the files of a checkpoint, a
    /// log).
    pub fn io(doing: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Error::Io { doing, path: path.into(), source }
    }

    /// Returns whether the disk or the user's quota is full, so that a retry makes no sense.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Error::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }
}

/// Returns a path from the root on: a relative one does not say where it was looked for.
fn whole(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// Describes the cause of an I/O error and what to do about it.
pub fn in_words(error: &io::Error) -> String {
    use io::ErrorKind as K;
    let advice = match error.kind() {
        K::StorageFull => "the disk is full; free some space (`df -h` shows where) and resume",
        K::QuotaExceeded => "your disk quota is used up; free some space and resume",
        K::ReadOnlyFilesystem => {
            "the file system is read-only; remount it, or choose another folder with --runs-dir"
        }
        K::PermissionDenied => "permission denied; check the folder's owner and permissions",
        K::NotFound => "it does not exist",
        K::FileTooLarge => "the file would exceed the size limit (`ulimit -f`)",
        _ => return error.to_string(),
    };
    advice.to_owned()
}

/// Lists the steps that have a checkpoint, to choose from.
fn listed(steps: &[u64]) -> String {
    if steps.is_empty() {
        return "it has none yet".to_owned();
    }
    let steps: Vec<String> = steps.iter().map(u64::to_string).collect();
    format!("choose one of these steps: {}", steps.join(", "))
}

/// Adds the method `.doing("read", path)` to `io::Result`.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str, path: impl Into<PathBuf>) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|source| Error::io(doing, path, source))
    }
}

impl<T> Doing<T> for rustix::io::Result<T> {
    fn doing(self, doing: &'static str, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|errno| Error::io(doing, path, errno.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_a_read_only_one_are_said_in_words() {
        let full = Error::io("write", "/runs/a/checkpoints", rustix::io::Errno::NOSPC.into());
        assert!(full.is_disk_full());
        assert!(full.to_string().contains("the disk is full; free some space"), "{full}");
        let read_only = Error::io("create", "/runs/a", rustix::io::Errno::ROFS.into());
        assert!(!read_only.is_disk_full());
        assert!(read_only.to_string().contains("read-only"), "{read_only}");
        assert!(read_only.to_string().contains("/runs/a"), "{read_only}");
    }
}
