//! Cut and damaged connections, and receivers that are stopped: what arrives is the same bytes, or
//! nothing.

use std::sync::atomic::Ordering;

use sparktune_base::random::SplitMix64;
use sparktune_ndp::{Error, ServerKey};

use crate::proxy::{Fault, Proxy};
use crate::support::*;

/// A random number below `bound`.
fn below(random: &mut SplitMix64, bound: u64) -> u64 {
    u64::from(random.below(bound as u32))
}

/// Bytes of a connection before its first packet, at most.
const HANDSHAKE: u64 = 3000;

#[test]
fn connections_that_are_cut_anywhere_lead_to_the_same_bytes() {
    let places = Places::new(400, 300);
    let size = std::fs::metadata(&places.file).unwrap().len();
    let server = Running::start(&[&places.file]);
    for seed in 0..12 {
        let folder = tempfile::tempdir().unwrap();
        let proxy = Proxy::start(server.port, move |number| {
            let mut random = SplitMix64::new(1000 * seed + number);
            // Some are cut within the handshake, most between packets, and the last one is not.
            if number < 6 { Fault::Cut(below(&mut random, HANDSHAKE + size / 3)) } else { Fault::None }
        });
        let notes = Notes::default();
        let received = fetch(&address(proxy.port, "train"), folder.path(), &notes).unwrap();
        assert!(std::fs::read(received.path).unwrap() == std::fs::read(&places.file).unwrap(), "seed {seed}");
        assert!(notes.retries.load(Ordering::SeqCst) > 0, "seed {seed}");
        // Packets that arrived are not sent again: all connections together carried little more than the
        // file.
        let sent = proxy.sent.load(Ordering::SeqCst);
        assert!(sent < size + size / 2, "seed {seed}: {sent} for {size}");
    }
    let beginnings = server.beginnings();
    assert!(beginnings.iter().filter(|from| **from > 0).count() > 12, "{beginnings:?}");
}

#[test]
fn a_flipped_bit_on_the_way_is_found_and_sent_again() {
    let places = Places::new(200, 300);
    let size = std::fs::metadata(&places.file).unwrap().len();
    let server = Running::start(&[&places.file]);
    for seed in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        let proxy = Proxy::start(server.port, move |number| {
            let at = below(&mut SplitMix64::new(seed), size);
            if number == 0 { Fault::Flip(at) } else { Fault::None }
        });
        let notes = Notes::default();
        let received = fetch(&address(proxy.port, "train"), folder.path(), &notes);
        match received {
            Ok(received) => {
                assert!(std::fs::read(received.path).unwrap() == std::fs::read(&places.file).unwrap());
                assert_eq!(notes.retries.load(Ordering::SeqCst), 1, "seed {seed}");
            }
            // Within the server's key, a flip cannot be told from another server.
            Err(error) => assert!(matches!(error, Error::WrongKey { .. }), "seed {seed}: {error}"),
        }
    }
}

#[test]
fn a_receiver_that_was_stopped_continues_whatever_is_left_of_its_file() {
    let places = Places::new(300, 400);
    let size = std::fs::metadata(&places.file).unwrap().len();
    let server = Running::start(&[&places.file]);
    let asked = address(server.port, "train");
    for seed in 0..8_u64 {
        let folder = tempfile::tempdir().unwrap();
        let mut random = SplitMix64::new(seed);
        let stopping = Notes { cancel_at: Some(size / 4 + below(&mut random, size / 4)), ..Notes::default() };
        let stopped = fetch(&asked, folder.path(), &stopping).unwrap_err();
        assert!(matches!(stopped, Error::Cancelled), "{stopped}");
        let partial = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        assert!(partial.to_string_lossy().ends_with(".partial"));
        let mut left = std::fs::read(&partial).unwrap();
        assert!(left.len() as u64 >= size / 4);
        // A kill loses what was not yet written; a bad disk changes a byte.
        let at = below(&mut random, left.len() as u64) as usize;
        if seed % 2 == 0 {
            left.truncate(at)
        } else {
            left[at] ^= 4
        };
        std::fs::write(&partial, &left).unwrap();
        let before = server.beginnings().len();
        let received = fetch(&asked, folder.path(), &Notes::default()).unwrap();
        assert!(std::fs::read(&received.path).unwrap() == std::fs::read(&places.file).unwrap());
        let from = server.beginnings()[before];
        assert!(from > 0 || (at as u64) < 2000, "seed {seed}: from {from} after a change at {at}");
    }
}

#[test]
fn two_receivers_of_one_folder_do_not_mix_their_bytes() {
    let places = Places::new(200, 300);
    let server = Running::start(&[&places.file]);
    let asked = address(server.port, "train");
    let both = std::thread::scope(|scope| {
        let [one, other] = [0, 1].map(|_| scope.spawn(|| fetch(&asked, &places.folder, &Notes::default())));
        [one.join().unwrap(), other.join().unwrap()]
    });
    for outcome in &both {
        match outcome {
            Ok(received) => places.assert_same(received),
            Err(error) => assert!(error.to_string().contains("another process"), "{error}"),
        }
    }
    assert!(both.iter().any(Result::is_ok));
}

#[test]
fn another_token_or_another_key_ends_it_before_anything_is_written() {
    let places = Places::new(20, 50);
    let server = Running::start(&[&places.file]);
    let asked = address(server.port, "train");
    let wrong = || Ok(sparktune_ndp::Token::from_bytes([8; 32]));
    let refused = sparktune_ndp::receive(&asked, wrong, &places.folder, PATIENCE, &Notes::default());
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }) && refused.to_string().contains("token"), "{refused}");

    let key = ServerKey::from_seed([10; 32]).public();
    let other = sparktune_ndp::Address { key, ..asked };
    let refused = fetch(&other, &places.folder, &Notes::default()).unwrap_err();
    assert!(matches!(refused, Error::WrongKey { .. }), "{refused}");
    assert_eq!(std::fs::read_dir(&places.folder).unwrap().count(), 0);
    let events = server.events.lock().unwrap().join("\n");
    assert!(!events.contains("sending") && !events.contains("07070707"), "{events}");
}

#[test]
fn damage_on_the_servers_disk_is_named_there_and_nothing_of_it_is_sent() {
    let places = Places::new(50, 60);
    let server = Running::start(&[&places.file]);
    let file = sparktune_data::token_file::TokenFile::open(&places.file).unwrap();
    let at = file.offsets()[17] + 70;
    // In place, as a failing disk would.
    let written = std::os::unix::fs::FileExt::write_all_at(
        &std::fs::OpenOptions::new().write(true).open(&places.file).unwrap(),
        &[0xFF; 3],
        at,
    );
    written.unwrap();
    let refused = fetch(&address(server.port, "train"), &places.folder, &Notes::default()).unwrap_err();
    assert!(matches!(refused, Error::DamagedThere { example: 17, .. }), "{refused}");
    assert_eq!(places.partials().len(), 1, "the packets before it are kept");
}
