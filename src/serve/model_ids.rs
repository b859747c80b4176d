//! The models that requests can train: names of the hub, and the folders that the server was started with.
//!
//! Enters: an id, `hub:OWNER/NAME` or `OWNER/NAME` with an optional `@REVISION`, or `dir:NAME`. Leaves: the
//! answer to `--model`. Requests name no paths: see [`sparktune_app::model::check_hub_name`].

use std::path::Path;

use sparktune_app::model::check_hub_name;
use sparktune_app::models::folders;

use crate::problem::Problem;

/// What the ids of folders and of the hub's models begin with.
const FOLDER: &str = "dir:";
const HUB: &str = "hub:";

/// Returns the answer to `--model` for this id; `given` are the models that the server was started with.
///
/// # Errors
/// There is no such model, or the name is none.
pub(crate) fn answer(given: &[String], id: &str) -> Result<String, Problem> {
    let id = id.trim();
    if id.starts_with(FOLDER) {
        let folder = folders(given).into_iter().find(|folder| folder.id == id);
        let missing = || {
            Problem::not_found("model", id).advise(
                "Start the server with --model and its folder, or name a model by its Hugging Face id",
            )
        };
        return folder.map(|folder| folder.path.display().to_string()).ok_or_else(missing);
    }
    if id.starts_with("run:") {
        let problem = Problem::bad_request("a run is not a model to train from the beginning").at("model");
        return Err(problem.advise("Name the run with the setting `from`; the model is then that of the run"));
    }
    let name = id.strip_prefix(HUB).unwrap_or(id);
    check_hub_name(name).map_err(|failure| Problem::from(failure).at("model"))?;
    Ok(name.to_owned())
}

/// Returns the id of the model that an answer to `--model` names.
pub(crate) fn of_answer(given: &[String], answer: &str) -> String {
    let folder = folders(given).into_iter().find(|folder| folder.path == Path::new(answer));
    folder.map_or_else(|| answer.to_owned(), |folder| folder.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_names_of_the_hub_or_folders_that_the_server_knows() {
        let place = tempfile::tempdir().unwrap();
        let model = place.path().canonicalize().unwrap().join("mine");
        std::fs::create_dir(&model).unwrap();
        std::fs::write(model.join("config.json"), "{}").unwrap();
        let given = [model.display().to_string(), place.path().display().to_string()];
        assert_eq!(answer(&given, "dir:mine").unwrap(), model.display().to_string());
        assert_eq!(of_answer(&given, &answer(&given, "dir:mine").unwrap()), "dir:mine");
        assert_eq!(answer(&given, "hub:Qwen/Qwen3.5-2B").unwrap(), "Qwen/Qwen3.5-2B");
        assert_eq!(answer(&given, "Qwen/Qwen3.5-2B@main").unwrap(), "Qwen/Qwen3.5-2B@main");
        let demo = answer(&[], "dir:demo").unwrap();
        assert!(demo.ends_with("presets/demo/model"), "{demo}");
        for (id, status) in [
            ("dir:other", 404),
            ("dir:../mine", 404),
            ("dir:mine/../mine", 404),
            (given[0].as_str(), 400),
            ("hub:/etc", 400),
            ("~/x", 400),
            ("../x", 400),
            ("run:latest", 400),
        ] {
            let problem = answer(&given, id).unwrap_err();
            assert!(problem.status == status && problem.advice.is_some(), "{id:?} {problem:?}");
        }
        assert_eq!(answer(&given, "").unwrap_err().status, 400);
    }
}
