//! What the agent of this machine has started its rank with, as [`Launch`] says it: a private file in the
//! folder of the user's state, with the token of the run.
//!
//! The rank has the file as its standard input, and so holds a lock on it as long as it lives, however it
//! ends. So an agent that is started again knows whether the rank of an earlier one still trains. A rank that
//! ends for good removes the file.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use sparktune_base::files::{create_private_folder, private_file, write_shared_and_sync};
use sparktune_base::program_name;
use sparktune_base::regular_file::read_regular;
use sparktune_cluster::membership::Launch;

use crate::failure::Failure;
use crate::folders::state_folder;

/// The name of the file.
const FILE: &str = "cluster-rank.json";
/// The most bytes of one that is read. A job comes in a message of 64 KiB.
const MOST_BYTES: u64 = 256 << 10;

/// The file.
pub(super) struct KeptLaunch {
    path: PathBuf,
}

impl KeptLaunch {
    /// Returns that of this user.
    ///
    /// # Errors
    /// There is no folder for it.
    pub(super) fn of_user() -> Result<Self, Failure> {
        let folder = state_folder().ok_or_else(|| {
            Failure::usage("there is no folder for what ranks are started with: HOME is not set")
                .hint(format!("Set HOME to your folder, and start `{} cluster join` again", program_name()))
        })?;
        Ok(Self { path: folder.join(FILE) })
    }

    /// Returns where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it. One that is damaged, or that others could have written or read, says nothing.
    pub(super) fn find(&self) -> Option<Launch> {
        let file = fs::symlink_metadata(&self.path).ok()?;
        let is_private = file.is_file() && file.uid() == geteuid().as_raw() && file.mode() & 0o077 == 0;
        let bytes = read_regular(&self.path, MOST_BYTES).ok().filter(|_| is_private)?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Replaces it. Returns the new file, which is locked as long as a process has it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn replace(&self, launch: &Launch) -> io::Result<File> {
        create_private_folder(self.path.parent().unwrap_or(Path::new(".")))?;
        let text = serde_json::to_vec(launch).expect("plain fields serialise");
        write_shared_and_sync(&self.path, text)?;
        let file = private_file().read(true).open(&self.path)?;
        if file.try_lock().is_err() {
            // Without locks on this disk, an agent that is started again would start another rank beside it.
            self.remove();
        }
        Ok(file)
    }

    /// Returns whether a rank has it.
    pub(super) fn is_in_use(&self) -> bool {
        File::open(&self.path)
            .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Removes it.
    pub(super) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::Ipv4Addr;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::{Command, Stdio};

    use sparktune_cluster::membership::messages::Job;

    use super::*;

    pub(crate) fn in_folder(folder: &Path) -> KeptLaunch {
        KeptLaunch { path: folder.join("sparktune").join(FILE) }
    }

    pub(crate) fn launch() -> Launch {
        let job = Job {
            run: "run".into(),
            build: "b".repeat(64),
            rank: 1,
            world_size: 3,
            port: 29_500,
            token: "c".repeat(64),
            swarm: true,
            folders: Vec::new(),
        };
        Launch { job, first: Ipv4Addr::LOCALHOST.into(), folders: vec!["/models/a".into()], again: 2 }
    }

    #[test]
    fn what_is_kept_is_private_and_in_use_exactly_as_long_as_the_process_that_has_it_lives() {
        let folder = tempfile::tempdir().unwrap();
        let kept = in_folder(folder.path());
        assert!(kept.find().is_none() && !kept.is_in_use());
        let file = kept.replace(&launch()).unwrap();
        assert_eq!(fs::metadata(kept.path()).unwrap().permissions().mode() & 0o777, 0o600);
        let mut process = Command::new("sleep").arg("1000").stdin(Stdio::from(file)).spawn().unwrap();
        assert!(kept.find() == Some(launch()) && kept.is_in_use());
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(kept.find() == Some(launch()) && !kept.is_in_use());
        let moved = folder.path().join("moved");
        fs::rename(kept.path(), &moved).unwrap();
        symlink(&moved, kept.path()).unwrap();
        assert!(kept.find().is_none(), "who made the link is not known");
        fs::rename(&moved, kept.path()).unwrap();
        assert!(kept.find() == Some(launch()));
        fs::set_permissions(kept.path(), fs::Permissions::from_mode(0o620)).unwrap();
        assert!(kept.find().is_none(), "others could have written it");
        fs::set_permissions(kept.path(), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(kept.path(), "{").unwrap();
        assert!(kept.find().is_none());
        kept.remove();
        assert!(!kept.path().exists());
    }
}
