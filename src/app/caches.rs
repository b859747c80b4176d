//! What sparktune keeps next to the runs and gets again when it is needed: tokenised data, compiled kernels,
//! models that other members of a cluster have sent, and covariances of keys that edits are computed with.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use sparktune_runlog::{Models, RunDir, RunsRoot};

use crate::failure::Failure;
use crate::{kernel_cache, token_cache};

/// The folder of models that other members of a cluster have sent.
pub(crate) const MODELS: &str = ".models";
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
        (MODELS, "models from a cluster"),
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
        if is_own && !is_needed(runs_dir, &entry.path()) {
            found.push(Cache { size_bytes: size_of(&entry.path()), path: entry.path(), what });
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Returns whether a run has its model in this folder, and in no other one that is known here.
fn is_needed(runs_dir: &Path, folder: &Path) -> bool {
    let is_in = |models: Models| models.base.starts_with(folder);
    let is_led_here = |run: &RunDir| run.models().is_some_and(is_in);
    folder.ends_with(MODELS) && RunsRoot::new(runs_dir).list().unwrap_or_default().iter().any(is_led_here)
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
        let run = RunsRoot::new(runs.path()).create("a", "lora").unwrap();
        run.note_models(&Models { base: at(".models"), head: None }).unwrap();
        assert!(caches(runs.path()).iter().all(|cache| cache.path != at(".models")), "the run needs it");
        delete(&found[2]).unwrap();
        assert!(!at(".tokens").exists() && at("a-run/data/file").exists());
        assert!(caches(&at("none")).is_empty());
    }
}
