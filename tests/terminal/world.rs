//! A place with a program, terminals on it, and trainers that are gone when the test is over.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};
use sparktune_runlog::{Lease, Liveness, RunDir, RunView, RunsRoot};

use crate::pty::{LONG, Pty, Size};
use crate::sparktune::{Place, events};

pub(crate) const ORDINARY: Size = (80, 24);

pub(crate) struct World {
    pub place: Place,
    /// The lease of a run that nobody trains.
    held: OnceCell<Lease>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { place: Place::new(), held: OnceCell::new() }
    }

    /// The program in a terminal of 80×24.
    pub(crate) fn open<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Pty {
        self.open_with(args, ORDINARY, &[])
    }

    /// The program in a terminal of this size, with more variables, or others than the usual ones.
    pub(crate) fn open_with<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
        size: Size,
        env: &[(&str, &str)],
    ) -> Pty {
        let program = Path::new(env!("CARGO_BIN_EXE_sparktune"));
        Pty::spawn(program, args, self.place.path(), &self.env(env), size)
    }

    /// The variables of a terminal: those named, before the usual ones.
    pub(crate) fn env(&self, more: &[(&str, &str)]) -> Vec<(String, String)> {
        let home = self.place.path().to_str().unwrap();
        let path = std::env::var("PATH").unwrap();
        let usual = [
            ("PATH", &*path),
            ("HOME", home),
            ("TERM", "xterm-256color"),
            ("LANG", "C.UTF-8"),
            ("HF_HUB_OFFLINE", "1"),
        ];
        usual.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn runs(&self) -> Vec<RunDir> {
        RunsRoot::new(self.place.join("runs")).list().unwrap_or_default()
    }

    /// The only run there is, once there is one.
    #[track_caller]
    pub(crate) fn the_run(&self) -> RunDir {
        wait("a run", || self.runs().pop())
    }

    /// A run of the fixture model that trains until it is ended, with a step and a checkpoint behind it;
    /// nobody looks at it.
    #[track_caller]
    pub(crate) fn training(&self) -> RunDir {
        self.place.chats(40);
        let flags = [
            "--rank",
            "4",
            "--mtp",
            "none",
            "--epochs",
            "9999",
            "--max-steps",
            "10000000",
            "--save-steps",
            "5",
        ];
        let mut launcher = self.place.train(&flags).spawn().unwrap();
        let run = wait("a checkpoint", || {
            assert!(launcher.try_wait().unwrap().is_none(), "the training ended: {:?}", self.runs());
            let run = self.runs().pop()?;
            events(run.path()).iter().any(|event| event["kind"] == "checkpoint_committed").then_some(run)
        });
        // The trainer outlives whoever started it.
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        run
    }

    /// A run with steps and a checkpoint behind it that is alive, as far as screens can tell, and does
    /// nothing: an old one without its last words, whose lease this process holds.
    #[track_caller]
    pub(crate) fn paused(&self) -> RunDir {
        let run = RunDir::open(self.place.old_run()).unwrap();
        let log = run.event_file(1);
        let events = std::fs::read_to_string(&log).unwrap();
        let is_end = |line: &str| line.contains("\"control_applied\"") || line.contains("\"run_finished\"");
        let alive: String =
            events.lines().filter(|line| !is_end(line)).map(|line| format!("{line}\n")).collect();
        assert!(alive.len() < events.len());
        std::fs::write(log, alive).unwrap();
        assert!(self.held.set(Lease::acquire(&run).unwrap()).is_ok(), "one at a time");
        // A trainer that is silent for ten seconds counts as stalled. The contents of the lease file,
        // which do not affect the lock, put the trainer's start into the future, so that it has never been
        // silent, however long the test takes. They have no time since boot, which would be more exact.
        let holder = Lease::holder_of(&run);
        let words = serde_json::json!({"pid": holder.pid, "host": holder.host, "started_us": u64::MAX / 2});
        std::fs::write(run.lease_lock(), words.to_string()).unwrap();
        run
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.held.take());
        for run in self.runs() {
            // This process has released its lease. It is no trainer.
            let is_ours = Lease::holder_of(&run).pid == std::process::id();
            if !is_ours && Lease::is_held(&run).unwrap_or(false) {
                let _ = kill_process(trainer(&run), Signal::KILL);
            }
        }
    }
}

fn trainer(run: &RunDir) -> Pid {
    Pid::from_raw(Lease::holder_of(run).pid as i32).unwrap()
}

/// Stops the trainer as soon as it has done more than this many steps and has a checkpoint, so that it stays
/// there however long the test waits for a processor. The run must be much longer than that.
#[track_caller]
pub(crate) fn hold_after(run: &RunDir, steps: u64) {
    let has_checkpoint = || events(run.path()).iter().any(|event| event["kind"] == "checkpoint_committed");
    wait("steps and a checkpoint", || (steps_done(run) > steps && has_checkpoint()).then_some(()));
    signal_trainer(run, Signal::STOP);
}

pub(crate) fn signal_trainer(run: &RunDir, signal: Signal) {
    assert!(Lease::is_held(run).unwrap(), "nobody trains it");
    kill_process(trainer(run), signal).unwrap();
}

/// Ends the trainer as the system does when memory runs out.
pub(crate) fn kill_trainer(run: &RunDir) {
    signal_trainer(run, Signal::KILL);
    wait("the lease", || (!Lease::is_held(run).unwrap()).then_some(()));
}

pub(crate) fn liveness(run: &RunDir) -> Liveness {
    RunView::glance(run).unwrap().liveness(run).unwrap()
}

pub(crate) fn steps_done(run: &RunDir) -> u64 {
    RunView::glance(run).unwrap().steps_done()
}

/// The demo's model and data.
pub(crate) fn demo() -> (PathBuf, PathBuf) {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("presets/demo");
    (demo.join("model"), demo.join("train.jsonl"))
}

/// Waits until `seen` gives something.
#[track_caller]
pub(crate) fn wait<T>(what: &str, mut seen: impl FnMut() -> Option<T>) -> T {
    let begun = std::time::Instant::now();
    loop {
        if let Some(found) = seen() {
            return found;
        }
        assert!(begun.elapsed() < LONG, "waited {LONG:?} for {what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// This test binary, to run one of its tests as a process of its own.
pub(crate) fn this_program() -> PathBuf {
    std::env::current_exe().unwrap()
}
