//! `check`: reads and examines all of the data. It writes nothing except the rejected lines.

use std::path::PathBuf;

use sparktune_base::field_map::FieldMap;

use crate::at_work;
use crate::chat_tokenizer::ChatTokenizer;
use crate::chunks::Reading;
use crate::error::DataError;
use crate::examine::{Accepted, Examined, Examiner};
use crate::examples::ExampleOptions;
use crate::format::Format;
use crate::input::Input;
use crate::inputs::Inputs;
use crate::mapped::Columns;
use crate::progress::{Phase, Progress};
use crate::rejected_file::RejectedFile;
use crate::report::Report;
use crate::served::Prompts;
use crate::source::Source;
use crate::tally::{Side, Tally};
use crate::token_file::OnDamage;
use crate::token_inputs::Limits;
use crate::token_room::TokenRoom;
use crate::turns::MaskPolicy;

/// The chunk sizes for validation, and for tokenisation, which takes a hundred times as long per byte.
pub(crate) const VALIDATE_CHUNK: usize = 1 << 20;
pub(crate) const TOKENISE_CHUNK: usize = 128 << 10;

/// The options of a check.
#[derive(Default)]
pub struct CheckOptions<'a> {
    /// Read every file as this format rather than detecting it per file.
    pub format: Option<Format>,
    /// What the columns of foreign data stand for.
    pub map: FieldMap,
    /// The tokenizer with which examples are also rendered and counted in tokens.
    pub tokenizer: Option<&'a ChatTokenizer>,
    /// Which tokens would be trained.
    pub policy: MaskPolicy,
    /// How a conversation becomes examples.
    pub examples: ExampleOptions,
    /// The number of tokens above which an example is too long.
    pub max_example_tokens: Option<u32>,
    /// The number of ids that the model knows. A token file with another one is refused, and a line with
    /// another one is rejected.
    pub vocabulary: Option<u32>,
    /// What becomes of damaged examples in token files. The report counts them in any case.
    pub on_damage: OnDamage,
    /// Separate eval data. It is checked too, and compared with the training data.
    pub eval_data: Vec<Input>,
    /// The file for rejected lines.
    pub rejected_path: Option<PathBuf>,
}

/// Checks files and folders, or token files.
///
/// # Errors
/// The only input cannot be read at all, `rejected_path` cannot be written, or the caller cancelled. Bad
/// lines are not an error, nor is a file among others that is no data: they are in the report, and
/// [`Report::exceeds`] says whether the data is refused.
pub fn check<I: Clone + Into<Input>>(
    inputs: &[I],
    options: &CheckOptions<'_>,
    progress: &dyn Progress,
) -> Result<Report, DataError> {
    let examiner = Examiner {
        tokenizer: options.tokenizer,
        policy: options.policy,
        examples: options.examples,
        max_example_tokens: options.max_example_tokens,
        vocabulary: options.vocabulary,
        map: &options.map,
        columns: Columns::default(),
        prompts: Prompts::default(),
        room: TokenRoom::new(),
        progress,
    };
    let has_eval = !options.eval_data.is_empty();
    let eval = has_eval.then_some(options.eval_data.as_slice());
    let (train, eval) = Inputs::open(inputs, eval, options.tokenizer)?;
    let files = train.text_files().chain(eval.iter().flat_map(Inputs::text_files));
    RejectedFile::refuse_input(options.rejected_path.as_deref(), files)?;
    let mut tally = train.tally(options.tokenizer, options.rejected_path.as_deref())?;
    let sides = [(Some(&train), Side::Train), (eval.as_ref(), Side::Eval)];
    for (source, side) in sides.into_iter().filter_map(|(source, side)| Some((source?, side))) {
        examine_inputs(
            source,
            side == Side::Eval,
            options.format,
            OnDamage::Skip,
            &examiner,
            &mut tally,
            progress,
            |tally, file, line, accepted| {
                let sides = vec![side; accepted.parts().len()];
                tally.accept(file, line, &accepted, &sides)
            },
        )?;
    }
    train.refuse_unknown_columns(&examiner)?;
    let mut report = tally.finish(has_eval)?;
    report.set_on_damage(options.on_damage);
    Ok(report)
}

/// Reads every example of text or token files in order. Those that are accepted go to `accept` with the file
/// and the line that they come from, the others to the tally. `on_damage` applies to token files.
#[expect(clippy::too_many_arguments, reason = "those of `examine_all`, and one for token files")]
pub(crate) fn examine_inputs(
    inputs: &Inputs,
    is_eval: bool,
    format: Option<Format>,
    on_damage: OnDamage,
    examiner: &Examiner<'_>,
    tally: &mut Tally,
    progress: &dyn Progress,
    accept: impl FnMut(&mut Tally, u32, u64, Accepted) -> Result<(), DataError>,
) -> Result<(), DataError> {
    match inputs {
        Inputs::Text(source) => examine_all(source, is_eval, format, examiner, tally, progress, accept),
        Inputs::Tokens(files) => {
            let limits =
                Limits { example_tokens: examiner.max_example_tokens, vocabulary: examiner.vocabulary };
            files.read(is_eval, on_damage, limits, tally, progress, accept)
        }
    }
}

/// Examines every line of a source in order, in this format. Lines with examples go to `accept`, rejected
/// ones to the tally.
pub(crate) fn examine_all(
    source: &Source,
    is_eval: bool,
    format: Option<Format>,
    examiner: &Examiner<'_>,
    tally: &mut Tally,
    progress: &dyn Progress,
    mut accept: impl FnMut(&mut Tally, u32, u64, Accepted) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let (phase, chunk_bytes) = match examiner.tokenizer {
        Some(_) => (Phase::Tokenise, TOKENISE_CHUNK),
        None => (Phase::Check, VALIDATE_CHUNK),
    };
    let first_file = tally.begin(source.files(), is_eval);
    let Examiner { map, columns, .. } = examiner;
    let reading = Reading { source, format, map, columns, phase, chunk_bytes, tells_refused_files: true };
    reading.run_in_parts(
        progress,
        |chunk, begin| {
            at_work::lines_of(&source.files()[chunk.file as usize].name);
            examiner.examine(chunk, begin)
        },
        |examined: Examined| {
            examiner.tokenizer.map_or(Ok(()), ChatTokenizer::template_holds)?;
            let file = first_file + examined.file;
            tally.chunk(file, &examined);
            for outcome in examined.outcomes {
                match outcome.result {
                    Ok(mut accepted) => {
                        let token_bytes = accepted.token_bytes();
                        tally.left_out(file, outcome.line, &mut accepted)?;
                        if accepted.examples() > 0 {
                            accept(tally, file, outcome.line, accepted)?;
                        }
                        examiner.room.change(token_bytes, 0);
                    }
                    Err(refused) => tally.refuse(file, outcome.line, *refused)?,
                }
            }
            Ok(tally.examples())
        },
    )
}
