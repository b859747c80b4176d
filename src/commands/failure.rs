//! Converts failures of the trainer and of measurements to failures of a command.

use sparktune_app::failure::{Exit, Failure};
use sparktune_bench::BenchError;
use sparktune_edit::EditError;
use sparktune_infer::InferError;
use sparktune_runlog::Error;
use sparktune_train::TrainError;

/// Converts the trainer's error to the failure of a command.
pub(crate) fn from_training(error: TrainError) -> Failure {
    match error {
        // The request is the cause, not the machine.
        TrainError::Run(error @ (Error::AlreadyRunning { .. } | Error::NoSuchCheckpoint { .. })) => {
            error.into()
        }
        error => Failure::new(Exit::from_code(error.exit_code()), error.to_string()),
    }
}

/// Converts the error of an edit to the failure of a command.
pub(crate) fn from_editing(error: EditError) -> Failure {
    if error.is_stop() {
        // Whoever was writing says it in another way each.
        return Failure::new(Exit::Interrupted, EditError::Stopped.to_string());
    }
    if let Some((path, source)) = error.of_file() {
        return Failure::io("use", path, source);
    }
    let exit = match &error {
        EditError::Io { .. } | EditError::Fact { .. } | EditError::Patch { .. } | EditError::Packets(_) => {
            Exit::Data
        }
        EditError::Infer(InferError::NoRoom { .. }) => Exit::Device,
        EditError::Stopped => Exit::Interrupted,
        EditError::Model(_) | EditError::Data(_) | EditError::Text(_) => Exit::Data,
        EditError::Request { .. } | EditError::Infer(_) => Exit::Usage,
    };
    Failure::new(exit, error.to_string())
}

/// Returns the failure of a measurement with its exit code.
pub(crate) fn from_measuring(error: BenchError) -> Failure {
    match error {
        BenchError::Io { doing, path, source } => Failure::io(doing, &path, &source),
        BenchError::Output(error) => error.into(),
        BenchError::Edit(error) => from_editing(error),
        BenchError::Data(error) => error.into(),
        BenchError::TokenFile(error) => error.into(),
        BenchError::Log(error) => error.into(),
        BenchError::Config(error) => error.into(),
        BenchError::Plan(error) => error.into(),
        BenchError::Train(error) => from_training(error),
        error @ BenchError::Model(_) => Failure::new(Exit::Data, error.to_string()),
        error @ (BenchError::Peer { .. }
        | BenchError::Unsuitable { .. }
        | BenchError::FolderInUse { .. }
        | BenchError::NoRecording { .. }
        | BenchError::OtherMeasurements { .. }) => Failure::usage(error.to_string()),
        error @ BenchError::Cancelled => Failure::new(Exit::Interrupted, error.to_string()),
        BenchError::Measuring { exit_code, .. } => {
            Failure::new(Exit::from_code(exit_code), error.to_string())
        }
        BenchError::Ours { exit_code, .. } => {
            Failure::new(exit_code.map_or(Exit::Bug, Exit::from_code), error.to_string())
        }
    }
}
