//! The limits of a worker, and the sentences when one of them is passed.
//!
//! Enters: the ledger, and what the system says about the worker. Leaves: a failure that names the file of
//! the model which was worked with. Time is processor time of the thread at work, so that a busy machine ends
//! nothing.

use std::collections::HashMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::Signal;
use sparktune_base::escape::escape;
use sparktune_base::units::bytes;
use sparktune_data::ModelFile;

use super::ledger::{Entry, Ledger};
use crate::failure::{Exit, Failure};

/// The processor time in seconds that a piece of work may take, and how much more for each byte. The slowest
/// way to tokenise takes 2 MB per second on a slow core.
const SECONDS: f64 = 5.0;
const SECONDS_PER_BYTE: f64 = 1.0 / (1 << 20) as f64;
/// The memory that the worker may take: nearly four times what a tokenizer of 248,000 tokens, as large as the
/// largest of the catalog, takes at most (284 MB, measured on x86-64), more for the caches of words of each
/// core, and for each example what is kept of it until the end. A line of 64 MiB fits.
const MEMORY: u64 = 1_040 << 20;
const MEMORY_PER_CORE: u64 = 24 << 20;
const MEMORY_PER_EXAMPLE: u64 = 64;
/// The clock ticks per second in which Linux gives processor times to programs on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the memory in bytes that the worker may take after this many examples.
pub(super) fn memory_limit(examples: u64) -> u64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    MEMORY + MEMORY_PER_CORE * cores + MEMORY_PER_EXAMPLE * examples
}

/// Follows a worker: the data worker during one request, the inference worker always.
pub(crate) struct Watch {
    process: u32,
    /// Whether the process holds a model besides. Then only the memory counts that it takes during a piece of
    /// work; otherwise all of it.
    holds_model: bool,
    /// The number of examples so far.
    pub examples: u64,
    /// When each thread was seen at its present work.
    seen: HashMap<u32, Seen>,
}

/// The processor times in seconds at which the present work of a thread was first and last seen. They are
/// kept because the system no longer says them when the worker has ended.
struct Seen {
    /// The number of the work.
    number: u64,
    first: f64,
    last: f64,
    /// The memory in bytes that the process had when the work was first seen.
    memory: u64,
}

/// What the worker did that ends it.
#[derive(Debug, Clone, PartialEq)]
enum Passed {
    Time(f64),
    Memory(u64),
    /// It ended by itself, with these words.
    Ended(String),
}

impl Watch {
    pub(super) fn new(process: u32) -> Self {
        Self { process, holds_model: false, examples: 0, seen: HashMap::new() }
    }

    /// Follows a worker that holds a model.
    pub(crate) fn beside_model(process: u32) -> Self {
        Self { holds_model: true, ..Self::new(process) }
    }

    /// Returns a failure if the worker has passed a limit. The caller then ends it.
    pub(crate) fn look(&mut self, ledger: &Ledger) -> Option<Failure> {
        let entries = ledger.entries();
        if self.holds_model && entries.is_empty() {
            return None;
        }
        let memory = memory(self.process)?;
        for entry in &entries {
            let Some(time) = processor_time(self.process, entry.thread) else { continue };
            let new = || Seen { number: entry.number, first: time, last: time, memory };
            let seen = self.seen.entry(entry.thread).or_insert_with(new);
            if seen.number != entry.number {
                *seen = new();
            }
            seen.last = time;
            let limit = SECONDS + SECONDS_PER_BYTE * entry.bytes as f64;
            if seen.last - seen.first > limit {
                return Some(sentence(Some(entry), &Passed::Time(limit)));
            }
        }
        let limit = memory_limit(self.examples);
        let of_work = if self.holds_model { self.added(&entries, memory) } else { memory };
        (of_work > limit).then(|| sentence(self.suspect(&entries), &Passed::Memory(limit)))
    }

    /// Returns the memory in bytes that was taken since the oldest piece of work was first seen.
    fn added(&self, entries: &[Entry], memory: u64) -> u64 {
        let seen = entries.iter().filter_map(|entry| self.seen.get(&entry.thread));
        seen.map(|seen| memory.saturating_sub(seen.memory)).max().unwrap_or(0)
    }

    /// Returns the failure of a worker that crashed while it worked with a file of the model. `None` if it
    /// ended in another way.
    pub(crate) fn crashed(&self, ledger: &Ledger, status: ExitStatus) -> Option<Failure> {
        let signal = status.signal().and_then(Signal::from_named_raw);
        let is_crash = matches!(signal, Some(Signal::ABORT | Signal::SEGV | Signal::BUS));
        (is_crash && !ledger.entries().is_empty()).then(|| self.ended(ledger, status))
    }

    /// Returns the failure of a worker that ended before it answered.
    pub(super) fn ended(&self, ledger: &Ledger, status: ExitStatus) -> Failure {
        let entries = ledger.entries();
        let words = ledger.last_words();
        let passed = if words.contains("memory allocation of") {
            Passed::Memory(memory_limit(self.examples))
        } else if status.signal() == Some(Signal::KILL.as_raw()) {
            Passed::Ended("the system ended it, as it does when memory runs out".to_owned())
        } else if words.contains("overflowed its stack") {
            Passed::Ended("it nests too deeply".to_owned())
        } else {
            // Panics say their place first and their message on the next line.
            let message = words.lines().find(|line| !line.trim().is_empty() && !line.contains("panicked at"));
            let how = status.signal().map(|signal| format!("signal {signal}"));
            Passed::Ended(message.map(str::to_owned).or(how).unwrap_or_else(|| status.to_string()))
        };
        sentence(self.suspect(&entries), &passed)
    }

    /// Returns the failure of a process that watches itself, whose work with a file of a model has panicked
    /// with these words.
    pub(super) fn panicked(&self, ledger: &Ledger, words: &str) -> Failure {
        sentence(self.suspect(&ledger.entries()), &Passed::Ended(words.to_owned()))
    }

    /// Returns the work that is most likely the cause: that which failed, or else that which has taken the
    /// most processor time, and of those that have taken the same the largest.
    fn suspect<'e>(&self, entries: &'e [Entry]) -> Option<&'e Entry> {
        let taken = |entry: &Entry| {
            let seen = self.seen.get(&entry.thread).filter(|seen| seen.number == entry.number);
            seen.map_or(0.0, |seen| seen.last - seen.first)
        };
        let failed = entries.iter().find(|entry| entry.failed);
        failed.or_else(|| {
            entries.iter().max_by(|a, b| taken(a).total_cmp(&taken(b)).then(a.bytes.cmp(&b.bytes)))
        })
    }
}

/// Returns the processor time in seconds of a thread.
fn processor_time(process: u32, thread: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).ok()?;
    // The name of the thread is in brackets and may contain anything.
    let mut fields = text.rsplit(')').next()?.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS_PER_SECOND)
}

/// Returns the memory in bytes that a process has for itself: token files, which are mapped, do not count.
fn memory(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// The number of bytes of a line above which the line is divided rather than the model replaced.
const LONG: u64 = 8 << 20;

/// Describes what a file of a model did.
fn sentence(entry: Option<&Entry>, passed: &Passed) -> Failure {
    let Some(entry) = entry else {
        let text = match passed {
            Passed::Memory(limit) => format!("reading the data took more than {} of memory", bytes(*limit)),
            Passed::Time(_) => "reading the data came to no end".to_owned(),
            Passed::Ended(how) => format!("the process that reads the data ended early: {}", escape(how)),
        };
        let (exit, hint) = match passed {
            Passed::Memory(_) => {
                (Exit::Data, "Divide the longest lines into several, and please report this")
            }
            _ => (Exit::Bug, "Please report this, with the data if you can share it"),
        };
        return Failure::new(exit, text).hint(hint);
    };
    let file = escape(&entry.path.display().to_string()).into_owned();
    let what = match entry.kind {
        ModelFile::Tokenizer => "the tokenizer",
        ModelFile::Template => "the chat template",
    };
    let line = if entry.line.is_empty() { String::new() } else { format!(" for {}", escape(&entry.line)) };
    let did = match passed {
        Passed::Time(limit) => format!("takes more than {limit:.0} s of processor time{line}"),
        Passed::Memory(limit) => format!("takes more than {} of memory{line}", bytes(*limit)),
        Passed::Ended(how) => format!("fails{line}: {}", escape(how)),
    };
    let remedy = match entry.kind {
        // A model is no cause where a line has very many tokens.
        _ if matches!(passed, Passed::Memory(_)) && entry.bytes > LONG => "Divide the line into several",
        ModelFile::Tokenizer => "Download the model again, or choose another one",
        ModelFile::Template => "Choose another template with --chat-template, or another model",
    };
    Failure::usage(format!("{file}: {what} cannot be used: it {did}")).hint(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: ModelFile, line: &str) -> Entry {
        let path = match kind {
            ModelFile::Tokenizer => "/m/tokenizer.json",
            ModelFile::Template => "/m/chat_template.jinja",
        };
        Entry { number: 1, thread: 1, kind, failed: false, bytes: 10, path: path.into(), line: line.into() }
    }

    #[test]
    fn what_happened_is_a_sentence_with_the_file_and_the_line() {
        let template = entry(ModelFile::Template, "train.jsonl:812");
        let slow = sentence(Some(&template), &Passed::Time(5.0)).to_string();
        assert_eq!(
            slow,
            "/m/chat_template.jinja: the chat template cannot be used: it takes more than 5 s of processor time for train.jsonl:812. Choose another template with --chat-template, or another model"
        );
        let tokenizer = entry(ModelFile::Tokenizer, "");
        let failure = sentence(Some(&tokenizer), &Passed::Ended("index out of bounds\u{1b}[2J".into()));
        assert_eq!(failure.exit, Exit::Usage);
        let text = failure.to_string();
        assert!(
            text.starts_with("/m/tokenizer.json: the tokenizer cannot be used: it fails: index"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'));
        assert_eq!(sentence(None, &Passed::Ended("signal 11".into())).exit, Exit::Bug);
    }

    #[test]
    fn the_work_that_failed_is_the_suspect_and_else_the_one_with_the_most_time_or_bytes() {
        let seen = |number, first, last| Seen { number, first, last, memory: 0 };
        let mut watch = Watch::new(std::process::id());
        let small = entry(ModelFile::Template, "");
        let large = Entry { bytes: 1000, thread: 2, ..entry(ModelFile::Tokenizer, "") };
        let failed = Entry { failed: true, thread: 3, ..entry(ModelFile::Template, "a:1") };
        assert_eq!(watch.suspect(&[]), None);
        for both in [[small.clone(), large.clone()], [large.clone(), small.clone()]] {
            assert_eq!(watch.suspect(&both), Some(&large));
        }
        assert_eq!(watch.suspect(&[small.clone(), failed.clone(), large.clone()]), Some(&failed));
        // The times are those that were seen last: an ended worker has none any more.
        watch.seen.insert(small.thread, seen(small.number, 1.0, 3.5));
        watch.seen.insert(large.thread, seen(large.number, 2.0, 4.0));
        assert_eq!(watch.suspect(&[small.clone(), large.clone()]), Some(&small));
        // Those of earlier work of the thread do not count.
        let next = Entry { number: small.number + 1, ..small };
        assert_eq!(watch.suspect(&[next, large.clone()]), Some(&large));
    }

    #[test]
    fn beside_a_model_only_what_the_work_adds_counts() {
        let mut watch = Watch::beside_model(std::process::id());
        let work = entry(ModelFile::Template, "");
        let now = Seen { number: work.number, first: 0.0, last: 0.0, memory: 5 << 30 };
        watch.seen.insert(work.thread, now);
        let entries = [work];
        assert_eq!(watch.added(&entries, 7 << 30), 2 << 30);
        assert_eq!(watch.added(&entries, 4 << 30), 0, "memory that was given back");
        assert_eq!(watch.added(&[], 7 << 30), 0);
    }

    #[test]
    fn this_process_has_memory_and_its_threads_take_processor_time() {
        let process = std::process::id();
        assert!(memory(process).unwrap() > 0);
        assert!(processor_time(process, process).unwrap() >= 0.0);
        assert_eq!(processor_time(process, u32::MAX), None);
    }
}
