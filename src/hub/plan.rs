//! The plan of a download, and its result.

use std::path::PathBuf;

use crate::cache::RepoCache;
use crate::catalog::Facts;
use crate::error::Error;
use crate::http::Subject;

/// The source of a plan's information.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A folder that the user gave.
    Folder,
    /// The hub.
    Hub,
    /// The cache, because the user disabled the network.
    Cache,
    /// The cache, because the hub could not be reached and the cache is complete.
    CacheInstead {
        /// The reason why the hub was not used. Interfaces show it, because a newer revision may exist.
        why: String,
    },
}

/// The `config.json` of a model, fetched without weights.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file's text, as stored.
    pub text: String,
    /// The path of the file.
    pub path: PathBuf,
    /// The source of the file.
    pub origin: Origin,
}

/// The files to download, determined before any weights are downloaded.
#[derive(Debug, Clone)]
pub struct DownloadPlan {
    /// The repository as the user named it: `org/name`, `org/name@revision`, `hf:org/name` or a folder.
    pub repo: String,
    /// The commit on the hub; `None` for a local folder.
    pub commit: Option<String>,
    /// The folder that will hold all files.
    pub folder: PathBuf,
    /// All required files, small ones first.
    pub files: Vec<PlannedFile>,
    /// The free bytes on the disk of the cache when the plan was made; `None` if the system does not report
    /// them.
    pub disk_available: Option<u64>,
    /// The source of the information.
    pub origin: Origin,
    /// Whether these files are all that anybody needs: a whole model, or the whole split of a data set.
    pub(crate) is_whole: bool,
    pub(crate) source: Option<Source>,
}

/// One file of a plan.
#[derive(Debug, Clone)]
pub struct PlannedFile {
    /// The path inside the folder.
    pub name: String,
    /// The total number of bytes.
    pub size: u64,
    /// The number of bytes to download: 0 if cached, less than `size` after an interrupted download.
    pub missing: u64,
    /// The file's identity; set if it is not in the snapshot yet.
    pub(crate) facts: Option<Facts>,
}

/// A folder that the tokenizer and the model loader can read.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The folder. In the cache its files are links, which must not be written to.
    pub folder: PathBuf,
    /// The requested files, relative to the folder, which may contain others.
    pub files: Vec<String>,
    /// The commit on the hub; `None` for a local folder.
    pub commit: Option<String>,
    /// The source of the files.
    pub origin: Origin,
}

impl DownloadPlan {
    /// Returns the size of all files in bytes.
    pub fn bytes(&self) -> u64 {
        total(self.files.iter().map(|file| file.size))
    }

    /// Returns the plan for one of its files. Panics when `file` is out of range.
    pub fn of_file(&self, file: usize) -> Self {
        let files = vec![self.files[file].clone()];
        Self { is_whole: self.is_whole && self.files.len() == 1, files, ..self.clone() }
    }

    /// Returns the number of bytes to download, which is also the disk space still needed.
    pub fn bytes_missing(&self) -> u64 {
        total(self.files.iter().map(|file| file.missing))
    }
}

/// Adds sizes that a server gave.
fn total(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

/// A repository of the hub at one commit.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) cache: RepoCache,
    pub(crate) id: String,
    pub(crate) revision: String,
    pub(crate) commit: String,
}

impl Source {
    /// Returns the subject for a file. Files are requested by commit, so that a branch that moves meanwhile
    /// does not mix two revisions.
    pub(crate) fn subject<'a>(&'a self, shown: &'a str, file: &'a str) -> Subject<'a> {
        Subject { kind: self.cache.kind(), id: &self.id, shown, revision: &self.commit, file: Some(file) }
    }

    /// Stores the commit of the revision. Offline, a revision means its last *complete* model; a newer config
    /// alone does not replace it.
    pub(crate) fn remember(&self, is_whole: bool) -> Result<(), Error> {
        if is_whole || self.cache.commit_of(&self.revision).is_none() {
            self.cache.remember(&self.revision, &self.commit)?;
        }
        Ok(())
    }
}
