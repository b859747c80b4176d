//! How well facts hold as their number grows, which `sparktune edit --measure` measures: kept one by one,
//! because a measurement may take an hour.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sparktune_app::failure::Failure;
use sparktune_base::files::write_shared_and_sync;
use sparktune_base::regular_file::read_regular;
use sparktune_runlog::now_us;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::edits::{place_for_facts, with_place};
use super::fact::FactWish;
use super::found::{Found, InWords};
use super::wish::{EditSettings, Source, flag, named_files};
use crate::api::Listed;
use crate::ids::{self, Id};
use crate::problem::{Body, Problem, blocking};
use crate::program;
use crate::state::Shared;
use crate::tasks::Task;

/// The folder of the results.
const KEPT: &str = "edit-measurements";
/// The most bytes of a result, and the number of results that are listed.
const MOST_BYTES: u64 = 16 << 20;
const LISTED: usize = 100;
/// The most facts, and the most numbers of them in a measurement.
const MOST_FACTS: u32 = 10_000;
const MOST_SIZES: usize = 8;
/// What is measured for each number of facts.
const PARTS: [&str; 4] = ["batched", "sequential", "lora", "prompt"];

pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list, start)).routes(routes!(read, delete))
}

/// What to measure.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EditMeasurementWish {
    /// The id of the model.
    model: String,
    /// Facts, at most 1,000.
    #[serde(default)]
    facts: Vec<FactWish>,
    /// The id of a data set that is a file of facts.
    data: Option<String>,
    /// The numbers of facts, such as 1, 10 and 100. What is more than there are means all.
    sizes: Vec<u32>,
    /// `auto`, `rome`, `memit`, `ultraedit` or `memory`.
    method: Option<String>,
    /// The layer that is changed, or several: `4`, `2,3`, `2-4`.
    layers: Option<String>,
    /// Read each prompt as what a user says.
    #[serde(default)]
    chat: bool,
    /// The id of a data set with ordinary text; without it, the demo's chats.
    text: Option<String>,
    /// The name of a suite of prompts, whose share of passed ones is measured before and after, such as
    /// `instructions`.
    suite: Option<String>,
    /// The parts to leave out: `batched`, `sequential`, and the controls, `lora` and `prompt`.
    #[serde(default)]
    without: Vec<String>,
}

/// A measurement of edits.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
struct EditMeasurement {
    /// Its id.
    id: String,
    /// When it ended, in microseconds since the Unix epoch.
    created_us: u64,
    /// The id of the model.
    model: String,
    /// The name of the model.
    model_name: String,
    /// What `sparktune edit --measure --json` printed: `rows` with `count`, `how`, `scores`, `seconds` and
    /// `error`.
    #[schema(value_type = Object)]
    result: Value,
}

/// The measurements of edits, the newest first
#[utoipa::path(get, path = "/knowledge/measurements", tag = "knowledge",
    responses((status = 200, body = Listed<EditMeasurement>)))]
async fn list(State(state): State<Shared>) -> Result<Json<Listed<EditMeasurement>>, Problem> {
    blocking(move || {
        let folder = state.kept(KEPT)?;
        let entries = fs::read_dir(&folder).map_err(|error| Failure::io("list", &folder, &error))?;
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable_by(|one, other| other.cmp(one));
        let results = names.iter().filter_map(|name| name.strip_suffix(".json")).take(LISTED);
        Ok(Json(Listed::whole(results.filter_map(|id| read_result(&folder, id)).collect())))
    })
    .await
}

fn file(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("{id}.json"))
}

fn read_result(folder: &Path, id: &str) -> Option<EditMeasurement> {
    serde_json::from_slice(&read_regular(&file(folder, id), MOST_BYTES).ok()?).ok()
}

/// Measure how well facts hold as their number grows
///
/// Written at once and one after the other, beside LoRA on the same facts and the fact in the prompt. It may
/// take long. The result of the task is `{"measurement": id}`; no model is changed.
#[utoipa::path(post, path = "/knowledge/measurements", tag = "knowledge", request_body = EditMeasurementWish,
    responses((status = 202, body = Task), (status = 400, body = Problem), (status = 404, body = Problem)))]
async fn start(
    State(state): State<Shared>,
    Body(wish): Body<EditMeasurementWish>,
) -> Result<(StatusCode, Json<Task>), Problem> {
    blocking(move || {
        let found = Found::of(&state, &wish.model)?;
        let source = Source::of(&state, &wish.facts, wish.data.as_deref())?;
        let [method, layers, text, suite] =
            [&wish.method, &wish.layers, &wish.text, &wish.suite].map(Option::as_deref);
        let mut flags = EditSettings { method, layers, chat: wish.chat, text, suite }.flags(&state)?;
        flags.extend(wish.flags()?);
        let folder = state.kept(KEPT)?;
        let program = state.program.clone();
        let files = named_files(&state, &[&wish.data, &wish.text].map(Option::as_deref));
        let task = state.tasks.start("measure-edits", move |work| {
            let failed = |error| Problem::from(Failure::io("write", &folder, &error));
            let (place, _in_work) = place_for_facts(&folder, ".facts-").map_err(failed)?;
            let facts = source.file(place.path())?;
            let mut arguments: Vec<OsString> =
                vec!["edit".into(), found.folder.clone().into(), flag("facts", facts)];
            arguments.extend(flags);
            let mut names: Vec<(&Path, &str)> =
                vec![(&found.folder, &found.model.id), (place.path(), "the request")];
            names.extend(files.iter().map(|(path, id)| (path.as_path(), id.as_str())));
            let names = InWords::new(&names);
            let told = |problem| {
                let problem = names.problem(problem);
                if wish.facts.is_empty() { problem } else { with_place(problem) }
            };
            let mut result = program::run(&program, arguments, work).map_err(told)?;
            names.value(&mut result);
            let id = ids::new();
            let measurement = EditMeasurement {
                id: id.clone(),
                created_us: now_us(),
                model: found.model.id.clone(),
                model_name: found.model.name.clone(),
                result,
            };
            let path = file(&folder, &id);
            let text = serde_json::to_string(&measurement).expect("a result is JSON");
            write_shared_and_sync(&path, text).map_err(|error| Failure::io("write", &path, &error))?;
            Ok(json!({"measurement": id}))
        })?;
        Ok((StatusCode::ACCEPTED, Json(task)))
    })
    .await
}

impl EditMeasurementWish {
    /// Returns the flags that say what is measured.
    fn flags(&self) -> Result<Vec<OsString>, Problem> {
        let is_possible = |size: &u32| (1..=MOST_FACTS).contains(size);
        if !(1..=MOST_SIZES).contains(&self.sizes.len()) || !self.sizes.iter().all(is_possible) {
            let text =
                format!("a measurement has 1 to {MOST_SIZES} numbers of facts, each from 1 to {MOST_FACTS}");
            return Err(Problem::bad_request(text).at("sizes").advise("Give 1, 10 and 100, for example"));
        }
        if let Some(unknown) = self.without.iter().find(|name| !PARTS.contains(&name.as_str())) {
            let problem = Problem::bad_request(format!("there is no part '{}'", unknown.escape_debug()));
            return Err(problem.at("without").advise(format!("There are {}", PARTS.join(", "))));
        }
        let sizes: Vec<String> = self.sizes.iter().map(u32::to_string).collect();
        let mut flags = vec![flag("measure", sizes.join(","))];
        if !self.without.is_empty() {
            flags.push(flag("without", self.without.join(",")));
        }
        Ok(flags)
    }
}

/// A measurement of edits
#[utoipa::path(get, path = "/knowledge/measurements/{id}", tag = "knowledge", params(("id" = String, Path)),
    responses((status = 200, body = EditMeasurement), (status = 404, body = Problem)))]
async fn read(State(state): State<Shared>, Id(id): Id) -> Result<Json<EditMeasurement>, Problem> {
    blocking(move || read_result(&state.kept(KEPT)?, &id).map(Json).ok_or_else(|| missing(&id))).await
}

/// Delete a measurement of edits
#[utoipa::path(delete, path = "/knowledge/measurements/{id}", tag = "knowledge", params(("id" = String, Path)),
    responses((status = 204, description = "It is deleted"), (status = 404, body = Problem)))]
async fn delete(State(state): State<Shared>, Id(id): Id) -> Result<StatusCode, Problem> {
    blocking(move || {
        let folder = state.kept(KEPT)?;
        read_result(&folder, &id).ok_or_else(|| missing(&id))?;
        let path = file(&folder, &id);
        fs::remove_file(&path).map_err(|error| Failure::io("delete", &path, &error))?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

fn missing(id: &str) -> Problem {
    Problem::not_found("measurement", id).advise("GET /api/v1/knowledge/measurements lists them")
}
