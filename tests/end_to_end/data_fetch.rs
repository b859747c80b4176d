//! `data list` and `data fetch`: the catalog of data sets, and their examples as JSON Lines.

use serde_json::Value;

use crate::hub::{COMMIT, Hub};
use crate::sparktune::{Done, Place, done};

/// Fetches a data set from this hub.
fn fetch(place: &Place, hub: &Hub, words: &[&str]) -> Done {
    done(hub.on(&mut place.command(["data", "fetch"].iter().chain(words))))
}

/// Returns the paths of the data files that were downloaded since the last call.
fn downloaded(hub: &Hub) -> Vec<String> {
    let log = std::mem::take(&mut *hub.log.lock().unwrap());
    let of_data = |line: &String| {
        line.strip_prefix("GET ").filter(|path| !path.ends_with("README.md")).map(str::to_owned)
    };
    let name = |path: String| {
        path.split_once("/resolve/").map(|(_, rest)| rest.split_once('/').unwrap().1.to_owned())
    };
    log.iter().filter_map(of_data).filter_map(name).collect()
}

fn lines(place: &Place, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(place.join(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_limit_downloads_only_the_files_that_it_needs_and_the_rest_follows_later() {
    let (place, hub) = (Place::new(), Hub::open());
    let first =
        fetch(&place, &hub, &["hf:org/chats", "--limit", "5", "-o", "few.jsonl", "--json"]).exits(0).last();
    assert_eq!(
        (&first["examples"], &first["files_read"], &first["files"]),
        (&5.into(), &1.into(), &2.into())
    );
    assert_eq!(
        (&first["is_limited"], &first["pinned"]),
        (&true.into(), &format!("hf:org/chats@{COMMIT}").into())
    );
    assert_eq!(downloaded(&hub), ["data/train-00000-of-00002.jsonl"]);

    let exact = ["hf:org/chats", "--limit", "40", "-o", "exact.jsonl", "--json"];
    assert_eq!(fetch(&place, &hub, &exact).exits(0).last()["is_limited"], false, "there are no more");
    assert_eq!(downloaded(&hub), ["data/train-00001-of-00002.jsonl"]);
    let all = fetch(&place, &hub, &["hf:org/chats", "-o", "all.jsonl"]).exits(0);
    assert!(all.out.contains("40 examples, from 2 of 2 files of hf:org/chats@"), "{}", all.out);
    assert!(downloaded(&hub).is_empty());
    assert_eq!(lines(&place, "few.jsonl"), lines(&place, "all.jsonl")[..5]);

    let pinned = format!("hf:org/chats@{COMMIT}");
    let mut offline = place.command(["data", "fetch", &pinned, "-o", "again.jsonl"]);
    done(offline.env("HF_ENDPOINT", "http://127.0.0.1:1").env("HF_HUB_OFFLINE", "1")).exits(0);
    assert_eq!(lines(&place, "again.jsonl"), lines(&place, "all.jsonl"));
}

#[test]
fn nested_lists_of_parquet_in_several_row_groups_become_lines_that_check_accepts() {
    let (place, hub) = (Place::new(), Hub::open());
    let result = fetch(&place, &hub, &["hf:org/chats:nested", "-o", "nested.jsonl"]).exits(0);
    assert!(result.out.contains("20 examples") && result.out.contains("left out: 4 lines"), "{}", result.out);
    let chats = lines(&place, "nested.jsonl");
    assert_eq!(chats.len(), 20);
    assert_eq!(chats[0]["messages"][2]["content"], "river, stone.");
    let checked = place.sparktune(["check", "nested.jsonl"]).exits(0);
    assert!(checked.out.contains("20 examples accepted"), "{}", checked.out);

    let words =
        ["hf:org/chats:answers", "--map", "Question=prompt,meta.answer=completion", "-o", "answers.jsonl"];
    fetch(&place, &hub, &words).exits(0);
    let answers = lines(&place, "answers.jsonl");
    assert_eq!((answers.len(), &answers[8]["completion"]), (9, &"It is 16.".into()));
    let unmapped = fetch(&place, &hub, &["hf:org/chats:answers", "-o", "none.jsonl"]).exits(3);
    assert!(unmapped.err.contains("no line") && unmapped.err.contains("--map"), "{}", unmapped.err);
    assert!(!place.join("none.jsonl").exists());
}

#[test]
fn the_catalog_is_listed_and_its_names_are_fetched() {
    let (place, hub) = (Place::new(), Hub::open());
    let listed = place.sparktune(["data", "list"]).exits(0);
    assert!(listed.out.contains("gsm8k") && listed.out.contains("--map question=instruction,answer=output"));
    assert!(listed.out.contains("are unverified"), "{}", listed.out);
    let rows = place.sparktune(["data", "list", "--json"]).exits(0).last();
    assert!(rows.as_array().unwrap().iter().any(|row| row["id"] == "gsm8k" && row["licence"] == "mit"));

    let result = fetch(&place, &hub, &["tulu-3-personas-if", "--limit", "25", "-o", "t.jsonl"]).exits(0);
    assert!(
        result.out.contains("25 examples, the limit") && result.out.contains("licence: odc-by"),
        "{}",
        result.out
    );
    assert_eq!(lines(&place, "t.jsonl").len(), 25);

    let again = fetch(&place, &hub, &["tulu-3-personas-if", "-o", "t.jsonl"]).exits(2);
    assert!(again.err.contains("t.jsonl exists"), "{}", again.err);
    let unknown = fetch(&place, &hub, &["tulu", "-o", "u.jsonl"]).exits(2);
    assert!(unknown.err.contains("data list") && unknown.err.contains("hf:OWNER/NAME"), "{}", unknown.err);
    let left: Vec<_> =
        std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_str().unwrap().starts_with(".fetching")), "{left:?}");
}
