//! The votes of the blind arena, a private file of JSON lines for each comparison.

use std::path::{Path, PathBuf};

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sparktune_app::failure::Failure;
use sparktune_base::files::write_shared_and_sync;
use sparktune_base::regular_file::read_regular;
use utoipa::ToSchema;

use crate::problem::Problem;
use crate::state::Served;

/// The folder of the votes.
const KEPT: &str = "votes";
const MOST_BYTES: u64 = 64 << 20;

/// Which answer was better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Winner {
    /// The left one.
    Left,
    /// The right one.
    Right,
    /// Both are equally good.
    Tie,
    /// Both are bad.
    Bad,
}

/// A vote as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Vote {
    /// The time.
    pub time_us: u64,
    /// The position of the prompt in the comparison.
    pub prompt: usize,
    /// The id of the model on the left.
    pub left: String,
    /// The id of the model on the right.
    pub right: String,
    /// Which answer was better.
    pub winner: Winner,
}

impl Vote {
    /// Returns whether it is on the answers of these two models to this prompt.
    pub(crate) fn judges(&self, prompt: usize, one: &str, other: &str) -> bool {
        let sides = [(one, other), (other, one)];
        self.prompt == prompt && sides.contains(&(self.left.as_str(), self.right.as_str()))
    }
}

fn file(state: &Served, id: &str) -> Result<PathBuf, Problem> {
    Ok(state.kept(KEPT)?.join(format!("{id}.jsonl")))
}

/// Reads the votes on a comparison. A line that is none is left out.
///
/// # Errors
/// The file is there but cannot be read.
pub(crate) fn read(state: &Served, id: &str) -> Result<Vec<Vote>, Problem> {
    Ok(votes_in(&bytes_of(&file(state, id)?)?))
}

fn bytes_of(path: &Path) -> Result<Vec<u8>, Problem> {
    match read_regular(path, MOST_BYTES) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        read => Ok(read.map_err(|error| Failure::io("read", path, &error))?),
    }
}

fn votes_in(bytes: &[u8]) -> Vec<Vote> {
    bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// Keeps a vote. Lines that are none, such as those of a later version, stay as they are.
///
/// # Errors
/// There is one on this pair, or it cannot be kept. Then those that were kept are still there.
pub(crate) fn add(state: &Served, id: &str, vote: &Vote) -> Result<(), Problem> {
    let _adding = state.lock_kept(KEPT)?;
    let path = file(state, id)?;
    let mut lines = bytes_of(&path)?;
    if votes_in(&lines).iter().any(|known| known.judges(vote.prompt, &vote.left, &vote.right)) {
        let problem = Problem::new(StatusCode::CONFLICT, "this pair has been judged already");
        return Err(problem.advise("Ask for the next pair; a second vote on the same answers does not count"));
    }
    if !lines.is_empty() && !lines.ends_with(b"\n") {
        lines.push(b'\n');
    }
    serde_json::to_writer(&mut lines, vote).expect("a vote is JSON");
    lines.push(b'\n');
    write_shared_and_sync(&path, lines).map_err(|error| Failure::io("write", &path, &error))?;
    Ok(())
}

/// Deletes the votes on a comparison, if there are any.
///
/// # Errors
/// They cannot be deleted.
pub(crate) fn forget(state: &Served, id: &str) -> Result<(), Problem> {
    let _changing = state.lock_kept(KEPT)?;
    let path = file(state, id)?;
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::io("delete", &path, &error).into())
        }
        _ => Ok(()),
    }
}
