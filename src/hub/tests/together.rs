//! Several that want the same model at once, in one process and in several, and one that is killed.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sparktune_hub::Needs;

use crate::fake_hub::*;

const ENDPOINT: &str = "SPARKTUNE_HUB_TEST_ENDPOINT";
const HOME: &str = "SPARKTUNE_HUB_TEST_HOME";

/// Not a test of its own: the body of the child processes below.
#[test]
#[ignore = "run by other tests as a child process"]
fn child() {
    let (endpoint, home) = (std::env::var(ENDPOINT).unwrap(), std::env::var(HOME).unwrap());
    let env = |name: &str| match name {
        "HF_ENDPOINT" => Some(endpoint.clone()),
        "HF_HOME" => Some(home.clone()),
        _ => None,
    };
    let hub = sparktune_hub::Hub::from_env(env).unwrap().with_patience(impatient());
    let snapshot = hub.fetch(ID, Needs::Model, &()).unwrap();
    assert_eq!(std::fs::read(snapshot.folder.join(WEIGHTS)).unwrap(), weights());
}

fn start_child(server: &FakeHub, home: &Home) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "together::child", "--ignored"])
        .env(ENDPOINT, server.endpoint())
        .env(HOME, home.dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn threads_that_want_the_same_file_share_one_download() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.on_weights(9, |_| Act::Drip { piece: 500_000, pause: Duration::from_millis(30) });
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let snapshot = home.hub(&server).fetch(ID, Needs::Model, &()).unwrap();
                assert_eq!(std::fs::read(snapshot.folder.join(WEIGHTS)).unwrap(), weights());
            });
        }
    });
    assert_eq!(server.downloads_of(WEIGHTS).len(), 1);
}

#[test]
fn processes_that_want_the_same_file_share_one_download() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.on_weights(9, |_| Act::Drip { piece: 500_000, pause: Duration::from_millis(50) });
    let children: Vec<_> = (0..3).map(|_| start_child(&server, &home)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(server.downloads_of(WEIGHTS).len(), 1);
    assert_eq!(server.bytes_from_storage(), 3_000_000);
}

#[test]
fn a_killed_process_leaves_a_part_that_the_next_continues() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.on_weights(1, |_| Act::StallAfter(1_200_000));
    let mut child = start_child(&server, &home);
    let part = home.part(&sha256(&weights()));
    let begun = Instant::now();
    while std::fs::metadata(&part).map_or(0, |part| part.len()) < 1_200_000 {
        assert!(begun.elapsed() < Duration::from_secs(120), "the child never came to the weights");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();

    let snapshot = home.hub(&server).fetch(ID, Needs::Model, &()).unwrap();
    assert_eq!(std::fs::read(snapshot.folder.join(WEIGHTS)).unwrap(), weights());
    assert_eq!(server.downloads_of(WEIGHTS).last().unwrap().start(), 1_200_000);
    assert_eq!(server.bytes_from_storage(), 3_000_000);
}
