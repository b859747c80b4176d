//! What sparktune keeps next to the runs and gets again when it is needed: tokenised data, compiled kernels,
//! models that other members of a cluster have sent, and covariances of keys that edits are computed with.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use sparktune_runlog::RunsRoot;

use crate::failure::Failure;
use crate::{kernel_cache, token_cache};

/// The folder of models that other members of a cluster have sent.
pub(crate) const MODELS: &str = ".models";
/// What is in it.
const FROM_CLUSTER: &str = "models from a cluster";
/// The folder of covariances of keys that edits are computed with.
pub const KEY_STATISTICS: &str = ".key-statistics";

/// A folder that can be deleted without losing anything but time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// The folder.
    pub path: PathBuf,
    /// What is in it.
    pub what: &'static str,
    /// The size of its files in bytes.
    pub size_bytes: u64,
}

/// Lists this user's caches in a folder of runs. Those of other users and links are left out, and models that
/// were sent here for a run that goes on here.
pub fn caches(runs_dir: &Path) -> Vec<Cache> {
    let kinds = [
        (token_cache::TOKENS, "tokenised data"),
        (kernel_cache::FOLDER, "compiled kernels"),
        (MODELS, FROM_CLUSTER),
        (KEY_STATISTICS, "covariances for edits"),
    ];
    let mut found: Vec<Cache> = Vec::new();
    for entry in fs::read_dir(runs_dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // The second user of a folder has a name with their number.
        let is_of = |kind: &str| {
            name.strip_prefix(kind)
                .is_some_and(|rest| rest.is_empty() || rest == format!("-{}", geteuid().as_raw()))
        };
        let Some((_, what)) = kinds.into_iter().find(|(kind, _)| is_of(kind)) else { continue };
        // This does not follow links.
        let is_own = entry.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == geteuid().as_raw());
        let is_needed = what == FROM_CLUSTER && is_needed(runs_dir, &entry.path());
        if is_own && !is_needed {
            found.push(Cache { size_bytes: size_of(&entry.path()), path: entry.path(), what });
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Returns whether a run that is led here, or a rank of one that is led elsewhere, has its model in this
/// folder of models from a cluster.
fn is_needed(runs_dir: &Path, folder: &Path) -> bool {
    let root = RunsRoot::new(runs_dir);
    let runs = root.list().unwrap_or_default().into_iter().chain(root.rank_folders().unwrap_or_default());
    // What is noted is a whole path, and the folder of the runs need not be one.
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = whole(folder);
    runs.filter_map(|run| run.models()).any(|models| whole(&models.base).starts_with(&folder))
}

/// Deletes a cache.
///
/// # Errors
/// A file in it cannot be deleted.
pub fn delete(cache: &Cache) -> Result<(), Failure> {
    fs::remove_dir_all(&cache.path).map_err(|error| Failure::io("delete", &cache.path, &error))
}

fn size_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size_of(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use sparktune_runlog::Models;

    use super::*;

    #[test]
    fn caches_are_found_with_their_size_and_runs_and_links_are_not() {
        let runs = tempfile::tempdir().unwrap();
        let at = |name: &str| runs.path().join(name);
        let second = format!(".tokens-{}", geteuid().as_raw());
        for folder in [
            ".tokens/a",
            &*second,
            ".tokens-backup",
            ".tokensmith",
            ".compiled-kernels",
            ".models",
            ".tiles",
            "a-run/data",
        ] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        fs::write(at(".tokens/a/file"), "12345").unwrap();
        fs::write(at("a-run/data/file"), "1").unwrap();
        symlink(at("a-run"), at(".tokens-8")).unwrap();
        let found = caches(runs.path());
        let names: Vec<_> = found.iter().map(|cache| cache.path.strip_prefix(runs.path()).unwrap()).collect();
        assert_eq!(names, [".compiled-kernels", ".models", ".tokens", &second].map(Path::new));
        assert_eq!(found[2].size_bytes, 5);
        let root = RunsRoot::new(runs.path());
        let models = Models { base: at(".models"), head: None };
        let link = runs.path().with_extension("link");
        symlink(runs.path(), &link).unwrap();
        for needs in [root.create("a", "lora").unwrap(), root.of_rank("b", 1).unwrap().0] {
            needs.note_models(&models).unwrap();
            for runs_dir in [runs.path(), &link] {
                assert!(caches(runs_dir).iter().all(|cache| cache.what != FROM_CLUSTER));
            }
            fs::remove_dir_all(needs.path()).unwrap();
            assert_eq!(caches(runs.path()).len(), 4);
        }
        fs::remove_file(link).unwrap();
        delete(&found[2]).unwrap();
        assert!(!at(".tokens").exists() && at("a-run/data/file").exists());
        assert!(caches(&at("none")).is_empty());
    }
}
