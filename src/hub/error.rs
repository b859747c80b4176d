//! The errors of finding and downloading a model or a data set. Each message says what happened, where, and
//! what to do.
//!
//! No text carries a token, a signed link, or anything a server wrote: servers echo headers, and links to
//! storage hold signatures. Names that came from outside are printed with `{:?}`, which escapes control and
//! bidirectional characters.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::DecimalBytes;
use sparktune_base::escape::shortened;

use crate::repo_kind::RepoKind;

/// The reasons why a model or a data set is not available.
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
    /// The text is not the name of a data set.
    #[error(
        "data set {given:?}: {why}. Write `hf:OWNER/NAME`, or where needed `hf:OWNER/NAME@REVISION/CONFIG:SPLIT`"
    )]
    BadDataSetName {
        /// The input of the user.
        given: String,
        /// The problem.
        why: &'static str,
    },
    /// The user gave a path that does not exist.
    #[error("model folder {path:?}: {why}. Check the path; an id on the hub has the form `org/name`")]
    NoFolder {
        /// The path that was checked.
        path: PathBuf,
        /// Missing, or a file instead of a folder.
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
        /// The status, 401 or 403.
        status: u16,
        /// What to do, which depends on whether a token was sent.
        advice: String,
    },
    /// There is no such repository, or it is private and no token was sent.
    #[error(
        "{repo}: no such {kind} at {host}. Check the spelling; for a private {kind}, set HF_TOKEN to a token that can read it"
    )]
    RepoMissing {
        /// A model or a data set.
        kind: RepoKind,
        /// `org/name@revision`.
        repo: String,
        /// The host of the endpoint.
        host: String,
    },
    /// The repository exists, but not the branch, tag or commit.
    #[error(
        "{repo}: the {kind} exists, but not this revision. Omit `@…` to use the newest, or give a branch, tag or commit"
    )]
    RevisionMissing {
        /// A model or a data set.
        kind: RepoKind,
        /// `org/name@revision`.
        repo: String,
    },
    /// A required file is not in the repository or folder.
    #[error("{repo}: {file} is missing. {advice}")]
    FileMissing {
        /// `org/name@revision` or the folder.
        repo: String,
        /// The file.
        file: String,
        /// What to do about this file.
        advice: &'static str,
    },
    /// The user disabled the network, and the cache is incomplete.
    #[error(
        "{repo}: offline (HF_HUB_OFFLINE) and not in the cache {cache:?}: {missing}. Unset HF_HUB_OFFLINE where the hub can be reached, or give a local folder"
    )]
    Offline {
        /// `org/name@revision`.
        repo: String,
        /// Root of the cache.
        cache: PathBuf,
        /// The missing part.
        missing: String,
    },
    /// The hub could not be reached, and the cache is incomplete.
    #[error("{repo}: {missing} is not in the cache, and the hub did not list the files: {why}")]
    HubAway {
        /// `org/name@revision`.
        repo: String,
        /// The missing part.
        missing: String,
        /// The reason why the hub could not be reached, and what to do.
        why: String,
    },
    /// It contains no weights that can be loaded without running code or losing precision.
    #[error(
        "{repo}: no weights in safetensors ({found}). Choose the original repository of this model, or convert it with transformers' `save_pretrained`"
    )]
    NoSafetensors {
        /// `org/name@revision` or the folder.
        repo: String,
        /// The other kinds of weights that were found.
        found: String,
    },
    /// `config.json` declares quantised weights.
    #[error(
        "{repo}: config.json: the weights are quantised ({method:?}) and cannot be trained. Choose the bf16 repository of the same model"
    )]
    Quantised {
        /// `org/name@revision` or the folder.
        repo: String,
        /// `quant_method`.
        method: String,
    },
    /// The index has no tensor under `mtp.`.
    #[error(
        "{repo}: model.safetensors.index.json lists no `mtp.*` tensors, so there is no MTP head to copy. Use `--mtp none`"
    )]
    NoMtp {
        /// `org/name@revision` or the folder.
        repo: String,
    },
    /// There is too little disk space, which was found before the download or during it.
    #[error(
        "{path:?}: the disk is full: {} needed, {} free. Free some space or set HF_HUB_CACHE to a larger disk; what is already downloaded is kept. The same command then continues",
        DecimalBytes(*needed), DecimalBytes(*available)
    )]
    DiskFull {
        /// The path of the cache.
        path: PathBuf,
        /// The bytes still to be written.
        needed: u64,
        /// Bytes free for this user.
        available: u64,
    },
    /// The whole file was received and does not match the hub's hash.
    #[error(
        "{repo}: {file}: wrong hash after download (expected {expected}, got {actual}). The file was removed. Run the same command again; if it happens twice, a proxy, a mirror or the disk is corrupting the data"
    )]
    WrongHash {
        /// `org/name@revision`.
        repo: String,
        /// The file.
        file: String,
        /// The expected hash in hex, from the hub.
        expected: String,
        /// The hash of the received file in hex.
        actual: String,
    },
    /// The server offers another number of bytes than the hub announced.
    #[error(
        "{repo}: {file}: wrong size: the hub lists {expected} bytes, but {host} offers {actual}. Run the same command again; if it happens twice, a proxy or a mirror is corrupting the data"
    )]
    WrongSize {
        /// `org/name@revision`.
        repo: String,
        /// The file.
        file: String,
        /// The host that sent it.
        host: String,
        /// The announced number of bytes.
        expected: u64,
        /// The offered number of bytes.
        actual: u64,
    },
    /// The server goes on sending, but so slowly that waiting for the end makes no sense.
    #[error(
        "{place}: only {} arrived in {} s. Try again later, or set HF_ENDPOINT to a faster mirror. What has been downloaded is kept",
        DecimalBytes(*bytes), after.as_secs()
    )]
    TooSlow {
        /// The repository and the file, or its list of files.
        place: String,
        /// The number of bytes that arrived.
        bytes: u64,
        /// The time in which they arrived.
        after: Duration,
    },
    /// A transfer failed more often than the limit.
    #[error(
        "{repo}: {file}: stopped at {} of {} after {attempts} attempts without progress ({last}). What has been downloaded is kept: run the same command again to continue",
        DecimalBytes(*have), DecimalBytes(*size)
    )]
    Interrupted {
        /// `org/name@revision`.
        repo: String,
        /// The file.
        file: String,
        /// The number of bytes on disk.
        have: u64,
        /// The total number of bytes.
        size: u64,
        /// The number of consecutive attempts without progress.
        attempts: u32,
        /// The error of the last attempt.
        last: Box<Error>,
    },
    /// No connection could be established.
    #[error("{host}: cannot be reached ({why}). Check the network, the proxy variables and HF_ENDPOINT")]
    Unreachable {
        /// The host.
        host: String,
        /// The system's reason.
        why: String,
    },
    /// The connection ended before the response was complete.
    #[error("{host}: the connection was closed too early")]
    Cut {
        /// The host.
        host: String,
    },
    /// The server did not answer, or stopped sending.
    #[error(
        "{host}: no answer in time. Try again, or raise HF_HUB_DOWNLOAD_TIMEOUT (seconds without receiving a byte)"
    )]
    TimedOut {
        /// The host.
        host: String,
    },
    /// The server limits requests (429).
    #[error(
        "{host}: too many requests (HTTP 429). Wait a few minutes; with HF_TOKEN set, the limits are higher"
    )]
    RateLimited {
        /// The host.
        host: String,
        /// The value of `Retry-After`, if the server sent one.
        retry_after: Option<Duration>,
    },
    /// Any other status that is not success.
    #[error(
        "{host}: the server answered HTTP {status}. Try again later; if that does not help, check HF_ENDPOINT"
    )]
    Server {
        /// The host.
        host: String,
        /// The status.
        status: u16,
    },
    /// A response violates the hub's protocol.
    #[error("{place}: {why}. If HF_ENDPOINT names a mirror, try without it")]
    BadReply {
        /// The host, or repository and file.
        place: String,
        /// The problem.
        why: String,
    },
    /// A name in the repository would leave the snapshot folder, or is not a plain file name.
    #[error(
        "{repo}: the file name {:?} is not a plain path inside the repository. Do not use this repository",
        shortened(.name)
    )]
    UnsafeName {
        /// `org/name@revision` or the folder.
        repo: String,
        /// The name in the repository.
        name: String,
    },
    /// The data set has several configs, and none of them is the default one.
    #[error(
        "{repo}: several configs, and none is the default: {}. Choose one, for example `{example}`",
        listed(configs)
    )]
    ConfigNeeded {
        /// `hf:org/name@revision`.
        repo: String,
        /// The names of the configs.
        configs: Vec<String>,
        /// The name of the data set with the first of them.
        example: String,
    },
    /// The data set has no config of this name.
    #[error("{repo}: no config {:?}. Its configs are: {}", shortened(.config), listed(configs))]
    NoConfig {
        /// `hf:org/name@revision`.
        repo: String,
        /// The requested config.
        config: String,
        /// The names of the configs.
        configs: Vec<String>,
    },
    /// The config has no split of this name.
    #[error(
        "{repo}: no split {split:?} in config {:?}. Its splits are: {}. Name one after a colon",
        shortened(.config), listed(splits)
    )]
    NoSplit {
        /// `hf:org/name@revision`.
        repo: String,
        /// The config.
        config: String,
        /// The requested split, or `train`.
        split: String,
        /// The names of the splits that have files.
        splits: Vec<String>,
    },
    /// The data set has no file that can be read.
    #[error(
        "{repo}: no data file of a known kind (JSON Lines, Parquet, CSV, TSV, text; .gz and .zst too). Choose another data set, or download it and convert it to JSON Lines"
    )]
    NoDataFiles {
        /// `hf:org/name@revision`.
        repo: String,
    },
    /// The data set consists of a program, which is never run.
    #[error(
        "{repo}: only a loading script ({:?}) and no data files. Programs from the hub are not run; try the hub's own conversion, `{converted}`",
        shortened(.script)
    )]
    ScriptOnly {
        /// `hf:org/name@revision`.
        repo: String,
        /// The name of the script.
        script: String,
        /// The name of the same data set at the revision with Parquet files.
        converted: String,
    },
    /// A split has more files than are ever downloaded.
    #[error(
        "{repo}: {files} files in one split; at most {most} are downloaded. Join them, or choose a smaller config"
    )]
    TooManyFiles {
        /// `hf:org/name@revision`.
        repo: String,
        /// The number of files.
        files: usize,
        /// The limit.
        most: usize,
    },
    /// The description of the configs cannot be read.
    #[error("{repo}: README.md: {why}. Tell the owner of the data set, or choose another revision")]
    BadCard {
        /// `hf:org/name@revision`.
        repo: String,
        /// The problem.
        why: String,
    },
    /// The user cancelled.
    #[error("download cancelled. What has been downloaded is kept: run the same command again to continue")]
    Cancelled,
    /// A small file of a model or data set is larger than such a file may be.
    #[error(
        "{repo}: {file} has a size of {}, but such a file may have at most {}. It was not downloaded; choose another repository",
        DecimalBytes(*size), DecimalBytes(*most)
    )]
    TooLarge {
        /// `org/name@revision`.
        repo: String,
        /// The file.
        file: String,
        /// The number of bytes that the hub announced.
        size: u64,
        /// The largest number of bytes that is downloaded.
        most: u64,
    },
    /// The index of the shards cannot be used.
    #[error("{repo}: {file}: {why}. Choose another revision, or download the file again")]
    BadIndex {
        /// `org/name@revision` or the folder.
        repo: String,
        /// The file.
        file: &'static str,
        /// The problem.
        why: String,
    },
    /// A file or folder of a model or data set cannot be read.
    #[error(
        "{path:?}: {reason}. Check its permissions, or replace it with the one from the original repository"
    )]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The system's reason.
        reason: io::Error,
    },
    /// A file or folder of the cache cannot be written.
    #[error("{path:?}: {reason}. Check that the cache folder is writable (HF_HOME, HF_HUB_CACHE)")]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's reason.
        reason: io::Error,
    },
}

/// Lists names from outside, at most 20 of them.
fn listed(names: &[String]) -> String {
    const MOST: usize = 20;
    let shown = names.iter().take(MOST).map(|name| format!("{:?}", shortened(name)));
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if names.len() > MOST {
        text.push_str(&format!(" and {} more", names.len() - MOST));
    }
    text
}

impl Error {
    /// Returns whether the same request may succeed a moment later.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Cut { .. }
            | Self::TimedOut { .. }
            | Self::RateLimited { .. } => true,
            // 403 of a storage host means an expired link; the hub's own 403 is `Gated`.
            Self::Server { status, .. } => *status >= 500 || matches!(status, 403 | 408),
            _ => false,
        }
    }

    /// Converts the error of writing into the cache.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |reason| Self::Io { path, reason }
    }

    /// Converts the error of reading what may be a user's own folder.
    pub(crate) fn unreadable(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |reason| Self::Unreadable { path, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strangers_name_of_any_length_leaves_a_message_that_can_be_read() {
        let (repo, long) = (|| "hf:org/name".to_owned(), || "x".repeat(1 << 16));
        let names = || vec![long(); 21];
        for error in [
            Error::ConfigNeeded { repo: repo(), configs: names(), example: repo() },
            Error::NoConfig { repo: repo(), config: "en".into(), configs: names() },
            Error::NoSplit { repo: repo(), config: long(), split: "dev".into(), splits: names() },
            Error::ScriptOnly { repo: repo(), script: long(), converted: repo() },
        ] {
            let text = error.to_string();
            assert!(text.len() < 4000 && text.contains("…\""), "{} bytes", text.len());
        }
    }
}
