//! Token files for other machines: what `data serve` offers, and where.
//!
//! Enters: files and a place to listen. Leaves: addresses that other machines can name as data, and notes
//! of what they fetch.

use std::fs;
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use sparktune_base::escape::escape;
use sparktune_base::units::count;
use sparktune_ndp::{Address, Error, Event, Limits, Patience, ServedFile, ServerKey, Token, serve};

use crate::failure::Failure;
use crate::folders::state_folder;

/// The first port that is tried.
const FIRST_PORT: u16 = 7272;
/// The ports that are tried.
const PORTS: u16 = 16;

/// Token files that are ready to be served.
pub struct DataServer {
    /// What is served.
    pub offers: Vec<Offer>,
    /// The name of this machine.
    pub host: String,
    /// Whether all networks of this machine can reach it.
    pub is_everywhere: bool,
    /// The file with the token, which the other machines need.
    pub token_file: PathBuf,
    files: Vec<ServedFile>,
    listener: TcpListener,
    key: ServerKey,
    token: Token,
}

/// One file that is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// The file.
    pub path: PathBuf,
    /// The address to give as data.
    pub address: String,
    /// The number of examples.
    pub examples: u64,
    /// The size of the file.
    pub bytes: u64,
}

impl DataServer {
    /// Opens files and listens on an address of this machine, at this port or else at the first free one
    /// from 7272 on. The first server of a user makes a key and a token, which later ones keep.
    ///
    /// # Errors
    /// A file is not a sound token file, or the address cannot be had.
    pub fn open(paths: &[PathBuf], host: &str, port: Option<u16>) -> Result<Self, Failure> {
        let files = paths.iter().map(|path| ServedFile::open(path)).collect::<Result<Vec<_>, _>>()?;
        let Some(state) = state_folder() else {
            let text = "there is no folder for the server's key: neither XDG_STATE_HOME nor HOME is set";
            return Err(Failure::usage(text).hint("Set HOME to your folder"));
        };
        let key = ServerKey::kept_in(&state)?;
        let (token, token_file) = Token::kept_in(&state)?;
        let listener = listen(host, port)?;
        let bound = listener.local_addr().map_err(|source| Error::Listen { at: host.into(), source })?;
        let host = name_of(bound.ip());
        let offer = |file: &ServedFile| {
            let (name, about) = (file.name.clone(), file.description());
            let address =
                Address { host: host.clone(), port: bound.port(), name, key: key.public(), hash: None };
            Offer {
                path: file.path.clone(),
                address: address.to_string(),
                examples: about.examples,
                bytes: about.bytes,
            }
        };
        let offers = files.iter().map(offer).collect();
        let is_everywhere = bound.ip().is_unspecified();
        Ok(Self { offers, host, is_everywhere, token_file, files, listener, key, token })
    }

    /// Serves until `stop` is set. `note` receives a line for each thing that happens.
    ///
    /// # Errors
    /// Two files have the same name.
    pub fn run(&self, stop: &AtomicBool, note: &(dyn Fn(&str) + Sync)) -> Result<(), Failure> {
        let notice = |event: Event<'_>| match event {
            Event::Sending { client, name, from: 0 } => note(&format!("{client} fetches {name}")),
            Event::Sending { client, name, from } => {
                note(&format!("{client} continues {name} at example {}", count(from)));
            }
            Event::Sent { client, name } => note(&format!("{client} has {name}")),
            Event::Ended { why } => note(&format!("ended: {why}")),
        };
        let identity = (&self.key, &self.token);
        let limits = Limits::default();
        Ok(serve(&self.listener, identity, &self.files, limits, Patience::default(), stop, &notice)?)
    }
}

fn listen(host: &str, port: Option<u16>) -> Result<TcpListener, Error> {
    let ports = port.map_or(FIRST_PORT..=FIRST_PORT + PORTS - 1, |port| port..=port);
    let mut last = None;
    for port in ports {
        match TcpListener::bind((host, port)) {
            Ok(listener) => return Ok(listener),
            Err(source) => last = Some((port, source)),
        }
    }
    let (port, source) = last.expect("at least one port was tried");
    Err(Error::Listen { at: format!("{}:{port}", escape(host)), source })
}

/// Returns the name of this machine for others that reach it at `ip`, which may stand for all its
/// addresses.
fn name_of(ip: IpAddr) -> String {
    let named = || fs::read_to_string(Path::new("/proc/sys/kernel/hostname")).ok();
    if !ip.is_unspecified() {
        return ip.to_string();
    }
    named().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).unwrap_or("localhost".into())
}
