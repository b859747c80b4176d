//! The id of a data set in the path of a URL. Besides names it may be one of the hub or the address of
//! another machine, which have slashes.

use axum::extract::FromRequestParts;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::request::Parts;

use crate::problem::Problem;

/// The id of a data set. What it stands for is found by [`crate::data_files::find`], which checks it.
pub(crate) struct DataId(pub String);

impl<S: Send + Sync> FromRequestParts<S> for DataId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let refused = |refused: PathRejection| Problem::new(refused.status(), refused.body_text()).at("path");
        Path::from_request_parts(parts, state).await.map(|Path(id)| Self(id)).map_err(refused)
    }
}
