//! Runs the program itself for work that a request starts: an export, a measurement, a report. A process
//! that fails or takes all memory is then not the server. It ends with the server, however that ends.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;
use std::{env, process, thread};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, getppid, kill_process, set_parent_process_death_signal, test_kill_process,
};
use serde_json::Value;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::program::Program;

use crate::problem::Problem;
use crate::tasks::{Work, cancelled};

/// The most bytes of output that can be a result, and the longest message that is not cut into several.
const MOST_OUTPUT: u64 = 64 << 20;
const LONGEST_MESSAGE: u64 = 64 << 10;
/// The number of the last messages that explain a failure.
const KEPT_MESSAGES: usize = 20;
/// The time between two looks at whether a task was cancelled.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// The variable by which a process that the server starts knows the server.
const SERVER: &str = "SPARKTUNE_SERVER_PROCESS";

/// Ends this process with the server that started it, even if that is killed: nobody would know of what it
/// makes. It is asked to end as by `kill`. A process that no server has started goes on as it is.
pub fn end_with_server() {
    let named = env::var(SERVER).ok().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
    let Some(server) = named else { return };
    if getppid() != Some(server) {
        // It is a process of such a process, unless the server has ended in this instant.
        if test_kill_process(server) == Err(Errno::SRCH) {
            process::exit(Exit::Interrupted as i32);
        }
        return;
    }
    let is_set = set_parent_process_death_signal(Some(Signal::TERM)).is_ok();
    if is_set && getppid() != Some(server) {
        process::exit(Exit::Interrupted as i32);
    }
}

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
        if self.output.len() as u64 > MOST_OUTPUT && (self.status.success() || accepts_failure) {
            let text =
                format!("the program printed more than {} MiB, which cannot be a result", MOST_OUTPUT >> 20);
            return Err(Failure::new(Exit::Bug, text).hint("Run the same command in a terminal").into());
        }
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

/// Runs the program for a task, which shows its messages and may cancel it. A process that has done its work
/// before it heard of that is not cancelled.
fn followed<I, S>(program: &Program, arguments: I, work: &Work) -> Result<Ended, Problem>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    if work.is_cancelled() {
        return Err(cancelled());
    }
    // What a failure says is the error of the task.
    let says = |line: String| {
        if !["error: ", "Hint: "].iter().any(|start| line.starts_with(start)) {
            work.says(line);
        }
    };
    let ended = end_of(program, arguments, says, || work.is_cancelled())?;
    if work.is_cancelled() && !ended.status.success() { Err(cancelled()) } else { Ok(ended) }
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
        .args(with_style(arguments))
        .env(SERVER, process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::io("start", path, &error))?;
    let mut output = child.stdout.take().expect("it is piped");
    let messages = child.stderr.take().expect("it is piped");
    let pid = Pid::from_child(&child);
    let (read, said) = thread::scope(|scope| {
        let read = scope.spawn(move || {
            let mut text = Vec::new();
            output.by_ref().take(MOST_OUTPUT + 1).read_to_end(&mut text)?;
            // All output is read: a process that cannot write would end with another failure than its own.
            io::copy(&mut output, &mut io::sink())?;
            Ok::<_, io::Error>(text)
        });
        let said = scope.spawn(move || {
            let (mut messages, mut kept) = (BufReader::new(messages), Vec::<String>::new());
            loop {
                let mut line = Vec::new();
                match messages.by_ref().take(LONGEST_MESSAGE).read_until(b'\n', &mut line) {
                    Ok(0) | Err(_) => return kept,
                    Ok(_) => {}
                }
                // The failure comes last, whatever came before it.
                let line = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
                says(line.clone());
                if kept.len() == KEPT_MESSAGES {
                    kept.remove(0);
                }
                kept.push(line);
            }
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

/// Adds the flags for a program to the arguments, before the names that follow `--`.
fn with_style<I, S>(arguments: I) -> Vec<OsString>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut arguments: Vec<OsString> = arguments.into_iter().map(|one| one.as_ref().to_owned()).collect();
    let end = arguments.iter().position(|one| one == "--").unwrap_or(arguments.len());
    arguments.splice(end..end, ["--json".into(), "--non-interactive".into()]);
    arguments
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
    use crate::tasks::{TaskState, Tasks};

    #[test]
    fn flags_stand_before_the_names_that_could_be_taken_for_flags() {
        assert_eq!(with_style(["list", "m"]), ["list", "m", "--json", "--non-interactive"]);
        let expected = ["remove", "m", "--json", "--non-interactive", "--", "--help"];
        assert_eq!(with_style(["remove", "m", "--", "--help"]), expected);
    }

    /// Runs a script in place of the program, for a task that is asked to end when the script says something.
    fn of_cancelled_task(script: &str) -> TaskState {
        let tasks = Tasks::new(1);
        let (shell, script) = (Program::at("/bin/sh".into()), script.to_owned());
        let task = tasks.start("edit", move |work| run(&shell, ["-c", &script], work)).unwrap();
        let now = || tasks.watch(&task.id).unwrap().borrow().clone();
        while now().progress.is_none() {
            thread::sleep(BETWEEN_LOOKS);
        }
        tasks.cancel(&task.id).unwrap();
        while now().state == TaskState::Running {
            thread::sleep(BETWEEN_LOOKS);
        }
        now().state
    }

    #[test]
    fn a_process_that_has_done_its_work_is_not_cancelled() {
        let goes_on = "trap : TERM; echo begun >&2; sleep 0.2; sleep 0.1; echo '{}'";
        assert_eq!(of_cancelled_task(goes_on), TaskState::Done);
        assert_eq!(of_cancelled_task("echo begun >&2; exec sleep 60"), TaskState::Cancelled);
    }

    #[test]
    fn the_failure_of_a_process_is_heard_after_messages_without_end_and_what_is_no_text() {
        let run = |script: &str| run_briefly(&Program::at("/bin/sh".into()), ["-c", script]).unwrap_err();
        let warned = "yes warning | head -n 200000 >&2; printf '\\377\\n' >&2";
        let failed = run(&format!("{warned}; echo 'error: no room' >&2; echo 'Hint: make some' >&2; exit 4"));
        assert_eq!((failed.detail.as_str(), failed.advice.as_deref()), ("no room", Some("make some")));
        let long = run("head -c 70000000 /dev/zero; echo; echo '{}'");
        assert!(long.detail.contains("printed more than 64 MiB"), "{long:?}");
    }

    #[test]
    fn the_last_error_of_a_process_is_told_with_its_hints() {
        let said = ["loading", "error: no checkpoint", "in step 3", "Hint: train first"].map(str::to_owned);
        let failure = failure(&said, Some(4));
        assert_eq!((failure.text.as_str(), failure.exit), ("no checkpoint\nin step 3", Exit::Device));
        assert_eq!(failure.hints, ["train first"]);
        assert_eq!(super::failure(&[], None).exit, Exit::Bug);
    }
}
