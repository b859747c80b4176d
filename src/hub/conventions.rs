//! What the names of data files say: the kind of a file, and the split that it belongs to.
//!
//! Enters: paths, which are untrusted and only compared. Leaves: [`Splits`]. The conventions are those of the
//! library `datasets`:
//!
//! 1. `data/SPLIT-00000-of-00002.parquet`, for a split of any name;
//! 2. a word of the file's name is `train`, `test` or `validation`, or one of their other names;
//! 3. a word of a folder's name is;
//! 4. otherwise all files are `train`.

use std::collections::{BTreeMap, BTreeSet};

use crate::data_set_name::is_part;

/// The card of a data set.
pub(crate) const CARD: &str = "README.md";
/// The split that is meant where none is named.
pub(crate) const TRAIN: &str = "train";

/// The kinds of data files by their endings, the preferred one first. A data set that has its examples in
/// several of them is read from one; text is read only where there is nothing else.
const KINDS: [&[&str]; 5] =
    [&[".parquet"], &[".jsonl", ".ndjson", ".json"], &[".csv"], &[".tsv"], &[".txt", ".md"]];
const TEXT: usize = KINDS.len() - 1;
/// The endings of compressed files.
const COMPRESSED: [&str; 2] = [".gz", ".zst"];
/// Files that describe a data set and are not part of it.
const NO_DATA: [&str; 8] = [
    "config.json",
    "dataset_dict.json",
    "dataset_info.json",
    "dataset_infos.json",
    "state.json",
    "license.txt",
    "license.md",
    "readme.txt",
];
/// The words that mean a split.
const SPLIT_WORDS: [(&str, &[&str]); 3] = [
    (TRAIN, &["train", "training"]),
    ("validation", &["validation", "valid", "val", "dev"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// The files of each split.
pub(crate) type Splits<'a> = BTreeMap<String, Vec<&'a str>>;

/// Returns the splits of the files in a folder by their names. Hidden files are left out.
pub(crate) fn by_convention<'a>(names: &[&'a str], folder: &str) -> Splits<'a> {
    // A name that begins with two dots is not hidden but hostile, and is refused later.
    let is_hidden = |part: &str| part.starts_with("__") || part.starts_with('.') && !part.starts_with("..");
    let is_visible = |name: &str| !name.split('/').any(is_hidden);
    let mut files: Vec<(&str, &'a str)> = names
        .iter()
        .filter_map(|name| Some((name.strip_prefix(folder)?, *name)))
        .filter(|(inside, _)| is_visible(inside))
        .collect();
    files.retain({
        let mut all = files.iter().map(|(_, name)| *name).collect();
        keep_one_kind(&mut all);
        let kept: BTreeSet<&str> = all.into_iter().collect();
        move |(_, name)| kept.contains(name)
    });
    let rules: [fn(&str) -> Option<String>; 3] = [sharded, in_file_name, in_folder_name];
    for rule in rules {
        let mut splits = Splits::new();
        for (inside, name) in &files {
            if let Some(split) = rule(inside) {
                splits.entry(split).or_default().push(name);
            }
        }
        if !splits.is_empty() {
            return splits;
        }
    }
    let all: Vec<&str> = files.into_iter().map(|(_, name)| name).collect();
    if all.is_empty() { Splits::new() } else { Splits::from([(TRAIN.to_owned(), all)]) }
}

/// Returns the split of a file like `data/train-00000-of-00002.parquet`.
fn sharded(path: &str) -> Option<String> {
    let stem = path.strip_prefix("data/")?.split('.').next()?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let (start, count) = stem.rsplit_once("-of-")?;
    let (split, shard) = start.rsplit_once('-')?;
    // The count may be followed by a hash.
    let count = count.split('-').next()?;
    (is_number(shard) && is_number(count) && is_part(split)).then(|| split.to_owned())
}

fn in_file_name(path: &str) -> Option<String> {
    split_in(path.rsplit('/').next()?)
}

fn in_folder_name(path: &str) -> Option<String> {
    let (folders, _) = path.rsplit_once('/')?;
    folders.split('/').find_map(split_in)
}

/// Returns the split that a word of a name means. Words end at anything but letters.
fn split_in(name: &str) -> Option<String> {
    let words = || name.split(|c: char| !c.is_alphabetic()).map(str::to_lowercase);
    let is_of = |known: &&[&str]| words().any(|word| known.contains(&word.as_str()));
    SPLIT_WORDS.iter().find(|(_, known)| is_of(known)).map(|(split, _)| (*split).to_owned())
}

/// Returns whether the file is Parquet.
pub(crate) fn is_parquet(path: &str) -> bool {
    kind_of(path) == Some(0)
}

/// Returns whether the file is data of a known kind.
pub(crate) fn is_data(path: &str) -> bool {
    kind_of(path).is_some()
}

/// Returns the position of a file's kind in [`KINDS`], or `None` if it is no data.
fn kind_of(path: &str) -> Option<usize> {
    let name = path.rsplit('/').next()?.to_lowercase();
    if NO_DATA.contains(&name.as_str()) || name == CARD.to_lowercase() {
        return None;
    }
    let name = COMPRESSED.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
    KINDS.iter().position(|ends| ends.iter().any(|end| name.ends_with(end)))
}

/// Leaves only the files of the most frequent kind.
pub(crate) fn keep_one_kind(files: &mut Vec<&str>) {
    let mut counts = [0_usize; KINDS.len()];
    files.iter().filter_map(|file| kind_of(file)).for_each(|kind| counts[kind] += 1);
    if counts[..TEXT].iter().any(|count| *count > 0) {
        counts[TEXT] = 0;
    }
    // Of kinds with the same number of files, the first is preferred.
    let most = (0..KINDS.len()).rev().max_by_key(|kind| counts[*kind]);
    files.retain(|file| kind_of(file).is_some() && kind_of(file) == most);
}
