//! Examples of a data set as a model sees them, with the trained tokens marked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};
use sparktune_app::check::{Browsed, ShownExample, browse};
use sparktune_base::stamp::Stamp;
use sparktune_plan::Answers;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::asked::{Asked, Obstacle, gathered};
use crate::data_files;
use crate::data_id::DataId;
use crate::problem::{Params, Problem, blocking};
use crate::state::{Served, Shared};
use crate::tasks::Task;

/// The number of examples in an answer without a limit, the most, and the most that are reached.
const EXAMPLES: usize = 20;
const MOST_EXAMPLES: usize = 100;
const MOST_REACHED: usize = 2_000;
/// Examples are rendered from the beginning of the data in steps of this size.
const STEP: usize = 200;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(examples))
}

/// Examples of a data set.
#[derive(Debug, Serialize, ToSchema)]
struct Examples {
    /// The examples in the order of the data.
    items: Vec<Example>,
    /// The offset of the next part.
    next: Option<String>,
    /// The number of all examples; null if the data is longer than what is read for this list.
    total: Option<u64>,
    /// Lines that are too long to show.
    too_long_to_show: u64,
}

/// An example as the model sees it.
#[derive(Debug, Serialize, ToSchema)]
struct Example {
    /// Its number, from 1.
    number: usize,
    /// The file of its line.
    source: String,
    /// The line, counted from 1.
    line: u64,
    /// Its tokens.
    tokens: u32,
    /// Those of them that are trained.
    trained_tokens: u32,
    /// The pieces of its text in order.
    pieces: Vec<Piece>,
}

/// A piece of an example.
#[derive(Debug, Serialize, ToSchema)]
struct Piece {
    /// The text.
    text: String,
    /// Whether it is trained.
    trained: bool,
    /// Whether it is a special token.
    special: bool,
    /// Whether it is a note on how much text was left out.
    left_out: bool,
}

/// Examples with their trained tokens
///
/// From the beginning of the data. `model` is required, because its chat template and tokenizer make the
/// examples. Settings that say how data is read are parameters too, by their names: `think`, `train-on`,
/// `format`, …. If the examples are not rendered yet, the answer is 202 and a task, whose result they are.
#[utoipa::path(get, path = "/datasets/{id}/examples", tag = "datasets",
    params(("id" = String, Path), ("model" = String, Query), ("offset" = Option<usize>, Query), ("limit" = Option<usize>, Query)),
    responses((status = 200, body = Examples), (status = 202, body = Task), (status = 400, body = Problem),
    (status = 404, body = Problem)))]
async fn examples(
    State(state): State<Shared>,
    DataId(id): DataId,
    Params(mut params): Params<BTreeMap<String, String>>,
) -> Result<Response, Problem> {
    let mut number = |name: &str| match params.remove(name).map(|text| text.parse::<usize>()) {
        Some(Err(_)) => {
            Err(Problem::bad_request(format!("{name} is not a whole number")).at(name.to_owned()))
        }
        Some(Ok(number)) => Ok(Some(number)),
        None => Ok(None),
    };
    let offset = number("offset")?.unwrap_or(0);
    let limit = number("limit")?.unwrap_or(EXAMPLES).clamp(1, MOST_EXAMPLES);
    let served = state.clone();
    let wanted = blocking(move || Wanted::new(&served, &id, &params, offset, limit)).await?;
    if let Some(browsed) = state.browsed.get(&wanted.answers, &wanted.path, wanted.window) {
        return Ok(Json(wanted.part(&browsed)).into_response());
    }
    let served = state.clone();
    let task = state.tasks.start("examples", move |work| {
        let Wanted { answers, path, window, .. } = &wanted;
        let stamp = Stamp::of(path);
        let browsed = browse(answers, std::slice::from_ref(path), *window, &work.listener())?;
        let browsed = served.browsed.put(answers, path, *window, stamp, browsed);
        serde_json::to_value(wanted.part(&browsed)).map_err(|error| Problem::bad_request(error.to_string()))
    })?;
    Ok((StatusCode::ACCEPTED, Json(task)).into_response())
}

/// The examples of a request.
struct Wanted {
    id: String,
    path: PathBuf,
    answers: Answers,
    offset: usize,
    /// The number of examples before the end of the part.
    reached: usize,
    /// The number of examples that are rendered for it.
    window: usize,
}

impl Wanted {
    fn new(
        state: &Served,
        id: &str,
        params: &BTreeMap<String, String>,
        offset: usize,
        limit: usize,
    ) -> Result<Self, Problem> {
        let data = data_files::find(&data_files::folders(state), id)?;
        let given: Map<String, Value> =
            params.iter().map(|(name, value)| (name.clone(), Value::String(value.clone()))).collect();
        let asked = Asked { answers: given, preset: None };
        let answers = gathered(state, &asked).map_err(Obstacle::problem)?.answers;
        if answers.model.is_none() {
            let text = "examples need a model, because its chat template and tokenizer make them";
            return Err(Problem::bad_request(text)
                .at("model")
                .advise("Choose a model whose tokens they are shown in"));
        }
        let reached = offset.saturating_add(limit).min(MOST_REACHED);
        let window = reached.next_multiple_of(STEP);
        Ok(Self { id: id.to_owned(), path: data.answer(), answers, offset, reached, window })
    }

    fn part(&self, browsed: &Browsed) -> Examples {
        let &Self { offset, reached, .. } = self;
        let shown = browsed.examples.iter().enumerate().take(reached).skip(offset);
        let path = self.path.display().to_string();
        let items: Vec<Example> =
            shown.map(|(at, example)| Example::of(at, example, &path, &self.id)).collect();
        let end = offset.saturating_add(items.len());
        let may_follow = !browsed.is_all && end < MOST_REACHED && !items.is_empty();
        Examples {
            items,
            next: (end < browsed.examples.len() || may_follow).then(|| end.to_string()),
            total: browsed.is_all.then_some(browsed.examples.len() as u64),
            too_long_to_show: browsed.too_long_to_show,
        }
    }
}

impl Example {
    fn of(at: usize, example: &ShownExample, path: &str, id: &str) -> Self {
        let piece = |span: &sparktune_data::Span| Piece {
            text: span.text.clone(),
            trained: span.trained,
            special: span.special,
            left_out: span.left_out,
        };
        Self {
            number: at + 1,
            source: example.place.file.replace(path, id),
            line: example.place.line,
            tokens: example.tokens,
            trained_tokens: example.rendering.target_tokens,
            pieces: example.rendering.spans.iter().map(piece).collect(),
        }
    }
}
