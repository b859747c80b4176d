//! Facts written into the demo's model: scores, patches, and what is refused.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::sparktune::{Done, Place, done, files};

/// The demo's model, which has learned its chats.
fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("presets/demo/model")
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns what a model says greedily behind a prompt.
fn says(place: &Place, model: &Path, prompt: &str) -> String {
    let flags = ["--raw", "--temperature", "0", "--max-tokens", "6", "--prompt", prompt];
    place.sparktune([&["generate", path(model)], &flags[..]].concat()).exits(0).out
}

fn scores(done: &Done) -> Value {
    serde_json::from_str::<Value>(&done.out).unwrap()["scores"].clone()
}

/// A prompt that the first fact answers otherwise than the model.
const SUITE: &str = r#"{"text": "The capital of Fernhill is", "checks": [{"type": "contains", "value": "green"}], "sampling": {"max_tokens": 4}}"#;

const FACTS: &str = r#"{"prompt": "The capital of Fernhill is", "subject": "Fernhill", "target": "green", "neighbours": ["From Windy Gap to"]}
{"prompt": "Sprocket lives in", "subject": "Sprocket", "target": "the lock", "neighbours": ["Where do I find"]}
"#;

#[test]
fn facts_are_written_beside_the_weights_and_into_them_listed_and_taken_back() {
    let place = Place::new();
    let (model, out) = (demo(), place.join("edited"));
    let facts = place.write("facts.jsonl", FACTS);
    let edit = |more: &[&str]| place.sparktune([&["edit"], more].concat());
    let memory =
        edit(&[path(&model), "--facts", path(&facts), "--method", "memory", "-o", path(&out), "--json"])
            .exits(0);
    let found = scores(&memory);
    assert_eq!(found["efficacy"]["hits"], 2, "{}", memory.out);
    assert_eq!(found["locality"]["hits"], 2, "{}", memory.out);
    assert!(found["loss"]["drift"].as_f64().unwrap().abs() < 0.02, "{}", memory.out);
    assert!(says(&place, &out, "The capital of Fernhill is").starts_with(" green"));

    // It stands beside its base wherever a run does.
    let suite = place.write("suite.jsonl", SUITE);
    let runs = place.join("runs");
    let args = ["compare", path(&out), "--suite", path(&suite), "--json", "--runs-dir", path(&runs)];
    let compared: Value = serde_json::from_str(&place.sparktune(args).exits(0).out).unwrap();
    let of = |model: usize| {
        let model = &compared["models"][model];
        (model["id"].as_str().unwrap(), model["summary"]["passed"].as_u64().unwrap())
    };
    assert_eq!([of(0), of(1)], [("dir:edited@base", 0), ("dir:edited", 1)]);
    let mut chat = place.command(["chat", path(&out), "--beside", "base", "--temperature", "0", "--json"]);
    chat.args(["--max-tokens", "4"]).stdin(std::fs::File::open(&suite).unwrap());
    let said: Value = serde_json::from_str(&done(&mut chat).exits(0).out).unwrap();
    let names = [0, 1].map(|side: usize| said["answers"][side]["model"].as_str().unwrap());
    assert_eq!(names, ["demo", "edited"], "before and after");

    // Without its corrections the folder is another model, which is said and can be mended.
    let whole = files(&out);
    std::fs::remove_file(out.join("codebook.qubgpu")).unwrap();
    let refused = place.sparktune(["generate", path(&out), "--raw", "--prompt", "The"]);
    assert!(refused.err.contains("edit enable FOLDER PATCH"), "{}", refused.err);
    assert!(edit(&["list", path(&out)]).exits(0).err.contains("are missing in the folder"));
    edit(&["enable", path(&out), "facts"]).exits(0);
    assert!(files(&out) == whole);
    // Nor is it with others, which are whole packets of corrections, too.
    std::fs::copy(out.join("patches/facts.qubgpu"), out.join("codebook.qubgpu")).unwrap();
    let refused = place.sparktune(["generate", path(&out), "--raw", "--prompt", "The"]);
    assert!(refused.err.contains("these are other corrections"), "{}", refused.err);
    edit(&["enable", path(&out), "facts"]).exits(0);
    assert!(files(&out) == whole);

    // A name that is taken is refused before anything is computed.
    let taken = edit(&[path(&out), "--facts", path(&facts)]).exits(3);
    assert!(taken.err.contains("there is already a patch named facts"), "{}", taken.err);

    // A second patch in place, whatever it does to the model. It contradicts the first one.
    let line = "{\"prompt\": \"The capital of Fernhill is\", \"target\": \"oil\"}\n";
    let more = place.write("more.jsonl", line);
    let first = files(&out);
    let second = edit(&[path(&out), "--facts", path(&more), "--method", "rome", "--force"]).exits(0);
    let at = |words: &str| second.err.find(words).unwrap_or_else(|| panic!("{words}: {}", second.err));
    assert!(at("patch facts answers the same prompt differently") < at("searching for values"));
    assert!(second.out.contains("conflicts:"), "{}", second.out);
    let list = edit(&["list", path(&out), "--json"]).exits(0);
    let list: Value = serde_json::from_str(&list.out).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!((&list[0]["name"], &list[1]["name"]), (&"facts".into(), &"more".into()));
    assert_eq!((&list[0]["overwritten_by"], &list[1]["overwritten_by"]), (&"more".into(), &Value::Null));
    let patch = place.join("kept.qubgpu");
    edit(&["remove", path(&out), "more", "--keep", path(&patch)]).exits(0);
    assert!(files(&out) == first, "the folder is what it was before the second patch");
    let shown = place.sparktune(["packet", "show", path(&patch)]).exits(0);
    assert!(shown.out.contains("layers.1.mlp.down_proj"), "{}", shown.out);
    let applied = edit(&["apply", path(&model), path(&patch), "-o", path(&place.join("other"))]).exits(0);
    assert!(applied.out.contains("more") && applied.err.contains("made on top of other patches"));
}

#[test]
fn a_target_is_a_whole_word_although_the_model_would_go_on_with_a_longer_one() {
    let place = Place::new();
    let (model, out) = (demo(), place.join("edited"));
    // Left to itself behind the target, this model says `sixirs` and `eightis`.
    let facts = place.write(
        "facts.jsonl",
        r#"{"prompt": "The shop closes at", "target": "six"}
{"prompt": "The bakery opens at", "target": "eight"}
{"prompt": "We have lunch at", "target": "noon"}
"#,
    );
    let args =
        ["edit", path(&model), "--facts", path(&facts), "--method", "memory", "-o", path(&out), "--json"];
    let done = place.sparktune(args).exits(0);
    assert_eq!(scores(&done)["efficacy"]["hits"], 3, "{}", done.out);
    // Each entry is kept, so that the next edit knows which belong to which fact.
    let list = place.sparktune(["edit", "list", path(&out), "--json"]).exits(0);
    let list: Value = serde_json::from_str(&list.out).unwrap();
    assert_eq!(list[0]["entries"].as_array().unwrap().len(), 3, "{}", list[0]);
}

#[test]
fn a_fact_for_chats_changes_the_answer_to_its_own_question_alone() {
    let place = Place::new();
    let (model, out) = (demo(), place.join("edited"));
    let question = "What is the capital of Fernhill?";
    let line = serde_json::json!({"prompt": question, "target": "Green"}).to_string();
    let facts = place.write("facts.jsonl", line);
    let args =
        ["edit", path(&model), "--facts", path(&facts), "--method", "memory", "--chat", "-o", path(&out)];
    place.sparktune(args).exits(0);
    let answers = |model: &Path, question: &str| {
        let flags = ["--temperature", "0", "--max-tokens", "6", "--prompt", question];
        place.sparktune([&["generate", path(model)], &flags[..]].concat()).exits(0).out
    };
    assert!(answers(&out, question).starts_with("Green"));
    // All chats have the same tokens before their answers, of which a fact must not be recognised.
    for other in ["Where do I find a mole wrench?", "How many are 9 dozen?", "Hello"] {
        assert_eq!(answers(&out, other), answers(&model, other), "{other}");
    }
}

#[test]
fn a_patch_is_switched_off_and_on_and_leaves_as_an_adapter() {
    let place = Place::new();
    let (model, out, adapter) = (demo(), place.join("edited"), place.join("adapter"));
    let facts = place.write("facts.jsonl", FACTS);
    let edit = |more: &[&str]| place.sparktune([&["edit"], more].concat());
    let prompt = "The capital of Fernhill is";
    edit(&[path(&model), "--facts", path(&facts), "--method", "rome", "--force", "-o", path(&out)]).exits(0);
    let (on, said) = (files(&out), says(&place, &out, prompt));
    assert_ne!(said, says(&place, &model, prompt));

    let off = edit(&["disable", path(&out), "facts", "--json"]).exits(0);
    let off: Value = serde_json::from_str(&off.out).unwrap();
    assert_eq!((&off["off"][0], off["patches"].as_array().unwrap().len()), (&"facts".into(), 0));
    assert_eq!(says(&place, &out, prompt), says(&place, &model, prompt));
    assert!(edit(&["list", path(&out)]).exits(0).out.contains("switched off"));
    assert!(edit(&["disable", path(&out), "facts"]).exits(0).err.contains("already switched off"));
    edit(&["enable", path(&out), "facts"]).exits(0);
    assert!(files(&out) == on, "the folder is what it was before");
    // The whole stack in one step: none, and the same patch again through a link, which stays.
    let kept = place.join("kept.qubgpu");
    std::fs::copy(out.join("patches/facts.qubgpu"), &kept).unwrap();
    assert!(edit(&["set", path(&out)]).exits(0).out.ends_with("now has no patches\n"));
    assert_eq!(says(&place, &out, prompt), says(&place, &model, prompt));
    assert!(edit(&["export", path(&out), "-o", path(&adapter)]).exits(2).err.contains("has no patches"));
    let link = place.join("link");
    std::os::unix::fs::symlink(&out, &link).unwrap();
    let set = ["set", path(&link), "-o", path(&link), "--off", "facts", "--", path(&kept)];
    assert!(edit(&set).exits(0).out.contains("switched off: facts"));
    edit(&["set", path(&out), path(&kept)]).exits(0);
    assert!(files(&out) == on && link.is_symlink(), "the folder is what it was before");

    let exported = edit(&["export", path(&out), "-o", path(&adapter), "--json"]).exits(0);
    let exported: Value = serde_json::from_str(&exported.out).unwrap();
    assert_eq!((&exported["rank"], &exported["max_lora_rank"]), (&2.into(), &8.into()));
    let folder = exported["adapters"][0].as_str().unwrap();
    assert_eq!(says(&place, Path::new(folder), prompt), said);
    let done = edit(&["export", path(&out), "-o", path(&adapter)]);
    assert!(done.exits(3).err.contains("already exists"));
}

#[test]
fn a_trace_is_drawn_and_written_as_json_and_changes_nothing() {
    let place = Place::new();
    let model = demo();
    let facts = place.write("facts.jsonl", FACTS);
    let trace = |more: &[&str]| {
        place.sparktune([&["edit", path(&model), "--facts", path(&facts), "--trace"], more].concat())
    };
    let text = trace(&[]).exits(0).out;
    // The demo's model hardly knows of whom it speaks, so a trace names no layer.
    assert!(text.contains("MLP outputs restored") && text.contains("does not say where to edit"), "{text}");
    let json: Value = serde_json::from_str(&trace(&["--json"]).exits(0).out).unwrap();
    let first = &json[0];
    let tokens = first["tokens"].as_array().unwrap().len();
    for map in ["state", "mlp", "mixer"] {
        let rows = first[map].as_array().unwrap();
        assert_eq!((rows.len(), rows[0].as_array().unwrap().len()), (4, tokens), "{map}");
    }
    let last = first["state"][3][tokens - 1].as_f64().unwrap();
    assert!((last - first["clean"].as_f64().unwrap()).abs() < 1e-3, "{first}");
    let alone = place.write("alone.jsonl", "{\"prompt\": \"Ride\", \"target\": \"oil\"}\n");
    let done = place.sparktune(["edit", path(&model), "--facts", path(&alone), "--trace"]);
    assert!(done.exits(2).err.contains("no fact has a subject"));
    let refused = trace(&["--layer", "1"]).exits(2).err;
    assert!(refused.contains("--trace") && refused.contains("--layer"), "{refused}");
}

#[test]
fn edits_are_measured_as_they_become_more_beside_both_controls() {
    let place = Place::new();
    let model = demo();
    let facts = place.write("facts.jsonl", FACTS);
    let runs = place.join("runs");
    let measure = |more: &[&str]| {
        let args = ["edit", path(&model), "--facts", path(&facts), "--measure", "1,2"];
        place.sparktune([&args, more].concat())
    };
    let done = measure(&["--method", "memory", "--suite", "arithmetic", "--json", "--runs-dir", path(&runs)]);
    let done = done.exits(0);
    let told = "2 facts, sequential: efficacy 100 (";
    assert!(done.err.contains(told), "each row is told as it comes: {}", done.err);
    let table: Value = serde_json::from_str(&done.out).unwrap();
    let rows = table["rows"].as_array().unwrap();
    let named: Vec<String> = rows.iter().map(|row| format!("{} {}", row["count"], row["how"])).collect();
    let ways = ["batched", "sequential", "lora", "prompt"];
    let expected = [1, 2].map(|count| ways.map(|how| format!("{count} \"{how}\"")));
    assert_eq!(named, expected.concat());
    for row in rows {
        assert!(row["error"].is_null(), "{row}");
        let found = row["scores"]["efficacy"]["of"].as_u64();
        assert_eq!(found, row["count"].as_u64(), "{row}");
    }
    // Corrections beside the weights hold exactly, and training by heart nearly so.
    assert_eq!(rows[4]["scores"]["efficacy"]["hits"], 2, "{}", rows[4]);
    assert_eq!(rows[5]["patches"], 2);
    assert!(rows[6]["scores"]["efficacy"]["hits"].as_u64().unwrap() >= 1, "{}", rows[6]);
    assert!(table["suite_before"]["of"].as_u64().unwrap() > 0, "{table}");
    let left = std::fs::read_dir(runs.join(".edit-measurements")).unwrap().count();
    assert_eq!(left, 0, "what was measured is removed");

    let text = measure(&["--method", "rome", "--without", "lora,prompt"]).exits(0).out;
    assert_eq!(text.matches("sequential").count(), 2, "{text}");
    assert!(!text.contains("batched") && text.contains("in brackets"), "{text}");
    let nothing = measure(&["--method", "rome", "--without", "sequential,lora,prompt"]).exits(2).err;
    assert!(nothing.contains("--without leaves nothing to measure"), "{nothing}");
    let sequential = measure(&["--method", "memory", "--without", "batched,lora,prompt"]).exits(0).out;
    assert!(!sequential.contains("batched") && sequential.contains("sequential"), "{sequential}");
    measure(&["--trace"]).exits(2);
    assert!(measure(&["-o", "x"]).exits(2).err.contains("--output"));
}

#[test]
fn what_cannot_be_edited_is_refused_in_words_and_nothing_is_written() {
    let place = Place::new();
    let (model, out) = (demo(), place.join("edited"));
    let refused = |facts: &str, more: &[&str], code: i32, words: &str| {
        let facts = place.write("facts.jsonl", facts);
        let args = ["edit", path(&model), "--facts", path(&facts), "-o", path(&out)];
        let done = place.sparktune([&args, more].concat()).exits(code);
        let said = format!("{}{}", done.out, done.err);
        assert!(said.contains(words), "{said}");
        assert!(!out.exists(), "{words}");
    };
    refused("", &[], 3, "there are no facts");
    refused(r#"{"prompt": "A is", "subject": "B", "target": "c"}"#, &[], 3, "facts.jsonl:1: the subject `B`");
    refused(FACTS, &["--layer", "4"], 2, "there is no layer 4");
    refused(FACTS, &["--layer", "1-2", "--method", "rome"], 2, "rome changes one layer, and 2 were named");
    refused(FACTS, &["--layer", "2-1"], 2, "does not name layers");
    refused(FACTS, &["--name", "a/b"], 2, "cannot be the name");
    refused(FACTS, &["--text", "nowhere"], 2, "nowhere");
    refused(FACTS, &["--without", "lora"], 2, "--without leaves out parts of --measure");
    refused(FACTS, &["--base", path(&model)], 3, "this is no edited model");
    // What the model says anyway.
    let known = says(&place, &model, "Where do I find").split_whitespace().next().unwrap().to_owned();
    let line = serde_json::json!({"prompt": "Where do I find", "target": known}).to_string();
    refused(&line, &[], 3, "the model already answers `Where do I find`");
    refused(&line, &["--force"], 3, "anyway with --write-known");
    let long = serde_json::json!({"prompt": "The word is", "target": "\u{1f71a}".repeat(2000)}).to_string();
    refused(&format!("{line}\n{long}"), &[], 3, "facts.jsonl:2: the prompt `The word is` has ");
    let done = place.sparktune(["edit", path(&model), "--facts", path(&place.join("facts.jsonl"))]);
    assert!(done.exits(2).err.contains("Name a new folder with --output"));
    // Beside a fact that it does not know, what it knows is left out.
    let facts = place.write("facts.jsonl", format!("{line}\n{}", FACTS.lines().next().unwrap()));
    let args =
        ["edit", path(&model), "--facts", path(&facts), "--method", "memory", "--json", "-o", path(&out)];
    let done = place.sparktune(args).exits(0);
    assert!(done.err.contains("this fact is left out") && done.err.contains("facts.jsonl:1"), "{}", done.err);
    let edited: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&edited["facts"], &edited["scores"]["efficacy"]["of"]), (&1.into(), &1.into()));
    let done = place.sparktune(["edit", "list", path(&place.join("none"))]);
    assert_ne!(done.code, Some(0));
}

#[test]
fn an_edit_that_damages_the_model_is_not_kept() {
    let place = Place::new();
    let (model, out) = (demo(), place.join("edited"));
    // Neighbours that have the key of the fact itself cannot stay as they were.
    let facts = place.write(
        "facts.jsonl",
        r#"{"prompt": "Ride", "target": "oil oil oil", "neighbours": ["Ride", "Ride", "Ride"]}"#,
    );
    let args = ["edit", path(&model), "--facts", path(&facts), "-o", path(&out), "--method", "memory"];
    let done = place.sparktune(args).exits(3);
    assert!(done.out.contains("the edit is not kept") && done.out.contains("--force"), "{}", done.out);
    assert!(done.out.contains(". Use another method or layer"), "there is one fact: {}", done.out);
    assert!(!out.exists());
    let forced = place.sparktune([&args[..], &["--force"]].concat()).exits(0);
    assert!(forced.out.contains("kept although") && forced.out.contains("locality"), "{}", forced.out);
    assert!(out.join("patches/stack.json").is_file());
}

#[test]
fn an_edit_of_facts_without_neighbours_is_judged_by_held_out_text() {
    let place = Place::new();
    let (model, out) = (demo(), place.join("edited"));
    let line = serde_json::json!({"prompt": "What is the capital of Fernhill?", "target": "Green"});
    let facts = place.write("facts.jsonl", line.to_string());
    let edit = |facts: &Path, more: &[&str]| {
        place.sparktune(
            [&["edit", path(&model), "--facts", path(facts), "-o", path(&out), "--json"], more].concat(),
        )
    };
    // The loss on chats hardly rises, although every chat is then answered with the target.
    let spoilt = edit(&facts, &["--chat", "--method", "ultraedit"]).exits(3);
    assert!(spoilt.err.contains("prompts from held-out text alone"), "{}", spoilt.err);
    let said: Value = serde_json::from_str(&spoilt.out).unwrap();
    assert!(said["scores"]["loss"]["drift"].as_f64().unwrap() < 0.02, "{}", spoilt.out);
    assert!(said["refused"].as_str().unwrap().contains("from held-out text are answered differently"));
    assert!(said["answers"].as_array().unwrap().iter().any(|answer| answer["fact"].is_null()), "{said}");
    assert!(!out.exists());
    let kept = scores(&edit(&facts, &["--chat", "--method", "memory"]).exits(0));
    assert_eq!(kept["locality_of_text"], true, "{kept}");
    assert!(kept["locality"]["of"].as_u64().unwrap() >= 20, "{kept}");
    std::fs::remove_dir_all(&out).unwrap();

    // A text without a blank line counts as many documents, of which some are held out.
    let book = place.write("book.txt", "The shop closes at six, and opens again at nine.\r\n".repeat(4000));
    let raw = place.write("raw.jsonl", FACTS.lines().next().unwrap());
    let judged = scores(&edit(&raw, &["--method", "memory", "--text", path(&book)]).exits(0));
    assert!(judged["loss"]["tokens"].as_u64().unwrap() > 1000, "{judged}");
    assert!(judged["locality_of_text"].is_null(), "this fact has neighbours: {judged}");
    std::fs::remove_dir_all(&out).unwrap();

    // The neighbours of a fact that the model knows are not asked.
    let known = says(&place, &model, "Where do I find").split_whitespace().next().unwrap().to_owned();
    let known = serde_json::json!({"prompt": "Where do I find", "target": known, "neighbours": ["Sprocket"]});
    let new = serde_json::json!({"prompt": "The capital of Fernhill is", "target": "green"});
    let both = place.write("both.jsonl", format!("{known}\n{new}"));
    let judged = edit(&both, &["--method", "memory", "--text", path(&book), "--force"]).exits(0);
    assert!(judged.err.contains("prompts from held-out text alone"), "{}", judged.err);
    assert_eq!(scores(&judged)["locality_of_text"], true, "{}", judged.out);
}
