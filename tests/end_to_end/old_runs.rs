//! Runs and token files made by an earlier program still open, resume and export.
//!
//! `tests/fixtures/run-261c35e` was made by the program at commit 261c35e: a LoRA run on the demo's model,
//! stopped after step 9 of 30, one of its token files as v1 packets, and in `expected.json` the losses that
//! the same program computed when it resumed a copy of the run.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::sparktune::{Place, events, losses, old_fixture};

/// Bit-identical holds for one build on one machine; processors with other vector units add in another order.
const TOLERANCE: f64 = 1e-3;

#[test]
fn a_run_of_an_earlier_program_is_listed_resumed_with_its_losses_and_exported() {
    let place = Place::new();
    let run = place.old_run();
    let rows = place.sparktune(["runs", "--json"]).exits(0).last();
    assert_eq!(rows.as_array().unwrap().len(), 1);
    assert_eq!((rows[0]["state"].as_str(), rows[0]["outcome"].as_str()), (Some("finished"), Some("stopped")));

    let resumed = place.sparktune(["resume", "old", "--json"]).exits(0);
    assert_eq!(resumed.last()["outcome"], "completed");
    assert_eq!(resumed.last()["steps"], 30);
    let expected: Value =
        serde_json::from_slice(&fs::read(old_fixture().join("expected.json")).unwrap()).unwrap();
    let close = |found: f64, expected: &Value, what: &str| {
        let expected = expected.as_f64().unwrap_or_else(|| panic!("{what} is not in expected.json"));
        println!("{what}: {found} now, {expected} then");
        assert!((found - expected).abs() <= TOLERANCE, "{what}: {found} now, {expected} then");
    };
    let again: Vec<_> = losses(&run).into_iter().filter(|(_, step, _)| *step > 9).collect();
    assert_eq!(again.len(), 21, "each of the steps 10 to 30 is trained once");
    for (_, step, loss) in again {
        close(loss, &expected["steps"][step.to_string()], &format!("loss of step {step}"));
    }
    let evals: Vec<Value> = events(&run).into_iter().filter(|event| event["kind"] == "eval").collect();
    assert_eq!(evals.len(), 2);
    for eval in evals {
        let step = eval["step"].to_string();
        close(
            eval["loss_nats"].as_f64().unwrap(),
            &expected["evals"][&step],
            &format!("evaluation at {step}"),
        );
    }

    let exported = place.sparktune(["export", "old", "--json"]).exits(0);
    assert!(exported.last()["outputs"].to_string().contains("merged"), "{}", exported.out);
    for file in ["adapter/adapter_model.safetensors", "merged/model.safetensors", "SERVE.md"] {
        assert!(run.join("outputs").join(file).is_file(), "{file}");
    }
    place.sparktune(["report", "old", "--json"]).exits(0);
}

#[test]
fn token_files_of_an_earlier_program_are_read_in_both_versions() {
    let place = Place::new();
    let text = |name: &Path| {
        let out = place.join("out.jsonl");
        let _ = fs::remove_file(&out);
        place.sparktune(["unpack".as_ref(), name.as_os_str(), out.as_os_str()]).exits(0);
        let lines = fs::read_to_string(out).unwrap();
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["input_ids"].clone()).collect()
    };
    let v2 = old_fixture().join("run/data/eval.qubgpu");
    place.sparktune(["verify".as_ref(), v2.as_os_str()]).exits(0);
    let from_v2: Vec<Value> = text(&v2);
    assert_eq!(from_v2.len(), 14);

    let packed = place.join("packed.qubgpu");
    place
        .sparktune(["pack".as_ref(), old_fixture().join("eval.v1.qubgpu").as_os_str(), packed.as_os_str()])
        .exits(0);
    assert_eq!(text(&packed), from_v2);
}
