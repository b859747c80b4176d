//! What checks say about answers, and what cannot be a check.

use serde_json::json;

use super::*;
use crate::answer::Answer;

fn check(spec: &str) -> Check {
    Check::new(serde_json::from_str(spec).unwrap()).unwrap()
}

fn refusal(spec: &str) -> String {
    let (what, fix) = Check::new(serde_json::from_str(spec).unwrap()).unwrap_err();
    format!("{what}. {fix}")
}

fn outcome(spec: &str, text: &str) -> Outcome {
    let loss = ReferenceLoss { nats: 2.0, tokens: 2 };
    let run: &dyn Fn(&CodeJob) -> _ = &|_| Err("code is not run".to_owned());
    check(spec).outcome(&Answered { text, reference: Some("The cat sat."), reference_loss: Ok(loss), run })
}

fn passes(spec: &str, text: &str) -> bool {
    let outcome = outcome(spec, text);
    assert_eq!(outcome.score, outcome.passed.map(f64::from), "{spec}");
    outcome.passed.unwrap()
}

#[test]
fn texts_patterns_and_numbers_are_compared_as_they_say() {
    let equals = r#"{"type":"equals","value":"Paris"}"#;
    assert!(passes(equals, " Paris\n") && !passes(equals, "paris") && !passes(equals, "Paris."));
    assert!(passes(r#"{"type":"equals","value":"PARIS","ignore_case":true}"#, "paris"));
    assert!(passes(r#"{"type":"contains","value":"Ride safe!"}"#, "Hello. Ride safe!"));
    assert!(passes(r#"{"type":"lacks","value":"sorry","ignore_case":true}"#, "Here you are."));
    assert!(!passes(r#"{"type":"lacks","value":"sorry","ignore_case":true}"#, "Sorry, no."));
    assert!(passes(r#"{"type":"regex","pattern":"^\\d+\\.$"}"#, "42."));
    let number = r#"{"type":"number","value":3.14,"within":0.01}"#;
    assert!(passes(number, "Pi is about 3.15") && !passes(number, "3.16") && !passes(number, "none"));
    assert_eq!(outcome(number, "3.2").value, Some(3.2));
}

#[test]
fn a_check_that_only_measures_decides_nothing() {
    let measured = outcome(r#"{"type":"chrf"}"#, "The cat sat.");
    assert_eq!((measured.passed, measured.score, measured.value.map(f64::round)), (None, None, Some(100.0)));
    let bound = outcome(r#"{"type":"bleu","at_least":90}"#, "A dog stood.");
    assert_eq!(bound.passed, Some(false));
    assert!(bound.score.unwrap() < 0.5);
    let perplexity = outcome(r#"{"type":"perplexity","at_most":2}"#, "");
    assert_eq!(perplexity.passed, Some(false), "e is more than 2");
    assert!((perplexity.value.unwrap() - std::f64::consts::E).abs() < 1e-12);
}

#[test]
fn an_answer_whose_code_is_not_run_neither_passes_nor_fails_for_that() {
    let spec = r#"{"type":"python","tests":["assert f() == 1"]}"#;
    let text = "```python\ndef f(): return 1\n```";
    let not_run = outcome(spec, text);
    assert_eq!((not_run.passed, not_run.score, not_run.is_missing), (None, None, true));
    assert_eq!(not_run.note.as_deref(), Some("code is not run"));

    let settled = |others: &[Outcome]| {
        let outcomes = others.iter().cloned().chain([not_run.clone()]).collect();
        let mut answer = Answer { outcomes, ..Answer::default() };
        answer.settle();
        (answer.passed, answer.score)
    };
    let [defines, calls] = ["def f", "f()"].map(|value| {
        outcome(&format!(r#"{{"type":"lacks","value":"{value}"}}"#), "```python\ndef f: return 1\n```")
    });
    assert_eq!((defines.passed, calls.passed), (Some(false), Some(true)));
    assert_eq!(settled(&[]), (None, None));
    assert_eq!(
        settled(std::slice::from_ref(&calls)),
        (None, None),
        "the check that was made is not enough to pass"
    );
    assert_eq!(settled(&[calls, defines]), (Some(false), None));
}

#[test]
fn json_of_an_answer_may_stand_in_a_fence_and_is_told_where_it_is_wrong() {
    let spec = json!({"type": "json_schema", "schema": {
        "$defs": {"age": {"type": "integer", "minimum": 0}},
        "type": "object", "required": ["name"], "properties": {"age": {"$ref": "#/$defs/age"}},
    }})
    .to_string();
    assert!(passes(&spec, r#"{"name":"Ada","age":36}"#));
    assert!(passes(&spec, "```json\n{\"name\": \"Ada\"}\n```"));
    assert!(!passes(&spec, r#"{"age":1}"#));
    let note = |text: &str| outcome(&spec, text).note.unwrap();
    assert!(note("Sure! {}").contains("not JSON"), "{}", note("Sure! {}"));
    assert!(note(r#"{"name":"x","age":-1}"#).contains("/age"), "{}", note(r#"{"name":"x","age":-1}"#));
    assert!(note(&"[".repeat(100_000)).contains("not JSON"));
}

#[test]
fn hostile_patterns_and_schemas_are_refused_in_words() {
    for (spec, words) in [
        (json!({"type": "regex", "pattern": "("}), "unclosed group"),
        (json!({"type": "regex", "pattern": "a(?=b)"}), "look-around"),
        (json!({"type": "regex", "pattern": "((((a{90}){90}){90}){90}){90}"}), "size limit"),
        (json!({"type": "regex", "pattern": "a".repeat(5000)}), "5000 bytes"),
        (json!({"type": "equals", "value": " "}), "empty"),
        (json!({"type": "number", "value": 1, "within": -1}), "negative"),
        (json!({"type": "chrf", "at_least": 101}), "outside 0 to 100"),
        (json!({"type": "perplexity", "at_most": 0}), "at least 1"),
        (json!({"type": "python", "tests": []}), "0 entries"),
        (json!({"type": "json_schema", "schema": {"$ref": "http://127.0.0.1/x"}}), "nothing is fetched"),
        (json!({"type": "json_schema", "schema": {"$id": "http://127.0.0.1/x"}}), "$id"),
        (json!({"type": "json_schema", "schema": {"$schema": "http://127.0.0.1/x"}}), "cannot be used"),
        (json!({"type": "json_schema", "schema": {"$ref": "#"}}), "none of its definitions"),
        (json!({"type": "json_schema", "schema": {"type": "thing"}}), "cannot be used"),
        (json!({"type": "json_schema", "schema": {"pattern": "(a{900}){900}{900}"}}), "cannot be used"),
    ] {
        let refusal = refusal(&spec.to_string());
        assert!(refusal.contains(words), "{words}: {refusal}");
    }
    let circle = json!({"$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"not": {"$ref": "#/$defs/a"}}},
        "$ref": "#/$defs/a"});
    assert!(refusal(&json!({"type": "json_schema", "schema": circle}).to_string()).contains("itself"));
    // Each definition uses the next one ten times.
    let mut bomb = serde_json::Map::new();
    for i in 0..12 {
        let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
        bomb.insert(format!("d{i}"), json!({"allOf": vec![next; 10]}));
    }
    bomb.insert("d12".into(), json!(true));
    let bomb = json!({"$defs": bomb, "$ref": "#/$defs/d0"});
    assert!(refusal(&json!({"type": "json_schema", "schema": bomb}).to_string()).contains("20000 values"));
}

#[test]
fn the_code_of_an_answer_is_what_stands_in_its_first_fence() {
    let extracted = super::code::extracted;
    assert_eq!(extracted("Here:\n```python\nx = 1\n```\nand\n```\ny\n```"), "x = 1\n");
    assert_eq!(extracted("x = 1"), "x = 1");
    assert_eq!(extracted("```sql\nselect 1"), "select 1");
    assert_eq!(extracted("```"), "");
}

#[test]
fn a_result_counts_only_behind_its_nonce() {
    let output =
        "{\"passed\":9,\"total\":9,\"message\":null}\nn0nce{\"passed\":1,\"total\":2,\"message\":\"x\"}\n";
    let result = CodeJob::result(output, "n0nce").unwrap();
    assert_eq!((result.passed, result.total), (1, 2));
    assert_eq!(CodeJob::result(output, "other"), None);
    assert_eq!(CodeJob::result("n0nce{", "n0nce"), None);
}
