//! Downloads one file from the hub into the cache: locks it, resumes it, verifies it, and moves it to its
//! final place.
//!
//! The order of operations, which is safe against a power failure between any two of them: bytes are appended
//! to `<etag>.incomplete` (the next run hashes what is there and continues); size and hash are checked; the
//! file is synced; it is renamed to `<etag>`; the snapshot gets its link. A blob under its final name is
//! therefore complete and correct.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::DecimalBytes;

use crate::cache::{RepoCache, free_space};
use crate::catalog::{Facts, pause_after};
use crate::error::Error;
use crate::file_hash::{Algorithm, FileHash};
use crate::http::{Answer, Http, Subject, body_fault};
use crate::progress::{Event, Watch};
use crate::settings::{FEWEST, Patience};

/// The source and the destination of a file, and the listener.
#[derive(Clone, Copy)]
pub(crate) struct Transfer<'a> {
    pub http: &'a Http,
    pub patience: &'a Patience,
    pub cache: &'a RepoCache,
    /// The subject with the file's name; its revision is the commit.
    pub subject: Subject<'a>,
    pub facts: &'a Facts,
    pub watch: &'a Watch<'a>,
}

impl Transfer<'_> {
    /// Downloads the file and returns its path in the snapshot.
    pub(crate) fn run(&self) -> Result<PathBuf, Error> {
        let Facts { etag, size } = self.facts;
        let blob = self.cache.blob(etag);
        let folder = blob.parent().expect("a blob has a folder");
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let _lock = self.cache.lock(etag, self.name(), self.watch)?;
        if !is_whole(&blob, *size) {
            self.fill(&blob)?;
        }
        let pointer = self.cache.link(self.subject.revision, self.name(), etag)?;
        self.watch.on(Event::Done { name: self.name(), size: *size });
        Ok(pointer)
    }

    fn name(&self) -> &str {
        self.subject.file.expect("a transfer is of a file")
    }

    /// Downloads and verifies the file, and moves it to `blob`.
    fn fill(&self, blob: &Path) -> Result<(), Error> {
        let mut part = Part::open(self.cache.incomplete(&self.facts.etag), self.facts, self.watch)?;
        let continued = part.have > 0;
        self.bring(&mut part)?;
        let mut verdict = self.check(&part);
        // Other programs may leave part files with holes. If the existing part was wrong, the download is
        // tried once more from the start.
        if verdict.is_err() && continued {
            part.clear()?;
            self.bring(&mut part)?;
            verdict = self.check(&part);
        }
        if verdict.is_err() {
            std::fs::remove_file(&part.path).map_err(Error::io(&part.path))?;
            return verdict;
        }
        part.file.sync_all().map_err(|e| self.write_fault(&part, e))?;
        // With unified memory the page cache takes memory from the GPU. If the advice is refused, nothing
        // changes.
        let _ = rustix::fs::fadvise(&part.file, 0, None, rustix::fs::Advice::DontNeed);
        std::fs::rename(&part.path, blob).map_err(Error::io(blob))
    }

    fn check(&self, part: &Part) -> Result<(), Error> {
        let expected = &self.facts.etag;
        match part.hash.finish() {
            None => Ok(()),
            Some(actual) if actual.eq_ignore_ascii_case(expected) => Ok(()),
            Some(actual) => {
                let (repo, file) = (self.subject.shown.into(), self.name().into());
                Err(Error::WrongHash { repo, file, expected: expected.clone(), actual })
            }
        }
    }

    /// Repeats attempts until every byte is on disk. The count restarts whenever enough bytes have come since
    /// it did: a server that cuts the connection again and again may be as slow as one that drips.
    fn bring(&self, part: &mut Part) -> Result<(), Error> {
        let mut furthest = part.have;
        let mut fruitless = 0;
        loop {
            self.watch.check()?;
            self.watch.on(Event::File { name: self.name(), have: part.have, size: part.size });
            let error = match self.attempt(part) {
                Ok(()) => return Ok(()),
                Err(error) if error.is_passing() => error,
                Err(error) => return Err(error),
            };
            // The end of a file is less than that, and may come in pieces too.
            let enough = FEWEST.min((part.size - furthest).div_ceil(8));
            if part.have >= furthest + enough {
                (fruitless, furthest) = (1, part.have);
            } else {
                fruitless += 1;
            }
            if fruitless >= self.patience.attempts {
                return Err(Error::Interrupted {
                    repo: self.subject.shown.into(),
                    file: self.name().into(),
                    have: part.have,
                    size: part.size,
                    attempts: fruitless,
                    last: Box::new(error),
                });
            }
            let wait = pause_after(&error, self.patience, fruitless);
            self.watch.on(Event::Retry { name: self.name(), wait, why: &error.to_string() });
            self.watch.pause(wait)?;
        }
    }

    /// Makes one request, from the end of the part file.
    fn attempt(&self, part: &mut Part) -> Result<(), Error> {
        if part.have == part.size {
            return Ok(());
        }
        let answer = self.http.read(&self.subject, part.have)?;
        match answer.status {
            206 => match content_range(&answer) {
                Some((start, total))
                    if start == part.have && total.is_none_or(|total| total == part.size) => {}
                Some((_, Some(total))) if total != part.size => return Err(self.wrong_size(&answer, total)),
                _ => return Err(self.bad_reply(&answer, "not the requested part of the file")),
            },
            // The server does not support ranges, so it sends the whole file.
            200 => {
                if let Some(offered) = answer.body.content_length().filter(|length| *length != part.size) {
                    return Err(self.wrong_size(&answer, offered));
                }
                if part.have > 0 {
                    part.clear()?;
                    self.watch.on(Event::File { name: self.name(), have: 0, size: part.size });
                }
            }
            // 416: the part on disk is longer than the file on the server.
            _ => {
                part.clear()?;
                return Err(Error::Cut { host: answer.host });
            }
        }
        self.pour(answer, part)
    }

    fn pour(&self, answer: Answer, part: &mut Part) -> Result<(), Error> {
        let host = answer.host;
        let mut body = answer.body.into_reader();
        let mut buffer = vec![0; 256 << 10];
        let (mut since, mut had) = (Instant::now(), part.have);
        while part.have < part.size {
            self.watch.check()?;
            let room = buffer.len().min(usize::try_from(part.size - part.have).unwrap_or(usize::MAX));
            let count = match body.read(&mut buffer[..room]) {
                Ok(0) => return Err(Error::Cut { host }),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(body_fault(&host, error)),
            };
            let bytes = &buffer[..count];
            part.file.write_all(bytes).map_err(|e| self.write_fault(part, e))?;
            part.hash.update(bytes);
            part.have += count as u64;
            self.watch.on(Event::Bytes { name: self.name(), count: count as u64 });
            if since.elapsed() >= self.patience.period {
                let bytes = part.have - had;
                if bytes < FEWEST {
                    let place = format!("{}: {} from {host}", self.subject.shown, self.name());
                    return Err(Error::TooSlow { place, bytes, after: since.elapsed() });
                }
                (since, had) = (Instant::now(), part.have);
            }
        }
        Ok(())
    }

    fn write_fault(&self, part: &Part, error: std::io::Error) -> Error {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Error::DiskFull {
                path: part.path.clone(),
                needed: part.size - part.have,
                available: free_space(&part.path).unwrap_or(0),
            },
            _ => Error::Io { path: part.path.clone(), reason: error },
        }
    }

    fn wrong_size(&self, answer: &Answer, actual: u64) -> Error {
        Error::WrongSize {
            repo: self.subject.shown.into(),
            file: self.name().into(),
            host: answer.host.clone(),
            expected: self.facts.size,
            actual,
        }
    }

    fn bad_reply(&self, answer: &Answer, why: &str) -> Error {
        let size = DecimalBytes(self.facts.size);
        let place = format!("{}: {} ({size}) at {}", self.subject.shown, self.name(), answer.host);
        Error::BadReply { place, why: format!("{why} (HTTP {})", answer.status) }
    }
}

/// Returns whether a blob under its final name has the right size. It was verified when it was written, but
/// not every program syncs it before, so after a power failure its size may be wrong.
pub(crate) fn is_whole(path: &Path, size: u64) -> bool {
    path.metadata().is_ok_and(|there| there.is_file() && there.len() == size)
}

/// The part file, and the hash of what is in it.
struct Part {
    path: PathBuf,
    file: File,
    hash: FileHash,
    algorithm: Algorithm,
    have: u64,
    size: u64,
}

impl Part {
    /// Opens the part of an earlier attempt. A part that is longer than the file is discarded.
    fn open(path: PathBuf, facts: &Facts, watch: &Watch<'_>) -> Result<Self, Error> {
        let (size, algorithm) = (facts.size, facts.algorithm());
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(Error::io(&path))?;
        let hash = FileHash::new(algorithm, size);
        let mut part = Self { path, file, hash, algorithm, have: 0, size };
        let there = part.file.metadata().map_err(Error::io(&part.path))?.len();
        if there > size {
            part.clear()?;
        } else if there > 0 {
            let mut old = File::open(&part.path).map_err(Error::io(&part.path))?;
            let mut buffer = vec![0; 1 << 20];
            loop {
                watch.check()?;
                let count = old.read(&mut buffer).map_err(Error::io(&part.path))?;
                if count == 0 {
                    break;
                }
                part.hash.update(&buffer[..count]);
                part.have += count as u64;
            }
        }
        Ok(part)
    }

    fn clear(&mut self) -> Result<(), Error> {
        self.file.set_len(0).map_err(Error::io(&self.path))?;
        self.hash = FileHash::new(self.algorithm, self.size);
        self.have = 0;
        Ok(())
    }
}

/// `bytes <start>-<end>/<total or *>`.
fn content_range(answer: &Answer) -> Option<(u64, Option<u64>)> {
    let (range, total) = answer.header("content-range")?.trim().strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.parse().ok()?;
    Some((start, total.parse().ok()))
}
