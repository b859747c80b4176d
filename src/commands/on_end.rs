//! The command that a user wants to be run when a training ends.
//!
//! Enters: a variable of the trainer's environment, which only the user sets, and how the run ended. Leaves:
//! a log beside the trainer's. Plans name no commands, so nothing that came with a stranger's run is
//! executed. The run has ended by then, its events and its lease included, and whatever the command does
//! changes neither.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use sparktune_app::program::ON_END;
use sparktune_base::files::private_file;
use sparktune_base::units::duration;
use sparktune_runlog::RunDir;
use sparktune_tui::output::note;

/// The variables by which the command learns of the run.
const FOLDER: &str = "SPARKTUNE_RUN_FOLDER";
const STATE: &str = "SPARKTUNE_RUN_STATE";

/// The time after which the command is ended.
const LONGEST: Duration = Duration::from_secs(600);
/// The most bytes of its output that are kept.
const MOST_OUTPUT: u64 = 1 << 20;
/// The time between two looks whether it has ended.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the end of the output is waited for after the end of the command. Processes that the command
/// leaves behind may hold the output open, and nobody waits for them.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// The same, once the trainer was asked to end: whoever asked waits for it.
const LAST_WORDS_IN_HASTE: Duration = Duration::from_secs(1);

/// A command to run when a training ends.
pub(crate) struct OnEnd {
    command: String,
    longest: Duration,
}

impl OnEnd {
    /// Returns the command of the environment, if it names one.
    pub(crate) fn from_environment() -> Option<Self> {
        let command = std::env::var(ON_END).ok().filter(|command| !command.trim().is_empty())?;
        Some(Self { command, longest: LONGEST })
    }

    /// Runs the command in the folder of the run, whose attempt has ended like this, and waits for it, at
    /// most ten minutes and until `stop` is set. Failures are told and change nothing.
    pub(crate) fn run(&self, run: &RunDir, attempt: u32, state: &str, stop: &AtomicBool) {
        let log = log_of(run, attempt);
        let told = match self.run_with_log(run, state, &log, stop) {
            Ok(ended) => ended,
            Err(error) => format!("cannot be run: {error}"),
        };
        note(&format!("--on-end: {told}; its output is in {}", log.display()));
    }

    fn run_with_log(&self, run: &RunDir, state: &str, log: &Path, stop: &AtomicBool) -> io::Result<String> {
        let started = Instant::now();
        let mut file = private_file().write(true).create(true).truncate(true).open(log)?;
        let (reader, writer) = io::pipe()?;
        let mut child = Command::new("/bin/sh")
            .arg("-c")
            .arg(&self.command)
            .current_dir(run.path())
            .env(FOLDER, run.path().canonicalize()?)
            .env(STATE, state)
            // A training that the command starts would run it again at its own end, and so on.
            .env_remove(ON_END)
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .process_group(0)
            .spawn()?;
        let copied = copy_to(reader, file.try_clone()?);
        let ended = wait(&mut child, self.longest, stop)?;
        let took = duration(started.elapsed().as_secs_f64());
        let since = Instant::now();
        let patience = || if stop.load(Ordering::SeqCst) { LAST_WORDS_IN_HASTE } else { LAST_WORDS };
        while copied.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) && since.elapsed() < patience() {}
        let words = match ended {
            Some(status) if status.success() => format!("the command ended after {took}"),
            Some(status) => format!("the command failed ({status}) after {took}"),
            None if stop.load(Ordering::SeqCst) => {
                format!("the command was ended after {took}, because the trainer was asked to end")
            }
            None => format!(
                "the command was ended after {took}, because it may take {}",
                duration(self.longest.as_secs_f64())
            ),
        };
        writeln!(file, "[{words}]")?;
        Ok(words)
    }
}

/// Returns the file with what the command printed after an attempt.
fn log_of(run: &RunDir, attempt: u32) -> PathBuf {
    run.logs().join(format!("on-end-{attempt:04}.log"))
}

/// Copies the beginning of an output to a file on a thread, and reads the rest, so that the command never
/// waits for its reader. Sends a message at the end.
fn copy_to(mut from: io::PipeReader, mut to: std::fs::File) -> mpsc::Receiver<()> {
    let (done, copied) = mpsc::channel();
    std::thread::spawn(move || {
        let kept = io::copy(&mut (&mut from).take(MOST_OUTPUT), &mut to);
        if kept.is_ok_and(|bytes| bytes == MOST_OUTPUT) {
            let _ = writeln!(to, "\n[the rest of the output is not kept]");
            let _ = io::copy(&mut from, &mut io::sink());
        }
        let _ = done.send(());
    });
    copied
}

/// Waits for the end of a process. Ends it with all that it started when it takes too long or `stop` is set,
/// and then returns nothing.
fn wait(child: &mut Child, longest: Duration, stop: &AtomicBool) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + longest;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until || stop.load(Ordering::SeqCst) {
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sparktune_runlog::RunsRoot;

    use super::*;

    fn after(command: &str, longest: Duration) -> (String, RunDir, tempfile::TempDir) {
        until(false, command, longest)
    }

    fn until(stop: bool, command: &str, longest: Duration) -> (String, RunDir, tempfile::TempDir) {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("tiny", "test").unwrap();
        fs::create_dir_all(run.logs()).unwrap();
        let hook = OnEnd { command: command.into(), longest };
        hook.run(&run, 1, "stopped", &AtomicBool::new(stop));
        (fs::read_to_string(log_of(&run, 1)).unwrap(), run, root)
    }

    #[test]
    fn the_command_learns_of_the_run_and_its_output_is_kept() {
        let (log, run, _root) =
            after(&format!("echo ${STATE}; pwd; echo ${FOLDER} >&2; exit 3"), Duration::from_secs(120));
        let folder = run.path().canonicalize().unwrap().display().to_string();
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines[..3], ["stopped", &folder, &folder]);
        assert!(lines[3].starts_with("[the command failed (exit status: 3) after"), "{log}");
    }

    #[test]
    fn a_command_that_takes_too_long_is_ended_with_what_it_started() {
        // On a busy machine, it may not begin in a short time.
        for seconds in [0.3, 3.0, 60.0] {
            let (log, run, _root) =
                after("(sleep 600; touch late) & echo begun; wait", Duration::from_secs_f64(seconds));
            assert!(log.contains("[the command was ended after"), "{log}");
            assert!(log.contains("because it may take"), "{log}");
            assert!(!run.path().join("late").exists());
            if log.starts_with("begun\n[") {
                return;
            }
        }
        panic!("it never begins");
    }

    #[test]
    fn a_command_that_is_ended_by_a_signal_did_not_take_too_long() {
        let (log, ..) = until(true, "sleep 600", Duration::from_secs(600));
        assert!(log.contains("because the trainer was asked to end"), "{log}");
    }

    #[test]
    fn only_the_beginning_of_a_long_output_is_kept() {
        let (log, ..) = after("head -c 3000000 /dev/zero | tr '\\0' x", Duration::from_secs(120));
        assert!(
            log.len() < MOST_OUTPUT as usize + 200 && log.contains("rest of the output"),
            "{}",
            log.len()
        );
        assert!(log.contains("[the command ended after"));
    }
}
