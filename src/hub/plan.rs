//! The plan of a download, and its result.

use std::path::PathBuf;

use crate::cache::RepoCache;
use crate::catalog::Facts;
use crate::error::Error;
use crate::http::Subject;
use crate::select::Needs;

/// Where a plan found its facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A folder that the user named.
    Folder,
    /// The hub was asked.
    Hub,
    /// Offline by request.
    Cache,
    /// The hub could not be reached, and the cache holds everything that is needed.
    CacheInstead {
        /// Why the hub was not used: worth a line on the screen, as a newer revision may exist.
        why: String,
    },
}

/// `config.json` of a model, had without any weight.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file's text, as stored.
    pub text: String,
    /// Where it lies.
    pub path: PathBuf,
    /// Where it was found.
    pub origin: Origin,
}

/// The files to download, known before the first weight.
#[derive(Debug, Clone)]
pub struct DownloadPlan {
    /// The model as the user named it: `org/name`, `org/name@revision` or a folder.
    pub model: String,
    /// Commit on the hub; `None` for a local folder.
    pub commit: Option<String>,
    /// The folder that will hold all files.
    pub folder: PathBuf,
    /// Everything that is needed, small files first.
    pub files: Vec<PlannedFile>,
    /// Bytes free where the cache is, when the plan was made; `None` where the system does not tell.
    pub disk_available: Option<u64>,
    /// Where this was found.
    pub origin: Origin,
    pub(crate) needs: Needs,
    pub(crate) source: Option<Source>,
}

/// One file of a plan.
#[derive(Debug, Clone)]
pub struct PlannedFile {
    /// Path inside the folder.
    pub name: String,
    /// Bytes in all.
    pub size: u64,
    /// Bytes still to be fetched: 0 when cached, less than `size` when an earlier download was cut.
    pub missing: u64,
    /// Set when it is not in the snapshot yet.
    pub(crate) facts: Option<Facts>,
}

/// A folder that the tokenizer and the model loader can read.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The folder. In the cache its files are links: read them, never write them.
    pub folder: PathBuf,
    /// The files that were asked for, relative to it; the folder may hold others.
    pub files: Vec<String>,
    /// Commit on the hub; `None` for a local folder.
    pub commit: Option<String>,
    /// Where it was found.
    pub origin: Origin,
}

impl DownloadPlan {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Bytes still to be fetched, and so the space still needed on disk.
    pub fn bytes_missing(&self) -> u64 {
        self.files.iter().map(|file| file.missing).sum()
    }
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
    /// Files are asked for by commit, so that a branch that moves meanwhile does not mix two revisions.
    pub(crate) fn subject<'a>(&'a self, shown: &'a str, file: &'a str) -> Subject<'a> {
        Subject { id: &self.id, shown, revision: &self.commit, file: Some(file) }
    }

    /// Without a network a revision means its last *whole* model: a newer config alone does not displace it.
    pub(crate) fn remember(&self, needs: Needs) -> Result<(), Error> {
        if needs == Needs::Model || self.cache.commit_of(&self.revision).is_none() {
            self.cache.remember(&self.revision, &self.commit)?;
        }
        Ok(())
    }
}
