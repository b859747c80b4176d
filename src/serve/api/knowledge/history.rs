//! How an edited model came to its stack of patches, so that a change can be undone.
//!
//! Before each change, the patches are kept in `.edited/undo/NAME`, and the stacks before and after it are
//! noted. Going back is one command that lays the patches of before on the base, in one step. Weights follow
//! from the stack alone, so they have the same bytes again.
//!
//! A change is noted as open before it is made or undone. A server that is killed leaves it so, and the stack
//! that is found then says whether it was done.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sparktune_app::edited_models::{self, Part};
use sparktune_app::failure::Failure;
use sparktune_base::files::{create_private_folder, write_shared_and_sync};
use sparktune_base::regular_file::read_regular;
use sparktune_runlog::now_us;

use crate::state::Served;

/// The file of the history, and the most bytes of it.
const FILE: &str = "history.json";
const MOST_BYTES: u64 = 16 << 20;
/// The most changes that can be undone.
const MOST_CHANGES: usize = 50;

/// A patch in a stack, as `sparktune edit list` names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Laid {
    pub name: String,
    /// A hash of what it changes.
    pub id: String,
    /// Whether it is switched off.
    #[serde(default)]
    pub is_off: bool,
}

/// A change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Change {
    /// When it was made.
    pub at_us: u64,
    /// What it was, in words: `remove facts`.
    pub what: String,
    before: Vec<Laid>,
    after: Vec<Laid>,
    /// Whether it is being made or undone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_open: bool,
}

/// A stack to go back to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The files of the patches, first one first.
    pub files: Vec<PathBuf>,
    /// The names of those that are switched off.
    pub off: Vec<String>,
    /// The stack itself.
    pub before: Vec<Laid>,
}

/// The changes of a model, the last one last.
pub(super) struct History {
    folder: PathBuf,
    changes: Vec<Change>,
}

impl History {
    /// Reads the history of a model. What cannot be read counts as none.
    ///
    /// # Errors
    /// Its folder cannot be created.
    pub(super) fn of(state: &Served, name: &str) -> Result<Self, Failure> {
        let folder = edited_models::folder(state.runs.path(), Part::Undo)?.join(name);
        create_private_folder(&folder).map_err(|error| Failure::io("create", &folder, &error))?;
        let text = read_regular(&folder.join(FILE), MOST_BYTES).unwrap_or_default();
        let changes = serde_json::from_slice(&text).unwrap_or_default();
        Ok(Self { folder, changes })
    }

    /// Returns what would be undone, if there is something.
    pub(super) fn last(&self) -> Option<&Change> {
        self.changes.last()
    }

    /// Closes a change that was left open: the stack as it is says whether it was done. One that was not
    /// made, or that was undone, is forgotten.
    pub(super) fn settle(&mut self, now: &[Laid]) {
        let Some(last) = self.changes.last_mut().filter(|last| last.is_open) else { return };
        last.is_open = false;
        if last.before == now {
            self.changes.pop();
        }
    }

    /// Keeps the patches of the stack before a change, which are in `model`, and notes that the change is
    /// being made. A stack that stays what it is is no change.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn begin(
        &mut self,
        model: &Path,
        what: String,
        before: Vec<Laid>,
        after: Vec<Laid>,
    ) -> Result<(), Failure> {
        self.keep(model, &before)?;
        if before != after {
            self.changes.push(Change { at_us: now_us(), what, before, after, is_open: true });
            let old = self.changes.len().saturating_sub(MOST_CHANGES);
            self.changes.drain(..old);
        }
        self.write()
    }

    /// Notes that the last change is being undone, from the stack that is in `model`, and returns the stack
    /// to go back to; `None` if this is not the stack that the change led to.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn begin_undo(&mut self, model: &Path, now: &[Laid]) -> Result<Option<Wanted>, Failure> {
        let Some(last) = self.changes.last_mut().filter(|change| change.after == now) else {
            return Ok(None);
        };
        last.is_open = true;
        let before = last.before.clone();
        self.keep(model, now)?;
        self.write()?;
        Ok(Some(Wanted {
            files: before.iter().map(|patch| self.file(patch)).collect(),
            off: before.iter().filter(|patch| patch.is_off).map(|patch| patch.name.clone()).collect(),
            before,
        }))
    }

    /// Notes that what was begun has ended with this stack.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn end(&mut self, now: &[Laid]) -> Result<(), Failure> {
        self.settle(now);
        self.write()
    }

    fn keep(&self, model: &Path, stack: &[Laid]) -> Result<(), Failure> {
        for patch in stack {
            let (from, to) = (model.join("patches").join(format!("{}.qubgpu", patch.name)), self.file(patch));
            if !to.exists() && fs::hard_link(&from, &to).is_err() {
                // A kill leaves no half of it under its name.
                let unfinished = to.with_extension("new");
                let copied = fs::copy(&from, &unfinished).and_then(|_| fs::rename(&unfinished, &to));
                copied.map_err(|error| Failure::io("copy", &from, &error))?;
            }
        }
        Ok(())
    }

    fn write(&self) -> Result<(), Failure> {
        let path = self.folder.join(FILE);
        let text = serde_json::to_string(&self.changes).expect("names are JSON");
        write_shared_and_sync(&path, text).map_err(|error| Failure::io("write", &path, &error))?;
        let needed = self.changes.iter().flat_map(|change| change.before.iter().chain(&change.after));
        let needed: BTreeSet<PathBuf> = needed.map(|patch| self.file(patch)).collect();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|end| end == "qubgpu" || end == "new") && !needed.contains(&path)
            {
                // It is looked for again after the next change.
                let _ = fs::remove_file(path);
            }
        }
        Ok(())
    }

    fn file(&self, patch: &Laid) -> PathBuf {
        let digits: String = patch.id.chars().filter(char::is_ascii_alphanumeric).collect();
        self.folder.join(format!("{}-{digits}.qubgpu", patch.name))
    }
}

/// Forgets the history of a model that was deleted, or whose name is used again.
pub(super) fn forget(state: &Served, name: &str) {
    if let Some(folder) = edited_models::existing_folder(state.runs.path(), Part::Undo) {
        // Without a history there is nothing to forget.
        let _ = fs::remove_dir_all(folder.join(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laid(name: &str, is_off: bool) -> Laid {
        Laid { name: name.into(), id: format!("id-of-{name}"), is_off }
    }

    /// A history in a new folder, and a model whose file of patch `a` is there.
    fn history(place: &Path) -> (History, PathBuf) {
        let model = place.join("model");
        fs::create_dir_all(model.join("patches")).unwrap();
        for name in ["a", "b"] {
            fs::write(model.join(format!("patches/{name}.qubgpu")), format!("the patch {name}")).unwrap();
        }
        let folder = place.join("undo");
        fs::create_dir(&folder).unwrap();
        (History { folder, changes: Vec::new() }, model)
    }

    fn read_again(history: &History) -> History {
        let text = fs::read(history.folder.join(FILE)).unwrap();
        History { folder: history.folder.clone(), changes: serde_json::from_slice(&text).unwrap() }
    }

    #[test]
    fn only_the_last_change_is_undone_and_only_from_where_it_led() {
        let place = tempfile::tempdir().unwrap();
        let (mut history, model) = history(place.path());
        let (a, b) = (laid("a", false), laid("b", true));
        let both = vec![a.clone(), b.clone()];
        history.begin(&model, "nothing".into(), both.clone(), both.clone()).unwrap();
        history.end(&both).unwrap();
        assert!(history.last().is_none());
        history.begin(&model, "remove a".into(), both.clone(), vec![b.clone()]).unwrap();
        history.end(std::slice::from_ref(&b)).unwrap();
        assert_eq!(history.begin_undo(&model, &[a]).unwrap(), None);
        let wanted = history.begin_undo(&model, &[b]).unwrap().unwrap();
        let texts = wanted.files.iter().map(|file| fs::read_to_string(file).unwrap());
        assert_eq!(texts.collect::<Vec<_>>(), ["the patch a", "the patch b"], "in their order");
        assert_eq!(wanted.off, ["b"]);
        history.end(&both).unwrap();
        assert!(history.last().is_none() && !wanted.files[0].exists());
    }

    #[test]
    fn a_killed_server_leaves_what_the_stack_explains() {
        let place = tempfile::tempdir().unwrap();
        let (mut history, model) = history(place.path());
        let (a, b) = (laid("a", false), laid("b", false));
        let (one, both) = (vec![a.clone()], vec![a, b]);
        let last = |history: &History, now: &[Laid]| {
            let mut found = read_again(history);
            found.settle(now);
            found.last().map(|change| change.what.clone())
        };
        history.begin(&model, "add b".into(), one.clone(), both.clone()).unwrap();
        // A kill before the change, and one behind it that nobody has noted.
        assert_eq!(last(&history, &one), None);
        assert_eq!(last(&history, &both).as_deref(), Some("add b"));
        history.end(&both).unwrap();
        // The same while it is undone: undo again is the same undo, or that of the change before.
        history.begin_undo(&model, &both).unwrap().unwrap();
        assert_eq!(last(&history, &both).as_deref(), Some("add b"));
        assert!(read_again(&history).begin_undo(&model, &both).unwrap().is_some());
        assert_eq!(last(&history, &one), None);
        // A stack of somebody else is neither.
        assert_eq!(last(&history, &[]).as_deref(), Some("add b"));
        assert_eq!(history.begin_undo(&model, &[]).unwrap(), None);
    }
}
