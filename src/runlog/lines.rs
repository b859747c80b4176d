//! Bytes to events: one line after the other, or, where a backlog is worth it, on two threads.
//!
//! Pure. Both ways hand the same lines in the same order to the same caller, so nothing but the time differs.

use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::thread::Builder;

use memchr::memchr_iter;

use crate::event::{Event, Unreadable};

/// The size from which on a block is shared with a second thread, where there is a core for it: starting one costs as
/// much as reading about a hundred lines.
pub(crate) fn shared_from() -> usize {
    // Asked once: the answer is read from files of the kernel.
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
    if cores > 1 { 256 * 1024 } else { usize::MAX }
}

/// What a line says; nothing when it is blank.
pub(crate) type Said = Option<Result<Event, Unreadable>>;

/// Hands each line of `block`, which ends with a newline, to `take` until it breaks; says whether it did.
pub(crate) fn each_line(
    block: &[u8],
    shared_from: usize,
    mut take: impl FnMut(&[u8], Said) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let middle = if block.len() >= shared_from { middle(block) } else { block.len() };
    let (first, second) = block.split_at(middle);
    if second.is_empty() {
        return lines(first).try_for_each(|line| take(line, read(line)));
    }
    std::thread::scope(|threads| {
        let read_second = || lines(second).map(|line| (line, read(line))).collect::<Vec<_>>();
        let later = Builder::new().spawn_scoped(threads, read_second);
        lines(first).try_for_each(|line| take(line, read(line)))?;
        // Where no thread is to be had (`ulimit -u`), this one does it all.
        let later = later.map(|thread| thread.join().expect("reading a line does not panic"));
        let mut later = later.unwrap_or_else(|_| read_second()).into_iter();
        later.try_for_each(|(line, said)| take(line, said))
    })
}

fn read(line: &[u8]) -> Said {
    (!line.trim_ascii().is_empty()).then(|| Event::parse(line))
}

/// The lines of a block without their newlines.
fn lines(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    memchr_iter(b'\n', block).map(move |end| &block[std::mem::replace(&mut start, end + 1)..end])
}

/// Where the line ends that lies across the middle.
fn middle(block: &[u8]) -> usize {
    let half = block.len() / 2;
    memchr::memchr(b'\n', &block[half..]).map_or(block.len(), |newline| half + newline + 1)
}
