//! What the page does with edited models when something ends it in the middle.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::Server;
use crate::sparktune::Place;

/// Returns what has come, and fails if it does not.
#[track_caller]
fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(600), "{what} has not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process has ended; nobody may have waited for it yet.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

#[test]
fn an_edit_ends_with_its_server_and_leaves_no_draft() {
    let place = Place::new();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("presets/demo/model");
    let more = ["--model", demo.to_str().unwrap()];
    let mut server = Server::start(&place, &more);
    let model = server.get("/api/v1/knowledge").has(200)["models"][0]["id"].clone();
    // So many that the test never sees the end of the edit, however late it looks.
    let fact = |i: usize| {
        let (prompt, subject) = (format!("The capital of Fernhill {i} is"), format!("Fernhill {i}"));
        json!({"prompt": prompt, "subject": subject, "target": "green"})
    };
    let facts: Vec<Value> = (0..100).map(fact).collect();
    let wish = json!({"model": model, "facts": facts, "method": "rome"});
    server.post("/api/v1/knowledge/edits", &wish).has(202);
    // Whatever it says, it is at work.
    until("the edit", || {
        let task = server.get("/api/v1/tasks").has(200)["items"][0].clone();
        assert_eq!(task["state"], "running", "{task}");
        task["progress"]["what"].as_str().map(str::to_owned)
    });
    let children = server.children();
    assert_eq!(children.len(), 1, "the edit");
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    until("the end of the edit", || has_ended(children[0]).then_some(()));

    let drafts = place.join("runs/.edited/drafts");
    let second = Server::start(&place, &more);
    // Other threads of the process may still hold its locks.
    until("the removal of the model of an edit that nobody knows", || {
        assert_eq!(second.get("/api/v1/knowledge").has(200)["drafts"], Value::Array(Vec::new()));
        (fs::read_dir(&drafts).unwrap().count() == 0).then_some(())
    });
}
