//! A few examples of text or of token files, with the trained text marked. The examples of text are rendered
//! in `preview`, those of token files here.
//!
//! The text of a token file is what its tokens decode to. Both think policies show the same, because tokens
//! and masks are fixed.

use aho_corasick::AhoCorasick;

use crate::chat_tokenizer::ChatTokenizer;
use crate::error::DataError;
use crate::input::Input;
use crate::inputs::Inputs;
use crate::preview::{Pick, Preview, PreviewOptions, Previewed, Rendering, preview_text, spans};
use crate::progress::Progress;
use crate::report::Place;
use crate::token_inputs::TokenInputs;
use crate::token_lines::Line;
use crate::tokens::Tokens;
use crate::wanted::{Wanted, search};

/// The number of examples that are looked at.
const SCANNED: usize = 20_000;

/// One example and its place.
struct Candidate {
    place: Place,
    tokens: Tokens,
}

/// Renders a few examples.
///
/// # Errors
/// The inputs cannot be read at all. Bad lines and damaged examples are not an error.
pub fn preview<I: Clone + Into<Input>>(
    inputs: &[I],
    tokenizer: &ChatTokenizer,
    options: &PreviewOptions,
) -> Result<Preview, DataError> {
    match Inputs::open(inputs, None, Some(tokenizer))?.0 {
        Inputs::Text(source) => preview_text(&source, tokenizer, options),
        Inputs::Tokens(files) => preview_tokens(&files, tokenizer, options),
    }
}

/// Renders the examples that are looked for, at most `options.limit`, from anywhere in the data.
///
/// # Errors
/// The inputs cannot be read at all, or the caller cancelled. Bad lines and damaged examples are not an
/// error.
pub fn find_examples<I: Clone + Into<Input>>(
    inputs: &[I],
    wanted: &Wanted,
    tokenizer: &ChatTokenizer,
    options: &PreviewOptions,
    progress: &dyn Progress,
) -> Result<Preview, DataError> {
    let files = match Inputs::open(inputs, None, Some(tokenizer))?.0 {
        Inputs::Text(source) => return search(&source, wanted, tokenizer, options, progress),
        Inputs::Tokens(files) => files,
    };
    let (mut found, finder) = (Vec::new(), wanted.finder());
    let whole = files.head(&mut |name, line: Line| {
        let number = line.origin.line;
        let is_it = |tokens: &Tokens| {
            let has_text = |finder: &AhoCorasick| finder.is_match(&tokenizer.decode(&tokens.input_ids));
            tokens.target_count() > 0 && wanted.is_at(name, number) && finder.as_ref().is_none_or(has_text)
        };
        for tokens in line.examples.into_iter().filter(is_it) {
            found.push(Candidate { place: Place { file: name.to_owned(), line: number }, tokens });
        }
        found.len() < options.limit && !progress.cancelled()
    })?;
    if progress.cancelled() {
        return Err(DataError::Cancelled);
    }
    let show = |candidate: &Candidate| shown(candidate, Pick::First, tokenizer, options);
    let examples = found.iter().take(options.limit).map(show).collect();
    Ok(Preview { examples, whole, ..Preview::default() })
}

/// Shows the first examples, then one from the middle and the longest of those that were read.
fn preview_tokens(
    files: &TokenInputs,
    tokenizer: &ChatTokenizer,
    options: &PreviewOptions,
) -> Result<Preview, DataError> {
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut bytes = 0;
    let whole = files.head(&mut |name, line: Line| {
        for tokens in line.examples.into_iter().filter(|tokens| tokens.target_count() > 0) {
            bytes += 5 * tokens.input_ids.len();
            let place = Place { file: name.to_owned(), line: line.origin.line };
            candidates.push(Candidate { place, tokens });
        }
        candidates.len() < SCANNED && bytes < options.max_scan_bytes
    })?;
    // Two examples come from elsewhere in the data, if more than two are shown.
    let first = if options.limit > 2 { options.limit - 2 } else { options.limit };
    let mut picked: Vec<(usize, Pick)> =
        (0..candidates.len()).take(first).map(|example| (example, Pick::First)).collect();
    if options.limit > 2 && picked.len() < candidates.len() {
        let middle = (candidates.len() / 2).max(picked.len());
        picked.push((middle, Pick::Middle));
        let rest = (0..candidates.len()).filter(|example| !picked.iter().any(|(shown, _)| shown == example));
        if let Some(longest) = rest.max_by_key(|example| candidates[*example].tokens.input_ids.len()) {
            picked.push((longest, Pick::Longest));
        }
    }
    let show = |(example, pick): (usize, Pick)| shown(&candidates[example], pick, tokenizer, options);
    Ok(Preview { examples: picked.into_iter().map(show).collect(), whole, ..Preview::default() })
}

fn shown(
    Candidate { place, tokens }: &Candidate,
    pick: Pick,
    tokenizer: &ChatTokenizer,
    options: &PreviewOptions,
) -> Previewed {
    let rendering = rendered(tokens, tokenizer, options.max_text_bytes);
    Previewed {
        place: place.clone(),
        pick,
        tokens: tokens.input_ids.len() as u32,
        train: rendering.clone(),
        skip: rendering,
    }
}

/// Decodes the tokens in runs that are trained or not.
fn rendered(tokens: &Tokens, tokenizer: &ChatTokenizer, max_text_bytes: usize) -> Rendering {
    let mut text = String::new();
    let mut targets = Vec::new();
    let mut at = 0;
    for run in tokens.loss_mask.chunk_by(|a, b| a == b) {
        let start = text.len();
        text.push_str(&tokenizer.decode(&tokens.input_ids[at..at + run.len()]));
        if run.first() == Some(&true) {
            targets.push(start..text.len());
        }
        at += run.len();
    }
    let special = tokenizer.special_ranges(&text);
    Rendering {
        target_tokens: tokens.target_count() as u32,
        spans: spans(&text, &targets, &special, max_text_bytes),
    }
}
