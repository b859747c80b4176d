//! Texts of strangers in every field that a page shows: they are shown as they are and have no effect. Such
//! texts come from data, models, names of files, and run folders.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::chromium::{Page, fits};
use crate::comparison::keep;
use crate::server::Server;

/// Whatever a page could mistake for more than text: tags, handlers, addresses of other machines, templates,
/// an escape sequence of terminals, and characters that turn the direction of writing.
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
    // The message disappears after some seconds, so a slow test could miss it.
    page.eval(
        "new MutationObserver(() => { window.uploaded ||= document.body.innerText.includes('Uploaded'); })\
         .observe(document.body, { childList: true, subtree: true, characterData: true })",
    );
    page.give_file("[data-test=file]", &upload);
    page.wait("the message that it was uploaded", "window.uploaded");
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
        page.forgive_any("404");
        is_unharmed(&mut page, &server);
    }
}

/// An answer of a model as a stream of events.
fn stream(content: &str, reasoning: &str, reason: &str) -> String {
    let chunk = |delta: Value, reason: Value| {
        format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}))
    };
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 7}});
    let thought = chunk(json!({"role": "assistant", "reasoning_content": reasoning}), Value::Null);
    let said: String =
        content.split_inclusive(' ').map(|word| chunk(json!({"content": word}), Value::Null)).collect();
    thought + &said + &chunk(json!({}), json!(reason)) + &format!("data: {usage}\n\ndata: [DONE]\n\n")
}

/// Asks the model something and waits until the last answer has ended.
fn ask(page: &mut Page, answers: u32) {
    page.fill("[data-test=composer]", HOSTILE);
    page.click("[data-test=send]");
    let ended = "document.querySelectorAll('[data-test=answer][aria-busy=false]').length";
    page.wait("the answer", &format!("{ended} === {answers}"));
}

#[test]
fn texts_of_models_are_shown_in_chats_comparisons_and_the_arena_and_have_no_effect() {
    let Some(mut page) = Page::start() else { return };
    let long = "x".repeat(5000);
    let evil = format!(
        "{HOSTILE} {long}\n\n```<img src=x onerror=window.hacked=8>\n{long}\n```\n\n| a |\n|---|\n| {HOSTILE} |"
    );
    let mut comparison = String::new();
    let mut run = String::new();
    let server = Server::start(|place| {
        let prompts = [(evil.as_str(), [evil.as_str(), "another"])];
        comparison = keep(&place.join("runs"), [HOSTILE, "run"], &prompts);
        // The name of a folder, which whoever shares the folder of runs may choose.
        let folder = place.old_run();
        run = format!("20261122T174755Z-{}-lora-c691", HOSTILE_NAME.replace(".jsonl", ""));
        fs::rename(&folder, folder.with_file_name(&run)).unwrap();
    });
    let kept = json!({"title": evil, "model": HOSTILE, "messages": [{"role": "system", "content": HOSTILE},
        {"role": "user", "content": [{"type": "text", "text": HOSTILE}, {"type": HOSTILE}]},
        {"role": "assistant", "content": evil}]});
    let body = kept.to_string();
    server.send("PUT", "/chats/0123456789abcdef", "application/json", body.as_bytes()).is(200);

    page.open(&server.url());
    page.see("<img src=x onerror=window.hacked=6>");
    is_unharmed(&mut page, &server);
    page.go(&format!("#/runs/{}", run.replace('<', "%3C").replace('#', "%23")));
    page.wait("the run", "!!document.querySelector('[data-test=steps]')");
    is_unharmed(&mut page, &server);
    page.click("[data-test=delete]");
    page.see("Delete for good");
    is_unharmed(&mut page, &server);
    page.key("Escape");

    page.eval("localStorage.setItem('keep-chats', 'true')");
    page.go("#/chat");
    page.wait("the conversation", "!!document.querySelector('.kept .open')");
    page.click(".kept .open");
    page.wait(
        "its answer",
        &format!("document.querySelector('[data-test=answer]')?.innerText.includes({})", json!(SEEN)),
    );
    is_unharmed(&mut page, &server);
    page.picture("hostile-kept");
    let failed = format!("data: {}\n\n", json!({"error": {"message": HOSTILE, "type": HOSTILE}}));
    let streams =
        [stream(&evil, &evil, "stop"), stream("", HOSTILE, "length"), stream("", HOSTILE, "stop"), failed];
    page.answer_with("*/v1/chat/completions", streams);
    page.click("[data-test=new-chat]");
    ask(&mut page, 1);
    page.wait(
        "the answer",
        &format!("document.querySelector('.markdown')?.innerText.includes({})", json!(SEEN)),
    );
    is_unharmed(&mut page, &server);
    page.picture("hostile-chat");
    // An answer without text says why there is none.
    ask(&mut page, 2);
    page.see("reached its limit of 7 tokens while the model was still thinking");
    ask(&mut page, 3);
    page.see("stopped after thinking and gave no answer");
    ask(&mut page, 4);
    page.wait(
        "the error",
        &format!("document.querySelector('[data-test=problem]')?.innerText.includes({})", json!(SEEN)),
    );
    is_unharmed(&mut page, &server);

    page.go("#/compare");
    page.wait("the list", "!!document.querySelector('[data-test=comparison-row]')");
    is_unharmed(&mut page, &server);
    page.go(&format!("#/compare/{comparison}"));
    page.wait(
        "the answers",
        &format!("document.querySelector('[data-test=prompt]')?.innerText.includes({})", json!(SEEN)),
    );
    is_unharmed(&mut page, &server);
    page.picture("hostile-comparison");
    page.go(&format!("#/arena?id={comparison}"));
    page.wait(
        "two answers",
        &format!("document.querySelector('.arena')?.innerText.includes({})", json!(SEEN)),
    );
    is_unharmed(&mut page, &server);
    page.click("[data-test=vote-tie]");
    page.wait(
        "the names",
        &format!("document.querySelector('[data-test=tally]')?.innerText.includes({})", json!(SEEN)),
    );
    is_unharmed(&mut page, &server);
    page.resize(360, 740);
    for place in
        ["runs".to_owned(), "compare".into(), format!("compare/{comparison}"), "arena".into(), "chat".into()]
    {
        page.go(&format!("#/{place}"));
        page.wait(&place, "!document.querySelector('main .loading') && document.querySelector('main').innerText.length > 40");
        page.listen(Duration::from_millis(200));
        page.wait(&format!("{place} no wider than a phone, with a long word"), &fits(360));
    }
    is_unharmed(&mut page, &server);
}
