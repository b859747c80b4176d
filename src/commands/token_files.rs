//! `unpack`, `verify`: conversion and verification of token files. `pack` makes them, in a file of its own.

use std::path::Path;

use serde::Serialize;
use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::units::{bytes, count, counted};
use sparktune_data::token_file::{
    self, Conversion, Exchange, OnDamage, Rebuilt, VerifyReport, is_token_file, rebuild,
};
use sparktune_tui::output::{print, print_json};

use crate::outputs::{refuse_same_file, refuse_to_replace_another};

/// The largest number of defects on the screen; `--json` has all of them.
const LISTED: usize = 20;

pub(crate) const fn on_damage(skip: bool) -> OnDamage {
    if skip { OnDamage::Skip } else { OnDamage::Stop }
}

/// Runs `sparktune unpack`. `to_v1` selects v1 packets instead of JSON Lines. With `drop_damaged`, damaged
/// examples are left out and listed.
///
/// # Errors
/// The token file is damaged, the format cannot represent an example, or the output cannot be written.
pub fn unpack(
    input: &Path,
    output: &Path,
    to_v1: bool,
    drop_damaged: bool,
    json: bool,
) -> Result<Exit, Failure> {
    refuse_same_file(input, output)?;
    // A list of token ids may be all that the user has of them.
    refuse_to_replace_another(output, |_| Ok(false))?;
    let format = if to_v1 { Exchange::V1 } else { Exchange::JsonLines };
    show(&token_file::unpack(input, output, format, on_damage(drop_damaged))?, json)
}

pub(crate) fn show(done: &Conversion, json: bool) -> Result<Exit, Failure> {
    if json {
        print_json(done)?;
        return Ok(Exit::Done);
    }
    let mut text = format!(
        "{}, {}, {} of them trained\n",
        counted(done.examples, "example"),
        counted(done.tokens, "token"),
        count(done.target_tokens)
    );
    for line in &done.notes {
        text.push_str(&format!("note: {}\n", escape(line)));
    }
    for defect in done.left_out.iter().take(LISTED) {
        text.push_str(&format!("skipped: {defect}\n"));
    }
    if done.left_out_count > LISTED as u64 {
        text.push_str(&format!("skipped in total: {}\n", count(done.left_out_count)));
    }
    print(&text)?;
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Verified {
    sound: bool,
    #[serde(flatten)]
    report: VerifyReport,
    rebuilt: Option<Rebuilt>,
}

/// Runs `sparktune verify`. The exit code is 3 if there is damage, even if the intact rest was saved.
/// `rebuild_into` is a token file for the intact examples.
///
/// # Errors
/// The file cannot be read, or is not a token file.
pub fn verify(file: &Path, rebuild_into: Option<&Path>, json: bool) -> Result<Exit, Failure> {
    if let Some(output) = rebuild_into {
        refuse_same_file(file, output)?;
        refuse_to_replace_another(output, |output| Ok(is_token_file(output)?))?;
    }
    let report = token_file::verify(file)?;
    let rebuilt = rebuild_into.map(|output| rebuild(file, output)).transpose()?;
    let sound = report.is_sound();
    if json {
        print_json(&Verified { sound, report, rebuilt })?;
    } else {
        print(&in_words(file, &report, rebuilt.as_ref().zip(rebuild_into)))?;
    }
    Ok(if sound { Exit::Done } else { Exit::Data })
}

fn in_words(file: &Path, report: &VerifyReport, rebuilt: Option<(&Rebuilt, &Path)>) -> String {
    let defects = report.defects.len() as u64 + report.defects_not_listed;
    let mut text = format!(
        "{}: format v{}, {}, {} and {} intact, {}\n",
        escape(&file.display().to_string()),
        report.format,
        bytes(report.bytes),
        counted(report.intact_examples, "example"),
        counted(report.intact_tokens, "token"),
        match defects {
            0 => "no defects".to_owned(),
            n => counted(n, "defect"),
        }
    );
    for defect in report.defects.iter().take(LISTED) {
        text.push_str(&format!("  {defect}\n"));
    }
    if defects > LISTED as u64 {
        text.push_str(&format!("  and {} more\n", count(defects - LISTED as u64)));
    }
    match rebuilt {
        Some((saved, output)) => text.push_str(&format!(
            "saved {}, {}, in {}\n",
            counted(saved.recovered_examples, "example"),
            counted(saved.recovered_tokens, "token"),
            escape(&output.display().to_string())
        )),
        _ if defects > 0 => text.push_str(&format!(
            "Create the file again from its source, or save the intact examples with `{} verify FILE --rebuild OUT`\n",
            program_name()
        )),
        _ => {}
    }
    text
}
