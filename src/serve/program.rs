//! Runs the program itself for work that a request starts: an export, a measurement, a report. A process
//! that fails or takes all memory is then not the server.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::program::Program;

use crate::problem::Problem;
use crate::tasks::{Work, cancelled};

/// The most bytes of output and of messages that are read.
const MOST_OUTPUT: u64 = 64 << 20;
const MOST_MESSAGES: u64 = 1 << 20;
/// The number of the last messages that explain a failure.
const KEPT_MESSAGES: usize = 20;
/// The time between two looks at whether a task was cancelled.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Runs the program with these arguments and `--json`, and returns the last line that it printed. Its
/// messages become the progress of the task. When the task is cancelled, the process is asked to end.
///
/// # Errors
/// The process cannot be started, fails, or was cancelled.
pub(crate) fn run<I, S>(program: &Program, arguments: I, work: &Work) -> Result<Value, Problem>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    followed(program, arguments, work)?.value(false)
}

/// Does the same for a program whose exit code is a result, such as `doctor`.
///
/// # Errors
/// The process cannot be started, was cancelled, or printed nothing.
pub(crate) fn run_and_accept_any_end<I, S>(
    program: &Program,
    arguments: I,
    work: &Work,
) -> Result<Value, Problem>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    followed(program, arguments, work)?.value(true)
}

/// Runs the program with these arguments and `--json` for a request that waits for it.
///
/// # Errors
/// The process cannot be started, or fails.
pub(crate) fn run_briefly<I, S>(program: &Program, arguments: I) -> Result<Value, Problem>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    end_of(program, arguments, |_| {}, || false)?.value(false)
}

/// How a process ended.
struct Ended {
    status: ExitStatus,
    output: Vec<u8>,
    messages: Vec<String>,
}

impl Ended {
    /// Returns the last line of the output as JSON; after a failure only if that is a result too.
    fn value(self, accepts_failure: bool) -> Result<Value, Problem> {
        let text = String::from_utf8_lossy(&self.output);
        let value = serde_json::from_str(text.lines().last().unwrap_or_default());
        match value {
            Ok(value) if self.status.success() || accepts_failure => Ok(value),
            Err(error) if self.status.success() => {
                Err(Failure::new(Exit::Bug, format!("the program printed no JSON: {error}")).into())
            }
            _ => Err(failure(&self.messages, self.status.code()).into()),
        }
    }
}

/// Runs the program for a task, which shows its messages and may cancel it.
fn followed<I, S>(program: &Program, arguments: I, work: &Work) -> Result<Ended, Problem>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let ended = end_of(program, arguments, |line| work.says(line), || work.is_cancelled())?;
    if work.is_cancelled() { Err(cancelled()) } else { Ok(ended) }
}

fn end_of<I, S>(
    program: &Program,
    arguments: I,
    says: impl Fn(String) + Send,
    is_cancelled: impl Fn() -> bool,
) -> Result<Ended, Problem>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let path = program.path()?;
    let mut child = Command::new(path)
        .args(arguments)
        .args(["--json", "--non-interactive"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::io("start", path, &error))?;
    let output = child.stdout.take().expect("it is piped");
    let messages = child.stderr.take().expect("it is piped");
    let pid = Pid::from_child(&child);
    let (read, said) = thread::scope(|scope| {
        let read = scope.spawn(move || {
            let mut text = Vec::new();
            output.take(MOST_OUTPUT).read_to_end(&mut text).map(|_| text)
        });
        let said = scope.spawn(move || {
            let mut kept: Vec<String> = Vec::new();
            for line in BufReader::new(messages.take(MOST_MESSAGES)).lines() {
                let Ok(line) = line else { break };
                says(line.clone());
                if kept.len() == KEPT_MESSAGES {
                    kept.remove(0);
                }
                kept.push(line);
            }
            kept
        });
        let mut is_asked = false;
        while !(read.is_finished() && said.is_finished()) {
            if !is_asked && is_cancelled() {
                is_asked = true;
                let _ = kill_process(pid, Signal::TERM);
            }
            thread::sleep(BETWEEN_LOOKS);
        }
        (read.join(), said.join())
    });
    let status = child.wait().map_err(|error| Failure::io("wait for", path, &error))?;
    let output = read.ok().and_then(Result::ok).unwrap_or_default();
    Ok(Ended { status, output, messages: said.unwrap_or_default() })
}

/// Returns the failure that the last messages of a process tell.
fn failure(said: &[String], code: Option<i32>) -> Failure {
    let exit = code.map_or(Exit::Bug, Exit::from_code);
    let from =
        said.iter().rposition(|line| line.starts_with("error: ")).unwrap_or(said.len().saturating_sub(1));
    let (hints, lines): (Vec<&String>, Vec<&String>) =
        said[from..].iter().partition(|line| line.starts_with("Hint: "));
    let text = lines.into_iter().map(String::as_str).collect::<Vec<_>>().join("\n");
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let text = if text.is_empty() { "the process ended without a message" } else { text };
    let mut failure = Failure::new(exit, text);
    failure.hints = hints.into_iter().map(|hint| hint.trim_start_matches("Hint: ").to_owned()).collect();
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_a_process_is_told_with_its_hints() {
        let said = ["loading", "error: no checkpoint", "in step 3", "Hint: train first"].map(str::to_owned);
        let failure = failure(&said, Some(4));
        assert_eq!((failure.text.as_str(), failure.exit), ("no checkpoint\nin step 3", Exit::Device));
        assert_eq!(failure.hints, ["train first"]);
        assert_eq!(super::failure(&[], None).exit, Exit::Bug);
    }
}
