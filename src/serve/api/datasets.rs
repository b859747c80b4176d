//! Data sets: the list, uploads, checks, and the lines that a check rejected.

use std::fs::{self, TryLockError};
use std::path::PathBuf;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sparktune_app::check;
use sparktune_app::data::refusal;
use sparktune_app::failure::Failure;
use sparktune_base::files::{private_file, write_shared};
use sparktune_base::locked::Locked;
use sparktune_base::regular_file::read_regular;
use sparktune_base::stamp::Stamp;
use sparktune_data::{KeptLine, RejectedList, Report};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Listed;
use crate::asked::{Asked, Obstacle, gathered};
use crate::data_files::{self, Data, DataFile, modified_us};
use crate::data_id::DataId;
use crate::problem::{Body, Params, Problem, blocking};
use crate::state::{Served, Shared};
use crate::tasks::{Task, Work, cancelled};
use crate::upload;

/// The number of rejected lines in an answer without a limit, and the most.
const LINES: usize = 50;
const MOST_LINES: usize = 500;
/// The number of bytes shown of a rejected line.
const SHOWN_BYTES: usize = 2_000;
/// The most bytes of the result of a check.
const MOST_RESULT: u64 = 64 << 20;
/// The time between two looks at whether another check has ended.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list, upload))
        .routes(routes!(delete))
        .routes(routes!(check_data))
        .routes(routes!(report))
        .routes(routes!(rejected))
}

/// A data set.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DataSet {
    /// Its id.
    id: String,
    /// Its name, with the folders above it.
    name: String,
    /// The label of its folder: `uploads`, `demo`, or one that the server was started with.
    folder: String,
    /// Its size.
    bytes: u64,
    /// When it was changed, in microseconds since the Unix epoch.
    modified_us: u64,
    /// Whether it was uploaded, so that it can be deleted.
    is_upload: bool,
}

impl DataSet {
    fn of(file: DataFile, is_upload: bool) -> Self {
        Self {
            bytes: file.metadata.len(),
            modified_us: modified_us(&file.metadata),
            id: file.id,
            name: file.name,
            folder: file.folder,
            is_upload,
        }
    }
}

/// The data sets
///
/// Files below the folders that the server was started with, uploads, and the demo's data. Data sets of the
/// hub are named `hf:OWNER/NAME`, token files of other machines `ndp://HOST:PORT/NAME#KEY`; neither are in
/// the list.
#[utoipa::path(get, path = "/datasets", tag = "datasets", responses((status = 200, body = Listed<DataSet>)))]
async fn list(State(state): State<Shared>) -> Result<Json<Listed<DataSet>>, Problem> {
    blocking(move || {
        let folders = data_files::folders(&state);
        let items = folders.iter().flat_map(|folder| {
            data_files::list(folder).into_iter().map(|file| DataSet::of(file, folder.is_of_uploads()))
        });
        Ok(Json(Listed::whole(items.collect())))
    })
    .await
}

/// The name of an upload.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct UploadName {
    /// A plain file name with the ending of a data file.
    name: String,
}

/// Upload a data set
///
/// The body is the file as it is. It is kept as a whole or not at all.
#[utoipa::path(post, path = "/datasets", tag = "datasets", params(UploadName),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses(
    (status = 201, body = DataSet), (status = 400, body = Problem), (status = 409, body = Problem),
    (status = 413, body = Problem), (status = 507, body = Problem, description = "The disk is full")))]
async fn upload(
    State(state): State<Shared>,
    Params(UploadName { name }): Params<UploadName>,
    request: Request,
) -> Result<(StatusCode, Json<DataSet>), Problem> {
    data_files::check_upload_name(&name)?;
    let most = state.limits.upload_bytes;
    let announced =
        request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > most) {
        return Err(upload::too_long(most));
    }
    let served = state.clone();
    let folder = blocking(move || Ok(data_files::uploads(&served)?)).await?;
    upload::receive(&folder.path, &name, request.into_body(), most).await?;
    blocking(move || {
        let id = format!("{}:{name}", folder.label);
        let file = data_files::find_file(&[folder], &id)?;
        Ok((StatusCode::CREATED, Json(DataSet::of(file, true))))
    })
    .await
}

/// Delete an upload
///
/// Runs that were trained on it keep their own copy of the tokens.
#[utoipa::path(delete, path = "/datasets/{id}", tag = "datasets", params(("id" = String, Path)), responses(
    (status = 204, description = "It is deleted"), (status = 404, body = Problem),
    (status = 409, body = Problem, description = "It is not an upload")))]
async fn delete(State(state): State<Shared>, DataId(id): DataId) -> Result<StatusCode, Problem> {
    blocking(move || {
        let folders = data_files::folders(&state);
        let file = data_files::find_file(&folders, &id)?;
        if !folders.iter().any(|folder| folder.is_of_uploads() && folder.label == file.folder) {
            let problem = Problem::new(
                StatusCode::CONFLICT,
                format!("{} is one of your own files, not an upload", file.name),
            );
            return Err(problem.advise("Delete it where it is"));
        }
        fs::remove_file(&file.path).map_err(|error| Failure::io("delete", &file.path, &error))?;
        let Kept { result, rejected } = Kept::of(&state, &id)?;
        // There may have been no check.
        let _ = (fs::remove_file(result), fs::remove_file(rejected));
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// How data is checked.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
struct HowChecked {
    /// The model whose tokens are counted; without one, bytes are.
    model: Option<String>,
    /// Settings of a plan that say how data is read.
    #[schema(value_type = Object)]
    settings: Map<String, Value>,
}

/// Check a data set
///
/// Every line is read. The result of the task is the report of `sparktune check --json`: lengths, rejected
/// lines by kind, notes; it is kept and can be read again. Data that would be refused is no error: see
/// `accepted`.
#[utoipa::path(post, path = "/datasets/{id}/check", tag = "datasets", params(("id" = String, Path)),
    request_body = HowChecked,
    responses((status = 202, body = Task), (status = 400, body = Problem), (status = 404, body = Problem)))]
async fn check_data(
    State(state): State<Shared>,
    DataId(id): DataId,
    Body(how): Body<HowChecked>,
) -> Result<(StatusCode, Json<Task>), Problem> {
    let served = state.clone();
    let (data, asked) = blocking(move || {
        let data = data_files::find(&data_files::folders(&served), &id)?;
        let mut answers = how.settings;
        answers.extend(how.model.map(|model| ("model".to_owned(), model.into())));
        let asked = Asked { answers, preset: None };
        gathered(&served, &asked).map_err(Obstacle::problem)?;
        Ok((data, asked))
    })
    .await?;
    let served = state.clone();
    let task = state.tasks.start("check", move |work| checked_now(&served, &data, &asked, work))?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Checks data, and keeps the result.
fn checked_now(state: &Served, data: &Data, asked: &Asked, work: &Work) -> Result<Value, Problem> {
    let answers = gathered(state, asked).map_err(Obstacle::problem)?.answers;
    let kept = Kept::of(state, data.id())?;
    let _alone = kept.wait_for_others(work)?;
    let path = data.answer();
    let stamp = Stamp::of(&path);
    let reporter = work.listener();
    let checked = check::check(
        &answers,
        std::slice::from_ref(&path),
        Some(kept.rejected.clone()),
        check::Show::default(),
        &reporter,
    )?;
    let report = &checked.report;
    let refused =
        refusal(&answers, report).map(|refusal| match (report.lines_to_correct(), report.map_hint()) {
            (0, _) => refusal.to_string(),
            (_, Some(hint)) => refusal.hint(hint).to_string(),
            (_, None) => refusal.hint("Correct the lines, or raise max-rejected").to_string(),
        });
    // The page draws the lengths itself.
    let sentences = Report { lengths: None, ..report.clone() }.to_string();
    let mut result = json!({
        "check_id": kept.name(),
        "data": data.id(),
        "model": asked.answers.get("model"),
        "settings": asked.answers,
        "accepted": checked.accepted,
        "max_rejected": checked.max_rejected,
        "refused": refused,
        "sentences": sentences.lines().map(str::trim).collect::<Vec<_>>(),
        "suggested_map": report.suggested_map().map(ToString::to_string),
        "listed_lines": report.listed_lines(),
        "report": report,
        "notes": reporter.take_notes(),
    });
    named_by_id(&mut result, &path.display().to_string(), data.id());
    let text = json!({"stamp": stamp, "result": result}).to_string();
    write_shared(&kept.result, text).map_err(|error| Failure::io("write", &kept.result, &error))?;
    Ok(result)
}

/// Writes the id in place of a path in all texts.
fn named_by_id(value: &mut Value, path: &str, id: &str) {
    match value {
        Value::String(text) if text.contains(path) => *text = text.replace(path, id),
        Value::Array(values) => values.iter_mut().for_each(|value| named_by_id(value, path, id)),
        Value::Object(pairs) => pairs.values_mut().for_each(|value| named_by_id(value, path, id)),
        _ => {}
    }
}

/// The files of the last check of a data set.
struct Kept {
    result: PathBuf,
    rejected: PathBuf,
}

impl Kept {
    fn of(state: &Served, id: &str) -> Result<Self, Problem> {
        let folder = state.kept("checks")?;
        let name = &blake3::hash(id.as_bytes()).to_hex()[..16];
        let file = |ending: &str| folder.join(format!("{name}{ending}"));
        Ok(Self { result: file(".json"), rejected: file(".rejected.jsonl") })
    }

    /// Waits until no other check, of this server or another one, writes these files: the list of rejected
    /// lines and the result belong to one check. Returns what keeps others waiting.
    fn wait_for_others(&self, work: &Work) -> Result<Locked, Problem> {
        let path = self.result.with_extension("lock");
        let failed = |error| Failure::io("lock", &path, &error);
        let file = private_file().create(true).open(&path).map_err(failed)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Locked::new(file)),
                Err(TryLockError::Error(error)) => return Err(failed(error).into()),
                Err(TryLockError::WouldBlock) if work.is_cancelled() => {
                    return Err(cancelled());
                }
                Err(TryLockError::WouldBlock) => {
                    work.says("waiting for another check of this data");
                    std::thread::sleep(BETWEEN_LOOKS);
                }
            }
        }
    }

    fn name(&self) -> String {
        self.result.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// The last check of a data set
///
/// `is_current` says whether the file is still the one that was checked; it is false for data that is not on
/// this machine, of which this is not known.
#[utoipa::path(get, path = "/datasets/{id}/report", tag = "datasets", params(("id" = String, Path)),
    responses((status = 200, body = Object), (status = 404, body = Problem)))]
async fn report(State(state): State<Shared>, DataId(id): DataId) -> Result<Json<Value>, Problem> {
    blocking(move || {
        let data = data_files::find(&data_files::folders(&state), &id)?;
        let checked = last_check(&state, &data)?;
        checked.map(Json).ok_or_else(|| {
            Problem::not_found("check of the data set", &id)
                .advise("POST /api/v1/datasets/{id}/check checks it")
        })
    })
    .await
}

/// Returns the result of the last check of this data with `is_current`, if there was one.
fn last_check(state: &Served, data: &Data) -> Result<Option<Value>, Problem> {
    let kept = Kept::of(state, data.id())?;
    // What cannot be read counts as never checked.
    let Ok(bytes) = read_regular(&kept.result, MOST_RESULT) else { return Ok(None) };
    let Ok(mut kept) = serde_json::from_slice::<Map<String, Value>>(&bytes) else { return Ok(None) };
    let now = Stamp::of(&data.answer());
    let is_current = now.is_some() && kept.get("stamp") == Some(&json!(now));
    let mut result = kept.remove("result");
    if let Some(Value::Object(result)) = &mut result {
        result.insert("is_current".into(), is_current.into());
    }
    Ok(result)
}

/// A part of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Part {
    /// The number of lines to skip.
    #[serde(default)]
    offset: u64,
    /// The number of lines, at most 500.
    limit: Option<usize>,
}

/// Rejected lines.
#[derive(Debug, Serialize, ToSchema)]
struct RejectedLines {
    /// The lines in the order of the data.
    items: Vec<RejectedLine>,
    /// The offset of the next part.
    next: Option<String>,
    /// The number of lines in the list, as the last check counted them.
    total: u64,
}

/// A rejected line.
#[derive(Debug, Serialize, ToSchema)]
struct RejectedLine {
    /// The file.
    source: String,
    /// The line, counted from 1.
    line: u64,
    /// The field; empty if the line as a whole is the cause.
    field: String,
    /// What is wrong.
    reason: String,
    /// What to do about it.
    fix: String,
    /// The line, or its beginning.
    text: String,
    /// Whether `text` is only its beginning.
    is_cut: bool,
}

/// The lines that the last check rejected
///
/// With the place, the reason and what to do about it. The list has at most 100,000 lines. Data that was not
/// checked yet, or may have changed, is checked first: the answer is 202 and a task, whose result is the
/// lines. For data that is not on this machine, later parts of the list come from the same check as the first
/// one.
#[utoipa::path(get, path = "/datasets/{id}/rejected", tag = "datasets", params(("id" = String, Path), Part),
    responses((status = 200, body = RejectedLines), (status = 202, body = Task), (status = 404, body = Problem)))]
async fn rejected(
    State(state): State<Shared>,
    DataId(id): DataId,
    Params(part): Params<Part>,
) -> Result<Response, Problem> {
    let served = state.clone();
    let is_later = part.offset > 0;
    let (data, checked) = blocking(move || {
        let data = data_files::find(&data_files::folders(&served), &id)?;
        let is_of_same = is_later && matches!(data, Data::Elsewhere(_));
        let checked = last_check(&served, &data)?;
        let checked = checked.filter(|checked| is_of_same || checked["is_current"] == true);
        Ok((data, checked))
    })
    .await?;
    let served = state.clone();
    match checked {
        Some(checked) => {
            let lines = blocking(move || rejected_lines(&served, &data, &checked, &part)).await?;
            Ok(Json(lines).into_response())
        }
        None => {
            let task = state.tasks.start("check", move |work| {
                let checked = checked_now(&served, &data, &Asked::default(), work)?;
                let lines = rejected_lines(&served, &data, &checked, &part)?;
                serde_json::to_value(lines).map_err(|error| Problem::bad_request(error.to_string()))
            })?;
            Ok((StatusCode::ACCEPTED, Json(task)).into_response())
        }
    }
}

fn rejected_lines(
    state: &Served,
    data: &Data,
    checked: &Value,
    part: &Part,
) -> Result<RejectedLines, Problem> {
    let total = checked["listed_lines"].as_u64().unwrap_or(0);
    if total == 0 {
        return Ok(RejectedLines { items: Vec::new(), next: None, total });
    }
    let path = data.answer().display().to_string();
    let mut list = RejectedList::open(&Kept::of(state, data.id())?.rejected).map_err(Failure::from)?;
    let limit = part.limit.unwrap_or(LINES).clamp(1, MOST_LINES);
    let page = list.page(part.offset, limit, SHOWN_BYTES).map_err(Failure::from)?;
    let next = part.offset.saturating_add(page.len() as u64);
    let line = |kept: KeptLine| RejectedLine {
        source: kept.rejected.file.replace(&path, data.id()),
        line: kept.rejected.line,
        field: kept.rejected.rejection.field,
        reason: kept.rejected.rejection.reason,
        fix: kept.rejected.rejection.fix,
        text: kept.rejected.text,
        is_cut: kept.cut,
    };
    let items = page.into_iter().map(line).collect();
    Ok(RejectedLines { items, next: (next < total).then(|| next.to_string()), total })
}
