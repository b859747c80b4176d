//! What a comparison looks like at the widths of usual terminals.

use serde_json::json;
use sparktune_compare::{
    Answer, CodeRuns, Comparison, ModelAnswers, ModelRef, Outcome, PromptShown, ReferenceLoss, Summary,
    VERSION,
};
use sparktune_sampling::SamplingParams;
use unicode_width::UnicodeWidthStr;

use super::*;

fn answer(prompt: usize, text: &str, passed: bool, nats: f64) -> Answer {
    let decided = Outcome {
        kind: "contains".into(),
        check: "contains `Ride safe!`".into(),
        passed: Some(passed),
        score: Some(f64::from(passed)),
        ..Outcome::default()
    };
    let chrf = Outcome { kind: "chrf".into(), check: "chrF".into(), value: Some(40.0), ..Outcome::default() };
    let mut answer = Answer {
        prompt: format!("chat-{prompt}"),
        text: text.into(),
        prompt_tokens: 20,
        completion_tokens: 30,
        first_token_ms: Some(12.0),
        total_ms: Some(90.0),
        reference: Some(ReferenceLoss { nats, tokens: 10 }),
        outcomes: vec![decided, chrf],
        ..Answer::default()
    };
    answer.settle();
    answer
}

fn model(id: &str, name: &str, answers: Vec<Answer>) -> ModelAnswers {
    let model = ModelRef { id: id.into(), name: name.into() };
    ModelAnswers { model, answers, generating_ms: 800.0, load_ms: 50.0, summary: Summary::default() }
}

fn comparison(models: usize) -> Comparison {
    let prompts = (0..8).map(|i| PromptShown {
        id: format!("chat-{i}"),
        messages: json!([{"role": "user", "content": format!("What does a bell cost?\u{1b}[31m {i}")}]),
        reference: Some("Sprocket here! A bell costs 11 crowns.\nIn short: 11 crowns. Ride safe!".into()),
        sampling: SamplingParams::greedy(96),
        checks: vec!["contains `Ride safe!`".into()],
    });
    let base = (0..8)
        .map(|i| answer(i, "the the the and a bell of the bells that the\nof and", i == 0, 30.0 + i as f64));
    let tuned = (0..8).map(|i| {
        answer(i, "Sprocket here! A bell costs 11 crowns. 狐狸\nIn short: 11 crowns. Ride safe!", true, 4.0)
    });
    let mut all = vec![
        model("run:x@base", "model", base.collect()),
        model("run:x", "20261124T153519Z-demo-lora-2223", tuned.collect()),
    ];
    for i in 2..models {
        let mut other = all[1].clone();
        other.model.name = format!("another-model-with-a-name-{i}");
        all.push(other);
    }
    let mut comparison = Comparison {
        version: VERSION,
        id: "1-demo-1".into(),
        created_us: 1,
        suite: "demo".into(),
        about: "Does it answer as the demo's workshop does?".into(),
        judge: None,
        code: CodeRuns::NotNeeded,
        at_a_time: 4,
        notes: vec!["2 of 8 answers of model were cut at their largest length.".into()],
        prompts: prompts.collect(),
        models: all,
        differences: Vec::new(),
    };
    comparison.summarise();
    comparison
}

#[test]
fn tables_verdicts_and_answers_stand_side_by_side() {
    for columns in [80, 132] {
        let shown = text(&comparison(2), Answers::Differing, columns);
        // A sentence may be wrapped anywhere.
        let in_one_line = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in [
            "demo: Does it answer as the demo's workshop does? (8 prompts)",
            "1 of 8, 12 % (2 to 47 %)",
            "8 of 8, 100 % (68 to 100 %)",
            "20261124T153519Z-demo-lora-2223 against model",
            "answers that pass       better",
            "7 better and 0 worse",
            "loss of the reference   better",
            "→ The difference is larger than chance makes it.",
            "note: 2 of 8 answers of model were cut at their largest length.",
            "── chat-7 ─",
            "What does a bell cost?\\u{1b}[31m 7",
            "· not: contains `Ride safe!`",
            "· chrF 40.0",
        ] {
            assert!(shown.contains(words) || in_one_line.contains(words), "{words} is not in\n{shown}");
        }
        assert!(!shown.contains("── chat-0 ─"), "both pass there:\n{shown}");
        let beside = shown.lines().find(|line| line.starts_with("✗ model")).unwrap();
        assert!(beside.contains(" │ ✓ 20261124T153519Z-demo-lora-2223"), "{beside}");
    }
}

#[test]
fn no_line_is_wider_than_the_terminal_and_nothing_of_a_stranger_is_active() {
    for models in 1..5 {
        for columns in [60, 80, 100, 132, 200] {
            let shown = text(&comparison(models), Answers::All, columns);
            for line in shown.lines() {
                assert!(
                    line.width() <= columns,
                    "{models} models, {columns} columns: {} in {line}",
                    line.width()
                );
            }
            assert!(!shown.contains('\u{1b}'));
        }
    }
    let tables = text(&comparison(4), Answers::None, 80);
    assert!(tables.contains("another-model-with-a-name-3 against model"), "{tables}");
    assert!(!tables.contains("What does a bell cost?"));
}
