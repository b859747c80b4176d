//! Looks up without a network which files of a model are on this machine already, for a table of many models.

use std::path::Path;

use crate::cache::{RepoCache, names_in};
use crate::model_name::ModelName;
use crate::select::{INDEX, Needs, select};

/// The part of a model that is on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cached {
    /// Nothing, or nothing that could be read.
    Nothing,
    /// Some of it: a download continues here. Small files alone count too.
    Partial {
        /// Bytes that are here.
        bytes: u64,
    },
    /// All that training needs. That its bytes are the hub's newest is not known without asking.
    Whole {
        /// Bytes of all needed files.
        bytes: u64,
    },
}

/// Looks into the cache at `root`, or into the folder that `model` names.
pub(crate) fn look(model: &str, root: &Path, home: Option<&Path>) -> Cached {
    let (snapshot, blobs) = match ModelName::parse(model, home) {
        Ok(ModelName::Folder(folder)) => (Some(folder), None),
        Ok(ModelName::Repo { id, revision }) => {
            let cache = RepoCache::new(root, &id);
            let snapshot = cache.commit_of(&revision).map(|commit| cache.snapshot(&commit));
            (snapshot, Some(cache.blobs()))
        }
        Err(_) => return Cached::Nothing,
    };
    if let Some(bytes) = snapshot.as_deref().and_then(whole) {
        return Cached::Whole { bytes };
    }
    // Blobs are what arrived, whatever their revision; `.incomplete` ones are among them.
    match blobs.or(snapshot).map_or(0, |folder| bytes_in(&folder)) {
        0 => Cached::Nothing,
        bytes => Cached::Partial { bytes },
    }
}

/// Bytes of all files that training needs, where they are all there.
fn whole(snapshot: &Path) -> Option<u64> {
    let names = names_in(snapshot).ok()?;
    let files = select(Needs::Model, "", &names, || Ok(snapshot.join(INDEX))).ok()?;
    let size = |name: &String| Some(snapshot.join(name).metadata().ok()?.len());
    files.iter().map(size).sum()
}

fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.metadata().ok()).filter(|m| m.is_file()).map(|m| m.len()).sum()
}
