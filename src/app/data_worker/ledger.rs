//! What each thread of a worker works with: of the data worker, and of the inference worker.
//!
//! The ledger is a file in memory, which the worker has as its standard error: each thread has a page in it
//! and writes there which file of the model it begins to work with. The parent can therefore still read it
//! when the worker hangs or is dead. Behind the pages is what the worker says, also just before it dies.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::panic::{set_hook, take_hook};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, memfd_create};
use sparktune_data::{ModelFile, Observer, Work, observe};

/// The largest number of threads with a page. No machine for which this program is made has as many cores.
const THREADS: u64 = 1024;
const PAGE_BYTES: usize = 1024;
/// The largest number of bytes kept of each of the two paths on a page.
const PATH_BYTES: usize = 480;
/// A page: the number of the work, the thread, the kind of file and whether the work failed, the number of
/// bytes, the number of the line or 0, and then the two paths, each behind its length in two bytes.
const NUMBER: usize = 0;
const THREAD: usize = 8;
const KIND: usize = 16;
const FAILED: usize = 17;
const BYTES: usize = 24;
const LINE: usize = 32;
const MODEL_FILE: usize = 40;
const DATA_FILE: usize = MODEL_FILE + 2 + PATH_BYTES;
const END: usize = DATA_FILE + 2 + PATH_BYTES;
/// The largest number of bytes that are read of the worker's last words.
const LAST_WORDS: usize = 4096;

/// The work of a thread as its page says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Another number for each piece of work of a thread.
    pub number: u64,
    /// The id of the thread.
    pub thread: u32,
    pub kind: ModelFile,
    /// Whether this work has just panicked.
    pub failed: bool,
    /// The number of bytes that are worked on.
    pub bytes: u64,
    /// The file.
    pub path: PathBuf,
    /// The line of the data, as `FILE:LINE`; empty if it is none.
    pub line: String,
}

/// The parent's view of the ledger.
pub(crate) struct Ledger(File);

impl Ledger {
    /// Creates an empty ledger.
    ///
    /// # Errors
    /// The system has no memory.
    pub(crate) fn create() -> io::Result<Self> {
        let mut file = File::from(memfd_create("ledger", MemfdFlags::CLOEXEC)?);
        // Pages are read as a whole. The worker writes its words behind them, where the file is positioned.
        file.set_len(THREADS * PAGE_BYTES as u64)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self(file))
    }

    /// Returns the file for the worker.
    ///
    /// # Errors
    /// The process has too many open files.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.0.try_clone()
    }

    /// Returns the work of all threads that work with a file of the model.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let mut found = Vec::new();
        let mut page = [0; PAGE_BYTES];
        for slot in 0..THREADS {
            // Pages are taken in order, so the first empty one ends them.
            let is_there = self.0.read_exact_at(&mut page, slot * PAGE_BYTES as u64).is_ok();
            if !is_there || number(&page, NUMBER) == 0 {
                break;
            }
            found.extend(entry(&page));
        }
        found
    }

    /// Returns the last of what the worker said.
    pub(crate) fn last_words(&self) -> String {
        let begin = THREADS * PAGE_BYTES as u64;
        let end = self.0.metadata().map_or(begin, |meta| meta.len());
        let mut words = vec![0; LAST_WORDS];
        let read = self.0.read_at(&mut words, begin.max(end.saturating_sub(LAST_WORDS as u64))).unwrap_or(0);
        words.truncate(read);
        String::from_utf8_lossy(&words).trim().to_owned()
    }
}

fn number(page: &[u8], at: usize) -> u64 {
    page[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

/// Reads a page. Returns `None` if its thread does something else.
fn entry(page: &[u8; PAGE_BYTES]) -> Option<Entry> {
    let kind = match page[KIND] {
        1 => ModelFile::Tokenizer,
        2 => ModelFile::Template,
        _ => return None,
    };
    let text = |at: usize| {
        let length = usize::from(u16::from_le_bytes([page[at], page[at + 1]])).min(PATH_BYTES);
        String::from_utf8_lossy(&page[at + 2..at + 2 + length]).into_owned()
    };
    let line = number(page, LINE);
    Some(Entry {
        number: number(page, NUMBER),
        thread: number(page, THREAD) as u32,
        kind,
        failed: page[FAILED] == 1,
        bytes: number(page, BYTES),
        path: text(MODEL_FILE).into(),
        line: if line == 0 { String::new() } else { format!("{}:{line}", text(DATA_FILE)) },
    })
}

/// The worker's own side of the ledger, its standard error.
pub(super) struct Pages;

thread_local! {
    /// The page of this thread, which it fills before it is written.
    static PAGE: std::cell::RefCell<Option<Page>> = const { std::cell::RefCell::new(None) };
}

/// The ledger of a process that watches itself; a worker has its parent's as its standard error.
static OWN: OnceLock<File> = OnceLock::new();
static PAGES: AtomicU64 = AtomicU64::new(0);
static IS_FAILING: AtomicBool = AtomicBool::new(false);

struct Page {
    slot: u64,
    bytes: [u8; PAGE_BYTES],
}

impl Page {
    fn new() -> Self {
        let mut bytes = [0; PAGE_BYTES];
        // The link is `PID/task/TID`.
        let link = std::fs::read_link("/proc/thread-self").unwrap_or_default();
        let thread = link.file_name().and_then(|id| id.to_str()?.parse::<u64>().ok()).unwrap_or(0);
        bytes[THREAD..][..8].copy_from_slice(&thread.to_le_bytes());
        Self { slot: PAGES.fetch_add(1, Ordering::Relaxed), bytes }
    }

    /// Sets a number.
    fn put(&mut self, at: usize, number: u64) {
        self.bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }

    /// Sets a path. Returns whether it is another one.
    fn set(&mut self, at: usize, path: &[u8]) -> bool {
        // The end of a path tells more than its beginning.
        let kept = &path[path.len().saturating_sub(PATH_BYTES)..];
        let length = (kept.len() as u16).to_le_bytes();
        let page = &mut self.bytes[at..at + 2 + kept.len()];
        if page[..2] == length && page[2..] == *kept {
            return false;
        }
        page[..2].copy_from_slice(&length);
        page[2..].copy_from_slice(kept);
        true
    }

    /// Writes the first `length` bytes.
    fn write(&mut self, length: usize) {
        self.put(NUMBER, number(&self.bytes, NUMBER) + 1);
        if self.slot < THREADS {
            let at = self.slot * PAGE_BYTES as u64;
            // The parent names no file then, and everything else goes on.
            let _ = match OWN.get() {
                Some(file) => rustix::io::pwrite(file, &self.bytes[..length], at),
                None => rustix::io::pwrite(std::io::stderr(), &self.bytes[..length], at),
            };
        }
    }
}

impl Observer for Pages {
    fn note(&self, work: Option<Work<'_>>) {
        PAGE.with_borrow_mut(|page| {
            let page = page.get_or_insert_with(Page::new);
            let Some(work) = work else {
                page.bytes[KIND] = 0;
                return page.write(MODEL_FILE);
            };
            page.bytes[KIND] = match work.kind {
                ModelFile::Tokenizer => 1,
                ModelFile::Template => 2,
            };
            page.put(BYTES, work.bytes as u64);
            let (file, line) = work.line.unwrap_or_default();
            page.put(LINE, line);
            let is_other = page.set(MODEL_FILE, work.path.as_os_str().as_encoded_bytes())
                | page.set(DATA_FILE, file.as_bytes());
            page.write(if is_other { END } else { MODEL_FILE });
        });
    }
}

/// Notes from now on in the ledger, the standard error of this process, which files of a model its threads
/// work with. A panic of such work ends the process at once, so that its parent can name the file; any other
/// goes where it went before.
pub fn keep_ledger() {
    observe(Box::new(Pages));
    let before = take_hook();
    set_hook(Box::new(move |panic| {
        if !is_at_work() {
            before(panic);
        } else if mark_failed() {
            eprintln!("{panic}");
            std::process::abort();
        }
    }));
}

/// Notes from now on in this file, a ledger, which files of a model the threads of this process work with.
pub(super) fn keep_ledger_in(file: File) {
    // Only one ledger can be kept: a second one would be of the same process.
    drop(OWN.set(file));
    observe(Box::new(Pages));
}

/// Returns whether the calling thread works with a file of a model.
pub(super) fn is_at_work() -> bool {
    let is_at_work = PAGE.try_with(|page| {
        page.try_borrow().is_ok_and(|page| page.as_ref().is_some_and(|page| page.bytes[KIND] != 0))
    });
    is_at_work.unwrap_or(false)
}

/// Marks the page of the calling thread, which has panicked. Returns false for all but the first thread of a
/// process.
pub(super) fn mark_failed() -> bool {
    let is_first = !IS_FAILING.swap(true, Ordering::SeqCst);
    if is_first {
        let _ = PAGE.try_with(|page| {
            if let Ok(mut page) = page.try_borrow_mut()
                && let Some(page) = page.as_mut()
            {
                page.bytes[FAILED] = 1;
                page.write(MODEL_FILE);
            }
        });
    }
    is_first
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_page_says_what_its_thread_works_with_and_nothing_between_two_works() {
        let mut page = Page::new();
        let long = "/folder".repeat(100) + "/tokenizer.json";
        page.bytes[KIND] = 1;
        page.put(BYTES, 12);
        page.put(LINE, 812);
        assert!(page.set(MODEL_FILE, long.as_bytes()) && page.set(DATA_FILE, b"train.jsonl"));
        assert!(!page.set(DATA_FILE, b"train.jsonl") && page.set(DATA_FILE, b"train.json"));
        let entry = entry(&page.bytes).unwrap();
        assert_eq!((entry.kind, entry.bytes, entry.failed), (ModelFile::Tokenizer, 12, false));
        assert_eq!(entry.line, "train.json:812");
        assert!(Path::new(&entry.path).ends_with("tokenizer.json"));
        page.bytes[KIND] = 0;
        assert_eq!(super::entry(&page.bytes), None);
    }

    #[test]
    fn last_words_are_behind_the_pages_and_are_read_without_moving_the_end() {
        use std::io::Write;

        let ledger = Ledger::create().unwrap();
        let mut worker = ledger.file().unwrap();
        worker.write_all(b"memory allocation ").unwrap();
        assert_eq!(ledger.last_words(), "memory allocation");
        worker.write_all(b"of 10 bytes failed\n").unwrap();
        assert_eq!(ledger.last_words(), "memory allocation of 10 bytes failed");
        assert_eq!(ledger.entries(), []);
    }
}
