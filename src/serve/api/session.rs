//! Logging out.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::SET_COOKIE;
use axum::response::IntoResponse;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::Shared;
use crate::token::forgotten_cookie;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(logout))
}

/// Make this browser forget the token
///
/// The token itself stays: delete its file and start the server again to change it.
#[utoipa::path(post, path = "/logout", tag = "server", responses((status = 204, description = "It is forgotten")))]
async fn logout(State(state): State<Shared>) -> impl IntoResponse {
    (StatusCode::NO_CONTENT, [(SET_COOKIE, forgotten_cookie(state.port))])
}
