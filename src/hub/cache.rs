//! The cache on disk, in the layout that `huggingface_hub` shares between all its users.
//!
//! ```text
//! models--org--name/blobs/<etag>                the bytes; for large files the etag is their SHA-256
//! models--org--name/blobs/<etag>.incomplete     what arrived so far
//! models--org--name/snapshots/<commit>/<file>   a relative link to a blob
//! models--org--name/refs/<branch or tag>        a commit
//! .locks/models--org--name/<etag>.lock          held (flock) by whoever writes that blob
//! ```
//!
//! Data sets have the same layout in `datasets--org--name`, and one file more that is our own:
//! `.listings/<commit>.json` has the names of all files of a commit. Without it nobody could tell offline
//! whether all files of a split are there.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::{Cache, Repo};

use crate::error::Error;
use crate::model_name::is_commit;
use crate::progress::Watch;
use crate::repo_kind::RepoKind;

/// One repository's part of the cache.
#[derive(Debug, Clone)]
pub(crate) struct RepoCache {
    root: PathBuf,
    kind: RepoKind,
    id: String,
}

impl RepoCache {
    pub(crate) fn new(root: &Path, kind: RepoKind, id: &str) -> Self {
        Self { root: root.into(), kind, id: id.into() }
    }

    pub(crate) fn kind(&self) -> RepoKind {
        self.kind
    }

    fn repo(&self) -> Repo {
        Repo::new(self.id.clone(), self.kind.of_hub())
    }

    fn layout(&self) -> hf_hub::CacheRepo {
        Cache::new(self.root.clone()).repo(self.repo())
    }

    fn folder_name(&self) -> String {
        self.repo().folder_name()
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.layout().blob_path(etag)
    }

    /// Returns the folder of all blobs, complete and incomplete.
    pub(crate) fn blobs(&self) -> PathBuf {
        self.root.join(self.folder_name()).join("blobs")
    }

    pub(crate) fn incomplete(&self, etag: &str) -> PathBuf {
        self.layout().blob_path(&format!("{etag}.incomplete"))
    }

    /// Returns the folder of one commit, which need not exist.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.layout().pointer_path(commit)
    }

    fn reference(&self, revision: &str) -> PathBuf {
        self.root.join(self.folder_name()).join("refs").join(revision)
    }

    /// Returns the file with the names of all files of a commit, which need not exist.
    fn listing(&self, commit: &str) -> PathBuf {
        self.root.join(self.folder_name()).join(".listings").join(format!("{commit}.json"))
    }

    /// Returns the text that [`keep_listing`](Self::keep_listing) saved for a commit.
    pub(crate) fn kept_listing(&self, commit: &str) -> Option<Vec<u8>> {
        std::fs::read(self.listing(commit)).ok()
    }

    /// Saves the names of all files of a commit.
    pub(crate) fn keep_listing(&self, commit: &str, text: &[u8]) -> Result<(), Error> {
        let path = self.listing(commit);
        if path.is_file() { Ok(()) } else { replace(&path, text) }
    }

    /// Returns the commit that a revision named when it was last fetched.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.into());
        }
        let text = std::fs::read_to_string(self.reference(revision)).ok()?;
        Some(text.trim().to_string()).filter(|commit| is_commit(commit))
    }

    /// Stores the commit that `revision` names.
    pub(crate) fn remember(&self, revision: &str, commit: &str) -> Result<(), Error> {
        if is_commit(revision) || self.commit_of(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        replace(&self.reference(revision), commit.as_bytes())
    }

    /// Links `snapshots/<commit>/<file>` to a blob. The caller must hold the blob's lock.
    pub(crate) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<PathBuf, Error> {
        let pointer = self.snapshot(commit).join(file);
        let folder = pointer.parent().expect("a file in a snapshot has a parent");
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let up = "../".repeat(2 + file.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        if std::fs::read_link(&pointer).is_ok_and(|old| old == target) {
            return Ok(pointer);
        }
        if pointer.symlink_metadata().is_ok() {
            std::fs::remove_file(&pointer).map_err(Error::io(&pointer))?;
        }
        symlink(&target, &pointer).map_err(Error::io(&pointer))?;
        Ok(pointer)
    }

    /// Waits until no other thread or process writes the blob. `file` is for display.
    pub(crate) fn lock(&self, etag: &str, file: &str, watch: &Watch<'_>) -> Result<BlobLock, Error> {
        const POLL: Duration = Duration::from_millis(200);
        let folder = self.root.join(".locks").join(self.folder_name());
        std::fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
        let path = folder.join(format!("{etag}.lock"));
        let mut reported = false;
        loop {
            let lock = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .map_err(Error::io(&path))?;
            match lock.try_lock() {
                // Python's filelock removes the file when it releases the lock, and a lock on a removed file
                // protects nothing.
                Ok(()) if is_still_at(&lock, &path) => return Ok(BlobLock { _file: lock }),
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) => {
                    if !reported {
                        watch.waiting(file);
                        reported = true;
                    }
                    watch.pause(POLL)?;
                }
                Err(TryLockError::Error(reason)) => return Err(Error::Io { path, reason }),
            }
        }
    }
}

/// Writes a small file under another name and renames it, so that no reader sees a part of it.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let folder = path.parent().expect("a file in the cache has a parent");
    std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(Error::io(folder))?;
    file.write_all(bytes).map_err(Error::io(path))?;
    file.persist(path).map_err(|e| Error::Io { path: path.into(), reason: e.error })?;
    Ok(())
}

/// A lock that is held while a blob is written. The kernel releases it on drop or when the process ends.
#[derive(Debug)]
pub(crate) struct BlobLock {
    _file: File,
}

fn is_still_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.metadata()) {
        (Ok(held), Ok(there)) => held.ino() == there.ino() && held.dev() == there.dev(),
        _ => false,
    }
}

/// The number of folders above a file of a repository. Models have at most one.
pub(crate) const DEPTH_OF_MODEL: usize = 1;
pub(crate) const DEPTH_OF_DATA_SET: usize = 16;

/// Returns the paths of the files in a folder and in its subfolders down to `depth`.
pub(crate) fn names_in(folder: &Path, depth: usize) -> Result<BTreeSet<String>, Error> {
    fn walk(folder: &Path, prefix: &str, depth: usize, names: &mut BTreeSet<String>) -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = entry.path();
            if path.is_file() {
                names.insert(format!("{prefix}{name}"));
            } else if depth > 0 && path.is_dir() {
                // A folder that may not be read contains no part of the repository.
                drop(walk(&path, &format!("{prefix}{name}/"), depth - 1, names));
            }
        }
        Ok(())
    }
    let mut names = BTreeSet::new();
    walk(folder, "", depth, &mut names).map_err(Error::unreadable(folder))?;
    Ok(names)
}

/// Returns the bytes that this user may still write on the disk where `path` is or will be.
pub(crate) fn free_space(path: &Path) -> Option<u64> {
    let there = path.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    let stat = rustix::fs::statvfs(there).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn model(root: &Path) -> RepoCache {
        RepoCache::new(root, RepoKind::Model, "org/name")
    }

    #[test]
    fn the_layout_is_that_of_huggingface_hub() {
        let cache = model(Path::new("/c"));
        assert_eq!(cache.blob("e"), Path::new("/c/models--org--name/blobs/e"));
        assert_eq!(cache.incomplete("e"), Path::new("/c/models--org--name/blobs/e.incomplete"));
        assert_eq!(cache.snapshot(COMMIT), Path::new("/c/models--org--name/snapshots").join(COMMIT));
        assert_eq!(cache.reference("refs/pr/1"), Path::new("/c/models--org--name/refs/refs/pr/1"));
        let data = RepoCache::new(Path::new("/c"), RepoKind::DataSet, "org/name");
        assert_eq!(data.blob("e"), Path::new("/c/datasets--org--name/blobs/e"));
    }

    #[test]
    fn a_revision_is_remembered_and_a_damaged_one_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = model(dir.path());
        assert_eq!(cache.commit_of("main"), None);
        cache.remember("main", COMMIT).unwrap();
        assert_eq!(cache.commit_of("main").as_deref(), Some(COMMIT));
        assert_eq!(cache.commit_of(COMMIT).as_deref(), Some(COMMIT));
        std::fs::write(cache.reference("main"), "../../etc").unwrap();
        assert_eq!(cache.commit_of("main"), None);
    }

    #[test]
    fn links_are_relative_also_for_files_in_folders_and_a_stale_one_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let cache = model(dir.path());
        std::fs::create_dir_all(cache.blob("e").parent().unwrap()).unwrap();
        for (etag, text) in [("e", "old"), ("f", "new")] {
            std::fs::write(cache.blob(etag), text).unwrap();
            for file in ["config.json", "sub/dir/x.safetensors"] {
                let pointer = cache.link(COMMIT, file, etag).unwrap();
                assert!(std::fs::read_link(&pointer).unwrap().is_relative());
                assert_eq!(std::fs::read_to_string(pointer).unwrap(), text);
            }
        }
    }

    #[test]
    fn a_lock_whose_file_was_removed_is_taken_anew() {
        let dir = tempfile::tempdir().unwrap();
        let cache = model(dir.path());
        let stop = std::sync::atomic::AtomicBool::new(false);
        let first = cache.lock("e", "f", &Watch::new(&(), &stop)).unwrap();
        let path = dir.path().join(".locks/models--org--name/e.lock");
        assert!(matches!(File::open(&path).unwrap().try_lock(), Err(TryLockError::WouldBlock)));
        assert!(is_still_at(&first._file, &path));
        std::fs::remove_file(&path).unwrap();
        assert!(!is_still_at(&first._file, &path));
        let second = cache.lock("e", "f", &Watch::new(&(), &stop)).unwrap();
        assert!(is_still_at(&second._file, &path));
    }

    #[test]
    fn free_space_is_told_for_folders_that_are_yet_to_be_made() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_space(&dir.path().join("a/b/c")).unwrap() > 0);
    }
}
