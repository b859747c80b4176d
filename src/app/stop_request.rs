//! A request to a trainer to stop, and the signal that follows if the trainer does not read it.
//!
//! A trainer reads requests between two steps and answers them with a checkpoint. SIGUSR1 has the same
//! effect, however often it comes, so sending both is harmless. SIGINT and SIGTERM are left to people, whose
//! second one ends a trainer at once.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sparktune_runlog::{Action, Error, Lease, Request, RunDir, is_pending, request};

/// The time after which a request that was not answered is followed by a signal.
const PATIENCE: Duration = Duration::from_secs(20);

/// A request that was sent.
#[derive(Debug, Clone, PartialEq)]
pub struct StopRequest {
    run: RunDir,
    /// `None` if the file could not be written, for example on a full disk.
    request: Option<Request>,
    sent: Instant,
    patience: Duration,
    is_signalled: bool,
}

impl StopRequest {
    /// Requests the trainer of a run to save a checkpoint and end: by a file, or by a signal if no file can
    /// be written.
    ///
    /// # Errors
    /// [`Error::NotRunning`] if no trainer holds the lease; the error of the file if no signal can be sent
    /// either.
    pub fn send(run: &RunDir) -> Result<Self, Error> {
        let request = match request(run, Action::Stop) {
            Ok(request) => Some(request),
            Err(error @ Error::NotRunning { .. }) => return Err(error),
            Err(_) if signal(run) => None,
            Err(error) => return Err(error),
        };
        let is_signalled = request.is_none();
        Ok(Self { run: run.clone(), request, sent: Instant::now(), patience: PATIENCE, is_signalled })
    }

    /// Returns whether an answer of the trainer with this id is one to this request.
    pub fn is_answered_by(&self, id: &str) -> bool {
        self.request.as_ref().is_some_and(|request| request.id == id) || self.is_signalled && id == "signal"
    }

    /// Sends a signal if the request has not been answered for some time. Returns whether it did so now.
    pub fn insist(&mut self) -> bool {
        let waits = !self.is_signalled && self.sent.elapsed() >= self.patience;
        if !waits || self.request.as_ref().is_some_and(|request| !is_pending(&self.run, request)) {
            return false;
        }
        // It is not tried again: a trainer that cannot be signalled now is on another machine.
        self.is_signalled = true;
        signal(&self.run)
    }
}

/// Returns the trainer of a run, if it runs on this machine.
///
/// The lease only says which process took it. That process is the trainer if its command line says so.
pub(crate) fn trainer_of(run: &RunDir) -> Option<Pid> {
    if !Lease::is_held(run).ok()? {
        return None;
    }
    let holder = Lease::holder_of(run);
    let is_here = holder.host == rustix::system::uname().nodename().to_string_lossy();
    let pid = i32::try_from(holder.pid).ok().and_then(Pid::from_raw).filter(|_| is_here)?;
    let words = fs::read(format!("/proc/{}/cmdline", holder.pid)).ok()?;
    let folder = run.path().canonicalize().ok()?;
    let mut words = words.split(|byte| *byte == 0);
    words.any(|word| word == b"trainer").then_some(())?;
    words.any(|word| word == folder.as_os_str().as_bytes()).then_some(pid)
}

/// Returns whether a process was stopped by SIGSTOP or a debugger, so that it hears nothing until it is
/// continued.
pub(crate) fn is_frozen(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // The name of the program comes before, in brackets, and may contain anything.
    let state = status.rsplit_once(") ").map_or("", |(_, rest)| rest);
    state.starts_with(['T', 't'])
}

fn signal(run: &RunDir) -> bool {
    trainer_of(run).is_some_and(signal_to_stop)
}

/// Sends a trainer or a rank the signal to stop after a checkpoint. Returns whether it was sent.
///
/// SIGTERM goes to a process that does not handle SIGUSR1 and would end by it: one that has only just been
/// started, or a trainer of an older program, which takes every SIGTERM as a request.
pub(crate) fn signal_to_stop(pid: Pid) -> bool {
    let signal = if handles(pid, Signal::USR1) { Signal::USR1 } else { Signal::TERM };
    kill_process(pid, signal).is_ok()
}

fn handles(pid: Pid, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    let handled = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let handled = handled.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    handled.is_some_and(|mask| (mask >> (signal.as_raw() - 1)) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, Stdio};

    use sparktune_runlog::RunsRoot;

    use super::*;

    /// Starts a process that looks like the trainer of a run, or almost, but reads no requests, and writes it
    /// into the lease.
    fn deaf_trainer(run: &RunDir, word: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "read line", word]).arg(run.path().canonicalize().unwrap());
        let child = command.stdin(Stdio::piped()).spawn().unwrap();
        // The kernel shows the words a moment after the process has them.
        while fs::read(format!("/proc/{}/cmdline", child.id())).unwrap().is_empty() {
            std::thread::yield_now();
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let holder = serde_json::json!({"pid": child.id(), "host": host, "started_us": 1});
        fs::write(run.lease_lock(), holder.to_string()).unwrap();
        child
    }

    #[test]
    fn a_trainer_that_does_not_read_its_requests_is_sent_a_signal_once() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
        assert!(matches!(StopRequest::send(&run), Err(Error::NotRunning { .. })));
        let _lease = Lease::acquire(&run).unwrap();
        let mut child = deaf_trainer(&run, "trainer");
        let mut stop = StopRequest::send(&run).unwrap();
        assert!(!stop.insist(), "it has some time to answer");
        stop.patience = Duration::ZERO;
        assert!(stop.insist() && !stop.insist());
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
        assert!(stop.is_answered_by("signal") && !stop.is_answered_by("another"));
    }

    #[test]
    fn no_other_process_is_signalled_although_the_lease_names_it() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
        let _lease = Lease::acquire(&run).unwrap();
        let mut child = deaf_trainer(&run, "editor");
        assert_eq!(trainer_of(&run), None);
        let mut stop = StopRequest { patience: Duration::ZERO, ..StopRequest::send(&run).unwrap() };
        assert!(!stop.insist());
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn an_answered_request_is_not_followed_by_a_signal_and_a_full_disk_leads_to_one_at_once() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
        let lease = Lease::acquire(&run).unwrap();
        let mut child = deaf_trainer(&run, "trainer");
        let mut stop = StopRequest { patience: Duration::ZERO, ..StopRequest::send(&run).unwrap() };
        for file in fs::read_dir(run.control()).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
        assert!(!stop.insist() && child.try_wait().unwrap().is_none());

        // Nothing can be written where `control/` is a file.
        fs::remove_dir(run.control()).unwrap();
        fs::write(run.control(), "").unwrap();
        let stop = StopRequest::send(&run).unwrap();
        assert!(stop.is_answered_by("signal"));
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
        drop(lease);
    }

    #[test]
    fn the_signal_to_stop_is_one_that_the_process_handles_or_else_sigterm() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap 'exit 7' USR1; echo; while :; do sleep 0.01; done"]);
        let mut child = shell.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        assert!(signal_to_stop(Pid::from_child(&child)));
        assert_eq!(child.wait().unwrap().code(), Some(7));
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(signal_to_stop(Pid::from_child(&other)));
        assert_eq!(other.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    }

    #[test]
    fn a_process_that_was_stopped_is_frozen_until_it_is_continued() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(!is_frozen(pid));
        for (signal, frozen) in [(Signal::STOP, true), (Signal::CONT, false)] {
            kill_process(pid, signal).unwrap();
            while is_frozen(pid) != frozen {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
