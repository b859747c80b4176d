//! What `packet` prints: checks, fields, flips, and what a file carries.

use std::path::Path;

use sparktune_base::escape::escape;
use sparktune_base::units::{bytes, count, counted};
use sparktune_data::packets::anatomy::Anatomy;
use sparktune_data::packets::checks::Check;
use sparktune_data::packets::contents::Contents;
use sparktune_data::packets::lab::EveryFlip;

/// The largest number of rows of a list on the screen; `--json` has all of them.
const LISTED: usize = 40;

pub(crate) fn checks_in_words(checks: &[Check]) -> String {
    let row = |check: &Check| {
        let verdict = if check.passes { "passes" } else { "FAILS" };
        format!("  {:<16} {verdict:<7} {}\n", check.name, check.says)
    };
    checks.iter().map(row).collect()
}

pub(crate) fn anatomy_in_words(anatomy: &Anatomy) -> String {
    let mut text = format!(
        "{}: {}, {} of them payload\n",
        anatomy.format_name,
        counted(anatomy.bytes as u64, "byte"),
        count(anatomy.payload_bytes as u64)
    );
    for field in &anatomy.fields {
        let value: String = field.value.chars().take(60).collect();
        text.push_str(&format!("  {:>6} {:>8}  {:<13} {value}\n", field.offset, field.len, field.name));
    }
    text.push_str("checks:\n");
    text.push_str(&checks_in_words(&anatomy.checks));
    text
}

pub(crate) fn flips_in_words(found: &EveryFlip) -> String {
    let mut text = format!(
        "{} flipped one at a time: {} noticed, {} not\n",
        counted(found.bits as u64, "bit"),
        count(found.noticed as u64),
        count((found.bits - found.noticed) as u64)
    );
    for (name, noticed) in &found.by_check {
        text.push_str(&format!("  {name:<16} notices {}\n", count(*noticed as u64)));
    }
    if !found.missed.is_empty() {
        let missed: Vec<String> = found.missed.iter().map(|bit| bit.to_string()).collect();
        text.push_str(&format!("  not noticed: {}\n", missed.join(", ")));
    }
    text
}

pub(crate) fn contents_in_words(file: &Path, contents: &Contents) -> String {
    let mut text = format!(
        "{}: {}, {}, {} with {} of payload\n",
        escape(&file.display().to_string()),
        contents.kind,
        bytes(contents.bytes),
        counted(contents.packets, "packet"),
        bytes(contents.payload_bytes)
    );
    if let Some(made_of) = &contents.made_of {
        text.push_str(&format!("made of {}\n", escape(made_of)));
    }
    for (key, value) in contents.metadata.iter().take(LISTED) {
        let value: String = value.chars().take(200).collect();
        text.push_str(&format!("{}: {}\n", escape(key), escape(&value)));
    }
    for row in contents.routes.iter().take(LISTED) {
        let way = match (row.src, row.dst) {
            (None, None) => "without SRC and DST".to_owned(),
            _ => format!("from {} to {}", row.from, row.to),
        };
        text.push_str(&format!(
            "  {way}: {} of {}, {}\n",
            counted(row.packets, "packet"),
            row.encoding,
            bytes(row.payload_bytes)
        ));
    }
    more(&mut text, contents.routes.len(), contents.packets_not_listed, "kinds of packets");
    for tensor in contents.tensors.iter().take(LISTED) {
        let layer = tensor.layer.map_or(String::new(), |layer| format!(" of layer {layer}"));
        let parts = match (tensor.parts, tensor.of) {
            (1, 1) => String::new(),
            (there, of) => format!(", {there} of {of} parts"),
        };
        text.push_str(&format!(
            "  {} → {}{layer}: {} {:?}{parts}\n",
            escape(&tensor.name),
            tensor.to,
            tensor.dtype,
            tensor.shape
        ));
    }
    more(&mut text, contents.tensors.len(), contents.tensors_not_listed, "tensors");
    if let Some(reason) = &contents.incomplete {
        text.push_str(&format!("the tensors are not whole: {reason}\n"));
    }
    for defect in contents.defects.iter().take(LISTED) {
        text.push_str(&format!("  damaged at byte {}: {}\n", defect.offset, escape(&defect.what)));
    }
    if contents.damaged > 0 {
        text.push_str(&format!("damaged in total: {}\n", counted(contents.damaged, "place")));
    }
    text
}

fn more(text: &mut String, listed: usize, not_listed: u64, what: &str) {
    let more = listed.saturating_sub(LISTED) as u64 + not_listed;
    if more > 0 {
        text.push_str(&format!("  and {} more {what}; --json lists them\n", count(more)));
    }
}
