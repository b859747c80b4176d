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

use rustix::process::Pid;
use sparktune_base::files::{create_private_folder, is_private_file, private_file, write_shared_and_sync};
use sparktune_base::regular_file::{open_regular, read_regular};
use sparktune_cluster::membership::Launch;

use crate::failure::Failure;
use crate::folders::required_state_folder;

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
        Ok(Self { path: required_state_folder("what ranks are started with")?.join(FILE) })
    }

    /// Returns where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it. One that is damaged, or that others could have written or read, says nothing.
    pub(super) fn find(&self) -> Option<Launch> {
        let file = fs::symlink_metadata(&self.path).ok()?;
        let bytes = read_regular(&self.path, MOST_BYTES).ok().filter(|_| is_private_file(&file))?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Replaces it. Returns the new file, which is locked as long as a process has it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn replace(&self, launch: &Launch) -> io::Result<File> {
        create_private_folder(self.path.parent().unwrap_or(Path::new(".")))?;
        // A path that is not UTF-8 cannot be kept.
        let text = serde_json::to_vec(launch).map_err(io::Error::other)?;
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
        open_regular(&self.path)
            .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Returns the process of the rank that has it: of an earlier agent, for example.
    pub(super) fn process(&self) -> Option<Pid> {
        let same =
            |of: &fs::Metadata, other: &fs::Metadata| (of.dev(), of.ino()) == (other.dev(), other.ino());
        let kept = fs::metadata(&self.path).ok().filter(|_| self.is_in_use())?;
        let has_it =
            |process: &Path| fs::metadata(process.join("fd/0")).is_ok_and(|input| same(&input, &kept));
        let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let found = processes.filter(|process| has_it(process)).find_map(|process| {
            process
                .file_name()?
                .to_str()?
                .parse()
                .ok()
                .filter(|process| *process != std::process::id() as i32)
        });
        found.and_then(Pid::from_raw)
    }

    /// Removes it. As long as a rank has it, it is only emptied, so that the rank is still seen.
    pub(super) fn remove(&self) {
        let emptied = self.is_in_use().then(|| private_file().write(true).truncate(true).open(&self.path));
        if emptied.is_none_or(|emptied| emptied.is_err()) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::ffi::OsStr;
    use std::net::Ipv4Addr;
    use std::os::unix::ffi::OsStrExt;
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
        let member = "member".into();
        Launch {
            member,
            job,
            first: Ipv4Addr::LOCALHOST.into(),
            folders: vec!["/models/a".into()],
            restarts: 2,
        }
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
        assert_eq!(kept.process(), Some(Pid::from_child(&process)));
        process.kill().unwrap();
        process.wait().unwrap();
        // A process that another test starts has it too until it becomes another program.
        let until_released = || {
            while kept.is_in_use() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        };
        until_released();
        assert!(kept.find() == Some(launch()) && kept.process().is_none());
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
        let file = kept.replace(&launch()).unwrap();
        kept.remove();
        assert!(kept.find().is_none() && kept.is_in_use(), "the rank is still seen");
        drop(file);
        until_released();
        kept.remove();
        assert!(!kept.path().exists());
        let folders = vec![PathBuf::from(OsStr::from_bytes(b"/models/\xff"))];
        assert!(kept.replace(&Launch { folders, ..launch() }).is_err());
    }
}
