//! Failures of the trainer as failures of a command.

use sparktune_app::failure::{Exit, Failure};
use sparktune_train::TrainError;

/// Returns the failure of a command that the trainer's error means.
pub(crate) fn from_training(error: TrainError) -> Failure {
    match error {
        // What was asked for is the obstacle, not the machine.
        TrainError::Run(error @ sparktune_runlog::Error::AlreadyRunning { .. }) => error.into(),
        error => Failure::new(Exit::from_code(error.exit_code()), error.to_string()),
    }
}
