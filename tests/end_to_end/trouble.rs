//! Damaged checkpoints, a full disk, a read-only folder: named, and nothing is lost.
//!
//! The disk tests mount a small file system, where that is permitted; elsewhere they say that they were
//! skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sparktune::{Done, Place, checkpoint, copy, done, events, files, fresh_copy};

/// A finished run, and a copy that has its checkpoints and none of its events.
fn finished() -> (Place, PathBuf, PathBuf) {
    let (place, reference) = Place::with_finished_run();
    let run = place.join("copy");
    fresh_copy(&reference, &run);
    fs::remove_dir(run.join("checkpoints")).unwrap();
    copy(&reference.join("checkpoints"), &run.join("checkpoints"));
    (place, reference, run)
}

fn newest(run: &Path) -> PathBuf {
    let mut checkpoints: Vec<PathBuf> =
        fs::read_dir(run.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path()).collect();
    checkpoints.sort();
    checkpoints.pop().unwrap()
}

/// It is named, and the outputs are those of the undamaged run. What else may be damaged is tested with
/// checkpoints themselves.
#[test]
fn a_flipped_bit_in_the_newest_checkpoint_is_found_and_the_one_before_is_used() {
    let (place, reference, run) = finished();
    let checkpoint = newest(&run);
    let path = checkpoint.join("weights.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
    for command in ["resume", "export"] {
        let refused = place.sparktune([command, "./copy", "--checkpoint", "6"]).exits(4);
        assert!(refused.err.contains("is damaged") && refused.err.contains("another step"), "{refused:?}");
    }
    let result = place.sparktune(["resume", "./copy", "--json"]).exits(0);
    let name = checkpoint.file_name().unwrap().to_str().unwrap().to_owned();
    let warned = events(&run)
        .into_iter()
        .any(|event| event["kind"] == "warning" && event["message"].as_str().unwrap().contains(&name));
    assert!(warned, "no warning names {name}: {}", result.out);
    let started = events(&run).into_iter().find(|event| event["kind"] == "run_started").unwrap();
    assert_eq!(started["resumed_from_step"], 4, "{started}");
    assert!(
        files(&reference.join("outputs/merged")) == files(&run.join("outputs/merged")),
        "the outputs differ"
    );
}

/// A file system of its own, gone with the value.
struct Mount(PathBuf);

impl Mount {
    /// `None`, said aloud, where mounting is not permitted.
    fn new(at: PathBuf, kibibytes: u32) -> Option<Self> {
        fs::create_dir(&at).unwrap();
        let size = format!("size={kibibytes}k");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&at).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(at)),
            _ => {
                println!("skipped: mounting a file system is not permitted here");
                None
            }
        }
    }

    fn make(&self, options: &str) {
        let status = Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.0).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn resume(place: &Place, run: &Path) -> Done {
    done(place.command(["resume", "--json"]).arg(run))
}

#[test]
fn a_full_disk_ends_with_4_and_loses_nothing() {
    let place = Place::new();
    let Some(mount) = Mount::new(place.join("small"), 8 * 1024) else { return };
    place.chats(40);
    // Checkpoints of full training are some megabytes each: two fit, the outputs and more do not.
    let flags = ["--method", "full", "--max-steps", "6", "--save-steps", "1", "--mtp", "none"];
    let reference = done(&mut place.train(&flags)).exits(0).run_dir();
    let run = mount.0.join("run");
    fresh_copy(&reference, &run);
    let result = resume(&place, &run).exits(4);
    let all = format!("{}{}", result.out, result.err);
    assert!(all.contains("disk is full") || all.contains("No space left"), "{all}");
    assert_ne!(result.last()["outcome"], "completed");
    mount.make("size=64m");
    let result = resume(&place, &run).exits(0);
    assert_eq!(result.last()["outcome"], "completed");
    let started: Vec<_> = events(&run).into_iter().filter(|event| event["kind"] == "run_started").collect();
    assert!(
        started.last().unwrap()["resumed_from_step"].as_u64().unwrap() >= 1,
        "checkpoints before the fault count"
    );
    assert!(
        files(&reference.join("outputs/merged")) == files(&run.join("outputs/merged")),
        "the outputs differ"
    );
}

#[test]
fn a_read_only_folder_is_named_and_left_as_it_is() {
    let (place, _, run) = finished();
    let Some(mount) = Mount::new(place.join("fixed"), 16 * 1024) else { return };
    copy(&run, &mount.0.join("run"));
    place.chats(40);
    let before = files(&mount.0);
    mount.make("ro");
    let result = resume(&place, &mount.0.join("run"));
    assert!(result.code != Some(0) && result.err.contains("read-only"), "{result:?}");
    let result = done(&mut place.train(&["--runs-dir", "fixed/runs"])).exits(2);
    assert!(
        result.err.contains("fixed/runs") && result.err.to_lowercase().contains("read-only"),
        "{}",
        result.err
    );
    assert!(files(&mount.0) == before);
    mount.make("rw");
    resume(&place, &mount.0.join("run")).exits(0);
}

/// A run continues what it began: other settings or other tokens would give the results of neither.
#[test]
fn a_run_whose_plan_or_tokens_have_changed_is_refused_unless_the_change_is_meant() {
    let (place, _, run) = finished();
    let plan = fs::read_to_string(run.join("plan.toml")).unwrap();
    let changed = plan.replace("clip_norm = 1.0", "clip_norm = 2.0");
    assert_ne!(changed, plan);
    fs::write(run.join("plan.toml"), changed).unwrap();
    let refused = place.sparktune(["resume", "./copy", "--plain"]).exits(2);
    let said = refused.out + &refused.err;
    assert!(said.contains("plan.toml has changed") && said.contains("--accept-changes"), "{said}");
    let refused = place.sparktune(["export", "./copy"]).exits(2).err;
    assert!(refused.contains("plan.toml has changed") && !refused.contains("--accept-changes"), "{refused}");
    fs::write(run.join("plan.toml"), plan).unwrap();
    fs::write(run.join("chat_template.jinja"), "{{ messages }}").unwrap();
    assert!(place.sparktune(["export", "./copy"]).exits(2).err.contains("chat_template.jinja is new"));
    fs::remove_file(run.join("chat_template.jinja")).unwrap();

    fs::copy(run.join("data/eval.qubgpu"), run.join("data/other.qubgpu")).unwrap();
    fs::rename(run.join("data/other.qubgpu"), run.join("data/train.qubgpu")).unwrap();
    let refused = place.sparktune(["resume", "./copy", "--plain"]).exits(2);
    let said = refused.out + &refused.err;
    assert!(said.contains("data/train.qubgpu has"), "{said}");

    place.sparktune(["resume", "./copy", "--accept-changes", "--json"]).exits(0);
    let warned = events(&run).into_iter().any(|event| {
        event["kind"] == "warning" && event["message"].as_str().unwrap().contains("data/train.qubgpu has")
    });
    assert!(warned);
}

/// So are those of another base: every step so far belongs to the weights that the run began with.
#[test]
fn a_run_whose_base_has_changed_is_refused_with_the_file_unless_the_change_is_meant() {
    let place = Place::new();
    place.chats(40);
    let model = place.join("model");
    copy(&checkpoint(), &model);
    let flags = ["--rank", "4", "--max-steps", "4", "--save-steps", "2", "--mtp", "none"];
    let reference = done(&mut place.train_model(&model, &flags)).exits(0).run_dir();
    let fresh = || {
        let run = place.join("copy");
        let _ = fs::remove_dir_all(&run);
        fresh_copy(&reference, &run);
        fs::remove_dir(run.join("checkpoints")).unwrap();
        copy(&reference.join("checkpoints"), &run.join("checkpoints"));
        fs::remove_dir_all(newest(&run)).unwrap();
        run
    };
    type Change = fn(&mut Vec<u8>);
    let weights: Change = |bytes| *bytes.last_mut().unwrap() ^= 1;
    let spaces: Change = |bytes| bytes.push(b' ');
    let changes = [
        ("model.safetensors", weights, "has changed"),
        ("config.json", spaces, "bytes instead of"),
        ("generation_config.json", spaces, "bytes instead of"),
    ];
    for (name, change, what) in changes {
        let run = fresh();
        let before = fs::read(model.join(name)).unwrap();
        let mut bytes = before.clone();
        change(&mut bytes);
        fs::write(model.join(name), bytes).unwrap();
        let refused = place.sparktune(["resume", "./copy", "--plain"]).exits(2);
        let said = refused.out + &refused.err;
        for words in [name, what, "--accept-changes"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        let accepted = place.sparktune(["resume", "./copy", "--accept-changes", "--json"]).exits(0);
        assert_eq!(accepted.last()["outcome"], "completed");
        let started = events(&run).into_iter().rfind(|event| event["kind"] == "run_started").unwrap();
        assert_eq!(started["resumed_from_step"], 2, "{started}");
        let warns = |event: &serde_json::Value| {
            event["kind"] == "warning" && event["message"].as_str().unwrap().contains(name)
        };
        assert!(events(&run).iter().any(warns), "{name}");
        fs::write(model.join(name), before).unwrap();
    }
}

/// What resume then says is what the advice of the failed attempt means.
#[test]
fn a_flipped_bit_in_the_tokens_is_named_and_resume_goes_on_once_they_are_put_back() {
    let (place, reference, run) = finished();
    fs::remove_dir_all(newest(&run)).unwrap();
    let path = run.join("data/train.qubgpu");
    let sound = fs::read(&path).unwrap();
    let mut bytes = sound.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    let refused = place.sparktune(["resume", "./copy", "--plain"]).exits(3);
    let said = refused.out + &refused.err;
    assert!(said.contains("data/train.qubgpu") && said.contains("Put an undamaged copy back"), "{said}");
    assert!(said.contains("When that is put right, "), "{said}");
    fs::write(&path, sound).unwrap();
    place.sparktune(["resume", "./copy", "--json"]).exits(0);
    assert!(
        files(&reference.join("outputs/merged")) == files(&run.join("outputs/merged")),
        "the outputs differ"
    );
}

/// A file of weights that is all zeros, as after a download onto a full disk, is a model that cannot learn.
#[test]
fn a_base_whose_weights_are_all_zero_is_warned_of() {
    let place = Place::new();
    place.chats(40);
    let model = place.join("model");
    copy(&checkpoint(), &model);
    let path = model.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[header..].fill(0);
    fs::write(&path, bytes).unwrap();
    let run = done(&mut place.train_model(&model, &["--rank", "4", "--max-steps", "2", "--mtp", "none"]))
        .exits(0)
        .run_dir();
    let warned = events(&run).into_iter().any(|event| {
        event["kind"] == "warning" && event["message"].as_str().unwrap().contains("may be all zero")
    });
    assert!(warned, "{:?}", events(&run));
}
