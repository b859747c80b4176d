//! What a disk can hold after the power failed: a model of a file system that is told every change.
//!
//! Enters: changes in the order in which the kernel carried them out, with what was flushed. Leaves: for a
//! cut after any of them, the trees that may be found afterwards. It knows nothing of the program.
//!
//! Bytes that were flushed are there. Of later ones, all, none, the first half, or only their length may have
//! reached the disk. Names are there as of the cut; or as of the last flush of anything, as with ext4's
//! journal; or, as POSIX has it, each as of the last flush of its own folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A file or a folder, whatever its name.
pub(crate) type Id = usize;

/// A change. Paths are relative to the root of the tree.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// A new file or folder.
    Create { path: PathBuf, id: Id, is_folder: bool },
    /// Another name of a file.
    Link { from: PathBuf, to: PathBuf },
    /// Another name instead, which may replace a file.
    Rename { from: PathBuf, to: PathBuf },
    /// Two names change places.
    Exchange { one: PathBuf, other: PathBuf },
    /// A file or an empty folder has a name less.
    Remove { path: PathBuf },
    /// Bytes from this position on.
    Write { id: Id, at: usize, bytes: Vec<u8> },
    /// Another length.
    Cut { id: Id, length: usize },
    /// Everything of a file, or the names in a folder, is on the disk.
    Flush { id: Id },
}

/// The names that survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Names {
    All,
    Journal,
    Apart,
}

/// The bytes that survive, of those that were not flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Bytes {
    All,
    None,
    Half,
    Length,
}

pub(crate) const NAMES: [Names; 3] = [Names::All, Names::Journal, Names::Apart];
pub(crate) const BYTES: [Bytes; 4] = [Bytes::All, Bytes::None, Bytes::Half, Bytes::Length];

/// Files with their bytes, and folders without.
pub(crate) type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// The names at some moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Namespace {
    names: BTreeMap<PathBuf, (Id, bool)>,
}

impl Namespace {
    pub(crate) fn id(&self, path: &Path) -> Option<Id> {
        self.names.get(path).map(|(id, _)| *id)
    }

    /// Applies a change of names, unless what it needs is not there. Others change nothing here.
    pub(crate) fn apply(&mut self, change: &Change) {
        let has_folder = |names: &BTreeMap<PathBuf, (Id, bool)>, path: &Path| {
            let parent = path.parent().unwrap();
            parent == Path::new("") || names.get(parent).is_some_and(|(_, is_folder)| *is_folder)
        };
        match change {
            Change::Create { path, id, is_folder } if has_folder(&self.names, path) => {
                self.names.insert(path.clone(), (*id, *is_folder));
            }
            Change::Link { from, to } if has_folder(&self.names, to) => {
                if let Some(node) = self.names.get(from).copied() {
                    self.names.insert(to.clone(), node);
                }
            }
            Change::Rename { from, to } if self.names.contains_key(from) && has_folder(&self.names, to) => {
                let moved = self.take(from);
                self.take(to);
                self.put(to, moved);
            }
            Change::Exchange { one, other }
                if self.names.contains_key(one) && self.names.contains_key(other) =>
            {
                let (first, second) = (self.take(one), self.take(other));
                self.put(one, second);
                self.put(other, first);
            }
            Change::Remove { path } => drop(self.take(path)),
            _ => {}
        }
    }

    /// Takes a name out with everything below it, by the rest of each path.
    fn take(&mut self, path: &Path) -> Vec<(PathBuf, (Id, bool))> {
        let below: Vec<PathBuf> = self.names.keys().filter(|name| name.starts_with(path)).cloned().collect();
        let rest =
            |name: PathBuf| (name.strip_prefix(path).unwrap().to_owned(), self.names.remove(&name).unwrap());
        below.into_iter().map(rest).collect()
    }

    fn put(&mut self, path: &Path, nodes: Vec<(PathBuf, (Id, bool))>) {
        for (rest, node) in nodes {
            // Joining nothing would add a slash.
            let name = if rest == Path::new("") { path.to_owned() } else { path.join(rest) };
            self.names.insert(name, node);
        }
    }
}

/// All changes, with the folders whose names they changed.
#[derive(Debug, Default)]
pub(crate) struct History {
    changes: Vec<(Change, Vec<Id>)>,
    now: Namespace,
}

impl History {
    /// Returns the names as they are after all changes.
    pub(crate) fn now(&self) -> &Namespace {
        &self.now
    }

    pub(crate) fn len(&self) -> usize {
        self.changes.len()
    }

    /// Returns the change before a cut.
    pub(crate) fn change(&self, cut: usize) -> &Change {
        &self.changes[cut].0
    }

    pub(crate) fn push(&mut self, change: Change) {
        // Nothing happens between the parts of one write that could tell them apart.
        if let (Change::Write { id, at, bytes }, Some((Change::Write { id: same, at: from, bytes: all }, _))) =
            (&change, self.changes.last_mut())
            && id == same
            && *at == *from + all.len()
        {
            all.extend(bytes);
            return;
        }
        let folder = |path: &Path| self.now.id(path.parent().unwrap());
        let folders = match &change {
            Change::Create { path, id, .. } => [folder(path), Some(*id)],
            Change::Link { to, .. } => [folder(to), None],
            Change::Rename { from, to } | Change::Exchange { one: from, other: to } => {
                [folder(from), folder(to)]
            }
            Change::Remove { path } => [folder(path), None],
            Change::Write { .. } | Change::Cut { .. } | Change::Flush { .. } => [None, None],
        };
        self.now.apply(&change);
        self.changes.push((change, folders.into_iter().flatten().collect()));
    }

    /// Returns a tree that may be found after a power cut behind the change `cut`.
    pub(crate) fn tree(&self, cut: usize, names: Names, bytes: Bytes) -> Tree {
        let until = &self.changes[..=cut];
        // When each file or folder was flushed for the last time, and anything.
        let mut flushed: BTreeMap<Id, usize> = BTreeMap::new();
        for (i, (change, _)) in until.iter().enumerate() {
            if let Change::Flush { id } = change {
                flushed.insert(*id, i);
            }
        }
        let last = flushed.values().max().copied().unwrap_or(0);
        let mut space = Namespace::default();
        for (i, (change, folders)) in until.iter().enumerate() {
            let is_kept = match names {
                Names::All => true,
                Names::Journal => i < last,
                Names::Apart => folders.iter().any(|id| flushed.get(id).is_some_and(|at| *at > i)),
            };
            if is_kept {
                space.apply(change);
            }
        }
        let content = |id: Id| {
            let own: Vec<(usize, &Change)> = until.iter().map(|(change, _)| change).enumerate().collect();
            content(&own, id, flushed.get(&id).copied(), bytes)
        };
        let tree = space.names.into_iter();
        tree.map(|(path, (id, is_folder))| (path, (!is_folder).then(|| content(id)))).collect()
    }
}

fn content(changes: &[(usize, &Change)], id: Id, flushed: Option<usize>, bytes: Bytes) -> Vec<u8> {
    let mut file = Vec::new();
    let mut late = Vec::new();
    for (i, change) in changes {
        match change {
            Change::Write { id: of, at, bytes } if *of == id => {
                if flushed.is_some_and(|flushed| *i < flushed) {
                    write(&mut file, *at, bytes);
                } else {
                    late.push((*at, bytes.clone()));
                }
            }
            Change::Cut { id: of, length } if *of == id => {
                file.resize(*length, 0);
                late.clear();
            }
            _ => {}
        }
    }
    let all: usize = late.iter().map(|(_, bytes)| bytes.len()).sum();
    let mut left = match bytes {
        Bytes::All | Bytes::Length => all,
        Bytes::None => 0,
        Bytes::Half => all / 2,
    };
    for (at, mut part) in late {
        part.truncate(left);
        left -= part.len();
        if bytes == Bytes::Length {
            part.fill(0);
        }
        if !part.is_empty() {
            write(&mut file, at, &part);
        }
    }
    file
}

fn write(file: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    file.resize(file.len().max(at + bytes.len()), 0);
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Writes a tree into a folder.
pub(crate) fn write_tree(tree: &Tree, folder: &Path) {
    for (path, content) in tree {
        match content {
            // Parents come before what is in them.
            None => fs::create_dir(folder.join(path)).unwrap(),
            Some(bytes) => fs::write(folder.join(path), bytes).unwrap(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file is written, flushed, renamed and written again.
    fn history() -> History {
        let mut history = History::default();
        let path = PathBuf::from;
        for change in [
            Change::Create { path: path("a"), id: 1, is_folder: true },
            Change::Flush { id: 1 },
            Change::Create { path: path("a/new"), id: 2, is_folder: false },
            Change::Write { id: 2, at: 0, bytes: b"12".to_vec() },
            Change::Write { id: 2, at: 2, bytes: b"34".to_vec() },
            Change::Flush { id: 2 },
            Change::Rename { from: path("a/new"), to: path("a/file") },
            Change::Write { id: 2, at: 4, bytes: b"5678".to_vec() },
        ] {
            history.push(change);
        }
        history
    }

    fn found(cut: usize, names: Names, bytes: Bytes) -> Vec<(String, String)> {
        let tree = history().tree(cut, names, bytes);
        let files = tree.into_iter().filter_map(|(path, bytes)| Some((path, bytes?)));
        let text = |(path, bytes): (PathBuf, Vec<u8>)| {
            (path.to_str().unwrap().to_owned(), String::from_utf8(bytes).unwrap())
        };
        files.map(text).collect()
    }

    #[test]
    fn flushed_bytes_and_names_are_kept_and_later_ones_are_kept_or_lost() {
        let is = |cut, names, bytes, path: &str, text: &str| {
            assert_eq!(
                found(cut, names, bytes),
                [(path.to_owned(), text.to_owned())],
                "{cut} {names:?} {bytes:?}"
            );
        };
        assert_eq!(history().len(), 7, "the two halves of a write are one change");
        is(3, Names::All, Bytes::All, "a/new", "1234");
        is(3, Names::All, Bytes::Half, "a/new", "12");
        is(3, Names::All, Bytes::None, "a/new", "");
        is(3, Names::All, Bytes::Length, "a/new", "\0\0\0\0");
        assert_eq!(found(3, Names::Journal, Bytes::All), []);
        is(4, Names::Journal, Bytes::None, "a/new", "1234");
        is(6, Names::All, Bytes::Half, "a/file", "123456");
        is(6, Names::Journal, Bytes::Length, "a/new", "1234\0\0\0\0");
        // The file was flushed, and so its first name; the folder was not flushed since.
        is(6, Names::Apart, Bytes::None, "a/new", "1234");
    }
}
