//! What a run starts from: the copy of an adapter in the run's folder, and the base that it belongs to.
//!
//! The launcher writes `parent/`: `parent.json`, and if the parent is an adapter its two files. Weights that
//! are a whole model are the model in the plan. A resumed run therefore needs neither the other run nor the
//! other adapter.

use std::path::PathBuf;

use serde::Deserialize;
use sparktune_base::regular_file::read_regular;
use sparktune_model::Checkpoint;
use sparktune_plan::Plan;
use sparktune_runlog::RunDir;

use crate::error::TrainError;
use crate::inputs::{self, InputFile};

/// The most bytes of `parent.json`.
const MOST_BYTES: u64 = 16 << 20;

/// The part of `parent.json` that the trainer reads.
#[derive(Deserialize)]
struct Parent {
    /// Whether it is an adapter, and not a model.
    is_adapter: bool,
    /// The base of its training by its files, if it is a run that knows them.
    base_files: Option<Vec<InputFile>>,
}

/// Reads what a run starts from. `None` if it starts from a published model.
fn read(run: &RunDir, plan: &Plan) -> Result<Option<Parent>, TrainError> {
    if plan.model.from.is_none() {
        return Ok(None);
    }
    let path = run.parent().join("parent.json");
    let bytes = read_regular(&path, MOST_BYTES).map_err(TrainError::io(&path))?;
    let parent = serde_json::from_slice(&bytes).map_err(|error| TrainError::io(&path)(error.into()))?;
    Ok(Some(parent))
}

/// Returns the folder of the adapter that a run starts from, if it starts from one.
///
/// # Errors
/// When the launcher's notes about it cannot be read.
pub(crate) fn adapter(run: &RunDir, plan: &Plan) -> Result<Option<PathBuf>, TrainError> {
    Ok(read(run, plan)?.filter(|parent| parent.is_adapter).map(|_| run.parent()))
}

/// Refuses a base that is not the one that the run's parent was trained on. The base of an adapter that was
/// made elsewhere is not known by its bytes.
///
/// # Errors
/// [`TrainError::OtherBaseThanParent`] with the first file that differs.
pub(crate) fn require_its_base(run: &RunDir, plan: &Plan, base: &Checkpoint) -> Result<(), TrainError> {
    let (Some(parent), Some(from)) = (read(run, plan)?, &plan.model.from) else { return Ok(()) };
    let Some(of_parent) = parent.base_files.filter(|_| parent.is_adapter) else { return Ok(()) };
    let mut difference = inputs::difference(&of_parent, &inputs::of_base(base)?);
    // The parent may have had no head of another model. Its adapter was trained on the text model alone.
    if difference.is_some() && base.has_foreign_head() {
        difference = inputs::difference(&of_parent, &inputs::of_text_model(base)?);
    }
    match difference {
        None => Ok(()),
        Some(reason) => {
            Err(TrainError::OtherBaseThanParent { path: base.dir().to_owned(), parent: from.clone(), reason })
        }
    }
}
