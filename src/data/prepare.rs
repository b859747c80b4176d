//! `prepare`: tokenises the data once and writes token files and a report.
//!
//! A folder is current exactly when its token files would get the same header again: the same tokenizer,
//! template, policy and source bytes. Then nothing is tokenised again.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sparktune_base::field_map::FieldMap;
use sparktune_base::files::create_private_folder;

use crate::chat_tokenizer::ChatTokenizer;
use crate::check::examine_inputs;
use crate::error::DataError;
use crate::examine::{Accepted, Examiner};
use crate::examples::ExampleOptions;
use crate::file_kind::REJECTED;
use crate::format::Format;
use crate::input::Input;
use crate::inputs::Inputs;
use crate::mapped::Columns;
use crate::policy::Policy;
use crate::progress::Progress;
use crate::rejection::Kind;
use crate::report::Report;
use crate::served::Prompts;
use crate::source::{Source, SourceFile};
use crate::split::{EvalSplit, Splitter};
use crate::tally::{Side, Tally};
use crate::token_file::{self, Header, OnDamage, Origin, TokenFile, TokenFileError, TokenFileWriter};
use crate::token_room::TokenRoom;
use crate::tokens::Tokens;
use crate::turns::MaskPolicy;

const TRAIN: &str = "train.qubgpu";
const EVAL: &str = "eval.qubgpu";
const REPORT: &str = "report.json";

/// The largest number of bytes of examples that wait until the eval set has its minimum. A few hundred
/// examples are enough, unless they are very long or copies of each other.
const MOST_WAITING: usize = 256 << 20;

/// The source of the eval set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvalData {
    /// A share of the training data.
    Split(EvalSplit),
    /// Separate files and folders.
    Files(Vec<Input>),
}

impl Default for EvalData {
    fn default() -> Self {
        Self::Split(EvalSplit::default())
    }
}

/// The options of preparation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PrepareOptions {
    /// Read every file as this format rather than detecting it per file.
    pub format: Option<Format>,
    /// What the columns of foreign data stand for.
    pub map: FieldMap,
    /// Which tokens are trained.
    pub policy: MaskPolicy,
    /// How a conversation becomes examples.
    pub examples: ExampleOptions,
    /// The number of tokens above which an example is too long.
    pub max_example_tokens: Option<u32>,
    /// The number of ids that the model knows. A token file with another one is refused, and a line with
    /// another one is rejected.
    pub vocabulary: Option<u32>,
    /// What becomes of damaged examples in token files.
    #[serde(default)]
    pub on_damage: OnDamage,
    /// The source of the eval set.
    pub eval: EvalData,
}

/// A folder with prepared data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prepared {
    /// The token file of the training examples.
    #[serde(with = "crate::path_text")]
    pub train: PathBuf,
    /// The token file of the eval set. It is valid even when the set is empty.
    #[serde(with = "crate::path_text")]
    pub eval: PathBuf,
    /// The findings.
    pub report: Report,
    /// The list of rejected lines and of lines that are too long, if there are any.
    #[serde(with = "crate::path_text::optional")]
    pub rejected: Option<PathBuf>,
    /// Whether the folder was current, so that nothing was tokenised.
    pub reused: bool,
    /// The sets of training data, and then those of eval data.
    pub inputs: Vec<Input>,
}

/// Tokenises `inputs`, or copies the examples of token files, into `out_dir` (created if necessary):
/// `train.qubgpu`, `eval.qubgpu`, `report.json`, and `rejected.jsonl` if a line was rejected or too long.
/// Apart from 20 bytes per example, memory is bounded for inputs of any size.
///
/// # Errors
/// The inputs cannot be read, the folder cannot be written, or the caller cancelled. Bad lines are in the
/// report; check [`Report::exceeds`].
pub fn prepare<I: Clone + Into<Input>>(
    inputs: &[I],
    tokenizer: &ChatTokenizer,
    options: &PrepareOptions,
    out_dir: &Path,
    progress: &dyn Progress,
) -> Result<Prepared, DataError> {
    let eval_files = match &options.eval {
        EvalData::Split(_) => None,
        EvalData::Files(files) => Some(files.as_slice()),
    };
    let (train_data, eval_data) = Inputs::open(inputs, eval_files, Some(tokenizer))?;
    let header = header(&train_data, eval_data.as_ref(), tokenizer, options, progress)?;
    let inputs = [train_data.sets(), eval_data.as_ref().map_or(&[], Inputs::sets)].concat();
    if let Some(report) = current(out_dir, &header, train_data.sets(), options.vocabulary)? {
        return Ok(prepared(out_dir, report, inputs, true));
    }
    // Tokens and rejected lines are the user's data, so only the user may read the folder.
    create_private_folder(out_dir).map_err(DataError::io("create", out_dir))?;
    // The report is written last, so a folder without one is incomplete.
    remove_if_there(&out_dir.join(REPORT))?;

    let examiner = Examiner {
        tokenizer: Some(tokenizer),
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
    let mut tally = train_data.tally(Some(tokenizer), Some(&out_dir.join(REJECTED)))?;
    let mut train = TokenFileWriter::create(&out_dir.join(TRAIN), header.clone())?;
    let mut eval = TokenFileWriter::create(&out_dir.join(EVAL), header)?;
    let mut splitter = match &options.eval {
        EvalData::Split(split) => Splitter::new(*split),
        EvalData::Files(_) => Splitter::new(EvalSplit { fraction: 0.0, ..EvalSplit::default() }),
    };
    let mut write = |tally: &mut Tally, splitter: Option<&Splitter>, examples: Vec<Waiting>| {
        for Waiting { file, line, accepted } in examples {
            let parts = accepted.parts();
            let is_eval = |hash| splitter.is_none_or(|splitter| splitter.is_eval(hash));
            let side = |(hash, _): &(u64, u64)| if is_eval(*hash) { Side::Eval } else { Side::Train };
            let sides: Vec<Side> = parts.iter().map(side).collect();
            tally.accept(file, line, &accepted, &sides)?;
            let of_each = parts
                .iter()
                .zip(&sides)
                .flat_map(|((hash, examples), side)| (0..*examples).map(move |_| (*hash, *side)));
            for (tokens, (hash, side)) in accepted.tokens.iter().flatten().zip(of_each) {
                let writer = if side == Side::Eval { &mut eval } else { &mut train };
                let (ids, mask) = (&tokens.input_ids, &tokens.loss_mask);
                writer.push_hashed(ids, mask, Origin { file, line }, hash)?;
            }
        }
        Ok::<(), DataError>(())
    };
    let mut waiting: Vec<Waiting> = Vec::new();
    let mut bytes = 0;
    let sides = [(Some(&train_data), false), (eval_data.as_ref(), true)];
    for (data, is_eval) in sides.into_iter().filter_map(|(data, is_eval)| Some((data?, is_eval))) {
        examine_inputs(
            data,
            is_eval,
            options.format,
            options.on_damage,
            &examiner,
            &mut tally,
            progress,
            |tally, file, line, accepted| {
                let parts = accepted.parts();
                let example = Waiting { file, line, accepted };
                bytes += example.bytes();
                waiting.push(example);
                if is_eval {
                    return write(tally, None, std::mem::take(&mut waiting));
                }
                let is_settled = parts.iter().fold(false, |_, (hash, _)| splitter.see(*hash));
                if bytes > MOST_WAITING {
                    splitter.settle();
                } else if !is_settled {
                    return Ok(());
                }
                bytes = 0;
                write(tally, Some(&splitter), std::mem::take(&mut waiting))
            },
        )?;
        splitter.settle();
        write(&mut tally, Some(&splitter), std::mem::take(&mut waiting))?;
    }
    train_data.refuse_unknown_columns(&examiner)?;
    let mut report = tally.finish(true)?;
    report.set_on_damage(options.on_damage);
    train.finish()?;
    eval.finish()?;
    write_report(out_dir, &report)?;
    Ok(prepared(out_dir, report, inputs, false))
}

/// The examples of a line whose sets are not known yet.
struct Waiting {
    file: u32,
    line: u64,
    accepted: Accepted,
}

impl Waiting {
    /// Returns about how much memory it takes.
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.accepted.tokens.iter().flatten().map(Tokens::bytes).sum::<usize>()
    }
}

/// Returns the header for token files made from these inputs now.
fn header(
    train: &Inputs,
    eval: Option<&Inputs>,
    tokenizer: &ChatTokenizer,
    options: &PrepareOptions,
    progress: &dyn Progress,
) -> Result<Header, DataError> {
    // A single set needs no number, and its token files are those of the first version.
    let sides = [Some((train, train.sets().len() > 1)), eval.map(|eval| (eval, false))];
    let eval = match &options.eval {
        EvalData::Split(EvalSplit { fraction, min_examples, seed }) => {
            // Version 1 followed the order of the lines until there was the minimum.
            let version = if *min_examples > 0 && *fraction > 0.0 { "split 2" } else { "split" };
            format!("{version} fraction={fraction} min={min_examples} seed={seed}")
        }
        EvalData::Files(_) => format!("files from {}", train.files()),
    };
    // Without damage, the examples are the same in both ways; but only one of them may use the other's
    // folder.
    let eval = match (options.on_damage, train) {
        (OnDamage::Skip, Inputs::Tokens(_)) => format!("{eval} without damaged examples"),
        _ => eval,
    };
    let (mut origins, mut token_files) = (Vec::new(), Vec::new());
    let mut made_with = None;
    for (side, has_sets) in sides.into_iter().flatten() {
        match side {
            Inputs::Text(source) => origins.extend(sources_of(source, has_sets, progress)?),
            Inputs::Tokens(files) => {
                let (of_examples, own) = files.sources(has_sets, progress)?;
                origins.extend(of_examples);
                token_files.extend(own);
                made_with.get_or_insert_with(|| files.made_with(&eval));
            }
        }
    }
    let sources = origins.into_iter().chain(token_files).collect();
    Ok(match made_with {
        Some(header) => Header { sources, ..header },
        None => Header { sources, ..header_of_text(tokenizer, &options.policy(tokenizer), &eval) },
    })
}

/// Returns the header, without sources, of a token file that is made of text.
pub(crate) fn header_of_text(tokenizer: &ChatTokenizer, policy: &Policy, eval: &str) -> Header {
    Header {
        tokenizer: Some(tokenizer.tokenizer_hash().to_owned()),
        template: tokenizer.template_hash().map(str::to_owned),
        policy: policy.text(eval),
        sources: Vec::new(),
    }
}

/// Returns the files of a source with their hashes, and with the numbers of their sets if `has_sets`.
pub(crate) fn sources_of(
    source: &Source,
    has_sets: bool,
    progress: &dyn Progress,
) -> Result<Vec<token_file::Source>, DataError> {
    let named = |(file, hash): (&SourceFile, String)| token_file::Source {
        name: file.name.clone(),
        blake3: Some(hash),
        set: has_sets.then_some(file.set),
    };
    Ok(source.files().iter().zip(source.fingerprints(progress)?).map(named).collect())
}

impl PrepareOptions {
    /// Returns everything of the options that determines tokens and masks.
    fn policy(&self, tokenizer: &ChatTokenizer) -> Policy {
        Policy {
            mask: self.policy,
            examples: self.examples,
            template_kwargs: tokenizer.kwargs().clone(),
            max_example_tokens: self.max_example_tokens,
            format: self.format,
            map: self.map.clone(),
        }
    }
}

/// Returns the report of the folder if its contents are complete, have the same header, and are right for a
/// model with this vocabulary.
fn current(
    out_dir: &Path,
    header: &Header,
    sets: &[Input],
    vocabulary: Option<u32>,
) -> Result<Option<Report>, DataError> {
    let path = out_dir.join(REPORT);
    let report = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(DataError::io("read", path)(e)),
    };
    // A report of another version of this program counts as missing.
    let Ok(mut report) = serde_json::from_slice::<Report>(&report) else { return Ok(None) };
    // Another version may know a format that this one did not recognise, or a kind of file.
    if report.refused_files().next().is_some()
        || report.files.iter().any(|file| file.format.is_none() && file.rejected > 0)
        // A model with this tokenizer may have more tokens by now.
        || report.rejections.iter().any(|rejection| rejection.kind == Kind::UnknownToken)
    {
        return Ok(None);
    }
    if report.sets.len() != sets.len() {
        return Ok(None);
    }
    // The same folder may be called by another name now.
    report.sets.iter_mut().zip(sets).for_each(|(set, input)| set.name.clone_from(&input.name));
    for name in [TRAIN, EVAL] {
        match TokenFile::open(&out_dir.join(name)) {
            // Every checksum is checked here, so that damage is found before a training step reads it.
            Ok(file)
                if file.header() == header && vocabulary.is_none_or(|size| file.max_token_id() < size) =>
            {
                if !token_file::verify(file.path())?.is_sound() {
                    return Ok(None);
                }
            }
            Ok(_) => return Ok(None),
            // A file that is missing, truncated, damaged or of another version is written again.
            Err(TokenFileError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                return Err(DataError::io("read", out_dir.join(name))(source));
            }
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(report))
}

fn prepared(out_dir: &Path, report: Report, inputs: Vec<Input>, reused: bool) -> Prepared {
    let rejected = (report.listed_lines() > 0).then(|| out_dir.join(REJECTED));
    Prepared { train: out_dir.join(TRAIN), eval: out_dir.join(EVAL), report, rejected, reused, inputs }
}

fn write_report(out_dir: &Path, report: &Report) -> Result<(), DataError> {
    let path = out_dir.join(REPORT);
    let partial = out_dir.join(format!("{REPORT}.partial"));
    let text = serde_json::to_vec_pretty(report).expect("a report is JSON");
    fs::File::create(&partial)
        .and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&partial, &path))
        .map_err(DataError::io("write", &path))
}

fn remove_if_there(path: &Path) -> Result<(), DataError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(DataError::io("replace", path)(e)),
        _ => Ok(()),
    }
}
