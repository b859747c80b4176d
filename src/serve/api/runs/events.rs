//! The events of a run, as they are written.

use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;
use sparktune_runlog::{EventTailer, Limit};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::runs::list::word;
use crate::followed::Followed;
use crate::ids::Id;
use crate::problem::{Params, Problem, blocking};
use crate::sse::{self, Waited};
use crate::state::Shared;

/// The time between two looks at a log. With it an event reaches its watchers within a second.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);
/// The events of one look, so that a long log does not fill the memory.
const AT_ONCE: Limit = Limit { lines: 2000, time: Duration::from_millis(50) };

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(events))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct From {
    /// The events after this one, `ATTEMPT.SEQ`; all events if absent. The header `Last-Event-ID`, which
    /// browsers send when they connect again, wins over it.
    from: Option<String>,
}

/// Follow a run
///
/// Server-sent events. `event` is a line of the log, with its `ATTEMPT.SEQ` as the id; `state` is the state
/// of the run, at the beginning and when it changes; `notice` is a problem of its files. The stream goes on
/// when the run has ended, because it may be resumed.
#[utoipa::path(get, path = "/runs/{id}/events", tag = "runs", params(("id" = String, Path), From),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 404, body = Problem)))]
async fn events(
    State(state): State<Shared>,
    Id(id): Id,
    Params(query): Params<From>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let after = match last.or(query.from.as_deref()) {
        None | Some("") => (0, 0),
        Some(text) => position(text)?,
    };
    let served = state.clone();
    let (followed, tailer) = blocking(move || {
        let followed = served.followed.get(&served.runs, &id)?;
        let tailer = EventTailer::beginning_near(&followed.run, after.0, after.1)?;
        Ok((followed, tailer))
    })
    .await?;
    let mut watcher = Watcher { followed, tailer, after, state: "" };
    Ok(sse::stream(&state, |mut events| async move {
        loop {
            let Ok(Ok((back, look))) = tokio::task::spawn_blocking(move || watcher.look()).await else {
                return;
            };
            watcher = back;
            if !events.send(look.block).await {
                return;
            }
            // A run that is gone has told so.
            if watcher.state == "gone" || look.is_at_end && events.pause(BETWEEN_LOOKS).await == Waited::Left
            {
                return;
            }
        }
    }))
}

/// Reads the position of an event.
fn position(text: &str) -> Result<(u32, u64), Problem> {
    let parsed = text.split_once('.').and_then(|(attempt, seq)| attempt.parse().ok().zip(seq.parse().ok()));
    parsed.ok_or_else(|| {
        Problem::bad_request("the position of an event is ATTEMPT.SEQ, such as 1.412").at("from")
    })
}

/// A reader of one run.
struct Watcher {
    followed: std::sync::Arc<Followed>,
    tailer: EventTailer,
    after: (u32, u64),
    state: &'static str,
}

/// What was seen.
struct Look {
    block: String,
    is_at_end: bool,
}

impl Watcher {
    /// Reads what is new. Takes the reader and returns it, because it happens in another thread.
    fn look(mut self) -> Result<(Self, Look), Problem> {
        let mut block = String::new();
        let after = self.after;
        let polled = self.tailer.poll_with(AT_ONCE, |event, line| {
            let at = (event.attempt, event.seq);
            if at > after {
                let id = format!("{}.{}", at.0, at.1);
                sse::frame(&mut block, "event", Some(&id), &String::from_utf8_lossy(line));
            }
        })?;
        for notice in polled.notices {
            sse::frame(&mut block, "notice", None, &json!({"text": notice.to_string()}).to_string());
        }
        if polled.at_end {
            let (state, reason) = {
                let known = self.followed.read()?;
                let finished = known.view.finished().and_then(|finished| finished.reason.clone());
                (word(known.liveness), finished)
            };
            if state != self.state {
                self.state = state;
                sse::frame(&mut block, "state", None, &json!({"state": state, "reason": reason}).to_string());
            }
        }
        Ok((self, Look { block, is_at_end: polled.at_end }))
    }
}
