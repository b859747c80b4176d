//! Edits that are computed and judged, and wait for a decision: each is a folder with the edited model, which
//! can be asked as `draft:ID`, and with what the command said of it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sparktune_app::edited_models::{self, Part};
use sparktune_app::failure::Failure;
use sparktune_app::models;
use sparktune_app::program::Program;
use sparktune_base::files::{create_private_folder, write_shared_and_sync};
use sparktune_base::locked::Locked;
use sparktune_base::regular_file::read_regular;
use sparktune_runlog::now_us;
use tempfile::TempDir;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::fact::FactWish;
use super::found::{Found, InWords, alone};
use super::wish::{EditSettings, Source, TYPED, file, flag, named_files};
use crate::ids::{self, Id};
use crate::problem::{Body, Problem, blocking};
use crate::program;
use crate::state::{Served, Shared};
use crate::tasks::{Task, Work};

/// What the command says of an edit, and the most bytes of it.
const RESULT: &str = "result.json";
const MOST_BYTES: u64 = 64 << 20;
/// The edits that may wait for a decision. Each has the size of its model.
const MOST_DRAFTS: usize = 8;
/// The most answers that are returned; those that do not hold come first.
const MOST_ANSWERS: usize = 500;
/// The most conflicts that are returned.
const MOST_CONFLICTS: usize = 200;

pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(start)).routes(routes!(read, discard))
}

/// What is to be written into a model: `facts`, `data` or `patch`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EditWish {
    /// The id of the model.
    model: String,
    /// Facts, at most 1,000.
    #[serde(default)]
    facts: Vec<FactWish>,
    /// The id of a data set that is a file of facts: lines of JSON, or those of CounterFact or zsRE.
    data: Option<String>,
    /// The id of a data set that is a patch, `*.qubgpu`, which is laid on as it is.
    patch: Option<String>,
    /// `auto`, `rome`, `memit`, `ultraedit` or `memory`.
    method: Option<String>,
    /// The layer that is changed, or several: `4`, `2,3`, `2-4`.
    layers: Option<String>,
    /// Read each prompt as what a user says.
    #[serde(default)]
    chat: bool,
    /// The id of a data set with ordinary text on which the model should not change; without it, the demo's
    /// chats.
    text: Option<String>,
    /// The name of a suite of prompts, whose share of passed ones is measured before and after, such as
    /// `instructions`.
    suite: Option<String>,
    /// The name of the patch.
    name: Option<String>,
    /// Keep an edit that damages the model or teaches it nothing.
    #[serde(default)]
    force: bool,
    /// Also write facts that the model already answers with their targets.
    #[serde(default)]
    write_known: bool,
}

/// An edit that waits for a decision.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(super) struct DraftEdit {
    /// Its id. The edited model can be asked as `draft:ID`.
    pub id: String,
    /// When it was computed, in microseconds since the Unix epoch.
    pub created_us: u64,
    /// The id of the model that it was computed for.
    pub model: String,
    /// The name of that model.
    pub model_name: String,
    /// Whether it can be kept. An edit that damages the model is refused, and only its scores are there.
    pub can_be_kept: bool,
    /// What `sparktune edit --json` printed, or `edit apply --json` for a patch. Of many answers, those that
    /// do not hold come first; `answers_total` and `conflicts_total` are the numbers of all.
    #[schema(value_type = Object)]
    pub result: Value,
}

/// Write facts into a copy of a model, and judge it
///
/// The result of the task names the edit: `{"edit": id}`. The model itself stays as it is until the edit is
/// kept. Conflicts with patches that the model has are in the edit.
#[utoipa::path(post, path = "/knowledge/edits", tag = "knowledge", request_body = EditWish,
    responses((status = 202, body = Task), (status = 400, body = Problem), (status = 404, body = Problem),
        (status = 409, body = Problem, description = "Too many edits wait for a decision")))]
async fn start(
    State(state): State<Shared>,
    Body(wish): Body<EditWish>,
) -> Result<(StatusCode, Json<Task>), Problem> {
    blocking(move || {
        let found = Found::of(&state, &wish.model)?;
        let content = wish.content(&state)?;
        let folder = edited_models::folder(state.runs.path(), Part::Drafts)?;
        remove_abandoned(&state);
        let id = ids::new();
        let draft = folder.join(&id);
        let in_work = one_more_draft(&folder, &draft)?;
        let program = state.program.clone();
        let files = named_files(&state, &[&wish.data, &wish.text, &wish.patch].map(Option::as_deref));
        let refused = draft.clone();
        let task = state.tasks.start("edit", move |work| {
            let _in_work = in_work;
            let model = draft.join("model");
            let mut names: Vec<(&Path, &str)> =
                vec![(&model, "the edited model"), (&draft, "the edit"), (&found.folder, &found.model.id)];
            names.extend(files.iter().map(|(path, id)| (path.as_path(), id.as_str())));
            let names = InWords::new(&names);
            let computed = compute(&program, &wish, &content, &found, &draft, work);
            let kept = computed.and_then(|result| keep(&draft, &id, &found, result, &names));
            if kept.is_err() {
                // What is left of an edit without a result is removed by a later one.
                let _ = fs::remove_dir_all(&draft);
            }
            let told = |problem| {
                let problem = names.problem(problem);
                if wish.facts.is_empty() { problem } else { with_place(problem) }
            };
            kept.map(|()| json!({"edit": id})).map_err(told)
        });
        if task.is_err() {
            let _ = fs::remove_dir(refused);
        }
        Ok((StatusCode::ACCEPTED, Json(task?)))
    })
    .await
}

/// What is written.
enum Content {
    /// Facts, with the flags that say how they are written.
    Facts(Source, Vec<OsString>),
    /// A patch as it is.
    Patch(PathBuf),
}

impl EditWish {
    fn content(&self, state: &Served) -> Result<Content, Problem> {
        if self.name.as_deref().is_some_and(|name| !edited_models::is_name(name)) {
            let problem = Problem::bad_request("this cannot be the name of a patch").at("name");
            return Err(problem.advise(
                "Use letters, digits, dots, dashes and underscores, with a letter or a digit in front",
            ));
        }
        if let Some(id) = &self.patch {
            if !self.facts.is_empty() || self.data.is_some() {
                let problem = Problem::bad_request("a patch has its own facts").at("patch");
                return Err(problem.advise("Name either a patch, or facts"));
            }
            return Ok(Content::Patch(file(state, id, "patch")?));
        }
        let source = Source::of(state, &self.facts, self.data.as_deref())?;
        let [method, layers, text, suite] =
            [&self.method, &self.layers, &self.text, &self.suite].map(Option::as_deref);
        let settings = EditSettings { method, layers, chat: self.chat, text, suite };
        Ok(Content::Facts(source, settings.flags(state)?))
    }
}

/// Runs the command, and returns what it printed. A refused edit is a result too.
fn compute(
    program: &Program,
    wish: &EditWish,
    content: &Content,
    found: &Found,
    draft: &Path,
    work: &Work,
) -> Result<Value, Problem> {
    let output = flag("output", draft.join("model"));
    let folder = found.folder.clone().into();
    match content {
        Content::Patch(patch) => {
            let arguments: [OsString; 6] =
                ["edit".into(), "apply".into(), folder, output, "--".into(), patch.into()];
            program::run(program, arguments, work)
        }
        Content::Facts(source, flags) => {
            let facts = source.file(draft)?;
            let name = wish.name.clone().unwrap_or_else(|| free_name(&facts, &found.folder));
            let mut arguments: Vec<OsString> =
                vec!["edit".into(), folder, flag("facts", facts), flag("name", name), output];
            arguments.extend(flags.iter().cloned());
            arguments.extend(wish.force.then(|| "--force".into()));
            arguments.extend(wish.write_known.then(|| "--write-known".into()));
            program::run_and_accept_any_end(program, arguments, work)
        }
    }
}

/// Returns a name for a patch that no patch of the model has: that of the file, with a number if necessary.
fn free_name(facts: &Path, model: &Path) -> String {
    let stem = facts.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '-' };
    let name: String = stem.chars().take(40).map(plain).collect();
    let name = Some(name).filter(|name| edited_models::is_name(name)).unwrap_or_else(|| "facts".into());
    let taken = edited_models::stacked(model).map(|stacked| stacked.patches).unwrap_or_default();
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    names.find(|name| !taken.contains(name)).expect("one of so many numbers is free")
}

/// Writes what is known of an edit.
fn keep(draft: &Path, id: &str, found: &Found, mut result: Value, names: &InWords) -> Result<(), Problem> {
    let can_be_kept = draft.join("model/config.json").is_file();
    if let Some(object) = result.as_object_mut() {
        object.remove("output");
        if let Some(Value::Array(answers)) = object.get_mut("answers") {
            // The order within both kinds stays.
            answers.sort_by_key(|answer| answer["holds"] == true);
        }
        shorten(object, "answers", MOST_ANSWERS);
        shorten(object, "conflicts", MOST_CONFLICTS);
    }
    names.value(&mut result);
    let draft_edit = DraftEdit {
        id: id.to_owned(),
        created_us: now_us(),
        model: found.model.id.clone(),
        model_name: found.model.name.clone(),
        can_be_kept,
        result,
    };
    let path = draft.join(RESULT);
    let text = serde_json::to_string(&draft_edit).expect("a result is JSON");
    Ok(write_shared_and_sync(&path, text).map_err(|error| Failure::io("write", &path, &error))?)
}

/// Keeps the first items of a list, and notes their number as `NAME_total`.
fn shorten(object: &mut Map<String, Value>, name: &str, most: usize) {
    let Some(Value::Array(items)) = object.get_mut(name) else { return };
    let total = items.len();
    items.truncate(most);
    object.insert(format!("{name}_total"), total.into());
}

/// Moves the place of a typed fact to where a page looks for it: `facts.jsonl:3: …` is fact 3.
pub(super) fn with_place(problem: Problem) -> Problem {
    let place = problem.detail.strip_prefix(TYPED).and_then(|rest| rest.strip_prefix(':')?.split_once(": "));
    match place.filter(|(line, _)| line.parse::<u32>().is_ok()) {
        Some((line, what)) => {
            Problem { detail: what.to_owned(), ..problem.clone() }.at(format!("fact {line}"))
        }
        None => problem,
    }
}

/// Returns the edits that wait for a decision, the newest first.
pub(super) fn list(state: &Served) -> Vec<DraftEdit> {
    let Some(folder) = edited_models::existing_folder(state.runs.path(), Part::Drafts) else {
        return Vec::new();
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<DraftEdit> = entries.filter_map(|entry| read_result(&entry.path())).collect();
    found.sort_by(|one, other| other.id.cmp(&one.id));
    found
}

fn read_result(draft: &Path) -> Option<DraftEdit> {
    serde_json::from_slice(&read_regular(&draft.join(RESULT), MOST_BYTES).ok()?).ok()
}

/// Returns an edit with its folder.
///
/// # Errors
/// There is none of this id.
pub(super) fn find(state: &Served, id: &str) -> Result<(DraftEdit, PathBuf), Problem> {
    let folder = edited_models::draft(state.runs.path(), id);
    let found = folder.and_then(|folder| Some((read_result(&folder)?, folder)));
    found.ok_or_else(|| {
        Problem::not_found("edit", id).advise("GET /api/v1/knowledge lists those that wait for a decision")
    })
}

/// Removes an edit, and ends the worker that holds its model.
///
/// # Errors
/// Its model is answering, or it cannot be removed.
pub(super) fn remove(state: &Served, id: &str, folder: &Path) -> Result<(), Problem> {
    if let Some(model) = models::find(&format!("draft:{id}"), state.runs.path(), &state.models) {
        state.workers.unload(&model, &model.opening()?)?;
    }
    Ok(fs::remove_dir_all(folder).map_err(|error| Failure::io("delete", folder, &error))?)
}

/// Creates the folder of an edit among the others, one at a time, so that each that is started counts those
/// before it. The edit is in progress until the lock is dropped.
///
/// # Errors
/// There are as many as are allowed, or it cannot be created.
fn one_more_draft(folder: &Path, draft: &Path) -> Result<Locked, Problem> {
    let alone = Locked::new(File::open(folder).map_err(|error| Failure::io("open", folder, &error))?);
    // Where there are no locks, two that begin at once may both find the last place free.
    let _ = alone.lock();
    let drafts = fs::read_dir(folder).into_iter().flatten().count();
    if drafts >= MOST_DRAFTS {
        let text =
            format!("{drafts} edits wait for a decision or are in progress, which is the most at a time");
        return Err(Problem::new(StatusCode::CONFLICT, text).advise("Keep or discard one of them first"));
    }
    Ok(new_draft(draft).map_err(|error| Failure::io("create", draft, &error))?)
}

/// Creates the folder of an edit, which is in progress until the lock on it is dropped.
fn new_draft(folder: &Path) -> io::Result<Locked> {
    loop {
        create_private_folder(folder)?;
        // Who removes abandoned folders may have been faster, and may have it locked.
        let Ok(held) = File::open(folder) else { continue };
        if held.lock().is_err() || fs::metadata(folder).is_ok_and(|named| Some(named.ino()) == inode(&held)) {
            return Ok(Locked::new(held));
        }
    }
}

fn inode(file: &File) -> Option<u64> {
    file.metadata().ok().map(|about| about.ino())
}

/// Removes edits that have no result and in which nobody works any more: their server was killed.
pub(super) fn remove_abandoned(state: &Served) {
    let Some(folder) = edited_models::existing_folder(state.runs.path(), Part::Drafts) else { return };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_edit = entry.file_type().is_ok_and(|kind| kind.is_dir());
        // Neither the server nor the command, which may be about to end.
        if is_edit
            && let Some(_held) = free(&path)
            && !path.join(RESULT).exists()
            && fs::read_dir(&path).into_iter().flatten().flatten().all(|inside| {
                inside.path().extension().is_none_or(|end| end != "lock") || free(&inside.path()).is_some()
            })
        {
            // It is tried again the next time.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Creates a folder for the facts of a request. Dropping the first value removes it. It is in use until the
/// second value, the lock on it, is dropped. Folders whose names begin in the same way and that nobody
/// uses any more are removed: their server was killed.
///
/// # Errors
/// It cannot be created.
pub(super) fn place_for_facts(folder: &Path, beginning: &str) -> io::Result<(TempDir, Locked)> {
    let alone = Locked::new(File::open(folder)?);
    // Where there are no locks, nobody can tell which ones are in use. NFS has none for folders.
    if alone.lock().is_ok() {
        for entry in fs::read_dir(folder)?.flatten() {
            let is_place = entry.file_name().as_encoded_bytes().starts_with(beginning.as_bytes());
            if is_place && let Some(_held) = free(&entry.path()) {
                // It is tried again the next time.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
    let place = tempfile::Builder::new().prefix(beginning).tempdir_in(folder)?;
    let in_work = Locked::new(File::open(place.path())?);
    let _ = in_work.lock();
    Ok((place, in_work))
}

/// Returns a file or folder locked, if nobody else has locked it.
fn free(path: &Path) -> Option<Locked> {
    let file = File::open(path).ok()?;
    file.try_lock().is_ok().then(|| Locked::new(file))
}

/// An edit: its scores, its conflicts, and the answers before and after it
#[utoipa::path(get, path = "/knowledge/edits/{id}", tag = "knowledge", params(("id" = String, Path)),
    responses((status = 200, body = DraftEdit), (status = 404, body = Problem)))]
async fn read(State(state): State<Shared>, Id(id): Id) -> Result<Json<DraftEdit>, Problem> {
    blocking(move || Ok(Json(find(&state, &id)?.0))).await
}

/// Discard an edit
///
/// The model that it was computed for stays as it is.
#[utoipa::path(delete, path = "/knowledge/edits/{id}", tag = "knowledge", params(("id" = String, Path)),
    responses((status = 204, description = "It is discarded"), (status = 404, body = Problem),
        (status = 409, body = Problem, description = "Its model is answering, or an edited model is being changed")))]
async fn discard(State(state): State<Shared>, Id(id): Id) -> Result<StatusCode, Problem> {
    blocking(move || {
        let (_, folder) = find(&state, &id)?;
        let Some(_alone) = alone(&state)? else {
            let text = "an edited model is being changed, perhaps by keeping this edit";
            return Err(Problem::new(StatusCode::CONFLICT, text).advise("Discard it when that has ended"));
        };
        remove(&state, &id, &folder)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn a_problem_with_a_typed_fact_names_its_number() {
        let told = with_place(Problem::bad_request("facts.jsonl:12: `target` is empty: write a text"));
        assert_eq!(
            (told.detail.as_str(), told.r#where.as_deref()),
            ("`target` is empty: write a text", Some("fact 12"))
        );
        let other = Problem::bad_request("facts.jsonl: there are no facts");
        assert_eq!(with_place(other.clone()), other);
    }

    #[test]
    fn of_two_edits_that_are_started_at_once_with_room_for_one_exactly_one_begins() {
        for _ in 0..50 {
            let place = tempfile::tempdir().unwrap();
            for waiting in 1..MOST_DRAFTS {
                fs::create_dir(place.path().join(waiting.to_string())).unwrap();
            }
            let together = Barrier::new(2);
            let begin = |name: &str| {
                together.wait();
                one_more_draft(place.path(), &place.path().join(name)).is_ok()
            };
            let begun = thread::scope(|scope| {
                let other = scope.spawn(|| begin("one"));
                [begin("other"), other.join().unwrap()]
            });
            assert_eq!(begun.iter().filter(|begun| **begun).count(), 1);
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), MOST_DRAFTS);
        }
    }

    #[test]
    fn facts_of_a_killed_server_are_removed_by_the_next_request() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join(".facts-left")).unwrap();
        fs::write(place.path().join("result.json"), "{}").unwrap();
        let begin = || place_for_facts(place.path(), ".facts-").unwrap();
        let (first, in_work) = begin();
        let (second, _in_work) = begin();
        assert!(first.path().is_dir() && second.path().is_dir());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 3);
        drop(in_work);
        let (third, _in_work) = begin();
        assert!(!first.path().exists() && second.path().is_dir() && third.path().is_dir());
    }

    #[test]
    fn a_patch_gets_a_name_that_is_free() {
        let place = tempfile::tempdir().unwrap();
        let name = |file: &str| free_name(Path::new(file), place.path());
        assert_eq!((name("/x/facts.jsonl").as_str(), name("a b.json").as_str()), ("facts", "a-b"));
        assert_eq!(name(".…"), "facts");
        fs::create_dir(place.path().join("patches")).unwrap();
        let stack = json!({"base": "/b", "patches": ["facts", "facts-2"]});
        fs::write(place.path().join("patches/stack.json"), stack.to_string()).unwrap();
        assert_eq!(name("facts.jsonl"), "facts-3");
    }
}
