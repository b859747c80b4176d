//! The data that a user names: text, or token files that were made of text before.
//!
//! Owns the decision which of the two it is. `check`, `prepare` and `preview` take both as [`Inputs`].

use std::path::Path;

use sparktune_base::escape::escape;

use crate::chat_tokenizer::ChatTokenizer;
use crate::error::DataError;
use crate::examine::Examiner;
use crate::input::{Input, InputFile};
use crate::rejected_file::RejectedFile;
use crate::source::Source;
use crate::tally::Tally;
use crate::token_file;
use crate::token_inputs::{PackedData, TokenInputs};

/// The inputs of one side, training or eval.
pub(crate) enum Inputs {
    Text(Source),
    Tokens(TokenInputs),
}

impl Inputs {
    /// Opens the inputs of the training data, and those of separate eval data if there is any.
    ///
    /// # Errors
    /// A file cannot be read, or text and token files are mixed, or token files differ in what made them or
    /// were made for another model.
    pub(crate) fn open<I: Clone + Into<Input>>(
        train: &[I],
        eval: Option<&[Input]>,
        tokenizer: Option<&ChatTokenizer>,
    ) -> Result<(Self, Option<Self>), DataError> {
        let train: Vec<Input> = train.iter().cloned().map(Into::into).collect();
        if !are_token_files(train.iter().chain(eval.into_iter().flatten()))? {
            let eval = eval.map(Source::open).transpose()?;
            return Ok((Self::Text(Source::open(&train)?), eval.map(Self::Text)));
        }
        let train = TokenInputs::open(&train)?;
        if let Some(tokenizer) = tokenizer {
            train.refuse_other_model(tokenizer)?;
        }
        let eval = eval.map(TokenInputs::open).transpose()?;
        if let Some(eval) = &eval {
            train.refuse_other_settings(eval)?;
        }
        Ok((Self::Tokens(train), eval.map(Self::Tokens)))
    }

    /// Returns the sets, in the order of [`SourceFile::set`](crate::source::SourceFile::set).
    pub(crate) fn sets(&self) -> &[Input] {
        match self {
            Self::Text(source) => source.sets(),
            Self::Tokens(files) => files.sets(),
        }
    }

    /// Returns the number of files that the examples come from.
    pub(crate) fn files(&self) -> usize {
        match self {
            Self::Text(source) => source.files().len(),
            Self::Tokens(files) => files.origins(),
        }
    }

    /// Returns the paths that are read as text.
    pub(crate) fn text_files(&self) -> impl Iterator<Item = &Path> {
        let files = match self {
            Self::Text(source) => source.files(),
            Self::Tokens(_) => &[],
        };
        files.iter().map(|file| file.path.as_path())
    }

    /// Refuses a map with a column that no line of text has, once all lines were examined.
    ///
    /// # Errors
    /// The message names the columns that there are.
    pub(crate) fn refuse_unknown_columns(&self, examiner: &Examiner<'_>) -> Result<(), DataError> {
        match self.text_files().next() {
            Some(first) => examiner.columns.refuse_unknown(examiner.map, first),
            None => Ok(()),
        }
    }

    /// Creates the tally for these inputs as training data.
    pub(crate) fn tally(
        &self,
        tokenizer: Option<&ChatTokenizer>,
        rejected: Option<&Path>,
    ) -> Result<Tally, DataError> {
        match self {
            Self::Text(source) => Tally::new(tokenizer, rejected, source.sets()),
            Self::Tokens(files) => {
                // They have no rejected lines, and an earlier list must not pass for theirs.
                if let Some(path) = rejected {
                    RejectedFile::create(path)?.finish()?;
                }
                Ok(Tally::of_tokens(tokenizer, files.sets()))
            }
        }
    }
}

/// Returns whether the data is token files.
///
/// # Errors
/// A file cannot be read, or only some of the files are token files.
fn are_token_files<'a>(inputs: impl Iterator<Item = &'a Input>) -> Result<bool, DataError> {
    let files: Vec<&InputFile> = inputs.flat_map(|input| &input.files).collect();
    let is_token_file = |file: &&InputFile| token_file::is_token_file(&file.path);
    let kinds = files.iter().map(is_token_file).collect::<Result<Vec<bool>, _>>()?;
    match (kinds.iter().position(|is| *is), kinds.iter().position(|is| !is)) {
        (Some(tokens), Some(text)) => Err(DataError::input(
            &files[tokens].path,
            format!(
                "this is a token file, but {} is not, and a run trains on only one of the two kinds",
                escape(&files[text].name)
            ),
            "Name token files alone, or the texts that they were made of",
        )),
        (tokens, _) => Ok(tokens.is_some()),
    }
}

/// Returns how the data was packed if it is token files, and `None` if it is text. `inputs` are all data,
/// training and eval. Only headers are read.
///
/// # Errors
/// A file cannot be read; text and token files are mixed; files differ in the settings that made them.
pub fn packed_data<I: Clone + Into<Input>>(inputs: &[I]) -> Result<Option<PackedData>, DataError> {
    let inputs: Vec<Input> = inputs.iter().cloned().map(Into::into).collect();
    if !are_token_files(inputs.iter())? {
        return Ok(None);
    }
    Ok(Some(TokenInputs::open(&inputs)?.packed()))
}
