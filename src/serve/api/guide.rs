//! The pages of the user's guide.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::guide::page;
use crate::ids::Id;
use crate::problem::Problem;
use crate::state::Shared;

/// A page of the guide.
#[derive(Debug, Serialize, ToSchema)]
struct GuidePage {
    /// The page as markdown. Links to other pages are names of files, and pictures are in `/guide/screens/`.
    text: String,
}

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(contents)).routes(routes!(read))
}

fn found(name: Option<&str>) -> Result<Json<GuidePage>, Problem> {
    let text = page(name).ok_or_else(|| {
        Problem::not_found("page of the guide", name.unwrap_or_default())
            .advise("GET /api/v1/guide has the list")
    })?;
    Ok(Json(GuidePage { text }))
}

/// The contents of the user's guide
#[utoipa::path(get, path = "/guide", tag = "guide", responses((status = 200, body = GuidePage)))]
async fn contents() -> Result<Json<GuidePage>, Problem> {
    found(None)
}

/// A page of the user's guide
#[utoipa::path(get, path = "/guide/{page}", tag = "guide", params(("page" = String, Path, description = "Its name in the contents")),
    responses((status = 200, body = GuidePage), (status = 404, body = Problem)))]
async fn read(Id(name): Id) -> Result<Json<GuidePage>, Problem> {
    found(Some(&name))
}
