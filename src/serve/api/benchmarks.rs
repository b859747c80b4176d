//! Measurements of this machine: `sparktune bench`, and what it has measured before.

use std::ffi::OsString;
use std::path::Path;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sparktune_app::failure::Failure;
use sparktune_base::files::write_shared_and_sync;
use sparktune_base::regular_file::read_regular;
use sparktune_runlog::now_us;
use sparktune_telemetry::Machine;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::ids::{self, Id};
use crate::problem::{Body, Problem, blocking};
use crate::program;
use crate::state::Shared;
use crate::tasks::Task;

/// The folder of the results.
const KEPT: &str = "benchmarks";
/// The most bytes of a result, and the number of results that are listed.
const MOST_BYTES: u64 = 16 << 20;
const LISTED: usize = 200;

/// The sections of `sparktune bench`, with what they measure. A test compares them with the command.
pub(crate) const SECTIONS: [(&str, &str); 9] = [
    ("start", "Start-up time of the program"),
    ("validation", "Checking JSON Lines"),
    ("tokenising", "Rendering and tokenising examples, compared with the tokenizers library"),
    ("tokens", "Reading token files, compared with a memory copy"),
    ("loading", "Loading, cold and warm, against memory copies"),
    ("packing", "Packing examples and building the packs"),
    ("log", "Opening the log of a long run, and following a live one"),
    ("screen", "Time and size of the dashboard's frames"),
    ("train", "Optimizer steps on the CPU, LoRA and full"),
];

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list, start)).routes(routes!(read))
}

/// What was measured, and what can be.
#[derive(Debug, Serialize, ToSchema)]
struct Benchmarks {
    /// The results, the newest first.
    items: Vec<Measured>,
    /// What can be measured.
    sections: Vec<Section>,
}

/// A result in a few words.
#[derive(Debug, Serialize, ToSchema)]
struct Measured {
    /// Its name.
    id: String,
    /// When it was measured, in microseconds since the Unix epoch.
    created_us: u64,
    /// The sections.
    sections: Vec<String>,
    /// The number of rows.
    rows: usize,
}

/// A part of the program that can be measured by itself.
#[derive(Debug, Serialize, ToSchema)]
struct Section {
    /// Its name.
    name: &'static str,
    /// What it measures.
    about: &'static str,
}

/// The measurements of this machine
#[utoipa::path(get, path = "/benchmarks", tag = "benchmarks", responses((status = 200, body = Benchmarks)))]
async fn list(State(state): State<Shared>) -> Result<Json<Benchmarks>, Problem> {
    blocking(move || {
        let folder = state.kept(KEPT)?;
        let entries = std::fs::read_dir(&folder).map_err(|error| Failure::io("list", &folder, &error))?;
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable_by(|one, other| other.cmp(one));
        let results = names.iter().filter_map(|name| name.strip_suffix(".json")).take(LISTED);
        let items = results.filter_map(|id| measured(&read_result(&folder, id).ok()?)).collect();
        let sections = SECTIONS.map(|(name, about)| Section { name, about }).into();
        Ok(Json(Benchmarks { items, sections }))
    })
    .await
}

fn measured(result: &Value) -> Option<Measured> {
    let rows = result["rows"].as_array()?;
    let mut sections: Vec<String> =
        rows.iter().filter_map(|row| row["section"].as_str().map(str::to_owned)).collect();
    sections.dedup();
    Some(Measured {
        id: result["id"].as_str()?.to_owned(),
        created_us: result["created_us"].as_u64()?,
        sections,
        rows: rows.len(),
    })
}

fn read_result(folder: &Path, id: &str) -> Result<Value, Problem> {
    let path = folder.join(format!("{id}.json"));
    let bytes = read_regular(&path, MOST_BYTES).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Problem::not_found("benchmark", id).advise("GET /api/v1/benchmarks lists them")
        }
        _ => Failure::io("read", &path, &error).into(),
    })?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Problem::not_found("readable benchmark", id).at(format!("{}: {error}", path.display()))
    })
}

/// What to measure.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
struct Wanted {
    /// The sections; all of them if empty.
    sections: Vec<String>,
    /// Less of everything, in a fraction of the time.
    quick: bool,
}

/// Measure this machine
///
/// The result of the task names the benchmark. Measure nothing while a run trains: both would be slower.
#[utoipa::path(post, path = "/benchmarks", tag = "benchmarks", request_body = Wanted,
    responses((status = 202, body = Task), (status = 400, body = Problem)))]
async fn start(
    State(state): State<Shared>,
    Body(wanted): Body<Wanted>,
) -> Result<(StatusCode, Json<Task>), Problem> {
    let is_known = |name: &String| SECTIONS.iter().any(|(known, _)| known == name);
    if let Some(unknown) = wanted.sections.iter().find(|name| !is_known(name)) {
        let known: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
        return Err(Problem::bad_request(format!("there is no section '{unknown}'"))
            .at("sections")
            .advise(format!("There are {}", known.join(", "))));
    }
    blocking(move || {
        let folder = state.kept(KEPT)?;
        let mut arguments: Vec<OsString> = vec!["bench".into()];
        arguments.extend(wanted.sections.into_iter().map(OsString::from));
        if wanted.quick {
            arguments.push("--quick".into());
        }
        let program = state.program.clone();
        let task = state.tasks.start("benchmark", move |work| {
            let rows = program::run(&program, arguments, work)?;
            let id = ids::new();
            let result =
                json!({"id": id, "created_us": now_us(), "machine": Machine::gather(), "rows": rows});
            let path = folder.join(format!("{id}.json"));
            write_shared_and_sync(&path, result.to_string())
                .map_err(|error| Failure::io("write", &path, &error))?;
            Ok(json!({"benchmark": id}))
        })?;
        Ok((StatusCode::ACCEPTED, Json(task)))
    })
    .await
}

/// A result
///
/// `rows` are those that `sparktune bench --json` prints; `machine` is where they were measured.
#[utoipa::path(get, path = "/benchmarks/{id}", tag = "benchmarks", params(("id" = String, Path)),
    responses((status = 200, body = Object), (status = 404, body = Problem)))]
async fn read(State(state): State<Shared>, Id(id): Id) -> Result<Json<Value>, Problem> {
    blocking(move || Ok(Json(read_result(&state.kept(KEPT)?, &id)?))).await
}
