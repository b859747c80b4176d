//! Token files to serve, a running server, and a watch that takes notes.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use sparktune_base::random::SplitMix64;
use sparktune_data::token_file::{Header, Origin, Source, TokenFileWriter};
use sparktune_ndp::{
    Address, Error, Event, Limits, Patience, Received, ServedFile, ServerKey, Token, Watch, receive, serve,
};

pub(crate) const TOKEN: [u8; 32] = [7; 32];
pub(crate) const KEY: [u8; 32] = [9; 32];

/// Limits for a busy machine, with short pauses.
pub(crate) const PATIENCE: Patience = Patience {
    attempts: 12,
    first_wait: Duration::from_millis(1),
    silence: Duration::from_secs(20),
    handshake: Duration::from_secs(20),
    period: Duration::from_secs(60),
};

/// Writes a token file with examples of random lengths.
pub(crate) fn token_file(path: &Path, examples: u64, longest: u32, seed: u64) {
    let mut random = SplitMix64::new(seed);
    let header = Header {
        policy: "test".into(),
        sources: vec![Source { name: "train.jsonl".into(), ..Source::default() }],
        ..Header::default()
    };
    let mut writer = TokenFileWriter::create(path, header).unwrap();
    for line in 1..=examples {
        let length = 1 + random.below(longest) as usize;
        let tokens: Vec<u32> = (0..length).map(|_| random.below(250_000)).collect();
        let mask: Vec<bool> = (0..length).map(|t| t > 0 && random.below(2) == 0).collect();
        writer.push(&tokens, &mask, Origin { file: 0, line }).unwrap();
    }
    writer.finish().unwrap();
}

/// A server in a thread of its own, which ends with this value.
pub(crate) struct Running {
    pub port: u16,
    pub events: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(files: &[&Path]) -> Self {
        Self::with(files, Limits::default(), PATIENCE)
    }

    pub(crate) fn with(files: &[&Path], limits: Limits, patience: Patience) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let files: Vec<ServedFile> = files.iter().map(|path| ServedFile::open(path).unwrap()).collect();
        let (events, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (notes, stopped) = (Arc::clone(&events), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let notice = |event: Event<'_>| {
                let text = match event {
                    Event::Sending { name, from, .. } => format!("sending {name} from {from}"),
                    Event::Sent { name, .. } => format!("sent {name}"),
                    Event::Ended { why } => format!("ended: {why}"),
                };
                notes.lock().unwrap().push(text);
            };
            let identity = (&ServerKey::from_seed(KEY), &Token::from_bytes(TOKEN));
            serve(&listener, identity, &files, limits, patience, &stopped, &notice).unwrap();
        });
        Self { port, events, stop, thread: Some(thread) }
    }

    /// Returns the examples at which transfers began.
    pub(crate) fn beginnings(&self) -> Vec<u64> {
        let events = self.events.lock().unwrap();
        events.iter().filter_map(|event| event.split_once(" from ")?.1.parse().ok()).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.thread.take().unwrap().join();
    }
}

pub(crate) fn address(port: u16, name: &str) -> Address {
    let key = ServerKey::from_seed(KEY).public();
    Address { host: "127.0.0.1".into(), port, name: name.into(), key, hash: None }
}

/// Counts retries, and cancels when this many bytes are there.
#[derive(Default)]
pub(crate) struct Notes {
    pub retries: AtomicU64,
    pub have: AtomicU64,
    pub cancel_at: Option<u64>,
}

impl Watch for Notes {
    fn progress(&self, have: u64, size: u64) {
        assert!(have <= size, "{have} of {size}");
        self.have.store(have, Ordering::SeqCst);
    }

    fn retry(&self, why: &Error, _: Duration) {
        assert!(why.is_passing(), "{why}");
        self.retries.fetch_add(1, Ordering::SeqCst);
    }

    fn is_cancelled(&self) -> bool {
        self.cancel_at.is_some_and(|at| self.have.load(Ordering::SeqCst) >= at)
    }
}

pub(crate) fn fetch(address: &Address, folder: &Path, notes: &Notes) -> Result<Received, Error> {
    fetch_with(address, folder, notes, PATIENCE)
}

pub(crate) fn fetch_with(
    address: &Address,
    folder: &Path,
    notes: &Notes,
    patience: Patience,
) -> Result<Received, Error> {
    receive(address, || Ok(Token::from_bytes(TOKEN)), folder, patience, notes)
}

/// Two folders, and a token file `train.qubgpu` in the first.
pub(crate) struct Places {
    _home: tempfile::TempDir,
    pub file: PathBuf,
    pub folder: PathBuf,
}

impl Places {
    pub(crate) fn new(examples: u64, longest: u32) -> Self {
        let home = tempfile::tempdir().unwrap();
        let (file, folder) = (home.path().join("train.qubgpu"), home.path().join("received"));
        std::fs::create_dir(&folder).unwrap();
        token_file(&file, examples, longest, 3);
        Self { _home: home, file, folder }
    }

    /// Asserts that a received file equals the served one.
    pub(crate) fn assert_same(&self, received: &Received) {
        assert!(std::fs::read(&received.path).unwrap() == std::fs::read(&self.file).unwrap());
        assert!(self.partials().is_empty());
    }

    /// Returns the partial files.
    pub(crate) fn partials(&self) -> Vec<PathBuf> {
        let found = std::fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().path());
        found.filter(|path| path.extension().is_some_and(|ending| ending == "partial")).collect()
    }
}
