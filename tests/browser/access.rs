//! Every page for people who do not use a mouse or do not see it: names of all controls in the browser's
//! accessibility tree, landmarks, contrast, a visible focus that is not lost, motion, and phones.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::chromium::Page;
use crate::comparison::keep;
use crate::server::Server;
use crate::sparktune::chat;

/// Roles that a person operates or that stand for a picture. Each of them needs a name.
const NAMED: [&str; 19] = [
    "button",
    "link",
    "textbox",
    "searchbox",
    "checkbox",
    "radio",
    "combobox",
    "listbox",
    "slider",
    "spinbutton",
    "switch",
    "tab",
    "tabpanel",
    "dialog",
    "img",
    "image",
    "progressbar",
    "navigation",
    "DisclosureTriangle",
];

/// Returns the texts whose contrast with what is behind them is below that of the guidelines (4.5, large text
/// 3).
const PALE: &str = r#"(() => {
  const rgb = (text) => {
    const parts = text.match(/[\d.]+/g).map(Number);
    return { r: parts[0], g: parts[1], b: parts[2], a: parts[3] ?? 1 };
  };
  const over = (top, below) => ({ r: top.r * top.a + below.r * (1 - top.a), g: top.g * top.a + below.g * (1 - top.a), b: top.b * top.a + below.b * (1 - top.a), a: 1 });
  const light = ({ r, g, b }) => {
    const part = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/^rgb/.test(colour)) continue;
      layers.push(rgb(colour));
      if (layers.at(-1).a === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), rgb(getComputedStyle(document.body).backgroundColor));
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const text = texts.currentNode.textContent.trim();
    if (!text || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    if (element.closest("svg, :disabled, [aria-disabled=true], option, .hidden-visually, .skip")) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const [one, other] = [light(over(rgb(style.color), back)), light(back)].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    const size = parseFloat(style.fontSize);
    const enough = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    if (contrast < enough) found.push(`${text.slice(0, 30)}: ${contrast.toFixed(2)} (${style.color})`);
  }
  return [...new Set(found)];
})()"#;

/// Returns what the page says of itself: landmarks, headings, ids, what is wider than the window.
const SHAPE: &str = r#"(() => {
  const shown = (selector) => [...document.querySelectorAll(selector)].filter((each) => each.checkVisibility());
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  return {
    main: shown("main").length, navigation: shown("nav").length, h1: shown("h1").length, lang: document.documentElement.lang,
    title: document.title.length > 3, live: document.querySelectorAll("[aria-live]").length > 0,
    repeated: ids.filter((id, at) => ids.indexOf(id) !== at),
    skipped: shown("h1, h2, h3, h4").map((each) => Number(each.tagName[1])).some((level, at, all) => at > 0 && level > all[at - 1] + 1),
    wide: wide > 0 ? [...document.querySelectorAll("body *")].filter((each) => each.getBoundingClientRect().right > innerWidth + 1 && !each.closest(".scroll, .tabs, .steps, pre, .side")).slice(0, 4).map((each) => each.outerHTML.slice(0, 120)) : [],
  };
})()"#;

/// Returns the element that has the focus, and whether one can see that.
const FOCUS: &str = r#"(() => {
  const at = document.activeElement;
  const style = getComputedStyle(at);
  const ring = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1.5) || style.boxShadow !== "none";
  const box = at.getBoundingClientRect();
  return { what: at === document.body ? "" : at.outerHTML.slice(0, 90), seen: at.id === "main" || (ring && box.width > 0 && box.height > 0) };
})()"#;

/// Returns the controls and pictures without a name.
fn nameless(page: &mut Page) -> Vec<String> {
    let tree = page.call("Accessibility.getFullAXTree", json!({}));
    let text = |value: &Value| value["value"].as_str().unwrap_or_default().trim().to_owned();
    let nodes = tree["nodes"].as_array().unwrap();
    assert!(nodes.len() > 5, "there is no tree");
    let without_name = |node: &&Value| {
        node["ignored"] != true
            && NAMED.contains(&text(&node["role"]).as_str())
            && text(&node["name"]).is_empty()
    };
    nodes
        .iter()
        .filter(without_name)
        .map(|node| format!("{} {}", node["role"]["value"], node["properties"]))
        .collect()
}

/// Goes through the page by its keys. Fails where the focus cannot be seen or does not move on.
#[track_caller]
fn tab_through(page: &mut Page, name: &str) {
    page.eval("document.querySelector('.skip').focus()");
    let mut seen = Vec::new();
    for _ in 0..24 {
        page.key("Tab");
        let focus = page.eval(FOCUS);
        let what = focus["what"].as_str().unwrap().to_owned();
        if what.is_empty() {
            break;
        }
        assert_eq!(focus["seen"], true, "{name}: the focus on {what} cannot be seen");
        seen.push(what);
    }
    seen.dedup();
    assert!(seen.len() > 5, "{name}: the focus stays at {seen:?}");
}

/// How long a page may take to settle.
const SETTLED: Duration = Duration::from_secs(60);

/// Looks at a page until what is seen is good, because a page that is still being drawn has not settled.
/// Returns what was seen last.
fn at_last<T>(page: &mut Page, look: impl Fn(&mut Page) -> T, is_good: impl Fn(&T) -> bool) -> T {
    let begun = Instant::now();
    loop {
        let seen = look(page);
        if is_good(&seen) || begun.elapsed() > SETTLED {
            return seen;
        }
        page.listen(Duration::from_millis(100));
    }
}

/// Whether a page has the structure that every page must have.
fn is_well_shaped(shape: &Value) -> bool {
    let wanted = json!({"main": 1, "lang": "en", "title": true, "h1": 1, "skipped": false, "repeated": [],
        "wide": [], "live": true});
    wanted.as_object().unwrap().iter().all(|(name, value)| shape[name] == *value)
}

/// Audits the page that is shown.
#[track_caller]
pub(crate) fn audit(page: &mut Page, name: &str) {
    page.listen(Duration::from_millis(150));
    assert_eq!(at_last(page, nameless, Vec::is_empty), [] as [String; 0], "{name}: without a name");
    for theme in ["light", "dark"] {
        // Colours in transition would be neither those before nor those after it.
        page.prefer(theme, true);
        page.wait(theme, &format!("matchMedia('(prefers-color-scheme: {theme})').matches"));
        page.listen(Duration::from_millis(80));
        let pale = at_last(page, |page| page.eval(PALE), |pale| *pale == json!([]));
        assert_eq!(pale, json!([]), "{name}: too pale in {theme}");
    }
    page.prefer("light", true);
    for width in [1280, 360] {
        page.resize(width, 800);
        page.wait("the width", &format!("innerWidth === {width}"));
        page.listen(Duration::from_millis(60));
        let shape = at_last(page, |page| page.eval(SHAPE), is_well_shaped);
        assert_eq!(
            (&shape["main"], &shape["lang"], &shape["title"]),
            (&json!(1), &json!("en"), &json!(true)),
            "{name}: {shape}"
        );
        assert_eq!((&shape["h1"], &shape["skipped"]), (&json!(1), &json!(false)), "{name}: {shape}");
        assert_eq!(
            (&shape["repeated"], &shape["wide"]),
            (&json!([]), &json!([])),
            "{name} at {width}: {shape}"
        );
        assert_eq!(shape["live"], true, "{name}: {shape}");
    }
    page.picture(&format!("page-{name}-360"));
    page.resize(1280, 800);
}

#[test]
fn every_page_can_be_used_without_a_mouse_and_without_seeing_it() {
    let Some(mut page) = Page::start() else { return };
    let mut run = String::new();
    let mut comparison = String::new();
    let server = Server::start(|place| {
        place.write("data/mine.jsonl", (0..30).map(|i| chat(i).to_string() + "\n").collect::<String>());
        run = place.old_run().file_name().unwrap().to_str().unwrap().to_owned();
        let prompts = [("2 + 2?", ["5", "4"]), ("A colour?", ["red", "blue"])];
        comparison = keep(&place.join("runs"), ["before", "after"], &prompts);
    });
    page.call("Accessibility.enable", json!({}));
    page.open(&server.url());
    page.see(&run);
    let nav = "import('/routes.js').then(({ ROUTES }) => ROUTES.filter((route) => route.nav).map((route) => route.path))";
    let nav = page.eval(nav);
    let mut places: Vec<String> =
        nav.as_array().unwrap().iter().map(|path| path.as_str().unwrap().to_owned()).collect();
    assert!(places.len() >= 8, "{places:?}");
    let tabs = ["charts", "samples", "events", "plan", "machine", "outputs"];
    places.extend(tabs.map(|tab| format!("runs/{run}?tab={tab}")));
    places.extend(["data/data:mine.jsonl".into(), format!("compare/{comparison}"), "nowhere".into()]);
    places.push(format!("overlay?ids={run},{run}"));
    for place in places {
        let name = place.replace([':', '/', '?'], "-").replace(&run, "run").replace(&comparison, "id");
        page.go(&format!("#/{place}"));
        page.wait(&name, "!document.querySelector('main .loading') && document.querySelector('main h1, main h2') && document.querySelector('main').innerText.length > 40");
        audit(&mut page, &name);
        if !place.starts_with("runs/") {
            tab_through(&mut page, &name);
        }
    }
    page.forgive_any("404");
    page.is_well(server.port);

    // What opens and closes gives the focus back, and the chat's settings have names too.
    page.go(&format!("#/runs/{run}"));
    page.wait("the button", "!!document.querySelector('[data-test=delete]')");
    page.eval("document.querySelector('[data-test=delete]').focus()");
    page.key("Enter");
    page.wait("the dialog", "!!document.querySelector('dialog[open]')");
    audit(&mut page, "dialog");
    page.key("Escape");
    page.wait("the end of it", "!document.querySelector('dialog')");
    page.wait("the focus where it was", "document.activeElement?.dataset.test === 'delete'");
    page.eval("document.querySelector('#tab-charts').focus()");
    page.key("ArrowRight");
    page.wait("the next tab", "document.activeElement?.id === 'tab-samples'");
    page.go("#/chat");
    page.click("[data-test=chat-settings]");
    page.see("Longest answer");
    audit(&mut page, "chat-settings");

    page.go("#/runs");
    page.see(&run);
    assert_eq!(page.eval("document.getAnimations().length"), 0);
    page.open(&format!("http://127.0.0.1:{}/api/docs/", server.port));
    page.see("Follow a run");
    assert_eq!(nameless(&mut page), [] as [String; 0], "the page of the API");
    page.is_well(server.port);
}
