//! Checks of the files in `web/`, which no compiler sees: everything that one names exists, nothing is loaded
//! from elsewhere, what others wrote is unchanged, and a page uses only endpoints that are described.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;
use sha2::{Digest, Sha256};

/// The largest first load before it is compressed: the frame, the list of runs, and a run with its charts.
const FIRST_LOAD: u64 = 300_000;
/// The largest page of the API.
const DOCS: u64 = 1_000_000;
const LONGEST: usize = 400;

fn web() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("web")
}

/// Returns the files below `web/` by their names, which are those of their addresses.
fn files() -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let mut folders = vec![web()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(web()).unwrap().to_str().unwrap().to_owned();
                found.insert(name, path);
            }
        }
    }
    found
}

/// Returns the texts of our own files with one of these endings.
fn ours(endings: &[&str]) -> BTreeMap<String, String> {
    let own = files().into_iter().filter(|(name, _)| {
        !name.starts_with("vendor/") && endings.iter().any(|end| name.ends_with(&format!(".{end}")))
    });
    own.map(|(name, path)| (name, std::fs::read_to_string(path).unwrap())).collect()
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap()
}

/// Returns the name of what `named` leads to from the file `from`.
fn target(from: &str, named: &str) -> String {
    if let Some(docs) = named.strip_prefix("/api/docs/") {
        return format!("docs/{docs}");
    }
    if let Some(absolute) = named.strip_prefix('/') {
        return absolute.to_owned();
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in named.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns what a script or a page loads: at once, and when it is needed.
fn loads(name: &str, text: &str) -> (Vec<String>, Vec<String>) {
    let at_once =
        if name.ends_with(".html") { r#"(?:src|href)="(/[^"]*)""# } else { r#"(?:from|^import) "([^"]+)";"# };
    let later = r#"(?:import\(|src = |module: )"([^"]+)""#;
    let all = |text_of_pattern: &str| -> Vec<String> {
        let found = Regex::new(&format!("(?m){text_of_pattern}")).unwrap();
        found.captures_iter(text).map(|found| target(name, &found[1])).collect()
    };
    (all(at_once), if name.ends_with(".html") { Vec::new() } else { all(later) })
}

#[test]
fn everything_that_a_file_names_exists_and_every_file_is_named() {
    let known = files();
    let mut named: BTreeSet<String> = ["index.html", "docs/index.html"].map(String::from).into();
    for (name, text) in ours(&["html", "js"]) {
        let (at_once, later) = loads(&name, &text);
        for other in at_once.into_iter().chain(later) {
            assert!(known.contains_key(&other), "{name} names {other}, which does not exist");
            named.insert(other);
        }
    }
    // A script of others names one more.
    named.insert("vendor/preact.mjs".into());
    let unused: Vec<&String> =
        known.keys().filter(|name| !name.ends_with(".md") && !named.contains(*name)).collect();
    assert!(unused.is_empty(), "no page uses {unused:?}");
}

#[test]
fn pages_have_no_scripts_or_styles_of_their_own() {
    let inline = pattern(r#"(?i)<style|\sstyle=|\son[a-z]+=|<script(?:\s+type="module")?>|javascript:"#);
    for (name, text) in ours(&["html"]) {
        assert!(!inline.is_match(&text), "{name}: {:?}", inline.find(&text));
    }
}

#[test]
fn nothing_is_loaded_from_elsewhere() {
    // The name of a language of drawings is no address, and a link in an answer may lead anywhere.
    let elsewhere = pattern(r#"(?i)https?:|["'(]//|@import|\bwss?://"#);
    let allowed = ["http://www.w3.org/2000/svg", "/^(https?:|mailto:)/i"];
    for (name, mut text) in ours(&["html", "js", "css", "svg"]) {
        for one in allowed {
            text = text.replace(one, "");
        }
        assert!(!elsewhere.is_match(&text), "{name}: {:?}", elsewhere.find(&text));
    }
}

#[test]
fn text_never_becomes_markup_except_through_the_cleaner() {
    let markup = pattern(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|ContextualFragment",
    );
    for (name, text) in ours(&["html", "js"]) {
        assert!(!markup.is_match(&text), "{name}: {:?}", markup.find(&text));
    }
    let users: Vec<String> = ours(&["js"])
        .into_iter()
        .filter(|(_, text)| text.contains("marked.esm"))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(users, ["parts/markdown.js"]);
    assert!(ours(&["js"])["parts/markdown.js"].contains("purify.sanitize(marked.parse("));
}

/// Returns the bytes of files and of what they load at once.
fn weight(first: &[&str]) -> u64 {
    let known = files();
    let mut open: Vec<String> = first.iter().map(|name| (*name).to_owned()).collect();
    let mut seen = BTreeSet::new();
    let mut bytes = 0;
    while let Some(name) = open.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        let data = std::fs::read(&known[&name]).unwrap();
        bytes += data.len() as u64;
        if name.ends_with(".html") || name.ends_with("js") {
            open.extend(loads(&name, &String::from_utf8(data).unwrap()).0);
        }
    }
    bytes
}

#[test]
fn the_first_load_and_the_page_of_the_api_are_small() {
    let first =
        ["index.html", "pages/runs.js", "pages/run.js", "vendor/uPlot.iife.min.js", "vendor/preact.mjs"];
    let bytes = weight(&first);
    assert!(bytes <= FIRST_LOAD, "{bytes} bytes");
    let bytes = weight(&["docs/index.html", "vendor/preact.mjs"]);
    assert!(bytes <= DOCS, "{bytes} bytes");
}

#[test]
fn scripts_of_others_are_as_published_and_have_a_licence_that_is_allowed() {
    let readme = std::fs::read_to_string(web().join("vendor/README.md")).unwrap();
    let licences = std::fs::read_to_string(web().join("vendor/licences.md")).unwrap();
    let row = pattern(r"(?m)^\| `([^`]+)` \| ([^|]+) \| [^|]+ \| ([^|]+) \| `([0-9a-f]{64})` \|$");
    let rows: BTreeMap<String, [String; 3]> = row
        .captures_iter(&readme)
        .map(|found| (found[1].to_owned(), [2, 3, 4].map(|at| found[at].trim().to_owned())))
        .collect();
    let theirs =
        files().into_iter().filter(|(name, _)| name.starts_with("vendor/") && !name.ends_with(".md"));
    let mut count = 0;
    for (name, path) in theirs {
        let [package, licence, hash] = &rows[name.strip_prefix("vendor/").unwrap()];
        let mut text = std::fs::read_to_string(path).unwrap();
        if name == "vendor/hooks.mjs" {
            text = text.replacen("from\"./preact.mjs\"", "from\"preact\"", 1);
        }
        let found: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(&found, hash, "{name}");
        assert!(
            ["MIT", "Apache-2.0", "Apache-2.0 or MPL-2.0"].contains(&licence.as_str()),
            "{name}: {licence}"
        );
        assert!(licences.lines().any(|line| line.starts_with("##") && line.contains(package)), "{package}");
        count += 1;
    }
    assert_eq!(count, rows.len(), "a row has no file");
}

#[test]
fn files_are_short_and_say_what_they_are() {
    for (name, text) in ours(&["js", "css"]) {
        assert!(text.lines().count() < LONGEST, "{name} is long");
        assert!(text.starts_with("// ") || text.starts_with("/* "), "{name} has no header");
    }
}

/// Reads the names of modules from its arguments and parses each.
const PARSE: &str = r"
const { SourceTextModule } = require('vm');
const { readFileSync } = require('fs');
for (const file of process.argv.slice(1)) {
  new SourceTextModule(readFileSync(file, 'utf8'), { identifier: file });
}
";

#[test]
fn scripts_are_correct_where_node_is_there_to_say_so() {
    if Command::new("node").arg("--version").output().is_err() {
        eprintln!("skipped: there is no node");
        return;
    }
    let scripts =
        files().into_iter().filter(|(name, _)| name.ends_with(".js") && !name.starts_with("vendor/"));
    let parsed = Command::new("node")
        .args(["--experimental-vm-modules", "--no-warnings", "-e", PARSE, "--"])
        .args(scripts.map(|(_, path)| path))
        .output()
        .unwrap();
    assert!(parsed.status.success(), "{}", String::from_utf8_lossy(&parsed.stderr));
}

/// Returns the endpoints that a text names, spelled as "GET /api/v1/runs/{id}".
fn endpoints(text: &str) -> BTreeSet<String> {
    let endpoint = pattern(r#""((?:GET|POST|PUT|PATCH|DELETE) /[^"]*)""#);
    endpoint.captures_iter(text).map(|found| found[1].to_owned()).collect()
}

/// Returns the rows of the table of pages: the file of each page, and its endpoints.
fn pages() -> BTreeMap<String, BTreeSet<String>> {
    let routes = &ours(&["js"])["routes.js"];
    let row = pattern(r#"(?s)module: "\./([^"]+)".*?endpoints: \[(.*?)\]"#);
    row.captures_iter(routes).map(|found| (found[1].to_owned(), endpoints(&found[2]))).collect()
}

#[test]
fn a_page_uses_exactly_the_endpoints_of_its_row() {
    let scripts = ours(&["js"]);
    let shared = pattern(r"(?s)SHARED = \[(.*?)\]");
    let shared = endpoints(&shared.captures(&scripts["routes.js"]).unwrap()[1]);
    let rows = pages();
    assert!(rows.len() >= 12, "{rows:?}");
    for (page, named) in rows {
        // What a page imports belongs to it; the frame has the shared ones.
        let mut open = vec![page.clone()];
        let mut seen = BTreeSet::new();
        let mut used = BTreeSet::new();
        while let Some(name) = open.pop() {
            if !seen.insert(name.clone()) || name.starts_with("vendor/") || name == "routes.js" {
                continue;
            }
            used.extend(endpoints(&scripts[&name]));
            open.extend(loads(&name, &scripts[&name]).0);
        }
        let unnamed: Vec<_> = used.difference(&named).filter(|one| !shared.contains(*one)).collect();
        assert!(unnamed.is_empty(), "{page} uses {unnamed:?}, which its row in routes.js does not name");
        let unused: Vec<_> = named.difference(&used).collect();
        assert!(unused.is_empty(), "the row of {page} names {unused:?}, which it does not use");
    }
}

#[test]
fn every_endpoint_of_a_page_is_described() {
    let (_, document) = crate::api::described();
    let document: serde_json::Value = serde_json::from_str(&document.to_json().unwrap()).unwrap();
    let routes = &ours(&["js"])["routes.js"];
    let missing: Vec<String> = endpoints(routes)
        .into_iter()
        .filter(|endpoint| {
            let (method, path) = endpoint.split_once(' ').unwrap();
            document["paths"][path][method.to_lowercase()].is_null()
        })
        .collect();
    assert!(missing.is_empty(), "the OpenAPI document lacks {missing:?}");
}
