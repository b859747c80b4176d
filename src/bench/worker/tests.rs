//! Peers that do their part, and peers that do not: small scripts in place of a Python.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::model;

const READY: &str =
    r#"echo '{"event":"ready","protocol":1,"peer":"fake 1.0","torch":"2.9","trained_parameters":42}'"#;
const STEPPED: &str = r#"echo '{"event":"step","step":1,"loss":2.5,"learning_rate":1e-4,"wall_s":0.25,"cpu_s":0.5,"trained_tokens":3}'"#;
const FINISHED: &str = r#"echo '{"event":"finished","steps":1,"peak_rss_bytes":4096}'"#;

/// The first answers of a peer that is this shell script.
fn peer(script: &str) -> Result<(Worker, Stepped), BenchError> {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = model::plan(Path::new("/model"), MethodKind::Lora, 64).unwrap();
    plan.model.path = Some("/model".into());
    let row = PackedSequence::single(&[1, 2, 3]);
    let work = Work::new(&plan, folder.path(), &[&[row]]).unwrap();
    let python = folder.path().join("python");
    let draft = folder.path().join("draft");
    std::fs::write(&draft, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o700)).unwrap();
    // A process that another test starts meanwhile may hold the draft open for writing, but not the copy.
    assert!(Command::new("cp").args([&draft, &python]).status().unwrap().success());
    let mut worker = Worker::peer(&python, &work)?;
    let stepped = worker.step()?;
    Ok((worker, stepped))
}

/// The message about a peer that fails.
fn complaint(script: &str) -> String {
    let Err(error) = peer(script) else { panic!("the peer did its part") };
    let text = error.to_string();
    assert!(matches!(error, BenchError::Peer { .. }), "{text}");
    assert!(text.contains("/python ") && text.contains("--peers"), "it says where and what to do: {text}");
    text
}

#[test]
fn a_peer_makes_steps_until_it_is_told_to_end() {
    let script = format!(
        r#"test "$2 $3" = '--model /model' || exit 1
        {READY}; read command; test "$command" = step && {STEPPED}; read command; test "$command" = quit && {FINISHED}"#
    );
    let (worker, stepped) = peer(&script).unwrap();
    assert_eq!((worker.name().as_str(), worker.ready.trained_parameters), ("fake 1.0, torch 2.9", 42));
    assert_eq!((stepped.loss, stepped.wall_s, stepped.cpu_s), (Some(2.5), 0.25, 0.5));
    assert_eq!(worker.finish().unwrap(), Finished { steps: 1, peak_rss_bytes: Some(4096) });
}

#[test]
fn a_peer_that_is_not_there_cannot_be_started() {
    let plan = model::plan(Path::new("/model"), MethodKind::Full, 64).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let work = Work::new(&plan, folder.path(), &[]).unwrap();
    let Err(error) = Worker::peer(Path::new("/nowhere/python"), &work) else { panic!("it started") };
    assert!(error.to_string().starts_with("the peer /nowhere/python cannot be started: "), "{error}");
}

#[test]
fn a_peer_that_dies_is_quoted_with_its_last_lines() {
    let text = complaint("echo 'No module named torch' >&2; exit 3");
    assert!(text.contains("ended before the first step (exit status: 3)"), "{text}");
    assert!(text.contains("No module named torch"), "{text}");
    let text = complaint(&format!("{READY}; read command; kill -9 $$"));
    assert!(text.contains("ended in step 1 (signal: 9"), "{text}");
}

#[test]
fn a_peer_that_says_what_is_wrong_is_quoted() {
    let text = complaint(r#"echo '{"event":"error","message":"torch sees no CUDA device"}'; exit 1"#);
    assert!(text.contains("failed before the first step: `torch sees no CUDA device`"), "{text}");
}

#[test]
fn a_peer_that_answers_something_else_is_quoted() {
    let text = complaint("echo Hello; exec sleep 60");
    assert!(text.contains("before the first step that is not in the protocol: `Hello`"), "{text}");
    let text = complaint(&format!("{READY}; {FINISHED}; exec sleep 60"));
    assert!(text.contains("gave an unexpected answer in step 1"), "{text}");
    let text = complaint(
        r#"echo '{"event":"ready","protocol":2,"peer":"new","trained_parameters":1}'; exec sleep 60"#,
    );
    assert!(text.contains("gave an unexpected answer"), "another protocol: {text}");
    let text = complaint(r"printf '\377\376\n'; exec sleep 60");
    assert!(text.contains("not in the protocol: `\u{fffd}\u{fffd}`"), "{text}");
}

#[test]
fn long_answers_are_shortened_to_one_line() {
    assert_eq!(shortened(" a\n b "), "`a b`");
    assert_eq!(shortened(&"x".repeat(300)), format!("`{}…`", "x".repeat(200)));
    assert_eq!(shortened("\n"), "nothing");
}
