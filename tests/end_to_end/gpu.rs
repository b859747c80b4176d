//! The whole program on a CUDA device: a GPU, or the emulated one (`kernels/emulator/driver.sh`).

use serde_json::Value;

use crate::sparktune::{Place, checkpoint, done, events};

#[test]
fn a_device_passes_doctor_and_trains_a_run_that_is_exported() {
    let place = Place::new();
    place.chats(24);
    let findings = place.sparktune(["doctor", "--json"]).last();
    let of = |name: &str| {
        let all = findings.as_array().unwrap().iter();
        all.filter(|finding| finding["what"].as_str().unwrap().contains(name))
            .cloned()
            .collect::<Vec<Value>>()
    };
    let tests = of(" (GPU)");
    if tests.iter().all(|test| test["passed"].is_null()) {
        assert!(std::env::var_os("SPARKTUNE_NEEDS_CUDA").is_none(), "{findings:#}");
        eprintln!("skipped: {}", tests[0]);
        return;
    }
    assert!(tests.len() == 2 && tests.iter().all(|test| test["passed"] == true), "{tests:#?}");

    let mut train =
        place.command(["train", "--non-interactive", "--json", "--device", "cuda", "--data", "train.jsonl"]);
    let few = [
        "--pack-length",
        "64",
        "--max-steps",
        "3",
        "--mtp",
        "none",
        "--rank",
        "8",
        "--learning-rate",
        "0.01",
    ];
    train.arg("--model").arg(checkpoint()).args(few).env("SPARKTUNE_SAMPLE_COUNT", "0");
    let result = done(&mut train).exits(0);
    let run = result.run_dir();
    let events = events(&run);
    let phases: Vec<&Value> = events.iter().filter(|event| event["kind"] == "phase").collect();
    assert!(phases.iter().any(|phase| phase["phase"] == "self-test"), "{phases:#?}");
    assert!(phases.iter().any(|phase| phase["phase"] == "tiles"), "{phases:#?}");
    let tiles = std::fs::read_to_string(run.parent().unwrap().join(".tiles")).unwrap();
    assert!(tiles.lines().any(|line| line.starts_with("lora_linear_forward ")), "{tiles}");
    let losses: Vec<f64> = events
        .iter()
        .filter(|event| event["kind"] == "step")
        .map(|step| step["loss_nats"].as_f64().unwrap())
        .collect();
    assert!(losses.len() == 3 && losses[2] < losses[0], "{losses:?}");
    let started = events.iter().find(|event| event["kind"] == "run_started").unwrap();
    assert!(started["device"].as_str().unwrap().ends_with(", bf16"), "{started}");
    for output in ["merged/model.safetensors", "adapter/adapter_config.json", "SERVE.md"] {
        assert!(run.join("outputs").join(output).is_file(), "{output}");
    }
}
