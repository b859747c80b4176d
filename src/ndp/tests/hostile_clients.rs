//! Clients that misbehave. The server ends them in time, keeps its memory, and serves the others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sparktune_ndp::stream::{Channel, WINDOW};
use sparktune_ndp::{Limits, Patience, Token};

use crate::proxy::{Fault, Proxy};
use crate::support::*;

fn connect(port: u16) -> Channel<'static> {
    let token = Token::from_bytes(TOKEN);
    Channel::connect(&address(port, "train"), &token, PATIENCE, Arc::new(|| false)).unwrap()
}

fn wait_for(server: &Running, what: &str) {
    let since = Instant::now();
    while !server.events.lock().unwrap().iter().any(|event| event.contains(what)) {
        assert!(since.elapsed() < Duration::from_secs(120), "{what}: {:?}", server.events.lock().unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn strangers_are_ended_in_time_and_take_no_place_of_clients() {
    let places = Places::new(20, 50);
    let handshake = Duration::from_millis(700);
    let limits = Limits { clients: 1, strangers: 2 };
    let server = Running::with(&[&places.file], limits, Patience { handshake, ..PATIENCE });
    let silent: Vec<TcpStream> =
        (0..2).map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(200));
    let patient = Patience { attempts: 20, first_wait: Duration::from_millis(100), ..PATIENCE };
    let received = fetch_with(&address(server.port, "train"), &places.folder, &Notes::default(), patient);
    places.assert_same(&received.unwrap());
    wait_for(&server, "did not say who it is in time");
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert!(!matches!(stream.read(&mut [0; 64]), Ok(1..)), "a stranger was answered");
    }
}

#[test]
fn strangers_that_wait_make_room_for_others() {
    let places = Places::new(20, 50);
    let limits = Limits { clients: 1, strangers: 2 };
    let server =
        Running::with(&[&places.file], limits, Patience { handshake: Duration::from_secs(600), ..PATIENCE });
    let silent: Vec<TcpStream> =
        (0..2).map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap()).collect();
    let patient = Patience { attempts: 20, first_wait: Duration::from_millis(200), ..PATIENCE };
    let received = fetch_with(&address(server.port, "train"), &places.folder, &Notes::default(), patient);
    places.assert_same(&received.unwrap());
    drop(silent);
}

#[test]
fn noise_in_place_of_a_handshake_ends_only_that_connection() {
    let places = Places::new(20, 50);
    let server = Running::start(&[&places.file]);
    for noise in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0; 5000], &[0xFF; 5000], &[22, 3, 1, 0xFF, 0xFF]] {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        let _ = stream.write_all(noise);
    }
    places.assert_same(&fetch(&address(server.port, "train"), &places.folder, &Notes::default()).unwrap());
}

#[test]
fn a_client_that_asks_out_of_turn_is_ended() {
    let places = Places::new(20, 50);
    let server = Running::start(&[&places.file]);
    connect(server.port).tell(&json!({"From": {"example": 0}})).unwrap();
    wait_for(&server, "before a file was");
    let mut channel = connect(server.port);
    channel.tell(&json!({"File": {"name": "train"}})).unwrap();
    let _: Value = channel.hear().unwrap();
    channel.tell(&json!({"From": {"example": 21}})).unwrap();
    wait_for(&server, "that there are not");
    connect(server.port).tell(&json!({"Nonsense": 1})).unwrap();
    wait_for(&server, "not due here");
}

#[test]
fn a_client_that_takes_nothing_is_sent_no_more_than_the_window() {
    let places = Places::new(2000, 2000);
    assert!(std::fs::metadata(&places.file).unwrap().len() > WINDOW * 3 / 2);
    // Longer than the client waits for a processor: it must not be given up for its own silence before.
    let silence = Duration::from_secs(8);
    let server = Running::with(&[&places.file], Limits::default(), Patience { silence, ..PATIENCE });
    let proxy = Proxy::start(server.port, |_| Fault::None);
    let mut channel = connect(proxy.port);
    channel.tell(&json!({"File": {"name": "train"}})).unwrap();
    let _: Value = channel.hear().unwrap();
    channel.tell(&json!({"From": {"example": 0}})).unwrap();
    // It reads everything, so that neither side's buffers hide what was sent, but gives no credit.
    let mut read = 0;
    while let Ok(frame) = channel.receive(80 << 20) {
        read += frame.payload.len() as u64;
    }
    assert!((WINDOW / 2..=WINDOW + (16 << 10)).contains(&read), "{read}");
    assert!(proxy.sent.load(Ordering::SeqCst) < WINDOW + (200 << 10));
    wait_for(&server, "was silent");
}
