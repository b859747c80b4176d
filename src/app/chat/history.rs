//! Conversations that are kept with a run: private files in its folder `chats` in the format `messages`, so
//! that they can be trained on as they are. Only the answers of the run are kept: those of a model beside it,
//! such as its base, are what the run was to do better.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sparktune_base::files::{create_private_folder, write_shared};
use sparktune_base::random::mix;
use sparktune_runlog::now_us;

use crate::failure::Failure;
use crate::models::{ModelKind, OpenableModel};

/// The folder of the conversations in that of a run.
const FOLDER: &str = "chats";
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
        let run = models.iter().rfind(|model| model.kind == ModelKind::Run)?;
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
        let folder = self.path.parent().unwrap_or(&self.path);
        create_private_folder(folder).map_err(|error| Failure::io("create", folder, &error))?;
        let line = serde_json::to_string(kept).expect("a conversation is JSON") + "\n";
        write_shared(&self.path, line).map_err(|error| Failure::io("write", &self.path, &error))
    }
}

/// Returns the beginning of the first question.
pub(super) fn title(turns: &[Value]) -> String {
    let first = turns.first().and_then(|turn| turn["content"].as_str()).unwrap_or_default();
    first.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(LONGEST_TITLE).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
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
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(file.path()), mode(file.path().parent().unwrap())), (0o600, 0o700));
    }
}
