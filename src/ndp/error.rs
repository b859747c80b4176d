//! The reasons why a token file does not arrive. Each message says what happened, where, and what to do.
//!
//! No text carries a token. What a peer wrote is not repeated, except names of files, which are checked.

use std::io;
use std::path::{Path, PathBuf};

use sparktune_base::program_name;
use sparktune_base::units::bytes;
use sparktune_data::token_file::TokenFileError;

use crate::frame::FrameFault;
use crate::medium::MediumFault;
use crate::routing::Unroutable;

/// Any failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not an address.
    #[error(
        "{given}: {why}. Copy the address that `{program} data serve` prints, ndp://HOST:PORT/NAME#KEY",
        program = program_name()
    )]
    BadAddress {
        /// The text, escaped.
        given: String,
        /// The problem.
        why: &'static str,
    },
    /// The token is missing or cannot be used.
    #[error("{what}. {fix}")]
    BadToken {
        /// The problem, without the token.
        what: String,
        /// What to do.
        fix: String,
    },
    /// A file of this machine cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The system refuses to listen.
    #[error("cannot listen on {at}: {source}. Choose another address with --host, or another --port")]
    Listen {
        /// Host and port.
        at: String,
        /// The reason.
        source: io::Error,
    },
    /// A file cannot be served.
    #[error("{what}. {fix}")]
    NotServed {
        /// The problem and the file.
        what: String,
        /// What to do.
        fix: String,
    },
    /// There is no connection.
    #[error(
        "{place}: cannot connect: {source}. Is `{program} data serve` running there, and does a firewall let this port through?",
        program = program_name()
    )]
    Unreachable {
        /// The address.
        place: String,
        /// The reason.
        source: io::Error,
    },
    /// The server has another key.
    #[error(
        "{place}: the server that answers there is not the one of this address: its key differs. Copy the address again from \
         `{program} data serve`; if it prints the same one, somebody is intercepting the connection",
        program = program_name()
    )]
    WrongKey {
        /// The address.
        place: String,
    },
    /// The peer does not speak TLS, or breaks its rules.
    #[error("{place}: the encrypted channel failed: {why}")]
    Tls {
        /// The address.
        place: String,
        /// The reason, in rustls's words.
        why: String,
    },
    /// The server does not accept the token.
    #[error(
        "{place}: the server refuses the token. Copy it again from the file that `{program} data serve` names",
        program = program_name()
    )]
    Refused {
        /// The address.
        place: String,
    },
    /// The server has no such file.
    #[error("{place}: the server has no file of this name. It serves {}", known.join(", "))]
    NoSuchFile {
        /// The address.
        place: String,
        /// The names that it serves.
        known: Vec<String>,
    },
    /// The server has other content than the address names.
    #[error(
        "{place}: the server has another file under this name now. Serve the earlier file again, or name the new one \
         without the hash at the end of the address"
    )]
    OtherContent {
        /// The address.
        place: String,
    },
    /// The file at the server is damaged.
    #[error("{place}: example {example} is damaged on the server's disk. Run `{program} verify` there", program = program_name())]
    DamagedThere {
        /// The address.
        place: String,
        /// The number of the example.
        example: u64,
    },
    /// The server has enough connections, or ends.
    #[error("{place}: the server {why}")]
    Away {
        /// The address.
        place: String,
        /// The reason.
        why: &'static str,
    },
    /// The connection is silent, slow or late.
    #[error("{place}: {fault}")]
    Medium {
        /// The address.
        place: String,
        /// The reason.
        fault: MediumFault,
    },
    /// The connection ended.
    #[error("{place}: the connection was cut")]
    Cut {
        /// The address.
        place: String,
    },
    /// A frame is damaged, out of order or too large.
    #[error("{place}: {fault}")]
    Frame {
        /// The address.
        place: String,
        /// The reason.
        fault: FrameFault,
    },
    /// Nobody takes a packet of these codes.
    #[error("{place}: {fault}")]
    Routing {
        /// The address.
        place: String,
        /// The reason.
        fault: Unroutable,
    },
    /// The peer says something that does not belong here.
    #[error("{place}: {what}. Are both programs of the same version?")]
    Protocol {
        /// The address.
        place: String,
        /// What was said.
        what: &'static str,
    },
    /// The received packets do not make the announced file.
    #[error("{place}: {}", of_payload(source))]
    Payload {
        /// The address.
        place: String,
        /// The reason.
        source: TokenFileError,
    },
    /// The disk is too small.
    #[error("{}: the file needs {}, and {} are free. Free some, or choose another folder with --runs-dir", folder.display(), bytes(*needed), bytes(*free))]
    DiskFull {
        /// The folder.
        folder: PathBuf,
        /// Bytes that are missing of the file.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Several attempts failed without a new packet.
    #[error(
        "{place}: received {} of {}, then {attempts} attempts failed. The last one: {last}. The same command continues there",
        bytes(*have),
        bytes(*size)
    )]
    Interrupted {
        /// The address.
        place: String,
        /// Verified bytes on this machine.
        have: u64,
        /// Bytes of the file; 0 if that is unknown.
        size: u64,
        /// Consecutive attempts without a new packet.
        attempts: u32,
        /// The failure of the last attempt.
        last: Box<Error>,
    },
    /// The user cancelled.
    #[error("cancelled. What was received is kept, and the same command continues there")]
    Cancelled,
}

impl Error {
    /// Returns whether nobody listens at the other side.
    pub fn is_refused_connection(&self) -> bool {
        matches!(self, Self::Unreachable { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// Returns whether another attempt may succeed.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Tls { .. }
                | Self::Away { .. }
                | Self::Medium { .. }
                | Self::Cut { .. }
                | Self::Frame { .. }
        )
    }

    /// Returns whether the network or the other machine failed, and not the request.
    pub fn is_of_network(&self) -> bool {
        self.is_passing() || matches!(self, Self::Interrupted { .. } | Self::DamagedThere { .. })
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }
}

/// Says what is wrong with received packets. The advice of a damaged file on this machine is not theirs.
fn of_payload(source: &TokenFileError) -> String {
    match source {
        TokenFileError::Damaged { defect, .. } => {
            let advice = "Run `verify` on the file there, and serve it again";
            format!("what arrives is not the file that was announced: {defect}. {advice}")
        }
        other => other.to_string(),
    }
}
