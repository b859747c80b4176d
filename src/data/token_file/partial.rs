//! A file that appears under its name only when it is complete.
//!
//! Bytes are written to `<name>.partial` in the same folder; `commit` makes them durable and renames the
//! file. If the process is killed at any moment, the target is either missing, the previous file, or the new
//! one. A leftover `.partial` of a killed process is overwritten by the next writer, and until then `rebuild`
//! can recover its contents. Any other file of that name is refused and stays.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use sparktune_base::files::{refuse_to_replace_special, sync};

use super::error::TokenFileError;

pub(crate) struct PartialFile {
    target: PathBuf,
    partial: PathBuf,
    file: File,
    committed: bool,
}

/// Opens an unfinished file, or creates it. A link is not followed, and a pipe is not waited for.
pub(super) fn open_unfinished(mut options: OpenOptions, path: &Path) -> Result<File, TokenFileError> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let opened = options.read(true).write(true).create(true).truncate(false).custom_flags(flags).open(path);
    opened.map_err(|source| match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => TokenFileError::InTheWay { path: path.to_path_buf() },
        _ => TokenFileError::Io { path: path.to_path_buf(), source },
    })
}

/// Refuses a file that nobody left unfinished: one that has another name too, or that begins neither with
/// these bytes nor, as after a power cut, with zeros.
pub(super) fn refuse_foreign(file: &File, path: &Path, begins_with: &[u8]) -> Result<(), TokenFileError> {
    let io = |source| TokenFileError::Io { path: path.to_path_buf(), source };
    let found = file.metadata().map_err(io)?;
    let mut start = vec![0; begins_with.len().min(found.len() as usize)];
    if found.is_file() {
        file.read_exact_at(&mut start, 0).map_err(io)?;
    }
    let is_left = begins_with.starts_with(&start) || start.iter().all(|byte| *byte == 0);
    if found.is_file() && found.nlink() == 1 && is_left {
        return Ok(());
    }
    Err(TokenFileError::InTheWay { path: path.to_path_buf() })
}

impl PartialFile {
    /// Opens `<target>.<ending>` exclusively, because two writers of one target would mix their bytes. What a
    /// killed process left there begins with these bytes.
    pub(crate) fn create(target: &Path, ending: &str, begins_with: &[u8]) -> Result<Self, TokenFileError> {
        let mut name = target.file_name().unwrap_or_default().to_os_string();
        name.push(".");
        name.push(ending);
        let partial = target.with_file_name(name);
        let io = |source| TokenFileError::Io { path: partial.clone(), source };
        refuse_to_replace_special(target).map_err(TokenFileError::io(target))?;
        loop {
            let file = open_unfinished(OpenOptions::new(), &partial)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(TokenFileError::BeingWritten { path: target.to_path_buf() });
                }
                Err(TryLockError::Error(source)) => return Err(io(source)),
            }
            // Between open and lock, another writer may have finished and renamed this very file to its
            // target.
            let ours = file.metadata().map_err(io)?;
            if fs::metadata(&partial)
                .is_ok_and(|named| (named.dev(), named.ino()) == (ours.dev(), ours.ino()))
            {
                refuse_foreign(&file, &partial, begins_with)?;
                file.set_len(0).map_err(io)?;
                return Ok(Self { target: target.to_path_buf(), partial, file, committed: false });
            }
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the folder of both names.
    pub(crate) fn folder(&self) -> &Path {
        match self.target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        }
    }

    /// Makes the bytes durable (fsync), renames the file, and makes the name durable (fsync of the folder).
    pub(crate) fn commit(mut self) -> Result<(), TokenFileError> {
        self.file.sync_all().map_err(TokenFileError::io(&self.partial))?;
        fs::rename(&self.partial, &self.target).map_err(TokenFileError::io(&self.target))?;
        self.committed = true;
        let folder = self.folder();
        sync(folder).map_err(TokenFileError::io(folder))
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.committed {
            // This error is ignored, because the one that caused the drop is already being returned.
            let _ = fs::remove_file(&self.partial);
        }
    }
}
