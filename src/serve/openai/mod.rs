//! What programs for OpenAI's API use: `/v1/models`, `/v1/chat/completions`, `/v1/completions`.
//!
//! Enters: requests in OpenAI's form, with vLLM's extensions. Leaves: answers of the loaded models
//! ([`crate::workers`]), whole or as a stream, and errors in OpenAI's form. A client that leaves ends the
//! work on its answers, because they are dropped with its connection.

mod body;
mod chat;
mod completions;
mod error;
mod heading;
mod logprobs;
mod models;
mod opened;
mod parts;
mod stream;
mod tool_calls;
mod types;

use utoipa_axum::router::OpenApiRouter;

use crate::state::Shared;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::default().merge(models::router()).merge(chat::router()).merge(completions::router())
}
