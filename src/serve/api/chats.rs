//! Conversations that a person keeps. Nothing is kept unless it is sent here.
//!
//! Each is a file of one line in a private folder next to the runs, in the format `messages`, so that the
//! folder can be trained on as it is.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::IntoResponse;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use sparktune_app::failure::Failure;
use sparktune_base::files::write_shared_and_sync;
use sparktune_base::regular_file::read_regular;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Listed;
use crate::ids::Id;
use crate::locked::lock;
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
        let mut chats: Vec<ListedChat> = all(&state)?.into_iter().filter_map(listed_of).collect();
        chats.sort_by_key(|chat| std::cmp::Reverse(chat.modified_us));
        Ok(Json(Listed::whole(chats)))
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
        let mut files = all(&state)?;
        files.sort_by_key(|file| file.signature.modified);
        let chats = files.into_iter().filter_map(|file| load(&file.path, &file.id).ok());
        let lines: String = chats.filter_map(example).collect();
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

/// The file of a conversation.
struct ChatFile {
    id: String,
    path: PathBuf,
    signature: Signature,
}

/// What changes with the content of a file: every change is a new file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Signature {
    inode: u64,
    bytes: u64,
    modified: SystemTime,
}

/// Returns the files of all conversations.
fn all(state: &Served) -> Result<Vec<ChatFile>, Problem> {
    let folder = state.kept(KEPT)?;
    let entries = fs::read_dir(&folder).map_err(|error| Failure::io("list", &folder, &error))?;
    let files = kept_in(entries).filter_map(|(id, entry)| {
        let found = entry.metadata().ok()?;
        let modified = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let signature = Signature { inode: found.ino(), bytes: found.len(), modified };
        Some(ChatFile { id, path: entry.path(), signature })
    });
    Ok(files.collect())
}

/// What is listed of a conversation, of which the turns are only counted.
#[derive(Clone, Deserialize)]
struct Outline {
    #[serde(deserialize_with = "counted")]
    messages: usize,
    #[serde(default)]
    title: String,
    #[serde(default)]
    model: String,
}

fn counted<'de, D: Deserializer<'de>>(turns: D) -> Result<usize, D::Error> {
    Vec::<HashMap<String, IgnoredAny>>::deserialize(turns).map(|turns| turns.len())
}

/// The outlines of files that were read: title and model stand behind the turns, so a file has to be read to
/// its end, and a list is asked for again and again.
static OUTLINES: LazyLock<Mutex<HashMap<PathBuf, (Signature, Outline)>>> = LazyLock::new(Mutex::default);

/// Returns what is listed of a file; `None` if it is no conversation.
fn listed_of(ChatFile { id, path, signature }: ChatFile) -> Option<ListedChat> {
    let known = lock(&OUTLINES).get(&path).filter(|(of, _)| *of == signature).map(|(_, known)| known.clone());
    let Outline { messages, title, model } = match known {
        Some(known) => known,
        None => {
            let bytes = read_regular(&path, MOST_BYTES as u64).ok()?;
            let outline: Outline = serde_json::from_slice(&bytes).ok()?;
            let mut known = lock(&OUTLINES);
            if known.len() >= MOST_CHATS {
                known.clear();
            }
            known.insert(path, (signature, outline.clone()));
            outline
        }
    };
    let modified = signature.modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    let modified_us = u64::try_from(modified.as_micros()).unwrap_or(u64::MAX);
    Some(ListedChat { id, title, model, messages, modified_us })
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
    #[test]
    fn a_conversation_is_read_for_the_list_when_it_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0123456789abcdef.jsonl");
        let listed = || {
            let (id, entry) = kept_in(fs::read_dir(folder.path()).unwrap()).next().unwrap();
            let found = entry.metadata().unwrap();
            let (inode, bytes, modified) = (found.ino(), found.len(), found.modified().unwrap());
            let signature = Signature { inode, bytes, modified };
            listed_of(ChatFile { id, path: entry.path(), signature })
        };
        let write = |title: &str| {
            let chat = Chat { title: title.into(), ..chat(&["user", "assistant"]) };
            write_shared_and_sync(&path, json!(chat).to_string()).unwrap();
        };
        write("one");
        let first = listed().unwrap();
        assert_eq!((first.title.as_str(), first.model.as_str(), first.messages), ("one", "m", 2));
        assert!(first.modified_us > 0);
        // Nobody changes a file in place; if somebody did, it would not be read again.
        let text = fs::read_to_string(&path).unwrap().replace("one", "two");
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, text).unwrap();
        fs::File::options().append(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert_eq!(listed().unwrap().title, "one");
        write("six");
        assert_eq!(listed().unwrap().title, "six");
        fs::write(&path, r#"{"messages":["no turn"]}"#).unwrap();
        assert!(listed().is_none());
    }
}
