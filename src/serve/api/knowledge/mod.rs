//! Knowledge put into weights: edits that are tried before they are kept, the patches of edited models, undo,
//! causal traces, and measurements of how facts hold.
//!
//! | module | what it owns |
//! |---|---|
//! | `fact` | a fact as a request gives it, and its line in a file |
//! | `found` | which folder a model's id stands for, and paths in messages |
//! | `listed` | the edited models and their patches |
//! | `edits` | an edit that is computed and judged, and waits for a decision |
//! | `changes` | keeping an edit, taking patches away, switching them, undo |
//! | `history` | what has to be done to go back |
//! | `traces` | where a model recalls a fact |
//! | `measurements` | how well facts hold as their number grows |
//! | `wish` | what a request says of facts, as flags |
//!
//! Everything is computed by `sparktune edit` as a process of its own, with its ordinary folders. What it
//! changes is below `.edited` next to the runs: a request names models and data by ids, and never a path.

mod changes;
mod edits;
mod fact;
mod found;
mod history;
mod listed;
mod measurements;
mod traces;
mod wish;

use utoipa_axum::router::OpenApiRouter;

use crate::state::Shared;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    listed::router()
        .merge(edits::router())
        .merge(changes::router())
        .merge(traces::router())
        .merge(measurements::router())
}
