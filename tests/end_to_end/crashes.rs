//! SIGKILL at any moment, inside checkpointing too: the resumed run ends with the very bytes of the run that
//! was never killed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::sparktune::{Place, done, events, files, fresh_copy};

/// Everything a step said about the numbers: loss and gradient norm by step, and the MTP stage's by its
/// words.
pub(crate) fn numbers(run: &Path) -> Vec<(String, String)> {
    let mut seen = Vec::new();
    for event in events(run) {
        if event["kind"] == "step" {
            let key = format!("step {}", event["step"]);
            seen.push((key, format!("{} {}", event["loss_nats"], event["grad_norm"])));
        } else if event["phase"] == "mtp"
            && let Some((key, loss)) = event["detail"].as_str().and_then(|text| text.split_once(", loss "))
        {
            seen.push((key.to_owned(), loss.to_owned()));
        }
    }
    seen
}

/// A commit that is under way: a folder that is not a checkpoint yet.
fn is_committing(run: &Path) -> bool {
    std::fs::read_dir(run.join("checkpoints")).unwrap().any(|entry| {
        let name = entry.unwrap().file_name();
        let name = name.to_str().unwrap();
        !name.strip_prefix("step-").is_some_and(|step| step.chars().all(|c| c.is_ascii_digit()))
    })
}

pub(crate) fn trainer(place: &Place, run: &Path) -> Child {
    place.command(["trainer"]).arg(run).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Kills the trainer of a fresh copy up to twelve times, each time later or in the middle of a commit, until
/// it gets through; then compares everything with the run that was never killed.
fn killed_and_resumed(flags: &[&str]) {
    let place = Place::new();
    place.chats(40);
    let reference = done(&mut place.train(flags)).exits(0).run_dir();
    let run = place.join("killed");
    fresh_copy(&reference, &run);

    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let (mut kills, mut in_commit) = (0, 0);
    loop {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut child = trainer(&place, &run);
        let started = Instant::now();
        // Early kills hit loading and the first steps; the window grows, and more and more commits pass, so
        // that later ones hit what comes after.
        let after = Duration::from_millis(20 + (random >> 33) % (60 + 60 * kills));
        let wants_commit = kills % 2 == 1;
        let (mut commits, mut was_committing) = (0, true);
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            let committing = is_committing(&run);
            commits += u64::from(committing && !was_committing);
            was_committing = committing;
            let is_time =
                if wants_commit { committing && commits > kills / 2 } else { started.elapsed() > after };
            if is_time {
                child.kill().unwrap();
                child.wait().unwrap();
                in_commit += u32::from(is_committing(&run));
                break None;
            }
            std::thread::sleep(Duration::from_micros(200));
        };
        match ended {
            Some(status) => {
                assert_eq!(
                    status.code(),
                    Some(0),
                    "{}",
                    std::fs::read_to_string(run.join("plan.toml")).unwrap()
                );
                break;
            }
            None => kills += 1,
        }
        // Enough is enough: let it through.
        if kills >= 12 {
            assert_eq!(trainer(&place, &run).wait().unwrap().code(), Some(0));
            break;
        }
    }
    println!("killed {kills} times, {in_commit} of them inside a commit");
    assert!(kills >= 3 && in_commit >= 1, "only {kills} kills, {in_commit} of them inside a commit");

    let expected: BTreeMap<String, String> = numbers(&reference).into_iter().collect();
    let seen = numbers(&run);
    for (step, numbers) in &seen {
        assert_eq!(
            Some(numbers),
            expected.get(step),
            "{step} of some attempt is not that of the run that was never killed"
        );
    }
    let steps: BTreeMap<String, String> = seen.into_iter().collect();
    assert_eq!(steps, expected, "every step was done by some attempt");
    for part in ["merged", "adapter", "merged-mtp"] {
        let (there, here) = (reference.join("outputs").join(part), run.join("outputs").join(part));
        assert_eq!(there.is_dir(), here.is_dir(), "{part}");
        if there.is_dir() {
            assert!(files(&there) == files(&here), "{part} differs");
        }
    }
}

#[test]
fn a_lora_run_with_its_mtp_stage_killed_at_many_instants_ends_with_the_same_bytes() {
    killed_and_resumed(&["--rank", "4", "--max-steps", "8", "--save-steps", "1"]);
}

#[test]
fn a_full_run_killed_at_many_instants_ends_with_the_same_bytes() {
    killed_and_resumed(&["--method", "full", "--max-steps", "8", "--save-steps", "1", "--mtp", "none"]);
}

#[test]
fn a_killed_trainer_is_told_as_resumable_and_its_checkpoints_are_there() {
    let place = Place::new();
    place.chats(40);
    let flags =
        ["--rank", "4", "--epochs", "9999", "--max-steps", "1000000", "--save-steps", "1", "--mtp", "none"];
    let launcher = place.train(&flags).spawn().unwrap();
    let run = crate::runs::wait("a checkpoint", || {
        let run = std::fs::read_dir(place.join("runs"))
            .ok()?
            .map(|e| e.unwrap().path())
            .find(|p| p.join("events").is_dir())?;
        std::fs::read_dir(run.join("checkpoints")).unwrap().next().map(|_| run)
    });
    let holder: serde_json::Value =
        serde_json::from_slice(&std::fs::read(run.join("lease.lock")).unwrap()).unwrap();
    let pid = holder["pid"].as_u64().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-s", "KILL", &pid]).status().unwrap().success());
    let output = launcher.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(5), "{err}");
    assert!(err.contains("signal 9") && err.contains("sparktune resume"), "{err}");
    let out = String::from_utf8(output.stdout).unwrap();
    let last: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(last["outcome"], "crashed");
}
