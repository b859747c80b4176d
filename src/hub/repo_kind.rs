//! The two kinds of repositories that are read.

use std::fmt;

use hf_hub::RepoType;

/// The kind of a repository. It decides the addresses, the folder in the cache, and the words of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepoKind {
    /// A model.
    Model,
    /// A data set.
    DataSet,
}

impl RepoKind {
    /// Returns the same kind for hf-hub, which knows routes and folders.
    pub(crate) const fn of_hub(self) -> RepoType {
        match self {
            Self::Model => RepoType::Model,
            Self::DataSet => RepoType::Dataset,
        }
    }

    /// Returns what stands before the id in the address of the repository's page.
    pub(crate) const fn page(self) -> &'static str {
        match self {
            Self::Model => "",
            Self::DataSet => "datasets/",
        }
    }
}

impl fmt::Display for RepoKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::DataSet => "data set",
        })
    }
}
