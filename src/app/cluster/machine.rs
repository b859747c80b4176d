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

use rustix::process::{Pid, geteuid};
use sparktune_base::files::is_plain_name;
use sparktune_base::kept_pages;
use sparktune_base::locked::Locked;
use sparktune_cluster::doctor::{self, Line, Link};
use sparktune_cluster::membership::messages::{Folder, Job, RankState, Successor, sentence};
use sparktune_cluster::membership::{Host, Launch};
use sparktune_cluster::{JobToken, environment_of};
use sparktune_hub::Hub;
use sparktune_runlog::RunsRoot;
use sparktune_telemetry::Sampler;

use super::elsewhere::described;
use super::kept_launch::KeptLaunch;
use crate::caches::MODELS;
use crate::failure::Exit;
use crate::folders::private_folder_of_user;
use crate::stop_request::signal_to_stop;

/// The word that a rank prints when it has met the others.
pub const MET: &str = "met";
/// The variables that say where the base model is on this machine, and the model whose head is used. Who has
/// the first was started by an agent.
pub const PLACES: [&str; 2] = ["SPARKTUNE_CLUSTER_MODEL", "SPARKTUNE_CLUSTER_HEAD"];
/// The variable with the file that a rank removes if it ends for good. Otherwise its agent starts it again.
pub const KEPT: &str = "SPARKTUNE_CLUSTER_KEPT";
/// The time that a rank has to end before its agent ends without it.
const GRACE: Duration = Duration::from_secs(20);
/// The time that a rank has to make way for another one, whose leader waits meanwhile.
const MAKING_WAY: Duration = Duration::from_secs(5);
/// The longest line of a rank that is kept.
const LONGEST_LINE: u64 = 4096;

/// This machine.
pub(super) struct Machine {
    program: PathBuf,
    runs_dir: PathBuf,
    memory: Mutex<Sampler>,
    kept: KeptLaunch,
    rank: Mutex<Rank>,
}

/// The rank that was started last, if there was one.
#[derive(Default)]
struct Rank {
    /// Those that were started before it have smaller ones.
    number: u64,
    /// That of an earlier agent cannot be waited for.
    process: Option<Child>,
    has_met: Arc<AtomicBool>,
    /// The last line that it wrote.
    said: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
    ended: Option<Option<i32>>,
}

impl Machine {
    pub(super) fn new(program: PathBuf, runs_dir: PathBuf, kept: KeptLaunch) -> Self {
        Self { program, runs_dir, memory: Mutex::new(Sampler::new()), kept, rank: Mutex::default() }
    }

    /// Ends the rank for good, and waits for it.
    pub(super) fn end(&self) {
        let number = lock(&self.rank).number;
        self.stop(number);
        if self.ends_within(number, GRACE) {
            self.forget_launch();
        }
    }

    fn ends_within(&self, number: u64, limit: Duration) -> bool {
        is_so_within(limit, || matches!(self.look(number), RankState::Ended { .. }))
    }
}

fn is_so_within(limit: Duration, is_so: impl Fn() -> bool) -> bool {
    let since = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if since.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
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

    fn start(&self, launch: &Launch) -> Result<u64, String> {
        let Launch { job: Job { rank, world_size, port, token, swarm, .. }, first, folders, .. } = launch;
        let last = lock(&self.rank).number;
        // Another agent of this user may have started one meanwhile.
        let is_over = || matches!(self.look(last), RankState::Ended { .. }) && !self.kept.is_in_use();
        if !is_so_within(MAKING_WAY, is_over) {
            return Err(
                "an earlier rank on this machine has not ended yet. Start the run again when it has".into()
            );
        }
        let kept = self.kept.path();
        let replaced = self.kept.replace(launch).and_then(|file| Ok((file.try_clone()?, file)));
        let (stdin, locked) = match replaced {
            Ok((stdin, file)) => (Stdio::from(stdin), Some(file)),
            Err(error) if *swarm => {
                self.forget_launch();
                return Err(format!(
                    "cannot write {}, from which the rank of a swarm would be started again: {error}. Free space there or make it writable, or train with --swarm false",
                    kept.display()
                ));
            }
            // It does not come back anyway.
            Err(_) => (Stdio::null(), None),
        };
        let spawned = Command::new(&self.program)
            .args(["train", "--plain", "--non-interactive", "--runs-dir"])
            .arg(&self.runs_dir)
            .envs(environment_of(*rank, *world_size, &first.to_string(), *port))
            .env(JobToken::VARIABLE, token)
            .env(KEPT, kept)
            .envs(kept_pages())
            .envs(PLACES.iter().zip(folders))
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut process = spawned.map_err(|error| {
            // No rank was started, but a process that another thread is just starting may have the file too.
            drop(locked.map(Locked::new));
            self.forget_launch();
            format!("cannot start {}: {error}", self.program.display())
        })?;
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
        let number = last.number + 1;
        *last = Rank { number, process: Some(process), has_met, said, readers, ended: None };
        Ok(number)
    }

    fn kept(&self) -> Option<Launch> {
        self.kept.find()
    }

    fn forget_launch(&self) {
        self.kept.remove();
    }

    fn look(&self, number: u64) -> RankState {
        let rank = &mut *lock(&self.rank);
        if rank.number != number {
            return RankState::Ended { code: Some(0), said: String::new() };
        }
        let Some(process) = &mut rank.process else {
            return if self.kept.is_in_use() {
                RankState::Training
            } else if self.kept.path().exists() {
                RankState::Ended { code: None, said: String::new() }
            } else {
                // It has ended for good.
                RankState::Ended { code: Some(0), said: String::new() }
            };
        };
        if rank.ended.is_none()
            && let Ok(Some(status)) = process.try_wait()
        {
            rank.ended = Some(status.code());
            if status.code().is_some_and(would_end_so_again) {
                self.forget_launch();
            }
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
        let process = match &rank.process {
            _ if rank.number != number => None,
            Some(process) => rank.ended.is_none().then(|| Pid::from_child(process)),
            None => self.kept.process(),
        };
        if let Some(process) = process {
            signal_to_stop(process);
        }
    }

    fn leads(&self, run: &str) -> bool {
        led_runs().any(|led| led.run.file_name() == Some(OsStr::new(run)))
    }

    fn led(&self) -> Option<(String, usize)> {
        let runs_dir = self.runs_dir.canonicalize().unwrap_or_else(|_| self.runs_dir.clone());
        let is_here = |run: &Path| run.parent() == Some(&runs_dir);
        let name = |run: &Path| Some(run.file_name()?.to_str()?.to_owned());
        led_runs().filter(|led| is_here(&led.run)).find_map(|led| Some((name(&led.run)?, led.world_size?)))
    }

    fn successor(&self, run: &str) -> Option<Successor> {
        let found = RunsRoot::new(&self.runs_dir).successors_of(run).unwrap_or_default().into_iter();
        let named = found.map(|run| described(&run)).filter(|found| is_plain_name(&found.run));
        named.max_by_key(|found| (found.trains, found.step))
    }
}

/// A run that a trainer of this user leads now.
struct Led {
    /// Its folder.
    run: PathBuf,
    /// The number of ranks, if it has others.
    world_size: Option<usize>,
}

/// Looks at this user's processes, because a trainer takes the lease of its run only when it has met the
/// other ranks.
fn led_runs() -> impl Iterator<Item = Led> {
    let user = geteuid().as_raw();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = processes
        .filter(move |process| process.metadata().is_ok_and(|metadata| metadata.uid() == user))
        .map(|process| process.path());
    own.filter_map(|process| {
        let words = |file| std::fs::read(process.join(file)).unwrap_or_default();
        let command = words("cmdline");
        let command: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
        let at = command.iter().position(|word| *word == b"trainer")?;
        let run = PathBuf::from(OsStr::from_bytes(command.get(at + 1)?));
        let environment = words("environ");
        let value = |name: &str| {
            let all = environment.split(|byte| *byte == 0);
            let mut values = all.filter_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
            std::str::from_utf8(values.next()?).ok()?.parse::<usize>().ok()
        };
        let world_size = value("WORLD_SIZE").filter(|size| *size > 1 && value("RANK") == Some(0));
        Some(Led { run, world_size })
    })
}

/// Returns whether a rank that has ended with this code would end so again. One that was stopped from outside
/// or did not reach the others might not: it removes the file itself if it has ended for good.
fn would_end_so_again(code: i32) -> bool {
    !matches!(Exit::from_code(code), Exit::Stopped | Exit::Network)
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
    use crate::cluster::kept_launch::tests::{in_folder, launch};

    /// A machine whose program is a script. A process of its own writes it: no other one that is just being
    /// started holds it open for writing then, which would keep it from being executed.
    fn with_program(folder: &Path, script: &str) -> Machine {
        let program = folder.join("program");
        let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 700 "$1""#;
        let written = Command::new("sh").args(["-c", write, "sh"]).arg(&program).arg(script).status();
        assert!(written.unwrap().success());
        Machine::new(program, folder.join("runs"), in_folder(folder))
    }

    fn until(is_so: impl Fn() -> bool) {
        for _ in 0..6000 {
            if is_so() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it never becomes so");
    }

    #[test]
    fn a_rank_that_is_killed_can_be_started_again_also_by_another_agent_but_not_beside_itself() {
        let folder = tempfile::tempdir().unwrap();
        let machine = || with_program(folder.path(), "echo met; exec sleep 1000");
        let first = machine();
        let number = first.start(&launch()).unwrap();
        until(|| first.look(number) == RankState::Training);
        // The first agent may have ended.
        let second = machine();
        assert!(second.kept() == Some(launch()) && second.look(0) == RankState::Training);
        second.stop(0);
        let was_stopped = RankState::Ended { code: None, said: String::new() };
        until(|| first.look(number) == was_stopped);
        assert!(second.kept() == Some(launch()));
        let number = first.start(&launch()).unwrap();
        until(|| first.look(number) == RankState::Training);
        let said = second.start(&launch()).unwrap_err();
        assert!(said.contains("has not ended"), "{said}");
        let process = Pid::from_child(lock(&first.rank).process.as_ref().unwrap());
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        let is_killed =
            |machine: &Machine, number| matches!(machine.look(number), RankState::Ended { code: None, .. });
        until(|| is_killed(&first, number));
        assert!(first.kept() == Some(launch()) && is_killed(&second, 0));
        let number = second.start(&Launch { restarts: 3, ..launch() }).unwrap();
        until(|| second.look(number) == RankState::Training);
        assert_eq!(second.kept().unwrap().restarts, 3);
        let said = first.start(&launch()).unwrap_err();
        assert!(said.contains("has not ended"), "both agents may live: {said}");
        second.end();
        assert_eq!(second.kept(), None, "who ends the agent ends the rank for good");
    }

    #[test]
    fn of_a_rank_that_ends_by_itself_nothing_is_kept_unless_it_can_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let ended = |code, said: &str| RankState::Ended { code: Some(code), said: said.into() };
        let for_good = format!("rm \"${KEPT}\"; exit 5");
        let cases = [
            ("exit 0", 0, false),
            ("exit 3", 3, false),
            ("exit 101", 101, false),
            (for_good.as_str(), 5, false),
        ];
        for (does, code, is_kept) in cases.into_iter().chain([("exit 5", 5, true), ("exit 69", 69, true)]) {
            let machine = with_program(folder.path(), &format!("echo why >&2; {does}"));
            let number = machine.start(&launch()).unwrap();
            until(|| machine.look(number) == ended(code, "why"));
            assert_eq!(machine.kept().is_some(), is_kept, "{does}");
        }
        let later = Machine::new("program".into(), "runs".into(), in_folder(folder.path()));
        until(|| matches!(later.look(0), RankState::Ended { code: None, .. }));
        assert!(later.start(&launch()).unwrap_err().contains("cannot start"));
        assert_eq!((later.kept(), later.look(0)), (None, ended(0, "")));
    }

    #[test]
    fn a_rank_that_would_not_come_back_is_started_also_where_nothing_can_be_kept() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("sparktune"), "no folder").unwrap();
        let machine = with_program(folder.path(), "exit 0");
        let number =
            machine.start(&Launch { job: Job { swarm: false, ..launch().job }, ..launch() }).unwrap();
        until(|| machine.look(number) == RankState::Ended { code: Some(0), said: String::new() });
        let said = machine.start(&launch()).unwrap_err();
        assert!(said.contains("cannot write"), "{said}");
    }

    #[test]
    fn a_machine_leads_a_run_as_long_as_a_trainer_of_it_lives() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine::new("sparktune".into(), "/anywhere/runs".into(), in_folder(folder.path()));
        let run = format!("run-of-process-{}", std::process::id());
        let leads = || machine.leads(&run);
        assert!(!leads());
        let started = |environment: &[(String, String)]| {
            let mut trainer = Command::new("sh")
                .args(["-c", "echo; read line", "trainer", &format!("/anywhere/runs/{run}")])
                .env_remove("WORLD_SIZE")
                .envs(environment.iter().cloned())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            // Until it has begun, its words do not show.
            trainer.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            trainer
        };
        let mut trainer = started(&[]);
        assert!(leads() && !machine.leads("another-run"));
        assert_ne!(machine.led().map(|(led, _)| led), Some(run.clone()), "it has no other ranks");
        trainer.kill().unwrap();
        trainer.wait().unwrap();
        assert!(!leads());
        let environment = environment_of(0, 3, "127.0.0.1", 29_500);
        let mut trainer = started(&environment);
        assert_eq!(machine.led(), Some((run.clone(), 3)));
        let elsewhere = Machine::new("sparktune".into(), "/runs".into(), in_folder(folder.path()));
        assert_eq!(elsewhere.led(), None, "another agent of this user may have started it");
        trainer.kill().unwrap();
        trainer.wait().unwrap();
        let mut other = started(&environment_of(1, 3, "127.0.0.1", 29_500));
        assert_ne!(machine.led().map(|(led, _)| led), Some(run.clone()), "it is not rank 0");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
