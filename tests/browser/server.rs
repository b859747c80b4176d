//! A server of a test, and requests to it over a plain socket.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sparktune_runlog::{Lease, RunDir, RunsRoot};

use crate::sparktune::Place;

/// The time after which something that should have happened has not.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// `sparktune serve` with a folder of its own, which ends with the value.
pub(crate) struct Server {
    pub place: Place,
    process: Child,
    pub port: u16,
    pub token: String,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: Vec<u8>,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {self:?}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// Fails the test, with the whole answer, unless it has this status.
    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}\n{}", self.headers, String::from_utf8_lossy(&self.body));
        self
    }
}

impl Server {
    /// Starts a server with the data folder `data`, and prepares its folder before.
    pub(crate) fn start(prepare: impl FnOnce(&Place)) -> Self {
        let place = Place::new();
        fs::create_dir(place.join("data")).unwrap();
        prepare(&place);
        let (process, port, token) = serve(&place);
        Self { place, process, port, token }
    }

    /// Kills the server and starts another one in its place, at another port.
    pub(crate) fn restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        (self.process, self.port, self.token) = serve(&self.place);
    }

    /// The address that was printed.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/?token={}", self.port, self.token)
    }

    /// The folder of the runs.
    pub(crate) fn runs(&self) -> PathBuf {
        self.place.join("runs")
    }

    /// The time that the server has had on processors, to a hundredth of a second.
    pub(crate) fn time_on_processors(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        // The name of the program comes before, in brackets, and may contain anything.
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        let ticks = |field: &str| field.parse::<u64>().unwrap();
        Duration::from_millis(10 * rest.split(' ').skip(11).take(2).map(ticks).sum::<u64>())
    }

    fn the_run(&self) -> RunDir {
        RunsRoot::new(self.runs()).list().unwrap().pop().unwrap()
    }

    /// Waits until the trainer of the only run, which is held still, is asked for something.
    #[track_caller]
    pub(crate) fn wait_for_request(&self) {
        let begun = Instant::now();
        while fs::read_dir(self.the_run().control()).is_ok_and(|mut asked| asked.next().is_none()) {
            assert!(begun.elapsed() < LONG, "the trainer is asked for nothing");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal to the trainer of the only run.
    #[track_caller]
    pub(crate) fn signal_trainer(&self, signal: Signal) {
        let run = self.the_run();
        assert!(Lease::is_held(&run).unwrap(), "nobody trains it");
        let trainer = i32::try_from(Lease::holder_of(&run).pid).unwrap();
        kill_process(Pid::from_raw(trainer).unwrap(), signal).unwrap();
    }

    /// Sends a request to an endpoint below `/api/v1` and reads the whole answer.
    pub(crate) fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Answer {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        let head = format!(
            "{method} /api/v1{path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\
             Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            self.port,
            self.token,
            body.len()
        );
        socket.write_all(head.as_bytes()).unwrap();
        // A server that refuses a body may answer before it has read it.
        let _ = socket.write_all(body);
        read_answer(socket)
    }

    /// Sends the head of a request alone, which asks to close the connection, and reads the answer.
    pub(crate) fn send_head(&self, head: &str) -> Answer {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        socket.write_all(head.as_bytes()).unwrap();
        read_answer(socket)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "application/json", b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, "application/json", body.to_string().as_bytes())
    }

    /// Waits for the end of the task in an answer of 202, and returns it; other answers are returned as they
    /// are.
    #[track_caller]
    pub(crate) fn ended(&self, answer: Answer) -> Value {
        let mut task = answer.json();
        if answer.status != 202 {
            return json!({"state": "done", "result": task});
        }
        let begun = Instant::now();
        while task["state"] == "running" {
            assert!(begun.elapsed() < LONG, "the task does not end: {task}");
            std::thread::sleep(Duration::from_millis(50));
            task = self.get(&format!("/tasks/{}", task["id"].as_str().unwrap())).is(200).json();
        }
        task
    }

    /// Waits for the result of a task.
    #[track_caller]
    pub(crate) fn result(&self, answer: Answer) -> Value {
        let mut task = self.ended(answer);
        assert_eq!(task["state"], "done", "{task}");
        task["result"].take()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // A trainer outlives the server, and would outlive the test.
        for run in fs::read_dir(self.runs()).into_iter().flatten().filter_map(Result::ok) {
            end_trainer(&run.path().join("lease.lock"));
        }
    }
}

/// Ends the trainer that holds a lease, if there is one.
fn end_trainer(lease: &std::path::Path) {
    let Ok(lease) = fs::canonicalize(lease) else { return };
    for process in fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok) {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        let files = fs::read_dir(process.path().join("fd")).into_iter().flatten().filter_map(Result::ok);
        if files.filter_map(|file| fs::read_link(file.path()).ok()).any(|path| path == lease) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn serve(place: &Place) -> (Child, u16, String) {
    let mut command: Command =
        place.command(["serve", "--port", "0", "--runs-dir", "runs", "--data-dir", "data", "--json"]);
    // The demo is beside the sources, wherever the binary was built.
    command.env("SPARKTUNE_HOME", env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit());
    // Short runs, for which the server's environment counts as in a terminal.
    for (name, value) in [("MTP", "none"), ("SAMPLE_COUNT", "1"), ("SAMPLE_MAX_TOKENS", "8")] {
        command.env(format!("SPARKTUNE_{name}"), value);
    }
    let mut process = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let listening: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
    let url = listening["url"].as_str().unwrap();
    let (address, token) = url.strip_prefix("http://127.0.0.1:").unwrap().split_once("/?token=").unwrap();
    (process, address.parse().unwrap(), token.to_owned())
}

fn read_answer(mut socket: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A reset after the answer does not matter.
    let _ = socket.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("an answer has a head");
    let headers = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = headers.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let mut body = bytes.split_off(end + 4);
    if headers.to_lowercase().contains("transfer-encoding: chunked") {
        body = unchunked(&body);
    }
    Answer { status, headers, body }
}

/// Puts the pieces of a chunked body together.
fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") {
        let size =
            std::str::from_utf8(&bytes[..end]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let Some(size) = size.filter(|size| *size > 0 && end + 2 + size <= bytes.len()) else { break };
        whole.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[(end + 4 + size).min(bytes.len())..];
    }
    whole
}
