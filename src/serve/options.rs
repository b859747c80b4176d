//! What the server is started with.

use std::path::PathBuf;
use std::time::Duration;

use sparktune_app::program::Program;

use crate::workers::ModelLimits;

/// What the server is started with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program that is started again as a trainer, an inference worker or a measurement.
    pub program: Program,
    /// The address to listen on: an IP address, or `localhost`.
    pub host: String,
    /// The port; without one, the first free port from 7171 on.
    pub port: Option<u16>,
    /// Models that can be opened in addition to those that are found: folders, or names of runs.
    pub models: Vec<String>,
    /// The folder of the runs.
    pub runs_dir: PathBuf,
    /// Folders whose data sets can be used.
    pub data_dirs: Vec<PathBuf>,
    /// Names of this machine that requests may use, besides those of the loopback interface.
    pub allowed_hosts: Vec<String>,
    /// The folder of the token, which only this user can read. `None` without a home folder.
    pub state_dir: Option<PathBuf>,
    /// The limits of requests.
    pub limits: Limits,
}

/// The limits that keep one client from using up the server.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at a time. Further ones are told so and closed.
    pub connections: usize,
    /// The time in which the headers of a request have to arrive. An idle connection is closed after it
    /// too.
    pub header_time: Duration,
    /// The time that a body may take in addition to one second for each KiB of it.
    pub body_grace: Duration,
    /// The time in which a client has to take some of what was sent to it. Otherwise its connection is
    /// closed; one that has nothing to take stays open. The system measures this time (`TCP_USER_TIMEOUT`),
    /// so not only clients that never read are affected: one that takes a few KiB/s may announce no room for
    /// that long, and one whose network is gone for that long (Wi-Fi, a laptop that sleeps) loses its stream.
    pub write_time: Duration,
    /// The largest body of a request, except for uploads.
    pub body_bytes: usize,
    /// The largest upload.
    pub upload_bytes: u64,
    /// Tasks that run at the same time.
    pub tasks: usize,
    /// The limits of loaded models.
    pub models: ModelLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            header_time: Duration::from_secs(15),
            body_grace: Duration::from_secs(20),
            write_time: Duration::from_secs(300),
            body_bytes: 2 << 20,
            upload_bytes: 4 << 30,
            tasks: 8,
            models: ModelLimits::default(),
        }
    }
}
