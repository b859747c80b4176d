//! Makes one token file of text, to be kept and given as data later.
//!
//! Enters: the files and settings that `check` takes. Leaves: a token file with every example in the order of
//! the text, from which a run trains and evaluates the same examples as from the text.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::chat_tokenizer::ChatTokenizer;
use crate::check::examine_all;
use crate::error::DataError;
use crate::examine::Examiner;
use crate::input::Input;
use crate::mapped::Columns;
use crate::policy::Policy;
use crate::prepare::{header_of_text, sources_of};
use crate::progress::Progress;
use crate::rejected_file::RejectedFile;
use crate::report::Report;
use crate::served::Prompts;
use crate::source::Source;
use crate::tally::{Side, Tally};
use crate::token_file::{Header, Origin, TokenFileWriter, Written};
use crate::token_room::TokenRoom;

/// The options of packing.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PackOptions {
    /// The settings that determine tokens, masks and examples. The variables of the chat template are those
    /// of the tokenizer.
    pub policy: Policy,
    /// The share of rejected lines above which no file is written.
    pub max_rejected: f64,
    /// The file for rejected lines and for lines that are too long.
    #[serde(with = "crate::path_text::optional")]
    pub rejected_path: Option<PathBuf>,
}

/// The result of packing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Packed {
    /// The findings about the text.
    pub report: Report,
    /// The figures of the token file. `None` if it was not written, because too many lines were rejected or
    /// no example is left.
    pub written: Option<Written>,
}

/// Tokenises files and folders into the token file `output`, which appears only when it is complete.
///
/// # Errors
/// The inputs cannot be read, a file cannot be written or is one of the inputs, or the caller cancelled. Bad
/// lines are in the report.
pub fn pack_text<I: Clone + Into<Input>>(
    inputs: &[I],
    tokenizer: &ChatTokenizer,
    options: &PackOptions,
    output: &Path,
    progress: &dyn Progress,
) -> Result<Packed, DataError> {
    let source = Source::open(inputs)?;
    let files = source.files().iter().map(|file| file.path.as_path());
    RejectedFile::refuse_input(options.rejected_path.as_deref(), files)?;
    let policy = Policy { template_kwargs: tokenizer.kwargs().clone(), ..options.policy.clone() };
    // Whoever names the file names one set, so its sources have no numbers of sets.
    let sources = sources_of(&source, false, progress)?;
    let header = Header { sources, ..header_of_text(tokenizer, &policy, "none") };
    let examiner = Examiner {
        tokenizer: Some(tokenizer),
        policy: policy.mask,
        examples: policy.examples,
        max_example_tokens: policy.max_example_tokens,
        vocabulary: None,
        map: &policy.map,
        columns: Columns::default(),
        prompts: Prompts::default(),
        room: TokenRoom::new(),
        progress,
    };
    let mut tally = Tally::new(Some(tokenizer), options.rejected_path.as_deref(), source.sets())?;
    let mut writer = TokenFileWriter::create(output, header)?;
    examine_all(
        &source,
        false,
        policy.format,
        &examiner,
        &mut tally,
        progress,
        |tally, file, line, accepted| {
            let parts = accepted.parts();
            tally.accept(file, line, &accepted, &vec![Side::Train; parts.len()])?;
            let hashes = parts.iter().flat_map(|(hash, examples)| (0..*examples).map(|_| *hash));
            for (tokens, hash) in accepted.tokens.iter().flatten().zip(hashes) {
                let (ids, mask) = (&tokens.input_ids, &tokens.loss_mask);
                writer.push_hashed(ids, mask, Origin { file, line }, hash)?;
            }
            Ok(())
        },
    )?;
    if let Some(first) = source.files().first() {
        examiner.columns.refuse_unknown(&policy.map, &first.path)?;
    }
    let mut report = tally.finish(false)?;
    report.sets.clear();
    // If the data is refused, the writer is dropped, and with it what was written.
    let is_refused = report.exceeds(options.max_rejected);
    let written = (!is_refused).then(|| writer.finish()).transpose()?;
    Ok(Packed { report, written })
}
