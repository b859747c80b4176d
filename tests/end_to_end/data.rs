//! `check`: what is wrong with data, where, and what to do; nothing is lost.

use serde_json::Value;

use crate::sparktune::{Place, chat, checkpoint};

const BROKEN: &str = "{\"messages\": [{\"role\": \"user\", \"content\": \"\\u001b[31mhello\"}]}\n{oops\n";

#[test]
fn good_data_is_accepted_with_its_lengths() {
    let place = Place::new();
    place.chats(30);
    let model = checkpoint();
    let result = place.sparktune(["check", "train.jsonl", "--model", model.to_str().unwrap()]).exits(0);
    assert!(
        result.out.contains("30 examples accepted") && result.out.contains("of them trained"),
        "{}",
        result.out
    );
    assert!(result.out.contains("p99") && result.out.contains('█'), "{}", result.out);
    assert!(!place.join("rejected.jsonl").exists(), "nothing was rejected");
}

#[test]
fn rejected_lines_end_with_3_and_are_kept_with_reason_and_fix() {
    let place = Place::new();
    place.write("train.jsonl", format!("{}\n{BROKEN}", chat(1)));
    let result = place.sparktune(["check", "train.jsonl"]).exits(3);
    assert!(result.out.contains("train.jsonl:2") && result.out.contains("train.jsonl:3"), "{}", result.out);
    assert!(
        result.err.contains("2 of 3 lines were rejected") && result.err.contains("--max-rejected"),
        "{}",
        result.err
    );
    let kept = std::fs::read_to_string(place.join("rejected.jsonl")).unwrap();
    let kept: Vec<Value> = kept.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(kept.iter().map(|line| line["line"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(kept[1]["text"], "{oops");
    assert!(kept.iter().all(|line| !line["reason"].as_str().unwrap().is_empty()));
    assert!(!result.out.contains('\u{1b}') && !result.err.contains('\u{1b}'), "text of the data is escaped");
}

#[test]
fn how_much_may_be_rejected_is_the_users_choice() {
    let place = Place::new();
    place.write("train.jsonl", format!("{}\n{}\n{{oops\n", chat(1), chat(2)));
    place.sparktune(["check", "train.jsonl", "--max-rejected", "0.5"]).exits(0);
    place.sparktune(["check", "train.jsonl", "--max-rejected", "0.1"]).exits(3);
}

#[test]
fn json_has_the_whole_report_and_the_verdict() {
    let place = Place::new();
    place.write("train.jsonl", format!("{}\n{}\n{BROKEN}", chat(1), chat(1)));
    let result =
        place.sparktune(["check", "train.jsonl", "--json", "--rejected", "bad.jsonl"]).exits(3).last();
    assert_eq!(result["accepted"], false);
    assert_eq!(result["rejected_path"], "bad.jsonl");
    assert_eq!(result["report"]["rejected"], 2);
    assert_eq!(result["report"]["duplicates"]["examples"], 1);
    assert!(place.join("bad.jsonl").is_file());
}

#[test]
fn examples_in_train_and_eval_are_counted() {
    let place = Place::new();
    place.chats(6);
    place.write("eval.jsonl", format!("{}\n", chat(3)));
    let result =
        place.sparktune(["check", "train.jsonl", "--eval-data", "eval.jsonl", "--json"]).exits(0).last();
    assert_eq!(result["report"]["in_train_and_eval"]["examples"], 1);
}

#[test]
fn data_that_is_not_there_is_wrong_usage_and_names_the_path() {
    let place = Place::new();
    let result = place.sparktune(["check", "nowhere.jsonl"]).exits(2);
    assert!(result.err.contains("nowhere.jsonl"), "{}", result.err);
    std::fs::create_dir(place.join("empty")).unwrap();
    let result = place.sparktune(["check", "empty"]).exits(3);
    assert!(result.err.contains("empty"), "{}", result.err);
}

#[test]
fn the_format_can_be_insisted_on() {
    let place = Place::new();
    place.chats(3);
    let result = place.sparktune(["check", "train.jsonl", "--format", "alpaca"]).exits(3);
    assert!(result.out.contains("instruction"), "{}", result.out);
    let result = place.sparktune(["check", "train.jsonl", "--format", "csv"]).exits(2);
    assert!(result.err.contains("--format") && result.err.contains("sharegpt"), "{}", result.err);
}

#[test]
fn what_is_said_about_thinking_changes_what_carries_loss() {
    let place = Place::new();
    place.chats(3);
    let model = checkpoint();
    let targets = |think: &str| {
        let args = ["check", "train.jsonl", "--json", "--think", think, "--model", model.to_str().unwrap()];
        place.sparktune(args).exits(0).last()["report"]["tokens"]["targets"].as_u64().unwrap()
    };
    assert!(targets("train") > targets("skip"));
}
