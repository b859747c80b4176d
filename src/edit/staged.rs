//! An edited folder that is written and not in its place yet, and how it takes its place: in one step, with
//! the files that its user has added to what was there.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::{Map, Value};
use sparktune_base::files::{exchange, sync};
use sparktune_base::regular_file::read_model_json;
use sparktune_infer::codebook_file::{CODEBOOK_FILE, hash_of};

use crate::error::EditError;
use crate::facts::shown;
use crate::folder_lock::{BEING_KEPT, beside, remove_abandoned, set_aside};
use crate::patch::{Patch, file_of};
use crate::stack_file::{PATCHES, STACK_FILE, StackFile};
use crate::unfinished::{Modes, Unfinished, entries};

/// The file with all weights of a folder that has no index.
const WEIGHTS: &str = "model.safetensors";
/// The list of the weight files of a folder.
const INDEX: &str = "model.safetensors.index.json";

/// A complete folder that is not in its place yet. It is removed when it is dropped.
#[derive(Debug)]
pub struct Staged {
    pub(crate) folder: PathBuf,
    /// The private folder that it is in.
    pub(crate) around: Unfinished,
    pub(crate) out: PathBuf,
    pub(crate) modes: Modes,
}

impl Staged {
    /// Returns the folder as it is now.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a patch of the folder again, with its scores.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn rewrite(&self, patch: &Patch) -> Result<(), EditError> {
        let path = self.folder.join(PATCHES).join(file_of(&patch.about.name));
        patch.write(&path)?;
        self.modes.give(&path)
    }

    /// Puts the folder into its place with the files of others that are there, and removes the rest of what
    /// was there.
    ///
    /// # Errors
    /// A file cannot be kept, or the names cannot be changed. Then what was there is still there.
    pub fn commit(self) -> Result<(), EditError> {
        let io = EditError::io(&self.out);
        let parent = self.around.path().parent().unwrap_or(Path::new("."));
        let done = if self.out.exists() {
            self.keep_files_of_others()?;
            match exchange(&self.folder, &self.out) {
                Ok(true) => Ok(()),
                Ok(false) => self.exchange_in_steps(&set_aside(&self.out)?),
                Err(error) => Err(error),
            }
        } else {
            fs::rename(&self.folder, &self.out)
        };
        done.and_then(|()| sync(parent)).map_err(io)
    }

    /// Links or copies the files that an edit has not written, and those copies of the base's files that its
    /// user has changed since, such as a chat template.
    fn keep_files_of_others(&self) -> Result<(), EditError> {
        let old = StackFile::read(&self.out)?;
        let own: BTreeSet<OsString> = old.patches.iter().map(|name| file_of(name).into()).collect();
        let patches = self.out.join(PATCHES);
        for path in entries(&patches)? {
            let name = path.file_name().unwrap_or_default();
            if name == STACK_FILE || own.contains(name) {
                continue;
            }
            let to = self.folder.join(PATCHES).join(name);
            if fs::symlink_metadata(&to).is_err() {
                link_or_copy(&path, &to)?;
            } else if !is_same_file(&path, &to) {
                return Err(in_the_way(&path));
            }
        }
        let weights = weight_files(&self.out);
        for path in entries(&self.out)? {
            let name = path.file_name().unwrap_or_default();
            let to = self.folder.join(name);
            if name == PATCHES || name == CODEBOOK_FILE || weights.contains(name) {
                continue;
            }
            if fs::symlink_metadata(&to).is_ok() {
                let is_as_copied = || name.to_str().is_some_and(|name| has_hash(&path, old.copies.get(name)));
                if belongs_to_weights(name) || is_same_file(&path, &to) || is_as_copied() {
                    continue;
                }
                fs::remove_file(&to).map_err(EditError::io(&to))?;
            }
            link_or_copy(&path, &to)?;
        }
        let patches = self.folder.join(PATCHES);
        sync(&patches).and_then(|()| sync(&self.folder)).map_err(EditError::io(&self.folder))
    }

    /// Exchanges names where the file system cannot. There is an instant without a folder; a kill in it is
    /// mended by the next [`FolderLock`](crate::FolderLock).
    pub(crate) fn exchange_in_steps(&self, aside: &Path) -> io::Result<()> {
        fs::rename(&self.out, aside)?;
        if let Err(error) = fs::rename(&self.folder, &self.out) {
            fs::rename(aside, &self.out)?;
            return Err(error);
        }
        fs::rename(aside, &self.folder)
    }
}

/// Returns the names of all files that a folder's weights may be read from: a single file, an index, and the
/// shards that it names. The base may have another layout by now, and an index that was left beside a single
/// file would be read instead of it.
fn weight_files(folder: &Path) -> BTreeSet<OsString> {
    let mut files: BTreeSet<OsString> = [WEIGHTS, INDEX].map(OsString::from).into();
    // The shards of an index that cannot be read are no weights of anything.
    let index = read_model_json(&folder.join(INDEX)).ok();
    let index: Option<Value> = index.and_then(|text| serde_json::from_str(&text).ok());
    let shards = index.as_ref().and_then(|index| index["weight_map"].as_object());
    files.extend(shards.into_iter().flat_map(Map::values).filter_map(Value::as_str).map(OsString::from));
    files
}

/// Returns whether a file says what the weights are, so that it follows from the base and the patches alone.
fn belongs_to_weights(name: &OsStr) -> bool {
    let ends = [".safetensors", ".safetensors.index.json"];
    name == "config.json" || ends.iter().any(|end| name.as_encoded_bytes().ends_with(end.as_bytes()))
}

/// Returns the hashes of the files of a new folder that do not say what the weights are.
///
/// # Errors
/// One cannot be read.
pub(crate) fn hashes_of_copies(folder: &Path) -> Result<BTreeMap<String, String>, EditError> {
    let mut copies = BTreeMap::new();
    for path in entries(folder)? {
        let name = path.file_name().unwrap_or_default();
        if let Some(text) = name.to_str().filter(|_| !belongs_to_weights(name)) {
            copies.insert(text.to_owned(), hash_of(&path).map_err(EditError::io(&path))?);
        }
    }
    Ok(copies)
}

/// Returns whether a file has this hash, if there is one. A pipe would be waited for.
fn has_hash(path: &Path, hash: Option<&String>) -> bool {
    let is_file = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    is_file && hash.is_some_and(|hash| hash_of(path).is_ok_and(|found| found == *hash))
}

/// Returns whether a file of the user has the bytes of one that is written. A pipe would be waited for.
fn is_same_file(own: &Path, written: &Path) -> bool {
    let is_file = fs::symlink_metadata(own).is_ok_and(|found| found.is_file());
    is_file && matches!((fs::read(own), fs::read(written)), (Ok(own), Ok(written)) if own == written)
}

/// Says that something of the user has the name of the file of a patch.
pub(crate) fn in_the_way(path: &Path) -> EditError {
    EditError::patch(
        path,
        "this file is none of the model's patches, and a patch of this name would replace it",
        "Move it elsewhere, or give the patch another name",
    )
}

fn link_or_copy(from: &Path, to: &Path) -> Result<(), EditError> {
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop)).map_err(EditError::io(from))
}

/// A file for a patch that is taken away, which is new.
#[derive(Debug)]
pub struct KeptPatch<'a>(&'a Path);

impl<'a> KeptPatch<'a> {
    /// Checks that a patch can be kept in a file, though the folder `out` is then written.
    ///
    /// # Errors
    /// The file is there already, or would be removed with what the folder has now.
    pub fn at(path: &'a Path, out: &Path) -> Result<Self, EditError> {
        const NEW: &str = "Name a new file with --keep";
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let is_there =
            matches!((folder.canonicalize(), out.canonicalize()), (Ok(one), Ok(other)) if one == other);
        if is_there && path.file_name().is_some_and(|name| name == CODEBOOK_FILE) {
            let path = shown(&path.display().to_string());
            let what =
                format!("{path} is the name of the model's own corrections, so the file would not stay");
            return Err(EditError::request(what, NEW));
        }
        if fs::symlink_metadata(path).is_ok() {
            let path = shown(&path.display().to_string());
            return Err(EditError::request(format!("{path} already exists"), NEW));
        }
        Ok(Self(path))
    }

    /// Writes the patch. Those can read it who can read its base.
    ///
    /// # Errors
    /// It cannot be written. Then there is no file.
    pub fn write(&self, patch: &Patch, base: &Path) -> Result<(), EditError> {
        beside(self.0, BEING_KEPT)?.parent().into_iter().for_each(remove_abandoned);
        let around = Unfinished::create(self.0, BEING_KEPT)?;
        let file = around.path().join("patch");
        patch.write(&file)?;
        Modes::of(base)?.give(&file)?;
        // A file of this name may have been made meanwhile. Not every file system has links.
        match fs::hard_link(&file, self.0) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(EditError::io(self.0)(error)),
            Err(_) => fs::rename(&file, self.0).map_err(EditError::io(self.0)),
        }
    }

    /// Removes the file, because the patch stays where it was.
    pub fn remove(&self) {
        // It holds nothing that is not in the model.
        drop(fs::remove_file(self.0));
    }
}
