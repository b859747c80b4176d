//! The lease: an exclusive `flock` on `lease.lock` that the trainer holds as long as it lives.
//!
//! The kernel drops the lock when the process ends, however it ends, so a held lease means a living trainer.
//! The contents of the file are for information only; a PID decides nothing.

use std::io::{Seek, Write};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sparktune_base::files::{private_file, sync, write_and_sync};
use sparktune_base::locked::Locked;
use sparktune_base::regular_file::{open_regular, read_regular};

use crate::clock::{SinceBoot, now_us};
use crate::error::{Doing, Error, Result};
use crate::holder::{Holder, this_host};
use crate::run_dir::RunDir;

// A watcher's check holds a shared lock for microseconds, or longer if it has to wait for a processor. A
// trainer that finds the file locked tries again, and more often if only watchers hold it.
const TRIES: u32 = 50;
const TRIES_BESIDE_WATCHERS: u32 = 6000;
const PAUSE: Duration = Duration::from_millis(10);
/// The most bytes that a lease file has.
const MOST_BYTES: u64 = 64 << 10;

/// Proof that this process is the run's trainer. It is released on drop and whenever the process ends.
#[derive(Debug)]
pub struct Lease {
    run: RunDir,
    holder: Holder,
    _lock: Locked,
}

impl Lease {
    /// Takes the lease of a run.
    ///
    /// # Errors
    /// [`Error::AlreadyRunning`] while another process holds it.
    pub fn acquire(run: &RunDir) -> Result<Self> {
        let path = run.lease_lock();
        let mut file = private_file()
            .read(true)
            .create(true)
            .truncate(false) // the holder's words must outlive a refused second trainer
            .open(&path)
            .doing("open", &path)?;
        let mut tries = 0;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) => {
                    let most = if Self::is_held(run)? { TRIES } else { TRIES_BESIDE_WATCHERS };
                    if tries >= most {
                        let holder = Self::holder_of(run);
                        return Err(Error::AlreadyRunning { run: run.path().to_owned(), holder });
                    }
                    tries += 1;
                    std::thread::sleep(PAUSE);
                }
                Err(e) => return Err(e).doing("lock", path),
            }
        }
        let holder = Holder {
            pid: std::process::id(),
            host: this_host(),
            started_us: now_us(),
            boot: SinceBoot::now(),
        };
        // Writing is best effort: a full disk must not prevent a resume from taking the lease and reporting
        // the full disk itself.
        let json = serde_json::to_vec(&holder).expect("plain fields serialise");
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(&json));
        Ok(Lease { run: run.clone(), holder, _lock: Locked::new(file) })
    }

    /// Returns whether a process holds the lease now. A run that never started has no lease file and no
    /// holder.
    ///
    /// # Errors
    /// [`Error::Io`] when the lease file cannot be probed.
    pub fn is_held(run: &RunDir) -> Result<bool> {
        let path = run.lease_lock();
        let file = match open_regular(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            opened => opened.doing("open", &path)?,
        };
        // A shared lock, so that several watchers never mistake each other for a trainer.
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false), // dropped with the file
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(e) => Err(e).doing("probe", path),
        }
    }

    /// Returns the information about the last holder; empty when it cannot be read.
    pub fn holder_of(run: &RunDir) -> Holder {
        read_regular(&run.lease_lock(), MOST_BYTES)
            .ok()
            .and_then(|json| serde_json::from_slice(&json).ok())
            .unwrap_or_default()
    }

    /// Returns the run that this process trains.
    pub fn run(&self) -> &RunDir {
        &self.run
    }

    /// Puts another `plan.toml` in the place of the run's, for a run of another length.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be written.
    pub fn replace_plan(&self, toml: &str) -> Result<()> {
        let path = self.run.plan();
        write_and_sync(&path, toml).doing("write", &path)?;
        sync(self.run.path()).doing("flush to disk", self.run.path())
    }

    /// Returns the time when this process took the lease, in microseconds since the Unix epoch.
    pub fn started_us(&self) -> u64 {
        self.holder.started_us
    }

    /// Returns `checkpoints/` of the run, for the writing half of [`crate::Checkpoints`].
    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.run.checkpoints()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_trainer_is_refused_in_words_until_the_first_lets_go() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path().join("r")).unwrap();
        assert!(!Lease::is_held(&run).unwrap());
        let lease = Lease::acquire(&run).unwrap();
        assert!(Lease::is_held(&run).unwrap());
        // flock belongs to the open file, so a second open in this process behaves like another process.
        let refusal = Lease::acquire(&run).unwrap_err();
        assert!(matches!(refusal, Error::AlreadyRunning { .. }));
        assert!(refusal.to_string().contains(&format!("process {}", std::process::id())), "{refusal}");
        assert_eq!(Lease::holder_of(&run).pid, std::process::id());
        drop(lease);
        assert!(!Lease::is_held(&run).unwrap());
        Lease::acquire(&run).unwrap();
    }

    #[test]
    fn watchers_probing_without_pause_never_keep_a_trainer_out() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path().join("r")).unwrap();
        drop(Lease::acquire(&run).unwrap());
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        Lease::is_held(&run).unwrap();
                        std::thread::yield_now();
                    }
                });
            }
            for _ in 0..20 {
                drop(Lease::acquire(&run).unwrap());
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
