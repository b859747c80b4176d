//! A file that appears under its name only when it is complete.
//!
//! Bytes are written to `<name>.partial` in the same folder; `commit` makes them durable and renames the
//! file. If the process is killed at any moment, the target is either missing, the previous file, or the new
//! one. A leftover `.partial` of a killed process is overwritten by the next writer, and until then `rebuild`
//! can recover its contents.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sparktune_base::files::{refuse_to_replace_special, sync};

use super::error::TokenFileError;

pub(crate) struct PartialFile {
    target: PathBuf,
    partial: PathBuf,
    file: File,
    committed: bool,
}

impl PartialFile {
    /// Opens `<target>.<ending>` exclusively, because two writers of one target would mix their bytes.
    pub(crate) fn create(target: &Path, ending: &str) -> Result<Self, TokenFileError> {
        let mut name = target.file_name().unwrap_or_default().to_os_string();
        name.push(".");
        name.push(ending);
        let partial = target.with_file_name(name);
        let io = |source| TokenFileError::Io { path: partial.clone(), source };
        refuse_to_replace_special(target).map_err(TokenFileError::io(target))?;
        loop {
            let file =
                OpenOptions::new().write(true).create(true).truncate(false).open(&partial).map_err(io)?;
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
