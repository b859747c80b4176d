//! The draft of an unfinished wizard: the answers so far, and the current question.

use std::fs;

use sparktune_plan::setting::Kind;
use sparktune_plan::{Answers, Origin, PlanError, SETTINGS, Setting};

use crate::failure::Failure;
use crate::folders::{state_folder, write_private_file};
use crate::questions::page::Page;

/// The file of the draft, in the user's state folder.
const FILE: &str = "wizard.toml";

const HEAD: &str = "# Answers of an unfinished sparktune wizard. It was left on the page: ";

/// An unfinished wizard.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// The current question.
    pub page: Page,
    /// The answers given in the wizard and by flags. A path that is not UTF-8 is left out, because TOML
    /// cannot represent it.
    pub answers: Answers,
}

impl Draft {
    /// Creates a draft from the user's own answers and those that name model and data.
    pub fn new(page: Page, answers: &Answers) -> Self {
        let is_left_out = |origin, setting: &Setting| match origin {
            Origin::Flag => false,
            Origin::Preset => !setting.of_one_run,
            _ => true,
        };
        Self { page, answers: answers.without(is_left_out) }
    }

    /// Returns the text of its file. Without the first line it is an ordinary preset.
    pub fn to_text(&self) -> String {
        let mut answers = self.answers.clone();
        let toml = answers.to_toml().unwrap_or_else(|_| {
            // Paths are the only answers that TOML may be unable to represent.
            for setting in SETTINGS.iter().filter(|setting| matches!(setting.kind, Kind::Path | Kind::Paths))
            {
                if answers.get(setting.name).is_none() {
                    answers.clear(setting.name);
                }
            }
            answers.to_toml().unwrap_or_default()
        });
        format!("{HEAD}{}\n{toml}", self.page.word())
    }

    /// Reads the output of [`to_text`](Self::to_text); `source` names it in messages.
    ///
    /// # Errors
    /// The same as for [`Answers::from_toml`]. An unknown page counts as the first one.
    pub fn from_text(text: &str, source: &str) -> Result<Self, PlanError> {
        let word = text.lines().next().and_then(|line| line.strip_prefix(HEAD)).unwrap_or_default();
        let page = Page::from_word(word.trim()).unwrap_or(Page::Machine);
        Ok(Self { page, answers: Answers::from_toml(text, Origin::Flag, source)? })
    }
}

/// Returns the saved draft. One that cannot be read counts as missing.
pub fn kept_draft() -> Option<Draft> {
    let path = state_folder()?.join(FILE);
    let text = fs::read_to_string(&path).ok()?;
    Draft::from_text(&text, &path.display().to_string()).ok()
}

/// Saves a draft, which replaces the previous one.
///
/// # Errors
/// There is no home folder, or the file cannot be written.
pub fn keep_draft(draft: &Draft) -> Result<(), Failure> {
    let folder = state_folder().ok_or_else(|| {
        Failure::usage("the answers cannot be saved: neither XDG_STATE_HOME nor HOME is set")
    })?;
    write_private_file(&folder.join(FILE), &draft.to_text())
}

/// Removes the draft, if there is one.
pub fn forget_draft() {
    if let Some(folder) = state_folder() {
        // The error is ignored, because the file need not exist.
        let _ = fs::remove_file(folder.join(FILE));
    }
}

#[cfg(test)]
mod tests {
    use sparktune_plan::Answer;

    use super::*;

    #[test]
    fn a_draft_is_read_as_it_was_written_and_a_path_that_no_text_holds_is_left_out() {
        use std::ffi::OsString;
        use std::os::unix::ffi::OsStringExt;
        use std::path::PathBuf;

        let mut answers = Answers::default();
        answers.set("model", "Qwen/Qwen3.5-2B", Origin::Flag).unwrap();
        answers.set("rank", "64", Origin::Flag).unwrap();
        let draft = Draft { page: Page::Plan, answers: answers.clone() };
        assert_eq!(Draft::from_text(&draft.to_text(), "draft").unwrap(), draft);

        let odd = PathBuf::from(OsString::from_vec(b"tr\xffin.jsonl".to_vec()));
        let with_path = Answers { data: Some(Answer::flag(vec![odd])), ..answers.clone() };
        let text = Draft { page: Page::Data, answers: with_path }.to_text();
        assert_eq!(Draft::from_text(&text, "draft").unwrap(), Draft { page: Page::Data, answers });
    }

    #[test]
    fn a_draft_of_another_time_still_gives_its_answers() {
        let draft = Draft::from_text("seed = 7\n", "draft").unwrap();
        assert_eq!((draft.page, draft.answers.seed.unwrap().value), (Page::Machine, 7));
        assert!(Draft::from_text("sead = 7\n", "draft.toml").unwrap_err().to_string().contains("draft.toml"));
    }
}
