//! Token files as data: the examples that somebody tokenised before.
//!
//! Enters: files of both `.qubgpu` formats. Leaves: their examples line by line, as the examination of text
//! gives them, and what the files say about themselves. An example is never changed here: it is read or, if
//! the file does not fit the model, refused.

use std::path::PathBuf;

use sparktune_base::escape::escape;
use sparktune_base::field_map::FieldMap;
use sparktune_base::program_name;
use sparktune_base::regular_file::open_regular;
use sparktune_base::units::{count, counted};

use crate::chat_tokenizer::ChatTokenizer;
use crate::error::DataError;
use crate::examine::Accepted;
use crate::input::{Input, InputFile};
use crate::policy::Policy;
use crate::progress::{Phase, Progress, Step};
use crate::report::TokenFileReport;
use crate::source::SourceFile;
use crate::tally::Tally;
use crate::token_file::{self, Contents, Header, OnDamage, TokenFile, TokenFileError, VerifyReport, verify};
use crate::token_lines::{Line, read_v1, read_v2};

/// The number of defects in a report; `verify` lists all.
const DEFECTS: usize = 10;
/// The number of examples between two reports of progress.
const PROGRESS_EVERY: u64 = 4096;

/// Token files that are given as data, and the policy that they were made with.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedData {
    /// The first of the files, for messages.
    pub path: PathBuf,
    /// The settings that made their tokens. `None` if the files do not say, as with v1.
    pub policy: Option<Policy>,
}

/// An ordered, non-empty list of token files.
pub(crate) struct TokenInputs {
    files: Vec<TokenInput>,
    inputs: Vec<Input>,
}

/// What a model can take of an example, as far as it is known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    /// The largest number of tokens.
    pub example_tokens: Option<u32>,
    /// The number of ids.
    pub vocabulary: Option<u32>,
}

/// One token file.
struct TokenInput {
    path: PathBuf,
    /// The name for reports.
    name: String,
    /// The set that it belongs to, by its position among the inputs. The sets of the run that made the file
    /// are of no interest.
    set: u32,
    bytes: u64,
    /// The header. That of a v1 file names the file itself as its source.
    header: Header,
    /// The open file, or `None` for v1 packets.
    v2: Option<TokenFile>,
}

impl TokenInputs {
    /// Opens the files without reading their examples.
    ///
    /// # Errors
    /// There is no file, or one cannot be read, is no token file, or its header, index or footer is damaged;
    /// files differ in the settings that made them.
    pub(crate) fn open(inputs: &[Input]) -> Result<Self, DataError> {
        let of_set = |(set, input): (usize, &Input)| -> Result<Vec<TokenInput>, DataError> {
            input.files.iter().map(|file| TokenInput::open(file, set as u32)).collect()
        };
        let sets = inputs.iter().enumerate().map(of_set).collect::<Result<Vec<_>, _>>()?;
        let files = Self { files: sets.into_iter().flatten().collect(), inputs: inputs.to_vec() };
        if files.files.is_empty() {
            return Err(DataError::no_data());
        }
        files.refuse_other_settings(&files)?;
        Ok(files)
    }

    /// Returns the sets that the files belong to.
    pub(crate) fn sets(&self) -> &[Input] {
        &self.inputs
    }

    /// Refuses files that were made with other settings than these.
    pub(crate) fn refuse_other_settings(&self, others: &Self) -> Result<(), DataError> {
        let first = &self.files[0];
        // What the columns were called changes no token once they are read.
        let settings =
            |file: &TokenInput| file.policy().map(|policy| Policy { map: FieldMap::default(), ..policy });
        let differs = |file: &&TokenInput| {
            (settings(file), file.v2.is_some(), &file.header.tokenizer, &file.header.template)
                != (settings(first), first.v2.is_some(), &first.header.tokenizer, &first.header.template)
        };
        let Some(other) = others.files.iter().find(differs) else { return Ok(()) };
        Err(DataError::input(
            &other.path,
            format!(
                "it was made in another way than {} (`{}` and `{}`, or another tokenizer or chat template)",
                first.path.display(),
                escape(&other.header.policy),
                escape(&first.header.policy)
            ),
            format!("Make both with the same settings: `{} pack` does", program_name()),
        ))
    }

    /// Returns how the files were made.
    pub(crate) fn packed(&self) -> PackedData {
        PackedData { path: self.files[0].path.clone(), policy: self.policy() }
    }

    /// Returns the policy of all files. It has no map if they were made with different ones.
    fn policy(&self) -> Option<Policy> {
        let policy = self.files[0].policy()?;
        let has_same = |file: &TokenInput| file.policy().is_some_and(|other| other.map == policy.map);
        let map = if self.files.iter().all(has_same) { policy.map.clone() } else { FieldMap::default() };
        Some(Policy { map, ..policy })
    }

    /// Refuses files whose tokens are those of another model.
    pub(crate) fn refuse_other_model(&self, tokenizer: &ChatTokenizer) -> Result<(), DataError> {
        self.files.iter().try_for_each(|file| file.refuse_other_model(tokenizer))
    }

    /// Returns the sources for the header of a token file made of these: the files that their examples come
    /// from, with the numbers of their sets if `has_sets`, and then the token files themselves with their
    /// hashes.
    pub(crate) fn sources(
        &self,
        has_sets: bool,
        progress: &dyn Progress,
    ) -> Result<(Vec<token_file::Source>, Vec<token_file::Source>), DataError> {
        let total = self.files.iter().map(|file| file.bytes).sum();
        let mut done = 0;
        let mut own = Vec::new();
        for file in &self.files {
            let mut hasher = blake3::Hasher::new();
            let bytes = open_regular(&file.path).map_err(DataError::io("read", &file.path))?;
            hasher.update_reader(bytes).map_err(DataError::io("read", &file.path))?;
            own.push(token_file::Source {
                name: file.name.clone(),
                blake3: Some(hasher.finalize().to_hex().to_string()),
                set: None,
            });
            done += file.bytes;
            let step = Step { phase: Phase::Fingerprint, bytes_done: done, bytes_total: total, examples: 0 };
            progress.step(step);
            if progress.cancelled() {
                return Err(DataError::Cancelled);
            }
        }
        let origins = |file: &TokenInput| {
            let set = has_sets.then_some(file.set);
            file.origins().into_iter().map(move |source| token_file::Source { set, ..source })
        };
        Ok((self.files.iter().flat_map(origins).collect(), own))
    }

    /// Returns the number of files that the examples come from.
    pub(crate) fn origins(&self) -> usize {
        self.files.iter().map(|file| file.origins().len()).sum()
    }

    /// Returns the header's fields about tokenizer, template and policy.
    pub(crate) fn made_with(&self, eval: &str) -> Header {
        let Header { tokenizer, template, policy, .. } = self.files[0].header.clone();
        let policy = match self.policy() {
            Some(policy) => policy.text(eval),
            None => format!("{policy}; eval={eval}"),
        };
        Header { tokenizer, template, policy, sources: Vec::new() }
    }

    /// Reads every example, grouped by the line that it comes from. With [`OnDamage::Skip`], damage is
    /// counted in the tally.
    pub(crate) fn read(
        &self,
        is_eval: bool,
        on_damage: OnDamage,
        limits: Limits,
        tally: &mut Tally,
        progress: &dyn Progress,
        mut accept: impl FnMut(&mut Tally, u32, u64, Accepted) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let total: u64 = self.files.iter().map(|file| file.bytes).sum();
        let mut bytes_before = 0;
        for file in &self.files {
            let damage = verify(&file.path)?;
            if on_damage == OnDamage::Stop && !damage.is_sound() {
                return Err(file.damaged(&damage, true));
            }
            let sources: Vec<SourceFile> = file
                .origins()
                .into_iter()
                .map(|source| SourceFile {
                    path: file.path.clone(),
                    name: source.name,
                    bytes: 0,
                    set: file.set,
                })
                .collect();
            let first = tally.begin(&sources, is_eval);
            let mut report = file.report(&damage, is_eval);
            let (mut lines, mut last) = (0u64, None);
            let mut fold = |line: Line| {
                lines += 1;
                if lines.is_multiple_of(PROGRESS_EVERY) {
                    let read = file.bytes.saturating_mul(report.examples) / damage.intact_examples.max(1);
                    progress.step(Step {
                        phase: Phase::Check,
                        bytes_done: bytes_before + read.min(file.bytes),
                        bytes_total: total,
                        examples: tally.examples(),
                    });
                    if progress.cancelled() {
                        return Err(DataError::Cancelled);
                    }
                }
                if let Some(limit) = limits.example_tokens.filter(|limit| line.longest() > *limit) {
                    return Err(file.too_long(line.longest(), limit));
                }
                if let Some(vocabulary) = limits.vocabulary.filter(|size| line.largest_id() >= *size) {
                    return Err(file.unknown_token(line.largest_id(), vocabulary));
                }
                let at = first + line.origin.file.min(sources.len() as u32 - 1);
                report.add(&line);
                let number = line.origin.line;
                // The pieces of a text come one by one, since they may be in different sets.
                if number == 0 || last.replace(line.origin) != Some(line.origin) {
                    tally.packed_line(at);
                }
                if let Some(accepted) = line.accepted() {
                    accept(tally, at, number, accepted)?;
                }
                Ok(true)
            };
            file.lines(&mut fold)?;
            bytes_before += file.bytes;
            tally.token_file(report);
        }
        Ok(())
    }

    /// Calls `each` with the name of the file and every line, until it returns false. Returns whether that
    /// was everything. Damaged examples are passed over.
    pub(crate) fn head(&self, each: &mut dyn FnMut(&str, Line) -> bool) -> Result<bool, DataError> {
        for file in &self.files {
            let origins = file.origins();
            let mut goes_on = true;
            let mut fold = |line: Line| {
                let at = (line.origin.file as usize).min(origins.len() - 1);
                goes_on = each(&origins[at].name, line);
                Ok(goes_on)
            };
            file.lines(&mut fold)?;
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl TokenInput {
    fn open(InputFile { name, path }: &InputFile, set: u32) -> Result<Self, DataError> {
        let bytes = std::fs::metadata(path).map_err(DataError::io("read", path))?.len();
        let file = |header, v2| Self { path: path.clone(), name: name.clone(), set, bytes, header, v2 };
        if token_file::contents(path)? == Contents::V1 {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let source = token_file::Source { name, ..token_file::Source::default() };
            let policy = "v1 packets: every token but the first is trained".to_owned();
            return Ok(file(Header { policy, sources: vec![source], ..Header::default() }, None));
        }
        match TokenFile::open(path) {
            Ok(v2) => Ok(file(v2.header().clone(), Some(v2))),
            Err(TokenFileError::Damaged { .. } | TokenFileError::Truncated { .. }) if bytes > 0 => {
                Err(file(Header::default(), None).damaged(&verify(path)?, false))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Calls `fold` with every intact line, until it returns false.
    fn lines(&self, fold: &mut dyn FnMut(Line) -> Result<bool, DataError>) -> Result<(), DataError> {
        match &self.v2 {
            Some(tokens) => read_v2(tokens, fold),
            None => read_v1(&self.path, fold),
        }
    }

    fn policy(&self) -> Option<Policy> {
        Policy::parse(&self.header.policy)
    }

    /// Returns the sources of the examples. The last one stands for those that the header does not name.
    fn origins(&self) -> Vec<token_file::Source> {
        let mut sources = self.header.sources.clone();
        let named = sources.len() as u32;
        let has_unnamed =
            |file: &TokenFile| (0..file.len()).any(|example| file.origin(example).file >= named);
        if sources.is_empty() || self.v2.as_ref().is_some_and(has_unnamed) {
            sources.push(token_file::Source { name: self.name.clone(), ..token_file::Source::default() });
        }
        sources
    }

    fn refuse_other_model(&self, tokenizer: &ChatTokenizer) -> Result<(), DataError> {
        let Header { tokenizer: made_with, template, .. } = &self.header;
        let Some(made_with) = made_with else { return Ok(()) };
        let short = |hash: &str| escape(hash.get(..12).unwrap_or(hash)).into_owned();
        let refuse = |what: &str, theirs: &str, ours: &str| {
            let problem = format!(
                "its tokens were made with another {what} than the model's (hash {}, and {})",
                short(theirs),
                short(ours)
            );
            let fix = format!(
                "Name the model that it was made for, or the text that it was made of; `{} pack` with --model makes a token file for this model",
                program_name()
            );
            Err(DataError::input(&self.path, problem, fix))
        };
        if made_with != tokenizer.tokenizer_hash() {
            return refuse("tokenizer", made_with, tokenizer.tokenizer_hash());
        }
        if template.as_deref() != tokenizer.template_hash() {
            let hash = |hash: Option<&str>| hash.unwrap_or("none").to_owned();
            let (theirs, ours) = (hash(template.as_deref()), hash(tokenizer.template_hash()));
            return refuse("chat template", &theirs, &ours);
        }
        Ok(())
    }

    fn too_long(&self, longest: u32, limit: u32) -> DataError {
        DataError::input(
            &self.path,
            format!(
                "an example has {}, and at most {} are allowed",
                counted(longest.into(), "token"),
                count(limit.into())
            ),
            format!("Make it again from its text with `{} pack --max-tokens {limit}`", program_name()),
        )
    }

    fn unknown_token(&self, token: u32, vocabulary: u32) -> DataError {
        let (token, vocabulary) = (count(token.into()), count(vocabulary.into()));
        let problem = format!("it has the token {token}, but the model's vocabulary ends at {vocabulary}");
        let fix = "Name the model that it was made for, or the text that it was made of";
        DataError::input(&self.path, problem, fix)
    }

    /// Describes the damage. What can be left out is one or more examples; without a readable index, no
    /// example can be found.
    fn damaged(&self, report: &VerifyReport, can_be_left_out: bool) -> DataError {
        let defects = report.defects.len() as u64 + report.defects_not_listed;
        let first = report.defects.first().map_or(String::new(), |defect| format!("; the first: {defect}"));
        let program = program_name();
        let fix = match report.format {
            1 => format!(
                "Make it again, or leave the damaged packets out with `{program} pack --on-damage drop`"
            ),
            _ => format!(
                "Make it again, or save the intact examples with `{program} verify FILE --rebuild OUT`"
            ),
        };
        DataError::input(
            &self.path,
            format!(
                "damaged: {}, {} intact{first}",
                counted(defects, "defect"),
                counted(report.intact_examples, "example")
            ),
            format!(
                "{fix}{}. `{program} verify FILE` lists every defect",
                if can_be_left_out { ", or train without them with --on-damage drop" } else { "" }
            ),
        )
    }

    fn report(&self, damage: &VerifyReport, is_eval: bool) -> TokenFileReport {
        let listed = damage.defects.iter().take(DEFECTS);
        TokenFileReport {
            name: self.name.clone(),
            eval: is_eval,
            version: damage.format,
            bytes: self.bytes,
            tokenizer: self.header.tokenizer.clone(),
            template: self.header.template.clone(),
            policy: self.header.policy.clone(),
            sources: self.header.sources.iter().take(DEFECTS).map(|source| source.name.clone()).collect(),
            defects: damage.defects.len() as u64 + damage.defects_not_listed,
            first_defects: listed.map(ToString::to_string).collect(),
            ..TokenFileReport::default()
        }
    }
}

impl TokenFileReport {
    fn add(&mut self, line: &Line) {
        self.examples += line.examples.len() as u64;
        self.unhashed_lines += u64::from(line.content_hash.is_none());
        self.untrained += line.examples.iter().filter(|tokens| tokens.target_count() == 0).count() as u64;
    }
}
