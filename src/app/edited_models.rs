//! Edited models that the page keeps next to the runs: where they are, and what their stacks of patches say.
//!
//! | below `.edited` | what it is |
//! |---|---|
//! | `models/NAME` | an edited model |
//! | `drafts/ID` | an edit that nobody has kept yet: `model` and what the page knows of it |
//! | `undo/NAME` | the patches that were taken away or changed, and the history of a model |
//!
//! Enters: the folder of the runs. Leaves: paths, and the base and the names of the patches of an edited
//! folder, as its `patches/stack.json` has them. What patches do is known by the crate that edits alone.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use serde::Deserialize;
use sparktune_base::files::{create_private_folder, is_private_folder};
use sparktune_base::regular_file::read_regular;

use crate::failure::Failure;
use crate::folders::private_folder_of_user;

/// The folder next to the runs. Lists of runs skip hidden names.
const FOLDER: &str = ".edited";
/// Where a folder says that it is edited.
const STACK_FILE: &str = "patches/stack.json";
/// The most bytes of that file.
const MOST_BYTES: u64 = 1 << 20;
/// The most bytes of the name of a model: a folder beside it has a few more.
const LONGEST_NAME: usize = 100;

/// A part of the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Models that were kept.
    Models,
    /// Edits that were not kept yet.
    Drafts,
    /// What is needed to undo changes.
    Undo,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Models => "models",
            Self::Drafts => "drafts",
            Self::Undo => "undo",
        }
    }
}

/// What an edited folder says of its patches.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Stacked {
    /// The folder of the base.
    pub base: PathBuf,
    /// The names of the patches, first one first.
    pub patches: Vec<String>,
}

/// Returns a part of this user's folder, which is created if necessary.
///
/// # Errors
/// It cannot be created, or somebody else has taken its name.
pub fn folder(runs_dir: &Path, part: Part) -> Result<PathBuf, Failure> {
    fs::create_dir_all(runs_dir).map_err(|error| Failure::io("create", runs_dir, &error))?;
    let path = private_folder_of_user(runs_dir, FOLDER)?.join(part.name());
    create_private_folder(&path).map_err(|error| Failure::io("create", &path, &error))?;
    path.canonicalize().map_err(|error| Failure::io("open", &path, &error))
}

/// Returns the same folder, if there is one.
pub fn existing_folder(runs_dir: &Path, part: Part) -> Option<PathBuf> {
    let own = format!("{FOLDER}-{}", geteuid().as_raw());
    let mut places = [FOLDER, &own].map(|name| runs_dir.join(name)).into_iter();
    let place = places.find(|path| is_private_folder(path))?.join(part.name());
    place.canonicalize().ok().filter(|place| place.is_dir())
}

/// Returns the names of the models that were kept.
pub fn names(runs_dir: &Path) -> Vec<String> {
    let Some(folder) = existing_folder(runs_dir, Part::Models) else { return Vec::new() };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| is_name(name));
    names.sort_unstable();
    names
}

/// Returns the folder of the model of this name, if there is one.
pub fn model(runs_dir: &Path, name: &str) -> Option<PathBuf> {
    existing(&existing_folder(runs_dir, Part::Models)?, name)
}

/// Returns the folder of an edit that nobody has kept yet.
pub fn draft(runs_dir: &Path, id: &str) -> Option<PathBuf> {
    existing(&existing_folder(runs_dir, Part::Drafts)?, id)
}

fn existing(folder: &Path, name: &str) -> Option<PathBuf> {
    let path = folder.join(Some(name).filter(|name| is_name(name))?);
    // A link would lead elsewhere.
    fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()).then_some(path)
}

/// Returns whether a name can be that of an edited model: letters, digits, dots, dashes and underscores.
pub fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=LONGEST_NAME).contains(&name.len())
        && name.chars().all(is_plain)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

/// Returns what a folder says of its patches, if it is an edited model.
pub fn stacked(folder: &Path) -> Option<Stacked> {
    serde_json::from_slice(&read_regular(&folder.join(STACK_FILE), MOST_BYTES).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_and_drafts_are_found_by_plain_names_alone() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!((names(place.path()), model(place.path(), "mine")), (Vec::new(), None));
        assert!(!place.path().join(FOLDER).exists(), "a look makes no folder");
        let models = folder(place.path(), Part::Models).unwrap();
        for name in ["mine", ".mine-being-edited", "old", "a b"] {
            fs::create_dir(models.join(name)).unwrap();
        }
        std::os::unix::fs::symlink("/etc", models.join("link")).unwrap();
        assert_eq!(names(place.path()), ["link", "mine", "old"]);
        assert_eq!(model(place.path(), "mine"), Some(models.join("mine")));
        for name in ["link", "none", "..", "../models/mine", "", ".mine-being-edited", "/etc", "a b"] {
            assert_eq!(model(place.path(), name), None, "{name}");
        }
        let drafts = folder(place.path(), Part::Drafts).unwrap();
        fs::create_dir(drafts.join("1")).unwrap();
        assert_eq!((draft(place.path(), "1"), model(place.path(), "1")), (Some(drafts.join("1")), None));
    }

    #[test]
    fn an_edited_folder_names_its_base_and_its_patches() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(stacked(place.path()), None);
        fs::create_dir(place.path().join("patches")).unwrap();
        let text = r#"{"version": 1, "base": "/models/base", "base_hash": "00", "patches": ["a", "b"], "off": ["a"]}"#;
        fs::write(place.path().join(STACK_FILE), text).unwrap();
        let found = stacked(place.path()).unwrap();
        assert_eq!(
            (found.base.as_path(), found.patches),
            (Path::new("/models/base"), vec!["a".into(), "b".into()])
        );
    }
}
