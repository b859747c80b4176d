//! Tests the page in a real browser, if there is one: `CHROMIUM`, or Chromium or Chrome on the path.
//!
//! A second page with a script contains the report in a frame and measures its layout.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use sparktune_runlog::RunsRoot;
use sparktune_tui::report::{ReportInput, html};

use crate::runs;

struct Browser {
    program: PathBuf,
    place: tempfile::TempDir,
}

/// The output of a browser.
struct BrowserOutput {
    out: String,
    err: String,
}

impl Browser {
    /// Finds the browser, or prints that there is none.
    fn find() -> Option<Self> {
        let named = std::env::var_os("CHROMIUM").map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = ["chromium", "chromium-browser", "google-chrome"]
            .iter()
            .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)));
        let found = named.into_iter().chain(on_path).find(|program| program.is_file());
        if found.is_none() {
            println!("skipped: no browser here (Chromium or Chrome, or the program that CHROMIUM names)");
        }
        Some(Browser { program: found?, place: tempfile::tempdir().unwrap() })
    }

    /// Runs the browser to its end on a page of this text.
    fn open(&self, page: &str, flags: &[&str]) -> BrowserOutput {
        let file = self.place.path().join("page.html");
        std::fs::write(&file, page).unwrap();
        let output = |name: &str| std::fs::File::create(self.place.path().join(name)).unwrap();
        let mut child = Command::new(&self.program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"])
            .args(["--disable-dev-shm-usage", "--force-device-scale-factor=1", "--enable-logging=stderr"])
            .arg(format!("--user-data-dir={}", self.place.path().join("profile").display()))
            .args(flags)
            .arg(format!("file://{}", file.display()))
            .stdin(Stdio::null())
            .stdout(output("out"))
            .stderr(output("err"))
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if begun.elapsed() > Duration::from_secs(120) {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{} did not end:\n{}", self.program.display(), self.read("err"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        BrowserOutput { out: self.read("out"), err: self.read("err") }
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.place.path().join(name)).unwrap()).into_owned()
    }

    /// Lays the page out at a width and measures it.
    fn measure(&self, page: &str, width: u32) -> Value {
        let srcdoc = page.replace('&', "&amp;").replace('"', "&quot;");
        let holder =
            include_str!("holder.html").replace("WIDTH", &width.to_string()).replace("SRCDOC", &srcdoc);
        let result = self.open(&holder, &["--dump-dom"]);
        let found = result.out.split_once("<pre>").and_then(|(_, rest)| rest.split_once("</pre>"));
        let (json, _) =
            found.unwrap_or_else(|| panic!("nothing was measured:\n{}\n{}", result.out, result.err));
        let json = json.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        serde_json::from_str(&json).unwrap()
    }

    /// Returns the upper part of the page as pixels.
    fn picture(&self, page: &str, width: u32, height: u32, flags: &[&str]) -> Picture {
        let path = self.place.path().join("picture.png");
        let picture = format!("--screenshot={}", path.display());
        let size = format!("--window-size={width},{height}");
        self.open(page, &[&[picture.as_str(), &size], flags].concat());
        Picture::read(&path)
    }
}

struct Picture {
    /// RGB of each pixel.
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    fn read(path: &Path) -> Self {
        let file = std::io::BufReader::new(std::fs::File::open(path).unwrap());
        let mut reader = png::Decoder::new(file).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        let samples = info.color_type.samples();
        let pixels = bytes[..info.buffer_size()].chunks_exact(samples).map(|p| [p[0], p[1], p[2]]).collect();
        Picture { pixels }
    }

    fn of(&self, colour: [u8; 3]) -> usize {
        self.pixels.iter().filter(|pixel| **pixel == colour).count()
    }
}

fn realistic() -> String {
    let root = tempfile::tempdir().unwrap();
    html(&ReportInput::read(&runs::realistic(&RunsRoot::new(root.path()))))
}

#[test]
fn the_page_lies_well_on_a_desk_and_on_a_phone() {
    let Some(browser) = Browser::find() else { return };
    let page = realistic();
    for width in [1200, 400] {
        let found = browser.measure(&page, width);
        assert_eq!(found["overlaps"], serde_json::json!([]), "labels lie on each other at {width}");
        assert_eq!(found["hidden"], serde_json::json!([]), "something reaches over the edge at {width}");
        let height = found["height"].as_f64().unwrap();
        assert!((2500.0..20_000.0).contains(&height), "{height} high at {width}");
        assert!(found["sideways"].as_f64().unwrap() <= 0.0, "the page scrolls sideways at {width}: {found}");
        let charts = found["charts"].as_array().unwrap();
        assert_eq!(charts.len(), 13, "{found}");
        for chart in charts {
            let size = |name: &str| chart[name].as_f64().unwrap();
            assert!(size("width") > 0.7 * f64::from(width.min(430)) && size("height") > 100.0, "{chart}");
            // The drawing fills the chart: curves from side to side, and not on one line.
            assert!(size("drawn_width") > 0.7 * size("width") && size("drawn_height") > 8.0, "{chart}");
            assert!(
                size("drawn_width") < 1.1 * size("width") && size("drawn_height") < 1.1 * size("height"),
                "{chart}"
            );
        }
    }
}

#[test]
fn the_page_has_its_colours_by_day_and_by_night_and_no_complaint_from_the_browser() {
    let Some(browser) = Browser::find() else { return };
    let page = realistic();
    let (paper, ink, accent) = ([255, 255, 255], [0x1b, 0x22, 0x30], [0x2f, 0x57, 0xd0]);
    let (dark_paper, dark_accent) = ([0x12, 0x15, 0x1a], [0x8b, 0xa7, 0xff]);
    for (width, height) in [(1200, 1600), (400, 3200)] {
        let day = browser.picture(&page, width, height, &[]);
        let (all, white) = (day.pixels.len(), day.of(paper));
        assert!(white > all / 2 && white < all, "{white} of {all} pixels are blank at {width}");
        assert!(day.of(ink) > 500 && day.of(accent) > 1000, "{} {}", day.of(ink), day.of(accent));
        assert_eq!(day.of(dark_paper), 0);
        let night = browser.picture(&page, width, height, &["--blink-settings=preferredColorScheme=0"]);
        assert!(night.of(dark_paper) > all / 2 && night.of(dark_accent) > 1000 && night.of(accent) == 0);
    }
    let result = browser.open(&page, &["--dump-dom"]);
    assert!(result.out.contains("</html>"), "{}", result.err);
    assert!(!result.err.contains(":CONSOLE"), "{}", result.err);
}

/// Text that tries every way of escaping from text in a page.
const HOSTILE: &str = "</title></style></pre></svg><script>parent.hit = 1; document.title = 'hit'</script>\
    \"><img src=x onerror='parent.hit = 1'>'><svg onload=parent.hit=1><iframe srcdoc='<script>top.hit=1</script>'>\
    <a href='javascript:parent.hit=1'>x</a><style>body { display: none }</style><base href='//evil'>&#60;script>\
    <meta http-equiv=refresh content='0;url=about:blank'>\u{202e}gnp.exe\u{2066}\u{1b}]0;hit\u{7}\u{9b}31m<!--";

#[test]
fn hostile_text_is_shown_and_does_nothing() {
    let Some(browser) = Browser::find() else { return };
    let root = tempfile::tempdir().unwrap();
    let mut input = ReportInput::read(&runs::hostile(&RunsRoot::new(root.path()), HOSTILE));
    input.name = HOSTILE.into();
    let page = html(&input);
    let result = browser.open(&page, &["--dump-dom"]);
    assert!(!result.err.contains(":CONSOLE"), "the policy had something to forbid:\n{}", result.err);

    // Without the policy, nothing would prevent such a hole from having an effect.
    let open = page.replacen("Content-Security-Policy", "X-Nothing", 1);
    let found = browser.measure(&open, 1200);
    assert!(found["hit"].is_null(), "a script of the data ran");
    assert_eq!(found["strange"], serde_json::json!([]), "the data brought elements of its own");
    let title = found["title"].as_str().unwrap();
    assert!(title.starts_with("</title></style>") && title.contains("\\u{202e}gnp.exe"), "{title}");
    assert!(found["text"].as_str().unwrap().matches("<script>parent.hit = 1;").count() > 20);
    let height = found["height"].as_f64().unwrap();
    assert!(height < 60_000.0, "{height}");

    // This checks that the test can detect a leak.
    let leak = "<html><body><svg class=\"plot\"></svg><script>parent.hit = 1</script></body></html>";
    let found = browser.measure(leak, 1200);
    assert_eq!((found["hit"].as_i64(), found["strange"].to_string()), (Some(1), "[\"script\"]".to_owned()));
    let forbidden = page.replacen("</main>", "<script>1</script></main>", 1);
    assert!(browser.open(&forbidden, &["--dump-dom"]).err.contains(":CONSOLE"));
}
