//! A hub and its storage host on two loopback ports: std threads, one request per connection, everything
//! logged.
//!
//! Tests bend it with rules: a closure sees each request and may answer in the server's place.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};
use sparktune_hub::{Hub, Patience};
use tempfile::TempDir;

pub(crate) const ID: &str = "org/tiny";
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const WEIGHTS: &str = "model.safetensors";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Hub,
    Cdn,
}

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub role: Role,
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
}

impl Request {
    /// First byte of the range that is asked for.
    pub(crate) fn start(&self) -> usize {
        let range = self.headers.get("range").map(String::as_str).unwrap_or("bytes=0-");
        range.strip_prefix("bytes=").and_then(|r| r.split('-').next()).unwrap().parse().unwrap()
    }

    pub(crate) fn is_get_of(&self, file: &str) -> bool {
        self.method == "GET" && self.path.ends_with(&format!("/{file}"))
    }
}

/// The effect of a rule on a request.
pub(crate) enum Act {
    /// Status, extra headers, body.
    Say(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// The right answer, but the connection ends after so many bytes of the body.
    CutAfter(usize),
    /// The right answer, but silence after so many bytes of the body, for half a minute or until the server
    /// is dropped.
    StallAfter(usize),
    /// The right answer in pieces with a pause before each.
    Drip { piece: usize, pause: Duration },
    /// The whole file with status 200, whatever range was asked for.
    IgnoreRange,
    /// The right headers with the body changed in its last byte.
    Corrupt,
}

type Rule = Box<dyn Fn(&Request) -> Option<Act> + Send + Sync>;

/// By commit and name; the flag says large-file storage.
type Files = BTreeMap<(String, String), (Vec<u8>, bool)>;

struct State {
    files: Mutex<Files>,
    revisions: Mutex<BTreeMap<String, String>>,
    rules: Mutex<Vec<Rule>>,
    log: Mutex<Vec<Request>>,
    body_bytes: AtomicU64,
    cdn: SocketAddr,
    stop: AtomicBool,
}

pub(crate) struct FakeHub {
    state: Arc<State>,
    hub: SocketAddr,
    doors: Vec<JoinHandle<()>>,
}

/// Bytes without pattern, so that a misplaced piece shows.
pub(crate) fn noise(len: usize, seed: u32) -> Vec<u8> {
    let mut x = seed | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}

/// The name that git gives to a file.
fn git_hash(bytes: &[u8]) -> String {
    let hash = Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize();
    hash.iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

impl FakeHub {
    /// An empty hub.
    pub(crate) fn new() -> Self {
        let hub = TcpListener::bind("127.0.0.1:0").unwrap();
        let cdn = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = hub.local_addr().unwrap();
        let state = Arc::new(State {
            files: Mutex::default(),
            revisions: Mutex::new([("main".to_string(), COMMIT.to_string())].into()),
            rules: Mutex::default(),
            log: Mutex::default(),
            body_bytes: AtomicU64::new(0),
            cdn: cdn.local_addr().unwrap(),
            stop: AtomicBool::new(false),
        });
        let doors = [(hub, Role::Hub), (cdn, Role::Cdn)]
            .map(|(door, role)| {
                let state = state.clone();
                std::thread::spawn(move || open_door(&door, role, &state))
            })
            .into();
        Self { state, hub: address, doors }
    }

    /// A small whole model in one weight file of 3 MB, with things beside it that nobody needs.
    pub(crate) fn with_model() -> Self {
        let hub = Self::new();
        hub.put("config.json", br#"{"model_type":"qwen3"}"#, false);
        hub.put("tokenizer.json", b"{}", false);
        hub.put("tokenizer_config.json", br#"{"eos_token":"x"}"#, false);
        hub.put("chat_template.jinja", b"{{ messages }}", false);
        hub.put(WEIGHTS, &weights(), true);
        hub.put("pytorch_model.bin", b"pickle", true);
        hub.put("onnx/model.onnx", b"onnx", true);
        hub.put("README.md", b"# tiny", false);
        hub
    }

    /// A data set of two configs, one of them in two files, with a card and things beside it that nobody
    /// needs. The same files would be found under the models' addresses.
    pub(crate) fn with_data_set() -> Self {
        let hub = Self::new();
        hub.put("README.md", CARD.as_bytes(), false);
        hub.put("en/train-00000-of-00002.jsonl", &lines(0), true);
        hub.put("en/train-00001-of-00002.jsonl", &lines(1), true);
        hub.put("en/test.jsonl", &lines(2), false);
        hub.put("de/all of it (ä).jsonl", &lines(3), true);
        hub.put("images/cat.png", b"png", true);
        hub
    }

    /// The same with two shards; only the second holds `mtp.*`.
    pub(crate) fn with_shards() -> Self {
        let hub = Self::with_model();
        hub.remove(WEIGHTS);
        hub.put("model-1.safetensors", &noise(400_000, 1), true);
        hub.put("model-2.safetensors", &noise(300_000, 2), true);
        let index =
            r#"{"metadata":{},"weight_map":{"model.a":"model-1.safetensors","mtp.b":"model-2.safetensors"}}"#;
        hub.put("model.safetensors.index.json", index.as_bytes(), false);
        hub
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8], large: bool) {
        self.put_at(COMMIT, name, bytes, large);
    }

    pub(crate) fn put_at(&self, commit: &str, name: &str, bytes: &[u8], large: bool) {
        self.state.files.lock().unwrap().insert((commit.into(), name.into()), (bytes.into(), large));
    }

    pub(crate) fn remove(&self, name: &str) {
        self.state.files.lock().unwrap().remove(&(COMMIT.into(), name.into()));
    }

    pub(crate) fn set_revision(&self, name: &str, commit: &str) {
        self.state.revisions.lock().unwrap().insert(name.into(), commit.into());
    }

    pub(crate) fn rule(&self, rule: impl Fn(&Request) -> Option<Act> + Send + Sync + 'static) {
        self.state.rules.lock().unwrap().push(Box::new(rule));
    }

    /// A rule for the first `times` downloads of the weights from storage.
    pub(crate) fn on_weights(&self, times: usize, act: impl Fn(&Request) -> Act + Send + Sync + 'static) {
        let left = Mutex::new(times);
        self.rule(move |request| {
            let mut left = left.lock().unwrap();
            let hit = request.role == Role::Cdn && request.is_get_of(WEIGHTS) && *left > 0;
            hit.then(|| {
                *left -= 1;
                act(request)
            })
        });
    }

    pub(crate) fn be_good(&self) {
        self.state.rules.lock().unwrap().clear();
    }

    pub(crate) fn log(&self) -> Vec<Request> {
        self.state.log.lock().unwrap().clone()
    }

    pub(crate) fn forget(&self) {
        self.state.log.lock().unwrap().clear();
        self.state.body_bytes.store(0, Ordering::SeqCst);
    }

    /// Bytes of bodies that storage has sent, or is sending.
    pub(crate) fn bytes_from_storage(&self) -> u64 {
        self.state.body_bytes.load(Ordering::SeqCst)
    }

    pub(crate) fn downloads_of(&self, file: &str) -> Vec<Request> {
        self.log().into_iter().filter(|r| r.role == Role::Cdn && r.is_get_of(file)).collect()
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.hub)
    }

    pub(crate) fn storage(&self) -> String {
        format!("http://{}", self.state.cdn)
    }
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        for address in [self.hub, self.state.cdn] {
            drop(TcpStream::connect(address));
        }
        for door in self.doors.drain(..) {
            drop(door.join());
        }
    }
}

pub(crate) const CARD: &str = "---
license: mit
configs:
- config_name: en
  default: true
  data_files:
  - split: train
    path: en/train-*
  - split: test
    path: en/test.jsonl
- config_name: de
  data_files: de/**
---
# Tiny
";

/// Some lines of data, different for each number.
pub(crate) fn lines(number: u32) -> Vec<u8> {
    (0..2000).map(|i| format!("{{\"text\":\"{number} {i}\"}}\n")).collect::<String>().into_bytes()
}

pub(crate) fn weights() -> Vec<u8> {
    noise(3_000_000, 7)
}

fn open_door(door: &TcpListener, role: Role, state: &Arc<State>) {
    let mut guests = Vec::new();
    for stream in door.incoming() {
        if state.stop.load(Ordering::SeqCst) {
            break;
        }
        let (Ok(stream), state) = (stream, state.clone()) else { continue };
        guests.push(std::thread::spawn(move || drop(serve(stream, role, &state))));
    }
    for guest in guests {
        drop(guest.join());
    }
}

fn serve(stream: TcpStream, role: Role, state: &State) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
    stream.set_write_timeout(Some(Duration::from_secs(120)))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap_or(Ok(String::new()))?;
    let mut words = first.split(' ').map(str::to_string);
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(()) };
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.trim().to_lowercase(), value.trim().to_string());
    }
    let request = Request { role, method, path, headers };
    state.log.lock().unwrap().push(request.clone());
    let act = state.rules.lock().unwrap().iter().find_map(|rule| rule(&request));
    let (status, headers, body) = match &act {
        Some(Act::Say(status, headers, body)) => (*status, headers.clone(), body.clone()),
        act => answer(&request, state, matches!(act, Some(Act::IgnoreRange))),
    };
    send(stream, &request, state, (status, headers, body), act)
}

type Reply = (u16, Vec<(&'static str, String)>, Vec<u8>);

fn answer(request: &Request, state: &State, ignore_range: bool) -> Reply {
    let refuse = |code: &str| (404, vec![("x-error-code", code.to_string())], b"not here".to_vec());
    let path = request.path.split('?').next().unwrap();
    let files = state.files.lock().unwrap();
    let revisions = state.revisions.lock().unwrap();
    let commit_of = |revision: &str| {
        let revision = revision.replace("%2F", "/");
        let is_commit = files.keys().any(|(commit, _)| *commit == revision);
        if is_commit { Some(revision) } else { revisions.get(&revision).cloned() }
    };
    if let Some((_, key)) = path.split_once("/stored/") {
        let (commit, name) = key.split_once('/').unwrap();
        let Some((bytes, _)) = files.get(&(commit.into(), decoded(name))) else {
            return refuse("EntryNotFound");
        };
        let start = if ignore_range { 0 } else { request.start() };
        if start >= bytes.len() {
            return (416, vec![], vec![]);
        }
        if start == 0 {
            return (200, vec![], bytes.clone());
        }
        let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
        return (206, vec![("content-range", range)], bytes[start..].to_vec());
    }
    let listed = ["models", "datasets"].map(|kind| format!("/api/{kind}/{ID}/revision/"));
    if let Some(revision) = listed.iter().find_map(|listed| path.strip_prefix(listed)) {
        let Some(commit) = commit_of(revision) else { return refuse("RevisionNotFound") };
        let siblings: Vec<_> = files
            .iter()
            .filter(|((c, _), _)| *c == commit)
            .map(|((_, name), (bytes, _))| serde_json::json!({"rfilename": name, "size": bytes.len()}))
            .collect();
        let json = serde_json::json!({"id": ID, "sha": commit, "siblings": siblings, "private": false});
        return (200, vec![("content-type", "application/json".into())], json.to_string().into_bytes());
    }
    let of_kind = path.strip_prefix("/datasets").unwrap_or(path);
    let Some(rest) = of_kind.strip_prefix(&format!("/{ID}/resolve/")) else { return refuse("RepoNotFound") };
    let (revision, name) = rest.split_once('/').unwrap();
    let Some(commit) = commit_of(revision) else { return refuse("RevisionNotFound") };
    let Some((bytes, large)) = files.get(&(commit.clone(), decoded(name))) else {
        return refuse("EntryNotFound");
    };
    let mut headers = vec![("x-repo-commit", commit.clone())];
    if *large {
        headers.push(("x-linked-etag", format!("\"{}\"", sha256(bytes))));
        headers.push(("x-linked-size", bytes.len().to_string()));
        headers.push(("etag", "\"of-the-redirect-not-the-file\"".into()));
        headers.push(("location", format!("http://{}/signed-secret/stored/{commit}/{name}", state.cdn)));
        return (302, headers, b"Found".to_vec());
    }
    headers.push(("etag", format!("W/\"{}\"", git_hash(bytes))));
    (200, headers, bytes.clone())
}

/// The path without percent signs.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next().unwrap(), rest.next().unwrap()];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn send(
    mut stream: TcpStream,
    request: &Request,
    state: &State,
    reply: Reply,
    act: Option<Act>,
) -> std::io::Result<()> {
    let (status, headers, mut body) = reply;
    let mut head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if request.method == "HEAD" {
        return Ok(());
    }
    let mut pour = |bytes: &[u8]| {
        // Counted first, because a client that has them may look at once.
        if request.role == Role::Cdn {
            state.body_bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        }
        stream.write_all(bytes)
    };
    match act {
        Some(Act::CutAfter(count)) => pour(&body[..count.min(body.len())])?,
        Some(Act::StallAfter(count)) => {
            pour(&body[..count.min(body.len())])?;
            for _ in 0..3000 {
                if state.stop.load(Ordering::SeqCst) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Some(Act::Drip { piece, pause }) => {
            for piece in body.chunks(piece) {
                std::thread::sleep(pause);
                pour(piece)?;
            }
        }
        Some(Act::Corrupt) => {
            *body.last_mut().unwrap() ^= 1;
            pour(&body)?;
        }
        _ => pour(&body)?,
    }
    stream.shutdown(Shutdown::Write)
}

/// A fresh home folder, and hubs that use it.
pub(crate) struct Home {
    pub dir: TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn hub(&self, server: &FakeHub) -> Hub {
        self.hub_with(&server.endpoint(), &[])
    }

    pub(crate) fn hub_with(&self, endpoint: &str, more: &[(&str, &str)]) -> Hub {
        let home = self.dir.path().to_str().unwrap().to_string();
        let env = |name: &str| match name {
            "HF_HOME" => Some(home.clone()),
            "HF_ENDPOINT" => Some(endpoint.to_string()),
            _ => more.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string()),
        };
        Hub::from_env(env).unwrap().with_patience(impatient())
    }

    pub(crate) fn repo(&self) -> PathBuf {
        self.dir.path().join("hub/models--org--tiny")
    }

    pub(crate) fn data_repo(&self) -> PathBuf {
        self.dir.path().join("hub/datasets--org--tiny")
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.repo().join("blobs").join(etag)
    }

    pub(crate) fn part(&self, etag: &str) -> PathBuf {
        self.repo().join("blobs").join(format!("{etag}.incomplete"))
    }

    pub(crate) fn snapshot(&self) -> PathBuf {
        self.repo().join("snapshots").join(COMMIT)
    }
}

/// Short enough for tests, long enough for a busy machine.
pub(crate) fn impatient() -> Patience {
    Patience {
        attempts: 3,
        first_wait: Duration::from_millis(1),
        silence: Duration::from_secs(60),
        ..Patience::default()
    }
}

pub(crate) fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
