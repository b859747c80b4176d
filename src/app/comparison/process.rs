//! A short process that reads one text and writes another.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// The most bytes that are kept of each output: its last ones, because the last line is the result.
const MOST_BYTES: usize = 1 << 20;
/// How long the ends of outputs are waited for after the end of the process. One that has left its group
/// may hold them open for ever.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// The time between two looks meanwhile whether the work was cancelled.
const LOOK_EVERY: Duration = Duration::from_millis(50);

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
    thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let (ended, ends) = channel();
    let outputs = [read(stdout, ended.clone()), read(stderr, ended)];
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
    // Nothing is ever sent: the channel is closed when both threads have ended. Who cancels reads no outputs.
    let since = Instant::now();
    while ends.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout)
        && since.elapsed() < LAST_WORDS
        && !is_cancelled()
    {}
    let [output, errors] = outputs.map(|text| {
        let bytes = text.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(MOST_BYTES)..]).into_owned()
    });
    Ok(Ended { status, output, errors })
}

/// Reads on a thread, whatever the length, so that the process does not wait for ever.
fn read(mut from: impl Read + Send + 'static, ended: Sender<()>) -> Arc<Mutex<Vec<u8>>> {
    let text = Arc::new(Mutex::new(Vec::new()));
    let kept = text.clone();
    thread::spawn(move || {
        let _ended = ended;
        let mut part = [0; 8192];
        while let Ok(length @ 1..) = from.read(&mut part) {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend_from_slice(&part[..length]);
            if kept.len() > 2 * MOST_BYTES {
                let before = kept.len() - MOST_BYTES;
                kept.drain(..before);
            }
        }
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_leaves_another_behind_is_not_waited_for() {
        let mut command = Command::new("sh");
        // The one that stays leaves the group and holds the outputs.
        command.args(["-c", "setsid sleep 120 & read line; echo \"$line\"; echo words >&2"]);
        let began = Instant::now();
        let ended = run(&mut command, "hello\n", Duration::from_secs(100), &|| false).unwrap();
        assert_eq!((ended.output.as_str(), ended.last_error()), ("hello\n", "words"));
        assert!(ended.status.unwrap().success() && began.elapsed() < Duration::from_secs(100));
    }

    #[test]
    fn of_an_output_beyond_the_limit_the_end_is_kept() {
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 3000000 /dev/zero; echo; echo result"]);
        let ended = run(&mut command, "", Duration::from_secs(120), &|| false).unwrap();
        assert!(ended.status.unwrap().success());
        assert_eq!((ended.output.len(), ended.output.lines().last()), (MOST_BYTES, Some("result")));
    }
}
