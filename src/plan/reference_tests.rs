//! Compares the tables of presets/README.md with the table of settings.

use std::path::Path;

use crate::setting::{Heading, Setting};
use crate::settings::SETTINGS;

const BEGIN: &str =
    "<!-- Written by a test from src/plan/settings.rs; what stands here is overwritten. -->\n";
const END: &str = "<!-- End of what is written by a test. -->\n";

fn values(setting: &Setting) -> String {
    let limit = setting.number.and_then(|number| number.limit);
    let limit = limit.map_or(String::new(), |limit| format!(", at most {}", limit.about()));
    let words: Vec<String> = setting.choices().iter().map(|word| format!("`{word}`")).collect();
    if words.is_empty() { setting.expects() + &limit } else { words.join(", ") }
}

/// Returns one table for each heading, in the order of `--help-all`.
fn tables() -> String {
    let mut headings: Vec<Heading> = SETTINGS.iter().map(|setting| setting.heading).collect();
    headings.sort_unstable();
    headings.dedup();
    let mut text = String::new();
    for heading in headings {
        text.push_str(&format!("\n### {}\n\n", heading.title()));
        text.push_str(
            "| in a preset | flag | variable | values | what it decides |\n|---|---|---|---|---|\n",
        );
        for setting in SETTINGS.iter().filter(|setting| setting.heading == heading) {
            let Setting { key, name, about, .. } = setting;
            let about = about.replace('<', "&lt;").replace('|', "\\|");
            let (variable, values) = (setting.env(), values(setting));
            text.push_str(&format!("| `{key}` | `--{name}` | `{variable}` | {values} | {about} |\n"));
        }
    }
    text + "\n"
}

#[test]
fn presets_readme_has_every_setting_as_the_table_has_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../presets/README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let wanted = format!("{before}{BEGIN}{}{END}{after}", tables());
    // The same variable updates snapshots.
    if std::env::var_os("INSTA_UPDATE").is_some_and(|update| update == "always") {
        std::fs::write(&path, &wanted).unwrap();
        return;
    }
    let line = text.lines().zip(wanted.lines()).position(|(is, should_be)| is != should_be);
    assert!(
        text == wanted,
        "presets/README.md differs from the table from line {} on. Rewrite it with: INSTA_UPDATE=always cargo test --release \
         --workspace --lib presets_readme",
        line.unwrap_or(0) + 1
    );
}
