//! `sparktune serve` through its real binary. What it answers to whom is tested in `src/serve/tests`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cluster::port;
use crate::sparktune::{Place, events};

/// A server that is killed with this value, unless it has ended.
struct Server {
    child: Child,
    started: Value,
}

impl Server {
    fn start(place: &Place, more: &[&str]) -> Self {
        let mut child = place.command(["serve", "--json"]).args(more).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let started = serde_json::from_str(&line);
        let started = started.unwrap_or_else(|error| panic!("{error}: {line:?}: {}", messages(&mut child)));
        Self { child, started }
    }

    fn url(&self) -> (&str, &str) {
        self.started["url"].as_str().unwrap().strip_prefix("http://").unwrap().split_once("/?token=").unwrap()
    }

    fn port(&self) -> String {
        self.url().0.split_once(':').unwrap().1.to_owned()
    }

    fn ask(&self, request: &str) -> (u16, Value) {
        let (address, token) = self.url();
        let mut stream = TcpStream::connect(address).unwrap();
        let head = format!(
            "{request} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// Waits for the end of a task.
    #[track_caller]
    fn ended(&self, task: &Value) -> Value {
        let path = format!("GET /api/v1/tasks/{}", task["id"].as_str().unwrap());
        until("the task has ended", || Some(self.ask(&path).1).filter(|task| task["state"] != "running"))
    }

    fn signal(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn messages(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.as_mut().unwrap().read_to_string(&mut text).unwrap();
    text
}

#[track_caller]
fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(600), "it never came to pass that {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_token_is_private_and_survives_a_restart_and_a_signal_ends_the_server() {
    let place = Place::new();
    let mut first = Server::start(&place, &["--port", "0"]);
    let file = first.started["token_file"].as_str().unwrap();
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    let token = first.url().1.to_owned();
    assert_eq!(fs::read_to_string(file).unwrap().trim(), token);
    assert_eq!(first.ask("GET /api/v1/health").1["status"], "ok");
    // A second server at the same time has the same token.
    let mut second = Server::start(&place, &["--port", "0"]);
    assert_eq!(second.url().1, token);
    // An idle connection does not keep a server from ending.
    let _idle = TcpStream::connect(first.url().0).unwrap();
    assert_eq!(first.signal(Signal::TERM), Some(0));
    assert_eq!(second.signal(Signal::INT), Some(0));
    let third = Server::start(&place, &["--port", "0"]);
    assert_eq!(third.url().1, token);
}

#[test]
fn what_cannot_be_served_is_refused_with_advice() {
    let place = Place::new();
    let server = Server::start(&place, &["--port", "0"]);
    let taken = place.sparktune(["serve", "--port", &server.port()]).exits(2);
    assert!(taken.err.contains("is in use") && taken.err.contains("Hint:"), "{}", taken.err);
    let open = place.sparktune(["serve", "--port", "0", "--host", "0.0.0.0"]).exits(2);
    assert!(open.err.contains("without encryption") && open.err.contains("ssh -L"), "{}", open.err);
    fs::set_permissions(server.started["token_file"].as_str().unwrap(), fs::Permissions::from_mode(0o644))
        .unwrap();
    let known = place.sparktune(["serve", "--port", "0"]).exits(2);
    assert!(known.err.contains("others may know the token"), "{}", known.err);
}

#[test]
fn a_run_that_the_server_resumed_goes_on_when_the_server_is_killed() {
    let place = Place::new();
    let run = place.old_run();
    let name = run.file_name().unwrap().to_str().unwrap();
    // A port that Linux gives to no connection meanwhile.
    let port = port();
    let mut server = Server::start(&place, &["--port", &port]);
    let (status, task) = server.ask(&format!("POST /api/v1/runs/{name}/resume"));
    assert_eq!(status, 202, "{task}");
    let task = server.ended(&task);
    assert_eq!((&task["state"], &task["result"]["attempt"]), (&"done".into(), &2.into()), "{task}");
    let (_, list) = server.ask("GET /api/v1/tasks");
    assert!(list["items"][0]["state"] == "done" && list["items"][0].get("result").is_none(), "{list}");
    server.signal(Signal::KILL);
    // The trainer has inherited no connection of the server.
    let server = Server::start(&place, &["--port", &port]);
    let state = until("the run has ended", || {
        let (_, run) = server.ask(&format!("GET /api/v1/runs/{name}"));
        let state = run["state"].as_str().unwrap().to_owned();
        (state != "running").then_some(state)
    });
    assert_eq!(state, "done");
    assert_eq!(events(&run).last().unwrap()["outcome"], "completed");
    let (status, _) = server.ask(&format!("GET /api/v1/runs/{name}/report"));
    assert_eq!(status, 200);
    let (status, problem) = server.ask(&format!("POST /api/v1/runs/{name}/resume"));
    assert_eq!(status, 409, "{problem}");
}

#[test]
fn a_run_is_stopped_through_the_server_as_by_the_command() {
    let place = Place::new();
    place.chats(40);
    let flags = ["--rank", "4", "--max-steps", "100000", "--epochs", "9999", "--mtp", "none"];
    let launcher = place.train(&flags).spawn().unwrap();
    let server = Server::start(&place, &["--port", "0"]);
    let name = until("the run has made a step", || {
        let (_, runs) = server.ask("GET /api/v1/runs");
        let run = runs["items"].get(0)?;
        run["step"].as_u64().filter(|step| *step > 0).map(|_| run["id"].as_str().unwrap().to_owned())
    });
    let (status, task) = server.ask(&format!("POST /api/v1/runs/{name}/stop"));
    assert_eq!(status, 202, "{task}");
    let task = server.ended(&task);
    assert_eq!((&task["state"], &task["result"]["state"]), (&"done".into(), &"stopped".into()), "{task}");
    // What it prints is read: it stands still when its pipe is full.
    assert_eq!(launcher.wait_with_output().unwrap().status.code(), Some(5));
}

#[test]
fn the_sections_that_the_server_offers_are_those_of_the_command() {
    let place = Place::new();
    let server = Server::start(&place, &["--port", "0"]);
    let (_, benchmarks) = server.ask("GET /api/v1/benchmarks");
    let names: Vec<&str> = benchmarks["sections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|section| section["name"].as_str().unwrap())
        .collect();
    let help = place.sparktune(["bench", "--help"]).exits(0).out;
    let listed =
        help.split("[possible values:").nth(1).map(|rest| rest.split(']').next().unwrap().to_owned());
    let has = |name: &str| {
        help.contains(&format!("- {name}:")) || listed.as_ref().is_some_and(|all| all.contains(name))
    };
    assert!(names.iter().all(|name| has(name)), "{names:?}\n{help}");
    assert_eq!(names.len(), 9);
}
