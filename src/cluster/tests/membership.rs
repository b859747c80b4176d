//! Agents on loopback, in threads of this process: who may ask what, how files reach a member, and what
//! strangers get.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sparktune_cluster::doctor::{Line, Link, Verdict};
use sparktune_cluster::membership::messages::{
    FileEntry, Folder, GoesOn, Introduction, Job, RankState, State, Successor, VERSION,
};
use sparktune_cluster::membership::{
    Agent, Examined, Following, Host, Launch, Recruit, Watch, Where, describe, examine, forget, goes_on,
    holds, measure, members, prepare,
};
use sparktune_cluster::{ClusterToken, Error, random_hex};

use crate::free_port;

/// A machine whose rank is only noted.
pub(crate) struct Machine {
    /// The id of its member.
    pub(crate) id: String,
    folder: tempfile::TempDir,
    has: Vec<PathBuf>,
    /// Where files that are fetched are put, if not into a folder of its own.
    shared: Option<PathBuf>,
    started: Mutex<Vec<Vec<PathBuf>>>,
    pub(crate) kept: Mutex<Option<Launch>>,
    pub(crate) stops: AtomicU64,
    pub(crate) state: Mutex<RankState>,
    /// How often that was asked.
    pub(crate) looks: AtomicU64,
    /// Whether a trainer of it leads a run, and how often that was asked.
    leads: AtomicBool,
    asked: AtomicU64,
}

impl Machine {
    pub(crate) fn with(has: &[&Path]) -> Self {
        Self {
            id: random_hex::<16>(),
            folder: tempfile::tempdir().unwrap(),
            has: has.iter().map(|path| (*path).to_owned()).collect(),
            shared: None,
            started: Mutex::default(),
            kept: Mutex::default(),
            stops: AtomicU64::new(0),
            state: Mutex::new(RankState::Waiting),
            looks: AtomicU64::new(0),
            leads: AtomicBool::new(false),
            asked: AtomicU64::new(0),
        }
    }

    pub(crate) fn started(&self) -> Vec<Vec<PathBuf>> {
        self.started.lock().unwrap().clone()
    }

    /// Whether no rank was started after the one with this number.
    fn is_last(&self, number: u64) -> bool {
        self.started.lock().unwrap().len() as u64 == number
    }
}

impl Host for Machine {
    fn free_bytes(&self) -> u64 {
        7 << 30
    }

    /// The files of a machine may say anything.
    fn examine(&self) -> Vec<Line> {
        vec![Line::new("NCCL", Verdict::Ok, "version 2.28.9\u{1b}[2J")]
    }

    fn link_towards(&self, to: IpAddr) -> Option<Link> {
        to.is_loopback().then(|| Link { interface: "lo".into(), speed: None, mtu: Some(65_536) })
    }

    fn candidates(&self, _: &Folder) -> Vec<PathBuf> {
        self.has.clone()
    }

    fn cache(&self) -> Result<PathBuf, String> {
        Ok(self.shared.clone().unwrap_or_else(|| self.folder.path().to_owned()))
    }

    fn start(&self, launch: &Launch) -> Result<u64, String> {
        assert!(launch.first.is_loopback());
        *self.kept.lock().unwrap() = Some(launch.clone());
        let mut state = self.state.lock().unwrap();
        if matches!(*state, RankState::Ended { .. }) {
            *state = RankState::Waiting;
        }
        let mut started = self.started.lock().unwrap();
        started.push(launch.folders.clone());
        Ok(started.len() as u64)
    }

    fn kept(&self) -> Option<Launch> {
        self.kept.lock().unwrap().clone()
    }

    fn forget_launch(&self) {
        *self.kept.lock().unwrap() = None;
    }

    fn look(&self, number: u64) -> RankState {
        self.looks.fetch_add(1, Ordering::SeqCst);
        if self.is_last(number) { self.state.lock().unwrap().clone() } else { ended(0) }
    }

    fn stop(&self, number: u64) {
        if self.is_last(number) {
            self.stops.fetch_add(1, Ordering::SeqCst);
            *self.state.lock().unwrap() = ended(5);
        }
    }

    fn led(&self) -> Option<(String, usize)> {
        self.leads.load(Ordering::SeqCst).then(|| ("run".to_owned(), 2))
    }

    fn successor(&self, run: &str) -> Option<Successor> {
        (run == "taken").then(|| Successor { run: "taken".into(), step: 7, trains: true })
    }

    fn leads(&self, run: &str) -> bool {
        assert_eq!(run, "run");
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.leads.load(Ordering::SeqCst)
    }
}

pub(crate) fn ended(code: i32) -> RankState {
    RankState::Ended { code: Some(code), said: String::new() }
}

pub(crate) fn introduction(name: &str, port: u16) -> Introduction {
    Introduction {
        version: VERSION,
        id: random_hex::<16>(),
        name: name.into(),
        build: "b".repeat(64),
        port,
        gpu: None,
        link: None,
    }
}

/// Runs the agents of these machines while `work` goes on: the first coordinates, the others are its members.
/// `work` gets the ports.
pub(crate) fn with_agents(token: &ClusterToken, machines: &[&Machine], work: impl FnOnce(&[u16])) {
    let stop = Arc::new(AtomicBool::new(false));
    let listeners: Vec<_> = machines.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    thread::scope(|scope| {
        for (at, (machine, listener)) in machines.iter().zip(&listeners).enumerate() {
            let (stop, ports) = (&stop, &ports);
            scope.spawn(move || {
                let name = format!("spark{at}");
                let introduction = Introduction { id: machine.id.clone(), ..introduction(&name, ports[at]) };
                let agent = Agent {
                    token,
                    introduction,
                    coordinates: at == 0,
                    known: &[],
                    call_port: None,
                    returns_within: Duration::from_secs(10),
                    host: *machine,
                    stop,
                    notice: &|_| {},
                };
                let first = Where::At("127.0.0.1".into(), ports[0]);
                let place = (at > 0).then_some(&first);
                agent.run(listener, None, place, &mut |_, _| {}).unwrap();
            });
        }
        let end = End(&stop);
        until(|| members("127.0.0.1", ports[0], token, never()).is_ok_and(|all| all.len() == machines.len()));
        work(&ports);
        drop(end);
    });
}

/// Ends the agents, also when an assertion fails.
pub(crate) struct End<'a>(pub(crate) &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

pub(crate) fn until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("it never becomes so");
}

pub(crate) fn never() -> Arc<dyn Fn() -> bool + Send + Sync> {
    Arc::new(|| false)
}

pub(crate) fn model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    let weights: Vec<u8> = (0..5_000_000_u32).map(|i| (i * 7 + i / 251) as u8).collect();
    fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    fs::write(folder.path().join("notes.pdf"), "not of a model").unwrap();
    fs::write(folder.path().join(".hidden.json"), "{}").unwrap();
    folder
}

pub(crate) fn job(model: &Path) -> Job {
    Job {
        run: "run".into(),
        build: "b".repeat(64),
        rank: 1,
        world_size: 2,
        port: 29_500,
        token: random_hex::<32>(),
        swarm: false,
        folders: vec![describe(model, &mut || Ok(())).unwrap()],
    }
}

pub(crate) fn recruit(port: u16) -> [Recruit; 1] {
    [Recruit { name: "spark1".into(), host: "127.0.0.1".into(), port }]
}

/// Counts what is sent.
#[derive(Default)]
pub(crate) struct Counted {
    sent: AtomicU64,
    fetched: AtomicU64,
}

impl Watch for Counted {
    fn sent(&self, _: &str, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::SeqCst);
    }

    fn ready(&self, _: &str, fetched: u64) {
        self.fetched.fetch_add(fetched, Ordering::SeqCst);
    }
}

pub(crate) fn sent_for(token: &ClusterToken, port: u16, model: &Path) -> Result<u64, Error> {
    let counted = Counted::default();
    let crew = prepare(&recruit(port), token, &job(model), &[model.to_owned()], never(), &counted)?;
    drop(crew);
    assert_eq!(counted.sent.load(Ordering::SeqCst), counted.fetched.load(Ordering::SeqCst));
    Ok(counted.sent.into_inner())
}

#[test]
fn members_are_listed_measured_and_forgotten_and_one_that_vanishes_is_named_with_the_reason() {
    let token = ClusterToken::generate();
    let machines = [Machine::with(&[]), Machine::with(&[]), Machine::with(&[])];
    let machines: Vec<&Machine> = machines.iter().collect();
    with_agents(&token, &machines, |ports| {
        let list = || members("127.0.0.1", ports[0], &token, never()).unwrap();
        until(|| list().iter().all(|found| found.member.report.free_bytes == 7 << 30));
        let names: Vec<_> = list().into_iter().map(|found| found.member.introduction.name).collect();
        assert_eq!(names, ["spark0", "spark1", "spark2"]);
        // What is sent first, to find out how much is enough, counts too.
        let limits: [[u64; 3]; 2] = [[64 << 20, 16 << 20, 48 << 20], [3 << 20, 3 << 19, 3 << 19]];
        for [most, least_sent, most_sent] in limits {
            let measured = measure("127.0.0.1", ports[1], &token, most, never()).unwrap();
            assert!((least_sent..=most_sent).contains(&measured.bytes), "{measured:?} of {most}");
            assert!(measured.seconds > 0.0);
        }
        // A fourth comes and goes.
        let own_stop = Arc::new(AtomicBool::new(false));
        let machine = Machine::with(&[]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fourth = introduction("spark3", listener.local_addr().unwrap().port());
        let id = fourth.id.clone();
        thread::scope(|scope| {
            let agent = Agent {
                token: &token,
                introduction: fourth,
                coordinates: false,
                known: &[],
                call_port: None,
                returns_within: Duration::from_secs(10),
                host: &machine,
                stop: &own_stop,
                notice: &|_| {},
            };
            let (place, listener) = (Where::At("127.0.0.1".into(), ports[0]), &listener);
            scope.spawn(move || agent.run(listener, None, Some(&place), &mut |_, _| {}).unwrap());
            until(|| list().len() == 4);
            own_stop.store(true, Ordering::SeqCst);
        });
        until(|| list()[3].member.gone.as_deref() == Some("its connection was cut"));
        forget("127.0.0.1", ports[0], &token, &id, never()).unwrap();
        assert_eq!(list().len(), 3);
    });
}

#[test]
fn when_the_coordinator_is_gone_the_first_of_the_others_takes_over_and_it_returns_as_a_member() {
    let token = ClusterToken::generate();
    let machines = [(); 4].map(|()| Machine::with(&[]));
    // How many others each of them knows.
    let heard = [(); 4].map(|()| AtomicUsize::new(0));
    let port = free_port();
    let serve = |number: usize, stop: &Arc<AtomicBool>, listener: TcpListener, first: Option<u16>| {
        let own = introduction(&format!("spark{number}"), listener.local_addr().unwrap().port());
        // The one that comes last has the lowest id, and takes nothing from the one that coordinates then.
        let id = ["b", "c", "d", "a"][number].repeat(32);
        let agent = Agent {
            token: &token,
            introduction: Introduction { id, ..own },
            coordinates: first.is_none(),
            known: &[],
            call_port: None,
            returns_within: Duration::ZERO,
            host: &machines[number],
            stop,
            notice: &|_| {},
        };
        let first = first.map(|port| Where::At("127.0.0.1".into(), port));
        let mut keep = |_: Option<(&str, u16)>, others: &[SocketAddr]| {
            heard[number].store(others.len(), Ordering::SeqCst);
        };
        agent.run(&listener, None, first.as_ref(), &mut keep).unwrap();
    };
    let serve = &serve;
    let bind = |port: u16| TcpListener::bind(("127.0.0.1", port)).unwrap();
    // The members that are there, the coordinator first, as the agent at this port or the coordinator says.
    let present = |port: u16| -> Vec<String> {
        let all = members("127.0.0.1", port, &token, never()).unwrap_or_default();
        let there = all.into_iter().filter(|found| found.member.gone.is_none());
        there.map(|found| found.member.introduction.name).collect()
    };
    let stops = [(); 5].map(|()| Arc::new(AtomicBool::new(false)));
    thread::scope(|scope| {
        let ends = stops.each_ref().map(|stop| End(stop));
        let [first, second, third, fourth, again] = &stops;
        let listeners = [bind(0), bind(0), bind(0)];
        let ports = listeners.each_ref().map(|listener| listener.local_addr().unwrap().port());
        let [of_second, of_third, of_fourth] = listeners;
        let of_first = bind(port);
        let ended = scope.spawn(move || serve(0, first, of_first, None));
        scope.spawn(move || serve(1, second, of_second, Some(port)));
        scope.spawn(move || serve(2, third, of_third, Some(port)));
        until(|| present(port) == ["spark0", "spark1", "spark2"]);
        until(|| heard[1..3].iter().all(|heard| heard.load(Ordering::SeqCst) == 2));
        // Its port is closed when it has ended, as if it had been killed.
        first.store(true, Ordering::SeqCst);
        ended.join().unwrap();
        for port in &ports[..2] {
            until(|| present(*port) == ["spark1", "spark2"]);
        }
        let all = members("127.0.0.1", ports[1], &token, never()).unwrap();
        let lost = all.iter().find(|found| found.member.introduction.name == "spark0").unwrap();
        assert!(lost.member.gone.is_some());
        // Another one joins by the address of a member that does not coordinate.
        scope.spawn(move || serve(3, fourth, of_fourth, Some(ports[1])));
        until(|| present(ports[0]) == ["spark1", "spark2", "spark3"]);
        // The first one comes back with the role that it had, and knows nobody.
        let of_first = bind(port);
        scope.spawn(move || serve(0, again, of_first, None));
        for port in [port, ports[2]] {
            until(|| present(port) == ["spark1", "spark0", "spark2", "spark3"]);
        }
        drop(ends);
    });
}

#[test]
fn a_member_without_the_model_gets_it_once_and_one_that_has_the_same_files_gets_nothing() {
    let (token, model) = (ClusterToken::generate(), model());
    let same = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(model.path().join(name), same.path().join(name)).unwrap();
    }
    let empty = Machine::with(&[Path::new("/nowhere")]);
    with_agents(&token, &[&Machine::with(&[]), &empty], |ports| {
        assert_eq!(sent_for(&token, ports[1], model.path()).unwrap(), 5_000_002);
        let place = empty.started()[0][0].clone();
        for name in ["config.json", "model.safetensors"] {
            assert!(fs::read(place.join(name)).unwrap() == fs::read(model.path().join(name)).unwrap());
        }
        assert_eq!(fs::read_dir(&place).unwrap().count(), 2, "nothing else of the folder is sent");
        // Who started it is gone while the rank waits, so it is told to end.
        until(|| empty.stops.load(Ordering::SeqCst) == 1);
        let idle =
            || members("127.0.0.1", ports[0], &token, never()).unwrap()[1].member.report.state == State::Idle;
        until(idle);
        assert_eq!(sent_for(&token, ports[1], model.path()).unwrap(), 0, "it is there now");
        until(|| empty.stops.load(Ordering::SeqCst) == 2);
        until(idle);
        // What the disk has changed since is fetched again.
        let damaged = place.join("model.safetensors");
        let mut weights = fs::read(&damaged).unwrap();
        weights[4_000_000] ^= 1;
        fs::write(&damaged, weights).unwrap();
        assert_eq!(sent_for(&token, ports[1], model.path()).unwrap(), 5_000_000);
        assert!(fs::read(&damaged).unwrap() == fs::read(model.path().join("model.safetensors")).unwrap());
        assert_eq!(fs::read_dir(&place).unwrap().count(), 2, "no part is left");
    });
    let has = Machine::with(&[Path::new("/nowhere"), same.path()]);
    with_agents(&token, &[&Machine::with(&[]), &has], |ports| {
        assert_eq!(sent_for(&token, ports[1], model.path()).unwrap(), 0);
        assert_eq!(has.started()[0], [same.path()]);
    });
    // A file with another byte is not the same.
    let mut weights = fs::read(model.path().join("model.safetensors")).unwrap();
    weights[4_000_000] ^= 1;
    fs::write(same.path().join("model.safetensors"), weights).unwrap();
    let has = Machine::with(&[same.path()]);
    with_agents(&token, &[&Machine::with(&[]), &has], |ports| {
        assert_eq!(sent_for(&token, ports[1], model.path()).unwrap(), 5_000_002);
    });
}

#[test]
fn a_member_says_what_its_machine_looks_like_and_whether_it_has_a_model() {
    let (token, model) = (ClusterToken::generate(), model());
    let folder = describe(model.path(), &mut || Ok(())).unwrap();
    let machines = [Machine::with(&[model.path()]), Machine::with(&[Path::new("/nowhere")])];
    with_agents(&token, &machines.each_ref(), |ports| {
        let Examined { examination, clock } = examine("127.0.0.1", ports[1], &token, never()).unwrap();
        assert_eq!(examination.lines, [Line::new("NCCL", Verdict::Ok, "version 2.28.9 [2J")]);
        assert_eq!(examination.link.unwrap().mtu, Some(65_536));
        assert_ne!(clock.line("spark1").verdict, Verdict::Note, "both have the same clock: {clock:?}");
        let has = |port| holds("127.0.0.1", port, &token, &folder, never()).unwrap();
        assert!(has(ports[0]) && !has(ports[1]));
        let gone_on = |run| goes_on("127.0.0.1", ports[1], &token, run, never()).unwrap();
        let GoesOn { member, trains, successor } = gone_on("run");
        assert_eq!((member.as_str(), trains, successor), ("spark1", false, None));
        assert_eq!(gone_on("taken").successor.map(|there| (there.step, there.trains)), Some((7, true)));
        sent_for(&token, ports[1], model.path()).unwrap();
        assert!(has(ports[1]), "it has been there since the transfer");
        let weights = machines[1].started()[0][0].join("model.safetensors");
        let mut damaged = fs::read(&weights).unwrap();
        damaged[4_000_000] ^= 1;
        fs::write(&weights, damaged).unwrap();
        assert!(!has(ports[1]), "another byte is another model");
    });
}

#[test]
fn a_transfer_continues_where_it_was_cut_and_bytes_that_changed_are_thrown_away() {
    let (token, model) = (ClusterToken::generate(), model());
    let machine = Machine::with(&[]);
    let folder = describe(model.path(), &mut || Ok(())).unwrap();
    let place = machine.folder.path().join(&folder.digest().to_hex()[..32]);
    fs::create_dir(&place).unwrap();
    let weights = fs::read(model.path().join("model.safetensors")).unwrap();
    let partial = place.join("model.safetensors.partial");
    fs::write(&partial, &weights[..3_000_000]).unwrap();
    with_agents(&token, &[&Machine::with(&[]), &machine], |ports| {
        assert_eq!(sent_for(&token, ports[1], model.path()).unwrap(), 2_000_002);
    });
    assert!(fs::read(place.join("model.safetensors")).unwrap() == weights);
    // What an earlier attempt left was damaged: nothing is used, and the next attempt begins anew.
    fs::remove_file(place.join("model.safetensors")).unwrap();
    fs::write(&partial, vec![1; 3_000_000]).unwrap();
    let machine = Machine { started: Mutex::default(), ..machine };
    with_agents(&token, &[&Machine::with(&[]), &machine], |ports| {
        let said = sent_for(&token, ports[1], model.path()).unwrap_err().to_string();
        assert!(said.contains("spark1") && said.contains("thrown away"), "{said}");
        assert!(!partial.exists() && machine.started().is_empty());
        assert_eq!(sent_for(&token, ports[1], model.path()).unwrap(), 5_000_000);
    });
}

#[test]
fn members_that_share_a_disk_fetch_one_after_the_other_and_the_second_finds_what_the_first_has() {
    let (token, model) = (ClusterToken::generate(), model());
    let shared = tempfile::tempdir().unwrap();
    let machine = || Machine { shared: Some(shared.path().to_owned()), ..Machine::with(&[]) };
    let machines = [Machine::with(&[]), machine(), machine()];
    let folder = describe(model.path(), &mut || Ok(())).unwrap();
    let place = shared.path().join(&folder.digest().to_hex()[..32]);
    with_agents(&token, &machines.each_ref(), |ports| {
        // Somebody else is at it.
        let lock = fs::File::create(place.with_extension("lock")).unwrap();
        lock.lock().unwrap();
        let recruits: Vec<_> = ports[1..]
            .iter()
            .map(|port| Recruit { name: port.to_string(), host: "127.0.0.1".into(), port: *port })
            .collect();
        let counted = Counted::default();
        let places = [model.path().to_owned()];
        thread::scope(|scope| {
            let prepared = scope.spawn(|| {
                let job = Job { world_size: 3, ..job(model.path()) };
                prepare(&recruits, &token, &job, &places, never(), &counted).map(drop)
            });
            thread::sleep(Duration::from_millis(2500));
            assert_eq!(counted.sent.load(Ordering::SeqCst), 0, "both wait");
            lock.unlock().unwrap();
            prepared.join().unwrap().unwrap();
        });
        assert_eq!(counted.sent.load(Ordering::SeqCst), 5_000_002, "one of them got it");
        for machine in &machines[1..] {
            assert_eq!(machine.started(), [[place.clone()]]);
        }
        for name in ["config.json", "model.safetensors"] {
            assert!(fs::read(place.join(name)).unwrap() == fs::read(model.path().join(name)).unwrap());
        }
        assert_eq!(fs::read_dir(&place).unwrap().count(), 2, "no part is left");
    });
}

#[test]
fn another_build_and_a_busy_member_are_refused_in_words_and_nothing_starts() {
    let (token, model) = (ClusterToken::generate(), model());
    let machine = Machine::with(&[model.path()]);
    with_agents(&token, &[&Machine::with(&[]), &machine], |ports| {
        let try_job = |job: &Job| {
            let places = [model.path().to_owned()];
            prepare(&recruit(ports[1]), &token, job, &places, never(), &Counted::default())
        };
        let other = Job { build: "c".repeat(64), ..job(model.path()) };
        let said = try_job(&other).err().unwrap().to_string();
        assert!(said.contains("spark1") && said.contains("another build"), "{said}");
        let with_files = |count: usize, name: &dyn Fn(usize) -> String| {
            let mut job = job(model.path());
            let file = job.folders[0].files[0].clone();
            job.folders[0].files =
                (0..count).map(|at| FileEntry { name: name(at), ..file.clone() }).collect();
            job
        };
        let said = try_job(&with_files(1, &|_| "a\\b.json".into())).err().unwrap().to_string();
        assert!(
            said.contains("spark1") && said.contains("refused there") && said.contains("a file"),
            "{said}"
        );
        let said = try_job(&with_files(256, &|at| format!("{at:0>200}"))).err().unwrap().to_string();
        assert!(said.contains("spark1") && said.contains("shorter names"), "{said}");
        let first = try_job(&job(model.path())).unwrap();
        let said = try_job(&job(model.path())).err().unwrap().to_string();
        assert!(said.contains("busy with run"), "{said}");
        assert_eq!(machine.started().len(), 1);
        drop(first);
    });
}

#[test]
fn a_member_of_another_version_is_told_so_and_does_not_dial_again() {
    let token = ClusterToken::generate();
    with_agents(&token, &[&Machine::with(&[])], |ports| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, machine) = (Arc::new(AtomicBool::new(false)), Machine::with(&[]));
        // A notice would say that it dials again.
        let end = |_: &str| stop.store(true, Ordering::SeqCst);
        let agent = Agent {
            token: &token,
            introduction: Introduction { version: VERSION + 1, ..introduction("spark1", port) },
            coordinates: false,
            known: &[],
            call_port: None,
            returns_within: Duration::from_secs(10),
            host: &machine,
            stop: &stop,
            notice: &end,
        };
        let first = Where::At("127.0.0.1".into(), ports[0]);
        let said = agent.run(&listener, None, Some(&first), &mut |_, _| {}).unwrap_err().to_string();
        assert!(said.contains("refused there") && said.contains("the same program"), "{said}");
    });
}

#[test]
fn whoever_started_a_rank_that_has_ended_does_not_stop_the_next_one() {
    let (token, model) = (ClusterToken::generate(), model());
    let machine = Machine::with(&[model.path()]);
    with_agents(&token, &[&Machine::with(&[]), &machine], |ports| {
        let begin = || {
            let places = [model.path().to_owned()];
            let counted = Counted::default();
            prepare(&recruit(ports[1]), &token, &job(model.path()), &places, never(), &counted)
        };
        let is_idle = || {
            let all = members("127.0.0.1", ports[0], &token, never()).unwrap();
            all[1].member.report.state == State::Idle
        };
        let first = begin().unwrap();
        until(|| !is_idle());
        *machine.state.lock().unwrap() = ended(0);
        until(is_idle);
        *machine.state.lock().unwrap() = RankState::Waiting;
        let second = begin().unwrap();
        drop(first);
        thread::sleep(Duration::from_millis(500));
        assert_eq!(machine.stops.load(Ordering::SeqCst), 0);
        drop(second);
        until(|| machine.stops.load(Ordering::SeqCst) == 1);
    });
}

#[test]
fn the_machine_that_leads_a_run_is_busy_until_its_trainer_ends_even_without_its_launcher() {
    let (token, model) = (ClusterToken::generate(), model());
    let machines = [Machine::with(&[]), Machine::with(&[model.path()])];
    with_agents(&token, &machines.each_ref(), |ports| {
        let [leader, other] = &machines;
        let all_idle = || {
            let all = members("127.0.0.1", ports[0], &token, never()).unwrap();
            all.iter().all(|found| found.member.report.state == State::Idle)
        };
        for is_left in [true, false] {
            leader.leads.store(true, Ordering::SeqCst);
            *other.state.lock().unwrap() = RankState::Training;
            let (job, places) = (job(model.path()), [model.path().to_owned()]);
            let watch = Counted::default();
            let mut crew = prepare(&recruit(ports[1]), &token, &job, &places, never(), &watch).unwrap();
            crew.led_from(&recruit(ports[0])[0], &token, &job).unwrap();
            // The coordinator has heard it. Otherwise, the other machine could look idle below for that
            // reason alone.
            until(|| {
                let all = members("127.0.0.1", ports[0], &token, never()).unwrap();
                all[1].member.report.state != State::Idle
            });
            // The dashboard is left, or its process vanishes.
            if is_left {
                Following::let_go([crew.follow(|_, _, _| ()).unwrap()], true);
            } else {
                drop(crew);
            }
            let asked = leader.asked.load(Ordering::SeqCst);
            until(|| leader.asked.load(Ordering::SeqCst) > asked + 1);
            let said = sent_for(&token, ports[0], model.path()).unwrap_err().to_string();
            assert!(said.contains("busy with run"), "{said}");
            leader.leads.store(false, Ordering::SeqCst);
            *other.state.lock().unwrap() = ended(0);
            until(all_idle);
        }
        assert_eq!(other.stops.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn an_agent_that_is_started_while_its_machine_leads_a_run_is_busy_until_that_ends() {
    let token = ClusterToken::generate();
    let leader = Machine::with(&[]);
    leader.leads.store(true, Ordering::SeqCst);
    with_agents(&token, &[&leader, &Machine::with(&[])], |ports| {
        let state = || members("127.0.0.1", ports[0], &token, never()).unwrap().remove(0).member.report.state;
        assert_eq!(state(), State::Training { run: "run".into(), rank: 0, world_size: 2 });
        leader.leads.store(false, Ordering::SeqCst);
        until(|| state() == State::Idle);
    });
}

/// Stands between the leader and an agent, whose answers are held back once it `hangs`. Returns when the
/// leader gives it up.
fn stand_between(leader: &TcpListener, agent: u16, hangs: &AtomicBool) {
    let mut leader = leader.accept().unwrap().0;
    let mut agent = TcpStream::connect(("127.0.0.1", agent)).unwrap();
    let (mut to_leader, mut from_agent) = (leader.try_clone().unwrap(), agent.try_clone().unwrap());
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = from_agent.read(&mut piece) {
                if !hangs.load(Ordering::SeqCst) {
                    let _ = to_leader.write_all(&piece[..count]);
                }
            }
        });
        let _ = std::io::copy(&mut leader, &mut agent);
        let _ = agent.shutdown(std::net::Shutdown::Both);
    });
}

#[test]
fn a_member_that_no_longer_answers_does_not_make_the_others_lose_their_leader() {
    let (token, model) = (ClusterToken::generate(), model());
    let has = || Machine::with(&[model.path()]);
    let machines = [Machine::with(&[]), has(), has()];
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = between.local_addr().unwrap().port();
    let hangs = AtomicBool::new(false);
    with_agents(&token, &machines.each_ref(), |ports| {
        thread::scope(|scope| {
            let given_up = scope.spawn(|| stand_between(&between, ports[1], &hangs));
            let recruits = [at, ports[2]].map(|port| recruit(port)[0].clone());
            let job = Job { world_size: 3, ..job(model.path()) };
            let places = [model.path().to_owned()];
            let mut crew = prepare(&recruits, &token, &job, &places, never(), &Counted::default()).unwrap();
            crew.led_from(&recruit(ports[0])[0], &token, &job).unwrap();
            let following = crew.follow(|_, _, _| ()).unwrap();
            hangs.store(true, Ordering::SeqCst);
            given_up.join().unwrap();
            let all = members("127.0.0.1", ports[0], &token, never()).unwrap();
            let training = |rank| State::Training { run: "run".into(), rank, world_size: 3 };
            let states = [&all[0], &all[2]].map(|found| found.member.report.state.clone());
            assert_eq!(states, [0, 2].map(training));
            assert_eq!(machines[2].stops.load(Ordering::SeqCst), 0);
            Following::let_go([following], true);
        });
    });
}

#[test]
fn without_the_token_nobody_can_ask_join_read_files_or_start_anything() {
    let (token, model) = (ClusterToken::generate(), model());
    let machine = Machine::with(&[model.path()]);
    with_agents(&token, &[&machine, &Machine::with(&[])], |ports| {
        let other = ClusterToken::generate();
        let asked = members("127.0.0.1", ports[0], &other, never());
        assert!(matches!(asked, Err(Error::OtherCluster { .. })), "{asked:?}");
        let examined = examine("127.0.0.1", ports[0], &other, never());
        assert!(matches!(examined, Err(Error::OtherCluster { .. })), "{examined:?}");
        let folder = describe(model.path(), &mut || Ok(())).unwrap();
        let held = holds("127.0.0.1", ports[0], &other, &folder, never());
        assert!(matches!(held, Err(Error::OtherCluster { .. })), "{held:?}");
        let gone_on = goes_on("127.0.0.1", ports[0], &other, "taken", never());
        assert!(matches!(gone_on, Err(Error::OtherCluster { .. })), "{gone_on:?}");
        let started = sent_for(&other, ports[0], model.path());
        assert!(matches!(started, Err(Error::OtherCluster { .. })), "{started:?}");
        let stop = Arc::new(AtomicBool::new(false));
        let agent = Agent {
            token: &other,
            introduction: introduction("stranger", 1),
            coordinates: false,
            known: &[],
            call_port: None,
            returns_within: Duration::from_secs(10),
            host: &Machine::with(&[]),
            stop: &stop,
            notice: &|_| {},
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let joined =
            agent.run(&listener, None, Some(&Where::At("127.0.0.1".into(), ports[0])), &mut |_, _| {});
        assert!(matches!(joined, Err(Error::OtherCluster { .. })), "{joined:?}");
        // A question without TLS, and the bytes of a member's own conversation once more.
        let question = b"NDPF\0\0\xf0\0\0\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\"Members\"".to_vec();
        for bytes in [question, recorded(&token, ports[0])] {
            let mut stream = TcpStream::connect(("127.0.0.1", ports[0])).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            let text = String::from_utf8_lossy(&answer);
            assert!(!text.contains("spark") && answer.len() < 2000, "{text}");
        }
        assert_eq!(members("127.0.0.1", ports[0], &token, never()).unwrap().len(), 2, "nobody else is there");
        assert!(machine.started().is_empty());
    });
}

/// The bytes that a program with the token sends to ask for the members.
fn recorded(token: &ClusterToken, port: u16) -> Vec<u8> {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = proxy.local_addr().unwrap().port();
    thread::scope(|scope| {
        let copied = scope.spawn(move || {
            let client = proxy.accept().unwrap().0;
            let agent = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (mut from, mut to) = (agent.try_clone().unwrap(), client.try_clone().unwrap());
            let back = thread::spawn(move || std::io::copy(&mut from, &mut to));
            let (mut client, mut agent, mut bytes, mut piece) = (client, agent, Vec::new(), [0; 4096]);
            while let Ok(count @ 1..) = client.read(&mut piece) {
                bytes.extend_from_slice(&piece[..count]);
                agent.write_all(&piece[..count]).unwrap();
            }
            let _ = agent.shutdown(std::net::Shutdown::Both);
            let _ = back.join();
            bytes
        });
        assert_eq!(members("127.0.0.1", at, token, never()).unwrap().len(), 2);
        copied.join().unwrap()
    })
}
