//! The folders behind ids: models whose weights can be edited, and edited models that are kept here and may
//! be changed. Paths in messages of the command become these ids again.

use std::fs::TryLockError;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde_json::Value;
use sparktune_app::edited_models::{self, Part};
use sparktune_app::failure::Failure;
use sparktune_app::models::{self, OpenableModel};
use sparktune_base::files::private_file;
use sparktune_base::locked::Locked;

use crate::problem::Problem;
use crate::state::Served;
use crate::tasks::{Work, cancelled};
use crate::workers::Refusal;

/// What the ids of models begin with that are kept here.
pub(super) const EDITED: &str = "edited:";
/// The time between two looks at whether another change has ended, or answers have.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// How long the answers of a model that was changed are waited for.
const WAIT_FOR_ANSWERS: Duration = Duration::from_secs(60);

/// A model and the folder of its weights.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub model: OpenableModel,
    pub folder: PathBuf,
}

impl Found {
    /// Finds a model whose weights can be edited.
    ///
    /// # Errors
    /// There is none of this id, or it is an adapter.
    pub(super) fn of(state: &Served, id: &str) -> Result<Self, Problem> {
        let model = models::find(id, state.runs.path(), &state.models).ok_or_else(|| {
            Problem::not_found("model", id).at("model").advise("GET /api/v1/knowledge lists them")
        })?;
        let folder = model.whole().map_err(|failure| Problem::from(failure).at("model"))?;
        Ok(Self { model, folder })
    }

    /// Finds an edited model, wherever it is.
    ///
    /// # Errors
    /// There is no edited model of this id.
    pub(super) fn edited(state: &Served, id: &str) -> Result<Self, Problem> {
        let missing = || Problem::not_found("edited model", id).advise("GET /api/v1/knowledge lists them");
        let found = Self::of(state, id).map_err(|_| missing())?;
        if edited_models::stacked(&found.folder).is_none() { Err(missing()) } else { Ok(found) }
    }

    /// Finds an edited model that is kept here, so that it may be changed.
    ///
    /// # Errors
    /// There is no edited model of this id, or it is a folder of the user.
    pub(super) fn kept(state: &Served, id: &str) -> Result<Self, Problem> {
        let found = Self::edited(state, id)?;
        if found.name().is_none() {
            let text =
                format!("{} is one of your own folders, which this server does not change", found.model.name);
            let advice =
                "Change it in a terminal with `sparktune edit`, or keep an edit on top of it as a new model";
            return Err(Problem::new(StatusCode::CONFLICT, text).at("model").advise(advice));
        }
        Ok(found)
    }

    /// Returns the name of a model that is kept here.
    pub(super) fn name(&self) -> Option<&str> {
        self.model.id.strip_prefix(EDITED)
    }

    /// Ends the worker that holds the weights as they were before a change.
    pub(super) fn unload(&self, state: &Served, work: &Work) -> Result<(), Problem> {
        let opening = self.model.opening()?;
        let deadline = Instant::now() + WAIT_FOR_ANSWERS;
        loop {
            match state.workers.unload(&self.model, &opening) {
                Err(Refusal::Answering(_)) if Instant::now() < deadline => {
                    work.says("waiting for the answers of the model as it was");
                    std::thread::sleep(BETWEEN_LOOKS);
                }
                ended => return ended.map_err(Problem::from),
            }
        }
    }
}

/// Waits until nobody else, of this server or another one of the same runs, changes edited models.
///
/// # Errors
/// The folder cannot be created, the system refuses the lock, or the task was cancelled.
pub(super) fn wait_for_others(state: &Served, work: &Work) -> Result<Locked, Problem> {
    loop {
        if let Some(lock) = alone(state)? {
            return Ok(lock);
        }
        if work.is_cancelled() {
            return Err(cancelled());
        }
        work.says("waiting for another change of an edited model");
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

/// Returns the right to change edited models until the lock is dropped; `None` while somebody else has it.
///
/// # Errors
/// The folder cannot be created, or the system refuses the lock.
pub(super) fn alone(state: &Served) -> Result<Option<Locked>, Failure> {
    let path = edited_models::folder(state.runs.path(), Part::Undo)?.join(".lock");
    let failed = |error| Failure::io("lock", &path, &error);
    let file = private_file().create(true).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Locked::new(file))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Writes ids in place of paths.
pub(super) struct InWords(Vec<(String, String)>);

impl InWords {
    /// Each path with what stands for it. A path that begins with another one comes first.
    pub(super) fn new(pairs: &[(&Path, &str)]) -> Self {
        let mut pairs: Vec<(String, String)> =
            pairs.iter().map(|(path, words)| (path.display().to_string(), (*words).to_owned())).collect();
        pairs.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        Self(pairs)
    }

    fn text(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (path, words)| text.replace(path, words))
    }

    /// Writes them in a problem.
    pub(super) fn problem(&self, problem: Problem) -> Problem {
        Problem {
            detail: self.text(&problem.detail),
            r#where: problem.r#where.as_deref().map(|place| self.text(place)),
            advice: problem.advice.as_deref().map(|advice| self.text(advice)),
            ..problem
        }
    }

    /// Writes them in all texts of a value.
    pub(super) fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.value(value)),
            Value::Object(pairs) => pairs.values_mut().for_each(|value| self.value(value)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_name_ids_in_place_of_paths() {
        let names =
            InWords::new(&[(Path::new("/runs/.edited"), "here"), (Path::new("/runs/.edited/a"), "edited:a")]);
        let problem = names
            .problem(Problem::bad_request("/runs/.edited/a/x.qubgpu: damaged").advise("See /runs/.edited"));
        assert_eq!(problem.detail, "edited:a/x.qubgpu: damaged");
        assert_eq!(problem.advice.as_deref(), Some("See here"));
        let mut value = json!({"output": ["/runs/.edited/a"], "n": 1});
        names.value(&mut value);
        assert_eq!(value, json!({"output": ["edited:a"], "n": 1}));
    }
}
