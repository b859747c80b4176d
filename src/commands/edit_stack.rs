//! Changes of an edited model's stack of patches: `edit apply`, `set`, `remove`, `enable` and `disable`. Each
//! is one step from the old folder to the new one.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::escape;
use sparktune_edit::stack::check_output;
use sparktune_edit::{Conflict, EditError, FolderLock, KeptPatch, Patch, PatchRef, Stack, conflicts};
use sparktune_tui::output::{note, print, print_json};

use crate::failure::from_editing;
use crate::interrupt::Interrupts;

/// What `apply`, `set`, `remove`, `enable` and `disable` print.
#[derive(Debug, Serialize)]
struct Changed {
    output: PathBuf,
    /// Those that are switched on.
    patches: Vec<PatchRef>,
    off: Vec<String>,
    conflicts: Vec<Conflict>,
    /// Patches that were made on top of others than those below them now.
    displaced: Vec<String>,
}

/// A change of a stack: the right to write the folder, and the signals that stop it.
struct Change<'a> {
    output: &'a Path,
    json: bool,
    interrupts: Interrupts,
    _lock: FolderLock,
}

/// Opens a model whose stack changes, and takes the right to write its folder.
fn open_to_write<'a>(
    model: &Path,
    base: Option<&Path>,
    output: &'a Path,
    json: bool,
) -> Result<(Change<'a>, Stack), Failure> {
    // From here on a signal ends it in words and leaves no lock.
    let interrupts = Interrupts::listen()?;
    let open = || {
        let lock = FolderLock::take(output)?;
        check_output(model, output)?;
        Ok((lock, Stack::open(model, base)?))
    };
    let (lock, stack) = open().map_err(from_editing)?;
    Ok((Change { output, json, interrupts, _lock: lock }, stack))
}

/// Lays patches on top of those of a model, and names what they may spoil.
pub(crate) fn apply(
    model: &Path,
    files: &[PathBuf],
    output: &Path,
    base: Option<&Path>,
    json: bool,
) -> Result<Exit, Failure> {
    let (change, mut stack) = open_to_write(model, base, output, json)?;
    let mut found = Vec::new();
    lay(&mut stack, files, |patch, below| found.extend(conflicts(patch, below))).map_err(from_editing)?;
    change.write(&stack, found, None)
}

/// Replaces the patches of a model by others; those named in `off` are switched off.
pub(crate) fn set(
    model: &Path,
    files: &[PathBuf],
    off: &[String],
    output: &Path,
    base: Option<&Path>,
    json: bool,
) -> Result<Exit, Failure> {
    let (change, stack) = open_to_write(model, base, output, json)?;
    let mut stack = stack.bare();
    let laid = lay(&mut stack, files, |_, _| ());
    laid.and_then(|()| off.iter().try_for_each(|name| stack.switch(name, false).map(drop)))
        .map_err(from_editing)?;
    change.write(&stack, Vec::new(), None)
}

/// Lays patches on a stack. `see` is called with each and with those below it.
fn lay(stack: &mut Stack, files: &[PathBuf], mut see: impl FnMut(&Patch, &[Patch])) -> Result<(), EditError> {
    let checkpoint = stack.checkpoint()?;
    for file in files {
        let patch = Patch::read(file)?;
        see(&patch, &stack.patches);
        stack.push(file, patch, &checkpoint)?;
    }
    Ok(())
}

/// Takes a patch away. `keep` is a new file for it.
pub(crate) fn remove(
    model: &Path,
    name: &str,
    keep: Option<&Path>,
    output: &Path,
    base: Option<&Path>,
    json: bool,
) -> Result<Exit, Failure> {
    let (change, mut stack) = open_to_write(model, base, output, json)?;
    let removed = stack.remove(name).map_err(from_editing)?;
    let keep = keep.map(|path| KeptPatch::at(path, output)).transpose().map_err(from_editing)?;
    change.write(&stack, Vec::new(), keep.map(|file| (file, removed)))
}

/// Switches a patch on or off.
pub(crate) fn switch(
    model: &Path,
    name: &str,
    on: bool,
    output: &Path,
    base: Option<&Path>,
    json: bool,
) -> Result<Exit, Failure> {
    let (change, mut stack) = open_to_write(model, base, output, json)?;
    let was_other = stack.switch(name, on).map_err(from_editing)?;
    if !was_other && !json {
        note(&format!("patch {name} is already switched {}", if on { "on" } else { "off" }));
    }
    change.write(&stack, Vec::new(), None)
}

impl Change<'_> {
    /// Names conflicts, and writes a stack into its folder. A patch that was taken away is written into its
    /// file before, so that it is never nowhere.
    fn write(
        &self,
        stack: &Stack,
        conflicts: Vec<Conflict>,
        keep: Option<(KeptPatch<'_>, Patch)>,
    ) -> Result<Exit, Failure> {
        let displaced: Vec<String> = stack.displaced().into_iter().map(str::to_owned).collect();
        if !self.json {
            conflicts.iter().for_each(|conflict| note(&format!("note: {}", conflict.words())));
            for name in &displaced {
                note(&format!(
                    "note: patch {name} was made on top of other patches than those below it now, so its recorded scores may not hold here"
                ));
            }
        }
        let staged = stack.stage(self.output, &mut || self.interrupts.count() == 0).map_err(from_editing)?;
        if let Some((file, patch)) = &keep {
            file.write(patch, &stack.base).map_err(from_editing)?;
        }
        if let Err(error) = staged.commit() {
            keep.iter().for_each(|(file, _)| file.remove());
            return Err(from_editing(error));
        }
        let changed = Changed {
            output: self.output.to_owned(),
            patches: stack.references(),
            off: stack.off.iter().cloned().collect(),
            conflicts,
            displaced,
        };
        if self.json {
            print_json(&changed)?
        } else {
            print(&changed.in_words())?
        }
        Ok(Exit::Done)
    }
}

impl Changed {
    fn in_words(&self) -> String {
        let names: Vec<&str> = self.patches.iter().map(|patch| patch.name.as_str()).collect();
        let now = match names.len() {
            0 if self.off.is_empty() => "no patches".to_owned(),
            0 => "no patch that is switched on".to_owned(),
            1 => format!("the patch {}", names[0]),
            _ => format!("the patches {}", names.join(", ")),
        };
        let off = match self.off.len() {
            0 => String::new(),
            _ => format!("; switched off: {}", self.off.join(", ")),
        };
        format!("{} now has {now}{off}\n", escape(&self.output.display().to_string()))
    }
}
