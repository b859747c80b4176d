//! Records which values a template reads while it renders, and at which position in the text.
//!
//! A [`Trace`] belongs to one rendering. The writer advances its position, the callbacks of
//! [`instrument`](crate::instrument) record events at that position, and finally the events become one span
//! of text per message.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Object, Value};

#[derive(Debug, Default)]
pub(crate) struct Trace {
    position: AtomicUsize,
    notes: Mutex<Vec<(usize, Note)>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Note {
    /// A loop reached a message.
    Message { in_loop: u32, message: usize },
    /// A loop ended.
    LoopEnd { in_loop: u32 },
    /// A `{% generation %}` tag, or its end.
    Generation { begins: bool },
}

impl Trace {
    pub(crate) fn note(&self, note: Note) {
        let at = self.position.load(Ordering::Relaxed);
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push((at, note));
    }

    /// Returns the span of each message in the loop that rendered most, and the spans marked as generated.
    pub(crate) fn spans(&self) -> Spans {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open: Vec<(u32, usize, usize)> = Vec::new();
        let mut loops: Vec<(u32, Segments)> = Vec::new();
        let mut generated = Vec::new();
        let mut generation_from = None;
        for &(at, note) in notes.iter() {
            let ended = match note {
                Note::Message { in_loop, .. } | Note::LoopEnd { in_loop } => in_loop,
                Note::Generation { begins: true } => {
                    generation_from = Some(at);
                    continue;
                }
                Note::Generation { begins: false } => {
                    generated.extend(generation_from.take().map(|from| from..at));
                    continue;
                }
            };
            if let Some(i) = open.iter().position(|o| o.0 == ended) {
                let (_, message, from) = open.swap_remove(i);
                let of_loop = match loops.iter_mut().find(|l| l.0 == ended) {
                    Some(l) => l,
                    None => {
                        loops.push((ended, Vec::new()));
                        loops.last_mut().expect("just pushed")
                    }
                };
                if from < at {
                    of_loop.1.push((message, from..at));
                }
            }
            if let Note::Message { in_loop, message } = note {
                open.push((in_loop, message, at));
            }
        }
        // Of loops that rendered the same amount, the outer one comes first in the source.
        loops.sort_by_key(|l| l.0);
        let rendered = |l: &(u32, Segments)| l.1.iter().map(|s| s.1.len()).sum::<usize>();
        let messages = loops.into_iter().rev().max_by_key(rendered).map(|l| l.1).unwrap_or_default();
        Spans { messages, generated }
    }
}

/// Messages by index, with the bytes of their rendering, in rendering order.
type Segments = Vec<(usize, Range<usize>)>;

#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// The messages, without those that rendered to nothing.
    pub messages: Segments,
    /// The spans that the template itself marks as the assistant's.
    pub generated: Vec<Range<usize>>,
}

/// The rendered text while it grows.
pub(crate) struct Sheet {
    pub text: Vec<u8>,
    /// The number of bytes after which nothing more is written.
    pub most_bytes: usize,
    /// Whether the template went on.
    pub is_full: bool,
    pub trace: Arc<Trace>,
}

impl io::Write for &mut Sheet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len().saturating_add(bytes.len()) > self.most_bytes {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        self.trace.position.store(self.text.len(), Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A message for the template: a mapping that knows its index.
#[derive(Debug)]
pub(crate) struct TracedMessage {
    pub index: usize,
    pub fields: Vec<(&'static str, Value)>,
    pub trace: Arc<Trace>,
}

impl Object for TracedMessage {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.fields.iter().find(|f| f.0 == key).map(|f| f.1.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.fields.iter().map(|f| Value::from(f.0)).collect())
    }
}

/// Gives the trace to callbacks without a message.
#[derive(Debug)]
pub(crate) struct TraceValue(pub Arc<Trace>);

impl Object for TraceValue {}
