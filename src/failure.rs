//! What ends a command, as an exit code and a text with three parts: what, where, what to do.
//!
//! The members say the text; here it is decided whose matter it is, which is what the exit code tells a script.

use std::io;
use std::process::ExitCode;

use sparktune_data::DataError;
use sparktune_data::token_file::TokenFileError;
use sparktune_plan::PlanError;
use sparktune_plan::model_config::ConfigError;
use sparktune_train::TrainError;

/// The exit codes of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All of it is done.
    Done = 0,
    /// The command cannot be carried out as it was given.
    Usage = 2,
    /// The data was rejected.
    Data = 3,
    /// Device, memory or disk.
    Device = 4,
    /// Stopped; the same command, or `resume`, continues.
    Stopped = 5,
    /// Our fault.
    Bug = 70,
    /// Nothing was wrong, but it cannot be done here: what automake calls a skipped test.
    Skipped = 77,
}

impl Exit {
    /// The meaning of a code that a member or the trainer process gave.
    pub fn of(code: i32) -> Self {
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

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command ended early.
#[derive(Debug)]
pub struct Failure {
    /// Whose matter it is.
    pub exit: Exit,
    /// What, where, what to do.
    pub text: String,
}

impl Failure {
    pub fn usage(text: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, text: text.into() }
    }

    /// A file that could not be read or written: `doing` is a verb, `read`.
    pub fn io(doing: &str, path: &std::path::Path, source: &io::Error) -> Self {
        let text = format!("cannot {doing} {}: {}", path.display(), sparktune_runlog::in_words(source));
        Self { exit: exit_of_io(source), text }
    }

    /// Whoever read our output went away. Nothing is wrong, and nobody is left to be told.
    fn is_closed_pipe(&self) -> bool {
        self.exit == Exit::Done
    }

    /// Tells the user and gives the code to end with.
    pub fn report(&self) -> ExitCode {
        if !self.is_closed_pipe() {
            crate::output::note(&format!("error: {}", self.text));
        }
        self.exit.into()
    }
}

fn exit_of_io(error: &io::Error) -> Exit {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory => {
            Exit::Device
        }
        _ => Exit::Usage,
    }
}

/// Of standard output alone; files have [`Failure::io`].
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self { exit: Exit::Done, text: String::new() },
            _ => Self { exit: exit_of_io(&error), text: format!("cannot write the output: {error}") },
        }
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        Self { exit: Exit::of(error.exit_code().into()), text: error.to_string() }
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
            // What arrived is kept and the same command goes on.
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
        Self { exit, text: error.to_string() }
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
        Self { exit, text }
    }
}

impl From<TokenFileError> for Failure {
    fn from(error: TokenFileError) -> Self {
        let exit = match &error {
            TokenFileError::Io { source, .. } => exit_of_io(source),
            TokenFileError::BeingWritten { .. } | TokenFileError::UnsupportedVersion { .. } => Exit::Usage,
            _ => Exit::Data,
        };
        Self { exit, text: error.to_string() }
    }
}

impl From<sparktune_runlog::Error> for Failure {
    fn from(error: sparktune_runlog::Error) -> Self {
        let exit = if error.is_disk_full() { Exit::Device } else { Exit::Usage };
        Self { exit, text: error.to_string() }
    }
}

impl From<sparktune_tui::Error> for Failure {
    fn from(error: sparktune_tui::Error) -> Self {
        match error {
            sparktune_tui::Error::Run(error) => error.into(),
            sparktune_tui::Error::Write(error) => error.into(),
        }
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        match error {
            // Not the machine's matter but what was asked for.
            TrainError::Run(error @ sparktune_runlog::Error::AlreadyRunning { .. }) => error.into(),
            error => Self { exit: Exit::of(error.exit_code()), text: error.to_string() },
        }
    }
}
