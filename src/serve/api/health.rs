//! Whether the server answers, and what it is.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::Shared;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(health))
}

/// The server.
#[derive(Debug, Serialize, ToSchema)]
struct Health {
    /// `ok`.
    status: &'static str,
    /// The version of sparktune.
    version: &'static str,
    /// The time since the start of the server.
    uptime_s: u64,
    /// How the program was built.
    build: Build,
    /// The folder of the runs.
    runs_dir: String,
}

/// How the program was built.
#[derive(Debug, Serialize, ToSchema)]
struct Build {
    /// Whether it can train on an NVIDIA GPU.
    cuda: bool,
}

/// Whether the server answers, and what it is
#[utoipa::path(get, path = "/health", tag = "server", responses((status = 200, body = Health)))]
async fn health(State(state): State<Shared>) -> Json<Health> {
    Json(Health {
        status: "ok",
        version: env!("CARGO_PKG_VERSION"),
        uptime_s: state.started.elapsed().as_secs(),
        build: Build { cuda: state.program.has_cuda },
        runs_dir: state.runs.path().display().to_string(),
    })
}
