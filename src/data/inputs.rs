//! The data that a user names: text, or token files that were made of text before.
//!
//! Owns the decision which of the two it is. `check`, `prepare` and `preview` take both as [`Inputs`].

use std::path::{Path, PathBuf};

use crate::chat_tokenizer::ChatTokenizer;
use crate::error::DataError;
use crate::source::Source;
use crate::tally::Tally;
use crate::token_file;
use crate::token_inputs::{PackedData, TokenInputs};

/// The inputs of one side, training or evaluation.
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
    pub(crate) fn open(
        train: &[PathBuf],
        eval: Option<&[PathBuf]>,
        tokenizer: Option<&ChatTokenizer>,
    ) -> Result<(Self, Option<Self>), DataError> {
        let all: Vec<&Path> = train.iter().chain(eval.into_iter().flatten()).map(PathBuf::as_path).collect();
        if !are_token_files(&all)? {
            let eval = eval.map(Source::open).transpose()?;
            return Ok((Self::Text(Source::open(train)?), eval.map(Self::Text)));
        }
        let train = TokenInputs::open(train)?;
        if let Some(tokenizer) = tokenizer {
            train.refuse_other_model(tokenizer)?;
        }
        let eval = eval.map(TokenInputs::open).transpose()?;
        if let Some(eval) = &eval {
            train.refuse_other_settings(eval)?;
        }
        Ok((Self::Tokens(train), eval.map(Self::Tokens)))
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

    /// Creates the tally for these inputs.
    pub(crate) fn tally(
        &self,
        tokenizer: Option<&ChatTokenizer>,
        rejected: Option<&Path>,
    ) -> Result<Tally, DataError> {
        match self {
            Self::Text(_) => Tally::new(tokenizer, rejected),
            Self::Tokens(_) => Ok(Tally::of_tokens(tokenizer)),
        }
    }
}

/// Returns whether the data is token files.
///
/// # Errors
/// A file cannot be read, or only some of the files are token files.
fn are_token_files(inputs: &[&Path]) -> Result<bool, DataError> {
    let is_token_file = |path: &&Path| token_file::is_token_file(path);
    let kinds = inputs.iter().map(is_token_file).collect::<Result<Vec<bool>, _>>()?;
    match (kinds.iter().position(|is| *is), kinds.iter().position(|is| !is)) {
        (Some(tokens), Some(text)) => Err(DataError::input(
            inputs[tokens],
            format!(
                "this is a token file, but {} is not, and a run trains on only one of the two kinds",
                inputs[text].display()
            ),
            "Name token files alone, or the texts that they were made of",
        )),
        (tokens, _) => Ok(tokens.is_some()),
    }
}

/// Returns how the data was packed if it is token files, and `None` if it is text. Only headers are read.
///
/// # Errors
/// A file cannot be read; text and token files are mixed; files differ in the settings that made them.
pub fn packed_data(train: &[PathBuf], eval: Option<&[PathBuf]>) -> Result<Option<PackedData>, DataError> {
    let all: Vec<&Path> = train.iter().chain(eval.into_iter().flatten()).map(PathBuf::as_path).collect();
    if !are_token_files(&all)? {
        return Ok(None);
    }
    match Inputs::open(train, eval, None)?.0 {
        Inputs::Tokens(files) => Ok(Some(files.packed())),
        Inputs::Text(_) => Ok(None),
    }
}
