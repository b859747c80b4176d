//! Requests to a running trainer: one small file each in `control/`, created by rename and acknowledged by an
//! event.
//!
//! Everyone with write access to the run folder may send requests; the trainer reads them between two steps.
//! It first logs `control_applied` and then removes the file, so a request is never lost and at worst carried
//! out twice.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use sparktune_base::files::{private_file, private_folder};

use crate::clock::now_us;
use crate::error::{Doing, Error, Result};
use crate::lease::Lease;
use crate::run_dir::{RunDir, random_hex};

/// The requests that a trainer accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Commit a checkpoint, then end.
    Stop,
    /// Commit a checkpoint and continue.
    Checkpoint,
}

impl Action {
    /// Returns the name in requests and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Stop => "stop",
            Action::Checkpoint => "checkpoint",
        }
    }
}

/// A request to the trainer and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The id, which is also the file's name; the acknowledging event repeats it.
    pub id: String,
    /// An action that the user requested.
    pub action: Action,
    /// The time of the request, in microseconds since the Unix epoch.
    pub time_us: u64,
    /// The trainer that is asked, by when it took the lease. `None` in requests of older programs, and where
    /// the lease does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer_started_us: Option<u64>,
}

/// Sends a request to the running trainer. The answer is a `control_applied` event with the returned id.
///
/// # Errors
/// [`Error::NotRunning`] when no trainer holds the lease, [`Error::Io`] when the request cannot be written.
pub fn request(run: &RunDir, action: Action) -> Result<Request> {
    if !Lease::is_held(run)? {
        return Err(Error::NotRunning { run: run.path().to_owned() });
    }
    let time_us = now_us();
    let trainer_started_us = Some(Lease::holder_of(run).started_us).filter(|started| *started > 0);
    let id = format!("{time_us}-{}", random_hex::<4>());
    let request = Request { id, action, time_us, trainer_started_us };
    let temp = run.control().join(format!(".{}.tmp", request.id));
    let path = run.control().join(format!("{}.json", request.id));
    let json = serde_json::to_vec(&request).expect("plain fields serialise");
    let mut file = private_file().create_new(true).open(&temp).doing("create", &temp)?;
    file.write_all(&json).doing("write", &temp)?;
    fs::rename(&temp, &path).doing("create", &path)?;
    Ok(request)
}

/// Returns whether the trainer has not answered a request yet.
pub fn is_pending(run: &RunDir, request: &Request) -> bool {
    run.control().join(format!("{}.json", request.id)).exists()
}

/// The result of reading `control/`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Incoming {
    /// The requests to carry out, oldest first. Each has to be acknowledged.
    pub requests: Vec<Request>,
    /// The reasons why files were set aside, one line each, for a `warning` event.
    pub ignored: Vec<String>,
}

/// The trainer's side of `control/`.
#[derive(Debug)]
pub struct ControlInbox {
    folder: PathBuf,
    started_us: u64,
    /// Whether the folder could not be read the last time.
    is_unreadable: AtomicBool,
}

impl ControlInbox {
    /// Creates the inbox of the run that this process trains. The folder is created too if it is missing: a
    /// copy of a run by git has no empty folders.
    pub fn new(lease: &Lease) -> Self {
        let folder = lease.run().control();
        // If this fails, the first `poll` says why.
        let _ = private_folder().recursive(true).create(&folder);
        ControlInbox { folder, started_us: lease.started_us(), is_unreadable: AtomicBool::new(false) }
    }

    /// Returns the pending requests. Files that are not requests are renamed to `*.ignored` and reported, and
    /// so are requests to an earlier attempt, which would otherwise end a resumed run at its first step.
    ///
    /// # Errors
    /// [`Error::Io`] when `control/` cannot be listed. The error is returned once; after that, there are no
    /// requests until the folder can be listed again.
    pub fn poll(&self) -> Result<Incoming> {
        let polled = self.read_all();
        let was_unreadable = self.is_unreadable.swap(polled.is_err(), Ordering::Relaxed);
        if was_unreadable && polled.is_err() { Ok(Incoming::default()) } else { polled }
    }

    fn read_all(&self) -> Result<Incoming> {
        let mut incoming = Incoming::default();
        for entry in fs::read_dir(&self.folder).doing("list", &self.folder)? {
            let path = entry.doing("list", &self.folder)?.path();
            if path.extension().is_none_or(|ext| ext != "json") {
                continue;
            }
            match read(&path) {
                Ok(request) if self.is_for_an_earlier_trainer(&request) => {
                    incoming.ignored.push(set_aside(&path, "it was addressed to an earlier attempt"));
                }
                Ok(request) => incoming.requests.push(request),
                Err(reason) => incoming.ignored.push(set_aside(&path, &reason)),
            }
        }
        incoming.requests.sort_by(|a, b| (a.time_us, &a.id).cmp(&(b.time_us, &b.id)));
        Ok(incoming)
    }

    /// Clocks are compared only where the request does not name its trainer: a clock may have been set back
    /// since the trainer started.
    fn is_for_an_earlier_trainer(&self, request: &Request) -> bool {
        match request.trainer_started_us {
            Some(started_us) => started_us != self.started_us,
            None => request.time_us < self.started_us,
        }
    }

    /// Removes a request that was carried out; call it after its `control_applied` event is written.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be removed.
    pub fn acknowledge(&self, request: &Request) -> Result<()> {
        let path = self.folder.join(format!("{}.json", request.id));
        match fs::remove_file(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed.doing("remove", path),
        }
    }
}

fn read(path: &Path) -> Result<Request, String> {
    const LARGEST: u64 = 64 * 1024;
    let meta = fs::symlink_metadata(path).map_err(|e| e.to_string())?;
    // Reading a named pipe would block the training loop for ever.
    if !meta.is_file() || meta.len() > LARGEST {
        return Err("it is not a small plain file".to_owned());
    }
    let request: Request =
        serde_json::from_slice(&fs::read(path).map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
    if path.file_stem().is_none_or(|stem| stem != request.id.as_str()) {
        return Err("its id is not its file name".to_owned());
    }
    Ok(request)
}

fn set_aside(path: &Path, reason: &str) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match fs::rename(path, path.with_extension("ignored")) {
        Ok(()) => format!("control/{name} was ignored: {reason}"),
        Err(e) => format!("control/{name} was ignored: {reason} (and could not be renamed: {e})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> (tempfile::TempDir, RunDir) {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path().join("r")).unwrap();
        (root, run)
    }

    #[test]
    fn a_request_reaches_the_trainer_once_and_leaves_no_trace() {
        let (_root, run) = run();
        assert!(matches!(request(&run, Action::Stop), Err(Error::NotRunning { .. })));
        let lease = Lease::acquire(&run).unwrap();
        let inbox = ControlInbox::new(&lease);
        assert_eq!(inbox.poll().unwrap(), Incoming::default());
        let first = request(&run, Action::Checkpoint).unwrap();
        let second = request(&run, Action::Stop).unwrap();
        let incoming = inbox.poll().unwrap();
        assert_eq!(incoming.requests, [first.clone(), second.clone()]);
        inbox.acknowledge(&first).unwrap();
        inbox.acknowledge(&first).unwrap();
        assert_eq!(inbox.poll().unwrap().requests, std::slice::from_ref(&second));
        inbox.acknowledge(&second).unwrap();
        assert_eq!(fs::read_dir(run.control()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_request_is_set_aside_and_said() {
        let (_root, run) = run();
        let lease = Lease::acquire(&run).unwrap();
        let inbox = ControlInbox::new(&lease);
        fs::write(run.control().join("x.json"), "{\"action\":").unwrap();
        fs::write(run.control().join("y.json"), r#"{"id":"y","action":"explode","time_us":1}"#).unwrap();
        fs::write(
            run.control().join("z.json"),
            format!(r#"{{"id":"../z","action":"stop","time_us":{}}}"#, u64::MAX),
        )
        .unwrap();
        fs::create_dir(run.control().join("folder.json")).unwrap();
        fs::write(run.control().join(".half.tmp"), "{").unwrap();
        let incoming = inbox.poll().unwrap();
        assert!(incoming.requests.is_empty());
        assert_eq!(incoming.ignored.len(), 4, "{:?}", incoming.ignored);
        assert!(incoming.ignored.iter().any(|w| w.contains("control/y.json") && w.contains("explode")));
        assert_eq!(inbox.poll().unwrap(), Incoming::default(), "said once");
    }

    #[test]
    fn a_missing_folder_is_created_and_one_that_cannot_be_read_is_told_once() {
        let (_root, run) = run();
        let lease = Lease::acquire(&run).unwrap();
        fs::remove_dir(run.control()).unwrap();
        let inbox = ControlInbox::new(&lease);
        assert_eq!(inbox.poll().unwrap(), Incoming::default());
        fs::remove_dir(run.control()).unwrap();
        for _ in 0..2 {
            assert!(inbox.poll().unwrap_err().to_string().contains("cannot list"));
            assert_eq!(inbox.poll().unwrap(), Incoming::default());
            assert_eq!(inbox.poll().unwrap(), Incoming::default());
            fs::create_dir(run.control()).unwrap();
            request(&run, Action::Stop).unwrap();
            assert_eq!(inbox.poll().unwrap().requests.len(), 1, "it can be read again");
            fs::remove_dir_all(run.control()).unwrap();
        }
    }

    #[test]
    fn a_request_is_heeded_although_the_clock_was_set_back_since_the_trainer_started() {
        let (_root, run) = run();
        let lease = Lease::acquire(&run).unwrap();
        let inbox = ControlInbox::new(&lease);
        let asked = request(&run, Action::Stop).unwrap();
        assert_eq!(asked.trainer_started_us, Some(lease.started_us()));
        let earlier = Request { time_us: lease.started_us() - 3_600_000_000, ..asked };
        let path = run.control().join(format!("{}.json", earlier.id));
        fs::write(&path, serde_json::to_vec(&earlier).unwrap()).unwrap();
        assert_eq!(inbox.poll().unwrap().requests, std::slice::from_ref(&earlier));
        // A request of an older program names no trainer, and its time is all there is.
        let of_old = Request { trainer_started_us: None, ..earlier };
        let json = serde_json::to_string(&of_old).unwrap();
        assert!(!json.contains("trainer_started_us"), "{json}");
        fs::write(&path, json).unwrap();
        assert!(inbox.poll().unwrap().ignored[0].contains("earlier attempt"));
    }

    #[test]
    fn a_stop_meant_for_a_crashed_attempt_does_not_stop_the_resumed_one() {
        let (_root, run) = run();
        let crashed = Lease::acquire(&run).unwrap();
        request(&run, Action::Stop).unwrap();
        drop(crashed);
        std::thread::sleep(std::time::Duration::from_millis(2));
        let inbox = ControlInbox::new(&Lease::acquire(&run).unwrap());
        let incoming = inbox.poll().unwrap();
        assert!(incoming.requests.is_empty());
        assert!(incoming.ignored[0].contains("earlier attempt"), "{:?}", incoming.ignored);
    }
}
