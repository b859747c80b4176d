//! Makes token files of text.
//!
//! Enters: the answers that `check` takes, and text, also of the hub. Leaves: a token file for the model of
//! the answers, in either version of the format.

use std::path::{Path, PathBuf};

use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_data::token_file::{self, Conversion, Exchange, OnDamage};
use sparktune_data::{PackOptions, Policy, Report, packed_data};
use sparktune_plan::Answers;

use crate::data::{example_options, format, map, max_example_tokens, max_rejected, think};
use crate::data_sets::DataSets;
use crate::data_worker::PackRequest;
use crate::failure::Failure;
use crate::listener::Listener;
use crate::model::find_base;
use crate::token_files::given_kwargs;

/// Text that was packed into a token file.
pub struct PackedText {
    /// The findings about the text.
    pub report: Report,
    /// The figures of the file. `None` if the text is refused, so that no file was written.
    pub done: Option<Conversion>,
}

/// Makes a token file of text for the model of the answers; `to_v1` makes v1 packets instead. Rejected lines
/// are written to the file `rejected`.
///
/// # Errors
/// Inputs or the model cannot be read, the output cannot be written, or an example does not fit into a v1
/// packet. The output appears only if all of it could be written.
pub fn pack(
    answers: &Answers,
    inputs: &[PathBuf],
    output: &Path,
    to_v1: bool,
    rejected: PathBuf,
    listener: &dyn Listener,
) -> Result<PackedText, Failure> {
    let without_eval = Answers { eval_data: None, ..answers.clone() };
    let inputs = DataSets::of(inputs, &without_eval, listener)?.train;
    if let Some(packed) = packed_data(&inputs)? {
        let (path, program) = (packed.path.display().to_string(), program_name());
        let text = format!("{} is a token file already, so there is nothing to pack", escape(&path));
        return Err(Failure::usage(text).hint(format!("`{program} unpack` converts it to other formats")));
    }
    let base = find_base(answers, listener)?;
    let read_as = (format(answers), &map(answers));
    base.tokenizer.choose_kwargs(given_kwargs(answers), &inputs, read_as, listener)?;
    let options = PackOptions {
        policy: Policy {
            mask: think(answers, base.tokenizer.thinking_now()).into(),
            examples: example_options(answers),
            max_example_tokens: Some(max_example_tokens(answers, &base.facts)?),
            format: format(answers),
            map: map(answers),
            ..Policy::default()
        },
        max_rejected: max_rejected(answers),
        rejected_path: Some(rejected),
    };
    let whole = |path: &Path| {
        let request =
            PackRequest { inputs: inputs.clone(), options: options.clone(), output: path.to_owned() };
        base.tokenizer.pack(request, listener)
    };
    if !to_v1 {
        let packed = whole(output)?;
        let done = packed.written.map(|written| Conversion {
            examples: written.examples,
            tokens: written.total_tokens,
            target_tokens: written.target_tokens,
            ..Conversion::default()
        });
        return Ok(PackedText { report: packed.report, done });
    }
    let folder = folder_beside(output)?;
    let between = folder.path().join("tokens.qubgpu");
    let packed = whole(&between)?;
    let done = match packed.written {
        Some(_) => Some(token_file::unpack(&between, output, Exchange::V1, OnDamage::Stop)?),
        None => None,
    };
    Ok(PackedText { report: packed.report, done })
}

/// Creates a temporary folder next to a file, on the disk that has to have room for it anyway.
///
/// # Errors
/// The folder cannot be created.
pub fn folder_beside(file: &Path) -> Result<tempfile::TempDir, Failure> {
    let parent = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = tempfile::Builder::new().prefix(".packing-").tempdir_in(parent);
    folder.map_err(|error| Failure::io("write to", parent, &error))
}
