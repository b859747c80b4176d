//! What arrives when nothing is wrong, and what is not fetched again.

use std::sync::atomic::Ordering;

use sparktune_data::token_file::TokenFile;
use sparktune_ndp::{Error, Limits, ServedFile, Token};

use crate::support::*;

#[test]
fn a_file_arrives_as_it_is_and_is_not_fetched_twice() {
    let places = Places::new(300, 900);
    let server = Running::start(&[&places.file]);
    let notes = Notes::default();
    let received = fetch(&address(server.port, "train"), &places.folder, &notes).unwrap();
    places.assert_same(&received);
    let size = std::fs::metadata(&places.file).unwrap().len();
    assert_eq!((notes.have.load(Ordering::SeqCst), notes.retries.load(Ordering::SeqCst)), (size, 0));
    let hash = TokenFile::open(&places.file).unwrap().file_hash();
    assert!(received.pinned.to_string().ends_with(&format!(":{hash}")), "{}", received.pinned);

    assert_eq!(fetch(&address(server.port, "train"), &places.folder, &notes).unwrap().path, received.path);
    assert_eq!(server.beginnings(), [0]);
}

#[test]
fn a_file_without_examples_and_one_of_a_single_long_example_arrive() {
    for (examples, longest) in [(0, 1), (1, 3_000_000)] {
        let places = Places::new(examples, longest);
        let server = Running::start(&[&places.file]);
        places
            .assert_same(&fetch(&address(server.port, "train"), &places.folder, &Notes::default()).unwrap());
    }
}

#[test]
fn a_copy_that_is_there_needs_no_server() {
    let places = Places::new(20, 50);
    let server = Running::start(&[&places.file]);
    let asked = address(server.port, "train");
    let first = fetch(&asked, &places.folder, &Notes::default()).unwrap();
    drop(server);
    let no_token = || -> Result<Token, Error> { unreachable!("the server is not asked") };
    let pinned = sparktune_ndp::receive(&first.pinned, no_token, &places.folder, PATIENCE, &Notes::default());
    assert_eq!(pinned.unwrap().unasked, None);
    let again = fetch(&asked, &places.folder, &Notes::default()).unwrap();
    assert_eq!(again.path, first.path);
    assert!(again.unasked.unwrap().contains("cannot connect"));
}

#[test]
fn an_address_with_a_hash_takes_no_other_content() {
    let places = Places::new(20, 50);
    let server = Running::start(&[&places.file]);
    let other = address(server.port, "train").pinned([1; 32]);
    let refused = fetch(&other, &places.folder, &Notes::default()).unwrap_err();
    assert!(matches!(refused, Error::OtherContent { .. }), "{refused}");
}

#[test]
fn several_files_are_served_by_name_and_to_several_clients_at_once() {
    let (one, other) = (Places::new(200, 300), Places::new(30, 40));
    let second = other.file.with_file_name("Eval data 2.qubgpu");
    std::fs::rename(&other.file, &second).unwrap();
    let server = Running::start(&[&one.file, &second]);
    let missing = fetch(&address(server.port, "other"), &one.folder, &Notes::default()).unwrap_err();
    assert!(missing.to_string().contains("It serves Eval-data-2, train"), "{missing}");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let folder = tempfile::tempdir().unwrap();
                let found = fetch(&address(server.port, "train"), folder.path(), &Notes::default()).unwrap();
                assert!(std::fs::read(found.path).unwrap() == std::fs::read(&one.file).unwrap());
            });
        }
    });
    let eval = fetch(&address(server.port, "Eval-data-2"), &other.folder, &Notes::default()).unwrap();
    assert!(std::fs::read(eval.path).unwrap() == std::fs::read(second).unwrap());
}

#[test]
fn what_is_no_sound_token_file_is_not_served() {
    let places = Places::new(3, 9);
    let text = places.folder.join("train.jsonl");
    std::fs::write(&text, "{\"text\": \"a\"}\n").unwrap();
    let refused = ServedFile::open(&text).err().unwrap().to_string();
    assert!(refused.contains("is not a token file") && refused.contains("pack"), "{refused}");
    let whole = std::fs::read(&places.file).unwrap();
    std::fs::write(&places.file, &whole[..whole.len() - 1]).unwrap();
    let refused = ServedFile::open(&places.file).err().unwrap().to_string();
    assert!(refused.contains("truncated"), "{refused}");
}

#[test]
fn a_server_with_enough_clients_says_so() {
    let places = Places::new(3, 9);
    let limits = Limits { clients: 0, strangers: 4 };
    let server = Running::with(&[&places.file], limits, PATIENCE);
    let quick = sparktune_ndp::Patience { attempts: 2, ..PATIENCE };
    let away = fetch_with(&address(server.port, "train"), &places.folder, &Notes::default(), quick);
    let text = away.unwrap_err().to_string();
    assert!(text.contains("2 attempts failed"), "{text}");
}
