//! Compares the verdicts on recorded machines: `machines/<name>.toml` and the snapshot of that name.

use std::fs;
use std::path::Path;

use super::versions::package;
use super::*;

/// Formats the checks roughly like `doctor`.
fn shown(checks: &[Check]) -> String {
    let lines = checks.iter().map(|check| {
        let fix = check.fix.iter().map(|fix| format!("    -> {fix}\n")).collect::<String>();
        format!("{:13} {:8} {}\n{fix}", check.name, check.verdict.as_str(), check.found)
    });
    lines.collect()
}

fn machine(name: &str) -> Machine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("machines/{name}.toml"));
    toml::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn recorded_machines_are_judged_as_their_snapshots_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("machines");
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert!(names.len() >= 11, "{names:?}");
    for name in names {
        let facts = machine(&name);
        let with = shown(&cuda_checks(&facts, true));
        let without = shown(&cuda_checks(&facts, false));
        let same = if with == without { "the same\n".to_owned() } else { without };
        insta::assert_snapshot!(name, format!("a build with CUDA\n\n{with}\na build without\n\n{same}"));
    }
}

#[test]
fn whatever_failed_says_what_to_do_and_a_machine_in_order_asks_for_nothing() {
    for name in ["gb10", "h200"] {
        let checks = cuda_checks(&machine(name), true);
        assert!(checks.iter().all(|check| (check.verdict, &check.fix) == (Verdict::Ok, &None)), "{checks:?}");
    }
    let bare = Machine { gpus: vec![GpuFacts::default()], ..Machine::default() };
    for check in cuda_checks(&bare, true) {
        assert_eq!(check.fix.is_some(), check.verdict >= Verdict::Warning, "{check:?}");
    }
    let driver = Machine { gpu_driver: Some("580.95.05".into()), ..bare.clone() };
    let unknown = |check: &&Check| check.verdict == Verdict::Unknown;
    let names: Vec<String> =
        cuda_checks(&driver, true).iter().filter(unknown).map(|check| check.name.clone()).collect();
    assert_eq!(names, ["NVIDIA driver", "GPU 0", "versions"], "what is not known is not ok");
    let worst = cuda_checks(&bare, false).iter().map(|check| check.verdict).max();
    assert_eq!(worst, Some(Verdict::Warning), "nothing is in the way of a build that cannot use it");
}

#[test]
fn the_gpu_is_tried_only_where_nothing_failed() {
    let reached = |name: &str, has_cuda| out_of_reach(&machine(name), has_cuda);
    for name in ["gb10", "h200", "a100", "gb10_hot", "gb10_compat"] {
        assert_eq!(reached(name, true), None, "{name}: a warning is no reason");
    }
    assert_eq!(reached("gb10", false), Some("this build has no CUDA"));
    assert_eq!(reached("no_gpu", true), Some("there is no GPU"));
    for name in [
        "gb10_no_nvrtc",
        "gb10_newer_nvrtc",
        "gb10_older_nvrtc",
        "gb10_stub",
        "old_card",
        "container_without_compute",
    ] {
        assert_eq!(reached(name, true), Some("fix the failed checks first"), "{name}");
    }
}

#[test]
fn packages_are_named_as_nvidia_names_them() {
    let named = |part, version| package(part, version);
    assert_eq!(named("nvrtc", (13, 0)), "cuda-nvrtc-13-0");
    assert_eq!(named("cudart-dev", (13, 3)), "cuda-cudart-dev-13-3");
    assert_eq!(
        (named("cccl", (13, 2)), named("cccl", (13, 3))),
        ("cuda-cccl-13-2".into(), "cccl-13-3".into())
    );
    assert_eq!(
        (named("crt", (13, 0)), named("crt", (12, 9))),
        ("cuda-crt-13-0".into(), "cuda-nvcc-12-9".into())
    );
}

#[test]
fn versions_are_compared_as_numbers_and_garbage_is_none() {
    assert!(version("13.10.3") > version("13.9"));
    for text in ["", "13", "13.", ".1", "thirteen.0", "13.x"] {
        assert_eq!(version(text), None, "{text}");
    }
}
