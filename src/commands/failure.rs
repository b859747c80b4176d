//! Converts failures of the trainer and of measurements to failures of a command.

use std::io;
use std::path::Path;

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
        return from_file(path, source);
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
    let failure = Failure::new(exit, error.what());
    match error.fix() {
        Some(fix) => failure.hint(fix),
        None => failure,
    }
}

/// Returns the failure of a file of an edit. What is said of the files of runs names flags that `edit` does
/// not have.
fn from_file(path: &Path, source: &io::Error) -> Failure {
    let failure = Failure::io("use", path, source);
    let (what, hint) = match source.kind() {
        io::ErrorKind::StorageFull => ("the disk is full", "Free some space, and repeat the command"),
        io::ErrorKind::QuotaExceeded => {
            ("your disk quota is used up", "Free some space, and repeat the command")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            ("the file system is read-only", "Name a folder on another one with --output, or remount it")
        }
        io::ErrorKind::NotFound => ("it does not exist", "Check its name and its folder"),
        io::ErrorKind::IsADirectory => ("it is a folder, and a file is expected", "Name a file"),
        io::ErrorKind::NotADirectory => ("what is said to be a folder is none", "Check the path"),
        io::ErrorKind::AlreadyExists => {
            ("something else of this name is in the way", "Move it elsewhere, or choose another place")
        }
        io::ErrorKind::InvalidFilename => ("its name is too long", "Choose a shorter name"),
        _ => return failure,
    };
    Failure::new(failure.exit, format!("cannot use {}: {what}", path.display())).hint(hint)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_an_edit_has_a_hint_that_edits_can_follow() {
        for (kind, exit, words) in [
            (io::ErrorKind::StorageFull, Exit::Device, "repeat the command"),
            (io::ErrorKind::ReadOnlyFilesystem, Exit::Usage, "--output"),
            (io::ErrorKind::NotFound, Exit::Usage, "Check its name"),
            (io::ErrorKind::IsADirectory, Exit::Usage, "Name a file"),
            (io::ErrorKind::NotADirectory, Exit::Usage, "Check the path"),
            (io::ErrorKind::AlreadyExists, Exit::Usage, "Move it elsewhere"),
            (io::ErrorKind::InvalidFilename, Exit::Usage, "shorter name"),
        ] {
            let error = EditError::Io { path: "out/config.json".into(), source: kind.into() };
            let failure = from_editing(error);
            assert_eq!(failure.exit, exit);
            assert!(failure.text.starts_with("cannot use out/config.json: "), "{failure}");
            assert!(failure.hints[0].contains(words), "{failure}");
            assert!(!failure.to_string().contains("resume") && !failure.to_string().contains("--runs-dir"));
        }
        let error =
            EditError::Fact { place: "f.jsonl:2".into(), what: "it is empty".into(), fix: "Write a text" };
        let failure = from_editing(error);
        assert_eq!(
            (failure.text.as_str(), failure.hints.join("")),
            ("f.jsonl:2: it is empty", "Write a text".into())
        );
    }
}
