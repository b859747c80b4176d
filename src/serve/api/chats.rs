//! Conversations that a person keeps. Nothing is kept unless it is sent here.
//!
//! Each is a file of one line in a private folder next to the runs, in the format `messages`, so that the
//! folder can be trained on as it is.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sparktune_app::failure::Failure;
use sparktune_base::files::write_shared_and_sync;
use sparktune_base::regular_file::read_regular;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Listed;
use crate::ids::Id;
use crate::problem::{Body, Problem, blocking};
use crate::state::{Served, Shared};

/// The largest number of conversations.
const MOST_CHATS: usize = 10_000;
/// The largest number of turns of a conversation.
const MOST_MESSAGES: usize = 4096;
/// The largest number of bytes of a conversation.
const MOST_BYTES: usize = 8 << 20;
/// The folder of the conversations.
const KEPT: &str = "chats";

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(export))
        .routes(routes!(read, keep, forget))
        .routes(routes!(append))
}

/// A conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
struct Chat {
    /// The turns in OpenAI's form, each with `role` and `content`.
    #[schema(value_type = Vec<Object>)]
    messages: Vec<Map<String, Value>>,
    /// What it is called.
    #[serde(default)]
    title: String,
    /// The id of the model that has answered.
    #[serde(default)]
    model: String,
}

/// A conversation in a list.
#[derive(Debug, Serialize, ToSchema)]
struct ListedChat {
    /// Its id.
    id: String,
    /// What it is called.
    title: String,
    /// The id of the model that has answered.
    model: String,
    /// The number of turns.
    messages: usize,
    /// When it was changed, in microseconds since 1970.
    modified_us: u64,
}

/// A conversation with its id.
#[derive(Debug, Serialize, ToSchema)]
struct KeptChat {
    /// Its id.
    id: String,
    /// The conversation.
    #[serde(flatten)]
    chat: Chat,
}

/// Turns to append.
#[derive(Debug, Deserialize, ToSchema)]
struct MoreMessages {
    /// The turns.
    #[schema(value_type = Vec<Object>)]
    messages: Vec<Map<String, Value>>,
}

/// The kept conversations, the last changed first
#[utoipa::path(get, path = "/chats", tag = "chats", responses((status = 200, body = Listed<ListedChat>)))]
async fn list(State(state): State<Shared>) -> Result<Json<Listed<ListedChat>>, Problem> {
    blocking(move || {
        let mut chats = all(&state)?;
        chats.sort_by_key(|(_, _, modified_us)| std::cmp::Reverse(*modified_us));
        let items = chats.into_iter().map(|(id, chat, modified_us)| ListedChat {
            id,
            title: chat.title,
            model: chat.model,
            messages: chat.messages.len(),
            modified_us,
        });
        Ok(Json(Listed::whole(items.collect())))
    })
    .await
}

/// All conversations as data to train on
///
/// A file in the format `messages`, one conversation per line, up to its last answer. Conversations without
/// an answer are left out.
#[utoipa::path(get, path = "/chats/export", tag = "chats",
    responses((status = 200, content_type = "application/jsonl", body = String)))]
async fn export(State(state): State<Shared>) -> Result<impl IntoResponse, Problem> {
    blocking(move || {
        let mut chats = all(&state)?;
        chats.sort_by_key(|(_, _, modified_us)| *modified_us);
        let lines: String = chats.into_iter().filter_map(|(_, chat, _)| example(chat)).collect();
        let name = "attachment; filename=\"conversations.jsonl\"";
        Ok(([(CONTENT_TYPE, "application/jsonl"), (CONTENT_DISPOSITION, name)], lines))
    })
    .await
}

/// A kept conversation
#[utoipa::path(get, path = "/chats/{id}", tag = "chats", params(("id" = String, Path)),
    responses((status = 200, body = KeptChat), (status = 404, body = Problem)))]
async fn read(State(state): State<Shared>, Id(id): Id) -> Result<Json<KeptChat>, Problem> {
    blocking(move || Ok(Json(KeptChat { chat: load(&file(&state, &id)?, &id)?, id }))).await
}

/// Keep a conversation
///
/// Whoever keeps it chooses its id, 16 hexadecimal digits. One of the same id is replaced.
#[utoipa::path(put, path = "/chats/{id}", tag = "chats", params(("id" = String, Path)), request_body = Chat,
    responses((status = 200, body = KeptChat), (status = 400, body = Problem), (status = 507, body = Problem)))]
async fn keep(
    State(state): State<Shared>,
    Id(id): Id,
    Body(chat): Body<Chat>,
) -> Result<Json<KeptChat>, Problem> {
    blocking(move || {
        let _changing = state.lock_kept(KEPT)?;
        save(&state, &id, &chat)?;
        Ok(Json(KeptChat { id, chat }))
    })
    .await
}

/// Append turns to a kept conversation
#[utoipa::path(post, path = "/chats/{id}/messages", tag = "chats", params(("id" = String, Path)),
    request_body = MoreMessages, responses((status = 200, body = KeptChat), (status = 404, body = Problem)))]
async fn append(
    State(state): State<Shared>,
    Id(id): Id,
    Body(more): Body<MoreMessages>,
) -> Result<Json<KeptChat>, Problem> {
    blocking(move || {
        let _changing = state.lock_kept(KEPT)?;
        let mut chat = load(&file(&state, &id)?, &id)?;
        chat.messages.extend(more.messages);
        save(&state, &id, &chat)?;
        Ok(Json(KeptChat { id, chat }))
    })
    .await
}

/// Delete a kept conversation
#[utoipa::path(delete, path = "/chats/{id}", tag = "chats", params(("id" = String, Path)),
    responses((status = 204, description = "It is deleted"), (status = 404, body = Problem)))]
async fn forget(State(state): State<Shared>, Id(id): Id) -> Result<StatusCode, Problem> {
    blocking(move || {
        let _changing = state.lock_kept(KEPT)?;
        let path = file(&state, &id)?;
        match fs::remove_file(&path) {
            Ok(()) => Ok(StatusCode::NO_CONTENT),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(missing(&id)),
            Err(error) => Err(Failure::io("delete", &path, &error).into()),
        }
    })
    .await
}

fn missing(id: &str) -> Problem {
    Problem::not_found("kept conversation", id)
}

/// Returns whether a text is an id as the page makes them.
fn is_id(id: &str) -> bool {
    id.len() == 16 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the file of a conversation, which need not exist.
fn file(state: &Served, id: &str) -> Result<PathBuf, Problem> {
    if !is_id(id) {
        return Err(missing(id).advise("The id of a conversation is 16 hexadecimal digits"));
    }
    Ok(state.kept(KEPT)?.join(format!("{id}.jsonl")))
}

fn load(path: &std::path::Path, id: &str) -> Result<Chat, Problem> {
    let bytes = match read_regular(path, MOST_BYTES as u64) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(missing(id)),
        Err(error) => return Err(Failure::io("read", path, &error).into()),
    };
    serde_json::from_slice(&bytes).map_err(|error| {
        let text = format!("the kept conversation cannot be read: {error}");
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, text).at(id).advise("Delete it")
    })
}

fn save(state: &Served, id: &str, chat: &Chat) -> Result<(), Problem> {
    check(chat)?;
    let path = file(state, id)?;
    let folder = path.parent().unwrap_or(&path);
    if !path.exists() && fs::read_dir(folder).is_ok_and(|entries| kept_in(entries).count() >= MOST_CHATS) {
        let text = format!("{MOST_CHATS} conversations are kept, which is the most");
        return Err(Problem::new(StatusCode::CONFLICT, text).advise("Delete some"));
    }
    let line = format!("{}\n", json!(chat));
    if line.len() > MOST_BYTES {
        let text = format!("the conversation has {} bytes, but may have {MOST_BYTES}", line.len());
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, text).advise("Begin another one"));
    }
    write_shared_and_sync(&path, line).map_err(|error| Failure::io("write", &path, &error).into())
}

/// Checks that a conversation has the form of data to train on.
fn check(chat: &Chat) -> Result<(), Problem> {
    let wrong = |index: usize, what: &str| {
        Err(Problem::bad_request(format!("the message {what}")).at(format!("messages[{index}]")))
    };
    if chat.messages.len() > MOST_MESSAGES {
        return Err(Problem::bad_request(format!("a conversation has at most {MOST_MESSAGES} messages")));
    }
    for (index, message) in chat.messages.iter().enumerate() {
        if !message.get("role").is_some_and(Value::is_string) {
            return wrong(index, "has no `role`");
        }
        let has_content =
            message.get("content").is_some_and(|content| content.is_string() || content.is_array());
        if !has_content && !message.contains_key("tool_calls") {
            return wrong(index, "has no `content`");
        }
    }
    Ok(())
}

/// Returns all conversations that can be read, with their ids and when they were changed.
fn all(state: &Served) -> Result<Vec<(String, Chat, u64)>, Problem> {
    let folder = state.kept(KEPT)?;
    let entries = fs::read_dir(&folder).map_err(|error| Failure::io("list", &folder, &error))?;
    let chats = kept_in(entries).filter_map(|(id, entry)| {
        let modified = entry.metadata().ok()?.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let modified = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        let modified_us = u64::try_from(modified.as_micros()).unwrap_or(u64::MAX);
        let chat = load(&entry.path(), &id).ok()?;
        Some((id, chat, modified_us))
    });
    Ok(chats.collect())
}

/// Returns the files of conversations in the folder with their ids. What a server that was killed had begun
/// to write is none.
fn kept_in(entries: fs::ReadDir) -> impl Iterator<Item = (String, fs::DirEntry)> {
    entries.filter_map(Result::ok).filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let id = name.strip_suffix(".jsonl").filter(|id| is_id(id))?.to_owned();
        Some((id, entry))
    })
}

/// Returns a conversation as a line to train on, up to its last answer.
fn example(mut chat: Chat) -> Option<String> {
    let is_answer =
        |message: &Map<String, Value>| message.get("role").is_some_and(|role| role == "assistant");
    let last = chat.messages.iter().rposition(is_answer)?;
    chat.messages.truncate(last + 1);
    Some(format!("{}\n", json!({ "messages": chat.messages })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(roles: &[&str]) -> Chat {
        let message = |role: &&str| json!({"role": role, "content": "x"}).as_object().unwrap().clone();
        Chat { messages: roles.iter().map(message).collect(), title: "t".into(), model: "m".into() }
    }

    #[test]
    fn a_conversation_is_exported_up_to_its_last_answer() {
        assert_eq!(example(chat(&["user"])), None);
        let line = example(chat(&["user", "assistant", "user"])).unwrap();
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["messages"].as_array().unwrap().len(), 2);
        assert!(line.ends_with("}\n") && value.as_object().unwrap().len() == 1, "{line}");
    }

    #[test]
    fn what_could_not_be_trained_on_is_refused_with_its_place() {
        assert!(check(&chat(&["user", "assistant"])).is_ok());
        let mut wrong = chat(&["user", "assistant"]);
        wrong.messages[1].remove("content");
        assert_eq!(check(&wrong).unwrap_err().r#where.as_deref(), Some("messages[1]"));
        wrong.messages[0].insert("role".into(), Value::Null);
        assert_eq!(check(&wrong).unwrap_err().r#where.as_deref(), Some("messages[0]"));
        for id in ["", "export", "0123456789abcdeF", "../0123456789abc", "0123456789abcdef0"] {
            assert!(!is_id(id), "{id}");
        }
        assert!(is_id("0123456789abcdef"));
    }
}
