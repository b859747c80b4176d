//! The models into which facts can be written, the patches of those that are edited, and edits that wait for
//! a decision.

use std::ffi::OsString;
use std::fs;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::{Value, json};
use sparktune_app::edited_models;
use sparktune_app::failure::Failure;
use sparktune_app::models::{self, ModelKind};
use sparktune_base::regular_file::read_regular;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::edits;
use super::found::{EDITED, Found, InWords, alone};
use super::history::{self, History, Laid};
use crate::ids::{self, Id};
use crate::problem::{Problem, blocking};
use crate::program;
use crate::state::Shared;

/// The most facts of a patch that are returned.
const MOST_FACTS: usize = 200;
/// The most bytes of a patch that is returned.
const MOST_BYTES: u64 = 1 << 30;

pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(all)).routes(routes!(read, delete)).routes(routes!(file))
}

/// What there is to edit, and what was.
#[derive(Debug, Serialize, ToSchema)]
struct Knowledge {
    /// The models into which facts can be written.
    models: Vec<EditableModel>,
    /// The edits that wait for a decision, the newest first.
    drafts: Vec<ListedDraft>,
}

/// A model into which facts can be written.
#[derive(Debug, Serialize, ToSchema)]
struct EditableModel {
    /// Its id.
    id: String,
    /// The id without what it begins with.
    name: String,
    /// `base`, `run`, `merged` or `edited`.
    #[schema(value_type = String)]
    kind: ModelKind,
    /// The name of the model that an edited one was made of.
    base: Option<String>,
    /// The names of the patches of an edited model, first one first.
    patches: Vec<String>,
    /// Whether its patches can be changed here.
    can_be_changed: bool,
}

/// An edit that waits for a decision.
#[derive(Debug, Serialize, ToSchema)]
struct ListedDraft {
    /// Its id.
    id: String,
    /// When it was computed, in microseconds since the Unix epoch.
    created_us: u64,
    /// The name of the model that it was computed for.
    model: String,
    /// Whether it can be kept.
    can_be_kept: bool,
}

/// What there is to edit: models, their patches, and edits that wait for a decision
#[utoipa::path(get, path = "/knowledge", tag = "knowledge", responses((status = 200, body = Knowledge)))]
async fn all(State(state): State<Shared>) -> Result<Json<Knowledge>, Problem> {
    blocking(move || {
        edits::remove_abandoned(&state);
        let listed = models::list(state.runs.path(), &state.models).into_iter();
        let models = listed.filter_map(|model| {
            let stacked = edited_models::stacked(&model.whole().ok()?);
            Some(EditableModel {
                base: model.base.as_deref().map(|base| models::shown_name(base).to_owned()),
                patches: stacked.map(|stacked| stacked.patches).unwrap_or_default(),
                can_be_changed: model.id.starts_with(EDITED),
                id: model.id,
                name: model.name,
                kind: model.kind,
            })
        });
        let drafts = edits::list(&state).into_iter().map(|draft| ListedDraft {
            id: draft.id,
            created_us: draft.created_us,
            model: draft.model_name,
            can_be_kept: draft.can_be_kept,
        });
        Ok(Json(Knowledge { models: models.collect(), drafts: drafts.collect() }))
    })
    .await
}

/// An edited model with its patches.
#[derive(Debug, Serialize, ToSchema)]
struct EditedModel {
    /// Its id.
    id: String,
    /// The id without what it begins with.
    name: String,
    /// The name of the model that it was made of.
    base: Option<String>,
    /// The id of that model, if it can be opened here, to ask both side by side.
    base_id: Option<String>,
    /// Whether its patches can be changed here.
    can_be_changed: bool,
    /// The patches, first one first, as `sparktune edit list --json` prints them. Of many facts, the first
    /// are there, and `facts_total` is their number.
    #[schema(value_type = Vec<Object>)]
    patches: Vec<Value>,
    /// What undoing would take back, in words.
    undo: Option<String>,
}

/// An edited model: its patches with method, layers, facts and scores
#[utoipa::path(get, path = "/knowledge/models/{id}", tag = "knowledge", params(("id" = String, Path)),
    responses((status = 200, body = EditedModel), (status = 404, body = Problem)))]
async fn read(State(state): State<Shared>, Id(id): Id) -> Result<Json<EditedModel>, Problem> {
    blocking(move || {
        let found = Found::edited(&state, &id)?;
        let names = InWords::new(&[(&found.folder, &found.model.id)]);
        let arguments: [OsString; 3] = ["edit".into(), "list".into(), found.folder.clone().into()];
        let listed =
            program::run_briefly(&state.program, arguments).map_err(|problem| names.problem(problem))?;
        let now: Vec<Laid> = serde_json::from_value(listed.clone()).unwrap_or_default();
        let mut patches: Vec<Value> = serde_json::from_value(listed).unwrap_or_default();
        patches.iter_mut().for_each(shorten);
        let undo = match found.name() {
            Some(name) => {
                let mut history = History::of(&state, name)?;
                history.settle(&now);
                history.last().map(|change| change.what.clone())
            }
            None => None,
        };
        let base = edited_models::stacked(&found.folder).map(|stacked| stacked.base);
        let openable = models::list(state.runs.path(), &state.models).into_iter();
        let base_id =
            openable.filter(|model| model.path.canonicalize().ok() == base).map(|model| model.id).next();
        Ok(Json(EditedModel {
            id: found.model.id.clone(),
            name: found.model.name.clone(),
            base: found.model.base.as_deref().map(|base| models::shown_name(base).to_owned()),
            base_id,
            can_be_changed: found.name().is_some(),
            patches,
            undo,
        }))
    })
    .await
}

fn shorten(patch: &mut Value) {
    let Some(Value::Array(facts)) = patch.get_mut("facts") else { return };
    let total = facts.len();
    facts.truncate(MOST_FACTS);
    patch["facts_total"] = json!(total);
}

/// A patch of an edited model as a file
///
/// `sparktune edit apply`, and an edit with `patch`, lay it on another model of the same base.
#[utoipa::path(get, path = "/knowledge/models/{id}/patches/{patch}", tag = "knowledge",
    params(("id" = String, Path), ("patch" = String, Path)),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 404, body = Problem)))]
async fn file(
    State(state): State<Shared>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<impl IntoResponse, Problem> {
    let refused = |refused: PathRejection| Problem::new(refused.status(), refused.body_text()).at("path");
    let Path((id, patch)) = path.map_err(refused)?;
    blocking(move || {
        ids::checked(&id)?;
        let found = Found::edited(&state, &id)?;
        let patches =
            edited_models::stacked(&found.folder).map(|stacked| stacked.patches).unwrap_or_default();
        let is_known = ids::checked(&patch).is_ok() && patches.contains(&patch);
        if !is_known {
            return Err(
                Problem::not_found("patch", &patch).advise("GET /api/v1/knowledge/models/{id} lists them")
            );
        }
        let path = found.folder.join("patches").join(format!("{patch}.qubgpu"));
        let bytes = read_regular(&path, MOST_BYTES).map_err(|error| Failure::io("read", &path, &error))?;
        let plain: String =
            patch.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).collect();
        let name = format!("attachment; filename=\"{plain}.qubgpu\"");
        let kind = "application/octet-stream".to_owned();
        Ok(([(CONTENT_TYPE, kind), (CONTENT_DISPOSITION, name)], bytes))
    })
    .await
}

/// Delete an edited model
///
/// Its base stays as it is.
#[utoipa::path(delete, path = "/knowledge/models/{id}", tag = "knowledge", params(("id" = String, Path)),
    responses((status = 204, description = "It is deleted"), (status = 404, body = Problem),
        (status = 409, body = Problem, description = "It is answering or being changed, or a folder of the user")))]
async fn delete(State(state): State<Shared>, Id(id): Id) -> Result<StatusCode, Problem> {
    blocking(move || {
        let found = Found::kept(&state, &id)?;
        let Some(_alone) = alone(&state)? else {
            let problem = Problem::new(StatusCode::CONFLICT, "an edited model is being changed");
            return Err(problem.advise("Delete it when that has ended"));
        };
        state.workers.unload(&found.model, &found.model.opening()?)?;
        fs::remove_dir_all(&found.folder).map_err(|error| Failure::io("delete", &found.folder, &error))?;
        history::forget(&state, found.name().unwrap_or_default());
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
