//! The base model by which members are compared.

use std::path::PathBuf;

use sparktune_base::program_name;
use sparktune_hub::ModelName;

use crate::model::hub;
use crate::models::plan_of;
use crate::runs::find;

/// Returns the folder of a base model on this machine: that of `model`, which names a folder or a model of
/// the hub, or without it that of the newest run in the runs folder. Nothing is downloaded.
///
/// # Errors
/// There is no such folder; the error says why, in words.
pub fn base_folder(model: Option<&str>, runs_dir_flag: Option<PathBuf>) -> Result<PathBuf, String> {
    match model {
        Some(model) => folder_of(model),
        None => folder_of_newest_run(runs_dir_flag).ok_or_else(|| {
            format!(
                "no run in the runs folder says which model: name it with `{} cluster doctor --model MODEL`",
                program_name()
            )
        }),
    }
}

fn folder_of_newest_run(runs_dir_flag: Option<PathBuf>) -> Option<PathBuf> {
    plan_of(&find("latest", runs_dir_flag).ok()?).ok()?.model.path
}

fn folder_of(model: &str) -> Result<PathBuf, String> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    match ModelName::parse(model, home.as_deref()).map_err(|error| error.to_string())? {
        ModelName::Folder(folder) => {
            std::path::absolute(&folder).map_err(|error| format!("{}: {error}", folder.display()))
        }
        ModelName::Repo { id, revision } => {
            let hub = hub().map_err(|failure| failure.to_string())?;
            let whole = hub.whole_models().into_iter().find(|whole| whole.id == id && revision == "main");
            whole.map(|whole| whole.folder).ok_or_else(|| {
                format!(
                    "{id}@{revision} is not completely on this machine, or is not the branch `main`: name its folder, or run `{} cluster doctor` on a machine that has it",
                    program_name()
                )
            })
        }
    }
}
