//! Token files of another machine: `data serve`, and runs on what it serves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::sparktune::{Place, checkpoint, done, losses};

/// A running `data serve t.qubgpu`.
struct DataServer {
    process: Child,
    address: String,
}

impl DataServer {
    fn start(place: &Place) -> Self {
        let mut command = place.command(["data", "serve", "t.qubgpu", "--host", "127.0.0.1", "--json"]);
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        Self { process, address: said["files"][0]["address"].as_str().unwrap().to_owned() }
    }

    /// Ends it as Ctrl-C does, and returns what it said.
    fn end(mut self) -> String {
        kill_process(Pid::from_child(&self.process), Signal::INT).unwrap();
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
        let mut said = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

/// Forwards connections to a port, and cuts each of the first ones after some more bytes of the server.
fn cutting_proxy(port: u16, cuts: Vec<usize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let most = cuts.into_iter().chain(std::iter::repeat(usize::MAX));
        for (client, most) in listener.incoming().flatten().zip(most) {
            let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || pump(from, to, usize::MAX));
            std::thread::spawn(move || pump(server, client, most));
        }
    });
    own
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut most: usize) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let count = count.min(most);
        most -= count;
        if to.write_all(&buffer[..count]).is_err() || most == 0 {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn trained_on(place: &Place, data: &str, name: &str) -> Vec<(String, u64, f64)> {
    let mut train = place.command(["train", "--non-interactive", "--json", "--device", "cpu", "--model"]);
    train
        .arg(checkpoint())
        .args(["--data", data, "--pack-length", "128", "--rank", "4", "--max-steps", "4", "--mtp", "none"])
        .args(["--name", name])
        .env("SPARKTUNE_SAMPLE_COUNT", "0");
    let run = done(&mut train).exits(0).run_dir();
    let run = place.join(run.to_str().unwrap());
    if data.starts_with("ndp:") {
        // The plan names the content, so the same plan never trains on another one.
        let plan = std::fs::read_to_string(run.join("plan.toml")).unwrap();
        let pinned = plan.lines().any(|line| line.contains(data) && line.contains(&format!("{data}:")));
        assert!(pinned, "{plan}");
    }
    losses(&run)
}

fn packed() -> Place {
    let place = Place::new();
    place.chats(200);
    let model = checkpoint();
    place.sparktune(["pack", "train.jsonl", "-o", "t.qubgpu", "--model", model.to_str().unwrap()]).exits(0);
    place
}

#[test]
fn a_run_on_another_machines_data_over_cut_connections_has_the_losses_of_the_run_on_the_file() {
    let place = packed();
    let of_file = trained_on(&place, "t.qubgpu", "of the file");
    assert!(of_file.len() >= 4, "{of_file:?}");
    let server = DataServer::start(&place);
    let (before, after) = server.address.split_once("127.0.0.1:").unwrap();
    let (port, rest) = after.split_once('/').unwrap();
    let proxy = cutting_proxy(port.parse().unwrap(), vec![30_000, 700, 45_000]);
    let through_proxy = format!("{before}127.0.0.1:{proxy}/{rest}");
    assert_eq!(trained_on(&place, &through_proxy, "of the network"), of_file);
    let said = server.end();
    assert!(said.contains("127.0.0.1 continues t at example"), "{said}");
    let token = std::fs::read_to_string(place.join(".local/state/sparktune/ndp-token")).unwrap();
    assert!(token.trim().len() == 64 && !said.contains(token.trim()), "{said}");
}

#[test]
fn what_the_other_machine_needs_is_asked_for_and_never_printed() {
    let place = packed();
    let server = DataServer::start(&place);
    let check = |address: &str, token: Option<&str>| {
        let mut command = place.command(["check", address, "--json"]);
        command.env("XDG_STATE_HOME", place.join("elsewhere"));
        if let Some(token) = token {
            command.env("SPARKTUNE_NDP_TOKEN", token);
        }
        done(&mut command)
    };
    let missing = check(&server.address, None).exits(2);
    assert!(missing.err.contains("SPARKTUNE_NDP_TOKEN"), "{}", missing.err);
    let wrong = "ab".repeat(32);
    let refused = check(&server.address, Some(&wrong)).exits(2);
    assert!(refused.err.contains("refuses the token") && !refused.err.contains(&wrong), "{}", refused.err);
    let token = std::fs::read_to_string(place.join(".local/state/sparktune/ndp-token")).unwrap();
    let other_key = format!("{}{}", server.address.split_once('#').unwrap().0, "#") + &"ef".repeat(32);
    let refused = check(&other_key, Some(&token)).exits(2);
    assert!(refused.err.contains("its key differs"), "{}", refused.err);
    let refused = check(server.address.split_once('#').unwrap().0, Some(&token)).exits(2);
    assert!(refused.err.contains("the server's key is missing"), "{}", refused.err);
    assert!(
        !Path::new(&place.join("runs/.received")).read_dir().is_ok_and(|mut files| files.next().is_some())
    );
    let found = check(&server.address, Some(&token)).exits(0).last();
    assert_eq!(found["report"]["examples"], 200, "{found}");
    assert!(server.end().contains("the server refuses the token"));
    place.sparktune(["data", "serve", "train.jsonl"]).exits(2);
}
