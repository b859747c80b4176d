//! Changes of the edited models that are kept here: keeping an edit, taking patches away, switching them, and
//! undo. Each is a task, and only one is at work at a time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use sparktune_app::edited_models::{self, Part};
use sparktune_app::models;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::edits;
use super::found::{EDITED, Found, InWords, wait_for_others};
use super::history::{self, History, Laid, Wanted};
use super::wish::flag;
use crate::ids::Id;
use crate::problem::{Body, Problem, blocking};
use crate::program;
use crate::state::{Served, Shared};
use crate::tasks::{Task, Work};

pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(keep)).routes(routes!(change)).routes(routes!(undo))
}

/// Where an edit is kept.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
struct KeepWish {
    /// The name of a new model. Without it, an edited model that is kept here is changed in place.
    name: Option<String>,
}

/// Keep an edit
///
/// Its patch is laid on the model that it was computed for: in place, or as a new edited model. The result of
/// the task is `{"model": id, "conflicts": …, "displaced": …, "note": words or null}`.
#[utoipa::path(post, path = "/knowledge/edits/{id}/keep", tag = "knowledge", params(("id" = String, Path)),
    request_body = KeepWish, responses((status = 202, body = Task), (status = 400, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem)))]
async fn keep(
    State(state): State<Shared>,
    Id(id): Id,
    Body(wish): Body<KeepWish>,
) -> Result<(StatusCode, Json<Task>), Problem> {
    blocking(move || {
        let (draft, folder) = edits::find(&state, &id)?;
        let refused = |text: &str| Problem::new(StatusCode::CONFLICT, text);
        let stacked = edited_models::stacked(&folder.join("model")).filter(|_| draft.can_be_kept);
        let patch = stacked.and_then(|stacked| stacked.patches.last().cloned()).ok_or_else(|| {
            let (why, advice) = match draft.result["refused"].as_str() {
                Some(why) => (why, "Compute it again with `force`"),
                None => ("its folder is not whole", "Compute it again"),
            };
            refused(&format!("this edit is not kept: {why}")).advise(advice)
        })?;
        let patch = folder.join("model/patches").join(format!("{patch}.qubgpu"));
        let found = Found::of(&state, &draft.model)?;
        let target = match (&wish.name, found.name()) {
            (Some(name), _) => name.clone(),
            (None, Some(name)) => name.to_owned(),
            (None, None) => {
                return Err(Problem::bad_request(format!("{} itself is not changed", found.model.name))
                    .at("name")
                    .advise("Name the edited model"));
            }
        };
        let is_new = wish.name.is_some();
        if is_new {
            check_new(&state, &target)?;
        }
        let served = state.clone();
        let task = state.tasks.start("patch", move |work| {
            let output = edited_models::folder(served.runs.path(), Part::Models)?.join(&target);
            let model = format!("{EDITED}{target}");
            let names =
                InWords::new(&[(&folder, "the edit"), (&found.folder, &found.model.id), (&output, &model)]);
            let words = |problem: Problem| names.problem(problem);
            let _alone = wait_for_others(&served, work)?;
            // While this one waited, the edit may have been discarded.
            edits::find(&served, &id)?;
            if is_new {
                // Another request may have made it while this one waited.
                check_new(&served, &target)?;
                history::forget(&served, &target);
            }
            let laid = stack(&served, &folder.join("model")).map_err(words)?.pop();
            let laid = laid.ok_or_else(|| refused("the patch of this edit is not there any more"))?;
            let change = Target { state: &served, from: &found.folder, output: &output, name: &target };
            let what = format!("add {}", patch_name(&patch));
            let arguments = change.command("apply", [], [patch.into()]);
            let after = |before: &[Laid]| before.iter().cloned().chain([laid]).collect();
            let (changed, note) = change.made(&what, work, arguments, after).map_err(words)?;
            // If it is being asked, it stays in the list and can be discarded later.
            let _ = edits::remove(&served, &id, &folder);
            Ok(json!({"model": model, "conflicts": changed["conflicts"], "displaced": changed["displaced"],
                "note": note}))
        })?;
        Ok((StatusCode::ACCEPTED, Json(task)))
    })
    .await
}

fn check_new(state: &Served, name: &str) -> Result<(), Problem> {
    if !edited_models::is_name(name) {
        return Err(Problem::bad_request("this cannot be the name of a model")
            .at("name")
            .advise("Use letters, digits, dots, dashes and underscores, with a letter or a digit in front"));
    }
    if edited_models::model(state.runs.path(), name).is_some() {
        let problem =
            Problem::new(StatusCode::CONFLICT, format!("there is an edited model '{name}' already"));
        return Err(problem.at("name").advise("Choose another name, or keep the edit in place"));
    }
    Ok(())
}

fn patch_name(file: &Path) -> String {
    file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A model that is changed, from where to where.
struct Target<'a> {
    state: &'a Served,
    /// The folder whose stack is the beginning.
    from: &'a Path,
    /// The folder that is written.
    output: &'a Path,
    /// The name of the model.
    name: &'a str,
}

impl Target<'_> {
    /// Returns `edit DO FROM --output=OUTPUT FLAGS… -- NAMES…`.
    fn command(
        &self,
        what: &str,
        flags: impl IntoIterator<Item = OsString>,
        names: impl IntoIterator<Item = OsString>,
    ) -> Vec<OsString> {
        let mut arguments: Vec<OsString> =
            vec!["edit".into(), what.into(), self.from.into(), flag("output", self.output)];
        arguments.extend(flags);
        // A patch may have the name of a flag.
        arguments.push("--".into());
        arguments.extend(names);
        arguments
    }

    /// Makes a change whose outcome is known, and notes beforehand how to undo it. The weights are then
    /// loaded again. Returns what the command says, and a note for the user.
    fn made(
        &self,
        what: &str,
        work: &Work,
        arguments: Vec<OsString>,
        after: impl FnOnce(&[Laid]) -> Vec<Laid>,
    ) -> Result<(Value, Option<String>), Problem> {
        let mut history = History::of(self.state, self.name)?;
        let before = stack(self.state, self.from)?;
        history.settle(&before);
        let after = after(&before);
        history.begin(self.from, what.to_owned(), before, after.clone())?;
        let changed = self.run(arguments, work, &mut history, &after)?;
        Ok((changed, unload(self.state, self.name, work)))
    }

    /// Runs the command of a change that was begun, and notes its end.
    fn run(
        &self,
        arguments: Vec<OsString>,
        work: &Work,
        history: &mut History,
        after: &[Laid],
    ) -> Result<Value, Problem> {
        let changed = program::run(&self.state.program, arguments, work);
        // What cannot be noted now is recognised by the next change.
        let now = if changed.is_ok() { Ok(after.to_vec()) } else { stack(self.state, self.output) };
        if let Ok(now) = now {
            let _ = history.end(&now);
        }
        changed
    }
}

/// Returns the patches of a folder. It is asked even for a task that was cancelled.
fn stack(state: &Served, folder: &Path) -> Result<Vec<Laid>, Problem> {
    let arguments: [OsString; 3] = ["edit".into(), "list".into(), folder.into()];
    let listed = program::run_briefly(&state.program, arguments)?;
    serde_json::from_value(listed).map_err(|error| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the list of patches cannot be read: {error}"),
        )
    })
}

/// Ends the worker that holds a model as it was before a change. Returns a note for the user if that fails;
/// the change itself stays.
fn unload(state: &Served, name: &str, work: &Work) -> Option<String> {
    let id = format!("{EDITED}{name}");
    let model = models::find(&id, state.runs.path(), &state.models)?;
    let refused = Found { folder: model.path.clone(), model }.unload(state, work).err()?;
    Some(format!("the model is still loaded as it was before: {}", refused.detail))
}

/// What is to be done with a patch.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum PatchAction {
    /// Take it away. The others are computed anew, as if it had never been there.
    Remove,
    /// Switch it on.
    Enable,
    /// Switch it off. It stays in its place.
    Disable,
}

impl PatchAction {
    fn name(self) -> &'static str {
        match self {
            Self::Remove => "remove",
            Self::Enable => "enable",
            Self::Disable => "disable",
        }
    }

    /// Returns what a stack is after it.
    fn after(self, patch: &str, before: &[Laid]) -> Vec<Laid> {
        let mut after = before.to_vec();
        match self {
            Self::Remove => after.retain(|laid| laid.name != patch),
            Self::Enable | Self::Disable => {
                let is_off = matches!(self, Self::Disable);
                after.iter_mut().filter(|laid| laid.name == patch).for_each(|laid| laid.is_off = is_off);
            }
        }
        after
    }
}

/// A change of a patch.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PatchWish {
    /// The name of the patch.
    patch: String,
    /// What is to be done with it.
    action: PatchAction,
}

/// Take a patch away, or switch it on or off
///
/// The result of the task is `{"model": id, "displaced": …, "note": words or null}`. Patches are displaced if
/// they were made on top of other ones than those below them now.
#[utoipa::path(post, path = "/knowledge/models/{id}/patches", tag = "knowledge", params(("id" = String, Path)),
    request_body = PatchWish, responses((status = 202, body = Task), (status = 404, body = Problem),
        (status = 409, body = Problem, description = "It is a folder of the user")))]
async fn change(
    State(state): State<Shared>,
    Id(id): Id,
    Body(wish): Body<PatchWish>,
) -> Result<(StatusCode, Json<Task>), Problem> {
    blocking(move || {
        let (found, name) = kept(&state, &id)?;
        let patches =
            edited_models::stacked(&found.folder).map(|stacked| stacked.patches).unwrap_or_default();
        if !patches.contains(&wish.patch) {
            let problem = Problem::not_found("patch", &wish.patch).at("patch");
            return Err(problem.advise("GET /api/v1/knowledge/models/{id} lists them"));
        }
        let served = state.clone();
        let task = state.tasks.start("patch", move |work| {
            let _alone = wait_for_others(&served, work)?;
            let change = Target { state: &served, from: &found.folder, output: &found.folder, name: &name };
            let action = wish.action.name();
            let arguments = change.command(action, [], [OsString::from(&wish.patch)]);
            let what = format!("{action} {}", wish.patch);
            let after = |before: &[Laid]| wish.action.after(&wish.patch, before);
            let changed = change.made(&what, work, arguments, after);
            let names = InWords::new(&[(&found.folder, &found.model.id)]);
            let (changed, note) = changed.map_err(|problem| names.problem(problem))?;
            Ok(json!({"model": found.model.id, "displaced": changed["displaced"], "note": note}))
        })?;
        Ok((StatusCode::ACCEPTED, Json(task)))
    })
    .await
}

fn kept(state: &Served, id: &str) -> Result<(Found, String), Problem> {
    let found = Found::kept(state, id)?;
    let name = found.name().map(str::to_owned).unwrap_or_default();
    Ok((found, name))
}

fn nothing(name: &str) -> Problem {
    Problem::new(StatusCode::CONFLICT, format!("there is nothing to undo in {name}"))
        .advise("Changes that were made in a terminal are undone there")
}

/// Undo the last change of an edited model
///
/// Its patches are then what they were before, and its weights have the same bytes. The result of the task is
/// `{"model": id, "undone": words, "note": words or null}`.
#[utoipa::path(post, path = "/knowledge/models/{id}/undo", tag = "knowledge", params(("id" = String, Path)),
    responses((status = 202, body = Task), (status = 404, body = Problem),
        (status = 409, body = Problem, description = "There is nothing to undo")))]
async fn undo(State(state): State<Shared>, Id(id): Id) -> Result<(StatusCode, Json<Task>), Problem> {
    blocking(move || {
        let (found, name) = kept(&state, &id)?;
        let refused = |text: String| Problem::new(StatusCode::CONFLICT, text);
        if History::of(&state, &name)?.last().is_none() {
            return Err(nothing(&name));
        }
        let served = state.clone();
        let task = state.tasks.start("patch", move |work| {
            let _alone = wait_for_others(&served, work)?;
            let names = InWords::new(&[(&found.folder, &found.model.id)]);
            let words = |problem: Problem| names.problem(problem);
            let mut history = History::of(&served, &name)?;
            let now = stack(&served, &found.folder).map_err(words)?;
            history.settle(&now);
            let Some(undone) = history.last().map(|last| last.what.clone()) else {
                return Err(nothing(&name));
            };
            let Some(wanted) = history.begin_undo(&found.folder, &now)? else {
                return Err(refused(format!("{name} has been changed elsewhere since its last change here"))
                    .advise("Take patches away one by one"));
            };
            let change = Target { state: &served, from: &found.folder, output: &found.folder, name: &name };
            let Wanted { files, off, before } = wanted;
            let off = off.iter().map(|name| flag("off", name));
            let arguments = change.command("set", off, files.into_iter().map(PathBuf::into_os_string));
            change.run(arguments, work, &mut history, &before).map_err(words)?;
            let note = unload(&served, &name, work);
            Ok(json!({"model": found.model.id, "undone": undone, "note": note}))
        })?;
        Ok((StatusCode::ACCEPTED, Json(task)))
    })
    .await
}
