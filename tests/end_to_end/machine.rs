//! `doctor`: what it looks at.

use serde_json::Value;

use crate::runs::wait;
use crate::sparktune::{Done, Place};

/// What `doctor` says once no program waits for memory. While other programs take it all, `doctor` says that
/// instead.
fn doctor(place: &Place, more: &[&str]) -> Done {
    let has_memory = |done: &Done| !done.out.contains("waiting for memory");
    let done = wait("memory", || Some(place.sparktune([&["doctor"], more].concat())).filter(has_memory));
    done.exits(0)
}

#[test]
fn doctor_names_the_machine_and_its_self_tests_pass() {
    let place = Place::new();
    let result = doctor(&place, &[]);
    for line in ["memory", "disk", "NVIDIA driver", "trains on"] {
        assert!(result.out.lines().any(|l| l.starts_with(line)), "{line} is not in\n{}", result.out);
    }
    let findings = doctor(&place, &["--json"]).last();
    for finding in findings.as_array().unwrap() {
        let status = finding["status"].as_str().unwrap();
        assert!(["ok", "warning", "failed", "skipped"].contains(&status), "{finding}");
        assert!(status != "failed" || finding["advice"].is_string(), "{finding}");
    }
    let test = |name: &str| -> Value {
        findings.as_array().unwrap().iter().find(|f| f["what"] == name).unwrap()["passed"].clone()
    };
    assert_eq!((test("packed = alone"), test("gradients")), (Value::Bool(true), Value::Bool(true)));
}
