//! A set of data as the user named it, and its files.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One set of training or eval data. What the user names once is one set: a file, a folder, or a split of a
/// data set on the hub, which has several files and another name than these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The name that the user gave, by which weights and reports call the set.
    pub name: String,
    /// The name that means the same files for ever, for a data set of the hub.
    pub pinned: Option<String>,
    /// Its files and folders in reading order.
    pub files: Vec<InputFile>,
}

/// One file or folder of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    /// The name for reports and rejections.
    pub name: String,
    /// The path. The files in a folder are called by their own paths.
    #[serde(with = "crate::path_text")]
    pub path: PathBuf,
}

impl From<&Path> for Input {
    fn from(path: &Path) -> Self {
        let name = path.display().to_string();
        Self { files: vec![InputFile { name: name.clone(), path: path.to_owned() }], pinned: None, name }
    }
}

impl From<PathBuf> for Input {
    fn from(path: PathBuf) -> Self {
        path.as_path().into()
    }
}
