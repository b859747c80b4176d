//! A kept comparison with answers that a test chooses.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sparktune_compare::{Comparison, VERSION};

/// Keeps a comparison of two models next to the runs and returns its id. Each prompt has two answers.
pub(crate) fn keep(runs: &Path, names: [&str; 2], prompts: &[(&str, [&str; 2])]) -> String {
    let id = "1800000000-mine-0001";
    let question = |(at, (question, _)): (usize, &(&str, [&str; 2]))| {
        json!({"id": format!("prompt-{at}"), "sampling": {},
            "messages": [{"role": "system", "content": question}, {"role": "user", "content": question}],
            "reference": question, "checks": ["contains"]})
    };
    let model = |side: usize| {
        let answer = |(at, (_, answers)): (usize, &(&str, [&str; 2]))| {
            let note = (side == 0).then_some(answers[side]);
            json!({"prompt": format!("prompt-{at}"), "text": answers[side], "thought": answers[side],
                "error": note, "finish_reason": "stop", "prompt_tokens": 9, "completion_tokens": 20,
                "first_token_ms": 12.0, "total_ms": 340.0, "reference": null, "passed": side == 1, "score": side,
                "outcomes": [{"check": answers[side], "kind": "contains", "passed": side == 1, "score": side,
                    "value": null, "note": note}]})
        };
        let answers: Vec<Value> = prompts.iter().enumerate().map(answer).collect();
        json!({"id": format!("run:{}", names[side]), "name": names[side], "answers": answers,
            "generating_ms": 1000.0, "load_ms": 10.0, "summary": EMPTY.parse::<Value>().unwrap()})
    };
    let comparison = json!({"version": VERSION, "id": id, "created_us": 1_800_000_000_000_000_u64, "suite": "mine",
        "about": "Made for a test.", "judge": null, "code": "not_needed", "at_a_time": 1, "notes": [names[0]],
        "prompts": prompts.iter().enumerate().map(question).collect::<Vec<_>>(),
        "models": [model(0), model(1)], "differences": []});
    let mut comparison: Comparison = serde_json::from_value(comparison).unwrap();
    comparison.summarise();
    let folder = runs.join(".comparisons");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(format!("{id}.json")), serde_json::to_vec(&comparison).unwrap()).unwrap();
    id.to_owned()
}

/// A summary before it is computed.
const EMPTY: &str =
    r#"{"answers": 0, "errors": 0, "decided": 0, "passed": 0, "reference_tokens": 0, "cut": 0}"#;
