//! Bytes to events: one line after the other, or, where a backlog is worth it, on two threads.
//!
//! Pure. Both ways hand the same lines in the same order to the same caller, so nothing but the time differs.

use std::ops::ControlFlow;
use std::sync::{OnceLock, mpsc};
use std::thread::Builder;

use memchr::{memchr, memchr_iter};

use crate::event::{Event, Unreadable};

/// A batch that the second thread hands over.
const PIECE: usize = 64 * 1024;

/// The size from which on a block is shared with a second thread, where there is a core for it: starting one
/// costs as much as reading about a hundred lines.
pub(crate) fn shared_from() -> usize {
    // Asked once: the answer is read from files of the kernel.
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
    if cores > 1 { 256 * 1024 } else { usize::MAX }
}

/// Parses a line; `None` when it is blank.
pub(crate) type Parsed = Option<Result<Event, Unreadable>>;

/// Hands each line of `block`, which ends with a newline, to `take` until it breaks; says whether it did.
pub(crate) fn each_line(
    block: &[u8],
    shared_from: usize,
    mut take: impl FnMut(&[u8], Parsed) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let (first, second) = block.split_at(if block.len() >= shared_from { share(block) } else { block.len() });
    if second.is_empty() {
        return lines(first).try_for_each(|line| take(line, read(line)));
    }
    let read_piece = |piece| lines(piece).map(|line| (line, read(line))).collect::<Vec<_>>();
    std::thread::scope(|threads| {
        let (done, later) = mpsc::channel();
        // Ends early when nobody listens any more.
        let work = move || pieces(second).map(read_piece).try_for_each(|piece| done.send(piece));
        let helped = Builder::new().spawn_scoped(threads, work).is_ok();
        lines(first).try_for_each(|line| take(line, read(line)))?;
        if !helped {
            // No thread is to be had (`ulimit -u`).
            return lines(second).try_for_each(|line| take(line, read(line)));
        }
        later.into_iter().flatten().try_for_each(|(line, parsed)| take(line, parsed))
    })
}

fn read(line: &[u8]) -> Parsed {
    (!line.trim_ascii().is_empty()).then(|| Event::parse(line))
}

/// The lines of a block without their newlines.
fn lines(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    memchr_iter(b'\n', block).map(move |end| &block[std::mem::replace(&mut start, end + 1)..end])
}

/// Where the second thread's share begins. This one also does what `take` does, for all lines, which is about
/// a third of the work of reading them.
fn share(block: &[u8]) -> usize {
    line_end(block, block.len() / 3)
}

/// A block in pieces of whole lines.
fn pieces(mut block: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (piece, rest) = block.split_at(line_end(block, PIECE));
        block = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The end of the line that lies across `at`.
fn line_end(block: &[u8], at: usize) -> usize {
    let newline = block.get(at..).and_then(|rest| memchr(b'\n', rest));
    newline.map_or(block.len(), |newline| at + newline + 1)
}
