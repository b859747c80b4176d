//! Runs that start from other runs and from adapters, through the real binary.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::sparktune::{Place, checkpoint, done, events};

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// `train` without a model, which the parent names.
fn train(place: &Place, more: &[&str]) -> Command {
    let mut command = place.command(["train", "--non-interactive", "--json", "--device", "cpu"]);
    command.args(["--data", "train.jsonl", "--pack-length", "128", "--mtp", "none", "--max-steps", "2"]);
    command.args(more).env("SPARKTUNE_GRAD_ACCUM_STEPS", "2").env("SPARKTUNE_SAMPLE_COUNT", "0");
    command
}

/// The loss on the eval set at a step.
fn eval(run: &Path, step: u64) -> f64 {
    let is_it = |event: &&Value| event["kind"] == "eval" && event["step"] == step;
    events(run).iter().find(is_it).unwrap()["loss_nats"].as_f64().unwrap()
}

#[test]
fn a_run_goes_on_from_another_runs_adapter_and_refuses_what_is_not_its() {
    let (place, parent) = Place::with_finished_run();
    place.chats(40);
    let finished = events(&parent).into_iter().rfind(|event| event["kind"] == "run_finished").unwrap();
    let step = finished["exported_step"].as_u64().unwrap();

    let result = done(&mut train(&place, &["--from", "latest"])).exits(0);
    let child = result.run_dir();
    assert_eq!(eval(&child, 0).to_bits(), eval(&parent, step).to_bits());
    let plan = fs::read_to_string(child.join("plan.toml")).unwrap();
    assert!(
        plan.contains("rank = 4") && plan.contains(&format!("from = \"{}\"", parent.display())),
        "{plan}"
    );
    let noted = &json(&child.join("provenance.json"))["parent"];
    assert_eq!((noted["step"].as_u64(), noted["folder"].as_str()), (Some(step), parent.to_str()));
    assert_eq!(noted["adapter_blake3"].as_str().unwrap().len(), 64);
    let config = |run: &Path| json(&run.join("outputs/adapter/adapter_config.json"));
    for field in ["r", "lora_alpha", "target_modules"] {
        assert_eq!(config(&parent)[field], config(&child)[field], "{field}");
    }

    let parent_name = parent.file_name().unwrap().to_str().unwrap();
    for (flags, words) in [
        (&["--rank", "8"][..], "--rank is 8, but the adapter of --from has 4"),
        (&["--method", "full"], "--method is full, but the adapter of --from has lora"),
        (&["--target-modules", "mlp"], "--target-modules is mlp, but the adapter of --from has all-linear"),
    ] {
        let refused = done(train(&place, &["--from", parent_name]).args(flags)).exits(2);
        assert!(refused.err.contains(words), "{}", refused.err);
        assert!(refused.err.contains("outputs/merged"), "{}", refused.err);
    }
    let refused = done(&mut train(&place, &["--from", "nothing"])).exits(2);
    assert!(
        refused.err.contains("nothing") && refused.err.contains("adapter_config.json"),
        "{}",
        refused.err
    );

    // The other class's adapter, by its folder, is the same adapter.
    let folder = parent.join("outputs/adapter-causal-lm");
    let planned = done(train(&place, &["--dry-run", "--from"]).arg(&folder)).exits(0);
    assert_eq!(planned.last()["method"]["rank"], 4, "{}", planned.out);
}

#[test]
fn a_run_that_trained_all_weights_is_the_model_of_the_next_and_layers_are_chosen_by_name() {
    let place = Place::new();
    place.chats(40);
    let full =
        done(&mut place.train(&["--method", "full", "--max-steps", "2", "--mtp", "none"])).exits(0).run_dir();
    let flags = ["--from", "latest", "--rank", "8", "--target-modules", "attention", "--lora-dropout", "0.1"];
    let child = done(&mut train(&place, &flags)).exits(0).run_dir();
    let plan = fs::read_to_string(child.join("plan.toml")).unwrap();
    assert!(plan.contains(full.join("outputs/merged").to_str().unwrap()), "{plan}");
    let config = json(&child.join("outputs/adapter/adapter_config.json"));
    assert_eq!(config["lora_dropout"], 0.1);
    let names: Vec<&str> =
        config["target_modules"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(names.contains(&"q_proj") && names.contains(&"in_proj_qkv"), "{names:?}");
    assert!(!names.contains(&"up_proj"), "{names:?}");

    let refused = done(&mut train(&place, &["--from", "latest", "--lora-target-modules", "query"])).exits(2);
    assert!(refused.err.contains("query"), "{}", refused.err);
}

#[test]
fn an_adapter_that_peft_wrote_is_trained_further_and_a_damaged_one_is_refused_before_the_run_exists() {
    let place = Place::new();
    place.chats(40);
    let model = checkpoint();
    let from = |folder: &Path| {
        let mut command = train(&place, &["--model"]);
        command.arg(&model).arg("--from").arg(folder);
        command
    };
    let peft = model.join("../lora_final");
    let run = done(&mut from(&peft)).exits(0).run_dir();
    let config = json(&run.join("outputs/adapter/adapter_config.json"));
    assert_eq!((config["r"].as_u64(), config["lora_alpha"].as_u64()), (Some(8), Some(16)));
    let copy = run.join("parent/adapter_model.safetensors");
    assert_eq!(fs::read(copy).unwrap(), fs::read(peft.join("adapter_model.safetensors")).unwrap());
    let runs = fs::read_dir(place.join("runs")).unwrap().count();

    let damaged = place.join("damaged");
    fs::create_dir(&damaged).unwrap();
    fs::copy(peft.join("adapter_config.json"), damaged.join("adapter_config.json")).unwrap();
    let tensors = damaged.join("adapter_model.safetensors");
    let bytes = fs::read(peft.join("adapter_model.safetensors")).unwrap();
    for (written, words) in [
        (&bytes[..bytes.len() - 4], "its header describes another number of bytes"),
        (&bytes[..100], "its header is longer than the file"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff{}", "its header is longer than the file"),
        (b"PK\x03\x04", "it is too short"),
    ] {
        fs::write(&tensors, written).unwrap();
        let refused = done(&mut from(&damaged)).exits(2);
        assert!(refused.err.contains("is damaged") && refused.err.contains(words), "{}", refused.err);
    }
    fs::remove_file(&tensors).unwrap();
    fs::write(damaged.join("adapter_model.bin"), b"\x80\x02.").unwrap();
    let refused = done(&mut from(&damaged)).exits(2);
    assert!(refused.err.contains("is a pickle"), "{}", refused.err);
    assert_eq!(fs::read_dir(place.join("runs")).unwrap().count(), runs, "no run was created");
}
