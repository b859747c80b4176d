//! The sections about the outputs and how to serve them, and about the provenance of the run.

use serde_json::Value;
use sparktune_base::units;

use super::input::ReportInput;
use super::markup::{Markup, clip};
use super::{LINE_CHARS, MOST_ROWS, absent, left_out, section, table, untrusted};

/// The largest number of characters shown of SERVE.md.
const SERVE_CHARS: usize = 20_000;

pub(super) fn write(page: &mut Markup, run: &ReportInput) {
    section(page, "Outputs", |page| {
        let folders: Vec<_> = run.outputs.iter().filter(|output| output.name != "SERVE.md").collect();
        if folders.is_empty() {
            absent(page, "Nothing has been exported yet.");
        } else {
            table(
                page,
                "rows",
                &["In outputs/", "What it is", "Size"],
                folders.into_iter(),
                |page, output| {
                    page.element("tr", &[], |page| {
                        untrusted(page, "td", "key", &output.name);
                        page.leaf("td", &[], what_it_is(&output.name));
                        page.leaf("td", &[("class", "number")], &units::bytes(output.bytes));
                    });
                },
            );
        }
        match &run.serve {
            Ok(text) => page.element("details", &[("open", "open")], |page| {
                page.leaf("summary", &[], "How to serve it (outputs/SERVE.md)");
                page.element("pre", &[("dir", "auto")], |page| page.lines(&clip(text, SERVE_CHARS)));
            }),
            // Before the export, the missing file is not a problem.
            Err(problem) if !run.outputs.is_empty() => absent(page, problem),
            Err(_) => {}
        }
    });
}

fn what_it_is(name: &str) -> &'static str {
    match name {
        "adapter" => "the adapter, for PEFT",
        "adapter-causal-lm" => {
            "the same adapter for AutoModelForCausalLM, which gives the modules other names"
        }
        "merged" => "the complete model",
        "merged-mtp" => "the complete model with the trained MTP head",
        "draft-tokens.pt" => "the ids of the tokens to draft from, for SGLang",
        _ => "",
    }
}

/// Writes `provenance.json`, folded.
pub(super) fn provenance(page: &mut Markup, run: &ReportInput) {
    section(page, "Provenance", |page| match &run.provenance {
        Err(problem) => absent(page, problem),
        Ok(value) => page.element("details", &[], |page| {
            page.leaf("summary", &[], "Versions, hashes and machine (provenance.json)");
            let mut rows = Vec::new();
            flatten("", value, &mut rows);
            table(
                page,
                "rows explain",
                &["What", "Value"],
                rows.iter().take(MOST_ROWS),
                |page, (key, value)| {
                    page.element("tr", &[], |page| {
                        untrusted(page, "th", "key", key);
                        untrusted(page, "td", "said", &clip(value, LINE_CHARS));
                    });
                },
            );
            left_out(page, rows.len(), MOST_ROWS);
        }),
    });
}

/// Appends one row for each value, with its dotted path.
fn flatten(place: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    let inner = |key: &str| if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| flatten(&inner(key), value, rows)),
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            items.iter().enumerate().for_each(|(i, item)| flatten(&inner(&i.to_string()), item, rows));
        }
        Value::Array(items) => {
            rows.push((place.to_owned(), items.iter().map(plain).collect::<Vec<_>>().join(" ")));
        }
        value => rows.push((place.to_owned(), plain(value))),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => sparktune_base::units::UNKNOWN.to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
