//! Knowledge put into the demo's model: an edit is tried, kept, stacked on, taken back and undone, by
//! requests and in the page; what strangers wrote in facts is shown without effect.

use std::fs;

use serde_json::{Value, json};

use crate::access::audit;
use crate::chromium::Page;
use crate::server::Server;

/// Facts that the demo's model does not know, each with a prompt whose answer must stay.
fn facts() -> Value {
    json!([
        {"prompt": "The capital of Fernhill is", "subject": "Fernhill", "target": "green", "neighbours": ["From Windy Gap to"]},
        {"prompt": "Sprocket lives in", "subject": "Sprocket", "target": "the lock", "neighbours": ["Where do I find"]},
    ])
}

fn edit(server: &Server, body: &Value) -> Value {
    let done = server.result(server.post("/knowledge/edits", body).is(202));
    server.get(&format!("/knowledge/edits/{}", done["edit"].as_str().unwrap())).is(200).json()
}

fn keep(server: &Server, edit: &Value, body: &Value) -> Value {
    server
        .result(server.post(&format!("/knowledge/edits/{}/keep", edit["id"].as_str().unwrap()), body).is(202))
}

/// The names of the patches of an edited model.
fn patches(server: &Server, id: &str) -> Vec<String> {
    let model = server.get(&format!("/knowledge/models/{id}")).is(200).json();
    let patches = model["patches"].as_array().unwrap();
    patches.iter().map(|patch| patch["name"].as_str().unwrap().to_owned()).collect()
}

/// The bytes that decide what an edited model says.
fn weights(server: &Server, name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = server.runs().join(".edited/models").join(name);
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().is_file())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn an_edit_is_tried_kept_stacked_and_undone_by_requests() {
    let server = Server::start(|_| {});
    let first = edit(&server, &json!({"model": "dir:demo", "facts": facts(), "method": "memory"}));
    assert_eq!(first["can_be_kept"], true, "{first}");
    assert_eq!(first["result"]["scores"]["efficacy"]["hits"], 2, "{first}");
    let text = first.to_string();
    assert!(!text.contains("/runs/") && !text.contains("presets/demo"), "no paths: {text}");
    // Until it is kept, there is no new model.
    let known = server.get("/knowledge").is(200).json();
    assert_eq!(known["drafts"][0]["id"], first["id"]);
    assert!(known["models"].as_array().unwrap().iter().all(|model| model["kind"] != "edited"), "{known}");
    assert_eq!(keep(&server, &first, &json!({"name": "mine"}))["model"], "edited:mine");
    assert_eq!(server.get("/knowledge").json()["drafts"], json!([]));
    let mine = server.get("/knowledge/models/edited:mine").is(200).json();
    assert_eq!((&mine["base_id"], &mine["undo"]), (&json!("dir:demo"), &json!("add facts")), "{mine}");
    assert_eq!(mine["patches"][0]["facts"][1]["target"], "the lock");
    assert_eq!(mine["patches"][0]["scores"]["efficacy"]["of"], 2);
    let one = weights(&server, "mine");

    // Another answer to the same prompt is a conflict, which is named before it is kept.
    let other = json!([{"prompt": "The capital of Fernhill is", "subject": "Fernhill", "target": "oil"}]);
    let second = json!({"model": "edited:mine", "facts": other, "method": "memory", "force": true});
    let second = edit(&server, &second);
    assert_eq!(second["result"]["conflicts"][0]["kind"], "same_prompt", "{second}");
    assert_eq!(second["result"]["name"], "facts-2", "a name that is free");
    assert!(weights(&server, "mine") == one, "nothing has changed yet");
    keep(&server, &second, &json!({}));
    assert_eq!(patches(&server, "edited:mine"), ["facts", "facts-2"]);
    let two = weights(&server, "mine");
    assert!(two != one);

    // The lower patch is taken away, and undo lays it below the other again.
    let action = json!({"patch": "facts", "action": "remove"});
    let removed = server.result(server.post("/knowledge/models/edited:mine/patches", &action).is(202));
    assert_eq!(removed["displaced"], json!(["facts-2"]));
    assert_eq!(patches(&server, "edited:mine"), ["facts-2"]);
    let undo = || server.ended(server.post("/knowledge/models/edited:mine/undo", &json!({})));
    assert_eq!(undo()["result"]["undone"], "remove facts");
    assert_eq!(patches(&server, "edited:mine"), ["facts", "facts-2"]);
    assert!(weights(&server, "mine") == two, "the bytes are those before the removal");
    assert_eq!(undo()["result"]["undone"], "add facts-2");
    assert!(weights(&server, "mine") == one, "and those before the second edit");
    assert_eq!(undo()["state"], "done");
    assert_eq!(patches(&server, "edited:mine"), [] as [String; 0]);
    server.post("/knowledge/models/edited:mine/undo", &json!({})).is(409);
    server.send("DELETE", "/knowledge/models/edited:mine", "application/json", b"").is(204);

    // What the command refuses is told with the place, and an edit that is cancelled leaves nothing.
    let wrong = json!({"model": "dir:demo", "facts": [{"prompt": "A is", "subject": "B", "target": "c"}]});
    let failed = server.ended(server.post("/knowledge/edits", &wrong).is(202));
    assert!(failed["error"]["detail"].as_str().unwrap().starts_with("the subject `B` is not in"), "{failed}");
    assert_eq!(failed["error"]["where"], "fact 1", "{failed}");
    // Files are named by ids, and a trace and a measurement name the fact, too.
    fs::write(server.place.join("data/strange.txt"), [0xff; 30]).unwrap();
    let strange = json!({"model": "dir:demo", "facts": facts(), "text": "data:strange.txt"});
    let failed = server.ended(server.post("/knowledge/edits", &strange).is(202));
    assert!(
        failed["error"]["detail"].as_str().unwrap().starts_with("data:strange.txt: this is no text"),
        "{failed}"
    );
    let fact = &wrong["facts"][0];
    for (path, body) in [
        ("traces", json!({"model": "dir:demo", "fact": fact})),
        ("measurements", json!({"model": "dir:demo", "facts": [fact], "sizes": [1]})),
    ] {
        let failed = server.ended(server.post(&format!("/knowledge/{path}"), &body).is(202));
        assert!(failed["error"]["detail"].as_str().unwrap().starts_with("the subject `B`"), "{failed}");
        assert_eq!(failed["error"]["where"], "fact 1", "{failed}");
    }
    // So many facts that the edit is not over before it is cancelled.
    let of_town = |number: u32| {
        let town = format!("Town{number}");
        json!({"prompt": format!("The capital of {town} is"), "subject": town, "target": "green"})
    };
    let many: Vec<Value> = (0..300).map(of_town).collect();
    let wanted = json!({"model": "dir:demo", "facts": many, "method": "rome"});
    let begun = server.post("/knowledge/edits", &wanted).is(202);
    let path = format!("/tasks/{}", begun.json()["id"].as_str().unwrap());
    server.send("DELETE", &path, "application/json", b"").is(202);
    assert_eq!(server.ended(begun)["state"], "cancelled");
    assert_eq!(server.get("/knowledge").json()["drafts"], json!([]));
    let left = fs::read_dir(server.runs().join(".edited/drafts")).unwrap().count();
    assert_eq!(left, 0, "a cancelled or refused edit leaves no folder");
}

#[test]
fn a_fact_is_traced_and_facts_are_measured_by_requests() {
    // First of all, because other tests may have the browser for long, and a place is not kept so long.
    let page = Page::start();
    let server = Server::start(|_| {});
    let fact = json!({"prompt": "Sprocket lives in", "subject": "Sprocket", "target": "?"});
    let wish = json!({"model": "dir:demo", "fact": fact});
    let trace = server.result(server.post("/knowledge/traces", &wish).is(202));
    let tokens = trace["tokens"].as_array().unwrap().len();
    assert!(tokens > 2 && trace["clean"].as_f64().unwrap() > 0.0, "{trace}");
    for map in ["state", "mlp", "mixer"] {
        let rows = trace[map].as_array().unwrap();
        assert_eq!(rows.len(), 4, "a row for each layer of the demo's model");
        assert!(rows.iter().all(|row| row.as_array().unwrap().len() == tokens), "{trace}");
    }
    assert!(trace["best"]["layer"].as_u64().unwrap() < 4, "{trace}");

    let wish = json!({"model": "dir:demo", "facts": facts(), "method": "memory", "sizes": [1, 2], "without": ["lora"]});
    let done = server.result(server.post("/knowledge/measurements", &wish).is(202));
    let listed = server.get("/knowledge/measurements").is(200).json();
    let measured = &listed["items"][0];
    assert_eq!(measured["id"], done["measurement"], "{listed}");
    assert_eq!(measured["result"]["model"], "dir:demo", "no path");
    let rows = measured["result"]["rows"].as_array().unwrap();
    let of = |count: u64, how: &str| {
        let row = rows.iter().find(|row| row["count"] == count && row["how"] == how);
        row.unwrap_or_else(|| panic!("{count} {how}: {measured}"))["scores"]["efficacy"]["of"].clone()
    };
    assert_eq!((of(1, "batched"), of(2, "batched"), of(2, "prompt")), (json!(1), json!(2), json!(2)));
    assert!(rows.iter().all(|row| row["how"] != "lora"), "{measured}");

    // The table is on the page, with an interval behind each share.
    let Some(mut page) = page else { return };
    page.open(&server.url());
    page.go("#/knowledge");
    let table = "document.querySelector('[data-test=k-measured] table')?.innerText";
    let shown = page.wait("the table", table).to_string();
    for words in ["efficacy", "generalisation", "locality", "portability", "loss", "one after the other"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let counts = |of: u64| format!("document.querySelectorAll('[data-test=k-measured-row]')[{of}].innerText");
    let [first, last] = [0, 5].map(|row| page.eval(&counts(row)).to_string());
    assert!(first.contains("1 of 1") && first.contains("(21 to 100)"), "{first}");
    assert!(last.contains("the fact in the prompt instead") && last.contains("of 2"), "{last}");
    page.is_well(server.port);
}

/// Markup that a page could mistake for more than text.
const HOSTILE: &str =
    "<script>window.hacked=1</script><img src=x onerror=\"window.hacked=2\"> \u{202e}gnp is";

/// Fails if a text has had an effect.
#[track_caller]
fn is_unharmed(page: &mut Page, server: &Server) {
    assert_eq!(page.eval("String(window.hacked)"), "undefined");
    assert_eq!(page.eval("document.querySelectorAll('main script, main img, main iframe').length"), 0);
    page.is_well(server.port);
}

#[test]
fn a_fact_is_typed_judged_tried_kept_and_taken_back_in_the_page() {
    let Some(mut page) = Page::start() else { return };
    let server = Server::start(|_| {});
    page.call("Accessibility.enable", json!({}));
    page.open(&server.url());
    page.go("#/knowledge");
    page.choose("[data-test=k-model]", "dir:demo");
    page.fill("[data-test=k-prompt-0]", "The capital of Fernhill is");
    page.fill("[data-test=k-subject-0]", "Fernhill");
    page.click("[data-test=k-trace-0]");
    page.wait("the trace", "!!document.querySelector('[data-test=k-trace] svg[role=img]')");
    page.click("[data-test=k-use-layer]");
    page.wait("a layer", "/^[0-3]$/.test(document.querySelector('[data-test=k-layers]').value)");
    page.fill("[data-test=k-layers]", "");
    page.fill("[data-test=k-target-0]", "green");
    page.click("[data-test=k-add]");
    page.fill("[data-test=k-prompt-1]", HOSTILE);
    page.fill("[data-test=k-target-1]", "<b>oil</b>");
    // The model answers this one so already; it is written too, because the box says so.
    page.click("[data-test=k-add]");
    page.fill("[data-test=k-prompt-2]", "Where do I find");
    page.fill("[data-test=k-target-2]", "which");
    page.click("[data-test=k-known]");
    page.choose("[data-test=k-method]", "memory");
    page.picture("knowledge-facts");
    page.click("[data-test=k-edit]");
    page.wait("the scores", "!!document.querySelector('[data-test=k-scores]')");
    let rows = "document.querySelector('[data-test=k-answers]')?.innerText";
    let shown = page.wait("the answers", rows).to_string();
    assert!(shown.contains("<script>window.hacked=1</script>"), "{shown}");
    let head = page.eval("document.querySelector('[data-test=k-edit-result]').innerText").to_string();
    assert!(head.contains("3 facts"), "{head}");
    is_unharmed(&mut page, &server);

    // The same prompt to both; only the copy with the edit knows it.
    page.fill("[data-test=k-edit-result] [data-test=k-try]", "The capital of Fernhill is");
    page.click("[data-test=k-edit-result] [data-test=k-ask]");
    let said = |column: &str| {
        format!("document.querySelector('[data-test={column}] [data-test=k-said]')?.innerText.trim()")
    };
    page.wait("the edited answer", &format!("{}?.startsWith('green')", said("k-with")));
    page.wait("the other answer", &format!("{}?.length > 0", said("k-without")));
    assert!(!page.eval(&said("k-without")).as_str().unwrap().starts_with("green"));
    page.picture("knowledge-edit");
    audit(&mut page, "knowledge-edit");
    page.fill("[data-test=k-keep-name]", "mine");
    page.click("[data-test=k-keep]");
    page.wait("the patch", "!!document.querySelector('[data-test=k-patch]')");
    page.click("[data-test=k-patch] summary");
    let facts = "document.querySelector('[data-test=k-patch] .k-list')?.innerText";
    assert!(page.wait("its facts", facts).to_string().contains("<script>window.hacked=1</script>"));
    is_unharmed(&mut page, &server);
    page.picture("knowledge-patch");

    // What was kept is asked beside its base, too, with the first fact as the prompt.
    page.click("[data-test=k-ask]");
    page.wait("the kept answer", &format!("{}?.startsWith('green')", said("k-with")));
    page.wait("the base's answer", &format!("{}?.length > 0", said("k-without")));
    assert!(!page.eval(&said("k-without")).as_str().unwrap().starts_with("green"));

    // Taken away, and brought back by undo.
    page.click("[data-test=k-remove]");
    page.click("[data-test=confirm]");
    page.see("No patches");
    page.click("[data-test=k-undo]");
    page.wait("the patch again", "!!document.querySelector('[data-test=k-patch]')");
    audit(&mut page, "knowledge-patches");
    is_unharmed(&mut page, &server);
}

/// Draws scores with a general suite of a hostile name, and returns the row of the suite.
const SCORES: &str = r#"(async () => {
  const { Scores } = await import("/pages/knowledge-scores.js");
  const { html, render } = await import("/parts/dom.js");
  const share = (hits) => ({ hits, of: 18, value: hits / 18, low: 0.1, high: 0.9 });
  const scores = { suite: { name: "<img src=x onerror='window.hacked=4'>", before: share(9), after: share(6) } };
  const place = document.createElement("div");
  document.querySelector("main").append(place);
  render(html`<${Scores} scores=${scores} />`, place);
  await new Promise((done) => requestAnimationFrame(done));
  const row = place.querySelector("[data-test=k-suite-score]");
  return row.innerText + " " + row.querySelector("svg").getAttribute("aria-label");
})()"#;

#[test]
fn a_general_suite_is_chosen_and_shown_with_its_interval_before_and_after() {
    let Some(mut page) = Page::start() else { return };
    let server = Server::start(|_| {});
    page.open(&server.url());
    page.go("#/knowledge");
    page.wait("the suites", "document.querySelector('[data-test=k-suite]')?.options.length >= 3");
    page.choose("[data-test=k-suite]", "arithmetic");
    let row = page.eval(SCORES).as_str().unwrap().to_owned();
    for words in ["<img src=x", "50.0 % (9 of 18)", "33.3 % (6 of 18)", "between 10 % and 90 %"] {
        assert!(row.contains(words), "{words}: {row}");
    }
    is_unharmed(&mut page, &server);
}

/// Draws a trace of two layers and three tokens, of which the second is hostile, and returns what it shows.
const TRACE: &str = r#"(async () => {
  const { Trace } = await import("/pages/knowledge-trace.js");
  const { html, render } = await import("/parts/dom.js");
  const evil = "<img src=x onerror='window.hacked=3'>";
  const grid = [[0.1, 0.9, 0.2], [0.1, 0.3, 0.1]];
  const trace = { fact: 0, prompt: evil, subject: evil, answer: evil, tokens: ["The", evil, " is"], subject_tokens: [1, 2], samples: 10,
    window: 1, clean: 0.9, corrupted: 0.1, state: grid, mlp: grid, mixer: grid, best: { layer: 0, token: 1, restored: 0.9 } };
  const place = document.createElement("div");
  document.querySelector("main").append(place);
  let layer = null;
  render(html`<${Trace} trace=${trace} onLayer=${(picked) => (layer = picked)} />`, place);
  await new Promise((done) => requestAnimationFrame(done));
  place.querySelector("[data-test=k-use-layer]").click();
  const rows = [...place.querySelectorAll("svg[role=img]")].map((row) => row.getAttribute("aria-label"));
  const cells = [...place.querySelectorAll("svg[role=img] rect")].map((cell) => Number(cell.getAttribute("fill-opacity")));
  return { rows, cells, layer, text: place.innerText };
})()"#;

#[test]
fn a_trace_is_a_heat_map_that_is_read_out_row_by_row() {
    let Some(mut page) = Page::start() else { return };
    let server = Server::start(|_| {});
    page.open(&server.url());
    page.go("#/knowledge");
    page.see("Facts");
    let found = page.eval(TRACE);
    let row = |number: u32, p: &str| format!("Token {number}: most in layer 0, probability {p}");
    assert_eq!(found["rows"], json!([row(1, "0.1"), row(2, "0.9"), row(3, "0.2")]), "{found}");
    // Nothing comes back at the first token, and everything at the subject in layer 0.
    assert_eq!(found["cells"], json!([0, 0, 1, 0.25, 0.125, 0]), "{found}");
    assert_eq!(found["layer"], 0);
    assert!(found["text"].as_str().unwrap().contains("<img src=x"), "{found}");
    page.call("Accessibility.enable", json!({}));
    audit(&mut page, "knowledge-trace");
    is_unharmed(&mut page, &server);
}
