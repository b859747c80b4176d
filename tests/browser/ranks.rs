//! The ranks of a run of several machines in the page: a row each, who is missing, and the time that a step
//! waits for them. A run of one process has none of it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::access::audit;
use crate::chromium::Page;
use crate::server::Server;

/// Turns the recorded run of one process into one of three ranks, as rank 0 logs it.
fn as_of_three_ranks(run: &Path) {
    let path = run.join("events/0001.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let mut events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for step in events.iter_mut().filter(|event| event["kind"] == "step") {
        step["step_ms"] = json!(400.0);
        step["exchange_ms"] = json!(36.0);
        step["exchange_bytes"] = json!(4_500_000);
    }
    let mut end = events.pop().unwrap();
    events.push(json!({"v": 1, "attempt": 1, "seq": end["seq"], "time_us": end["time_us"],
        "kind": "member_samples", "step": 9, "ranks": [
        {"rank": 0, "state": "training", "micro_batches": 3, "micro_batch_ms": 41.0, "drops": 0},
        {"rank": 2, "place": "<i>x</i>\u{1b}[2J", "state": "silent", "micro_batches": 1,
            "micro_batch_ms": 204.0, "latency_ms": 0.4, "drops": 1},
        {"rank": 1, "place": "10.0.0.2", "state": "gone", "micro_batches": 0, "drops": 2},
    ]}));
    end["seq"] = json!(events.len() + 1);
    events.push(end);
    let text: String = events.iter().map(|event| event.to_string() + "\n").collect();
    fs::write(path, text).unwrap();
}

/// The texts of the elements that a selector finds.
fn texts(page: &mut Page, selector: &str) -> Value {
    page.eval(&format!("[...document.querySelectorAll('{selector}')].map((each) => each.textContent.trim())"))
}

/// Opens the tab of the machine of a run.
fn open_machine(page: &mut Page, run: &str, name: &str) {
    page.go(&format!("#/runs/{run}?tab=machine"));
    page.wait(
        &format!("the machine of {name}"),
        &format!(
            "document.querySelector('h1')?.textContent.trim() === '{name}' \
             && document.querySelector('#tab-panel')?.textContent.includes('Can be allocated')"
        ),
    );
}

#[test]
fn the_ranks_of_a_run_have_a_row_each_and_the_page_says_how_long_a_step_waits_for_them() {
    let Some(mut page) = Page::start() else { return };
    let together = "20261123T174755Z-together-lora-c691";
    let mut alone = String::new();
    let server = Server::start(|place| {
        let original = place.old_run();
        let shared = original.with_file_name(together);
        fs::rename(&original, &shared).unwrap();
        as_of_three_ranks(&shared);
        alone = place.old_run().file_name().unwrap().to_str().unwrap().to_owned();
    });
    page.call("Accessibility.enable", json!({}));
    page.open(&server.url());
    page.see("together");
    open_machine(&mut page, together, "together");
    let rows = "[...document.querySelectorAll('[data-test=members] tbody tr')]
        .map((row) => [...row.cells].map((cell) => cell.textContent.trim()))";
    assert_eq!(
        page.eval(rows),
        json!([
            ["0", "this machine", "training", "3 of 4", "41 ms each", "–", "0"],
            ["2", "<i>x</i>\\u{1b}[2J", "silent", "1 of 4", "204 ms each", "0.40 ms", "1"],
            ["1", "10.0.0.2", "gone", "–", "–", "–", "2"],
        ])
    );
    assert_eq!(texts(&mut page, "[data-test=members] i"), json!([]), "an element was made of text");
    assert_eq!(texts(&mut page, "[data-test=members] b"), json!(["silent", "gone"]));
    assert_eq!(texts(&mut page, "[data-test=members] dt"), json!(["Exchange"]));
    let waited = "a step waits 36 ms of its 400 ms (9 %), mean of the last 9";
    assert_eq!(texts(&mut page, "[data-test=members] dd"), json!([waited]));
    page.picture("ranks");
    audit(&mut page, "ranks");

    open_machine(&mut page, &alone, "old");
    assert_eq!(texts(&mut page, "[data-test=members]"), json!([]));
    page.is_well(server.port);
}
