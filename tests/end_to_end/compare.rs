//! Models compared through the real binary.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::sparktune::{Place, checkpoint};

const SUITE: &str = r#"{"suite": "short", "sampling": {"max_tokens": 6}, "checks": [{"type": "lacks", "value": "never there"}]}
{"id": "a", "prompt": "Hello", "reference": "Hello there", "checks": [{"type": "perplexity"}, {"type": "chrf"}]}
{"id": "b", "text": "1, 2,", "checks": [{"type": "contains", "value": "surely not this"}]}
{"id": "c", "prompt": "Code", "checks": [{"type": "python", "tests": ["assert True"]}]}
"#;

#[test]
fn a_run_is_compared_with_its_base_judged_kept_and_reported() {
    let (place, run) = Place::with_finished_run();
    let name = run.file_name().unwrap().to_str().unwrap();
    let runs = run.parent().unwrap().to_str().unwrap();
    let suite = place.path().join("short.jsonl");
    fs::write(&suite, SUITE).unwrap();
    let compare = |more: &[&str]| {
        let first = ["compare", "latest", "--runs-dir", runs, "--suite", suite.to_str().unwrap()];
        place.sparktune([&first[..], more].concat())
    };
    let done = compare(&["--judge", "sh -c 'grep -c answer'", "--json"]).exits(0);
    let comparison: Value = serde_json::from_str(done.out.trim()).unwrap();
    let ids: Vec<&str> =
        comparison["models"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [format!("run:{name}@base"), format!("run:{name}")]);
    for model in comparison["models"].as_array().unwrap() {
        let answers = model["answers"].as_array().unwrap();
        assert!(answers[0]["reference"]["nats"].as_f64().unwrap() > 0.0, "{model}");
        let outcome = |answer: usize, kind: &str| {
            let outcomes = answers[answer]["outcomes"].as_array().unwrap();
            outcomes.iter().find(|outcome| outcome["kind"] == kind).unwrap().clone()
        };
        assert_eq!(outcome(0, "judge")["score"], 1.0);
        assert_eq!(outcome(1, "contains")["passed"], false);
        assert_eq!(outcome(2, "python")["passed"], Value::Null, "code runs only if it was asked for");
        assert_eq!((&model["summary"]["decided"], &model["summary"]["passed"]), (&2.into(), &1.into()));
        assert!(model["summary"]["tokens_per_s"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(comparison["code"], "not_asked");
    assert_eq!(comparison["differences"][0]["verdict"], "too_few");
    let id = comparison["id"].as_str().unwrap();
    let kept = run.parent().unwrap().join(".comparisons").join(format!("{id}.json"));
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);

    let report = place.sparktune(["report", run.to_str().unwrap()]).exits(0);
    let page = fs::read_to_string(report.out.trim()).unwrap();
    assert!(page.contains("Before and after") && page.contains("too few to tell"), "{page}");

    let plain = compare(&["--answers", "all"]).exits(0);
    for words in ["short (3 prompts)", "passed", "1 of 2, 50 %", "against", "too few", "── b ─", "✗"]
    {
        assert!(plain.out.contains(words), "{words} is not in\n{}", plain.out);
    }
    assert!(plain.err.contains("--run-code"), "{}", plain.err);
}

#[test]
fn what_cannot_be_compared_is_refused_in_words() {
    let place = Place::new();
    let model = checkpoint();
    let model = model.to_str().unwrap();
    let suite = place.path().join("wrong.jsonl");
    fs::write(
        &suite,
        "{\"prompt\":\"x\"}\n{\"prompt\":\"y\",\"checks\":[{\"type\":\"regex\",\"pattern\":\"(\"}]}\n",
    )
    .unwrap();
    for (args, words) in [
        (&["nowhere"][..], "there is no model 'nowhere'"),
        (&[model, "--suite", "nothing"], "instructions, arithmetic, coding, demo"),
        (&[model, "--suite", suite.to_str().unwrap()], "wrong.jsonl:2: checks[0]"),
        (&[model, "--judge", "'"], "quotation mark"),
        (&[model, "--at-a-time", "0"], "at-a-time"),
    ] {
        let done = place.sparktune([&["compare"], args].concat()).exits(2);
        assert!(done.err.contains(words), "{words} is not in\n{}", done.err);
    }
}

#[test]
fn ctrl_c_ends_a_comparison_and_its_worker() {
    let place = Place::new();
    let suite = place.path().join("long.jsonl");
    // So many that the test never sees the last answer, however late it looks.
    let line = "{\"text\":\"Once\",\"sampling\":{\"max_tokens\":100000,\"ignore_eos\":true}}\n";
    fs::write(&suite, line.repeat(200)).unwrap();
    let mut command = place.command(["compare", "--suite"]);
    command.arg(&suite).arg(checkpoint()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut told, mut words) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    while !words.contains(" answers\n") {
        assert!(told.read_line(&mut words).unwrap() > 0, "{words}");
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    told.read_to_string(&mut words).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{words}");
    assert!(words.contains("was cancelled"), "{words}");
}
