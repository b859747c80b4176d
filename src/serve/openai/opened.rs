//! The model of a request.

use sparktune_app::chat::recommended::Wishes;
use sparktune_app::models::{self as found, OpenableModel, Opening};

use super::error::ApiError;
use crate::problem::{Problem, blocking};
use crate::state::Shared;

/// Finds the model of a request: the one that it names, or the first that the server was started with.
pub(crate) async fn find(state: &Shared, id: Option<String>) -> Result<OpenableModel, ApiError> {
    let (runs, given) = (state.runs.path().to_owned(), state.models.clone());
    let named = id.clone();
    let model = blocking(move || {
        let id = named.filter(|id| !id.is_empty()).or_else(|| found::id_of_given(&runs, given.first()?));
        Ok(id.and_then(|id| found::find(&id, &runs, &given)))
    });
    let missing = || match id.as_deref() {
        None | Some("") => ApiError::invalid("no model is named. GET /v1/models lists them").at("model"),
        Some(id) => ApiError::no_model(id),
    };
    model.await?.ok_or_else(missing)
}

/// Returns what a worker opens for a model, and how its makers want it to be sampled.
pub(crate) async fn open(model: &OpenableModel) -> Result<(Opening, Wishes), ApiError> {
    let model = model.clone();
    let opened = blocking(move || {
        let opening = model.opening().map_err(Problem::from)?;
        let makers = Wishes::of_model(&opening.model);
        Ok((opening, makers))
    });
    opened.await.map_err(|problem| ApiError::from(problem.at("model")))
}
