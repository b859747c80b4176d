//! The serving side: accepts connections and sends files, until it is stopped.
//!
//! A stranger can hold a connection for [`Patience::handshake`] and no longer, and strangers take no
//! places of those who know the token. Each connection has a thread; there are at most [`Limits`] of them.

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_data::token_file::{Contents, TokenFileError, contents};

use crate::address::is_name;
use crate::error::Error;
use crate::medium::Patience;
use crate::messages::{Reply, Want};
use crate::payload::{Description, Source};
use crate::routing::{CLOSING, OPENING, TOKENS};
use crate::secret::{ServerKey, Token};
use crate::strangers::{StrangerPlace, Strangers};
use crate::stream::{Channel, Gate};

/// The time between two looks for a new connection or the end.
const LOOK_UP: Duration = Duration::from_millis(50);
/// Examples after which what was sent leaves this process's memory.
const RELEASE_AFTER: u64 = 4096;

/// The most connections.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections of clients that know the token.
    pub clients: usize,
    /// Connections that have not said who they are.
    pub strangers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { clients: 8, strangers: 32 }
    }
}

/// A file that is served.
pub struct ServedFile {
    /// Its name in addresses.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    source: Source,
}

impl ServedFile {
    /// Opens a file. Its name is that of the file without its ending; what an address cannot hold becomes
    /// `-`.
    ///
    /// # Errors
    /// It is no v2 token file, or is not sound.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let unreadable = |source: TokenFileError| Error::NotServed {
            what: source.to_string(),
            fix: "Only whole token files are served".into(),
        };
        if contents(path).map_err(unreadable)? != Contents::V2 {
            let shown = path.display().to_string();
            return Err(Error::NotServed {
                what: format!("{} is not a token file", escape(&shown)),
                fix: format!(
                    "Make one of it with `{} pack {} --model MODEL -o FILE.qubgpu`",
                    program_name(),
                    escape(&shown)
                ),
            });
        }
        let source = Source::open(path).map_err(unreadable)?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let name: String = stem
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '-' })
            .collect();
        let name = name.trim_start_matches('.').to_owned();
        let name = if is_name(&name) { name } else { "data".to_owned() };
        Ok(Self { name, path: path.to_path_buf(), source })
    }

    /// Returns what a receiver learns first.
    pub fn description(&self) -> Description {
        self.source.description()
    }
}

/// What happens at a server.
#[derive(Debug)]
pub enum Event<'a> {
    /// A client receives a file.
    Sending {
        /// The client.
        client: &'a str,
        /// The name of the file.
        name: &'a str,
        /// The example that it continues at.
        from: u64,
    },
    /// A client has received a file.
    Sent {
        /// The client.
        client: &'a str,
        /// The name of the file.
        name: &'a str,
    },
    /// A connection ended before that.
    Ended {
        /// The reason, with the client.
        why: &'a Error,
    },
}

/// What all connections share.
struct Server<'a> {
    gate: Gate,
    files: BTreeMap<&'a str, &'a ServedFile>,
    patience: Patience,
    limits: Limits,
    stop: &'a AtomicBool,
    clients: AtomicUsize,
    notice: &'a (dyn Fn(Event<'_>) + Sync),
}

/// Serves files until `stop` is set. Connections end then, too.
///
/// # Errors
/// Two files have the same name, or the system refuses to accept connections.
pub fn serve(
    listener: &TcpListener,
    identity: (&ServerKey, &Token),
    files: &[ServedFile],
    limits: Limits,
    patience: Patience,
    stop: &AtomicBool,
    notice: &(dyn Fn(Event<'_>) + Sync),
) -> Result<(), Error> {
    let (key, token) = identity;
    let mut named = BTreeMap::new();
    for file in files {
        if let Some(other) = named.insert(file.name.as_str(), file) {
            let paths =
                [&other.path, &file.path].map(|path| escape(&path.display().to_string()).into_owned());
            return Err(Error::NotServed {
                what: format!("{} and {} would both be called {}", paths[0], paths[1], file.name),
                fix: "Rename one of them".into(),
            });
        }
    }
    let refused = |source| Error::Listen { at: "this address".into(), source };
    listener.set_nonblocking(true).map_err(refused)?;
    let server = Server {
        gate: Gate::new(key, token),
        files: named,
        patience,
        limits,
        stop,
        clients: AtomicUsize::new(0),
        notice,
    };
    let (server, strangers) = (&server, Strangers::new(limits.strangers));
    std::thread::scope(|scope| {
        while !stop.load(Ordering::SeqCst) {
            // Whatever is wrong with one connection is not the server's end.
            let Ok((stream, _)) = listener.accept() else {
                std::thread::sleep(LOOK_UP);
                continue;
            };
            let Some(place) = strangers.admit(&stream) else { continue };
            let spawned = std::thread::Builder::new()
                .name("ndp".into())
                .spawn_scoped(scope, || server.meet(stream, place));
            if spawned.is_err() {
                std::thread::sleep(LOOK_UP);
            }
        }
    });
    Ok(())
}

/// A place among a limited number, given back when it is dropped.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(taken: &'a AtomicUsize, most: usize) -> Option<Self> {
        let more = |count: usize| (count < most).then_some(count + 1);
        taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok().map(|_| Self(taken))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Server<'_> {
    fn meet(&self, stream: TcpStream, stranger: StrangerPlace) {
        // A connection that ends with the server is not worth a word.
        if let Err(error) = self.converse(stream, stranger)
            && !self.stop.load(Ordering::SeqCst)
        {
            (self.notice)(Event::Ended { why: &error });
        }
    }

    fn converse(&self, stream: TcpStream, stranger: StrangerPlace) -> Result<(), Error> {
        let cancelled = Arc::new(|| self.stop.load(Ordering::SeqCst));
        let mut channel = self.gate.admit(stream, self.patience, cancelled)?;
        let client = channel.place().to_owned();
        let Want::File { name } = channel.hear()? else {
            return Err(Error::Protocol { place: client, what: "packets were asked for before a file was" });
        };
        drop(stranger);
        let Some(_client) = Place::take(&self.clients, self.limits.clients) else {
            return channel.tell(&Reply::Busy);
        };
        let Some(file) = self.files.get(name.as_str()) else {
            let known = self.files.keys().map(|name| (*name).to_owned()).take(20).collect();
            return channel.tell(&Reply::NoSuchFile { known });
        };
        let description = file.description();
        channel.tell(&Reply::File(description.clone()))?;
        let from = match channel.hear() {
            Ok(Want::From { example }) if example <= description.examples => example,
            Ok(_) => {
                return Err(Error::Protocol {
                    place: client,
                    what: "packets were asked for that there are not",
                });
            }
            // It has the file already.
            Err(Error::Cut { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        (self.notice)(Event::Sending { client: &client, name: &file.name, from });
        self.send(&mut channel, &file.source, from..description.examples)?;
        (self.notice)(Event::Sent { client: &client, name: &file.name });
        Ok(())
    }

    fn send(
        &self,
        channel: &mut Channel<'_>,
        source: &Source,
        examples: std::ops::Range<u64>,
    ) -> Result<(), Error> {
        channel.send(OPENING, source.opening())?;
        for example in examples {
            let Ok(packet) = source.packet(example) else {
                channel.tell(&Reply::Damaged { example })?;
                return Err(Error::DamagedThere { place: channel.place().to_owned(), example });
            };
            channel.send(TOKENS, packet)?;
            if example % RELEASE_AFTER == RELEASE_AFTER - 1 {
                source.release_pages();
            }
        }
        channel.send(CLOSING, source.closing())?;
        channel.flush()?;
        channel.wait_for_farewell()
    }
}
