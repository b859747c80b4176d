//! The contract between the wizard and its backend: the requests of the wizard and the responses to them.
//!
//! The wizard opens no file and queries neither the hub nor a device. It sends a [`Request`] and checks at
//! every tick whether a [`Response`] has arrived. A backend ([`Backend`](super::backend::Backend) on separate
//! threads; a list in tests) keeps these rules:
//!
//! - Every request carries a [`Ticket`], and every response repeats that of its request. Responses to tickets
//!   that the wizard no longer waits for are ignored, so a request never has to be withdrawn.
//! - Slow work ([`Request::is_slow`]) sends [`Response::Progress`] at most about ten times a second, and ends
//!   early after [`Request::Cancel`] with its ticket. It still sends its own response, an `Err` that says so.
//! - Slow requests do not delay quick ones: folders can be browsed during a download. The program ends only
//!   after all quick ones, so that the last draft is saved.
//! - Errors are text for users: what happened, where, and what to do, in one or several lines. The wizard
//!   escapes and wraps them.

use std::path::PathBuf;

use sparktune_app::data::{DataFound, RejectedPage};
use sparktune_app::draft::Draft;
use sparktune_app::files::Listing;
use sparktune_app::listener::Progress;
use sparktune_app::machine::MachineFound;
use sparktune_app::model::{CachedModel, ModelFound};
use sparktune_app::presets::{Preset, Saved};
use sparktune_app::runs::Recent;
use sparktune_data::{Preview, Wanted};
use sparktune_plan::{Answers, ConfigOptions};

/// The number of a request. Each is used once.
pub type Ticket = u64;

/// A request or a response, with the ticket that connects the two.
#[derive(Debug, Clone, PartialEq)]
pub struct Ticketed<T> {
    /// The number of the request.
    pub ticket: Ticket,
    /// The request, or the response to it.
    pub body: T,
}

/// The requests of the wizard.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Facts about this machine. Answered by [`Response::Machine`].
    Machine,
    /// How much of each catalog model is already in the cache. Answered by [`Response::Catalog`].
    Catalog,
    /// Recently used models and files. Answered by [`Response::Recent`].
    Recent,
    /// Facts about a model from its `config.json` alone, before any weight is downloaded. Answered by
    /// [`Response::Model`].
    Model {
        /// The Hugging Face id or folder, as typed or chosen. `~/` was already replaced by the home folder.
        name: String,
        /// The commit, tag or branch, if the user gave one.
        revision: Option<String>,
        /// The user's options for reading the config.
        config: ConfigOptions,
    },
    /// The contents of a folder. Answered by [`Response::Listing`].
    List {
        /// The path, absolute or relative to the working directory.
        folder: PathBuf,
    },
    /// Reads, checks and tokenises the data of these answers with their model. Answered by
    /// [`Response::Data`]. The tokens are kept for [`Request::Start`].
    Data {
        /// The answers, in which model and data are set.
        answers: Box<Answers>,
    },
    /// Looks for examples in the data of these answers. Answered by [`Response::Found`].
    Find {
        /// The answers, in which model and data are set.
        answers: Box<Answers>,
        /// What is looked for.
        wanted: Wanted,
    },
    /// Lines that the last [`Request::Data`] rejected. Answered by [`Response::Rejected`].
    Rejected {
        /// The number of rejected lines to skip.
        offset: u64,
        /// The number of rejected lines to return.
        limit: usize,
    },
    /// The available presets, shipped ones first. Answered by [`Response::Presets`].
    Presets {
        /// A preset that is listed in any case, even if it is the path of a file.
        also: Option<String>,
    },
    /// Saves these answers as a preset. Answered by [`Response::Saved`].
    SavePreset {
        /// The name as typed, from which the file name is made.
        name: String,
        /// The text of the preset.
        toml: String,
        /// Whether the user agreed to replace an existing preset of the same name.
        replace: bool,
    },
    /// Saves the draft in place of the last one. Sent after each change; answered only when it fails, by
    /// [`Response::NotKept`].
    KeepDraft {
        /// The draft.
        draft: Box<Draft>,
    },
    /// Removes the saved draft, because the user starts over or the run has started. Not answered.
    ForgetDraft,
    /// The answers of `--demo`, overridden by flags and environment. Answered by [`Response::Demo`].
    Demo,
    /// Downloads what is missing, tokenises, creates the run folder and starts the trainer as a process of
    /// its own. Answered by [`Response::Started`]. Downloaded files are kept even after a cancel or a
    /// failure, and the next start continues there.
    Start {
        /// The complete answers: `sparktune train` with them would ask nothing.
        answers: Box<Answers>,
        /// Whether the draft is removed once the run exists.
        forgets_draft: bool,
    },
    /// Ends the slow work of this ticket soon. Not answered itself.
    Cancel {
        /// The ticket of the request to end.
        ticket: Ticket,
    },
}

impl Request {
    /// Returns whether the request may take long. Most such requests report progress and can be cancelled.
    /// Those that look at this machine, the cache, the runs, a folder or rejected lines cannot; they end by
    /// themselves, however slow the disk or a mounted network is.
    pub const fn is_slow(&self) -> bool {
        matches!(
            self,
            Self::Machine
                | Self::Catalog
                | Self::Recent
                | Self::Model { .. }
                | Self::List { .. }
                | Self::Data { .. }
                | Self::Find { .. }
                | Self::Rejected { .. }
                | Self::Start { .. }
        )
    }
}

/// The responses.
#[derive(Debug, Clone)]
pub enum Response {
    /// The progress of slow work.
    Progress(Progress),
    /// The response to [`Request::Machine`].
    Machine(Result<MachineFound, String>),
    /// The response to [`Request::Catalog`]. Models that are missing here count as not cached.
    Catalog(Vec<CachedModel>),
    /// The response to [`Request::Recent`].
    Recent(Recent),
    /// The response to [`Request::Model`].
    Model(Result<Box<ModelFound>, String>),
    /// The response to [`Request::List`].
    Listing(Result<Listing, String>),
    /// The response to [`Request::Data`]. Rejected lines, however many, are not an error: the wizard compares
    /// them with the limit in the answers.
    Data(Result<Box<DataFound>, String>),
    /// The response to [`Request::Find`].
    Found(Result<Box<Preview>, String>),
    /// The response to [`Request::Rejected`].
    Rejected(Result<RejectedPage, String>),
    /// The response to [`Request::Presets`], including the one that is listed in any case. A preset that
    /// cannot be read is listed with the reason.
    Presets(Vec<Preset>),
    /// The response to [`Request::SavePreset`].
    Saved(Result<Saved, String>),
    /// The response to [`Request::KeepDraft`] when it failed.
    NotKept(String),
    /// The response to [`Request::Demo`].
    Demo(Result<Box<Answers>, String>),
    /// The response to [`Request::Start`]: the run's folder. The trainer is running or about to.
    Started(Result<PathBuf, String>),
}
