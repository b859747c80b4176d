//! Lists files and folders while the user chooses a path, and completes typed paths.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{MAIN_SEPARATOR, Path, PathBuf};

use sparktune_data::FileKind;

use crate::failure::Failure;

/// The largest number of listed entries of a folder.
const MAX_ENTRIES: usize = 5_000;

/// The largest number of entries that are checked to decide whether a folder contains data.
const MAX_LOOKED_AT: usize = 200;

/// The contents of a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The folder, absolute.
    pub folder: PathBuf,
    /// Its entries in no particular order.
    pub entries: Vec<Entry>,
    /// The number of entries that were left out because there are too many.
    pub left_out: u64,
}

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name, which may not be UTF-8.
    pub name: OsString,
    /// The kind of the entry, with links followed.
    pub kind: EntryKind,
    /// The size of a file in bytes.
    pub bytes: Option<u64>,
    /// Whether the name is that of a data file or a token file, or of a folder with data files.
    pub is_data: bool,
    /// Whether it is a folder with a `config.json`.
    pub is_model: bool,
}

/// The kind of an entry of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A folder.
    Folder,
    /// A file.
    File,
    /// A pipe, a socket, a device, or a broken link.
    Other,
}

/// What a path is wanted for. It decides which entries of a folder are offered, and in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sought {
    /// Training data: a file, or a folder of files.
    Data,
    /// A model, which is a folder.
    Model,
}

impl Entry {
    /// Returns the place of the entry among those of its folder, the smallest for what is most likely sought.
    /// `None` if it neither is of that kind nor leads to it.
    pub fn rank(&self, sought: Sought) -> Option<u8> {
        match (sought, self.kind) {
            // Almost every folder has a README, which could be read as raw text.
            (Sought::Data, EntryKind::File) if self.is_data && !is_text(&self.name) => Some(0),
            (Sought::Data, EntryKind::Folder) if self.is_data => Some(1),
            (Sought::Data, EntryKind::File) if self.is_data => Some(2),
            (Sought::Model, EntryKind::Folder) if self.is_model => Some(0),
            (Sought::Data | Sought::Model, EntryKind::Folder) => Some(3),
            (Sought::Data | Sought::Model, EntryKind::File | EntryKind::Other) => None,
        }
    }
}

/// Lists a folder, with or without its hidden entries.
///
/// # Errors
/// The folder cannot be read.
pub fn list(folder: &Path, with_hidden: bool) -> Result<Listing, Failure> {
    let unreadable = |error: std::io::Error| Failure::io("list", folder, &error);
    let folder = std::path::absolute(folder).map_err(unreadable)?;
    let mut listing = Listing { folder: folder.clone(), ..Listing::default() };
    for entry in fs::read_dir(&folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        if is_hidden(&name) && !with_hidden {
            continue;
        }
        if listing.entries.len() == MAX_ENTRIES {
            listing.left_out += 1;
            continue;
        }
        listing.entries.push(describe(&folder, name));
    }
    Ok(listing)
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

fn describe(folder: &Path, name: OsString) -> Entry {
    let path = folder.join(&name);
    let meta = fs::metadata(&path).ok();
    let kind = match &meta {
        Some(meta) if meta.is_dir() => EntryKind::Folder,
        Some(meta) if meta.is_file() => EntryKind::File,
        _ => EntryKind::Other,
    };
    let is_data = match kind {
        EntryKind::Folder => {
            // A huge folder is not read completely for a mark in a list.
            let inside = fs::read_dir(&path).into_iter().flatten().flatten().take(MAX_LOOKED_AT);
            inside.map(|entry| entry.file_name()).any(|name| is_table(Path::new(&name)))
        }
        EntryKind::File => FileKind::is_data(&path) || is_token_file(&path),
        EntryKind::Other => false,
    };
    Entry {
        is_model: kind == EntryKind::Folder && path.join("config.json").is_file(),
        bytes: meta.filter(fs::Metadata::is_file).map(|meta| meta.len()),
        is_data,
        kind,
        name,
    }
}

/// Returns whether a folder with this file is one of data. Almost every folder has a text, and is not.
fn is_table(path: &Path) -> bool {
    FileKind::is_data(path) && !is_text(path.as_os_str())
}

fn is_text(name: &OsStr) -> bool {
    FileKind::of(Path::new(name)) == FileKind::Text
}

/// A folder of token files is not data: which of them belong together is the user's to say.
fn is_token_file(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b".qubgpu")
}

/// Splits a typed path into its folder, including the last separator, and the beginning of a name.
pub fn split_typed(typed: &str) -> (&str, &str) {
    typed.split_at(typed.rfind(MAIN_SEPARATOR).map_or(0, |at| at + 1))
}

/// Replaces `~` in a typed path by the user's home folder, as in a shell.
pub fn expand_home(typed: &str, home: Option<&Path>) -> PathBuf {
    match (typed.strip_prefix('~'), home) {
        (Some(""), Some(home)) => home.to_owned(),
        (Some(rest), Some(home)) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => PathBuf::from(typed),
    }
}

/// Returns the completions of a typed path: the entries of its folder that start with its last part and are
/// or lead to what is sought, what is most likely meant first. If there are none, any file completes it,
/// because data may have any name. Folders end in a separator. `entries` are those of the folder from
/// [`split_typed`]; names that are not UTF-8 are left out.
pub fn completions(typed: &str, entries: &[Entry], sought: Sought) -> Vec<String> {
    let (folder, beginning) = split_typed(typed);
    let begin_so = |entry: &&Entry| entry.name.to_str().is_some_and(|name| name.starts_with(beginning));
    let mut found: Vec<(u8, &Entry)> =
        entries.iter().filter(begin_so).filter_map(|entry| Some((entry.rank(sought)?, entry))).collect();
    if found.is_empty() && sought == Sought::Data && !beginning.is_empty() {
        let files = entries.iter().filter(|entry| entry.kind == EntryKind::File);
        found = files.filter(begin_so).map(|entry| (0, entry)).collect();
    }
    found.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
    let as_typed = |entry: &Entry| {
        let end = if entry.kind == EntryKind::Folder { "/" } else { "" };
        format!("{folder}{}{end}", entry.name.to_string_lossy())
    };
    found.into_iter().map(|(_, entry)| as_typed(entry)).collect()
}

/// Returns the longest common prefix; empty if there are no words.
pub fn common_beginning(words: &[String]) -> &str {
    let mut common = words.first().map_or("", String::as_str);
    for word in words {
        let same = common.char_indices().zip(word.chars()).take_while(|((_, a), b)| a == b);
        let end = same.last().map_or(0, |((at, c), _)| at + c.len_utf8());
        common = &common[..end];
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_completed_to_what_all_candidates_share() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["träin-a.jsonl", "träin-b.jsonl", ".hidden.jsonl"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        fs::create_dir(folder.path().join("sets")).unwrap();
        let entries = list(folder.path(), false).unwrap().entries;
        let complete = |typed: &str| completions(typed, &entries, Sought::Data);
        assert_eq!(complete("d/tr"), ["d/träin-a.jsonl", "d/träin-b.jsonl"]);
        assert_eq!(common_beginning(&complete("d/tr")), "d/träin-");
        assert_eq!(complete("s"), ["sets/"]);
        assert_eq!(complete("").len(), 3, "hidden entries are not offered");
        assert_eq!(common_beginning(&complete("nothing")), "");
        let all = list(folder.path(), true).unwrap().entries;
        assert_eq!(completions(".h", &all, Sought::Data), [".hidden.jsonl"]);
    }

    #[test]
    fn what_a_question_can_read_is_offered_and_the_most_likely_answer_first() {
        let folder = tempfile::tempdir().unwrap();
        let names = [
            "LICENSE",
            "README.md",
            "a.bin",
            "alpaca.json",
            "train.jsonl",
            "rejected.jsonl",
            "b/x.csv",
            "m/config.json",
        ];
        for name in names {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        fs::create_dir(folder.path().join("z")).unwrap();
        let entries = list(folder.path(), false).unwrap().entries;
        let complete = |typed: &str, sought| completions(typed, &entries, sought);
        assert_eq!(complete("", Sought::Data), ["train.jsonl", "b/", "README.md", "m/", "z/"]);
        assert_eq!(complete("./", Sought::Model), ["./m/", "./b/", "./z/"]);
        // A name that nothing else completes may be data all the same; a model is no file.
        assert_eq!(complete("al", Sought::Data), ["alpaca.json"]);
        assert!(complete("al", Sought::Model).is_empty());
    }

    #[test]
    fn entries_are_marked_as_data_and_models() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.jsonl.gz"), "abc").unwrap();
        fs::create_dir(folder.path().join("model")).unwrap();
        fs::write(folder.path().join("model/config.json"), "{}").unwrap();
        let listing = list(folder.path(), false).unwrap();
        let entry = |name: &str| listing.entries.iter().find(|entry| entry.name == name).unwrap();
        assert!(entry("a.jsonl.gz").is_data && entry("a.jsonl.gz").bytes == Some(3));
        assert!(entry("model").is_model && !entry("model").is_data && entry("model").bytes.is_none());
    }

    #[test]
    fn a_tilde_is_the_home_folder_only_where_a_shell_has_it_so() {
        let home = Path::new("/home/me");
        for (typed, path) in [("~", "/home/me"), ("~/a", "/home/me/a"), ("~a", "~a"), ("a/~", "a/~")] {
            assert_eq!(expand_home(typed, Some(home)), Path::new(path), "{typed}");
        }
        assert_eq!(expand_home("~/a", None), Path::new("~/a"));
    }
}
