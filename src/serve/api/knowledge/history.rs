//! How an edited model came to its stack of patches, so that a change can be undone.
//!
//! Before each change, the patches are kept in `.edited/undo/NAME`, and the stacks before and after it are
//! noted. Going back uses the ordinary commands: what is above the common part of both stacks is taken away,
//! and what was there is laid on again, in its order. Weights follow from the stack alone, so they have the
//! same bytes again.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sparktune_app::edited_models::{self, Part};
use sparktune_app::failure::Failure;
use sparktune_base::files::{create_private_folder, write_shared};
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
}

/// A thing to do on the way back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Remove(String),
    Apply(Vec<PathBuf>),
    Enable(String),
    Disable(String),
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

    /// Keeps the patches of a stack, which are in `model`, so that they can be laid on again.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn keep(&self, model: &Path, stack: &[Laid]) -> Result<(), Failure> {
        for patch in stack {
            let (from, to) = (model.join("patches").join(format!("{}.qubgpu", patch.name)), self.file(patch));
            if !to.exists() && fs::hard_link(&from, &to).is_err() {
                fs::copy(&from, &to).map_err(|error| Failure::io("copy", &from, &error))?;
            }
        }
        Ok(())
    }

    /// Notes a change. A stack that is what it was is none.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn note(&mut self, what: String, before: Vec<Laid>, after: Vec<Laid>) -> Result<(), Failure> {
        if before != after {
            self.changes.push(Change { at_us: now_us(), what, before, after });
            let old = self.changes.len().saturating_sub(MOST_CHANGES);
            self.changes.drain(..old);
        }
        self.write()
    }

    /// Returns what leads from the stack as it is to that before the last change; `None` if it is not the one
    /// that this change led to.
    pub(super) fn way_back(&self, now: &[Laid]) -> Option<Vec<Step>> {
        let change = self.changes.last().filter(|change| change.after == now)?;
        Some(self.steps(now, &change.before))
    }

    fn steps(&self, now: &[Laid], wanted: &[Laid]) -> Vec<Step> {
        let is_same = |(one, other): &(&Laid, &Laid)| one.name == other.name && one.id == other.id;
        let common = now.iter().zip(wanted).take_while(is_same).count();
        let mut steps: Vec<Step> =
            now[common..].iter().rev().map(|patch| Step::Remove(patch.name.clone())).collect();
        if common < wanted.len() {
            steps.push(Step::Apply(wanted[common..].iter().map(|patch| self.file(patch)).collect()));
        }
        for (at, patch) in wanted.iter().enumerate() {
            let is_off = at < common && now[at].is_off;
            match (is_off, patch.is_off) {
                (true, false) => steps.push(Step::Enable(patch.name.clone())),
                (false, true) => steps.push(Step::Disable(patch.name.clone())),
                _ => {}
            }
        }
        steps
    }

    /// Forgets the last change, which was undone, and the patches that no other change needs.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn forget_last(&mut self) -> Result<(), Failure> {
        self.changes.pop();
        self.write()
    }

    fn write(&self) -> Result<(), Failure> {
        let path = self.folder.join(FILE);
        let text = serde_json::to_string(&self.changes).expect("names are JSON");
        write_shared(&path, text).map_err(|error| Failure::io("write", &path, &error))?;
        let needed = self.changes.iter().flat_map(|change| change.before.iter().chain(&change.after));
        let needed: BTreeSet<PathBuf> = needed.map(|patch| self.file(patch)).collect();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|end| end == "qubgpu") && !needed.contains(&path) {
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

    #[test]
    fn the_way_back_takes_away_what_is_above_and_lays_on_what_was_there() {
        let history = History { folder: "/undo".into(), changes: Vec::new() };
        let [a, b, c] = ["a", "b", "c"].map(|name| laid(name, false));
        let steps = |now: &[&Laid], wanted: &[&Laid]| {
            let all = |stack: &[&Laid]| stack.iter().map(|patch| (*patch).clone()).collect::<Vec<_>>();
            history.steps(&all(now), &all(wanted))
        };
        let remove = |name: &str| Step::Remove(name.into());
        let apply = |names: &[&str]| {
            Step::Apply(names.iter().map(|name| format!("/undo/{name}-idof{name}.qubgpu").into()).collect())
        };
        assert_eq!(steps(&[&a, &b], &[&a]), [remove("b")]);
        assert_eq!(steps(&[&a], &[]), [remove("a")]);
        assert_eq!(steps(&[&a, &c], &[&a, &b, &c]), [remove("c"), apply(&["b", "c"])]);
        assert_eq!(steps(&[&a, &b], &[&a, &b]), []);
        let off = laid("a", true);
        assert_eq!(steps(&[&off, &b], &[&a, &b]), [Step::Enable("a".into())]);
        assert_eq!(steps(&[&b], &[&off, &b]), [remove("b"), apply(&["a", "b"]), Step::Disable("a".into())]);
        // Another patch of the same name is another patch.
        let other = Laid { id: "other".into(), ..a.clone() };
        assert_eq!(steps(&[&other], &[&a]), [remove("a"), apply(&["a"])]);
    }

    #[test]
    fn only_the_last_change_is_undone_and_only_from_where_it_led() {
        let place = tempfile::tempdir().unwrap();
        let model = place.path().join("model");
        fs::create_dir_all(model.join("patches")).unwrap();
        fs::write(model.join("patches/a.qubgpu"), "a patch").unwrap();
        let mut history = History { folder: place.path().join("undo"), changes: Vec::new() };
        fs::create_dir(&history.folder).unwrap();
        let (a, b) = (laid("a", false), laid("b", false));
        history.keep(&model, std::slice::from_ref(&a)).unwrap();
        history.note("nothing".into(), vec![a.clone()], vec![a.clone()]).unwrap();
        assert!(history.last().is_none());
        history.keep(&model, std::slice::from_ref(&a)).unwrap();
        history.note("remove a".into(), vec![a.clone()], Vec::new()).unwrap();
        assert_eq!(history.way_back(&[b]), None);
        let steps = history.way_back(&[]).unwrap();
        let Step::Apply(files) = &steps[0] else { panic!("{steps:?}") };
        assert_eq!(fs::read_to_string(&files[0]).unwrap(), "a patch");
        history.forget_last().unwrap();
        assert!(history.last().is_none() && !files[0].exists());
    }
}
