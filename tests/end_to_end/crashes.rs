//! A trainer that was killed: what is said of it, and what its events and checkpoints tell.

use std::path::Path;
use std::process::{Child, Stdio};

use crate::cluster::run_of;
use crate::sparktune::{Place, events};

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
pub(crate) fn is_committing(run: &Path) -> bool {
    let Ok(mut entries) = std::fs::read_dir(run.join("checkpoints")) else { return false };
    entries.any(|entry| {
        let name = entry.unwrap().file_name();
        let name = name.to_str().unwrap();
        !name.strip_prefix("step-").is_some_and(|step| step.chars().all(|c| c.is_ascii_digit()))
    })
}

pub(crate) fn trainer(place: &Place, run: &Path) -> Child {
    place.command(["trainer"]).arg(run).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_killed_trainer_is_told_as_resumable_and_its_checkpoints_are_there() {
    let place = Place::new();
    place.chats(40);
    let flags =
        ["--rank", "4", "--epochs", "9999", "--max-steps", "1000000", "--save-steps", "1", "--mtp", "none"];
    let launcher = place.train(&flags).spawn().unwrap();
    let run = crate::runs::wait("a checkpoint", || {
        let run = run_of(&place)?;
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
