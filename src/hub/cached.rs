//! Finds out without the network which files of a model are already on this machine, for a table of many
//! models.

use std::path::{Path, PathBuf};

use crate::cache::{DEPTH_OF_MODEL, RepoCache, names_in};
use crate::model_name::ModelName;
use crate::repo_kind::RepoKind;
use crate::select::{INDEX, Needs, select};

/// The part of a model that is on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cached {
    /// Nothing, or nothing readable.
    Nothing,
    /// Some of the files, where a download continues. Small files alone count too.
    Partial {
        /// The number of bytes on this machine.
        bytes: u64,
    },
    /// Everything that training needs. Whether it is the newest version is not known without asking the hub.
    Whole {
        /// The size of all needed files in bytes.
        bytes: u64,
    },
}

/// A model of the hub that is completely on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeModel {
    /// Its id, `org/name`.
    pub id: String,
    /// The folder of the files of its branch `main`.
    pub folder: PathBuf,
}

/// Lists the models in the cache at `root` whose branch `main` is complete, by id.
pub(crate) fn whole_models(root: &Path) -> Vec<WholeModel> {
    let entries = std::fs::read_dir(root).into_iter().flatten().filter_map(Result::ok);
    let mut models: Vec<WholeModel> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let id = name.strip_prefix("models--")?.replace("--", "/");
            // Whatever lies in the folder by another name than the hub's is none of its models.
            let is_named = matches!(ModelName::parse(&id, None), Ok(ModelName::Repo { .. }));
            let cache = RepoCache::new(root, RepoKind::Model, &id);
            let folder = cache.snapshot(&cache.commit_of("main").filter(|_| is_named)?);
            whole(&folder)?;
            Some(WholeModel { id, folder })
        })
        .collect();
    models.sort_by(|one, other| one.id.cmp(&other.id));
    models
}

/// Checks the cache at `root`, or the folder that `model` names.
pub(crate) fn look(model: &str, root: &Path, home: Option<&Path>) -> Cached {
    let (snapshot, blobs) = match ModelName::parse(model, home) {
        Ok(ModelName::Folder(folder)) => (Some(folder), None),
        Ok(ModelName::Repo { id, revision }) => {
            let cache = RepoCache::new(root, RepoKind::Model, &id);
            let snapshot = cache.commit_of(&revision).map(|commit| cache.snapshot(&commit));
            (snapshot, Some(cache.blobs()))
        }
        Err(_) => return Cached::Nothing,
    };
    if let Some(bytes) = snapshot.as_deref().and_then(whole) {
        return Cached::Whole { bytes };
    }
    // Blobs count for any revision, including `.incomplete` ones.
    match blobs.or(snapshot).map_or(0, |folder| bytes_in(&folder)) {
        0 => Cached::Nothing,
        bytes => Cached::Partial { bytes },
    }
}

/// Returns the size of all files that training needs, if all of them exist.
fn whole(snapshot: &Path) -> Option<u64> {
    let names = names_in(snapshot, DEPTH_OF_MODEL).ok()?;
    let files = select(Needs::Model, "", &names, || Ok(snapshot.join(INDEX))).ok()?;
    let size = |name: &String| Some(snapshot.join(name).metadata().ok()?.len());
    files.iter().map(size).sum()
}

fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.metadata().ok()).filter(|m| m.is_file()).map(|m| m.len()).sum()
}
