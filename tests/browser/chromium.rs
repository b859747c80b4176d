//! One headless Chromium with one page: what a person would do in it, and everything that went wrong in it.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::base64::{from_base64, to_base64};
use crate::devtools::DevTools;
use crate::server::LONG;

/// Held by the only browser at a time: two would take more memory and time than one after the other.
static ONE: Mutex<()> = Mutex::new(());

/// A browser with a page.
pub(crate) struct Page {
    _only: MutexGuard<'static, ()>,
    devtools: DevTools,
    session: String,
    /// Every address that the page has asked for.
    pub requests: Vec<String>,
    /// What the page has complained about: errors, uncaught exceptions, refused scripts, dialogs, new
    /// windows.
    pub troubles: Vec<String>,
    /// The bodies of the answers that a test gives in place of a server, the next one first.
    answers: VecDeque<String>,
    process: Child,
    pub place: TempDir,
}

impl Page {
    /// Starts a browser with an empty page, or prints that there is none.
    pub(crate) fn start() -> Option<Self> {
        let named = std::env::var_os("CHROMIUM").map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = ["chromium", "chromium-browser", "google-chrome"]
            .iter()
            .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)));
        let Some(program) = named.into_iter().chain(on_path).find(|program| program.is_file()) else {
            println!("skipped: no browser here (Chromium or Chrome, or the program that CHROMIUM names)");
            return None;
        };
        let only = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let place = tempfile::tempdir().unwrap();
        let profile = place.path().join("profile");
        let process = Command::new(program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"])
            .args([
                "--disable-dev-shm-usage",
                "--force-device-scale-factor=1",
                "--disable-background-networking",
            ])
            .args(["--disable-component-update", "--disable-sync", "--no-default-browser-check"])
            .args(["--remote-debugging-port=0", "--window-size=1280,900"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(place.path().join("err")).unwrap())
            .spawn()
            .unwrap();
        let (port, path) = address(&profile.join("DevToolsActivePort"));
        let mut devtools = DevTools::connect(port, &path);
        let target = devtools.call(None, "Target.createTarget", json!({"url": "about:blank"})).unwrap();
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = devtools.call(None, "Target.attachToTarget", attach).unwrap();
        let session = session["sessionId"].as_str().unwrap().to_owned();
        devtools.call(None, "Target.setDiscoverTargets", json!({"discover": true})).unwrap();
        devtools.events(Duration::from_millis(100));
        let (requests, troubles) = (Vec::new(), Vec::new());
        let answers = VecDeque::new();
        let mut page = Self { _only: only, devtools, session, requests, troubles, answers, process, place };
        for domain in ["Page", "Runtime", "Network", "Log", "DOM"] {
            page.call(&format!("{domain}.enable"), json!({}));
        }
        page.resize(1280, 900);
        Some(page)
    }

    /// Sends a command to the page.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        let result = self.devtools.call(Some(&self.session), method, params);
        self.listen(Duration::ZERO);
        result.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Takes note of what has happened.
    pub(crate) fn listen(&mut self, time: Duration) {
        for event in self.devtools.events(time) {
            let params = &event["params"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            match event["method"].as_str().unwrap_or_default() {
                "Network.requestWillBeSent" => self.requests.push(text(&params["request"]["url"])),
                "Runtime.exceptionThrown" => {
                    let details = &params["exceptionDetails"];
                    self.troubles.push(format!(
                        "exception: {} {}",
                        text(&details["text"]),
                        details["exception"]["description"]
                    ));
                }
                "Runtime.consoleAPICalled" if matches!(params["type"].as_str(), Some("error" | "assert")) => {
                    self.troubles.push(format!("console: {}", params["args"]));
                }
                "Log.entryAdded" if params["entry"]["level"] == "error" => {
                    let entry = &params["entry"];
                    self.troubles.push(format!("log: {} {}", text(&entry["text"]), text(&entry["url"])));
                }
                "Fetch.requestPaused" => self.answer(&params["requestId"]),
                "Page.javascriptDialogOpening" => {
                    self.troubles.push(format!("dialog: {}", params["message"]))
                }
                "Target.targetCreated" if params["targetInfo"]["type"] == "page" => {
                    self.troubles.push(format!("window: {}", params["targetInfo"]["url"]));
                }
                _ => {}
            }
        }
    }

    /// Answers the next requests to an address like this with these streams of events, as no server of the
    /// tests would.
    pub(crate) fn answer_with(&mut self, pattern: &str, streams: impl IntoIterator<Item = String>) {
        self.answers.extend(streams);
        self.call("Fetch.enable", json!({"patterns": [{"urlPattern": pattern}]}));
    }

    fn answer(&mut self, request: &Value) {
        let stream = self.answers.pop_front().expect("an answer for each request");
        let headers = json!([{"name": "Content-Type", "value": "text/event-stream"}]);
        let params = json!({"requestId": request, "responseCode": 200, "responseHeaders": headers,
            "body": to_base64(stream.as_bytes())});
        self.devtools.call(Some(&self.session), "Fetch.fulfillRequest", params).unwrap();
    }

    /// Fails the test if anything went wrong in the page, or if it asked another server than that of this
    /// port.
    #[track_caller]
    pub(crate) fn is_well(&mut self, port: u16) {
        self.listen(Duration::from_millis(200));
        assert!(self.troubles.is_empty(), "{:#?}", self.troubles);
        let own = format!("http://127.0.0.1:{port}/");
        let is_own = |url: &&String| {
            url.starts_with(&own) || url.starts_with("data:") || url.starts_with("blob:http://127.0.0.1")
        };
        let foreign: Vec<&String> =
            self.requests.iter().filter(|url| !is_own(url) && *url != "about:blank").collect();
        assert!(foreign.is_empty(), "{foreign:#?}");
    }

    /// Forgets the complaints that contain this text, which the test has provoked. Fails if there are none.
    #[track_caller]
    pub(crate) fn forgive(&mut self, text: &str) {
        self.listen(Duration::from_millis(200));
        let before = self.troubles.len();
        self.troubles.retain(|trouble| !trouble.contains(text));
        assert!(self.troubles.len() < before, "nothing says {text:?}: {:#?}", self.troubles);
    }

    /// Forgets the complaints that contain this text, if there are any.
    pub(crate) fn forgive_any(&mut self, text: &str) {
        self.listen(Duration::from_millis(200));
        self.troubles.retain(|trouble| !trouble.contains(text));
    }

    /// Opens an address and waits until it is loaded.
    #[track_caller]
    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url}));
        self.wait("a loaded page", "document.readyState === 'complete' && location.href !== 'about:blank'");
    }

    /// Goes to a place of the page by its hash.
    #[track_caller]
    pub(crate) fn go(&mut self, hash: &str) {
        self.eval(&format!("location.hash = {}", json!(hash)));
    }

    /// Evaluates an expression, also one that is a promise.
    #[track_caller]
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut result = self.call("Runtime.evaluate", params);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].take()
    }

    /// Waits until an expression is true, and returns its value.
    #[track_caller]
    pub(crate) fn wait(&mut self, what: &str, expression: &str) -> Value {
        let begun = Instant::now();
        loop {
            let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
            // While a page is being replaced, there is nothing to evaluate in.
            let result = self.devtools.call(Some(&self.session), "Runtime.evaluate", params);
            self.listen(Duration::ZERO);
            let mut result = result.unwrap_or_default();
            let value = result["result"]["value"].take();
            if !matches!(value, Value::Null | Value::Bool(false)) && value != 0 && value != "" {
                return value;
            }
            if begun.elapsed() > LONG {
                let (picture, text) = (self.picture("failed"), self.text());
                panic!(
                    "waited in vain for {what}.\n{}\ntroubles: {:#?}\npicture: {}\n{}",
                    result["exceptionDetails"]["exception"]["description"],
                    self.troubles,
                    picture.display(),
                    text
                );
            }
            self.listen(Duration::from_millis(50));
        }
    }

    /// The text that the page shows.
    #[track_caller]
    pub(crate) fn text(&mut self) -> String {
        self.eval("document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the page shows this text.
    #[track_caller]
    pub(crate) fn see(&mut self, text: &str) {
        self.wait(
            &format!("the text {text:?}"),
            &format!("document.body.innerText.includes({})", json!(text)),
        );
    }

    /// Clicks on the first element that a selector finds and that can be used, as a mouse does.
    #[track_caller]
    pub(crate) fn click(&mut self, selector: &str) {
        self.click_found(selector, &format!("document.querySelector({})", json!(selector)));
    }

    /// Clicks on the button or link with this text.
    #[track_caller]
    pub(crate) fn press(&mut self, text: &str) {
        let find = format!(
            "[...document.querySelectorAll('button, a, [role=tab], summary')].find((e) => e.innerText.trim() === {0} || e.getAttribute('aria-label') === {0})",
            json!(text)
        );
        self.click_found(text, &find);
    }

    #[track_caller]
    fn click_found(&mut self, what: &str, find: &str) {
        let place = format!(
            "(() => {{ const e = {find}; if (!e || e.disabled) return null; e.scrollIntoView({{block: 'center', behavior: 'instant'}}); \
             const r = e.getBoundingClientRect(); if (!r.width) return null; \
             const x = r.x + r.width / 2, y = r.y + r.height / 2, top = document.elementFromPoint(x, y); \
             return top && (e.contains(top) || top.contains(e)) ? {{x, y}} : null; }})()"
        );
        // What is still moving would not be hit.
        let place = loop {
            let before = self.wait(&format!("{what:?} to click on"), &place);
            self.listen(Duration::from_millis(150));
            if self.eval(&place) == before {
                break before;
            }
        };
        for (kind, buttons) in [("mouseMoved", 0), ("mousePressed", 1), ("mouseReleased", 0)] {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            let event = json!({"type": kind, "x": place["x"], "y": place["y"], "button": button, "buttons": buttons, "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Replaces the text of a field, as a keyboard does.
    #[track_caller]
    pub(crate) fn fill(&mut self, selector: &str, text: &str) {
        let select = format!(
            "(() => {{ const e = document.querySelector({}); if (!e || e.disabled) return false; e.focus(); e.select?.(); return true; }})()",
            json!(selector)
        );
        // A field that was redrawn between the two has lost the focus, and the text went nowhere.
        let is_still = format!("document.activeElement === document.querySelector({})", json!(selector));
        for _ in 0..3 {
            self.wait(&format!("the field {selector:?}"), &select);
            self.call("Input.insertText", json!({"text": text}));
            if self.eval(&is_still) == true {
                return;
            }
        }
    }

    /// Chooses the option with this value.
    #[track_caller]
    pub(crate) fn choose(&mut self, selector: &str, value: &str) {
        let choose = format!(
            "(() => {{ const e = document.querySelector({}); if (!e || ![...e.options].some((o) => o.value === {1})) return false; \
             e.value = {1}; e.dispatchEvent(new Event('change', {{bubbles: true}})); return true; }})()",
            json!(selector),
            json!(value)
        );
        self.wait(&format!("the choice {value:?} in {selector:?}"), &choose);
    }

    /// Presses a key: `Enter`, `Escape`, `Tab`, or a letter.
    #[track_caller]
    pub(crate) fn key(&mut self, key: &str) {
        let text = match key {
            "Enter" => "\r",
            key if key.chars().count() == 1 => key,
            _ => "",
        };
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "Tab" => 9,
            key => key.to_uppercase().bytes().next().map_or(0, u32::from),
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            self.call(
                "Input.dispatchKeyEvent",
                json!({"type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code}),
            );
        }
    }

    /// Gives files to a field for files.
    #[track_caller]
    pub(crate) fn give_file(&mut self, selector: &str, file: &Path) {
        self.wait(
            &format!("the field {selector:?}"),
            &format!("!!document.querySelector({})", json!(selector)),
        );
        let root = self.call("DOM.getDocument", json!({}))["root"]["nodeId"].take();
        let node =
            self.call("DOM.querySelector", json!({"nodeId": root, "selector": selector}))["nodeId"].take();
        self.call("DOM.setFileInputFiles", json!({"nodeId": node, "files": [file]}));
    }

    /// Makes the window this large.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Prefers these colours, `light` or `dark`, and maybe less motion, as a system does.
    pub(crate) fn prefer(&mut self, colours: &str, less_motion: bool) {
        let motion = if less_motion { "reduce" } else { "no-preference" };
        let features = json!([{"name": "prefers-color-scheme", "value": colours},
            {"name": "prefers-reduced-motion", "value": motion}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Keeps a picture of the page and returns its file.
    pub(crate) fn picture(&mut self, name: &str) -> PathBuf {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages");
        fs::create_dir_all(&folder).unwrap();
        let shot =
            self.devtools.call(Some(&self.session), "Page.captureScreenshot", json!({"format": "png"}));
        let path = folder.join(format!("{name}.png"));
        fs::write(&path, from_base64(shot.unwrap()["data"].as_str().unwrap())).unwrap();
        path
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let said = fs::read_to_string(self.place.path().join("err")).unwrap_or_default();
            let last: Vec<&str> = said.lines().rev().take(5).collect();
            println!("the browser's last words: {last:#?}");
        }
    }
}

/// Whether the window is this wide, and the page no wider than it.
pub(crate) fn fits(width: u32) -> String {
    format!(
        "innerWidth === {width} && document.documentElement.scrollWidth === document.documentElement.clientWidth"
    )
}

/// Waits until the browser has written where it listens.
fn address(file: &Path) -> (u16, String) {
    let begun = Instant::now();
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        if let Some((port, path)) = text.split_once('\n')
            && let Ok(port) = port.trim().parse()
        {
            return (port, path.trim().to_owned());
        }
        assert!(begun.elapsed() < LONG, "the browser does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
}
