//! The machine of an agent: its memory, the models it has, and the rank that runs on it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use sparktune_base::kept_pages;
use sparktune_cluster::doctor::{self, Line, Link};
use sparktune_cluster::membership::Host;
use sparktune_cluster::membership::messages::{Folder, Job, RankState, sentence};
use sparktune_cluster::{JobToken, environment_of};
use sparktune_hub::Hub;
use sparktune_telemetry::Sampler;

use crate::caches::MODELS;
use crate::folders::private_folder_of_user;
use crate::stop_request::signal_to_stop;

/// The word that a rank prints when it has met the others.
pub const MET: &str = "met";
/// The variables that say where the base model is on this machine, and the model whose head is used. Who has
/// the first was started by an agent.
pub const PLACES: [&str; 2] = ["SPARKTUNE_CLUSTER_MODEL", "SPARKTUNE_CLUSTER_HEAD"];
/// The time that a rank has to end before its agent ends without it.
const GRACE: Duration = Duration::from_secs(20);
/// The longest line of a rank that is kept.
const LONGEST_LINE: u64 = 4096;

/// This machine.
pub(super) struct Machine {
    program: PathBuf,
    runs_dir: PathBuf,
    memory: Mutex<Sampler>,
    rank: Mutex<Option<Rank>>,
}

/// A rank that was started.
struct Rank {
    /// Those that were started before it have smaller ones.
    number: u64,
    process: Child,
    has_met: Arc<AtomicBool>,
    /// The last line that it wrote.
    said: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
    ended: Option<Option<i32>>,
}

impl Machine {
    pub(super) fn new(program: PathBuf, runs_dir: PathBuf) -> Self {
        Self { program, runs_dir, memory: Mutex::new(Sampler::new()), rank: Mutex::new(None) }
    }

    /// Ends the rank, and waits for it.
    pub(super) fn end(&self) {
        let Some(number) = lock(&self.rank).as_ref().map(|rank| rank.number) else { return };
        self.stop(number);
        let since = Instant::now();
        while since.elapsed() < GRACE && !matches!(self.look(number), RankState::Ended { .. }) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Host for Machine {
    fn free_bytes(&self) -> u64 {
        lock(&self.memory).memory().available_bytes
    }

    fn examine(&self) -> Vec<Line> {
        doctor::examine(Path::new("/"), variable)
    }

    fn link_towards(&self, to: IpAddr) -> Option<Link> {
        doctor::link_towards(Path::new("/"), to)
    }

    fn candidates(&self, folder: &Folder) -> Vec<PathBuf> {
        let models = Hub::from_env(variable).map(|hub| hub.whole_models()).unwrap_or_default();
        let mut places = vec![PathBuf::from(&folder.path)];
        places.extend(models.into_iter().map(|model| model.folder));
        places
    }

    fn cache(&self) -> Result<PathBuf, String> {
        std::fs::create_dir_all(&self.runs_dir)
            .map_err(|error| format!("cannot create {}: {error}", self.runs_dir.display()))?;
        private_folder_of_user(&self.runs_dir, MODELS).map_err(|failure| failure.to_string())
    }

    fn start(&self, job: &Job, first: IpAddr, folders: &[PathBuf]) -> Result<u64, String> {
        let Job { rank, world_size, port, token, .. } = job;
        let mut process = Command::new(&self.program)
            .args(["train", "--plain", "--non-interactive", "--runs-dir"])
            .arg(&self.runs_dir)
            .envs(environment_of(*rank, *world_size, &first.to_string(), *port))
            .env(JobToken::VARIABLE, token)
            .envs(kept_pages())
            .envs(PLACES.iter().zip(folders))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", self.program.display()))?;
        let (has_met, said) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(String::new())));
        let (out, err) = (process.stdout.take(), process.stderr.take());
        let met = Arc::clone(&has_met);
        let heard = Arc::clone(&said);
        let readers = [
            Builder::new().name("rank's words".into()).spawn(move || {
                each_line(out, |line| {
                    if line == MET {
                        met.store(true, Ordering::SeqCst);
                    }
                });
            }),
            Builder::new().name("rank's notes".into()).spawn(move || {
                each_line(err, |line| *lock(&heard) = sentence(line));
            }),
        ];
        let readers = readers.into_iter().flatten().collect();
        let mut last = lock(&self.rank);
        let number = last.as_ref().map_or(0, |rank| rank.number + 1);
        *last = Some(Rank { number, process, has_met, said, readers, ended: None });
        Ok(number)
    }

    fn look(&self, number: u64) -> RankState {
        let mut rank = lock(&self.rank);
        let Some(rank) = rank.as_mut().filter(|rank| rank.number == number) else {
            return RankState::Ended { code: Some(0), said: String::new() };
        };
        if rank.ended.is_none()
            && let Ok(Some(status)) = rank.process.try_wait()
        {
            rank.ended = Some(status.code());
            // What it wrote last is worth a moment.
            rank.readers.drain(..).for_each(|reader| drop(reader.join()));
        }
        match rank.ended {
            Some(code) => RankState::Ended { code, said: lock(&rank.said).clone() },
            None if rank.has_met.load(Ordering::SeqCst) => RankState::Training,
            None => RankState::Waiting,
        }
    }

    fn stop(&self, number: u64) {
        let rank = lock(&self.rank);
        if let Some(rank) = rank.as_ref().filter(|rank| rank.number == number && rank.ended.is_none()) {
            signal_to_stop(Pid::from_child(&rank.process));
        }
    }

    /// Looks at this user's processes, because a trainer takes the lease of its run only when it has met the
    /// other ranks.
    fn leads(&self, run: &str) -> bool {
        let Ok(processes) = std::fs::read_dir("/proc") else { return false };
        let user = rustix::process::geteuid().as_raw();
        let own = processes
            .filter_map(Result::ok)
            .filter(|process| process.metadata().is_ok_and(|metadata| metadata.uid() == user));
        own.map(|process| process.path()).any(|process| {
            let words = std::fs::read(process.join("cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
            words.windows(2).any(|two| {
                let folder = Path::new(OsStr::from_bytes(two[1]));
                two[0] == b"trainer" && folder.file_name() == Some(OsStr::new(run))
            })
        })
    }
}

/// Returns a variable of the agent's environment, which the ranks that it starts have too.
fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn each_line(pipe: Option<impl Read>, mut take: impl FnMut(&str)) {
    let Some(pipe) = pipe else { return };
    let mut lines = BufReader::new(pipe);
    loop {
        let mut line = Vec::new();
        match (&mut lines).take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                if !text.trim().is_empty() {
                    take(text.trim());
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_leads_a_run_as_long_as_a_trainer_of_it_lives() {
        let machine = Machine::new("sparktune".into(), "runs".into());
        let run = format!("run-of-process-{}", std::process::id());
        let leads = || machine.leads(&run);
        assert!(!leads());
        let mut trainer = Command::new("sh")
            .args(["-c", "echo; read line", "trainer", &format!("/anywhere/{run}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Until it has begun, its words do not show.
        trainer.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        assert!(leads() && !machine.leads("another-run"));
        trainer.kill().unwrap();
        trainer.wait().unwrap();
        assert!(!leads());
    }
}
