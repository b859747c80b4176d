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
use std::path::{Path, PathBuf};
use std::{fs, io};

use burn::tensor::Device;
use sparktune_base::files::{sync, write_and_sync};
use sparktune_base::regular_file::read_regular;
use sparktune_infer::codebook_file::{CODEBOOK_FILE, StoredCodebook, hash_of, write_codebooks};
use sparktune_model::export::Merged;
use sparktune_model::{Checkpoint, Model, PackedSequence};

use crate::error::EditError;
use crate::facts::{Fact, shown, words};
use crate::folder_lock::NOT_UTF_8;
use crate::patch::{AboutPatch, Method, Patch, PatchRef, file_of};
pub use crate::stack_file::{PATCHES, is_edited};
use crate::stack_file::{STACK_FILE, StackFile, VERSION};
use crate::staged::{Staged, hashes_of_copies, in_the_way};
use crate::tokens::Rendering;
use crate::unfinished::{Modes, Unfinished, entries};

/// The most bytes of a tokenizer.
const MOST_TOKENIZER_BYTES: u64 = 256 << 20;
const PUT_BACK: &str = "Put the file back, or make the folder again from its base with `edit apply`";
/// The tokens whose logits are compared between memory and the written folder.
const PROBE_TOKENS: usize = 16;

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

/// Checks that a folder may be written for a model: it is new, or it is that edited model itself.
///
/// # Errors
/// It is something else.
pub fn check_output(model: &Path, out: &Path) -> Result<(), EditError> {
    // A link that leads nowhere is in the way, too.
    if fs::symlink_metadata(out).is_err() {
        return Ok(());
    }
    let same = matches!((model.canonicalize(), out.canonicalize()), (Ok(model), Ok(out)) if model == out);
    if same && is_edited(out) {
        let mut inside = entries(out)?;
        inside.extend(entries(&out.join(PATCHES))?);
        let patches = out.join(PATCHES);
        return match inside.iter().find(|path| path.is_dir() && **path != patches) {
            None => Ok(()),
            Some(folder) => Err(EditError::patch(
                folder,
                "this folder is none of an edited model's, and an edit in place would remove it",
                "Move it elsewhere, or name a new folder with --output",
            )),
        };
    }
    if is_edited(out) {
        return Err(EditError::patch(
            out,
            "this is another edited model than the one that was named, so it stays as it is",
            "Name it as the model to change it, or name a new folder with --output",
        ));
    }
    Err(EditError::patch(
        out,
        "it already exists, and only an edited model is changed in place",
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
    /// The base is not where it was or has changed, or a patch is missing or damaged; a base was named for a
    /// model without one; or a path is not UTF-8.
    pub fn open(folder: &Path, base: Option<&Path>) -> Result<Self, EditError> {
        let stack = Self::read(folder, base)?;
        for path in [folder, stack.base.as_path()] {
            if path.to_str().is_none() {
                return Err(EditError::patch(path, NOT_UTF_8, "Give the folder another name"));
            }
        }
        Ok(stack)
    }

    fn read(folder: &Path, base: Option<&Path>) -> Result<Self, EditError> {
        if !is_edited(folder) {
            if base.is_some() {
                return Err(EditError::patch(
                    folder,
                    "this is no edited model, so it has no base that could have moved",
                    "Leave out --base, or name the edited model",
                ));
            }
            let folder = folder.canonicalize().map_err(EditError::io(folder))?;
            let base_hash = base_hash(&Checkpoint::open(&folder)?);
            return Ok(Self { base: folder, base_hash, patches: Vec::new(), off: BTreeSet::new() });
        }
        let file = StackFile::read(folder)?;
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
        if tokenizer(&base)? != tokenizer(folder)? {
            let what = format!("its tokenizer is not that of {}", shown(&base.display().to_string()));
            return Err(EditError::patch(folder, what, "Name the folder of its own base with --base"));
        }
        let mut stack = Self { base, base_hash: found, patches: Vec::new(), off: BTreeSet::new() };
        let list = folder.join(PATCHES).join(STACK_FILE);
        for (place, name) in file.patches.iter().enumerate() {
            crate::patch::check_name(name)
                .map_err(|what| EditError::patch(&list, what, "Make the folder again from its base"))?;
            let path = folder.join(PATCHES).join(file_of(name));
            let patch = Patch::read(&path).map_err(|error| match error.of_file() {
                Some((_, source)) if source.kind() == io::ErrorKind::NotFound => {
                    EditError::patch(&path, "the file of this patch is missing", PUT_BACK)
                }
                _ => error,
            })?;
            let is_it =
                patch.about.name == *name && file.ids.get(place).is_none_or(|id| *id == patch.reference().id);
            if !is_it {
                return Err(EditError::patch(
                    &path,
                    "this is another patch than the one that is in the weights of the folder",
                    PUT_BACK,
                ));
            }
            stack.push(&path, patch, &checkpoint)?;
        }
        stack.off = file.off.into_iter().filter(|name| file.patches.contains(name)).collect();
        Ok(stack)
    }

    /// Returns the base alone.
    #[must_use]
    pub fn bare(&self) -> Self {
        let Self { base, base_hash, .. } = self;
        Self { base: base.clone(), base_hash: base_hash.clone(), patches: Vec::new(), off: BTreeSet::new() }
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

    /// Checks that a new patch can have a name in the folder `out`: no patch of the stack has it, and no file
    /// of the user stands in the place of its own.
    ///
    /// # Errors
    /// One of them has it.
    pub(crate) fn check_name_is_free(&self, out: &Path, name: &str) -> Result<(), EditError> {
        self.check_is_new(out, name)?;
        let file = out.join(PATCHES).join(file_of(name));
        if fs::symlink_metadata(&file).is_ok() { Err(in_the_way(&file)) } else { Ok(()) }
    }

    /// Checks that no patch of the stack has a name. `path` stands for the new patch in errors.
    ///
    /// # Errors
    /// One of them has it.
    fn check_is_new(&self, path: &Path, name: &str) -> Result<(), EditError> {
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
    /// first one first. Patches that are switched off do not count.
    pub fn displaced(&self) -> Vec<&str> {
        let mut below: Vec<PatchRef> = Vec::new();
        let mut displaced = Vec::new();
        for patch in self.active() {
            if patch.about.computed_on != below {
                displaced.push(patch.about.name.as_str());
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
            entries: Vec::new(),
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
        let around = Unfinished::create(out, "being-edited")?;
        let folder = around.path().join("model");
        let staged = Staged { folder, around, out: out.to_owned(), modes: Modes::of(&self.base)? };
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
        let copies = hashes_of_copies(&staged.folder)?;
        let books = self.codebooks();
        let mut codebook_hash = None;
        if !books.is_empty() {
            let path = staged.folder.join(CODEBOOK_FILE);
            write_codebooks(&path, &books)?;
            codebook_hash = Some(hash_of(&path).map_err(EditError::io(&path))?);
        }
        let patches = staged.folder.join(PATCHES);
        fs::create_dir(&patches).map_err(EditError::io(&patches))?;
        for patch in &self.patches {
            patch.write(&patches.join(file_of(&patch.about.name)))?;
        }
        let file = StackFile {
            version: VERSION,
            base: self.base.clone(),
            base_hash: self.base_hash.clone(),
            patches: self.patches.iter().map(|patch| patch.about.name.clone()).collect(),
            ids: self.patches.iter().map(|patch| patch.reference().id).collect(),
            off: self.off.clone(),
            codebook: !books.is_empty(),
            codebook_hash,
            copies,
        };
        let text = serde_json::to_string_pretty(&file).expect("a list of names is JSON") + "\n";
        let path = patches.join(STACK_FILE);
        write_and_sync(&path, text).map_err(EditError::io(&path))?;
        staged.modes.give(&staged.folder)?;
        sync(&patches).and_then(|()| sync(&staged.folder)).map_err(EditError::io(&patches))?;
        Ok(staged)
    }
}

/// Returns the tokenizer of a folder, if it has one.
fn tokenizer(folder: &Path) -> Result<Option<Vec<u8>>, EditError> {
    let path = folder.join("tokenizer.json");
    match read_regular(&path, MOST_TOKENIZER_BYTES) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(EditError::io(&path)(error)),
    }
}
