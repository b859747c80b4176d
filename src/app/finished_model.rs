//! What the command `head` trains the head of: a run whose text model is finished, or a model as it is.
//!
//! Enters: a name. Leaves: the run or the model's name. A folder with a `config.json` is a model; a run wins
//! over an id of the hub.

use std::path::{Path, PathBuf};

use sparktune_runlog::RunDir;

use crate::failure::Failure;
use crate::parent::is_id;
use crate::runs;

/// A text model that is not trained any more.
#[derive(Debug)]
pub enum FinishedModel {
    /// That of a run.
    OfRun(RunDir),
    /// A model, by its folder or its id on the hub.
    Model(String),
}

impl FinishedModel {
    /// Finds what a name stands for.
    ///
    /// # Errors
    /// It is neither a run nor the name of a model.
    pub fn find(name: &str, runs_dir_flag: Option<PathBuf>) -> Result<Self, Failure> {
        if Path::new(name).join("config.json").is_file() {
            return Ok(Self::Model(name.to_owned()));
        }
        match runs::find(name, runs_dir_flag) {
            Ok(run) => Ok(Self::OfRun(run)),
            Err(_) if is_id(name) => Ok(Self::Model(name.to_owned())),
            Err(failure) => Err(failure
                .hint("`head` takes a run, the folder of a model with its config.json, or an id of the hub (org/name)")),
        }
    }
}
