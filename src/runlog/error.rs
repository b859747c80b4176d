//! Errors of run folders. Each message says what is wrong, where, and what to do.

use std::io;
use std::path::PathBuf;

use sparktune_base::program_name;

use crate::holder::Holder;
use crate::manifest::Damage;

/// Result with this member's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Every failure of this member. The text names what, where, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {doing} {}: {}", .path.display(), in_words(.source))]
    Io {
        /// A verb phrase: "create", "read", "flush to disk".
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The refusal itself; its `kind` tells a full disk from the rest.
        source: io::Error,
    },
    /// There is no run at all under the root.
    #[error(
        "there are no runs in {} yet; start one with `{program} train`, or name another folder with --runs-dir",
        .root.display(), program = program_name()
    )]
    NoRuns {
        /// The folder that holds runs.
        root: PathBuf,
    },
    /// No run has this name.
    #[error("no run named '{name}' in {}; `{program} runs` lists them", .root.display(), program = program_name())]
    NoSuchRun {
        /// The name that was asked for.
        name: String,
        /// The folder that holds runs.
        root: PathBuf,
    },
    /// A prefix that fits several runs.
    #[error("'{name}' matches {} runs; type more of one of these names:\n  {}", .candidates.len(), .candidates.join("\n  "))]
    Ambiguous {
        /// The name that was asked for.
        name: String,
        /// Every run it fits, oldest first.
        candidates: Vec<String>,
    },
    /// The folder exists but is not a run.
    #[error(
        "{} is not a run folder: it has no events/ inside; `{program} runs` lists the runs",
        .path.display(), program = program_name()
    )]
    NotARun {
        /// The folder.
        path: PathBuf,
    },
    /// A second trainer wanted the run.
    #[error(
        "{} is already being trained by {holder}; watch it with `{program} watch`, or end it with `{program} stop`",
        .run.display(), program = program_name()
    )]
    AlreadyRunning {
        /// The run folder.
        run: PathBuf,
        /// The holder's note about itself.
        holder: Holder,
    },
    /// A request to a run that nobody trains.
    #[error(
        "no trainer is running in {}, so there is nothing to stop. `{program} resume` continues a run that has not finished",
        .run.display(), program = program_name()
    )]
    NotRunning {
        /// The run folder.
        run: PathBuf,
    },
    /// A record that is written once exists already.
    #[error("{} is already written and never changes; start a new run to use other settings", .path.display())]
    AlreadyWritten {
        /// The record.
        path: PathBuf,
    },
    /// A folder that is not deleted as a run.
    #[error("{} is not deleted: {reason}", .path.display())]
    NotDeletable {
        /// The folder.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// The run is out of the list, but part of it is still on the disk.
    #[error(
        "{} is deleted, but {left_bytes} bytes of it could not be removed: {}. They are in {}; remove that folder by hand",
        .run.display(), in_words(.source), .left_in.display()
    )]
    HalfDeleted {
        /// The run folder as it was called.
        run: PathBuf,
        /// Where the rest lies now.
        left_in: PathBuf,
        /// Size of the rest.
        left_bytes: u64,
        /// The refusal.
        source: io::Error,
    },
    /// Events from a newer sparktune.
    #[error("{}: event format v{found} is newer than v{known}, the newest this sparktune reads; update sparktune", .path.display())]
    NewerEvents {
        /// The event file.
        path: PathBuf,
        /// Version found.
        found: u64,
        /// Version understood.
        known: u32,
    },
    /// A checkpoint that was asked for by its step is not whole.
    #[error(
        "checkpoint {} is damaged: {damage}; `{program} resume` continues from an earlier one",
        .path.display(), program = program_name()
    )]
    DamagedCheckpoint {
        /// The checkpoint folder.
        path: PathBuf,
        /// The problem.
        damage: Damage,
    },
}

impl Error {
    /// Words for an I/O error of a caller that writes into the run folder itself (a checkpoint's files, a
    /// log).
    pub fn io(doing: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Error::Io { doing, path: path.into(), source }
    }

    /// The disk or the user's quota is full: worth saying so rather than retrying at once.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Error::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }
}

/// An I/O error as a cause and what to do about it.
pub fn in_words(error: &io::Error) -> String {
    use io::ErrorKind as K;
    let advice = match error.kind() {
        K::StorageFull => "disk full; free some space (`df -h` shows where) and resume",
        K::QuotaExceeded => "your disk quota is used up; free some space and resume",
        K::ReadOnlyFilesystem => "the file system is read-only; remount it or choose another --runs-dir",
        K::PermissionDenied => "permission denied; check the owner and mode of the folder",
        K::NotFound => "it does not exist",
        K::FileTooLarge => "the file would exceed the size limit (`ulimit -f`)",
        _ => return error.to_string(),
    };
    advice.to_owned()
}

/// `.doing("read", path)` on an `io::Result`.
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
        assert!(full.to_string().contains("disk full; free some space"), "{full}");
        let read_only = Error::io("create", "/runs/a", rustix::io::Errno::ROFS.into());
        assert!(!read_only.is_disk_full());
        assert!(read_only.to_string().contains("read-only"), "{read_only}");
        assert!(read_only.to_string().contains("/runs/a"), "{read_only}");
    }
}
