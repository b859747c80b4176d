//! `doctor`: what it looks at.

use serde_json::Value;

use crate::sparktune::Place;

#[test]
fn doctor_names_the_machine_and_its_self_tests_pass() {
    let place = Place::new();
    let result = place.sparktune(["doctor"]).exits(0);
    for line in ["memory", "disk", "NVIDIA driver", "trains on"] {
        assert!(result.out.lines().any(|l| l.starts_with(line)), "{line} is not in\n{}", result.out);
    }
    let findings = place.sparktune(["doctor", "--json"]).exits(0).last();
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
