//! Whether a file is still the same, without reading it.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// What tells one content of a file from another without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stamp {
    bytes: u64,
    modified_s: i64,
    modified_ns: i64,
    inode: u64,
}

impl Stamp {
    /// Returns the stamp of a file, if it exists.
    pub fn of(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().as_ref().map(Self::from)
    }

    /// Returns the files directly in a folder with their stamps, in the order of their names; none if there
    /// is no such folder. The stamp of the folder itself would not change with what is written into a file.
    pub fn of_files_in(folder: &Path) -> Vec<(PathBuf, Self)> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let stamped = |path: PathBuf| {
            let found = fs::metadata(&path).ok().filter(Metadata::is_file)?;
            Some((path, Self::from(&found)))
        };
        let mut files: Vec<_> = entries.filter_map(|entry| stamped(entry.path())).collect();
        files.sort_by(|(one, _), (other, _)| one.cmp(other));
        files
    }
}

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Self {
            bytes: metadata.len(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
            inode: metadata.ino(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn a_file_that_is_rewritten_in_place_or_replaced_has_another_stamp_than_before() {
        let folder = tempfile::tempdir().unwrap();
        let [weights, other] = ["weights", "other"].map(|name| folder.path().join(name));
        fs::create_dir(folder.path().join("inner")).unwrap();
        let stamps = || Stamp::of_files_in(folder.path());
        assert!(stamps().is_empty() && Stamp::of_files_in(&weights).is_empty());
        let write = |path: &Path, text: &str, minutes: u64| {
            fs::write(path, text).unwrap();
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(60 * minutes);
            OpenOptions::new().write(true).open(path).unwrap().set_modified(at).unwrap();
        };
        write(&weights, "one", 1);
        let first = stamps();
        assert_eq!((first.len(), &first), (1, &stamps()));
        write(&weights, "two", 2);
        let second = stamps();
        write(&weights, "longer", 2);
        let third = stamps();
        write(&other, "longer", 2);
        fs::rename(&other, &weights).unwrap();
        let fourth = stamps();
        write(&other, "longer", 2);
        let all = [first, second, third, fourth, stamps()];
        for (at, stamp) in all.iter().enumerate() {
            assert!(!all[..at].contains(stamp), "{at}: {all:?}");
        }
    }
}
