//! `patches/stack.json`: the base and the patches that an edited folder is made of.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sparktune_base::regular_file::read_regular;

use crate::error::EditError;

/// The folder of patches in an edited folder.
pub const PATCHES: &str = "patches";
pub(crate) const STACK_FILE: &str = "stack.json";
pub(crate) const VERSION: u32 = 1;
/// The most bytes of the list of patches.
const MOST_BYTES: u64 = 1 << 20;

/// The contents of `stack.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StackFile {
    pub(crate) version: u32,
    /// The folder of the base.
    pub(crate) base: PathBuf,
    /// The hash of its weights.
    pub(crate) base_hash: String,
    /// The names of the patches.
    pub(crate) patches: Vec<String>,
    /// What they change, as [`PatchRef`](crate::PatchRef) has it, in the same order. Older folders do not say
    /// it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ids: Vec<String>,
    /// Those that are switched off.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) off: BTreeSet<String>,
    /// Whether corrections belong to the folder, in a file of their own. Who decodes asks for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) codebook: bool,
    /// The hash of that file, so that no other one is taken for it. Older folders do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) codebook_hash: Option<String>,
    /// The hashes of the files that were copied from the base and that its user may change. Older folders do
    /// not say them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) copies: BTreeMap<String, String>,
}

impl StackFile {
    /// Reads the list of an edited folder.
    ///
    /// # Errors
    /// It cannot be read, or is of another version.
    pub(crate) fn read(folder: &Path) -> Result<Self, EditError> {
        let path = folder.join(PATCHES).join(STACK_FILE);
        let bytes = read_regular(&path, MOST_BYTES).map_err(EditError::io(&path))?;
        let file: Self = serde_json::from_slice(&bytes).map_err(|_| {
            EditError::patch(
                &path,
                "the list of patches cannot be read",
                "Make the folder again from its base with `edit apply`",
            )
        })?;
        if file.version != VERSION {
            let what =
                format!("the list of patches has version {}, and this program reads {VERSION}", file.version);
            return Err(EditError::patch(&path, what, "Use a newer sparktune"));
        }
        Ok(file)
    }
}

/// Returns whether a folder is an edited model.
pub fn is_edited(folder: &Path) -> bool {
    // A pipe or a folder of this name is refused by whoever opens it.
    folder.join(PATCHES).join(STACK_FILE).exists()
}
