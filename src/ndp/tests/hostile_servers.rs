//! Servers that hold the right key and token and misbehave. The receiver ends soon, says why, and gives no
//! file its name.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sparktune_data::token_file::TokenFile;
use sparktune_ndp::frame::{CONTROL, Codes};
use sparktune_ndp::routing::{CLOSING, OPENING, TOKENS};
use sparktune_ndp::stream::{Channel, Gate};
use sparktune_ndp::{Error, Patience, ServerKey, Token};

use crate::support::*;

/// A file as a hostile server sees it.
struct Parts {
    description: Value,
    opening: Vec<u8>,
    packets: Vec<Vec<u8>>,
    closing: Vec<u8>,
}

impl Parts {
    fn of(path: &Path) -> Self {
        let file = TokenFile::open(path).unwrap();
        let opening = file.bytes()[..file.offsets()[0] as usize].to_vec();
        let packets = (0..file.len() as u64).map(|i| file.packet(i as usize).unwrap().to_vec()).collect();
        Self {
            description: json!({"File": {"hash": file.file_hash(), "bytes": file.bytes().len(), "examples": file.len()}}),
            opening,
            packets,
            closing: file.bytes()[file.packets_end()..].to_vec(),
        }
    }
}

/// Serves one connection after another with `misbehave` after the file was announced, and returns the
/// failure of a receiver.
fn failure(
    patience: Patience,
    change: impl Fn(&mut Parts) + Send + Sync + 'static,
    misbehave: impl Fn(&mut Channel<'_>, &Parts) -> Result<(), Error> + Send + Sync + 'static,
) -> Error {
    let places = Places::new(12, 90);
    let mut parts = Parts::of(&places.file);
    change(&mut parts);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let gate = Gate::new(&ServerKey::from_seed(KEY), &Token::from_bytes(TOKEN));
        for stream in listener.incoming().flatten() {
            let Ok(mut channel) = gate.admit(stream, PATIENCE, Arc::new(|| false)) else { continue };
            let _: Result<Value, _> = channel.hear();
            let _ = channel.tell(&parts.description);
            let _: Result<Value, _> = channel.hear();
            let _ = misbehave(&mut channel, &parts).and_then(|()| channel.flush());
            let _ = channel.wait_for_farewell();
        }
    });
    let since = Instant::now();
    let error = fetch_with(&address(port, "train"), &places.folder, &Notes::default(), patience).unwrap_err();
    assert!(since.elapsed() < Duration::from_secs(300), "{error}");
    let named = std::fs::read_dir(&places.folder).unwrap().map(|entry| entry.unwrap().path());
    let named: Vec<_> = named.filter(|path| path.extension().is_some_and(|e| e == "qubgpu")).collect();
    assert!(named.is_empty(), "{named:?}");
    error
}

fn refuses(
    why: &str,
    change: impl Fn(&mut Parts) + Send + Sync + 'static,
    misbehave: impl Fn(&mut Channel<'_>, &Parts) -> Result<(), Error> + Send + Sync + 'static,
) {
    let text = failure(PATIENCE, change, misbehave).to_string();
    assert!(text.contains(why), "{why}: {text}");
    assert!(!text.contains('\u{1b}') && !text.contains("07070707"), "{text}");
}

/// Sends everything as it is in the parts.
fn all(channel: &mut Channel<'_>, parts: &Parts) -> Result<(), Error> {
    channel.send(OPENING, &parts.opening)?;
    parts.packets.iter().try_for_each(|packet| channel.send(TOKENS, packet))?;
    channel.send(CLOSING, &parts.closing)
}

#[test]
fn packets_that_are_damaged_missing_repeated_or_foreign_are_refused() {
    refuses("do not match their checksum", |parts| parts.packets[5][70] ^= 1, all);
    refuses("packet header does not match", |parts| parts.packets[5][8] ^= 1, all);
    refuses("another example", |parts| parts.packets.swap(3, 4), all);
    refuses("another example", |parts| drop(parts.packets.remove(2)), all);
    refuses("another length", |parts| parts.packets[5].extend([0; 64]), all);
    refuses("packets are missing", |parts| parts.packets.truncate(4), all);
    let whole_other_file = |parts: &mut Parts| {
        let other = tempfile::tempdir().unwrap();
        token_file(&other.path().join("x"), 12, 90, 4);
        let description = parts.description.clone();
        *parts = Parts::of(&other.path().join("x"));
        parts.description = description;
    };
    refuses("not the file that was announced", whole_other_file, all);
}

#[test]
fn an_opening_or_closing_that_is_wrong_is_refused() {
    refuses("header", |parts| parts.opening[30] ^= 1, all);
    refuses("header", |parts| parts.opening.extend([0; 64]), all);
    refuses("index", |parts| parts.closing[0] ^= 1, all);
    refuses("footer", |parts| *parts.closing.last_mut().unwrap() ^= 1, all);
    refuses("before the header", |_| (), |channel, parts| channel.send(TOKENS, &parts.packets[0]));
    refuses("more arrived than was announced", |parts| parts.closing.extend([0; 128]), all);
    refuses("more arrived", |parts| parts.description["File"]["bytes"] = json!(500), all);
}

#[test]
fn packets_for_others_and_words_out_of_place_are_refused_by_name() {
    refuses(
        "SRC 5 (gradient), DST 5 (LoRA)",
        |_| (),
        |channel, _| channel.send(Codes { src: 5, dst: 5, typ: 6 }, b"weights"),
    );
    refuses(
        "SRC 0 (none), DST 0 (none), TYP 239",
        |_| (),
        |channel, _| channel.send(Codes { src: 0, dst: 0, typ: 239 }, b""),
    );
    refuses("same version", |_| (), |channel, _| channel.tell(&json!({"Surprise": "\u{1b}[2J"})));
    refuses("same version", |_| (), |channel, _| channel.send(CONTROL, b"\xFF no JSON"));
    refuses("same version", |parts| parts.description = json!({"File": {"hash": "x"}}), all);
    refuses(
        "the announced hash is not a hash",
        |parts| parts.description["File"]["hash"] = json!("../x"),
        all,
    );
    refuses(
        "example 3 is damaged on the server",
        |_| (),
        |channel, _| channel.tell(&json!({"Damaged": {"example": 3}})),
    );
    let names = json!({"NoSuchFile": {"known": ["fine", "\u{1b}[2J", "a b"]}});
    refuses("It serves fine", move |parts| parts.description = names.clone(), all);
}

#[test]
fn a_file_that_no_disk_holds_is_refused_before_it_is_sent() {
    refuses("are free", |parts| parts.description["File"]["bytes"] = json!(u64::MAX), all);
}

#[test]
fn silent_and_slow_servers_are_given_up() {
    let silence = Duration::from_millis(300);
    let quick = Patience { attempts: 2, silence, period: Duration::from_millis(500), ..PATIENCE };
    let silent = failure(
        quick,
        |_| (),
        |channel, parts| {
            channel.send(OPENING, &parts.opening)?;
            channel.flush()?;
            std::thread::sleep(Duration::from_secs(1));
            Ok(())
        },
    );
    assert!(silent.to_string().contains("was silent"), "{silent}");
    let slow = failure(
        Patience { attempts: 1, silence: PATIENCE.silence, ..quick },
        |_| (),
        |channel, parts| {
            channel.send(OPENING, &parts.opening)?;
            // Always the first packet, which arrives only once; what matters is the pace.
            for packet in &parts.packets {
                channel.send(TOKENS, packet)?;
                channel.flush()?;
                std::thread::sleep(Duration::from_millis(150));
            }
            Ok(())
        },
    );
    let text = slow.to_string();
    assert!(text.contains("of waiting"), "{text}");
}
