//! One writer of an edited folder at a time: without it, two edits would each put away what the other has
//! written.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sparktune_base::escape::escape;
use sparktune_base::files::appended_file;

use crate::error::EditError;
use crate::stack_file::PATCHES;

/// The most bytes of the name of what is written: file systems allow 255, and this is the longest name that
/// stands beside it while it is written.
const LONGEST_NAME: usize = 255 - ".-being-exported".len();

/// The end of the name of a folder in which a patch is written that is taken away and kept.
pub(crate) const BEING_KEPT: &str = "being-kept";

/// What is wrong with a path that no list of patches and no output in JSON can name.
pub(crate) const NOT_UTF_8: &str = "its path is not valid UTF-8, so it cannot be named in a list of patches";

/// The right to write a folder, until it is dropped.
#[derive(Debug)]
pub struct FolderLock {
    path: PathBuf,
    /// Locked.
    _file: File,
}

impl FolderLock {
    /// Takes the right to write `out`. If an earlier writer was killed while it changed names, the folder
    /// gets its name back. Take it before the stack is read, and keep it until the folder is written.
    ///
    /// # Errors
    /// Another process is writing the folder, the folder above it cannot be written, or something that is no
    /// file has the name of the lock.
    pub fn take(out: &Path) -> Result<Self, EditError> {
        let path = beside(out, "edit.lock")?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(EditError::io(parent))?;
        }
        loop {
            // A pipe would be waited for, and a link leads to a file that is not this one.
            if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
                let what = "something that is no file has the name of the lock of this folder";
                return Err(EditError::patch(&path, what, "Remove it, or name another folder with --output"));
            }
            let file = appended_file().mode(0o600).open(&path).map_err(EditError::io(&path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let text = format!("another process is editing {}", escape(&out.display().to_string()));
                    return Err(EditError::request(
                        text,
                        "Wait until it is done, or name another folder with --output",
                    ));
                }
                Err(TryLockError::Error(error)) => return Err(EditError::io(&path)(error)),
            }
            // A file that was removed by the process before locks nothing.
            let held = file.metadata().map_err(EditError::io(&path))?;
            let is_named = fs::symlink_metadata(&path)
                .is_ok_and(|named| (named.dev(), named.ino()) == (held.dev(), held.ino()));
            if is_named {
                recover(out)?;
                let around = path.parent().unwrap_or(Path::new("."));
                [around, out, &out.join(PATCHES)].into_iter().for_each(remove_abandoned);
                return Ok(Self { path, _file: file });
            }
        }
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // One that stays is taken over by the next writer.
        drop(fs::remove_file(&self.path));
    }
}

/// Returns the hidden place beside a folder that has its name and this end.
///
/// # Errors
/// The folder has no name or one to which nothing can be added, or its path is not UTF-8.
pub(crate) fn beside(out: &Path, end: &str) -> Result<PathBuf, EditError> {
    let name = out
        .file_name()
        .ok_or_else(|| EditError::request("the output has no name", "Name a new folder with --output"))?;
    if out.to_str().is_none() {
        return Err(EditError::patch(out, NOT_UTF_8, "Choose another folder"));
    }
    if name.len() > LONGEST_NAME {
        let what = format!(
            "the name of the output has {} bytes, and at most {LONGEST_NAME} are allowed",
            name.len()
        );
        return Err(EditError::request(what, "Choose a shorter name"));
    }
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(parent.join(format!(".{}-{end}", name.to_string_lossy())))
}

/// Where a folder is while the new one takes its name, on file systems that cannot exchange names.
pub(crate) fn set_aside(out: &Path) -> Result<PathBuf, EditError> {
    beside(out, "before-edit")
}

/// Gives a folder its name back that a killed writer has set aside, or removes it if the new one is complete.
fn recover(out: &Path) -> Result<(), EditError> {
    let aside = set_aside(out)?;
    let done = match (aside.exists(), out.exists()) {
        (false, _) => return Ok(()),
        (true, false) => fs::rename(&aside, out),
        (true, true) => fs::remove_dir_all(&aside),
    };
    done.map_err(EditError::io(&aside))
}

/// Removes from a folder what killed processes have left of patches that were to be kept in it: their names
/// are chosen anew each time, so nobody would replace it.
pub(crate) fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        if is_folder
            && is_hidden
            && name.as_encoded_bytes().ends_with(format!("-{BEING_KEPT}").as_bytes())
            && let Ok(left) = File::open(entry.path())
            && left.try_lock().is_ok()
        {
            // Locked until it is gone. Where it stays, it is tried again the next time.
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_folder_has_one_writer_and_the_next_one_follows_it() {
        let place = tempfile::tempdir().unwrap();
        let (one, other) = (place.path().join("new/one"), place.path().join("new/other"));
        let lock = FolderLock::take(&one).unwrap();
        assert!(FolderLock::take(&one).unwrap_err().to_string().contains("another process is editing"));
        drop(FolderLock::take(&other).unwrap());
        drop(lock);
        drop(FolderLock::take(&one).unwrap());
        assert_eq!(fs::read_dir(place.path().join("new")).unwrap().count(), 0, "nothing is left");
        // The file of one that was killed.
        fs::write(place.path().join("new/.one-edit.lock"), "").unwrap();
        drop(FolderLock::take(&one).unwrap());
        drop(FolderLock::take(&place.path().join("x".repeat(LONGEST_NAME))).unwrap());
        let long = FolderLock::take(&place.path().join("x".repeat(LONGEST_NAME + 1))).unwrap_err();
        assert!(long.to_string().contains("240 bytes, and at most 239 are allowed"), "{long}");
        let strange = FolderLock::take(&place.path().join(OsStr::from_bytes(b"a\xff"))).unwrap_err();
        assert!(strange.to_string().contains("its path is not valid UTF-8"), "{strange}");
    }

    #[test]
    fn a_link_or_a_folder_in_the_place_of_the_lock_is_refused_and_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let (out, lock) = (place.path().join("one"), place.path().join(".one-edit.lock"));
        let victim = place.path().join("victim");
        std::os::unix::fs::symlink(&victim, &lock).unwrap();
        let refused = |out: &Path| FolderLock::take(out).unwrap_err().to_string();
        assert!(refused(&out).contains(".one-edit.lock: something that is no file"), "{}", refused(&out));
        assert!(!victim.exists());
        fs::remove_file(&lock).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(&lock).unwrap();
        assert!(refused(&out).contains("Remove it"), "{}", refused(&out));
    }

    #[test]
    fn a_folder_that_was_set_aside_gets_its_name_back() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("model.v1");
        let aside = set_aside(&out).unwrap();
        fs::create_dir(&aside).unwrap();
        fs::write(aside.join("old"), "").unwrap();
        drop(FolderLock::take(&out).unwrap());
        assert!(out.join("old").exists() && !aside.exists());
        fs::create_dir(&aside).unwrap();
        drop(FolderLock::take(&out).unwrap());
        assert!(out.join("old").exists() && !aside.exists(), "the new one is complete");
    }
}
