//! The whole way in the page, as a newcomer goes it: open it with the token, bring data of one's own, start a
//! run of the demo's model, watch its curve grow, stop and resume it, chat with the tuned model, look into
//! the guide.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::chromium::{Page, fits};
use crate::server::Server;

/// The steps of the run: so many that it is not over before the page shows the first ones, however slow the
/// page is.
const STEPS: u64 = 150;

/// The number of the step that a run's page shows.
const STEP: &str = "Number(/step ([0-9,]+)/.exec(document.querySelector('[data-test=steps]')?.innerText ?? '')?.[1]?.replaceAll(',', '') ?? 0)";
/// The state that it shows.
const STATE: &str = "document.querySelector('[data-test=state]')?.innerText.toLowerCase()";
/// The last step of the curve of the loss, from the description of the chart.
const CURVE: &str = "Number(/over steps [0-9,]+ to ([0-9,]+)/.exec(document.querySelector('[data-test=chart-Loss] .plot')?.getAttribute('aria-label') ?? '')?.[1]?.replaceAll(',', '') ?? 0)";

/// Whether the field of the rank is marked as wrong and has the colour of that, also under the cursor.
const RED: &str = r#"(() => {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = "var(--bad)";
  const bad = getComputedStyle(probe).color;
  probe.remove();
  const field = document.querySelector("[data-test=setting-rank]");
  if (field.getAttribute("aria-invalid") !== "true") return false;
  field.blur();
  const isRed = getComputedStyle(field).borderColor === bad;
  field.focus();
  return isRed && getComputedStyle(field).outlineColor === bad;
})()"#;
/// The number of prompts of a comparison that stick out of their cards.
const OUT: &str = r#"[...document.querySelectorAll(".prompt-head")].filter((each) => {
  const [head, card] = [each, each.parentElement].map((one) => one.getBoundingClientRect());
  return head.left < card.left || head.right > card.right;
}).length"#;

#[test]
fn a_run_is_started_watched_stopped_resumed_and_talked_to_in_the_page() {
    let Some(mut page) = Page::start() else { return };
    let server = Server::start(|_| {});

    page.open(&format!("http://127.0.0.1:{}/", server.port));
    page.see("This page needs its token");
    page.forgive("401");
    page.picture("locked");
    page.open(&server.url());
    page.see("No runs yet");
    assert!(
        !page.eval("location.href").as_str().unwrap().contains("token"),
        "the token stays in the address"
    );
    assert_eq!(page.eval("document.cookie"), "", "a script can read the cookie");
    page.picture("runs-empty");

    let own = server.place.join("mine.jsonl");
    let good = concat!(env!("CARGO_MANIFEST_DIR"), "/presets/demo/train.jsonl");
    let good = std::fs::read_to_string(good).unwrap();
    std::fs::write(&own, format!("{good}{}", "{oops\n".repeat(good.lines().count() / 40))).unwrap();
    start(&mut page, &own);
    page.is_well(server.port);
    watch(&mut page, &server);
    stop_and_resume(&mut page, &server);
    page.is_well(server.port);
    pictures_of_all_tabs(&mut page);
    page.is_well(server.port);
    chat(&mut page);
    page.is_well(server.port);
    guide(&mut page);
    page.is_well(server.port);
    page.click("[data-test=nav-runs]");
    page.see("rank 8 · learning rate 2e-3");
    page.picture("runs");

    page.click("[data-test=logout]");
    page.see("This page needs its token");
}

/// Answers the questions of a new run.
fn start(page: &mut Page, own: &Path) {
    page.click("[data-test=new-run]");
    page.see("Is this machine ready?");
    page.wait("the machine", "document.querySelector('main').innerText.length > 200");
    page.picture("new-1-machine");
    page.click("[data-test=next]");
    page.see("Which model do you want");
    page.click("[data-test=model-option]:last-child");
    page.wait("the choice", "document.querySelector('.option.picked')?.innerText.includes('dir:demo')");
    page.picture("new-2-model");
    page.click("[data-test=next]");
    page.see("Which data do you want");
    page.give_file("[data-test=file]", own);
    page.wait("the choice", "document.querySelector('.option.picked')?.innerText.includes('mine.jsonl')");
    // More lines are bad than may be, and the way on stands where that is said.
    page.see("This data cannot be trained on as it is.");
    page.click("[data-test=accept-the-rest]");
    page.see("This data can be trained on.");
    page.picture("new-3-data");
    page.click("[data-test=next]");
    page.see("Training plan");
    page.fill("[data-test=setting-rank]", "many");
    page.wait("a red field, also where the cursor is", RED);
    page.fill("[data-test=setting-rank]", "");
    page.choose("#preset", "demo");
    // Those of the preset end after about a hundred steps.
    page.fill("[data-test=setting-epochs]", "9");
    page.fill("[data-test=setting-max-steps]", &STEPS.to_string());
    let planned = format!("/\\b{STEPS} steps/.test(document.querySelector('[data-test=time]')?.innerText)");
    page.wait("the plan", &planned);
    page.picture("new-4-plan");
    page.click("[data-test=next]");
    page.see("Review and start");
    page.fill("#run-name", "walk");
    page.wait("a settled plan", "!document.querySelector('[data-test=start]').disabled");
    page.picture("new-5-start");
    page.click("[data-test=start]");
    page.wait("the page of the run", "/#\\/runs\\/.*walk/.test(location.hash)");
}

/// Watches the curve grow without loading the page again. The trainer is held still at the end.
fn watch(page: &mut Page, server: &Server) {
    page.eval("window.sameDocument = true");
    page.wait("the first steps", &format!("{STEP} >= 2 && {CURVE} >= 2"));
    let before = page.eval(CURVE).as_u64().unwrap();
    page.wait("a longer curve", &format!("{CURVE} > {before} + 2"));
    assert_eq!(page.wait("the state", STATE), "running");
    server.signal_trainer(Signal::STOP);
    assert!(
        page.eval("document.querySelectorAll('[data-test=chart-Loss] canvas').length").as_u64() >= Some(1)
    );
    page.picture("run-live");
    assert_eq!(page.eval("window.sameDocument"), true, "the page was loaded again");
}

/// Stops the run, whose trainer is held still until it is asked to stop, and resumes it.
fn stop_and_resume(page: &mut Page, server: &Server) {
    page.click("[data-test=stop]");
    page.click("[data-test=confirm]");
    server.wait_for_request();
    server.signal_trainer(Signal::CONT);
    page.wait("the end of the attempt", &format!("{STATE} === 'stopped'"));
    let stopped = page.eval(STEP).as_u64().unwrap();
    assert!((2..STEPS).contains(&stopped), "it stopped at step {stopped}");
    page.picture("run-stopped");
    page.click("[data-test=resume]");
    page.wait("more steps", &format!("{STEP} > {stopped}"));
    page.wait("the end of the run", &format!("{STATE} === 'completed' && {STEP} === {STEPS}"));
    page.picture("run-done");
}

/// Keeps a picture of each tab, in both themes and on a phone.
fn pictures_of_all_tabs(page: &mut Page) {
    for (tab, shows) in [
        ("Samples", "Question"),
        ("Events", "Checkpoint"),
        ("Plan", "learning rate"),
        ("Machine", "Memory"),
        ("Outputs", "merged"),
        ("Charts", "Loss"),
    ] {
        page.click(&format!("#tab-{}", tab.to_lowercase()));
        page.wait(
            shows,
            &format!("document.querySelector('#tab-panel').innerText.includes({})", json!(shows)),
        );
        page.picture(&format!("run-{}", tab.to_lowercase()));
    }
    page.prefer("dark", false);
    page.listen(Duration::from_millis(300));
    page.picture("run-dark");
    page.prefer("light", false);
    page.resize(390, 844);
    page.listen(Duration::from_millis(300));
    page.picture("run-phone");
    // Charts are as wide as before until they are drawn again.
    page.wait("a page on which a phone need not scroll sideways", &fits(390));
    page.resize(1280, 900);
}

/// Asks the tuned model, in a way that leaves nothing to chance.
fn chat(page: &mut Page) {
    page.click("[data-test=chat-with]");
    page.wait(
        "the run as the model",
        "document.querySelector('[data-test=chat-model-0]')?.value.startsWith('run:')",
    );
    page.click("[data-test=chat-settings]");
    page.fill("#chat-temperature", "0");
    page.fill("#chat-max_completion_tokens", "16");
    page.choose("[data-test=thinking]", "off");
    page.fill("[data-test=composer]", "What does a bell cost?");
    page.click("[data-test=send]");
    page.wait("an answer", "document.querySelector('[data-test=answer][aria-busy=false] [data-test=answer-stats]')?.innerText.length > 3");
    let stats = page.eval("document.querySelector('[data-test=answer-stats]').innerText");
    assert!(page.eval("/[1-9][0-9]* tokens? .*tokens\\/s/.test(document.querySelector('[data-test=answer-stats]').innerText)") == true, "{stats}");
    page.picture("chat");
}

/// Finds the first steps in the guide, with their pictures, and goes from there to another page.
fn guide(page: &mut Page) {
    page.click("[data-test=nav-guide]");
    page.see("The user's guide");
    page.wait("the pages", "!!document.querySelector('[data-test=guide] a[href=\"#/guide/first-model\"]')");
    // A file of the clone is no part of the program: it is named, and no link that leads nowhere.
    page.see("README (README.md in the clone)");
    let dead = page.eval("document.querySelectorAll('[data-test=guide] a:not([href])').length");
    assert!(dead == 0, "{dead} links lead nowhere");
    page.click("[data-test=guide] a[href='#/guide/first-model']");
    page.see("From nothing to a model of your own");
    let drawn = "[...document.querySelectorAll('[data-test=guide] img')].filter((each) => each.complete && each.naturalWidth > 100 && each.alt).length >= 8";
    page.wait("the pictures", drawn);
    page.picture("guide");
    page.click("[data-test=guide] a[href='#/guide/compare']");
    page.see("Comparing models");
}

#[test]
fn a_model_is_compared_in_the_page() {
    let Some(mut page) = Page::start() else { return };
    let server = Server::start(|_| {});
    page.open(&server.url());
    page.click("[data-test=nav-compare]");
    page.click("[data-test=compare-model]");
    page.wait("the suites", "document.querySelector('[data-test=suite]')?.options.length >= 3");
    page.choose("[data-test=suite]", "arithmetic");
    page.fill("#most", "2");
    page.click("[data-test=start-comparison]");
    // It goes on when the page is left, moves nobody, and is shown again where it was started.
    page.wait(
        "the task",
        "!!document.querySelector('[data-test=task]') || location.hash.startsWith('#/compare/')",
    );
    page.go("#/runs");
    page.see("No runs yet");
    page.go("#/compare");
    page.wait(
        "the comparison",
        "!!document.querySelector('[data-test=task], [data-test=comparison-row] a') || location.hash.startsWith('#/compare/')",
    );
    page.wait(
        "its page",
        "document.querySelector('[data-test=comparison-row] a')?.click() || location.hash.startsWith('#/compare/')",
    );
    page.wait("the results", "document.querySelectorAll('[data-test=results] tbody tr').length === 1");
    page.wait("the prompts", "document.querySelectorAll('[data-test=prompt]').length === 2");
    page.picture("comparison");
    page.resize(390, 844);
    page.wait("prompts inside of their cards", &format!("{OUT} === 0"));
    page.picture("comparison-phone");
    page.is_well(server.port);
}

#[test]
fn the_oldest_of_more_runs_than_one_answer_holds_is_reached() {
    let Some(mut page) = Page::start() else { return };
    let server = Server::start(|place| {
        for at in 0..520 {
            let run = format!("runs/20260101T{at:06}Z-r{at}-lora-0001");
            std::fs::create_dir_all(place.join(&run).join("events")).unwrap();
        }
    });
    page.open(&server.url());
    for rows in [50, 200, 500, 520] {
        page.wait(
            &format!("{rows} runs"),
            &format!("document.querySelectorAll('[data-test=run-row]').length === {rows}"),
        );
        if rows < 520 {
            page.press("Older runs");
        }
    }
    page.wait("the end of the list", "!document.querySelector('main .more')");
    page.is_well(server.port);
}
