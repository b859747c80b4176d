//! Everything that can go wrong between a model's name and its folder. Each text says what, where, and what
//! to do next.
//!
//! No text carries a token, a signed link, or anything a server wrote: servers echo headers, and links to
//! storage hold signatures. Names that came from outside are printed with `{:?}`, which escapes control and
//! bidirectional characters.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::DecimalBytes;

/// Why a model could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is neither an id nor a folder.
    #[error(
        "model {given:?}: {why}. Give `org/name`, `org/name@revision`, or a folder that contains config.json and model.safetensors"
    )]
    BadName {
        /// The input of the user.
        given: String,
        /// The problem.
        why: &'static str,
    },
    /// A path was given and nothing is there.
    #[error("model folder {path:?}: {why}. Check the path; an id on the hub has the form `org/name`")]
    NoFolder {
        /// The path as looked for.
        path: PathBuf,
        /// Missing, or a file.
        why: &'static str,
    },
    /// An environment variable cannot be used.
    #[error("{name}: {why}")]
    BadSetting {
        /// The variable (never its value).
        name: &'static str,
        /// The problem, and the variable to set.
        why: String,
    },
    /// 401 or 403 of a repository that asks for a licence, or is private.
    #[error("{repo}: access refused (HTTP {status}). {advice}")]
    Gated {
        /// `org/name@revision`.
        repo: String,
        /// 401 or 403.
        status: u16,
        /// Depends on whether a token was sent.
        advice: String,
    },
    /// No such repository, or it is private and no token was sent.
    #[error(
        "{repo}: no such model at {host}. Check the spelling; for a private model, set HF_TOKEN to a token that can read it"
    )]
    RepoMissing {
        /// `org/name@revision`.
        repo: String,
        /// Host of the endpoint.
        host: String,
    },
    /// The repository is there, the branch, tag or commit is not.
    #[error(
        "{repo}: the model exists, but not this revision. Omit `@…` to use the newest, or give a branch, tag or commit"
    )]
    RevisionMissing {
        /// `org/name@revision`.
        repo: String,
    },
    /// A file that is needed is not in the repository or folder.
    #[error("{repo}: {file} is missing. {advice}")]
    FileMissing {
        /// `org/name@revision` or the folder.
        repo: String,
        /// The file.
        file: String,
        /// The action for this file.
        advice: &'static str,
    },
    /// No network by request, and the cache does not have it all.
    #[error(
        "{repo}: offline (HF_HUB_OFFLINE) and not in the cache {cache:?}: {missing}. Unset HF_HUB_OFFLINE, or give a local folder"
    )]
    Offline {
        /// `org/name@revision`.
        repo: String,
        /// Root of the cache.
        cache: PathBuf,
        /// The missing part.
        missing: String,
    },
    /// The hub could not be asked, and the cache does not have it all.
    #[error("{repo}: {missing} is not in the cache, and the hub did not list the files: {why}")]
    HubAway {
        /// `org/name@revision`.
        repo: String,
        /// The missing part.
        missing: String,
        /// Why the hub could not be asked, with what to do.
        why: String,
    },
    /// It holds no weights that can be loaded without running code or losing precision.
    #[error(
        "{repo}: no weights in safetensors ({found}). Choose the original repository of this model, or convert it with transformers' `save_pretrained`"
    )]
    NoSafetensors {
        /// `org/name@revision` or the folder.
        repo: String,
        /// Which other kinds of weights are there.
        found: String,
    },
    /// `config.json` says the weights are quantised.
    #[error(
        "{repo}: config.json: the weights are quantised ({method:?}) and cannot be trained. Choose the bf16 repository of the same model"
    )]
    Quantised {
        /// `org/name@revision` or the folder.
        repo: String,
        /// `quant_method`.
        method: String,
    },
    /// No tensor under `mtp.` in the index.
    #[error(
        "{repo}: model.safetensors.index.json lists no `mtp.*` tensors, so there is no MTP head to copy. Use `--mtp none`"
    )]
    NoMtp {
        /// `org/name@revision` or the folder.
        repo: String,
    },
    /// Too little space, seen before the first byte or on the way.
    #[error(
        "{path:?}: the disk is full: {} needed, {} free. Free some space or set HF_HUB_CACHE to a larger disk; what is already downloaded is kept. The same command then continues",
        DecimalBytes(*needed), DecimalBytes(*available)
    )]
    DiskFull {
        /// Where the cache is.
        path: PathBuf,
        /// Bytes still to be written.
        needed: u64,
        /// Bytes free for this user.
        available: u64,
    },
    /// The whole file arrived and is not what the hub promised.
    #[error(
        "{repo}: {file}: wrong SHA-256 after download (expected {expected}, got {actual}). The file was removed. Run the same command again; if it happens twice, a proxy, a mirror or the disk is corrupting the data"
    )]
    WrongHash {
        /// `org/name@revision`.
        repo: String,
        /// The file.
        file: String,
        /// Hex, from the hub.
        expected: String,
        /// Hex, of what arrived.
        actual: String,
    },
    /// The server offers another number of bytes than the hub promised.
    #[error(
        "{repo}: {file}: wrong size: the hub lists {expected} bytes, but {host} offers {actual}. Run the same command again; if it happens twice, a proxy or a mirror is corrupting the data"
    )]
    WrongSize {
        /// `org/name@revision`.
        repo: String,
        /// The file.
        file: String,
        /// Host that sent it.
        host: String,
        /// Bytes promised.
        expected: u64,
        /// Bytes offered.
        actual: u64,
    },
    /// A transfer broke more often than patience allows.
    #[error(
        "{repo}: {file}: stopped at {} of {} after {attempts} attempts without progress ({last}). What has been downloaded is kept: run the same command again to continue",
        DecimalBytes(*have), DecimalBytes(*size)
    )]
    Interrupted {
        /// `org/name@revision`.
        repo: String,
        /// The file.
        file: String,
        /// Bytes on disk.
        have: u64,
        /// Bytes in all.
        size: u64,
        /// Attempts in a row that brought nothing.
        attempts: u32,
        /// The last reason.
        last: Box<Error>,
    },
    /// No connection.
    #[error(
        "{host}: cannot be reached ({why}). Check the network, the proxy variables and HF_ENDPOINT, or set HF_HUB_OFFLINE=1 to use only the cache"
    )]
    Unreachable {
        /// Host that was asked.
        host: String,
        /// The system's reason.
        why: String,
    },
    /// A connection that ended before the answer did.
    #[error("{host}: the connection was closed too early")]
    Cut {
        /// Host that was asked.
        host: String,
    },
    /// The server did not answer, or stopped sending.
    #[error(
        "{host}: no answer in time. Try again, or raise HF_HUB_DOWNLOAD_TIMEOUT (seconds without receiving a byte)"
    )]
    TimedOut {
        /// Host that was asked.
        host: String,
    },
    /// 429.
    #[error(
        "{host}: too many requests (HTTP 429). Wait a few minutes; with HF_TOKEN set, the limits are higher"
    )]
    RateLimited {
        /// Host that was asked.
        host: String,
        /// `Retry-After`, where given.
        retry_after: Option<Duration>,
    },
    /// Any other status that is not success.
    #[error(
        "{host}: the server answered HTTP {status}. Try again later; if that does not help, check HF_ENDPOINT"
    )]
    Server {
        /// Host that was asked.
        host: String,
        /// The status.
        status: u16,
    },
    /// An answer that breaks the hub's protocol.
    #[error("{place}: {why}. If HF_ENDPOINT names a mirror, try without it")]
    BadReply {
        /// Host, or repository and file.
        place: String,
        /// The problem.
        why: String,
    },
    /// A name from the repository that would leave the snapshot folder, or is not a plain file name.
    #[error(
        "{repo}: the file name {name:?} is not a plain path inside the model's folder. Do not use this repository"
    )]
    UnsafeName {
        /// `org/name@revision` or the folder.
        repo: String,
        /// The name as the repository gives it.
        name: String,
    },
    /// The user asked to stop.
    #[error("download cancelled. What has been downloaded is kept: run the same command again to continue")]
    Cancelled,
    /// The file system refused.
    #[error("{path:?}: {reason}. Check that the cache folder is writable (HF_HOME, HF_HUB_CACHE)")]
    Io {
        /// Where.
        path: PathBuf,
        /// The system's reason.
        reason: io::Error,
    },
}

impl Error {
    /// Whether the same request may succeed in a moment.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Cut { .. }
            | Self::TimedOut { .. }
            | Self::RateLimited { .. } => true,
            // 403 of a storage host is a link that ran out; the hub's own 403 is `Gated`.
            Self::Server { status, .. } => *status >= 500 || matches!(status, 403 | 408),
            _ => false,
        }
    }

    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |reason| Self::Io { path, reason }
    }
}
