//! Converts failures of the trainer to failures of a command.

use sparktune_app::failure::{Exit, Failure};
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
