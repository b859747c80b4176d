//! Conversations that are kept with a run: private files in its folder `chats` in the format `messages`, so
//! that they can be trained on as they are. Only the answers of the run are kept: those of a model beside it,
//! such as its base, are what the run was to do better.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sparktune_base::escape::escape;
use sparktune_base::files::{create_private_folder, write_shared_and_sync};
use sparktune_base::random::mix;
use sparktune_base::regular_file::read_regular;
use sparktune_runlog::now_us;

use crate::failure::Failure;
use crate::models::{ModelKind, OpenableModel};

/// The folder of the conversations in that of a run.
const FOLDER: &str = "chats";
/// The most bytes of a conversation that is read again.
const MOST_BYTES: u64 = 64 << 20;
/// The most characters of a title.
const LONGEST_TITLE: usize = 60;

/// A conversation with one model, as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The turns in OpenAI's form.
    pub messages: Vec<Value>,
    /// The beginning of the first question.
    pub title: String,
    /// The id of the model.
    pub model: String,
}

/// The file of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryFile {
    path: PathBuf,
    /// The id of the run.
    model: String,
}

impl HistoryFile {
    /// Returns a new file in the folder of the last run among the models; `None` if none is a run. Nothing
    /// is written before there is an answer.
    pub fn of(models: &[OpenableModel]) -> Option<Self> {
        let run = models.iter().find(|model| model.kind == ModelKind::Run)?;
        let now = now_us();
        let random = mix(now ^ (u64::from(std::process::id()) << 32)) & 0xffff;
        let path = run.path.join(FOLDER).join(format!("{}-{random:04x}.jsonl", now / 1_000_000));
        Some(Self { path, model: run.id.clone() })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes what the run has said, of a conversation with all models, in the place of what was kept of it
    /// before.
    ///
    /// # Errors
    /// The folder or the file cannot be written.
    pub fn write(&self, conversation: &[Kept]) -> Result<(), Failure> {
        let of_run = conversation.iter().find(|kept| kept.model == self.model);
        let Some(kept) = of_run else { return Ok(()) };
        let parent = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = parent.unwrap_or(Path::new("."));
        create_private_folder(folder).map_err(|error| Failure::io("create", folder, &error))?;
        let line = serde_json::to_string(kept).expect("a conversation is JSON") + "\n";
        write_shared_and_sync(&self.path, line).map_err(|error| Failure::io("write", &self.path, &error))
    }
}

/// A conversation that was kept and goes on.
#[derive(Debug, Clone, PartialEq)]
pub struct Earlier {
    /// Where it is kept.
    pub file: HistoryFile,
    /// What the model was told before it; may be empty.
    pub system: String,
    /// The turns, a question and an answer in turn.
    pub turns: Vec<Value>,
}

impl Earlier {
    /// Reads a conversation with the first run among the models: that in `path`, or the newest one.
    ///
    /// # Errors
    /// None of the models is a run, there is no conversation, or it cannot be read or is none.
    pub fn read(models: &[OpenableModel], path: Option<&Path>) -> Result<Self, Failure> {
        let run = models.iter().find(|model| model.kind == ModelKind::Run).ok_or_else(|| {
            Failure::usage("conversations are only kept with runs, and this model is not a run")
                .hint("Name a finished run, or leave out --continue")
        })?;
        let path = match path {
            Some(path) => path.to_owned(),
            None => newest(&run.path.join(FOLDER)).ok_or_else(|| {
                let text = format!("there is no kept conversation with {}", escape(&run.name));
                Failure::usage(text).hint("Begin one without --continue")
            })?,
        };
        let bytes = read_regular(&path, MOST_BYTES).map_err(|error| Failure::io("read", &path, &error))?;
        let kept: Option<Kept> = serde_json::from_slice(bytes.trim_ascii()).ok();
        kept.and_then(|kept| Self::of(kept, run, &path)).ok_or_else(|| {
            let text = format!(
                "{} is not a conversation with {} that `chat` has kept",
                escape(&path.display().to_string()),
                escape(&run.name)
            );
            Failure::usage(text).hint(format!("Name a file of the folder `{FOLDER}` of the run"))
        })
    }

    fn of(kept: Kept, run: &OpenableModel, path: &Path) -> Option<Self> {
        let mut turns = kept.messages;
        let content = |turn: &Value| turn["content"].as_str().map(str::to_owned);
        let system = match turns.first() {
            Some(first) if first["role"] == "system" => content(&turns.remove(0))?,
            _ => String::new(),
        };
        let role = |at: usize| if at.is_multiple_of(2) { "user" } else { "assistant" };
        let mut each = turns.iter().enumerate();
        let is_whole = !turns.is_empty()
            && turns.len().is_multiple_of(2)
            && each.all(|(at, turn)| turn["role"] == role(at) && content(turn).is_some());
        let file = HistoryFile { path: path.to_owned(), model: run.id.clone() };
        (is_whole && kept.model == run.id).then_some(Self { file, system, turns })
    }

    /// Returns the questions with their answers.
    pub fn exchanges(&self) -> impl Iterator<Item = [&str; 2]> {
        self.turns
            .as_chunks()
            .0
            .iter()
            .map(|pair: &[Value; 2]| pair.each_ref().map(|turn| turn["content"].as_str().unwrap_or_default()))
    }
}

/// Returns the conversation in a folder that was written last.
fn newest(folder: &Path) -> Option<PathBuf> {
    let all = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let conversations = all.filter(|path| path.extension().is_some_and(|end| end == "jsonl"));
    // Of those that were written at the same time the one with the later name, which begins with the time.
    conversations
        .max_by_key(|path| (fs::metadata(path).and_then(|about| about.modified()).ok(), path.clone()))
}

/// Returns the beginning of the first question.
pub(super) fn title(turns: &[Value]) -> String {
    let first = turns.first().and_then(|turn| turn["content"].as_str()).unwrap_or_default();
    first.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(LONGEST_TITLE).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    fn model(kind: ModelKind, path: &Path) -> OpenableModel {
        OpenableModel {
            id: "run:a".into(),
            name: "a".into(),
            kind,
            base: None,
            parameters: None,
            path: path.to_owned(),
        }
    }

    #[test]
    fn a_conversation_is_kept_with_the_run_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let base = model(ModelKind::Base, folder.path());
        assert_eq!(HistoryFile::of(std::slice::from_ref(&base)), None);
        let file = HistoryFile::of(&[base, model(ModelKind::Run, folder.path())]).unwrap();
        assert!(!folder.path().join("chats").exists(), "an empty conversation leaves nothing");
        let turns = vec![json!({"role": "user", "content": format!("two\nlines {}", "x".repeat(100))})];
        let kept = Kept { title: title(&turns), messages: turns, model: "run:a".into() };
        assert!(kept.title.starts_with("two lines x") && kept.title.len() == 60, "{}", kept.title);
        let of_base = Kept { model: "run:a@base".into(), ..kept.clone() };
        file.write(&[of_base.clone(), kept.clone()]).unwrap();
        file.write(&[kept.clone(), of_base]).unwrap();
        let text = fs::read_to_string(file.path()).unwrap();
        assert_eq!(serde_json::from_str::<Kept>(text.trim_end()).unwrap(), kept, "the run's own turns");
        let earlier = |path: Option<&Path>| Earlier::read(&[model(ModelKind::Run, folder.path())], path);
        assert!(earlier(None).unwrap_err().text.contains("is not a conversation"), "a question alone");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(file.path()), mode(file.path().parent().unwrap())), (0o600, 0o700));
    }

    #[test]
    fn the_newest_conversation_or_a_named_one_goes_on_in_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let run = model(ModelKind::Run, folder.path());
        let read = |path: Option<&Path>| Earlier::read(std::slice::from_ref(&run), path);
        assert!(read(None).unwrap_err().text.contains("there is no kept conversation with a"));
        let base = model(ModelKind::Base, folder.path());
        assert!(Earlier::read(&[base], None).unwrap_err().text.contains("only kept with runs"));
        fs::create_dir(folder.path().join("chats")).unwrap();
        let write = |name: &str, model: &str, roles: [&str; 3]| {
            let messages = roles.map(|role| json!({"role": role, "content": format!("{role} of {name}")}));
            let path = folder.path().join("chats").join(name);
            fs::write(&path, json!({"messages": messages, "title": "", "model": model}).to_string()).unwrap();
            path
        };
        let whole = ["system", "user", "assistant"];
        let old = write("1000-aaaa.jsonl", "run:a", whole);
        let new = write("2000-0000.jsonl", "run:a", whole);
        let earlier = read(None).unwrap();
        assert_eq!((earlier.file.path(), earlier.system.as_str()), (&*new, "system of 2000-0000.jsonl"));
        let exchanges: Vec<_> = earlier.exchanges().collect();
        assert_eq!(exchanges, [["user of 2000-0000.jsonl", "assistant of 2000-0000.jsonl"]]);
        let went_on = read(Some(&old)).unwrap().file;
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(9);
        fs::File::options().append(true).open(went_on.path()).unwrap().set_modified(later).unwrap();
        assert_eq!(read(None).unwrap().file.path(), old, "the one that was written last");
        for (model, roles) in
            [("run:b", whole), ("run:a", ["user", "user", "assistant"]), ("run:a", ["user"; 3])]
        {
            let path = write("odd", model, roles);
            assert!(read(Some(&path)).unwrap_err().text.contains("is not a conversation"), "{roles:?}");
        }
    }
}
