//! Patches as an adapter in PEFT's format, for servers that put one on the base when they start.
//!
//! The factors of all patches of a layer stand side by side, so the rank is the number of their keys. All
//! layers get the same rank, with zeros, because servers and the readers of this program expect one rank
//! and every layer. Where the keys are more than the layer is wide, the change itself and the identity are
//! smaller.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde::Serialize;
use sparktune_base::files::sync;
use sparktune_model::{BaseClass, LoraConfig, Model};
use sparktune_plan::TargetModules;
use sparktune_plan::adapter::max_lora_rank;

use crate::error::EditError;
use crate::facts::shown;
use crate::folder_lock::FolderLock;
use crate::low_rank::LowRank;
use crate::patch::Patch;
use crate::stack::Stack;
use crate::unfinished::{Modes, Unfinished};

/// The layer that patches change.
const TARGET: &str = "down_proj";

/// What was exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Exported {
    /// The folder.
    pub output: PathBuf,
    /// The adapters in it: one for each class of transformers that names the modules in another way.
    pub adapters: Vec<PathBuf>,
    /// The rank.
    pub rank: usize,
    /// The layers that are changed; the others have zeros.
    pub layers: Vec<usize>,
    /// The names of the patches.
    pub patches: Vec<String>,
    /// The names of patches that no adapter can hold: corrections beside the weights.
    pub left_out: Vec<String>,
    /// The `--max-lora-rank` with which vLLM accepts it; `None` if it accepts no such rank.
    pub max_lora_rank: Option<u32>,
}

/// Writes patches of a stack as adapters on its base into a new folder: those of these names, or all that are
/// switched on. `go_on` is asked before each step. Those can read the folder who can read the base.
///
/// # Errors
/// The folder exists already or is being written, there is no such patch or one is named twice, none of them
/// changes weights, a file cannot be written, or `go_on` says no. Then there is no folder.
pub fn export_adapter(
    stack: &Stack,
    names: &[String],
    output: &Path,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Exported, EditError> {
    let _lock = FolderLock::take(output)?;
    if fs::symlink_metadata(output).is_ok() {
        return Err(EditError::patch(output, "it already exists", "Name a new folder with --output"));
    }
    let mut named = BTreeSet::new();
    if let Some(name) = names.iter().find(|name| !named.insert(*name)) {
        let what = format!("the patch {} is named twice", shown(name));
        return Err(EditError::request(what, "Name each patch once"));
    }
    let chosen: Vec<&Patch> = match names {
        [] => stack.active().collect(),
        names => names.iter().map(|name| stack.patch(name)).collect::<Result<_, _>>()?,
    };
    if chosen.is_empty() {
        let what = if stack.patches.is_empty() {
            "the model has no patches"
        } else {
            "all patches are switched off"
        };
        return Err(EditError::request(
            what,
            "Write facts into it with `edit`, or switch a patch on with `edit enable`",
        ));
    }
    let name_of = |patch: &&Patch| patch.about.name.clone();
    let (changing, left_out): (Vec<&Patch>, Vec<&Patch>) =
        chosen.into_iter().partition(|patch| !patch.changes.is_empty());
    if changing.is_empty() {
        return Err(EditError::request(
            "none of these patches changes weights: corrections beside the weights (the method memory) cannot be an adapter",
            "Serve the edited folder with sparktune, or write the facts with another method",
        ));
    }
    let checkpoint = stack.checkpoint()?;
    let mut asked = || if go_on() { Ok(()) } else { Err(EditError::Stopped) };
    asked()?;
    let mut model = Model::load(&checkpoint, &Device::flex(), &mut |_, _| ())?;
    asked()?;
    let layers = checkpoint.config().layers.len();
    let mut factors: Vec<Option<LowRank>> = vec![None; layers];
    for change in changing.iter().flat_map(|patch| &patch.changes) {
        match &mut factors[change.layer] {
            Some(all) => all.append(change),
            none => *none = Some(change.clone()),
        }
    }
    let shape = |layer: usize| {
        let shape = model.down_proj(layer).weight.shape();
        [shape[0], shape[1]]
    };
    let factors: Vec<Option<LowRank>> =
        factors.into_iter().enumerate().map(|(layer, change)| Some(change?.within(shape(layer)))).collect();
    let rank = factors.iter().flatten().map(|change| change.rank).max().unwrap_or(1);
    let padded: Vec<[Vec<f32>; 2]> = (0..layers)
        .map(|layer| match &factors[layer] {
            Some(change) => change.padded(rank, shape(layer)),
            None => [vec![0.0; rank * shape(layer)[1]], vec![0.0; rank * shape(layer)[0]]],
        })
        .collect();
    for (layer, numbers) in padded.into_iter().enumerate() {
        model.set_down_proj_lora(layer, rank, numbers);
    }
    let targets = TargetModules::of_names([TARGET]).expect("every family has this layer");
    let config = LoraConfig { targets, ..LoraConfig::new(rank, rank as f64) };

    let around = Unfinished::create(output, "being-exported")?;
    let unfinished = around.path().join("adapters");
    let base = stack.base.display().to_string();
    let mut adapters = Vec::new();
    for class in BaseClass::all_of(&checkpoint) {
        asked()?;
        let folder = unfinished.join(class.folder());
        fs::create_dir_all(&folder).map_err(EditError::io(&folder))?;
        model.save_lora(&folder, config, &checkpoint, &base, *class)?;
        sync(&folder).map_err(EditError::io(&folder))?;
        adapters.push(output.join(class.folder()));
    }
    asked()?;
    Modes::of(&stack.base)?.give(&unfinished)?;
    let parent = around.path().parent().unwrap_or(Path::new("."));
    sync(&unfinished)
        .and_then(|()| fs::rename(&unfinished, output))
        .and_then(|()| sync(parent))
        .map_err(EditError::io(output))?;
    Ok(Exported {
        output: output.to_owned(),
        adapters,
        rank,
        layers: (0..layers).filter(|layer| factors[*layer].is_some()).collect(),
        patches: changing.iter().map(name_of).collect(),
        left_out: left_out.iter().map(name_of).collect(),
        max_lora_rank: max_lora_rank(rank as u64),
    })
}
