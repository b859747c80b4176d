//! Finds an event in a file by its number, in as many reads as the length of the file has binary digits.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use memchr::memchr;
use serde::Deserialize;

/// The number of bytes that are read to find a line. Longer lines are rare, and only make the search end
/// early.
const WINDOW: u64 = 64 * 1024;

#[derive(Deserialize)]
struct Numbered {
    seq: u64,
}

/// Returns the start of a line with which, or shortly before which, the event `seq` begins. All lines
/// before it belong to earlier events.
pub(super) fn line_before(file: &File, bytes: u64, seq: u64) -> io::Result<u64> {
    let (mut start, mut end) = (0, bytes);
    let mut window = vec![0; WINDOW as usize];
    while end - start > WINDOW {
        let middle = start + (end - start) / 2;
        match line_at(file, &mut window, middle)? {
            Some((line, found)) if found < seq && line < end => start = line,
            _ => end = middle,
        }
    }
    Ok(start)
}

/// Returns the start and the number of the first event that begins in the window after `from`.
fn line_at(file: &File, window: &mut [u8], from: u64) -> io::Result<Option<(u64, u64)>> {
    let read = file.read_at(window, from)?;
    let mut at = 0;
    while let Some(newline) = memchr(b'\n', &window[at..read]) {
        let line = at + newline + 1;
        let Some(length) = memchr(b'\n', &window[line..read]) else { return Ok(None) };
        if let Ok(Numbered { seq }) = serde_json::from_slice(&window[line..line + length]) {
            return Ok(Some((from + line as u64, seq)));
        }
        // A damaged line has no number.
        at = line;
    }
    Ok(None)
}
