//! Several sets of data with weights, and sets that lie on a hub.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use serde_json::Value;

use crate::crashes::{numbers, trainer};
use crate::hub::{COMMIT, Hub};
use crate::sparktune::{Place, chat, checkpoint, done, events, files, fresh_copy};

/// The smallest training.
const FEW: [&str; 6] = ["--rank", "4", "--mtp", "none", "--save-steps", "2"];

impl Hub {
    /// Lets a command use this hub.
    pub(crate) fn on<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("HF_ENDPOINT", &self.endpoint)
            .env("HF_HUB_OFFLINE", "0")
            .env("HF_TOKEN", "hf_secretsecret")
    }
}

/// `a.jsonl` with 24 chats, `b.jsonl` with 40.
fn two_files(place: &Place) {
    for (name, numbers) in [("a.jsonl", 0..24), ("b.jsonl", 100..140)] {
        place.write(name, numbers.map(|i| chat(i).to_string() + "\n").collect::<String>());
    }
}

const WEIGHTED: [&str; 9] =
    ["--data", "a.jsonl", "--data", "b.jsonl", "--weight", "a.jsonl=2", "--weight", "b.jsonl=0.5", "--json"];

/// A training of the two files with weights.
fn weighted(place: &Place, more: &[&str]) -> Command {
    let mut command =
        place.command(["train", "--non-interactive", "--device", "cpu", "--pack-length", "128"]);
    command.arg("--model").arg(checkpoint()).args(WEIGHTED).args(FEW).args(more);
    command.env("SPARKTUNE_GRAD_ACCUM_STEPS", "2").env("SPARKTUNE_SAMPLE_COUNT", "0");
    command
}

#[test]
fn a_data_set_of_the_hub_is_trained_pinned_and_trained_again_offline() {
    let (place, hub) = (Place::new(), Hub::open());
    let train = |more: &[&str]| {
        let mut command = place.train(&FEW);
        command.args(["--max-steps", "2", "--eval-data", "hf:org/chats:test"]).args(more);
        command
    };
    // The flag of `Place::train` names a file, to which the data set is added.
    place.chats(4);
    let run = done(hub.on(&mut train(&["--data", "hf:org/chats"]))).exits(0).run_dir();
    let read = |run: &std::path::Path, name: &str| std::fs::read_to_string(run.join(name)).unwrap();
    let (plan, provenance) = (read(&run, "plan.toml"), read(&run, "provenance.json"));
    let pinned = format!("hf:org/chats@{COMMIT}");
    assert!(
        plan.contains(&format!("\"{pinned}\"")) && plan.contains(&format!("\"{pinned}:test\"")),
        "{plan}"
    );
    assert!(provenance.contains(&pinned), "{provenance}");
    assert!(!plan.contains("secret") && !provenance.contains("secret"));
    let report: Value = serde_json::from_str(&read(&run, "data/report.json")).unwrap();
    assert_eq!(report["sets"][1]["name"], "hf:org/chats");
    assert_eq!(report["sets"][1]["train_examples"], 40);
    assert_eq!(report["files"][1]["name"], "hf:org/chats data/train-00000-of-00002.jsonl");
    assert!(
        !hub.log.lock().unwrap().iter().any(|line| line.contains("chats.py")),
        "a program is not fetched"
    );

    let mut offline = train(&["--data", &pinned]);
    let again = done(offline.env("HF_ENDPOINT", "http://127.0.0.1:1")).exits(0).run_dir();
    let tokens = |run: &std::path::Path| {
        let provenance: Value = serde_json::from_str(&read(run, "provenance.json")).unwrap();
        provenance["eval_tokens_blake3"].clone()
    };
    assert_eq!(numbers(&again), numbers(&run), "the same bytes give the same losses");
    assert!(tokens(&again).is_string());
}

#[test]
fn what_is_wrong_with_the_name_of_a_data_set_is_said_with_its_exit_code() {
    let (place, hub) = (Place::new(), Hub::open());
    for (name, code, words) in [
        ("hf:org/chats:dev", 2, &["no split \"dev\"", "\"test\", \"train\""][..]),
        ("hf:org/chats/de", 2, &["no config \"de\"", "\"main\""]),
        ("hf:org/none", 2, &["no such data set", "HF_TOKEN"]),
        ("hf:chats", 2, &["hf:OWNER/NAME"]),
    ] {
        let result = done(hub.on(&mut place.command(["check", name]))).exits(code);
        assert!(words.iter().all(|word| result.err.contains(word)), "{name}: {}", result.err);
    }
    let mut away = place.command(["check", "hf:org/chats"]);
    away.env("HF_ENDPOINT", "http://127.0.0.1:1").env("HF_HUB_OFFLINE", "1");
    let result = done(&mut away).exits(2);
    assert!(result.err.contains("HF_HUB_OFFLINE"), "{}", result.err);
    let checked = done(hub.on(&mut place.command(["check", "hf:org/chats"]))).exits(0);
    assert!(checked.out.contains("40 examples accepted"), "{}", checked.out);
}

#[test]
fn tables_of_the_hub_are_mapped_counted_and_weighted_like_those_on_disk() {
    let (place, hub) = (Place::new(), Hub::open());
    let mut command = place.command(["check", "hf:org/chats:answers", "hf:org/chats:sheet", "--json"]);
    command.args(["--map", "Question=prompt,meta.answer=completion", "--weight", "hf:org/chats:answers=2"]);
    command.arg("--model").arg(checkpoint());
    let report = &done(hub.on(&mut command)).exits(0).last()["report"];
    let file =
        |i: usize| (report["files"][i]["name"].as_str().unwrap(), report["files"][i]["examples"].as_u64());
    assert_eq!(file(0), ("hf:org/chats:answers answers/0000.parquet", Some(9)));
    assert_eq!(file(1), ("hf:org/chats:sheet sheet.csv", Some(1)));
    assert_eq!(
        (&report["sets"][0]["weight"], &report["sets"][0]["train_examples"]),
        (&2.0.into(), &9.into())
    );
}

#[test]
fn weights_repeat_sets_and_the_plan_counts_the_steps_that_the_trainer_makes() {
    let place = Place::new();
    two_files(&place);
    let planned = done(&mut weighted(&place, &["--dry-run"])).exits(0);
    let plan = planned.last();
    let run = done(&mut weighted(&place, &[])).exits(0).run_dir();
    let started = events(&run).into_iter().find(|event| event["kind"] == "run_started").unwrap();
    // The plan knows the lengths as a distribution, so its number of packs is an estimate.
    let [planned, total] =
        [&plan["advice"]["time"]["steps"], &started["total_steps"]].map(|steps| steps.as_f64().unwrap());
    assert!((planned / total - 1.0).abs() < 0.06, "{planned} steps planned, {total} made");
    let sets = plan["advice"]["sets"].as_array().unwrap();
    let [a, b] = [0, 1].map(|set| {
        let number = |field: &str| sets[set][field].as_u64().unwrap();
        (number("examples"), number("epoch_examples"))
    });
    assert_eq!((a.1, b.1), (2 * a.0, (b.0 as f64 / 2.0).round() as u64));
    let report: Value =
        serde_json::from_slice(&std::fs::read(run.join("data/report.json")).unwrap()).unwrap();
    assert_eq!((&report["sets"][0]["weight"], &report["sets"][1]["weight"]), (&2.0.into(), &0.5.into()));
    let checked = done(&mut place.command(["check", "a.jsonl", "b.jsonl", "--weight", "a.jsonl=2"])).exits(0);
    assert!(checked.out.contains("a.jsonl: 24 examples, weight 2: 48 examples an epoch"), "{}", checked.out);

    let wrong = done(weighted(&place, &["--dry-run"]).args(["--weight", "c.jsonl=3"])).exits(2);
    assert!(wrong.err.contains("\"c.jsonl\"") && wrong.err.contains("a.jsonl, b.jsonl"), "{}", wrong.err);
}

#[test]
fn token_files_are_weighted_like_the_texts_that_they_were_made_of() {
    let place = Place::new();
    two_files(&place);
    let model = checkpoint();
    for name in ["a", "b"] {
        let (text, tokens) = (format!("{name}.jsonl"), format!("{name}.qubgpu"));
        place.sparktune(["pack", &text, "-o", &tokens, "--model", model.to_str().unwrap()]).exits(0);
    }
    let plan = |ending: &str| {
        let mut command = place.command(["plan", "--device", "cpu", "--pack-length", "128", "--json"]);
        command.arg("--model").arg(checkpoint());
        for (name, weight) in [("a", "2"), ("b", "0.5")] {
            let set = format!("{name}.{ending}");
            command.args(["--data", &set, "--weight", &format!("{set}={weight}")]);
        }
        done(&mut command).exits(0).last()
    };
    let (text, tokens) = (plan("jsonl"), plan("qubgpu"));
    assert_eq!(text["advice"]["time"]["steps"], tokens["advice"]["time"]["steps"]);
    for set in 0..2 {
        for field in ["examples", "epoch_examples", "epoch_tokens"] {
            let of = |plan: &Value| plan["advice"]["sets"][set][field].clone();
            assert!(of(&text).is_number(), "{text}");
            assert_eq!(of(&text), of(&tokens), "{field}");
        }
    }
    assert_eq!(tokens["advice"]["sets"][1]["name"], "b.qubgpu");
    let mixed = place.sparktune(["check", "a.qubgpu", "b.jsonl"]).exits(3);
    assert!(mixed.err.contains("only one of the two kinds"), "{}", mixed.err);
    // The file is one set, so there is nothing to weigh when it is made.
    place.sparktune(["pack", "a.jsonl", "-o", "c.qubgpu", "--weight", "a.jsonl=2"]).exits(2);
    let result =
        place.sparktune(["pack", "a.jsonl", "b.jsonl", "-o", "c.qubgpu", "--model", model.to_str().unwrap()]);
    let result = result.exits(0);
    assert!(result.out.contains("64 examples accepted") && !result.out.contains("weight"), "{}", result.out);
}

#[test]
fn a_weighted_run_that_was_killed_continues_bit_for_bit() {
    let place = Place::new();
    two_files(&place);
    let reference = done(&mut weighted(&place, &[])).exits(0).run_dir();
    // Killed after a checkpoint and before its last step. On a busy machine it may come to its end first;
    // then another one is killed.
    let killed = |attempt: usize| {
        let run = place.join(&format!("killed-{attempt}"));
        fresh_copy(&reference, &run);
        let mut child = trainer(&place, &run);
        let has_checkpoint = || {
            let mut names =
                std::fs::read_dir(run.join("checkpoints")).unwrap().map(|entry| entry.unwrap().file_name());
            names.any(|name| name.to_str().unwrap().starts_with("step-"))
        };
        while !has_checkpoint() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert!(status.success() || status.signal() == Some(9), "{status:?}");
        (!status.success()).then_some(run)
    };
    let run = (0..20).find_map(killed).expect("one was not finished already");
    assert_eq!(trainer(&place, &run).wait().unwrap().code(), Some(0));
    let (expected, seen) = (numbers(&reference), numbers(&run));
    assert!(expected.iter().all(|step| seen.contains(step)), "{expected:?} {seen:?}");
    assert!(seen.iter().all(|step| expected.contains(step)), "{expected:?} {seen:?}");
    assert!(files(&run.join("outputs/adapter")) == files(&reference.join("outputs/adapter")));
}
