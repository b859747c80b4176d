//! A private folder beside what is being written, and the modes that it gets before it takes its place.

use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sparktune_base::files::private_folder;

use crate::error::EditError;
use crate::folder_lock::beside;

/// A folder that only its owner can read. It is removed with all that is still in it when it is dropped.
#[derive(Debug)]
pub(crate) struct Unfinished {
    path: PathBuf,
    /// The folder itself, locked, so that nobody takes it for one that a kill has left.
    _held: File,
}

impl Unfinished {
    /// Creates the folder `.NAME-END` beside `out`. What a killed process has left of it is replaced.
    ///
    /// # Errors
    /// It cannot be created, another process is writing it, or something that is no folder has its name.
    pub(crate) fn create(out: &Path, end: &str) -> Result<Self, EditError> {
        let folder = beside(out, end)?;
        match fs::symlink_metadata(&folder) {
            Ok(found) if found.is_dir() => remove_left(&folder)?,
            Ok(_) => {
                let what = "something that is no folder stands where what is not finished is written";
                return Err(EditError::patch(
                    &folder,
                    what,
                    "Remove it, or name another folder with --output",
                ));
            }
            Err(_) => {}
        }
        loop {
            private_folder().recursive(true).create(&folder).map_err(EditError::io(&folder))?;
            // Who removes what a kill has left may have been faster, and may have it locked.
            let held = match File::open(&folder) {
                Ok(held) => held,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(EditError::io(&folder)(error)),
            };
            if held.lock().is_err() || inode(fs::metadata(&folder)) == inode(held.metadata()) {
                return Ok(Self { path: folder, _held: held });
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // What is left is replaced by the next one that writes there.
        drop(fs::remove_dir_all(&self.path));
    }
}

/// Removes what a killed process has left.
///
/// # Errors
/// It cannot be removed, or the process that writes it is alive.
fn remove_left(folder: &Path) -> Result<(), EditError> {
    // Locked until it is gone. Where there are no locks, nobody can tell.
    let left = File::open(folder).map_err(EditError::io(folder))?;
    if matches!(left.try_lock(), Err(TryLockError::WouldBlock)) {
        let what = "it is being written by another process";
        return Err(EditError::patch(
            folder,
            what,
            "Wait until it is done, or name another folder with --output",
        ));
    }
    fs::remove_dir_all(folder).map_err(EditError::io(folder))
}

fn inode(found: io::Result<fs::Metadata>) -> Option<u64> {
    found.ok().map(|about| about.ino())
}

/// Who may read a base, and so what is made of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Modes {
    folder: u32,
    file: u32,
}

impl Modes {
    /// Returns the modes of a base. Its owner can always read and write.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn of(base: &Path) -> Result<Self, EditError> {
        let mode =
            |path: &Path| fs::metadata(path).map(|about| about.mode() & 0o777).map_err(EditError::io(path));
        Ok(Self { folder: mode(base)? | 0o700, file: mode(&base.join("config.json"))? | 0o600 })
    }

    /// Gives a file, or a folder with all that is in it, these modes.
    ///
    /// # Errors
    /// They cannot be changed.
    pub(crate) fn give(self, path: &Path) -> Result<(), EditError> {
        let is_folder = path.is_dir();
        if is_folder {
            entries(path)?.iter().try_for_each(|path| self.give(path))?;
        }
        let mode = if is_folder { self.folder } else { self.file };
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(EditError::io(path))
    }
}

/// Returns what is in a folder.
///
/// # Errors
/// It cannot be read.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>, EditError> {
    let all = fs::read_dir(folder).and_then(|all| all.map(|entry| Ok(entry?.path())).collect());
    all.map_err(EditError::io(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kill_has_left_is_replaced_and_a_link_is_neither_followed_nor_removed() {
        let place = tempfile::tempdir().unwrap();
        let (out, left) = (place.path().join("out"), place.path().join(".out-end"));
        fs::create_dir(&left).unwrap();
        fs::write(left.join("rest"), "").unwrap();
        let unfinished = Unfinished::create(&out, "end").unwrap();
        assert!(left.is_dir() && !left.join("rest").exists());
        fs::write(left.join("part"), "").unwrap();
        let refused = Unfinished::create(&out, "end").unwrap_err().to_string();
        assert!(refused.contains(".out-end: it is being written by another process"), "{refused}");
        assert!(left.join("part").exists());
        drop(unfinished);
        assert!(!left.exists());
        let victim = place.path().join("victim");
        for target in [&victim, &place.path().join("nowhere")] {
            fs::create_dir_all(&victim).unwrap();
            std::os::unix::fs::symlink(target, &left).unwrap();
            let refused = Unfinished::create(&out, "end").unwrap_err().to_string();
            assert!(refused.contains(".out-end: something that is no folder"), "{refused}");
            assert!(left.is_symlink() && victim.is_dir());
            fs::remove_file(&left).unwrap();
        }
    }
}
