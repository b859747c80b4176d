//! `pack`: token files made of text, of v1 packets and of JSON Lines of token ids.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sparktune_app::answers::gather;
use sparktune_app::data::{refusal, with_correction};
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::pack::{PackedText, folder_beside, pack as pack_text};
use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_data::Report;
use sparktune_data::token_file::{
    Contents, Conversion, Exchange, PackFileOptions, contents, is_token_file, pack_file, unpack,
};
use sparktune_plan::Answers;
use sparktune_tui::output::{print, print_json, print_lines, report as report_failure};
use sparktune_tui::progress::OnStderr;

use crate::interrupt::Interrupts;
use crate::outputs::{refuse_as_list_of_rejected, refuse_same_file, refuse_to_replace_another};
use crate::rejected::{Before, rejected_lines, without_list};
use crate::request::Style;
use crate::token_files::{on_damage, show};

/// The files of `pack`.
#[derive(Debug, Clone)]
pub struct PackRequest {
    /// Text, or one file of token ids.
    pub inputs: Vec<PathBuf>,
    /// The file to write.
    pub output: PathBuf,
    /// Whether to write v1 packets.
    pub to_v1: bool,
    /// Whether damaged v1 packets are left out and listed.
    pub drop_damaged: bool,
    /// The file for rejected lines.
    pub rejected: PathBuf,
}

/// The JSON of text that was packed.
#[derive(Serialize)]
struct PackReport<'a> {
    accepted: bool,
    rejected_path: Option<&'a Path>,
    report: &'a Report,
    output: Option<&'a Path>,
    #[serde(flatten)]
    done: Option<&'a Conversion>,
}

/// Runs `sparktune pack`.
///
/// # Errors
/// An input cannot be read or is damaged, text comes without a model, or the output cannot be written.
pub fn pack(flags: Answers, request: &PackRequest, style: Style) -> Result<Exit, Failure> {
    let PackRequest { inputs, output, .. } = request;
    inputs.iter().try_for_each(|input| refuse_same_file(input, output))?;
    // Also one whose beginning is damaged, which is made again.
    refuse_to_replace_another(output, |output| Ok(is_token_file(output)?))?;
    match inputs.as_slice() {
        [input] if holds_ids(input)? => pack_ids(&flags, input, request, style),
        _ => pack_of_text(flags, request, style),
    }
}

fn holds_ids(input: &Path) -> Result<bool, Failure> {
    Ok(input.is_file() && matches!(contents(input)?, Contents::V1 | Contents::IdLines | Contents::V2))
}

/// Converts a file of token ids.
fn pack_ids(flags: &Answers, input: &Path, request: &PackRequest, style: Style) -> Result<Exit, Failure> {
    if flags.model.is_some() {
        let text = format!("{} contains token ids already", escape(&input.display().to_string()));
        return Err(Failure::usage(text).hint("Omit --model, or name the text that they were made of"));
    }
    let options =
        PackFileOptions { on_damage: on_damage(request.drop_damaged), ..PackFileOptions::default() };
    if !request.to_v1 {
        return show(&pack_file(input, &request.output, &options)?, style.json);
    }
    let folder = folder_beside(&request.output)?;
    let between = folder.path().join("tokens.qubgpu");
    let packed = pack_file(input, &between, &options)?;
    let done = unpack(&between, &request.output, Exchange::V1, options.on_damage)?;
    let notes = packed.notes.into_iter().chain(done.notes).collect();
    let (left_out, left_out_count) = (packed.left_out, packed.left_out_count);
    show(&Conversion { notes, left_out, left_out_count, ..done }, style.json)
}

/// Tokenises text.
fn pack_of_text(flags: Answers, request: &PackRequest, style: Style) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let answers = gather(flags, false)?;
    if answers.model.is_none() {
        let text = "text needs a model, because its tokenizer and chat template make the tokens";
        return Err(Failure::usage(text)
            .hint("Name it with --model, a folder or a Hugging Face id; files of token ids need none"));
    }
    let PackRequest { inputs, output, to_v1, rejected, .. } = request;
    refuse_as_list_of_rejected(rejected, ("--output", output))?;
    let before = Before::at(rejected);
    let listener = OnStderr::new(interrupts.flag());
    let PackedText { report, done } =
        pack_text(&answers, &without_list(inputs, rejected), output, *to_v1, rejected.clone(), &listener)?;
    before.note_what_is_gone(&report);
    let rejected_path = (report.listed_lines() > 0).then_some(rejected.as_path());
    if style.json {
        print_json(&PackReport {
            accepted: done.is_some(),
            rejected_path,
            report: &report,
            output: done.is_some().then_some(output),
            done: done.as_ref(),
        })?;
    } else {
        if let Some(hint) = report.map_hint() {
            print_lines(&format!("{hint}\n"))?;
        }
        if let Some(path) = rejected_path {
            print_lines(&rejected_lines(path, report.listed_lines())?)?;
        }
        print_lines(&report.to_string())?;
        if let Some(path) = rejected_path {
            let path = escape(&path.display().to_string()).into_owned();
            print(&format!("lines that are not in the file, with reasons, are in {path}\n"))?;
        }
    }
    match done {
        Some(done) if !style.json => {
            show(&done, false)?;
            let (file, program) = (output.display().to_string(), program_name());
            print(&format!("written to {}; `{program} train --data` takes it like text\n", escape(&file)))?;
            Ok(Exit::Done)
        }
        Some(_) => Ok(Exit::Done),
        None => {
            let refusal = refusal(&answers, &report)
                .unwrap_or_else(|| Failure::new(Exit::Data, "no token file was written"));
            Ok(report_failure(&with_correction(refusal, &report)))
        }
    }
}
