//! The contract between the wizard and the backend that works for it: what the wizard requests, and what
//! comes back.
//!
//! The wizard opens no file, asks no hub and no device. It sends a [`Request`] and looks at every tick
//! whether a [`Response`] has come. Whoever answers ([`Backend`](super::backend::Backend), on threads of its
//! own; in tests a list) keeps to this:
//!
//! - Every request carries a [`Ticket`], and every response repeats that of its request. Responses to tickets
//!   that the wizard no longer waits for are ignored, so nothing has to be taken back.
//! - Slow work ([`Request::is_slow`]) sends [`Response::Progress`] at most about ten times a second, and ends
//!   early after [`Request::Cancel`] with its ticket. It still ends with its own response, an `Err` that says
//!   so.
//! - Quick requests are not held up by slow ones: during a download one can still browse folders.
//! - Errors are text for people: what, where, what to do; several lines are fine. Nothing needs to be escaped
//!   or wrapped: the wizard does both.

use std::path::PathBuf;

use sparktune_app::data::{DataFound, RejectedPage};
use sparktune_app::draft::Draft;
use sparktune_app::files::Listing;
use sparktune_app::listener::Progress;
use sparktune_app::machine::MachineFound;
use sparktune_app::model::{CachedModel, ModelFound};
use sparktune_app::presets::{Preset, Saved};
use sparktune_app::runs::Recent;
use sparktune_plan::{Answers, ConfigOptions};

/// The number of a request; each is used once.
pub type Ticket = u64;

/// A request or a response with the ticket that joins them.
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
    /// Facts about this machine: [`Response::Machine`].
    Machine,
    /// How much of the catalog's models is in the cache already: [`Response::Catalog`].
    Catalog,
    /// What was used recently: [`Response::Recent`].
    Recent,
    /// A model judged by its `config.json` alone, before any weight is fetched: [`Response::Model`].
    Model {
        /// Hugging Face id or folder, as typed or chosen; `~/` is already the home folder.
        name: String,
        /// Commit, tag or branch, when the user insists on one.
        revision: Option<String>,
        /// The user's options for reading its config.
        config: ConfigOptions,
    },
    /// The contents of a folder: [`Response::Listing`].
    List {
        /// Absolute, or relative to the working directory.
        folder: PathBuf,
    },
    /// Read, check and tokenise the data of these answers (`data`, `eval_data`, `format`, `think`,
    /// `max_example_tokens`) with the model they name: [`Response::Data`]. The tokens are kept, so that
    /// [`Request::Start`] finds them.
    Data {
        /// Model and data are set.
        answers: Box<Answers>,
    },
    /// Lines that the last [`Request::Data`] rejected: [`Response::Rejected`].
    Rejected {
        /// Rejected lines to skip.
        offset: u64,
        /// Rejected lines wanted.
        limit: usize,
    },
    /// The presets there are, shipped ones first: [`Response::Presets`].
    Presets {
        /// One that is wanted in any case: it may be the path of a file.
        also: Option<String>,
    },
    /// Keep these answers as a preset: [`Response::Saved`].
    SavePreset {
        /// As typed: a plain name, from which the file is named.
        name: String,
        /// The text of the preset.
        toml: String,
        /// The user has said that an older one of the same name may go.
        replace: bool,
    },
    /// Keep the draft, in place of the last one. Sent after each change; answered only when it fails, by
    /// [`Response::NotKept`].
    KeepDraft {
        /// The rows to keep.
        draft: Box<Draft>,
    },
    /// Remove the kept draft: the user starts over, or the run has started. Not answered.
    ForgetDraft,
    /// The answers of `--demo`, overridden by what flags and environment say: [`Response::Demo`].
    Demo,
    /// Fetch what is missing, tokenise, make the run folder and start the trainer in a process of its own:
    /// [`Response::Started`]. What was fetched stays, also after a cancel or a failure, and the next start
    /// continues there.
    Start {
        /// Complete: `sparktune train` with these would ask nothing.
        answers: Box<Answers>,
    },
    /// End the slow work of this ticket soon. Not answered by itself.
    Cancel {
        /// The ticket of the request to be ended.
        ticket: Ticket,
    },
}

impl Request {
    /// Whether it may take long: it reports progress, and can be cancelled.
    pub const fn is_slow(&self) -> bool {
        matches!(self, Self::Machine | Self::Model { .. } | Self::Data { .. } | Self::Start { .. })
    }
}

/// The responses.
#[derive(Debug, Clone)]
pub enum Response {
    /// How far slow work has come.
    Progress(Progress),
    /// To [`Request::Machine`].
    Machine(Result<MachineFound, String>),
    /// To [`Request::Catalog`]. Models that are missing here count as not cached.
    Catalog(Vec<CachedModel>),
    /// To [`Request::Recent`].
    Recent(Recent),
    /// To [`Request::Model`].
    Model(Result<Box<ModelFound>, String>),
    /// To [`Request::List`].
    Listing(Result<Listing, String>),
    /// To [`Request::Data`]. Rejected lines, however many, are no error: the wizard judges by the answers'
    /// limit.
    Data(Result<Box<DataFound>, String>),
    /// To [`Request::Rejected`].
    Rejected(Result<RejectedPage, String>),
    /// To [`Request::Presets`], with the one that is wanted in any case. One that cannot be read is listed,
    /// with the reason.
    Presets(Vec<Preset>),
    /// To [`Request::SavePreset`].
    Saved(Result<Saved, String>),
    /// To [`Request::KeepDraft`], when it failed.
    NotKept(String),
    /// To [`Request::Demo`].
    Demo(Result<Box<Answers>, String>),
    /// To [`Request::Start`]: the run's folder. The trainer is running or about to.
    Started(Result<PathBuf, String>),
}
