//! Runs: the list, one run, its curves, events and samples, and what can be done with it.

mod actions;
mod detail;
mod events;
mod list;
mod series;

use utoipa_axum::router::OpenApiRouter;

pub(crate) use crate::api::runs::list::{Summary, newest};
use crate::state::Shared;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .merge(list::router())
        .merge(detail::router())
        .merge(series::router())
        .merge(events::router())
        .merge(actions::router())
}
