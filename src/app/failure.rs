//! The failure of an operation: what happened and where, what to do about it, and the exit code.
//!
//! Enters: the errors of the other crates. Leaves: a [`Failure`], whose [`Exit`] is the exit code of a
//! command. It must not know how a failure is displayed.

use std::path::Path;
use std::{fmt, io};

use serde::{Deserialize, Serialize};
use sparktune_cluster::Error as ClusterError;
use sparktune_data::DataError;
use sparktune_data::packets::PacketError;
use sparktune_data::token_file::TokenFileError;
use sparktune_plan::PlanError;
use sparktune_plan::model_config::ConfigError;

/// The exit codes of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// Everything was done.
    Done = 0,
    /// The request is invalid.
    Usage = 2,
    /// The data was rejected.
    Data = 3,
    /// The device, the memory or the disk prevents the operation, or the loss is not finite.
    Device = 4,
    /// The training was stopped before its end, by a request or from outside; `resume` continues the run.
    Stopped = 5,
    /// The run was trained to its end, but its loss diverged.
    Diverged = 7,
    /// The network or the hub failed before there was a run; the same command continues a download. This is
    /// `EX_UNAVAILABLE` of `sysexits.h`.
    Network = 69,
    /// A bug in sparktune.
    Bug = 70,
    /// Nothing is wrong, but the operation is not possible on this machine. This is automake's code for a
    /// skipped test.
    Skipped = 77,
    /// The user interrupted the operation, and there is nothing to resume. This is what a shell reports for a
    /// program that Ctrl-C ended.
    Interrupted = 130,
}

impl Exit {
    /// Converts an exit code of the trainer process or of another crate. An unknown code counts as a bug.
    pub fn from_code(code: i32) -> Self {
        match code {
            0 => Self::Done,
            2 => Self::Usage,
            3 => Self::Data,
            4 => Self::Device,
            5 => Self::Stopped,
            7 => Self::Diverged,
            69 => Self::Network,
            77 => Self::Skipped,
            130 => Self::Interrupted,
            _ => Self::Bug,
        }
    }
}

impl From<ClusterError> for Failure {
    fn from(error: ClusterError) -> Self {
        let exit = match &error {
            ClusterError::Environment { .. }
            | ClusterError::NoToken { .. }
            | ClusterError::ShortToken
            | ClusterError::OtherToken { .. }
            | ClusterError::OtherCluster { .. }
            | ClusterError::Agent { .. }
            | ClusterError::NobodyLeft { .. }
            | ClusterError::Refused { .. } => Exit::Usage,
            ClusterError::File { .. } | ClusterError::NoLocks { .. } | ClusterError::Thread(_) => {
                Exit::Device
            }
            ClusterError::Interrupted => Exit::Interrupted,
            _ if error.is_of_a_rank() => Exit::Stopped,
            _ => Exit::Network,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The reason why an operation ended early.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The exit code, which shows the kind of cause.
    pub exit: Exit,
    /// What happened, and where. It may have several lines.
    pub text: String,
    /// Suggested remedies, one per element; empty if the text contains them already.
    pub hints: Vec<String>,
}

impl Failure {
    /// Creates a failure without hints.
    pub fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into(), hints: Vec::new() }
    }

    /// Creates a failure for an invalid request.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(Exit::Usage, text)
    }

    /// Creates a failure for a file that could not be read or written. `verb` is the attempted action:
    /// `read`, `write`.
    pub fn io(verb: &str, path: &Path, source: &io::Error) -> Self {
        let text = format!("cannot {verb} {}: {}", path.display(), sparktune_runlog::in_words(source));
        Self::new(exit_of_io(source), text)
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Returns whether the reader of standard output has closed the pipe. Nothing is wrong then, and no
    /// message is needed.
    pub fn is_closed_pipe(&self) -> bool {
        self.exit == Exit::Done
    }
}

/// Formats the text and the hints together, for interfaces that show a single string.
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

/// Converts an error of standard output. Errors of files use [`Failure::io`], which names the file.
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
            E::Io { reason, .. } | E::Unreadable { reason, .. } => exit_of_io(reason),
            E::Cancelled => Exit::Interrupted,
            // Downloaded files are kept, and the same command continues there or begins that file again.
            E::Interrupted { .. }
            | E::TooSlow { .. }
            | E::Unreachable { .. }
            | E::HubAway { .. }
            | E::Cut { .. }
            | E::TimedOut { .. }
            | E::RateLimited { .. }
            | E::Server { .. }
            | E::WrongHash { .. }
            | E::WrongSize { .. }
            | E::BadReply { .. } => Exit::Network,
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
            DataError::Cancelled => Exit::Interrupted,
            ref error if error.is_data_fault() => Exit::Data,
            _ => Exit::Usage,
        };
        Self::new(exit, text)
    }
}

impl From<PacketError> for Failure {
    fn from(error: PacketError) -> Self {
        let text = error.to_string();
        match error {
            PacketError::TokenFile(error) => error.into(),
            PacketError::Io { ref source, .. } => Self::new(exit_of_io(source), text),
            PacketError::Unfit { .. } => Self::usage(text),
            PacketError::File { .. } | PacketError::Parts { .. } => Self::new(Exit::Data, text),
        }
    }
}

impl From<TokenFileError> for Failure {
    fn from(error: TokenFileError) -> Self {
        let exit = match &error {
            TokenFileError::Io { source, .. } => exit_of_io(source),
            TokenFileError::BeingWritten { .. }
            | TokenFileError::InTheWay { .. }
            | TokenFileError::UnsupportedVersion { .. } => Exit::Usage,
            _ => Exit::Data,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<sparktune_ndp::Error> for Failure {
    fn from(error: sparktune_ndp::Error) -> Self {
        use sparktune_ndp::Error as E;
        let exit = match &error {
            E::DiskFull { .. } => Exit::Device,
            E::Io { source, .. } => exit_of_io(source),
            E::Cancelled => Exit::Interrupted,
            E::Payload { source: TokenFileError::Io { source, .. }, .. } => exit_of_io(source),
            E::Payload { .. } => Exit::Data,
            error if error.is_of_network() => Exit::Network,
            _ => Exit::Usage,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<sparktune_runlog::Error> for Failure {
    fn from(error: sparktune_runlog::Error) -> Self {
        let is_of_disk =
            error.is_disk_full() || matches!(error, sparktune_runlog::Error::DamagedCheckpoint { .. });
        Self::new(if is_of_disk { Exit::Device } else { Exit::Usage }, error.to_string())
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
    fn what_no_resume_continues_has_other_codes_than_a_stopped_run() {
        use sparktune_hub::Error as E;
        let host = || "example.org".to_owned();
        let away = E::HubAway { repo: "a/b".into(), missing: "config.json".into(), why: host() };
        let (repo, file) = (|| "a/b".to_owned(), || "model.safetensors".to_owned());
        for error in [
            E::Unreachable { host: host(), why: "no route".into() },
            E::TimedOut { host: host() },
            away,
            E::WrongSize { repo: repo(), file: file(), host: host(), expected: 2, actual: 1 },
            E::BadReply { place: host(), why: "not valid JSON".into() },
        ] {
            assert_eq!(Failure::from(error).exit, Exit::Network);
        }
        // No repetition of the command helps.
        let index = E::BadIndex { repo: repo(), file: "index.json", why: "not JSON".into() };
        let large = E::TooLarge { repo: repo(), file: file(), size: 2, most: 1 };
        for error in [index, large] {
            assert_eq!(Failure::from(error).exit, Exit::Usage);
        }
        assert_eq!(Failure::from(E::Cancelled).exit, Exit::Interrupted);
        assert_eq!(Failure::from(DataError::Cancelled).exit, Exit::Interrupted);
        for exit in [Exit::Stopped, Exit::Network, Exit::Interrupted] {
            assert_eq!(Exit::from_code(exit as i32), exit);
        }
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
