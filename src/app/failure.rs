//! Why an operation ended early: what went wrong and where, what to do about it, and whose responsibility it
//! is.
//!
//! Enters: the errors of the other crates. Leaves: a [`Failure`], whose [`Exit`] is the exit code of a
//! command. It must not know how a failure is shown.

use std::path::Path;
use std::{fmt, io};

use sparktune_data::DataError;
use sparktune_data::token_file::TokenFileError;
use sparktune_plan::PlanError;
use sparktune_plan::model_config::ConfigError;

/// The exit codes of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Everything was done.
    Done = 0,
    /// The request cannot be carried out as it was given.
    Usage = 2,
    /// The data was rejected.
    Data = 3,
    /// The device, the memory or the disk is the obstacle.
    Device = 4,
    /// Stopped; the same command, or `resume`, continues.
    Stopped = 5,
    /// A bug in sparktune.
    Bug = 70,
    /// Nothing is wrong, but it cannot be done on this machine. This is automake's code for a skipped test.
    Skipped = 77,
}

impl Exit {
    /// Returns the meaning of an exit code of the trainer process or of another crate. An unknown code is a
    /// bug.
    pub fn from_code(code: i32) -> Self {
        match code {
            0 => Self::Done,
            2 => Self::Usage,
            3 => Self::Data,
            4 => Self::Device,
            5 => Self::Stopped,
            77 => Self::Skipped,
            _ => Self::Bug,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why an operation ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Whose responsibility it is.
    pub exit: Exit,
    /// What went wrong, and where. It may have several lines.
    pub text: String,
    /// Suggested remedies, one each; empty if the text names them already.
    pub hints: Vec<String>,
}

impl Failure {
    /// A failure without hints.
    pub fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into(), hints: Vec::new() }
    }

    /// A request that cannot be carried out as it was given.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(Exit::Usage, text)
    }

    /// A file that could not be read or written. `verb` says what was attempted: `read`, `write`.
    pub fn io(verb: &str, path: &Path, source: &io::Error) -> Self {
        let text = format!("cannot {verb} {}: {}", path.display(), sparktune_runlog::in_words(source));
        Self::new(exit_of_io(source), text)
    }

    /// Adds a suggestion.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Whether the reader of standard output has gone away: nothing is wrong, and there is nobody left to
    /// report it to.
    pub fn is_closed_pipe(&self) -> bool {
        self.exit == Exit::Done
    }
}

/// The text and the hints together, for interfaces that have one string for both.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        let separator = if self.text.contains('\n') { "\n" } else { ". " };
        self.hints.iter().try_for_each(|hint| write!(f, "{separator}{hint}"))
    }
}

impl std::error::Error for Failure {}

fn exit_of_io(error: &io::Error) -> Exit {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory => {
            Exit::Device
        }
        _ => Exit::Usage,
    }
}

/// An error of standard output. Errors of files go through [`Failure::io`], which names the file.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Exit::Done, ""),
            _ => Self::new(exit_of_io(&error), format!("cannot write the output: {error}")),
        }
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        let exit = Exit::from_code(error.exit_code().into());
        match error {
            PlanError::Conflict { what, fix, .. } | PlanError::Data { what, fix, .. } => {
                Self::new(exit, what).hint(fix)
            }
            error => Self::new(exit, error.to_string()),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<sparktune_hub::Error> for Failure {
    fn from(error: sparktune_hub::Error) -> Self {
        use sparktune_hub::Error as E;
        let exit = match &error {
            E::DiskFull { .. } => Exit::Device,
            E::Io { reason, .. } => exit_of_io(reason),
            // What was downloaded is kept, and the same command continues there.
            E::Cancelled
            | E::Interrupted { .. }
            | E::Unreachable { .. }
            | E::HubAway { .. }
            | E::Cut { .. }
            | E::TimedOut { .. }
            | E::RateLimited { .. }
            | E::Server { .. }
            | E::WrongHash { .. } => Exit::Stopped,
            _ => Exit::Usage,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        let text = error.to_string();
        let exit = match error {
            DataError::TokenFile(error) => return error.into(),
            DataError::Io { ref source, .. } => exit_of_io(source),
            DataError::Cancelled => Exit::Stopped,
            ref error if error.is_data_fault() => Exit::Data,
            _ => Exit::Usage,
        };
        Self::new(exit, text)
    }
}

impl From<TokenFileError> for Failure {
    fn from(error: TokenFileError) -> Self {
        let exit = match &error {
            TokenFileError::Io { source, .. } => exit_of_io(source),
            TokenFileError::BeingWritten { .. } | TokenFileError::UnsupportedVersion { .. } => Exit::Usage,
            _ => Exit::Data,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<sparktune_runlog::Error> for Failure {
    fn from(error: sparktune_runlog::Error) -> Self {
        let exit = if error.is_disk_full() { Exit::Device } else { Exit::Usage };
        Self::new(exit, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_follow_the_text_in_one_line_or_on_lines_of_their_own() {
        let failure = Failure::usage("no model").hint("Give --model");
        assert_eq!(failure.to_string(), "no model. Give --model");
        let report = Failure::usage("refused\n  a report").hint("Correct it").hint("Or not");
        assert_eq!(report.to_string(), "refused\n  a report\nCorrect it\nOr not");
    }

    #[test]
    fn a_fix_that_the_plan_names_is_a_hint_and_the_whole_reads_as_before() {
        let error = |fix: &str| PlanError::Conflict { key: "fp8", what: "a and b".into(), fix: fix.into() };
        let whole = error("Omit b").to_string();
        let failure = Failure::from(error("Omit b"));
        assert_eq!(
            (failure.text.as_str(), failure.hints.as_slice()),
            ("a and b", &["Omit b".to_owned()][..])
        );
        assert_eq!(failure.to_string(), whole);
    }
}
