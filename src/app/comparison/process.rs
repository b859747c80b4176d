//! A short process that reads one text and writes another.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// The most bytes that are kept of each output.
const MOST_BYTES: u64 = 1 << 20;

/// How a process ended.
#[derive(Debug)]
pub(in crate::comparison) struct Ended {
    /// The status; `None` if it was ended because it took too long, or because the work was cancelled.
    pub(super) status: Option<ExitStatus>,
    /// What it wrote to its standard output.
    pub(super) output: String,
    /// What it wrote to its standard error.
    pub(super) errors: String,
}

impl Ended {
    /// Returns the last line of what it wrote to its standard error.
    pub(super) fn last_error(&self) -> &str {
        self.errors.trim().lines().next_back().unwrap_or_default()
    }
}

/// Starts a process with this input and waits for its end. It is ended, with all that it has started, after
/// `patience` or when `is_cancelled`.
///
/// # Errors
/// It cannot be started.
pub(super) fn run(
    command: &mut Command,
    input: &str,
    patience: Duration,
    is_cancelled: &dyn Fn() -> bool,
) -> io::Result<Ended> {
    // A group of its own, so that Ctrl-C on a terminal does not reach it before this program has decided.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let group = Pid::from_child(&child);
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = pipes else { unreachable!("all three are piped") };
    let input = input.to_owned();
    // A process that does not read its input may still do its work.
    let writing = thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let outputs = [thread::spawn(move || read(stdout)), thread::spawn(move || read(stderr))];
    let deadline = Instant::now() + patience;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < deadline && !is_cancelled() => {
                thread::sleep(Duration::from_millis(5))
            }
            _ => break None,
        }
    };
    // What it has left behind would hold the pipes open.
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
    let _ = writing.join();
    let [output, errors] = outputs.map(|thread| thread.join().unwrap_or_default());
    Ok(Ended { status, output, errors })
}

fn read(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    // What is beyond the limit is read and thrown away, so that the process does not wait for ever.
    let _ = (&mut from).take(MOST_BYTES).read_to_end(&mut bytes);
    let _ = io::copy(&mut from, &mut io::sink());
    String::from_utf8_lossy(&bytes).into_owned()
}
