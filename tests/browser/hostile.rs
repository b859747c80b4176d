//! Texts of strangers in every field that a page shows: they are shown as they are and have no effect. Such
//! texts come from data, models, names of files, and run folders.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::chromium::Page;
use crate::server::Server;

/// Whatever a page could mistake for more than text: tags, handlers, addresses of other machines, templates, an
/// escape sequence of terminals, and characters that turn the direction of writing.
const HOSTILE: &str = "<script>window.hacked=1</script><img src=x onerror=\"window.hacked=2\"><img src=\"http://127.0.0.9:9/a.png\">\
     <svg onload=window.hacked=3></svg><iframe src=\"javascript:parent.hacked=4\"></iframe>[x](javascript:window.hacked=5) \
     ![x](http://127.0.0.9:9/b.png) </textarea></title>{{7*7}}${7*7}'\"` \u{202e}gnp.exe\u{2066} \u{1b}[2J\u{1b}]0;hacked\u{7} end";

/// What a page shows of it in any case.
const SEEN: &str = "<script>window.hacked=1</script>";

/// The same as far as it can be the name of a file.
const HOSTILE_NAME: &str =
    "<img src=x onerror=window.hacked=6>\u{202e}<script>window.hacked=7<!-- '\"&amp;.jsonl";

/// Data whose every part is hostile, and lines that are rejected for different reasons.
fn data() -> String {
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    let lines = [
        json!({"messages": [said("system", HOSTILE), said("user", HOSTILE), said("assistant", HOSTILE)]}),
        json!({"messages": [said("user", "Is it safe?"), said("assistant", &format!("It is. {HOSTILE}"))]}),
        json!({"messages": [said("user", "no answer"), said(HOSTILE, "x")]}),
        json!({HOSTILE: HOSTILE, "answer": HOSTILE}),
        json!(HOSTILE),
    ];
    lines.iter().map(|line| line.to_string() + "\n").collect::<String>() + HOSTILE + "\n"
}

/// Makes every text in the events of a run hostile, and adds a sample, warnings and an end with a reason.
fn poison(run: &Path) {
    let path = run.join("events/0001.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for event in &mut lines {
        for name in ["sparktune", "model", "device", "detail", "unit", "name", "reason"] {
            if event.get(name).is_some_and(Value::is_string) {
                event[name] = HOSTILE.into();
            }
        }
    }
    let mut end = lines.pop().unwrap();
    let mut add = |fields: Value| {
        let mut event = fields;
        for name in ["v", "attempt", "time_us"] {
            event[name] = end[name].clone();
        }
        event["seq"] = (lines.len() + 1).into();
        lines.push(event);
    };
    add(json!({"kind": "warning", "code": "other", "message": HOSTILE, "step": 9}));
    add(json!({"kind": "warning", "code": HOSTILE, "message": format!("again {HOSTILE}")}));
    add(json!({"kind": "sample", "step": 9, "prompt": HOSTILE, "text": HOSTILE, "tokens": 9}));
    end["seq"] = (lines.len() + 1).into();
    end["outcome"] = "failed".into();
    end["reason"] = HOSTILE.into();
    end["outputs"] = json!([HOSTILE]);
    lines.push(end);
    let text: String = lines.iter().map(|line| line.to_string() + "\n").collect();
    fs::write(path, text).unwrap();
}

/// Fails if a text has had an effect.
#[track_caller]
fn is_unharmed(page: &mut Page, server: &Server) {
    assert_eq!(page.eval("String(window.hacked)"), "undefined");
    let planted = "document.querySelectorAll(\"main script, img[src='x'], img[src*='127.0.0.9:9'], main iframe, [onload], [onerror], a[href^='javascript']\").length";
    assert_eq!(page.eval(planted), 0, "an element was made of text");
    page.is_well(server.port);
}

#[test]
fn texts_of_strangers_are_shown_in_every_page_and_have_no_effect() {
    let Some(mut page) = Page::start() else { return };
    let mut run = String::new();
    let server = Server::start(|place| {
        place.write(&format!("data/{HOSTILE_NAME}"), data());
        let folder = place.old_run();
        run = folder.file_name().unwrap().to_str().unwrap().to_owned();
        poison(&folder);
    });
    let settings =
        json!({"toml": format!("# {}\nseed = 1\n", HOSTILE.replace(['\n', '\u{1b}', '\u{7}'], ""))});
    server.send("PUT", "/presets/hostile", "application/json", settings.to_string().as_bytes()).is(200);

    page.open(&server.url());
    page.see(&run);
    is_unharmed(&mut page, &server);
    page.go(&format!("#/runs/{run}"));
    page.see(SEEN);
    for tab in ["Charts", "Samples", "Events", "Plan", "Machine", "Outputs"] {
        page.click(&format!("#tab-{}", tab.to_lowercase()));
        page.wait(
            tab,
            &format!(
                "document.querySelector('[role=tab][aria-selected=true]')?.innerText.startsWith({})",
                json!(tab)
            ),
        );
        if matches!(tab, "Samples" | "Events") {
            page.wait(
                "the text",
                &format!("document.querySelector('#tab-panel').innerText.includes({})", json!(SEEN)),
            );
        }
        is_unharmed(&mut page, &server);
    }
    page.picture("hostile-run");

    page.go("#/data");
    page.see("<img src=x onerror=window.hacked=6>");
    is_unharmed(&mut page, &server);
    let upload = server.place.write(&format!("up{HOSTILE_NAME}"), data());
    page.give_file("[data-test=file]", &upload);
    page.see("Uploaded");
    is_unharmed(&mut page, &server);
    page.click("[data-test=dataset] a");
    page.wait("the report", "!!document.querySelector('[data-test=report]')");
    is_unharmed(&mut page, &server);
    page.choose("[data-test=check-model]", "dir:demo");
    // The page moves until the data has been checked again.
    page.wait("the tokens", "document.querySelector('[data-test=report]')?.innerText.includes('% trained')");
    page.click("#tab-examples");
    page.wait(
        "the examples",
        &format!("document.querySelector('[data-test=example]')?.innerText.includes({})", json!(SEEN)),
    );
    is_unharmed(&mut page, &server);
    page.picture("hostile-examples");
    page.click("#tab-rejected");
    page.wait(
        "the lines",
        &format!(
            "document.querySelector('[data-test=rejected]') && document.body.innerText.includes({})",
            json!(SEEN)
        ),
    );
    is_unharmed(&mut page, &server);

    // A plan whose answers are hostile, and a preset that describes itself so.
    page.go("#/plan");
    page.fill("[data-test=plan-model]", HOSTILE);
    page.wait(
        "the refusal",
        &format!("document.querySelector('[data-test=plan-problems]')?.innerText.includes({})", json!(SEEN)),
    );
    is_unharmed(&mut page, &server);
    page.fill("[data-test=plan-model]", "dir:demo");
    page.wait("a plan", "!!document.querySelector('[data-test=memory]')");
    page.fill("[data-test=setting-rank]", HOSTILE);
    page.wait(
        "the refusal",
        &format!(
            "document.querySelector('[data-test=plan-problems]')?.innerText.includes({})",
            json!(&SEEN[..20])
        ),
    );
    is_unharmed(&mut page, &server);

    // An address that is none of the page's.
    for hash in [
        format!("#/{HOSTILE}"),
        format!("#/runs/{HOSTILE}"),
        format!("#/data/{HOSTILE}"),
        "#/runs/..%2F..%2Fetc".into(),
    ] {
        page.go(&hash);
        page.wait("a page", "document.querySelector('main')?.innerText.length > 10");
        page.listen(Duration::from_millis(500));
        // There is no such thing, and the page that would show it asks no longer.
        page.go("#/runs");
        page.see(&run);
        page.listen(Duration::from_millis(500));
        page.troubles.retain(|trouble| !trouble.contains("404"));
        is_unharmed(&mut page, &server);
    }
}
