//! What all requests share.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use sparktune_app::failure::Failure;
use sparktune_app::program::Program;
use sparktune_base::files::{create_private_folder, private_file};
use sparktune_runlog::RunsRoot;
use sparktune_telemetry::Sampler;
use tokio::sync::watch;

use crate::address::Names;
use crate::browsed::BrowsedCache;
use crate::facts::FactCache;
use crate::followed::FollowedRuns;
use crate::options::{Limits, Options};
use crate::tasks::Tasks;
use crate::token::Token;
use crate::workers::Workers;

/// The folder next to the runs with what the server keeps: uploads, checks, measurements, conversations,
/// votes. Lists of runs skip hidden names.
const KEPT: &str = ".serve";

/// What all requests share.
pub(crate) type Shared = Arc<Served>;

/// What all requests share.
pub(crate) struct Served {
    /// The program that is started again for training, inference and measurements.
    pub program: Program,
    /// The runs.
    pub runs: RunsRoot,
    /// Folders whose data sets can be used.
    pub data_dirs: Vec<PathBuf>,
    /// Models that the user named.
    pub models: Vec<String>,
    /// The limits of requests.
    pub limits: Limits,
    /// The names of this server.
    pub names: Names,
    /// The port.
    pub port: u16,
    /// The secret.
    pub token: Token,
    /// The runs that were asked for.
    pub followed: FollowedRuns,
    /// Long work.
    pub tasks: Tasks,
    /// The loaded models.
    pub workers: Workers,
    /// What is known about models and data.
    pub facts: FactCache,
    /// Examples that were shown last.
    pub browsed: BrowsedCache,
    /// What was counted since the start.
    pub counters: Counters,
    /// The measurements of the machine, which need the previous one.
    pub sampler: Mutex<Sampler>,
    /// Becomes true when the server ends, so that streams end too.
    pub stop: watch::Receiver<bool>,
    /// When the server started.
    pub started: Instant,
}

impl Served {
    /// Collects what requests share.
    pub(crate) fn new(
        options: Options,
        address: SocketAddr,
        token: Token,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self {
            names: Names::new(&options.allowed_hosts, address.ip()),
            tasks: Tasks::new(options.limits.tasks),
            workers: Workers::new(options.program.clone(), options.limits.models.clone()),
            facts: FactCache::default(),
            browsed: BrowsedCache::default(),
            runs: RunsRoot::new(options.runs_dir),
            program: options.program,
            data_dirs: options.data_dirs,
            models: options.models,
            limits: options.limits,
            port: address.port(),
            token,
            followed: FollowedRuns::default(),
            counters: Counters::default(),
            sampler: Mutex::new(Sampler::new()),
            stop,
            started: Instant::now(),
        }
    }

    /// Returns a private folder next to the runs for what the server keeps under this name: `uploads`,
    /// `votes`. It is created if necessary.
    ///
    /// # Errors
    /// It cannot be created, or somebody else has taken its name.
    pub(crate) fn kept(&self, name: &str) -> Result<PathBuf, Failure> {
        let folder = sparktune_app::folders::private_folder_of_user(self.runs.path(), KEPT)?.join(name);
        create_private_folder(&folder).map_err(|error| Failure::io("create", &folder, &error))?;
        Ok(folder)
    }

    /// Waits until nobody else, of this server or another one of the same runs, is changing what is kept
    /// under this name. Others wait as long as the returned file is open.
    ///
    /// # Errors
    /// The folder cannot be created, or the system refuses the lock.
    pub(crate) fn lock_kept(&self, name: &str) -> Result<File, Failure> {
        let path = self.kept(name)?.join(".lock");
        let locked = private_file().create(true).open(&path).and_then(|file| file.lock().map(|()| file));
        locked.map_err(|error| Failure::io("lock", &path, &error))
    }
}

/// Waits until the server ends.
pub(crate) async fn ended(stop: &mut watch::Receiver<bool>) {
    // If nobody can say so any more, the server ends too.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// What was counted since the start, for the metrics.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: AtomicU64,
    connections: AtomicU64,
    streams: AtomicU64,
}

impl Counters {
    /// Counts a request.
    pub(crate) fn request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an open connection until the value is dropped.
    pub(crate) fn connection(&self) -> Counted<'_> {
        Counted::new(&self.connections)
    }

    /// Counts an open stream of events until the value is dropped.
    pub(crate) fn stream(&self) -> Counted<'_> {
        Counted::new(&self.streams)
    }

    /// Returns the number of requests so far, and of open connections and streams.
    pub(crate) fn read(&self) -> [u64; 3] {
        [&self.requests, &self.connections, &self.streams].map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// Something open that is counted.
pub(crate) struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    fn new(counter: &'a AtomicU64) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
