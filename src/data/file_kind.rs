//! The kinds of data files, which their names tell apart.
//!
//! Enters: a file's name. Leaves: how it is read, what its examples are called in messages, and whether a
//! folder with such a file is data. This file must not know what is in a file.

use std::path::Path;

/// How a data file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// One JSON object per line. Files with any other name are read like this too.
    JsonLines,
    /// A table with a header, in columns separated by this byte.
    Table(u8),
    /// Parquet.
    Parquet,
    /// One document of raw text.
    Text,
}

/// The endings of data files, in the words of messages.
pub const DATA_ENDINGS: &str =
    ".jsonl, .csv, .tsv, .parquet, .txt or .md, all but .parquet also with .gz or .zst";

/// The name of the list of rejected lines, which is never data, though it may be in the data's folder.
pub(crate) const REJECTED: &str = "rejected.jsonl";

impl FileKind {
    /// Returns the kind of a file with this name.
    pub fn of(path: &Path) -> Self {
        match ending(path).as_deref() {
            Some("csv") => Self::Table(b','),
            Some("tsv") => Self::Table(b'\t'),
            Some("parquet") => Self::Parquet,
            Some("txt" | "md") => Self::Text,
            _ => Self::JsonLines,
        }
    }

    /// Returns whether a file with this name in a folder is data. Text counts only if the folder has no other
    /// data, because data sets come with a README.
    pub fn is_data(path: &Path) -> bool {
        let has_ending =
            matches!(ending(path).as_deref(), Some("jsonl" | "csv" | "tsv" | "parquet" | "txt" | "md"));
        has_ending && path.file_name().is_none_or(|name| name != REJECTED)
    }

    /// Returns the word for a unit of the file in counts.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::JsonLines => "line",
            Self::Table(_) | Self::Parquet => "row",
            Self::Text => "section",
        }
    }
}

/// Returns the ending of a name in small letters, without that of a compressed file.
fn ending(path: &Path) -> Option<String> {
    let of = |path: &Path| path.extension()?.to_str().map(str::to_ascii_lowercase);
    match of(path)?.as_str() {
        "gz" | "zst" => of(Path::new(path.file_stem()?)),
        ending => Some(ending.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_tells_how_a_file_is_read() {
        for (name, kind, is_data) in [
            ("a/train.jsonl", FileKind::JsonLines, true),
            ("train.jsonl.gz", FileKind::JsonLines, true),
            ("train.json", FileKind::JsonLines, false),
            ("train", FileKind::JsonLines, false),
            (".csv", FileKind::JsonLines, false),
            ("a.b.CSV", FileKind::Table(b','), true),
            ("a.tsv.zst", FileKind::Table(b'\t'), true),
            ("0000.parquet", FileKind::Parquet, true),
            ("book.txt", FileKind::Text, true),
            ("README.md.gz", FileKind::Text, true),
            ("book.gz", FileKind::JsonLines, false),
            ("a/rejected.jsonl", FileKind::JsonLines, false),
        ] {
            let path = Path::new(name);
            assert_eq!((FileKind::of(path), FileKind::is_data(path)), (kind, is_data), "{name}");
        }
    }
}
