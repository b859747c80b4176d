//! The hub's information about a repository: its commit, the names and sizes of its files, and the hashes of
//! their contents.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cache::RepoCache;
use crate::error::Error;
use crate::file_hash::Algorithm;
use crate::http::{Http, Subject, body_fault};
use crate::model_name::{is_commit, is_etag};
use crate::progress::{Event, Watch};
use crate::settings::Patience;

/// One revision of a repository as listed by the hub. The names are untrusted: they may be compared, but not
/// used as paths.
#[derive(Debug)]
pub(crate) struct Listing {
    pub commit: String,
    pub files: BTreeMap<String, Listed>,
}

/// What the list says about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub size: Option<u64>,
    /// The hash of a file in large-file storage, which saves a request for it.
    sha256: Option<String>,
}

impl Listed {
    /// Returns the identity of the file's contents, if the list says it.
    pub(crate) fn facts(&self) -> Option<Facts> {
        let facts = Facts { etag: self.sha256.clone()?, size: self.size? };
        (facts.algorithm() == Algorithm::Sha256).then_some(facts)
    }
}

/// The identity of a file's contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub etag: String,
    pub size: u64,
}

impl Facts {
    /// Returns the algorithm of the hash in the etag: SHA-256 of files in large-file storage, git's hash of
    /// all others. Other servers may have etags that are no hash.
    pub(crate) fn algorithm(&self) -> Algorithm {
        match self.etag.len() {
            _ if !self.etag.bytes().all(|b| b.is_ascii_hexdigit()) => Algorithm::None,
            64 => Algorithm::Sha256,
            40 => Algorithm::Git,
            _ => Algorithm::None,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct RepoInfo {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Serialize, Deserialize)]
struct Sibling {
    rfilename: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lfs: Option<Lfs>,
}

#[derive(Serialize, Deserialize)]
struct Lfs {
    #[serde(default)]
    sha256: Option<String>,
}

impl Listing {
    /// Requests the list. The server has `time` to send all of it.
    pub(crate) fn ask(
        http: &Http,
        subject: &Subject<'_>,
        time: Duration,
        watch: &Watch<'_>,
    ) -> Result<Self, Error> {
        const LARGEST: u64 = 64 << 20;
        let since = Instant::now();
        let mut answer = http.list(subject)?;
        let place = || format!("{}: list of files from {}", subject.shown, http.host());
        let bad = |why: String| Error::BadReply { place: place(), why };
        let mut text = Vec::new();
        let mut body = answer.body.as_reader();
        let mut buffer = vec![0; 64 << 10];
        loop {
            watch.check()?;
            match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => text.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(body_fault(&answer.host, error)),
            }
            if text.len() as u64 > LARGEST {
                return Err(bad(format!("longer than {LARGEST} bytes")));
            }
            if since.elapsed() > time {
                return Err(Error::TooSlow { place: place(), bytes: text.len() as u64, after: time });
            }
        }
        Self::read(&text).map_err(bad)
    }

    fn read(text: &[u8]) -> Result<Self, String> {
        // The parser's message quotes untrusted text; the position suffices.
        let info: RepoInfo = serde_json::from_slice(text).map_err(|e| {
            format!("not valid JSON for a repository (line {}, column {})", e.line(), e.column())
        })?;
        if !is_commit(&info.sha) {
            return Err("`sha` is not a commit".into());
        }
        let listed = |file: Sibling| {
            let sha256 = file.lfs.and_then(|lfs| lfs.sha256).map(|hash| hash.to_ascii_lowercase());
            (file.rfilename, Listed { size: file.size, sha256 })
        };
        Ok(Self { commit: info.sha, files: info.siblings.into_iter().map(listed).collect() })
    }

    /// Returns the saved list of a commit. A damaged one counts as missing.
    pub(crate) fn kept(cache: &RepoCache, commit: &str) -> Option<Self> {
        Self::read(&cache.kept_listing(commit)?).ok().filter(|listing| listing.commit == commit)
    }

    /// Saves the list next to the files of the commit, in the form in which the hub sends it.
    pub(crate) fn keep(&self, cache: &RepoCache) -> Result<(), Error> {
        let sibling = |(name, listed): (&String, &Listed)| Sibling {
            rfilename: name.clone(),
            size: listed.size,
            lfs: listed.sha256.clone().map(|sha256| Lfs { sha256: Some(sha256) }),
        };
        let siblings = self.files.iter().map(sibling).collect();
        let info = RepoInfo { sha: self.commit.clone(), siblings };
        cache.keep_listing(&self.commit, &serde_json::to_vec(&info).expect("names and numbers are JSON"))
    }
}

/// Requests etag and size of one file. `listed` is the size in the list, for servers that leave it out here.
pub(crate) fn facts(http: &Http, subject: &Subject<'_>, listed: Option<u64>) -> Result<Facts, Error> {
    let answer = http.describe(subject)?;
    let place = || format!("{}: {} at {}", subject.shown, subject.file.unwrap_or_default(), answer.host);
    let etag = answer
        .header("x-linked-etag")
        .or_else(|| answer.header("etag").filter(|_| !answer.is_redirect()))
        .map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_ascii_lowercase())
        .filter(|etag| is_etag(etag))
        .ok_or_else(|| Error::BadReply { place: place(), why: "no usable etag for this file".into() })?;
    let number = |name| answer.header(name).and_then(|text| text.trim().parse().ok());
    let size = number("x-linked-size")
        .or(listed)
        .or_else(|| number("content-length").filter(|_| !answer.is_redirect()))
        .ok_or_else(|| Error::BadReply {
            place: place(),
            why: "the server does not give the size of this file".into(),
        })?;
    Ok(Facts { etag, size })
}

/// Repeats a request while its error may be temporary.
pub(crate) fn patiently<T>(
    patience: &Patience,
    host: &str,
    watch: &Watch<'_>,
    mut question: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    for attempt in 1.. {
        watch.check()?;
        match question() {
            Err(error) if error.is_passing() && attempt < patience.attempts => {
                let wait = pause_after(&error, patience, attempt);
                let why = error.to_string();
                // The text begins with the host too.
                let why = why.strip_prefix(&format!("{host}: ")).unwrap_or(&why);
                watch.on(Event::Retry { name: host, wait, why });
                watch.pause(wait)?;
            }
            outcome => return outcome,
        }
    }
    unreachable!("the last attempt returns")
}

/// Returns the pause before the next attempt. The server's `Retry-After` is used within limits.
pub(crate) fn pause_after(error: &Error, patience: &Patience, attempt: u32) -> std::time::Duration {
    const LONGEST: std::time::Duration = std::time::Duration::from_secs(120);
    match error {
        Error::RateLimited { retry_after: Some(wait), .. } => (*wait).min(LONGEST),
        _ => patience.wait(attempt),
    }
}
