//! Errors that end a measurement early.

use std::io;
use std::path::{Path, PathBuf};

use sparktune_data::DataError;
use sparktune_data::token_file::TokenFileError;
use sparktune_edit::EditError;
use sparktune_model::ModelError;
use sparktune_plan::PlanError;
use sparktune_plan::model_config::ConfigError;
use sparktune_train::TrainError;

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are what the messages say")]
pub enum BenchError {
    /// A file that could not be written or a program that could not be started.
    #[error("cannot {doing} {}: {}", path.display(), sparktune_runlog::in_words(source))]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    /// The other side of a comparison failed.
    #[error("the peer {peer} {what}. {advice}")]
    Peer { peer: String, what: String, advice: String },
    /// Our own side of a comparison failed in its process; the exit code is that of the process.
    #[error("the process of our own training steps {what}{last_lines}")]
    Ours { what: String, exit_code: Option<i32>, last_lines: String },
    /// The process of a measurement failed, with what its exit code would be.
    #[error("{what}{last_lines}")]
    Measuring { what: String, last_lines: String, exit_code: i32 },
    /// The data has no form in which pipelines can be compared.
    #[error("pipelines cannot be compared on this data: {what}. {advice}")]
    Unsuitable { what: String, advice: &'static str },
    /// Two benchmarks would mix their measurements.
    #[error(
        "{}: another benchmark is using this folder. Wait for its end, or name another one with --folder",
        folder.display()
    )]
    FolderInUse { folder: PathBuf },
    /// Measurements of other data, another build or other settings.
    #[error(
        "{}: this folder has measurements of another build, plan, data set or setting. Name another one with --folder, or omit the flag",
        folder.display()
    )]
    OtherMeasurements { folder: PathBuf },
    /// A file that is no recording.
    #[error(
        "{}: this is no recording of gradients. Make one with `bench sentry --record`",
        path.display()
    )]
    NoRecording { path: PathBuf },
    /// The user wants to stop.
    #[error("interrupted")]
    Cancelled,
    /// The answers of our own side cannot be written, or its commands cannot be read.
    #[error("cannot write the output: {0}")]
    Output(io::Error),
    #[error(transparent)]
    Edit(#[from] EditError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    TokenFile(#[from] TokenFileError),
    #[error(transparent)]
    Log(#[from] sparktune_runlog::Error),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Train(#[from] TrainError),
}

impl BenchError {
    /// Returns the error for data on which pipelines cannot be compared.
    pub(crate) fn unsuitable(what: impl Into<String>, advice: &'static str) -> Self {
        Self::Unsuitable { what: what.into(), advice }
    }

    /// Turns an error of the system into one that names the file.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}
