//! Patches: what an edit computed, in a file of typed packets (`patches/NAME.qubgpu`).
//!
//! The tensors are low-rank changes of `down_proj` (`low_rank`) and codebooks; their names say the layer that
//! they go to. The header says what they belong to: the hash of the base, the method, the facts, the patches
//! that lay below when it was made, and the scores.

use std::path::Path;

use serde::{Deserialize, Serialize};
use sparktune_data::packets::PacketError;
use sparktune_data::packets::file::About;
use sparktune_data::packets::numbers::{read_numbers, write_numbers};
use sparktune_infer::codebook_file::StoredCodebook;
use sparktune_plan::ModelConfig;

use crate::error::EditError;
use crate::facts::{Fact, Facts};
use crate::low_rank::LowRank;
use crate::scores::Scores;
use crate::tokens::Rendering;

/// The key of the description in the header of the file.
const KEY: &str = "patch";
/// The version of descriptions.
pub(crate) const VERSION: u32 = 1;
/// The most bytes of a description and of what the file says beside it. A file of packets holds 16 MiB of it,
/// and scores and the patches below come after the facts.
const MOST_FACTS_BYTES: usize = (16 << 20) - (256 << 10);
/// The largest number in a correction. Larger ones would not be finite in sums of squares.
const LARGEST: f32 = 1e15;
const AGAIN: &str = "Get the file again from where it was made, or make the edit again";
const PATCH_FILE: &str = "Name a file of the folder `patches` of an edited model";

/// How facts are written into a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// One fact after the other, each exactly.
    Rome,
    /// All facts at once, with the least change of what other text does.
    Memit,
    /// All facts in one step from gradients, in several layers.
    Ultraedit,
    /// A codebook beside the weights.
    Memory,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Rome, Self::Memit, Self::Ultraedit, Self::Memory];

    /// Returns the name for a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rome => "rome",
            Self::Memit => "memit",
            Self::Ultraedit => "ultraedit",
            Self::Memory => "memory",
        }
    }

    /// Returns the method of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }
}

/// A patch by its name and contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchRef {
    /// The name.
    pub name: String,
    /// A hash of what it changes.
    pub id: String,
}

/// What a patch says about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AboutPatch {
    /// The version of this description.
    pub version: u32,
    /// Its name.
    pub name: String,
    /// How it was made.
    pub method: Method,
    /// How its prompts are read.
    pub rendering: Rendering,
    /// The layers that it changes.
    pub layers: Vec<usize>,
    /// The hash of the weights that it belongs to ([`crate::stack::base_hash`]).
    pub base: String,
    /// The name of the base's folder, for display.
    pub base_name: String,
    /// The patches that lay below when it was made, in order.
    pub computed_on: Vec<PatchRef>,
    /// The facts.
    pub facts: Vec<Fact>,
    /// The entries that each fact has in a codebook: one for each token of its target, and one more if the
    /// model would make a longer word of it. Empty without a codebook.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<usize>,
    /// How well it held when it was made.
    #[serde(default)]
    pub scores: Option<Scores>,
}

/// A patch.
#[derive(Debug, Clone, PartialEq)]
pub struct Patch {
    /// What it says about itself.
    pub about: AboutPatch,
    /// Changes of weights.
    pub changes: Vec<LowRank>,
    /// Corrections beside the weights.
    pub codebooks: Vec<StoredCodebook>,
}

impl Patch {
    /// Reads a patch.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or is no patch.
    pub fn read(path: &Path) -> Result<Self, EditError> {
        if std::fs::metadata(path).map_err(EditError::io(path))?.is_dir() {
            return Err(EditError::patch(path, "this is a folder, and a patch is a file", PATCH_FILE));
        }
        let (about, tensors) = read_numbers(path).map_err(|error| match error {
            PacketError::Io { path, source } => EditError::Io { path, source },
            PacketError::File { path, what, .. } => EditError::Patch { path, what, fix: AGAIN },
            // Packets that are whole one by one, and not together.
            PacketError::Parts { what, .. } | PacketError::Unfit { what, .. } => {
                EditError::patch(path, what, AGAIN)
            }
            other => other.into(),
        })?;
        let Some(text) = about.metadata.get(KEY) else {
            return Err(EditError::patch(path, "these packets are no patch of an edit", PATCH_FILE));
        };
        let about: AboutPatch = serde_json::from_str(text).map_err(|_| {
            EditError::patch(
                path,
                "the description of the patch cannot be read",
                "Use a newer sparktune, or make the edit again",
            )
        })?;
        if about.version != VERSION {
            let what = format!("the patch has version {}, and this program reads {VERSION}", about.version);
            return Err(EditError::patch(path, what, "Use a newer sparktune"));
        }
        check_name(&about.name).map_err(|what| EditError::patch(path, what, AGAIN))?;
        let codebooks =
            StoredCodebook::of_tensors(&tensors).map_err(|what| EditError::patch(path, what, AGAIN))?;
        if !codebooks.iter().all(is_sound) {
            return Err(EditError::patch(path, "no edit makes corrections of such numbers", AGAIN));
        }
        let changes = LowRank::of_tensors(&tensors);
        if let Some(change) = changes.iter().find(|change| !change.is_whole()) {
            let what = format!("the factors of layer {} do not fit together", change.layer);
            return Err(EditError::patch(path, what, AGAIN));
        }
        let of_changes = || changes.iter().flat_map(|change| [&change.a, &change.b, &change.keys]).flatten();
        if !of_changes().all(|number| number.abs() <= LARGEST) {
            return Err(EditError::patch(path, "no edit makes changes of such numbers", AGAIN));
        }
        if changes.is_empty() && codebooks.is_empty() {
            return Err(EditError::patch(path, "the patch changes nothing", AGAIN));
        }
        let layers = changes.iter().map(|change| change.layer).chain(codebooks.iter().map(|book| book.layer));
        let (mut changed, mut said) = (layers.collect::<Vec<_>>(), about.layers.clone());
        changed.sort_unstable();
        changed.dedup();
        // An edit names each layer once.
        said.sort_unstable();
        if changed != said {
            said.truncate(changed.len() + 1);
            let what = format!("its description names the layers {said:?}, and it changes {changed:?}");
            return Err(EditError::patch(path, what, AGAIN));
        }
        Ok(Self { about, changes, codebooks })
    }

    /// Writes the patch. The same patch gives the same bytes.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), EditError> {
        let text = serde_json::to_string(&self.about).expect("a description is JSON");
        let about = About { made_of: None, metadata: [(KEY.to_owned(), text)].into() };
        let changes = self.changes.iter().flat_map(LowRank::tensors);
        let tensors: Vec<_> =
            changes.chain(self.codebooks.iter().flat_map(StoredCodebook::tensors)).collect();
        Ok(write_numbers(path, &about, &tensors)?)
    }

    /// Returns name and contents of the patch.
    pub fn reference(&self) -> PatchRef {
        let mut hasher = blake3::Hasher::new();
        let changes = self.changes.iter().flat_map(LowRank::tensors);
        for tensor in changes.chain(self.codebooks.iter().flat_map(StoredCodebook::tensors)) {
            hasher.update(tensor.name.as_bytes());
            for value in &tensor.values {
                hasher.update(&value.to_le_bytes());
            }
        }
        PatchRef { name: self.about.name.clone(), id: hasher.finalize().to_hex()[..16].to_owned() }
    }

    /// Checks that the patch was made for this base.
    ///
    /// # Errors
    /// It belongs to another base, or its sizes do not fit the config.
    pub fn fits(&self, path: &Path, base_hash: &str, config: &ModelConfig) -> Result<(), EditError> {
        if self.about.base != base_hash {
            let what = format!(
                "the patch belongs to another base: it was made for `{}` with the hash {}, and these weights have {base_hash}",
                crate::facts::shown(&self.about.base_name),
                crate::facts::shown(&self.about.base),
            );
            return Err(EditError::patch(
                path,
                what,
                "Apply it to its own base, or make the edit again for this one",
            ));
        }
        let (layers, width) = (config.layers.len(), config.hidden_size);
        let inner = |layer: usize| config.layers[layer].intermediate_size;
        let fits = self.changes.iter().all(|change| change.fits(layers, width, inner))
            && self.codebooks.iter().all(|book| book.layer < layers && book.mean.len() == width);
        if fits {
            Ok(())
        } else {
            Err(EditError::patch(path, "the sizes of the patch are not those of the model", AGAIN))
        }
    }
}

/// Returns whether corrections are as an edit makes them. With a threshold below 0 an entry would answer what
/// has nothing to do with its key.
fn is_sound(book: &StoredCodebook) -> bool {
    let numbers = book.mean.iter().chain(&book.keys).chain(&book.values);
    // Cosines end at one but for their rounding.
    book.thresholds.iter().all(|threshold| (-0.001..=1.001).contains(threshold))
        && numbers.copied().all(|number| number.abs() <= LARGEST)
}

/// Checks that facts fit into the file of a patch, before anything is computed.
///
/// # Errors
/// They are too many or too long; how many fit is said.
pub(crate) fn check_room(facts: &Facts) -> Result<(), EditError> {
    let mut bytes = 0;
    for (place, fact) in facts.facts().iter().enumerate() {
        // The description is a text in JSON, so its quotes are escaped once more.
        let text = serde_json::to_string(fact).expect("a fact is JSON");
        bytes += serde_json::to_string(&text).expect("a text is JSON").len();
        if bytes > MOST_FACTS_BYTES {
            let what = match place {
                0 => "this fact alone is longer than the file of a patch may be".to_owned(),
                _ => format!("the file of a patch holds the first {place} of these facts, and not this one"),
            };
            return Err(EditError::Fact {
                place: facts.place(place),
                what,
                fix: "Write the facts in several edits, or leave out prompts that only judge",
            });
        }
    }
    Ok(())
}

/// Returns the name of the file of a patch.
pub(crate) fn file_of(name: &str) -> String {
    format!("{name}.qubgpu")
}

/// Checks the name of a patch, which is also that of its file.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if (1..=64).contains(&name.len()) && name.chars().all(is_plain) && !name.starts_with(['.', '-']) {
        return Ok(());
    }
    Err(format!(
        "`{}` cannot be the name of a patch, which has up to 64 letters, digits, dots, dashes and underscores, and no dot or dash in front",
        crate::facts::shown(name)
    ))
}
