//! Starts the process of a measurement, follows it, and ends it when the user wants that.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::job::{BUG, Job, Reply, USAGE};
use crate::error::BenchError;
use crate::worker::shortened;

/// How often it is asked whether the user wants to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long a process that says nothing more may take to end.
const ENDING: Duration = Duration::from_secs(10);

/// Has a process of `program` do a job, which is written into `folder`. `progress` is told the steps.
///
/// # Errors
/// The process cannot be started, fails or ends early, or the user wants to stop.
pub(crate) fn run(
    program: &Path,
    folder: &Path,
    job: &Job,
    progress: &mut dyn FnMut(u64),
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Reply, BenchError> {
    let path = folder.join("job.json");
    let text = serde_json::to_string(job).expect("plain fields serialise");
    std::fs::write(&path, text).map_err(BenchError::io("write", &path))?;
    let temporary = std::env::temp_dir();
    let mut log = tempfile::tempfile().map_err(BenchError::io("create a file in", &temporary))?;
    let errors = log.try_clone().map_err(BenchError::io("create a file in", &temporary))?;
    let mut command = Command::new(program);
    command.args(["bench", "pipeline", "--job"]).arg(&path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
    let mut child = command.spawn().map_err(BenchError::io("start", program))?;
    let output = BufReader::new(child.stdout.take().expect("is piped"));
    let (sender, replies) = channel();
    let reader = thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let ended = loop {
        match replies.recv_timeout(LOOK_EVERY) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Reply::Step(step)) => progress(step),
                Ok(Reply::Failed { message, exit_code }) => {
                    break Err(BenchError::Measuring { what: message, last_lines: String::new(), exit_code });
                }
                Ok(reply) => break Ok(reply),
                Err(_) => {
                    break Err(failed(
                        format!(
                            "the process of a measurement gave an answer that is not in the protocol: {}",
                            shortened(&line)
                        ),
                        &mut log,
                    ));
                }
            },
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let what = "the process of a measurement ended without an answer".to_owned();
                let mut error = failed(what, &mut log);
                // A file of the model passed a limit, which the process has said before it ended.
                let asked = Instant::now();
                let code = loop {
                    match child.try_wait() {
                        Ok(None) if asked.elapsed() < ENDING && !is_cancelled() => {
                            thread::sleep(LOOK_EVERY);
                        }
                        ended => break ended.ok().flatten().and_then(|status| status.code()),
                    }
                };
                if let (BenchError::Measuring { exit_code, .. }, Some(USAGE)) = (&mut error, code) {
                    *exit_code = USAGE;
                }
                break Err(error);
            }
        }
        if is_cancelled() {
            break Err(BenchError::Cancelled);
        }
    };
    let _ = child.kill();
    let _ = child.wait();
    let _ = reader.join();
    // An interrupt reaches the process first, whose end is then not the cause.
    if is_cancelled() { Err(BenchError::Cancelled) } else { ended }
}

/// Returns the error of a process, with the last lines that it wrote to standard error.
fn failed(what: String, log: &mut File) -> BenchError {
    let mut text = String::new();
    let read = log.rewind().and_then(|()| log.read_to_string(&mut text));
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(8)..].join("\n  ");
    let last_lines = if read.is_ok() && !last.is_empty() {
        format!("\nThe last lines of its standard error:\n  {last}")
    } else {
        String::new()
    };
    BenchError::Measuring { what, last_lines, exit_code: BUG }
}
