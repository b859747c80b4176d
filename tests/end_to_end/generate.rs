//! A prompt continued by models, runs and adapters, and the worker process that does it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::sparktune::{Done, Place, checkpoint};

const GREEDY: [&str; 7] = ["--prompt", "Say something", "--temperature", "0", "--max-tokens", "12", "--json"];

fn lines(done: &Done) -> Vec<Value> {
    done.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the text of the answer and the ids of its tokens.
fn answer(done: &Done) -> (String, Vec<u64>) {
    let (mut text, mut ids) = (String::new(), Vec::new());
    for line in lines(done).iter().filter(|line| line["event"] == "text") {
        text.push_str(line["text"].as_str().unwrap());
        ids.extend(line["tokens"].as_array().unwrap().iter().map(|token| token["id"].as_u64().unwrap()));
    }
    (text, ids)
}

#[test]
fn a_model_a_run_and_its_adapter_continue_a_prompt_with_and_without_drafts() {
    let (place, run) = Place::with_finished_run();
    let model = checkpoint();
    let generate =
        |model: &str, more: &[&str]| place.sparktune([&["generate", model], &GREEDY[..], more].concat());
    let base = generate(model.to_str().unwrap(), &[]).exits(0);
    let (_, ids) = answer(&base);
    let end = base.last();
    assert_eq!((&end["event"], &end["usage"]["completion_tokens"]), (&"done".into(), &ids.len().into()));
    assert!(end["usage"]["prompt_tokens"].as_u64().unwrap() > 3, "the template has added to the prompt");
    let drafted = generate(model.to_str().unwrap(), &["--draft-tokens", "2"]).exits(0);
    assert_eq!(answer(&drafted), answer(&base));
    assert!(drafted.last()["usage"]["drafted_tokens"].as_u64().unwrap() > 0);

    // A run, what it has exported, and its name: one model, asked with the template as it was trained.
    let of_run = generate(run.to_str().unwrap(), &[]).exits(0);
    let runs_dir = run.parent().unwrap().to_str().unwrap();
    let output = |name: &str| run.join("outputs").join(name).display().to_string();
    let (adapter, merged) = (output("adapter"), output("merged"));
    let same: [(&str, &[&str]); 4] = [
        (&adapter, &[]),
        (&adapter, &["--base", model.to_str().unwrap()]),
        (&merged, &[]),
        ("latest", &["--runs-dir", runs_dir]),
    ];
    let prompt = |done: &Done| done.last()["usage"]["prompt_tokens"].clone();
    for (name, more) in same {
        let done = generate(name, more).exits(0);
        assert_eq!((answer(&done), prompt(&done)), (answer(&of_run), prompt(&of_run)), "{name} {more:?}");
    }
    // The data has no reasoning, so it was rendered without thinking; other variables take precedence.
    assert_ne!(prompt(&of_run), prompt(&base));
    for (model, kwargs, same) in [
        (model.to_str().unwrap(), r#"{"enable_thinking": false}"#, &of_run),
        (&merged, r#"{"enable_thinking": true}"#, &base),
    ] {
        let done = generate(model, &["--template-kwargs", kwargs]).exits(0);
        assert_eq!(prompt(&done), prompt(same), "{model} {kwargs}");
    }
    assert_eq!(prompt(&generate("demo", &[]).exits(0)).as_u64().map(|tokens| tokens > 3), Some(true));

    let plain = place.sparktune([
        "generate",
        model.to_str().unwrap(),
        "--raw",
        "--prompt",
        "Once",
        "--seed",
        "3",
        "--max-tokens",
        "5",
    ]);
    let plain = plain.exits(0);
    assert!(plain.out.ends_with('\n') && plain.err.contains("seed 3"), "{plain:?}");
}

#[test]
fn what_cannot_be_answered_is_refused_in_words() {
    let place = Place::new();
    let model = checkpoint();
    let model = model.to_str().unwrap();
    let refused = |args: &[&str], code: i32, words: &str| {
        let done = place.sparktune([&["generate", "--prompt", "x"], args].concat()).exits(code);
        assert!(done.err.contains(words), "{}", done.err);
    };
    refused(&["nowhere"], 2, "there is no model 'nowhere'");
    refused(&[model, "--template-kwargs", "{"], 2, "no JSON object");
    refused(&[model, "--template-kwargs", "{}", "--raw"], 2, "cannot be used with");
    let plain = place.join("plain");
    std::fs::create_dir(&plain).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(checkpoint().join(name), plain.join(name)).unwrap();
    }
    refused(&["plain", "--template-kwargs", "{\"a\": 1}"], 2, "plain has no chat template");
    for name in ["20260101T000000Z-a", "20260102T000000Z-a"] {
        std::fs::create_dir_all(place.join("runs").join(name).join("events")).unwrap();
    }
    refused(&["2026"], 2, "20260102T000000Z-a");
    refused(&[place.path().to_str().unwrap()], 2, "config.json");
    refused(&[model, "--top-p", "0"], 2, "top_p is 0");
}

#[test]
fn a_worker_that_is_killed_is_a_failure_of_the_machine_and_not_of_the_request() {
    // On a busy machine a worker may be done before somebody kills it.
    assert!(
        (0..20).any(|_| is_killed_in_its_answer()),
        "every answer was complete before its worker was killed"
    );
}

/// Kills a worker, and checks what is said about it; false if the worker had completed its answer.
fn is_killed_in_its_answer() -> bool {
    let place = Place::new();
    // The answer would have as many tokens as fit into the context, and the worker is killed after the first.
    let flags = ["--raw", "--prompt", "Once", "--temperature", "0", "--max-tokens", "4000", "--json"];
    let mut command = place.command(["generate"]);
    command.arg(checkpoint()).args(flags).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut asking = command.spawn().unwrap();
    let mut output = BufReader::new(asking.stdout.take().unwrap());
    let mut line = String::new();
    // The request is accepted before there is text.
    while !line.contains("\"text\"") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "the worker ended");
    }
    let pid = asking.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    // A command that has the whole answer may have ended its worker already.
    let worker = children.trim().parse().ok().and_then(Pid::from_raw);
    let is_killed = worker.is_some_and(|worker| kill_process(worker, Signal::KILL).is_ok());
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    let ended = asking.wait_with_output().unwrap();
    let words = String::from_utf8(ended.stderr).unwrap();
    if !is_killed || rest.contains("\"done\"") {
        return false;
    }
    assert_eq!(ended.status.code(), Some(4), "{words}");
    assert!(words.contains("signal: 9") && words.contains("Ask again"), "{words}");
    true
}

#[test]
fn a_worker_answers_lines_and_ends_with_its_input() {
    let place = Place::new();
    let mut command = place.command(["infer-worker"]);
    command.arg(checkpoint()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut worker = command.spawn().unwrap();
    let mut input = worker.stdin.take().unwrap();
    let mut lines = BufReader::new(worker.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let ready = next();
    assert_eq!(ready["event"], "ready");
    assert!(ready["planned_bytes"].as_u64().unwrap() > 0, "{ready}");
    for id in ["a", "b"] {
        let sampling = json!({"max_tokens": 3, "ignore_eos": true});
        let request = json!({"op": "generate", "id": id, "prompt": "Hello", "sampling": sampling});
        writeln!(input, "{request}").unwrap();
    }
    let mut done = Vec::new();
    while done.len() < 2 {
        let line = next();
        if line["event"] == "done" {
            assert_eq!(line["finish_reason"], "length");
            done.push(line["id"].as_str().unwrap().to_owned());
        }
    }
    done.sort();
    assert_eq!(done, ["a", "b"]);
    drop(input);
    assert!(worker.wait().unwrap().success());
}
