//! The contract between the wizard and the program: what the wizard asks, and what it is told.
//!
//! The wizard opens no file, asks no hub and no device. It sends a [`Request`] and looks at every tick whether a
//! [`Reply`] has come. Whoever answers (the binary, on threads of its own; a test, from a list) keeps to this:
//!
//! - Every request with an answer carries a [`Ticket`], and the reply repeats it. Answers to tickets that the wizard no
//!   longer waits for are ignored, so nothing has to be taken back.
//! - Slow work ([`Ask::is_slow`]) sends [`Told::Progress`] now and then, at most about ten a second, and ends early after
//!   [`Ask::Cancel`] with its ticket. It still ends with its own answer, an `Err` that says so.
//! - Quick asks are not held up by slow ones: somebody who waits for a download can still browse folders.
//! - Errors are words for people: what, where, what to do; several lines are fine. Nothing needs to be escaped or
//!   wrapped: the wizard does both.

use std::ffi::OsString;
use std::path::PathBuf;

use sparktune_data::{KeptLine, Preview, Report};
use sparktune_plan::{Answers, ConfigOptions, DataFacts, MachineFacts, ModelFacts, Origin, PlanError, Rates};

use super::Page;
pub use crate::finding::{Finding, Severity};

/// Number of a request; each is used once.
pub type Ticket = u64;

/// What the wizard wants, with the number under which it waits for the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Repeated by every reply to it.
    pub ticket: Ticket,
    /// What is wanted.
    pub ask: Ask,
}

/// What the wizard is told.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The request's.
    pub ticket: Ticket,
    /// The answer, or how far it is.
    pub told: Told,
}

/// What the wizard wants.
#[derive(Debug, Clone, PartialEq)]
pub enum Ask {
    /// What this machine is: [`Told::Machine`].
    Machine,
    /// What of the catalog's models is in the cache already: [`Told::Catalog`].
    Catalog,
    /// What was used lately: [`Told::Recent`].
    Recent,
    /// A model judged by its `config.json` alone, before any weight is fetched: [`Told::Model`].
    Model {
        /// Hugging Face id or folder, as typed or chosen; `~/` is already the home folder.
        name: String,
        /// Commit, tag or branch, when the user insists on one.
        revision: Option<String>,
        /// What the user said about its config.
        config: ConfigOptions,
    },
    /// What is in a folder: [`Told::Listing`].
    List {
        /// Absolute, or relative to where the program runs.
        folder: PathBuf,
    },
    /// Read, check and tokenise the data of these answers (`data`, `eval_data`, `format`, `think`, `max_example_tokens`)
    /// with the model they name: [`Told::Data`]. What was tokenised is kept, so that [`Ask::Start`] need not do it again.
    Data {
        /// Model and data are set.
        answers: Box<Answers>,
    },
    /// Lines that the last [`Ask::Data`] rejected: [`Told::Rejected`].
    Rejected {
        /// Rejected lines to pass over.
        offset: u64,
        /// Rejected lines wanted.
        limit: usize,
    },
    /// The presets there are, shipped ones first: [`Told::Presets`].
    Presets {
        /// One that is wanted in any case: it may be the path of a file.
        also: Option<String>,
    },
    /// Keep these answers as a preset: [`Told::Saved`].
    SavePreset {
        /// As typed: a plain name, from which the file is named.
        name: String,
        /// Text of the preset.
        toml: String,
        /// The user has said that an older one of the same name may go.
        replace: bool,
    },
    /// Keep the draft, in place of the last one. Sent after each change; answered only when it fails, by
    /// [`Told::NotKept`].
    Keep {
        /// What to keep: [`Draft::to_text`].
        draft: Box<Draft>,
    },
    /// Throw the kept draft away: the user starts anew, or the run has started. Not answered.
    Forget,
    /// The answers of `--demo`, with what flags and environment have said on top: [`Told::Demo`].
    Demo,
    /// Fetch what is missing, tokenise, make the run folder and start the trainer in a process of its own:
    /// [`Told::Started`]. What was fetched stays, also after a cancel or a failure, and the next start goes on there.
    Start {
        /// Complete: `sparktune train` with these would ask nothing.
        answers: Box<Answers>,
    },
    /// End the slow work of this ticket soon. Not answered by itself.
    Cancel {
        /// Of the request to be ended.
        of: Ticket,
    },
}

impl Ask {
    /// Whether it may take long: it reports progress, and can be cancelled.
    pub const fn is_slow(&self) -> bool {
        matches!(self, Self::Machine | Self::Model { .. } | Self::Data { .. } | Self::Start { .. })
    }
}

/// What the wizard is told.
#[derive(Debug, Clone)]
pub enum Told {
    /// How far slow work is.
    Progress(Progress),
    /// To [`Ask::Machine`].
    Machine(Result<MachineFound, String>),
    /// To [`Ask::Catalog`]. Models that are missing here count as not cached.
    Catalog(Vec<CacheState>),
    /// To [`Ask::Recent`].
    Recent(Recent),
    /// To [`Ask::Model`].
    Model(Result<Box<ModelFound>, String>),
    /// To [`Ask::List`].
    Listing(Result<Listing, String>),
    /// To [`Ask::Data`]. Rejected lines, however many, are no error: the wizard judges by the answers' limit.
    Data(Result<Box<DataFound>, String>),
    /// To [`Ask::Rejected`].
    Rejected(Result<RejectedPage, String>),
    /// To [`Ask::Presets`], the one wanted in any case included where there is one. One that cannot be read is listed, with the reason.
    Presets(Vec<PresetFound>),
    /// To [`Ask::SavePreset`].
    Saved(Result<SaveOutcome, String>),
    /// To [`Ask::Keep`], when it failed.
    NotKept(String),
    /// To [`Ask::Demo`].
    Demo(Result<Box<Answers>, String>),
    /// To [`Ask::Start`]: the run's folder. The trainer is running or about to.
    Started(Result<PathBuf, String>),
}

/// How far slow work is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What is being done, in a few words: `fetching model-00001-of-00002.safetensors`, `tokenising the data`. When it
    /// changes, a new stretch has begun and `done` starts over.
    pub what: String,
    /// How much of it is done.
    pub done: u64,
    /// How much there is, where it is known.
    pub total: Option<u64>,
    /// What is counted.
    pub unit: Unit,
    /// Something worth a line: `the connection was cut; next attempt in 4 s`, `12,400 examples`.
    pub note: Option<String>,
}

/// What progress counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Anything else; the words are in `what`.
    Count,
}

/// This machine.
#[derive(Debug, Clone)]
pub struct MachineFound {
    /// What is worth knowing, in the order to be shown: GPU, memory (unified, said so), driver, CUDA headers, disk, other
    /// users of the GPU, ….
    pub findings: Vec<Finding>,
    /// The same for the plan.
    pub facts: MachineFacts,
    /// Speeds that earlier runs measured here.
    pub rates: Rates,
}

/// What of a catalog model is on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheState {
    /// Its id in the catalog.
    pub id: String,
    /// How much.
    pub cached: Cached,
}

/// How much of a model is on this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Cached {
    /// Nothing.
    #[default]
    Nothing,
    /// Some of it: a download that was cut.
    Part {
        /// Bytes that need not be fetched again.
        bytes: u64,
    },
    /// All of it.
    Whole {
        /// Its size on disk.
        bytes: u64,
    },
}

/// What was used lately, newest first. Things that are gone are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recent {
    /// Data files and folders.
    pub data: Vec<PathBuf>,
    /// Model ids and folders.
    pub models: Vec<String>,
}

/// A model that can be trained, as far as its config tells.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFound {
    /// As it was asked for.
    pub name: String,
    /// The revision that was asked for.
    pub revision: Option<String>,
    /// The commit that was found, for models from the hub.
    pub commit: Option<String>,
    /// What the plan needs to know. `path` is set when the weights are on this machine.
    pub facts: ModelFacts,
    /// Bytes still to be fetched, everything included.
    pub missing_bytes: u64,
    /// Worth a line each: `using the cached copy: the hub cannot be reached`.
    pub notes: Vec<String>,
    /// Set when the family is not one of those that were tested: its name. `facts` then has it computed as
    /// `facts.config.architecture`, and the user has to confirm that; the answer `architecture` says that they did.
    pub unknown_architecture: Option<String>,
}

/// What is in a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The folder, absolute.
    pub folder: PathBuf,
    /// Its entries, without hidden ones, in no particular order.
    pub entries: Vec<Entry>,
    /// How many entries were left out because there are too many.
    pub left_out: u64,
}

/// Something in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name; not always UTF-8.
    pub name: OsString,
    /// What it is, links followed.
    pub kind: EntryKind,
    /// Size of a file, bytes.
    pub bytes: Option<u64>,
    /// By its name it is data: a `.jsonl`, `.jsonl.gz` or `.jsonl.zst` file, or a folder with such files in it.
    pub is_data: bool,
    /// It is a folder with a `config.json` in it.
    pub is_model: bool,
}

/// What an entry of a folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A folder.
    Folder,
    /// A file.
    File,
    /// A pipe, a socket, a device, a link to nothing.
    Other,
}

/// The data, read from front to end.
#[derive(Debug, Clone)]
pub struct DataFound {
    /// Lengths and counts in tokens of the model, for the plan.
    pub facts: DataFacts,
    /// What was found on the way. Counts by kind say how many lines were rejected.
    pub report: Report,
    /// Some examples as the model will see them.
    pub preview: Preview,
}

/// Some of the rejected lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RejectedPage {
    /// As asked for.
    pub offset: u64,
    /// In the order of the data; fewer than asked for only at the end.
    pub rows: Vec<KeptLine>,
    /// How many rejected lines there are in all.
    pub total: u64,
    /// The file that holds them all.
    pub file: Option<PathBuf>,
}

/// A preset that can be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresetFound {
    /// What `--preset` takes: a shipped name, or the path of a file.
    pub name: String,
    /// One line about it.
    pub about: String,
    /// Its text, or why it cannot be read.
    pub toml: Result<String, String>,
    /// Part of the program, not the user's own.
    pub shipped: bool,
}

/// What became of a preset to be saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SaveOutcome {
    /// It is in this file.
    Saved {
        /// What `--preset` takes.
        path: PathBuf,
    },
    /// There is one of that name already, and nothing was written: ask, and send it again with `replace`.
    Exists {
        /// The one that is there.
        path: PathBuf,
    },
}

/// An unfinished wizard: what was answered and where it was left.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// The page it was left on.
    pub page: Page,
    /// What was answered in the wizard and by flags. A path that is not UTF-8 is left out: TOML cannot hold it.
    pub answers: Answers,
}

const HEAD: &str = "# An unfinished wizard of sparktune. It was left at the page: ";

impl Draft {
    /// As the text of a file; without its first line it is a preset like any other.
    pub fn to_text(&self) -> String {
        let mut answers = self.answers.clone();
        let toml = answers.to_toml().unwrap_or_else(|_| {
            // Paths are the only answers that TOML may be unable to hold.
            for name in ["data", "eval-data", "model-path", "runs-dir"] {
                if answers.get(name).is_none() {
                    answers.clear(name);
                }
            }
            answers.to_toml().unwrap_or_default()
        });
        format!("{HEAD}{}\n{toml}", self.page.word())
    }

    /// Reads what [`to_text`](Self::to_text) wrote; `source` names it in messages.
    ///
    /// # Errors
    /// Text that holds no answers, as [`Answers::from_toml`]. An unknown page is the first one.
    pub fn from_text(text: &str, source: &str) -> Result<Self, PlanError> {
        let word = text.lines().next().and_then(|line| line.strip_prefix(HEAD)).unwrap_or_default();
        let page = Page::ALL.into_iter().find(|page| page.word() == word.trim()).unwrap_or(Page::Machine);
        Ok(Self { page, answers: Answers::from_toml(text, Origin::Flag, source)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparktune_plan::Answer;

    #[test]
    fn a_draft_is_read_as_it_was_written_and_a_path_that_no_text_holds_is_left_out() {
        use std::os::unix::ffi::OsStringExt;

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
