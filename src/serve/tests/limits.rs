//! Clients that send too much, too slowly, or too often.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use super::client::{Answer, Server};
use super::runs::{line, run_with_steps};
use crate::Limits;

#[test]
fn a_body_that_is_too_large_is_refused_whether_it_says_so_or_not() {
    let server = Server::with(Limits { body_bytes: 10_000, ..Limits::default() });
    let large = format!("{{\"sections\":[\"{}\"]}}", "x".repeat(20_000));
    let told = server.ask("POST /api/v1/benchmarks", &large);
    assert_eq!(told.status, 413, "{}", told.body);
    assert!(told.body.contains("advice"), "{}", told.body);
    let head = format!(
        "POST /api/v1/benchmarks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nConnection: close\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
        server.token
    );
    let body = format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len());
    assert_eq!(Answer::of(&server.raw((head + &body).as_bytes())).status, 413);
    let headers = "X-Padding: x\r\n".repeat(5000);
    let answer = server.raw(format!("GET / HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").as_bytes());
    assert_eq!(Answer::of(&answer).status, 431);
    let long =
        server.raw(format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(100_000)).as_bytes());
    assert!(Answer::of(&long).status >= 400);
}

#[test]
fn more_answers_than_a_model_takes_are_refused_before_a_model_is_looked_for() {
    let server = Server::start();
    let ask = |prompts: usize, n: usize| {
        let body = json!({"model": "none", "prompt": vec!["x"; prompts], "n": n});
        server.ask("POST /v1/completions", &body.to_string())
    };
    let refused = ask(11, 4);
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(
        refused.body.contains("44 answers are asked for at once. Ask for at most 40"),
        "{}",
        refused.body
    );
    assert_eq!(ask(10, 4).status, 404);
}

/// Sends what a request begins with, and returns the time until the server has closed the connection.
fn time_to_close(server: &Server, beginning: &str) -> Duration {
    let mut stream = server.connect();
    let begun = Instant::now();
    // On a busy machine, it may be closed already.
    let _ = stream.write_all(beginning.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    begun.elapsed()
}

#[test]
fn headers_and_bodies_that_come_too_slowly_are_not_waited_for() {
    let quick = Duration::from_millis(300);
    let server = Server::with(Limits { header_time: quick, body_grace: quick, ..Limits::default() });
    // Less than the limits are otherwise.
    let patient = Duration::from_secs(14);
    assert!(time_to_close(&server, "GET / HTTP/1.1\r\nHost: local") < patient);
    assert!(time_to_close(&server, "") < patient, "a connection without a word");
    let head = format!(
        "POST /api/v1/benchmarks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{",
        server.token
    );
    assert!(time_to_close(&server, &head) < patient);
    // The server still answers clients that are quick enough.
    let health = format!(
        "GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
        server.token
    );
    let is_served = || {
        let (mut stream, mut answer) = (server.connect(), Vec::new());
        let _ = stream.write_all(health.as_bytes()).and_then(|()| stream.read_to_end(&mut answer));
        answer.starts_with(b"HTTP/1.1 200 ")
    };
    assert!((0..100).any(|_| is_served()), "it answers nobody any more");
}

#[test]
fn a_client_that_never_reads_loses_its_place_and_a_stream_with_nothing_to_say_keeps_its_own() {
    let write_time = Duration::from_millis(300);
    let server = Server::with(Limits { connections: 2, write_time, ..Limits::default() });
    let run = run_with_steps(&server, "20260101T000000Z-a-lora-0001", 3);
    let mut stream = server.follow("/api/v1/runs/20260101T000000Z-a-lora-0001/events");
    stream.wait_for("\"seq\":4");
    let mut unread = server.connect();
    unread.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    // Far more answers than the buffers of the system hold.
    let _ = unread.write_all(&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(50_000));
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let begun = Instant::now();
    while !server.raw(request).starts_with(b"HTTP/1.1 200") {
        assert!(begun.elapsed() < Duration::from_secs(240), "it keeps its place");
        std::thread::sleep(Duration::from_millis(100));
    }
    super::client::append(&run.event_file(1), line(1, 5, 4).as_bytes());
    stream.wait_for("\"seq\":5");
}

#[test]
fn five_hundred_connections_end_no_stream_and_the_next_client_is_answered() {
    let limits = Limits { connections: 100, header_time: Duration::from_secs(10), ..Limits::default() };
    let server = Server::with(limits);
    let run = run_with_steps(&server, "20260101T000000Z-a-lora-0001", 3);
    let mut stream = server.follow("/api/v1/runs/20260101T000000Z-a-lora-0001/events");
    stream.wait_for("\"seq\":4");
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let ask_behind_others = || {
        let idle: Vec<_> = (0..500).map(|_| server.connect()).collect();
        // An answer may be lost when a connection is closed before its request was read.
        let told = std::iter::repeat_with(|| server.raw(request)).take(50).find(|answer| !answer.is_empty());
        (idle, Answer::of(&told.unwrap()))
    };
    // On a busy machine, those that are idle may have lost their places before.
    let mut asked = std::iter::repeat_with(ask_behind_others).take(10);
    let (idle, told) = asked.find(|(_, told)| told.status == 503).unwrap();
    assert!(told.header("retry-after").is_some(), "{}", told.head);
    super::client::append(&run.event_file(1), line(1, 5, 4).as_bytes());
    stream.wait_for("\"seq\":5");
    let begun = Instant::now();
    while !server.raw(request).starts_with(b"HTTP/1.1 200") {
        assert!(begun.elapsed() < Duration::from_secs(240), "idle connections are kept");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(idle);
}
