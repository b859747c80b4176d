//! Causal traces: which layers and tokens of a prompt carry a fact.

use std::ffi::OsString;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use sparktune_app::failure::{Exit, Failure};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::edits::{place_for_facts, with_place};
use super::fact::{FactWish, lines};
use super::found::{Found, InWords};
use super::wish::{Source, flag};
use crate::problem::{Body, Problem, blocking};
use crate::program;
use crate::state::Shared;
use crate::tasks::Task;

/// The folder of facts that are being traced.
const KEPT: &str = "traces";

pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(start))
}

/// A fact to trace.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TraceWish {
    /// The id of the model.
    model: String,
    /// The fact. It needs a subject, and its target is not used.
    fact: FactWish,
    /// Read the prompt as what a user says.
    #[serde(default)]
    chat: bool,
}

/// Find where a model recalls what it says of a subject
///
/// The result of the task is a trace as `sparktune edit --trace --json` prints it: with noise on the subject,
/// the probability of the model's own answer where one state, MLP or mixer is restored, for each layer and
/// token.
#[utoipa::path(post, path = "/knowledge/traces", tag = "knowledge", request_body = TraceWish,
    responses((status = 202, body = Task), (status = 400, body = Problem), (status = 404, body = Problem)))]
async fn start(
    State(state): State<Shared>,
    Body(wish): Body<TraceWish>,
) -> Result<(StatusCode, Json<Task>), Problem> {
    blocking(move || {
        let found = Found::of(&state, &wish.model)?;
        if wish.fact.subject.as_deref().is_none_or(|subject| subject.trim().is_empty()) {
            return Err(Problem::bad_request("a trace puts noise on the subject, and this fact has none")
                .at("fact.subject")
                .advise("Write the subject as it stands in the prompt"));
        }
        let source = Source::Typed(lines(std::slice::from_ref(&wish.fact))?);
        let folder = state.kept(KEPT)?;
        let served = state.clone();
        let task = state.tasks.start("trace", move |work| {
            let failed = |error| Problem::from(Failure::io("write", &folder, &error));
            let (place, _in_work) = place_for_facts(&folder, ".fact-").map_err(failed)?;
            let facts = flag("facts", source.file(place.path())?);
            let mut arguments: Vec<OsString> =
                vec!["edit".into(), found.folder.clone().into(), facts, "--trace".into()];
            arguments.extend(wish.chat.then(|| "--chat".into()));
            let names = InWords::new(&[(&found.folder, &found.model.id), (place.path(), "the request")]);
            let told = |problem| with_place(names.problem(problem));
            let traces = program::run(&served.program, arguments, work).map_err(told)?;
            match traces {
                Value::Array(mut traces) if !traces.is_empty() => Ok(traces.swap_remove(0)),
                _ => Err(Failure::new(Exit::Bug, "the trace of the fact is missing").into()),
            }
        })?;
        Ok((StatusCode::ACCEPTED, Json(task)))
    })
    .await
}
