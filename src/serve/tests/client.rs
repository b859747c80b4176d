//! A server of a test, and a client that writes HTTP by hand.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use sparktune_app::failure::Failure;
use sparktune_app::program::Program;
use tempfile::TempDir;
use tokio::sync::watch;

use crate::server::serve_until;
use crate::{Limits, Options};

/// The time that anything may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server that ends with this value.
pub(super) struct Server {
    pub address: SocketAddr,
    pub token: String,
    pub folder: TempDir,
    runs_dir: PathBuf,
    stopper: watch::Sender<bool>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl Server {
    pub(super) fn start() -> Self {
        Self::with(Limits::default())
    }

    pub(super) fn with(limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runs_dir = folder.path().join("runs");
        Self::of(limits, folder, runs_dir)
    }

    /// Starts a second server of the same runs.
    pub(super) fn beside(other: &Self) -> Self {
        Self::of(Limits::default(), tempfile::tempdir().unwrap(), other.runs_dir())
    }

    fn of(limits: Limits, folder: TempDir, runs_dir: PathBuf) -> Self {
        let options = Options {
            program: Program::current(false),
            host: "127.0.0.1".into(),
            port: Some(0),
            models: Vec::new(),
            runs_dir: runs_dir.clone(),
            data_dirs: Vec::new(),
            allowed_hosts: Vec::new(),
            state_dir: Some(folder.path().join("state")),
            limits,
        };
        let (stopper, stop) = watch::channel(false);
        let (sender, listening) = channel();
        let thread = std::thread::spawn(move || {
            serve_until(options, stop, |listening| {
                sender.send(listening.url.clone()).unwrap();
                Ok(())
            })
        });
        let url = listening.recv_timeout(PATIENCE).unwrap();
        let (address, token) = url.strip_prefix("http://").unwrap().split_once("/?token=").unwrap();
        let (address, token) = (address.parse().unwrap(), token.to_owned());
        Self { address, token, folder, runs_dir, stopper, thread: Some(thread) }
    }

    pub(super) fn runs_dir(&self) -> PathBuf {
        self.runs_dir.clone()
    }

    /// Sends bytes as they are, and reads until the server closes.
    pub(super) fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // An answer before the end of a request may be followed by a reset.
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a request with these headers and no others but those that end the connection.
    pub(super) fn send(&self, request: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut text = format!("{request} HTTP/1.1\r\nConnection: close\r\n");
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            text.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
        }
        Answer::of(&self.raw(format!("{text}\r\n{body}").as_bytes()))
    }

    /// Sends a request with the token.
    pub(super) fn ask(&self, request: &str, body: &str) -> Answer {
        let bearer = format!("Bearer {}", self.token);
        self.send(request, &[("Host", "localhost"), ("Authorization", &bearer)], body)
    }

    /// Returns the JSON of a path.
    #[track_caller]
    pub(super) fn json(&self, path: &str) -> Value {
        let answer = self.ask(&format!("GET {path}"), "");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// Opens a stream of events.
    pub(super) fn follow(&self, path: &str) -> Stream {
        let mut stream = self.connect();
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n", self.token);
        stream.write_all(head.as_bytes()).unwrap();
        Stream { stream, seen: String::new() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stopper.send(true);
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    #[track_caller]
    pub(super) fn of(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// A stream of events.
pub(super) struct Stream {
    stream: TcpStream,
    pub seen: String,
}

impl Stream {
    /// Reads until a text has come.
    #[track_caller]
    pub(super) fn wait_for(&mut self, text: &str) {
        let mut bytes = [0; 65536];
        let begun = Instant::now();
        while !self.seen.contains(text) {
            assert!(begun.elapsed() < PATIENCE, "{text} has not come after {}", self.seen);
            let read = self.stream.read(&mut bytes);
            let read =
                read.unwrap_or_else(|error| panic!("{error}: {text} has not come after {}", self.seen));
            assert!(read > 0, "the stream ended before {text}: {}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }
}

/// Appends bytes to a file.
pub(super) fn append(path: &Path, bytes: &[u8]) {
    std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap().write_all(bytes).unwrap();
}
