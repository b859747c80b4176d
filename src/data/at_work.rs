//! Says which file of a model each thread works with.
//!
//! A chat template or a tokenizer comes from a stranger: it may hang, take all memory or overflow the stack,
//! and none of these can be caught from within. Whoever watches the process therefore has to know at any time
//! which file a thread works with, and for which line of the data. Without an observer, nothing is kept.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::OnceLock;

/// A kind of file that comes with a model and determines what is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelFile {
    /// `tokenizer.json`.
    Tokenizer,
    /// The chat template.
    Template,
}

/// What a thread works with.
#[derive(Debug, Clone, Copy)]
pub struct Work<'a> {
    /// The kind of the file.
    pub kind: ModelFile,
    /// The file.
    pub path: &'a Path,
    /// The number of bytes that are worked on.
    pub bytes: usize,
    /// The file and the line of the data, if it is one.
    pub line: Option<(&'a str, u64)>,
}

/// Is told by each thread what it works with from now on; `None` for anything else.
pub trait Observer: Send + Sync {
    /// Notes the work of the calling thread.
    fn note(&self, work: Option<Work<'_>>);
}

static OBSERVER: OnceLock<Box<dyn Observer>> = OnceLock::new();

thread_local! {
    /// The file of the data that this thread reads lines of, and the line that it works on.
    static FILE: RefCell<String> = const { RefCell::new(String::new()) };
    static LINE: Cell<Option<u64>> = const { Cell::new(None) };
    /// The number of pieces of work that contain the present one.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Sets the observer of this process. Later ones are ignored.
pub fn observe(observer: Box<dyn Observer>) {
    let _ = OBSERVER.set(observer);
}

/// Begins the lines of a file of the data.
pub(crate) fn lines_of(file: &str) {
    if OBSERVER.get().is_some() {
        FILE.with_borrow_mut(|name| {
            if name != file {
                file.clone_into(name);
            }
        });
    }
}

/// Work on lines, until this is dropped.
pub(crate) struct Lines;

/// Begins the work on lines.
pub(crate) fn on_lines() -> Lines {
    Lines
}

impl Lines {
    /// Begins the work on a line. Until a file of the model is used for it, the thread counts as working with
    /// the one that it used last: each note is a system call.
    pub(crate) fn begin(&self, line: u64) {
        LINE.set(Some(line));
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        LINE.set(None);
        if let Some(observer) = OBSERVER.get() {
            observer.note(None);
        }
    }
}

/// Work with a file, until this is dropped.
pub(crate) struct With;

/// Begins the work with a file. What is done within counts as the same work.
pub(crate) fn with(kind: ModelFile, path: &Path, bytes: usize) -> With {
    if DEPTH.replace(DEPTH.get() + 1) == 0
        && let Some(observer) = OBSERVER.get()
    {
        let line = LINE.get();
        FILE.with_borrow(|file| {
            observer.note(Some(Work { kind, path, bytes, line: line.map(|line| (file.as_str(), line)) }));
        });
    }
    With
}

impl Drop for With {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        // Within a line, other work with one of the files follows at once.
        if DEPTH.get() == 0
            && LINE.get().is_none()
            && let Some(observer) = OBSERVER.get()
        {
            observer.note(None);
        }
    }
}
