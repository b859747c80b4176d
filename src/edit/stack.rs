//! Stacks of patches, and the folders in which they are folded into a model.
//!
//! An edited folder is a model like any other, with the folder `patches` beside its weights: `stack.json`
//! names the base and the patches in order, and `NAME.qubgpu` holds each. The weights are always computed
//! anew from the base: `W + B₁A₁ + B₂A₂ + …`, one patch after another, each sum in f64 and rounded to f32. So
//! a folder depends on its base and its patches alone, and a patch that was removed leaves the same bytes as
//! one that was never there. A patch that is switched off keeps its file and its place, and is no part of the
//! weights.
//!
//! A folder is written under another name and takes its place in one step, so a kill leaves the old state.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use sparktune_base::files::{exchange, private_folder, sync, write_and_sync};
use sparktune_base::regular_file::read_regular;
use sparktune_infer::codebook_file::{CODEBOOK_FILE, StoredCodebook, write_codebooks};
use sparktune_model::export::Merged;
use sparktune_model::{Checkpoint, Model, PackedSequence};

use crate::error::EditError;
use crate::facts::{Fact, shown, words};
use crate::folder_lock::{beside, set_aside};
use crate::patch::{AboutPatch, Method, Patch, PatchRef};
use crate::tokens::Rendering;

/// The folder of patches in an edited folder.
pub const PATCHES: &str = "patches";
const STACK_FILE: &str = "stack.json";
const VERSION: u32 = 1;
/// The most bytes of the list of patches.
const MOST_BYTES: u64 = 1 << 20;
/// The tokens whose logits are compared between memory and the written folder.
const PROBE_TOKENS: usize = 16;

/// The contents of `stack.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StackFile {
    version: u32,
    base: PathBuf,
    base_hash: String,
    patches: Vec<String>,
    /// Those that are switched off.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    off: BTreeSet<String>,
    /// Whether corrections belong to the folder, in a file of their own. Who decodes asks for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    codebook: bool,
}

/// A base and the patches on it, first one first.
#[derive(Debug, Clone, PartialEq)]
pub struct Stack {
    /// The folder of the base.
    pub base: PathBuf,
    /// The hash of its weights.
    pub base_hash: String,
    /// The patches, with those that are switched off.
    pub patches: Vec<Patch>,
    /// The names of those that are switched off: they are kept and named, but no part of the weights.
    pub off: BTreeSet<String>,
}

/// Returns whether a folder is an edited model.
pub fn is_edited(folder: &Path) -> bool {
    folder.join(PATCHES).join(STACK_FILE).is_file()
}

/// Checks that a folder may be written for a model: it is new, or it is that edited model itself.
///
/// # Errors
/// It is something else.
pub fn check_output(model: &Path, out: &Path) -> Result<(), EditError> {
    if !out.exists() {
        return Ok(());
    }
    let same = matches!((model.canonicalize(), out.canonicalize()), (Ok(model), Ok(out)) if model == out);
    if same && is_edited(out) {
        let is_of_others =
            |path: &&PathBuf| path.is_dir() && path.file_name().is_some_and(|name| name != PATCHES);
        return match entries(out)?.iter().find(is_of_others) {
            None => Ok(()),
            Some(folder) => Err(EditError::patch(
                folder,
                "this folder is none of an edited model's, and an edit in place would remove it",
                "Move it elsewhere, or name a new folder with --output",
            )),
        };
    }
    Err(EditError::patch(
        out,
        "the folder already exists, and only an edited model is changed in place",
        "Name a new folder with --output",
    ))
}

/// Returns a hash of the weights of a checkpoint: names, types, shapes and numbers.
pub fn base_hash(checkpoint: &Checkpoint) -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, info) in checkpoint.tensors() {
        hasher.update(format!("{name} {:?} {:?}\n", info.dtype, info.shape).as_bytes());
        hasher.update_rayon(checkpoint.bytes(info));
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

impl Stack {
    /// Opens a model's folder: an edited one with its stack, or any other as a base without patches. `base`
    /// is where the base of an edited folder is now, if it has moved.
    ///
    /// # Errors
    /// The base is not where it was or has changed, or a patch is missing or damaged.
    pub fn open(folder: &Path, base: Option<&Path>) -> Result<Self, EditError> {
        let path = folder.join(PATCHES).join(STACK_FILE);
        if !path.is_file() {
            let folder = folder.canonicalize().map_err(EditError::io(folder))?;
            let base_hash = base_hash(&Checkpoint::open(&folder)?);
            return Ok(Self { base: folder, base_hash, patches: Vec::new(), off: BTreeSet::new() });
        }
        let bytes = read_regular(&path, MOST_BYTES).map_err(EditError::io(&path))?;
        let file: StackFile = serde_json::from_slice(&bytes).map_err(|_| {
            EditError::patch(
                &path,
                "the list of patches cannot be read",
                "Make the folder again from its base with `edit apply`",
            )
        })?;
        if file.version != VERSION {
            let what =
                format!("the list of patches has version {}, and this program reads {VERSION}", file.version);
            return Err(EditError::patch(&path, what, "Use a newer sparktune"));
        }
        let base = base.unwrap_or(&file.base);
        if !base.join("config.json").is_file() {
            let what = format!("its base was in {}, which has no model", shown(&base.display().to_string()));
            return Err(EditError::patch(folder, what, "Name the folder of the base with --base"));
        }
        let base = base.canonicalize().map_err(EditError::io(base))?;
        let checkpoint = Checkpoint::open(&base)?;
        let found = base_hash(&checkpoint);
        if found != file.base_hash {
            let what = format!(
                "its base has changed: the weights in {} have the hash {found}, and the patches were made for {}",
                shown(&base.display().to_string()),
                shown(&file.base_hash)
            );
            return Err(EditError::patch(folder, what, "Name the folder of the base with --base"));
        }
        let tokenizer = |folder: &Path| fs::read(folder.join("tokenizer.json")).ok();
        if tokenizer(&base) != tokenizer(folder) {
            let what = format!("its tokenizer is not that of {}", shown(&base.display().to_string()));
            return Err(EditError::patch(folder, what, "Name the folder of its own base with --base"));
        }
        let mut stack = Self { base, base_hash: found, patches: Vec::new(), off: BTreeSet::new() };
        for name in &file.patches {
            crate::patch::check_name(name)
                .map_err(|what| EditError::patch(&path, what, "Make the folder again from its base"))?;
            let path = folder.join(PATCHES).join(format!("{name}.qubgpu"));
            let patch = Patch::read(&path)?;
            stack.push(&path, patch, &checkpoint)?;
        }
        stack.off = file.off.into_iter().filter(|name| file.patches.contains(name)).collect();
        Ok(stack)
    }

    /// Returns the layers and sizes of the base, with its weights.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn checkpoint(&self) -> Result<Checkpoint, EditError> {
        Ok(Checkpoint::open(&self.base)?)
    }

    /// Lays a patch on top. `path` names it in errors.
    ///
    /// # Errors
    /// It belongs to another base, its name is there already, or its corrections are measured from another
    /// mean than those of the same layer below.
    pub fn push(&mut self, path: &Path, patch: Patch, checkpoint: &Checkpoint) -> Result<(), EditError> {
        patch.fits(path, &self.base_hash, checkpoint.config())?;
        self.check_is_new(path, &patch.about.name)?;
        for book in &patch.codebooks {
            let below = self.patches.iter().flat_map(|patch| &patch.codebooks);
            if below.filter(|known| known.layer == book.layer).any(|known| known.mean != book.mean) {
                let what = format!(
                    "its corrections of layer {} are measured from the mean of another text than those of the patches below",
                    book.layer
                );
                return Err(EditError::patch(path, what, "Make the edit again on top of these patches"));
            }
        }
        self.patches.push(patch);
        Ok(())
    }

    /// Checks that no patch of the stack has a name. `path` stands for the new patch in errors.
    ///
    /// # Errors
    /// One of them has it.
    pub(crate) fn check_is_new(&self, path: &Path, name: &str) -> Result<(), EditError> {
        if self.patches.iter().all(|known| known.about.name != name) {
            return Ok(());
        }
        let what = format!("there is already a patch named {name}");
        Err(EditError::patch(path, what, "Remove that one first, or edit under another name with --name"))
    }

    /// Removes a patch, and returns it.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn remove(&mut self, name: &str) -> Result<Patch, EditError> {
        let place = self.place_of(name)?;
        self.off.remove(name);
        Ok(self.patches.remove(place))
    }

    /// Switches a patch on or off, and returns whether it was the other way before.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn switch(&mut self, name: &str, on: bool) -> Result<bool, EditError> {
        self.place_of(name)?;
        Ok(if on { self.off.remove(name) } else { self.off.insert(name.to_owned()) })
    }

    fn place_of(&self, name: &str) -> Result<usize, EditError> {
        let place = self.patches.iter().position(|patch| patch.about.name == name);
        let known: Vec<&str> = self.patches.iter().map(|patch| patch.about.name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        place.ok_or_else(|| {
            let what = format!("there is no patch `{}` (patches: {known})", shown(name));
            EditError::request(what, "`edit list` names the patches of a folder")
        })
    }

    /// Returns the patch of a name.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn patch(&self, name: &str) -> Result<&Patch, EditError> {
        Ok(&self.patches[self.place_of(name)?])
    }

    /// Returns whether the corrections of its patches are missing in its folder.
    pub fn lacks_codebook(&self, folder: &Path) -> bool {
        let has_any = self.active().any(|patch| !patch.codebooks.is_empty());
        has_any && !folder.join(CODEBOOK_FILE).is_file()
    }

    /// Returns the patches that are switched on, first one first.
    pub fn active(&self) -> impl Iterator<Item = &Patch> {
        self.patches.iter().filter(|patch| !self.off.contains(&patch.about.name))
    }

    /// Returns the names of the patches that were made on top of others than those that lie below them now,
    /// each with what was below it then. Patches that are switched off do not count.
    pub fn displaced(&self) -> Vec<(String, Vec<PatchRef>)> {
        let mut below: Vec<PatchRef> = Vec::new();
        let mut displaced = Vec::new();
        for patch in self.active() {
            if patch.about.computed_on != below {
                displaced.push((patch.about.name.clone(), patch.about.computed_on.clone()));
            }
            below.push(patch.reference());
        }
        displaced
    }

    /// Returns for each patch that is switched on, and of which a later one answers a prompt in another way,
    /// the name of that one: then its scores are no longer true.
    pub fn overwritten(&self) -> BTreeMap<&str, &str> {
        let same = |text: &str| words(text).to_lowercase();
        let mut last: BTreeMap<String, (String, &str)> = BTreeMap::new();
        let mut overwritten = BTreeMap::new();
        for patch in self.active() {
            let name = patch.about.name.as_str();
            for fact in &patch.about.facts {
                let says = (same(&fact.target), name);
                let before = last.insert(same(&fact.prompt), says);
                if let Some((target, earlier)) = before
                    && target != same(&fact.target)
                {
                    overwritten.insert(earlier, name);
                }
            }
        }
        overwritten
    }

    /// Returns names and contents of the patches that are switched on.
    pub fn references(&self) -> Vec<PatchRef> {
        self.active().map(Patch::reference).collect()
    }

    /// Returns what a patch on top of this stack says about itself.
    pub(crate) fn about(
        &self,
        name: &str,
        method: Method,
        rendering: Rendering,
        layers: &[usize],
        facts: &[Fact],
    ) -> AboutPatch {
        AboutPatch {
            version: crate::patch::VERSION,
            name: name.to_owned(),
            method,
            rendering,
            layers: layers.to_vec(),
            base: self.base_hash.clone(),
            base_name: self.base.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            computed_on: self.references(),
            facts: facts.to_vec(),
            scores: None,
        }
    }

    /// Returns the codebooks of the patches that are switched on, one for each layer. Of the entries for the
    /// same input, that of the last patch counts.
    pub(crate) fn codebooks(&self) -> Vec<StoredCodebook> {
        let mut books: Vec<StoredCodebook> = Vec::new();
        for book in self.active().flat_map(|patch| &patch.codebooks) {
            match books.iter_mut().find(|known| known.layer == book.layer) {
                None => books.push(book.clone()),
                Some(known) => known.add(book),
            }
        }
        books.sort_by_key(|book| book.layer);
        books
    }

    /// Loads the base and folds the patches that are switched on into it.
    ///
    /// # Errors
    /// The base cannot be loaded.
    pub(crate) fn load(&self, checkpoint: &Checkpoint, device: &Device) -> Result<Model, EditError> {
        let mut model = self.load_weights(checkpoint, device)?;
        for book in self.codebooks() {
            model.set_codebook(book.layer, Some(book.codebook()));
        }
        Ok(model)
    }

    fn load_weights(&self, checkpoint: &Checkpoint, device: &Device) -> Result<Model, EditError> {
        let mut model = Model::load(checkpoint, device, &mut |_, _| ())?;
        for change in self.active().flat_map(|patch| &patch.changes) {
            change.add_to(&mut model);
        }
        Ok(model)
    }

    /// Writes the folder of the stack next to `out`, and returns it for a look before it is
    /// [committed](Staged::commit).
    ///
    /// # Errors
    /// A file cannot be written; [`sparktune_model::ModelError::Stopped`] when `go_on` says no.
    pub fn stage(&self, out: &Path, go_on: &mut dyn FnMut() -> bool) -> Result<Staged, EditError> {
        // Nobody else can look into it until it has the modes of the base.
        let around = beside(out, "being-edited")?;
        if around.exists() {
            fs::remove_dir_all(&around).map_err(EditError::io(&around))?;
        }
        private_folder().recursive(true).create(&around).map_err(EditError::io(&around))?;
        let folder = around.join("model");
        let staged = Staged { folder, around, out: out.to_owned(), base: self.base.clone() };
        let checkpoint = self.checkpoint()?;
        let mut model = self.load_weights(&checkpoint, &Device::flex())?;
        // Only what is trained is written from memory; everything else is copied byte for byte.
        for change in self.active().flat_map(|patch| &patch.changes) {
            model.down_proj_mut(change.layer).weight.set_trainable(true);
        }
        let ids: Vec<u32> = (0..PROBE_TOKENS.min(checkpoint.config().vocab_size) as u32).collect();
        let merged = Merged {
            base: &checkpoint,
            model: &model,
            mtp: None,
            keep_mtp: true,
            beside: None,
            chat_template: None,
            probe: &PackedSequence::single(&ids),
        };
        merged.write(&staged.folder, go_on)?;
        let books = self.codebooks();
        if !books.is_empty() {
            write_codebooks(&staged.folder.join(CODEBOOK_FILE), &books)?;
        }
        let patches = staged.folder.join(PATCHES);
        fs::create_dir(&patches).map_err(EditError::io(&patches))?;
        for patch in &self.patches {
            patch.write(&patches.join(format!("{}.qubgpu", patch.about.name)))?;
        }
        let file = StackFile {
            version: VERSION,
            base: self.base.clone(),
            base_hash: self.base_hash.clone(),
            patches: self.patches.iter().map(|patch| patch.about.name.clone()).collect(),
            off: self.off.clone(),
            codebook: !books.is_empty(),
        };
        let text = serde_json::to_string_pretty(&file).expect("a list of names is JSON") + "\n";
        let path = patches.join(STACK_FILE);
        write_and_sync(&path, text).map_err(EditError::io(&path))?;
        staged.set_modes()?;
        sync(&patches).and_then(|()| sync(&staged.folder)).map_err(EditError::io(&patches))?;
        Ok(staged)
    }
}

/// A complete folder that is not in its place yet. It is removed when it is dropped.
#[derive(Debug)]
pub struct Staged {
    folder: PathBuf,
    /// The private folder that it is in.
    around: PathBuf,
    out: PathBuf,
    base: PathBuf,
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
        patch.write(&self.folder.join(PATCHES).join(format!("{}.qubgpu", patch.about.name)))?;
        self.set_modes()
    }

    /// Puts the folder into its place with the files of others that are there, and removes the rest of what
    /// was there.
    ///
    /// # Errors
    /// A file cannot be kept, or the names cannot be changed. Then what was there is still there.
    pub fn commit(self) -> Result<(), EditError> {
        let io = EditError::io(&self.out);
        let parent = self.around.parent().unwrap_or(Path::new("."));
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

    /// Lets those read the folder who may read the base, and nobody else.
    fn set_modes(&self) -> Result<(), EditError> {
        let mode =
            |path: &Path| fs::metadata(path).map(|about| about.mode() & 0o777).map_err(EditError::io(path));
        let set = |path: &Path, mode: u32| {
            fs::set_permissions(path, Permissions::from_mode(mode)).map_err(EditError::io(path))
        };
        let (folder, file) = (mode(&self.base)?, mode(&self.base.join("config.json"))?);
        let patches = self.folder.join(PATCHES);
        for path in entries(&self.folder)?.into_iter().chain(entries(&patches)?) {
            set(&path, if path.is_dir() { folder | 0o700 } else { file | 0o600 })?;
        }
        set(&self.folder, folder | 0o700)
    }

    /// Links or copies the files that an edit has not written.
    fn keep_files_of_others(&self) -> Result<(), EditError> {
        for path in entries(&self.out)? {
            let name = path.file_name().unwrap_or_default();
            let to = self.folder.join(name);
            if name != PATCHES && name != CODEBOOK_FILE && fs::symlink_metadata(&to).is_err() {
                let kept = fs::hard_link(&path, &to).or_else(|_| fs::copy(&path, &to).map(drop));
                kept.map_err(EditError::io(&path))?;
            }
        }
        Ok(())
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

/// Returns what is in a folder.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, EditError> {
    let all = fs::read_dir(folder).and_then(|all| all.map(|entry| Ok(entry?.path())).collect());
    all.map_err(EditError::io(folder))
}

impl Drop for Staged {
    fn drop(&mut self) {
        // What is left is replaced by the next edit.
        drop(fs::remove_dir_all(&self.around));
    }
}
