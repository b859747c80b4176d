//! The agent of this machine, from its port to its end.

use std::fs::{File, TryLockError};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use sparktune_base::files::{create_private_folder, private_file};
use sparktune_base::program_name;
use sparktune_cluster::discovery::Answerer;
use sparktune_cluster::membership::messages::{Introduction, VERSION, name};
use sparktune_cluster::membership::{Agent, Where};
use sparktune_cluster::{Error, discovery};
use sparktune_telemetry::Machine as Facts;

use super::kept_launch::KeptLaunch;
use super::machine::Machine;
use super::membership::{Coordinator, Membership};
use crate::failure::Failure;
use crate::folders::required_state_folder;
use crate::program::Program;

/// The ports that are tried, from [`discovery::PORT`] on.
const PORTS: u16 = 32;
/// A setting of tests: the seconds for which a coordinator may be gone before another member takes over.
const RETURNS: &str = "SPARKTUNE_CLUSTER_RETURN_S";
/// The pause between two looks whether this machine is still a member.
const LOOK: Duration = Duration::from_millis(500);
/// The file that an agent holds a lock on as long as it lives, in the folder of the user's state.
const LOCK: &str = "cluster-agent.lock";
/// The time in which an agent of a membership that was left or replaced ends.
const ENDING: Duration = Duration::from_secs(3);

/// An agent that listens and does not serve yet.
pub struct Ready {
    membership: Membership,
    listener: TcpListener,
    answerer: Option<Answerer>,
    /// Keeps other agents of this user away; `None` on a disk without locks.
    lock: Option<File>,
    /// Why calls on the link cannot be answered, if so.
    pub deaf: Option<String>,
}

impl Ready {
    /// Listens, at the port of the membership or else at a free one, and keeps the membership.
    ///
    /// # Errors
    /// Another agent of this user runs, nothing can be listened to, or the membership cannot be kept.
    pub fn listen(mut membership: Membership, port: Option<u16>) -> Result<Self, Failure> {
        let lock = lock()?;
        let wanted = port.or(Some(membership.port).filter(|port| *port > 0));
        let listener = listen(wanted, port.is_some())?;
        let bound = listener
            .local_addr()
            .map_err(|source| Error::Listen { at: "the agent's port".into(), source })?;
        membership.port = bound.port();
        let (mut answerer, mut deaf) = (None, None);
        if membership.coordinator.is_none() {
            match Answerer::open(&membership.token()?, membership.call_port, bound.port()) {
                Ok(opened) => answerer = Some(opened),
                Err(error) => deaf = Some(error.to_string()),
            }
        }
        membership.keep()?;
        Ok(Self { membership, listener, answerer, lock, deaf })
    }

    /// Returns the membership, with the port.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Serves until `stop` is set or this machine is no member any more. `note` receives a line for each
    /// thing that happens.
    ///
    /// # Errors
    /// The coordinator refuses this member, or has another token.
    pub fn serve(
        self,
        program: &Program,
        runs_dir: &Path,
        stop: &Arc<AtomicBool>,
        note: &(dyn Fn(&str) + Sync),
    ) -> Result<(), Failure> {
        let Self { membership, listener, answerer, lock, .. } = self;
        let token = membership.token()?;
        let runs_dir =
            std::path::absolute(runs_dir).map_err(|error| Failure::io("find", runs_dir, &error))?;
        let machine = Machine::new(program.path()?.to_owned(), runs_dir, KeptLaunch::of_user()?);
        let introduction = introduction(program, &membership)?;
        let place = membership.coordinator.as_ref().map(|coordinator| match coordinator {
            Coordinator { at: Some((host, port)), by_call: false } => Where::At(host.clone(), *port),
            _ => Where::OnTheLink(membership.call_port),
        });
        watch_membership(&membership, stop)?;
        let seconds = std::env::var(RETURNS).ok().and_then(|text| text.parse().ok()).unwrap_or(10);
        let known = membership.known.clone();
        let agent = Agent {
            token: &token,
            introduction,
            coordinates: place.is_none(),
            known: &known,
            call_port: Some(membership.call_port),
            returns_within: Duration::from_secs(seconds),
            host: &machine,
            stop,
            notice: note,
        };
        let mut kept = membership;
        let mut keep = |at: Option<(&str, u16)>, others: &[SocketAddr]| {
            if let (Some(coordinator), Some((host, port))) = (&mut kept.coordinator, at) {
                coordinator.at = Some((host.to_owned(), port));
            }
            kept.known = others.to_vec();
            // The membership may have been left in the meantime.
            if kept.is_kept()
                && let Err(failure) = kept.keep()
            {
                note(&failure.to_string());
            }
        };
        let done = agent.run(&listener, answerer, place.as_ref(), &mut keep);
        // One that ends with an error may be started again, and finds its rank.
        if done.is_ok() {
            machine.end();
        }
        drop(lock);
        Ok(done?)
    }
}

/// Makes this agent the only one of its user: two would write one membership, and start one rank twice.
fn lock() -> Result<Option<File>, Failure> {
    let folder = required_state_folder("the lock of the agent")?;
    let path = folder.join(LOCK);
    let opened = create_private_folder(&folder)
        .and_then(|()| private_file().write(true).create(true).truncate(false).open(&path));
    let file = opened.map_err(|error| Failure::io("write", &path, &error))?;
    let since = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::Error(_)) => return Ok(None),
            Err(TryLockError::WouldBlock) if since.elapsed() < ENDING => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::usage("an agent of this user is already running").hint(format!(
                    "`{} cluster status` asks it. To start another one, end it first, with Ctrl-C, or with `systemctl stop` if it is a service",
                    program_name()
                )));
            }
        }
    }
}

fn listen(wanted: Option<u16>, only: bool) -> Result<TcpListener, Failure> {
    let bind = |port: u16| {
        // The IPv6 address of all interfaces takes IPv4 too, where there is IPv6.
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
    };
    let others = discovery::PORT..discovery::PORT + PORTS;
    let ports = wanted.into_iter().chain(others.filter(|_| !only));
    let mut last = None;
    for port in ports {
        match bind(port) {
            Ok(listener) => return Ok(listener),
            Err(source) => last = Some((port, source)),
        }
    }
    let (port, source) = last.expect("at least one port was tried");
    Err(Failure::usage(format!("cannot listen on port {port}: {source}"))
        .hint("Another agent may run on this machine: end it, or choose another --port"))
}

fn introduction(program: &Program, membership: &Membership) -> Result<Introduction, Failure> {
    let facts = Facts::gather();
    let gpu = facts.gpus.first().map(|gpu| name(gpu.name.as_deref().unwrap_or("a GPU")));
    Ok(Introduction {
        version: VERSION,
        id: membership.id.clone(),
        name: membership.name.clone(),
        build: program.build_hash()?,
        port: membership.port,
        gpu: gpu.filter(|gpu| !gpu.is_empty()),
        link: None,
    })
}

/// Ends the agent when `cluster leave` has removed the membership.
fn watch_membership(membership: &Membership, stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    let (membership, stop) = (membership.clone(), Arc::clone(stop));
    let watch = move || {
        while !stop.load(Ordering::SeqCst) && membership.is_kept() {
            std::thread::sleep(LOOK);
        }
        stop.store(true, Ordering::SeqCst);
    };
    let started = Builder::new().name("membership".into()).spawn(watch);
    started.map(drop).map_err(|error| Error::Thread(error).into())
}

/// Returns the words of the join line: the addresses by which others can reach this machine.
pub fn reachable_at(port: u16) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let all = discovery::addresses_in(&text).into_iter().filter(|address| !address.is_loopback());
    all.map(|address| format!("{address}:{port}")).collect()
}
