//! Folders and files that only their owner can read, and the ways to write a file: as a whole, with or
//! without a flush that survives a power failure, and at its end.
//!
//! Training data is private: token files, rejected lines, checkpoints and logs can all contain it. Several
//! users may share a folder of runs, so no way of writing follows a link that somebody else may have put
//! there.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::process::geteuid;
use tempfile::NamedTempFile;

/// The permission of others to write, and any permission of theirs.
const WRITE_BY_OTHERS: u32 = 0o022;
const ANY_BY_OTHERS: u32 = 0o077;

/// A builder for a folder with mode 0700.
pub fn private_folder() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder
}

/// Options for writing a file; one that is created has mode 0600. Opening a link is an error, and so is
/// opening a pipe that nobody reads, unless it is opened for reading too.
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(OWN_FILE);
    options
}

/// The flags with which files are opened for writing where others may have put something of another kind.
const OWN_FILE: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

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

/// Returns options for appending to a file, which is created if necessary. Opening a link is an error, and so
/// is opening a pipe that nobody reads.
pub fn appended_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.append(true).create(true).custom_flags(OWN_FILE);
    options
}

/// Returns whether this is a folder, and not a link to one, that belongs to this user and that nobody else
/// can write to. Others may be able to read it: this tells whether what is found there can be trusted, and
/// who may read it is its owner's choice.
pub fn is_private_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| {
        found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & WRITE_BY_OTHERS == 0
    })
}

/// Returns whether this is a regular file that belongs to this user and that nobody else can read or write: a
/// secret in it is known to nobody else. `file` is of the file itself and not of what a link leads to.
pub fn is_private_file(file: &Metadata) -> bool {
    file.is_file() && file.uid() == geteuid().as_raw() && file.mode() & ANY_BY_OTHERS == 0
}

/// Flushes a file, or the names in a folder, to the disk.
///
/// # Errors
/// When it cannot be opened or flushed.
pub fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Writes a file with mode 0600 and flushes it to the disk. It is written under another name (`.NAME.new`)
/// and then renamed, so that a kill leaves the previous file or the new one. Links of either name are
/// replaced and not followed. What a kill leaves behind is replaced by the next write, so there is one writer
/// at a time.
///
/// # Errors
/// When it cannot be written, flushed or renamed, or when `path` has no name.
pub fn write_and_sync(path: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let unfinished = path.with_file_name(format!(".{}.new", name.to_string_lossy()));
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = private_file().create_new(true).open(&unfinished)?;
    file.write_all(contents.as_ref())?;
    file.sync_all()?;
    fs::rename(&unfinished, path)
}

/// Returns whether a path is in `/dev` or `/proc`, or is a link into them, as `/dev/stdout` is. What it leads
/// to may be a file, but the name must stay. `/dev/shm` is a folder like any other.
pub fn leads_to_a_device(path: &Path) -> bool {
    let is_there = |path: &Path| {
        path.starts_with("/proc") || (path.starts_with("/dev") && !path.starts_with("/dev/shm"))
    };
    is_there(path) || fs::read_link(path).is_ok_and(|target| is_there(&target))
}

/// Refuses to put a file in the place of something that is none, such as a device or a pipe. A link is
/// replaced, and not followed.
///
/// # Errors
/// Something of another kind has this name.
pub fn refuse_to_replace_special(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() && !found.is_symlink() => {
            Err(io::Error::other("what has this name is not a file, and is not replaced by one"))
        }
        _ => Ok(()),
    }
}

/// Writes a file with mode 0600 that may have several writers at a time. It is written under a name that
/// cannot be guessed and then renamed, so that a reader sees the previous file or the new one, and a link of
/// its name is replaced and not followed. It is not flushed: after a power cut the file may be empty.
///
/// # Errors
/// When it cannot be written or renamed.
pub fn write_shared(path: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    shared(path, contents.as_ref())?.persist(path).map(drop).map_err(|refused| refused.error)
}

/// Does the same, and flushes file and folder, for what cannot be made again.
///
/// # Errors
/// When it cannot be written or renamed.
pub fn write_shared_and_sync(path: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let file = shared(path, contents.as_ref())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|refused| refused.error)?;
    File::open(folder_of(path))?.sync_all()
}

fn shared(path: &Path, contents: &[u8]) -> io::Result<NamedTempFile> {
    refuse_to_replace_special(path)?;
    let mut file = NamedTempFile::new_in(folder_of(path))?;
    file.write_all(contents)?;
    Ok(file)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
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

/// Returns whether a folder can have this name, which another machine has given: at most 128 letters, digits,
/// `-`, `.` and `_` of ASCII, and not hidden.
pub fn is_plain_name(name: &str) -> bool {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    (1..=128).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_safe)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_link_to_standard_output_leads_to_a_device_and_a_file_in_memory_does_not() {
        let root = tempfile::tempdir().unwrap();
        let link = root.path().join("out");
        for (target, leads) in [("/proc/self/fd/1", true), ("/dev/null", true), ("/dev/shm/a", false)] {
            symlink(target, &link).unwrap();
            assert_eq!((leads_to_a_device(&link), leads_to_a_device(Path::new(target))), (leads, leads));
            fs::remove_file(&link).unwrap();
        }
        assert!(!leads_to_a_device(&root.path().join("file")));
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
    fn a_written_file_is_private_and_replaces_links_and_not_what_they_lead_to() {
        let writers: [fn(&Path) -> io::Result<()>; 3] = [
            |page| write_and_sync(page, "new"),
            |page| write_shared(page, "new"),
            |page| write_shared_and_sync(page, "new"),
        ];
        let links = [&["page.md", ".page.md.new"][..], &["page.md"], &["page.md"]];
        for (write, links) in writers.into_iter().zip(links) {
            let root = tempfile::tempdir().unwrap();
            let [page, elsewhere] = ["page.md", "elsewhere.md"].map(|name| root.path().join(name));
            fs::write(&elsewhere, "mine").unwrap();
            for link in links {
                symlink(&elsewhere, root.path().join(link)).unwrap();
            }
            write(&page).unwrap();
            assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "mine");
            assert_eq!(fs::read_to_string(&page).unwrap(), "new");
            assert_eq!((mode(&page), fs::symlink_metadata(&page).unwrap().is_file()), (0o600, true));
            assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
        }
    }

    #[test]
    fn a_file_is_appended_to_and_links_and_pipes_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let [list, link] = ["list", "link"].map(|name| root.path().join(name));
        for line in ["a\n", "b\n"] {
            appended_file().open(&list).unwrap().write_all(line.as_bytes()).unwrap();
        }
        symlink(&list, &link).unwrap();
        let pipe = root.path().join("pipe");
        rustix::fs::mkfifoat(CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        for other in [&link, &pipe] {
            assert!(appended_file().open(other).is_err());
            assert!(private_file().create(true).truncate(true).open(other).is_err());
        }
        assert_eq!(fs::read_to_string(&list).unwrap(), "a\nb\n");
    }

    #[test]
    fn a_folder_is_private_if_no_link_leads_to_it_and_nobody_else_can_write_to_it() {
        let root = tempfile::tempdir().unwrap();
        let [folder, link] = ["folder", "link"].map(|name| root.path().join(name));
        fs::create_dir(&folder).unwrap();
        symlink(&folder, &link).unwrap();
        for (mode, is_private) in [(0o700, true), (0o755, true), (0o770, false), (0o702, false)] {
            fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                (is_private_folder(&folder), is_private_folder(&link)),
                (is_private, false),
                "{mode:o}"
            );
        }
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
