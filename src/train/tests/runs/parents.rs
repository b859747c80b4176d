//! Runs that start from a trained adapter, runs with adapters on some layers, and runs with dropout.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};
use sparktune_runlog::{Kind, RunDir};
use sparktune_train::{TrainError, Weights, train};

use crate::{LORA, bytes, events, export, losses, run};

/// Returns the losses on the eval set by step, as the event file has them.
fn evals(run: &RunDir) -> Vec<(u64, u64)> {
    let of = |kind: Kind| match kind {
        Kind::Eval(eval) => Some((eval.step, eval.loss_nats.to_bits())),
        _ => None,
    };
    events(run).into_iter().filter_map(of).collect()
}

/// Makes a new run start from the adapter of a finished one, as the launcher does.
fn start_from(run: &RunDir, parent: &RunDir, class: &str) {
    let plan = fs::read_to_string(run.plan()).unwrap();
    let plan =
        plan.replace("model = { id = \"fixture\",", "model = { id = \"fixture\", from = \"the parent\",");
    fs::write(run.plan(), plan).unwrap();
    fs::create_dir(run.parent()).unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::write(run.parent().join(file), bytes(parent, &format!("{class}/{file}"))).unwrap();
    }
    let newest = fs::read_dir(parent.checkpoints()).unwrap().map(|entry| entry.unwrap().path());
    let newest = newest.filter(|path| path.join("state.json").is_file()).max().unwrap();
    let state: Value = serde_json::from_slice(&fs::read(newest.join("state.json")).unwrap()).unwrap();
    let note = json!({ "folder": "the parent", "is_adapter": true, "base_files": state["base_files"] });
    fs::write(run.parent().join("parent.json"), note.to_string()).unwrap();
}

fn finish(run: &RunDir) {
    train(run, &AtomicBool::new(false)).unwrap();
}

/// Trains with a stop after each of the first steps.
fn finish_with_stops(run: &RunDir, stops: u64) {
    for step in 1..=stops {
        assert_eq!(train(run, &AtomicBool::new(true)).unwrap().steps, step);
    }
    finish(run);
}

#[test]
fn a_run_from_an_adapter_begins_with_the_bits_of_its_parent_and_resumes_without_it() {
    let root = tempfile::tempdir().unwrap();
    let parent = run(root.path(), LORA, "none", 6, false);
    finish(&parent);
    let exported = evals(&parent).into_iter().find(|(step, _)| *step == 6).unwrap().1;
    assert_ne!(evals(&parent)[0], (0, exported), "the parent has learned");

    let child = |class: &str| {
        let child = run(root.path(), LORA, "none", 4, false);
        start_from(&child, &parent, class);
        child
    };
    let whole = child("adapter");
    finish(&whole);
    assert_eq!(evals(&whole)[0], (0, exported), "the first loss is the parent's, bit for bit");
    let stopped = child("adapter-causal-lm");
    fs::rename(parent.path(), root.path().join("elsewhere")).unwrap();
    finish_with_stops(&stopped, 2);
    assert_eq!(losses(&stopped), losses(&whole));
    assert_eq!(
        bytes(&stopped, "adapter/adapter_model.safetensors"),
        bytes(&whole, "adapter/adapter_model.safetensors")
    );
    export(&stopped, Weights::Planned).unwrap();
}

#[test]
fn a_run_from_an_adapter_of_another_base_is_refused_before_it_trains() {
    let root = tempfile::tempdir().unwrap();
    let parent = run(root.path(), LORA, "none", 1, false);
    finish(&parent);
    let child = run(root.path(), LORA, "none", 1, false);
    start_from(&child, &parent, "adapter");
    let path = child.parent().join("parent.json");
    let mut note: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    note["base_files"][0]["blake3"] = "of another model".into();
    fs::write(&path, note.to_string()).unwrap();
    let error = train(&child, &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(error, TrainError::OtherBaseThanParent { .. }) && error.exit_code() == 2, "{error}");
    assert!(error.to_string().contains("has changed") && losses(&child).is_empty(), "{error}");
}

#[test]
fn adapters_on_some_layers_are_the_ones_in_the_outputs_and_stops_change_nothing() {
    let root = tempfile::tempdir().unwrap();
    let method = r#"{ kind = "lora", rank = 4, alpha = 8.0, rslora = false, clipped = true, target_modules = ["in_proj_z", "v_proj"] }"#;
    let [whole, stopped] = [0, 1].map(|_| run(root.path(), method, "none", 3, false));
    finish(&whole);
    finish_with_stops(&stopped, 1);
    assert_eq!(losses(&whole), losses(&stopped));
    let config: Value = serde_json::from_slice(&bytes(&whole, "adapter/adapter_config.json")).unwrap();
    assert_eq!(config["target_modules"], json!(["in_proj_z", "v_proj"]));
    let curve: Vec<f64> = losses(&whole).iter().map(|(_, loss)| loss.parse().unwrap()).collect();
    assert!(curve.len() == 3 && curve.iter().all(|loss| loss.is_finite()), "{curve:?}");
}

/// Returns a run with this dropout, after `stops` stops.
fn with_dropout(root: &Path, share: f64, recompute: bool, stops: u64) -> RunDir {
    let method = format!(
        r#"{{ kind = "lora", rank = 4, alpha = 8.0, rslora = false, clipped = true, dropout = {share:?} }}"#
    );
    let run = run(root, &method, "none", 4, recompute);
    finish_with_stops(&run, stops);
    run
}

#[test]
fn dropout_is_the_same_after_a_resume_and_with_recompute_and_evaluations_have_none() {
    let root = tempfile::tempdir().unwrap();
    let whole = with_dropout(root.path(), 0.5, false, 0);
    assert_eq!(losses(&with_dropout(root.path(), 0.5, false, 3)), losses(&whole));
    let numbers =
        |run: &RunDir| losses(run).iter().map(|(_, loss)| loss.parse().unwrap()).collect::<Vec<f64>>();
    let recomputed = with_dropout(root.path(), 0.5, true, 0);
    for (one, other) in numbers(&whole).iter().zip(numbers(&recomputed)) {
        assert!((one - other).abs() < 1e-4, "{one} and {other}");
    }
    let plain = with_dropout(root.path(), 0.0, false, 0);
    // New adapters add nothing, so only later steps can differ.
    assert_ne!(losses(&plain)[1..], losses(&whole)[1..]);
    assert_eq!(evals(&plain)[0], evals(&whole)[0]);
    let config: Value = serde_json::from_slice(&bytes(&whole, "adapter/adapter_config.json")).unwrap();
    assert_eq!(config["lora_dropout"], 0.5);
}
