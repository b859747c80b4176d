//! Knowledge through the API, as far as no model is needed: what is listed, found and refused. Edits
//! themselves are made by the real binary in `tests/browser/knowledge.rs`.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use sparktune_app::edited_models::{Part, folder};

use super::client::Server;

/// Texts that a page must not take for more than text.
const HOSTILE: &str = "<script>alert(1)</script>\u{202e}";

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let answer = server.ask(&format!("POST /api/v1/knowledge/{path}"), &body.to_string());
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_default())
}

/// Makes an edited model with these patches, whose contents nobody reads here.
fn edited(server: &Server, name: &str, patches: &[&str]) -> PathBuf {
    let model = folder(&server.runs_dir(), Part::Models).unwrap().join(name);
    lay(&model, patches);
    model
}

fn lay(model: &std::path::Path, patches: &[&str]) {
    fs::create_dir_all(model.join("patches")).unwrap();
    fs::write(model.join("config.json"), "{}").unwrap();
    let stack = json!({"version": 1, "base": "/models/base", "base_hash": "0", "patches": patches});
    fs::write(model.join("patches/stack.json"), stack.to_string()).unwrap();
}

/// Keeps an edit that waits for a decision.
fn draft(server: &Server, id: &str, model: &str, can_be_kept: bool) {
    let draft = folder(&server.runs_dir(), Part::Drafts).unwrap().join(id);
    fs::create_dir_all(&draft).unwrap();
    if can_be_kept {
        lay(&draft.join("model"), &["facts"]);
    }
    let refused = (!can_be_kept).then_some("the model says none of the facts");
    let result = json!({"name": "facts", "answers": [{"prompt": HOSTILE, "before": HOSTILE, "after": HOSTILE}], "refused": refused});
    let edit = json!({"id": id, "created_us": 7, "model": model, "model_name": "demo", "can_be_kept": can_be_kept, "result": result});
    fs::write(draft.join("result.json"), edit.to_string()).unwrap();
}

#[test]
fn models_patches_and_edits_are_listed_and_texts_of_strangers_stay_json() {
    let server = Server::start();
    let first = server.json("/api/v1/knowledge");
    assert_eq!(first["drafts"], json!([]));
    let ids = |known: &Value| -> Vec<String> {
        known["models"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| model["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(ids(&first).contains(&"dir:demo".to_owned()), "{first}");
    edited(&server, "mine", &["facts", "more"]);
    draft(&server, "20260101T000000Z-1", "dir:demo", true);
    draft(&server, "20260102T000000Z-2", "dir:demo", false);
    let known = server.json("/api/v1/knowledge");
    let mine = known["models"].as_array().unwrap().iter().find(|model| model["id"] == "edited:mine").unwrap();
    assert_eq!(
        (&mine["kind"], &mine["base"], &mine["can_be_changed"]),
        (&json!("edited"), &json!("base"), &json!(true))
    );
    assert_eq!(mine["patches"], json!(["facts", "more"]));
    let drafts = known["drafts"].as_array().unwrap();
    assert_eq!(
        (&drafts[0]["can_be_kept"], &drafts[1]["can_be_kept"]),
        (&json!(false), &json!(true)),
        "newest first"
    );
    // A patch is a file to download, and its name leads nowhere else.
    fs::write(folder(&server.runs_dir(), Part::Models).unwrap().join("mine/patches/facts.qubgpu"), "a patch")
        .unwrap();
    let file = server.ask("GET /api/v1/knowledge/models/edited:mine/patches/facts", "");
    assert!(file.body == "a patch" && file.head.contains("filename=\"facts.qubgpu\""), "{}", file.head);
    for path in [
        "edited:mine/patches/stack.json",
        "edited:mine/patches/..%2fstack",
        "dir:demo/patches/facts",
        "..%2fx/patches/facts",
    ] {
        assert_eq!(server.ask(&format!("GET /api/v1/knowledge/models/{path}"), "").status, 404, "{path}");
    }
    // An edit is no model of the lists, but it can be asked by its id.
    assert!(ids(&known).iter().all(|id| !id.starts_with("draft:")), "{known}");
    let answer = server.ask("GET /api/v1/knowledge/edits/20260101T000000Z-1", "");
    assert!(answer.status == 200 && answer.head.contains("application/json"), "{}", answer.head);
    let edit: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(edit["result"]["answers"][0]["prompt"], HOSTILE);
    // While an edit may be being kept, it is not taken away.
    let lock = fs::File::create(folder(&server.runs_dir(), Part::Undo).unwrap().join(".lock")).unwrap();
    lock.lock().unwrap();
    let refused = server.ask("DELETE /api/v1/knowledge/edits/20260101T000000Z-1", "");
    assert!(refused.status == 409 && refused.body.contains("Discard it when"), "{}", refused.body);
    lock.unlock().unwrap();
    assert_eq!(server.ask("DELETE /api/v1/knowledge/edits/20260101T000000Z-1", "").status, 204);
    assert_eq!(server.ask("GET /api/v1/knowledge/edits/20260101T000000Z-1", "").status, 404);
    assert_eq!(server.ask("DELETE /api/v1/knowledge/models/edited:mine", "").status, 204);
    assert_eq!(server.ask("GET /api/v1/knowledge/models/edited:mine", "").status, 404);
}

#[test]
fn what_cannot_be_done_is_refused_with_what_where_and_what_to_do() {
    let server = Server::start();
    edited(&server, "mine", &["facts"]);
    draft(&server, "good", "dir:demo", true);
    draft(&server, "bad", "dir:demo", false);
    let fact = json!({"prompt": "A is", "target": "b"});
    let edit = |more: Value| {
        let mut body = json!({"model": "dir:demo", "facts": [fact]});
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        body
    };
    for (path, body, status, says, place) in [
        ("edits", edit(json!({"model": "dir:none"})), 404, "no model 'dir:none'", Some("model")),
        ("edits", edit(json!({"model": "/etc"})), 404, "no model", Some("model")),
        ("edits", edit(json!({"layers": ","})), 400, "these are no layers", Some("layers")),
        ("edits", edit(json!({"layers": "3-1"})), 400, "these are no layers", Some("layers")),
        ("edits", edit(json!({"facts": []})), 400, "either in `facts` or in the file", Some("facts")),
        ("edits", edit(json!({"data": "demo:train.jsonl"})), 400, "either in `facts`", Some("facts")),
        ("edits", edit(json!({"facts": [], "data": "demo:../model"})), 404, "no data set", Some("data")),
        ("edits", edit(json!({"facts": [], "patch": "/etc/passwd"})), 404, "no data set", Some("patch")),
        ("edits", edit(json!({"patch": "demo:x.qubgpu"})), 400, "has its own facts", Some("patch")),
        ("edits", edit(json!({"text": "/etc/passwd"})), 404, "no data set", Some("text")),
        ("edits", edit(json!({"suite": "/etc/passwd"})), 404, "no suite", Some("suite")),
        ("measurements", edit(json!({"sizes": [1], "suite": "x"})), 404, "no suite 'x'", Some("suite")),
        ("measurements", edit(json!({"sizes": []})), 400, "numbers of facts", Some("sizes")),
        ("measurements", edit(json!({"sizes": [0]})), 400, "numbers of facts", Some("sizes")),
        ("measurements", edit(json!({"sizes": [1], "without": ["x"]})), 400, "no part 'x'", Some("without")),
        ("edits", edit(json!({"method": "guess"})), 400, "no method 'guess'", Some("method")),
        ("edits", edit(json!({"layers": "4 --force"})), 400, "no layers", Some("layers")),
        ("edits", edit(json!({"name": "../x"})), 400, "name of a patch", Some("name")),
        ("edits", edit(json!({"name": "--force"})), 400, "name of a patch", Some("name")),
        (
            "edits",
            edit(json!({"facts": [{"prompt": "A", "target": "b", "tarfet": 1}]})),
            422,
            "unknown field",
            Some("body"),
        ),
        ("edits", edit(json!({"output": "/tmp/x"})), 422, "unknown field", Some("body")),
        ("edits/none/keep", json!({}), 404, "no edit 'none'", None),
        ("edits/good/keep", json!({}), 400, "demo itself is not changed", Some("name")),
        ("edits/good/keep", json!({"name": "../x"}), 400, "name of a model", Some("name")),
        ("edits/good/keep", json!({"name": "mine"}), 409, "'mine' already", Some("name")),
        ("edits/bad/keep", json!({"name": "new"}), 409, "not kept: the model says none of the facts", None),
        ("models/dir:demo/undo", json!({}), 404, "no edited model 'dir:demo'", None),
        ("models/edited:mine/undo", json!({}), 409, "nothing to undo", None),
        (
            "models/edited:mine/patches",
            json!({"patch": "x", "action": "remove"}),
            404,
            "no patch 'x'",
            Some("patch"),
        ),
        (
            "models/edited:mine/patches",
            json!({"patch": "facts", "action": "eat"}),
            422,
            "unknown variant",
            Some("body"),
        ),
        ("traces", json!({"model": "dir:demo", "fact": fact}), 400, "has none", Some("fact.subject")),
    ] {
        let (found, problem) = post(&server, path, &body);
        assert_eq!(found, status, "{path} {body}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(says), "{path} {body}: {problem}");
        assert_eq!(problem["where"].as_str(), place, "{path} {body}: {problem}");
        assert!(problem["advice"].is_string(), "{path} {body}: {problem}");
    }
    assert_eq!(server.json("/api/v1/tasks")["items"], json!([]), "nothing was started");
}

#[test]
fn measurements_are_listed_read_and_deleted() {
    let server = Server::start();
    let listed = || server.json("/api/v1/knowledge/measurements")["items"].clone();
    assert_eq!(listed(), json!([]));
    let measurement = json!({"id": "m1", "created_us": 1, "model": "dir:demo", "model_name": "demo", "result": {"rows": [{"error": HOSTILE}]}});
    let folder = server.runs_dir().join(".serve/edit-measurements");
    fs::write(folder.join("m1.json"), measurement.to_string()).unwrap();
    assert_eq!(listed()[0], measurement);
    let read = server.json("/api/v1/knowledge/measurements/m1");
    assert_eq!(read["result"]["rows"][0]["error"], HOSTILE);
    assert_eq!(server.ask("DELETE /api/v1/knowledge/measurements/m1", "").status, 204);
    assert_eq!(server.ask("GET /api/v1/knowledge/measurements/m1", "").status, 404);
    assert_eq!(listed(), json!([]));
}

#[test]
fn only_a_few_edits_wait_for_a_decision() {
    let server = Server::start();
    (0..8).for_each(|number| draft(&server, &format!("draft-{number}"), "dir:demo", true));
    let body = json!({"model": "dir:demo", "facts": [{"prompt": "A is", "target": "b"}]});
    let is_refused = || {
        let (status, problem) = post(&server, "edits", &body);
        assert!(status == 409 && problem["advice"].as_str().unwrap().contains("discard"), "{problem}");
    };
    is_refused();
    // One that is in progress counts, although it has no result yet.
    let drafts = folder(&server.runs_dir(), Part::Drafts).unwrap();
    fs::remove_dir_all(drafts.join("draft-7")).unwrap();
    let in_work = drafts.join("0000000000000007");
    fs::create_dir(&in_work).unwrap();
    let held = fs::File::open(&in_work).unwrap();
    held.lock().unwrap();
    is_refused();
    assert_eq!(fs::read_dir(&drafts).unwrap().count(), 8, "what was refused leaves nothing");
}

#[test]
fn what_a_killed_server_has_left_of_an_edit_is_removed_at_once_and_what_is_in_work_stays() {
    let server = Server::start();
    let drafts = folder(&server.runs_dir(), Part::Drafts).unwrap();
    draft(&server, "done", "dir:demo", true);
    for id in ["left", "in-work", "still-ending"] {
        lay(&drafts.join(id).join("model"), &["facts"]);
    }
    let in_work = fs::File::open(drafts.join("in-work")).unwrap();
    in_work.lock().unwrap();
    let lock = fs::File::create(drafts.join("still-ending/.model-edit.lock")).unwrap();
    lock.lock().unwrap();
    let listed = || {
        assert_eq!(server.json("/api/v1/knowledge")["drafts"].as_array().unwrap().len(), 1);
        let mut names: Vec<_> =
            fs::read_dir(&drafts).unwrap().map(|found| found.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(listed(), ["done", "in-work", "still-ending"]);
    in_work.unlock().unwrap();
    lock.unlock().unwrap();
    assert_eq!(listed(), ["done"]);
}

#[test]
fn a_model_that_is_being_changed_is_not_deleted() {
    let server = Server::start();
    let model = edited(&server, "mine", &["facts"]);
    let lock = folder(&server.runs_dir(), Part::Undo).unwrap().join(".lock");
    let held = fs::File::create(lock).unwrap();
    held.lock().unwrap();
    let refused = server.ask("DELETE /api/v1/knowledge/models/edited:mine", "");
    assert!(refused.status == 409 && refused.body.contains("being changed"), "{}", refused.body);
    assert!(model.exists());
    held.unlock().unwrap();
    assert_eq!(server.ask("DELETE /api/v1/knowledge/models/edited:mine", "").status, 204);
}
