//! Folders and files that only their owner can read, and writes that survive a power failure.
//!
//! Training data is private: token files, rejected lines, checkpoints and logs can all contain it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// A builder for a folder with mode 0700.
pub fn private_folder() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder
}

/// Options for writing a file; one that is created has mode 0600.
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

/// Creates a folder with mode 0700, and its parents with the usual mode. A folder that exists stays as it is.
///
/// # Errors
/// When a folder cannot be created, or when `path` is something other than a folder.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match private_folder().create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !path.is_dir() => Err(error),
        _ => Ok(()),
    }
}

/// Flushes a file, or the names in a folder, to the disk.
///
/// # Errors
/// When it cannot be opened or flushed.
pub fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Writes a file and flushes it to the disk. It is written under another name (`.NAME.new`) and then renamed,
/// so that a kill leaves the previous file or the new one, and a link of this name is replaced and not
/// followed.
///
/// # Errors
/// When it cannot be written, flushed or renamed, or when `path` has no name.
pub fn write_and_sync(path: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let unfinished = path.with_file_name(format!(".{}.new", name.to_string_lossy()));
    fs::write(&unfinished, contents)?;
    sync(&unfinished)?;
    fs::rename(&unfinished, path)
}

/// Swaps what two names of one file system stand for, without an instant in which one of them stands for
/// nothing. False where the file system cannot, as some network ones: then nothing has changed.
///
/// # Errors
/// When one of them does not exist, or may not be changed.
pub fn exchange(one: &Path, other: &Path) -> io::Result<bool> {
    match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_is_created_can_be_read_by_its_owner_alone() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("new/private");
        create_private_folder(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        private_file().create_new(true).open(path.join("file")).unwrap();
        assert_eq!(mode(&path.join("file")), 0o600);
        sync(&path).unwrap();
    }

    #[test]
    fn two_folders_are_exchanged_or_stay_as_they_are() {
        let root = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| root.path().join(name));
        for folder in [&one, &other] {
            fs::create_dir(folder).unwrap();
            write_and_sync(&folder.join("was"), folder.to_str().unwrap()).unwrap();
        }
        let is_done = exchange(&one, &other).unwrap();
        let (first, second) = if is_done { (&other, &one) } else { (&one, &other) };
        assert_eq!(fs::read_to_string(one.join("was")).unwrap(), first.to_str().unwrap());
        assert_eq!(fs::read_to_string(other.join("was")).unwrap(), second.to_str().unwrap());
        assert!(!exchange(&one, &root.path().join("none")).is_ok_and(|is_done| is_done));
    }

    #[test]
    fn a_written_file_replaces_a_link_and_not_what_it_leads_to() {
        let root = tempfile::tempdir().unwrap();
        let [page, elsewhere] = ["page.md", "elsewhere.md"].map(|name| root.path().join(name));
        fs::write(&elsewhere, "mine").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &page).unwrap();
        write_and_sync(&page, "new").unwrap();
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "mine");
        assert_eq!(fs::read_to_string(&page).unwrap(), "new");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_folder_that_exists_is_kept_and_a_file_in_its_place_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let before = mode(root.path());
        create_private_folder(root.path()).unwrap();
        assert_eq!(mode(root.path()), before);
        let path = root.path().join("file");
        fs::write(&path, "").unwrap();
        assert_eq!(create_private_folder(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}
