//! Facts beside the weights: a codebook of corrections (GRACE, Hartvigsen et al. 2023, arXiv 2211.11031).
//!
//! Each token of a target has an entry: its key is the input of the MLP at the token before it, its value
//! the change with which the model goes on with it. An answer that has begun with the target's first
//! tokens has the same keys, so it follows the target to its end. A model that would make a longer word of
//! the target's last one (`six` and then `teen`) gets one entry more, for the likeliest token that ends it.
//! How near an input must be is learned from ordinary text: half way between the nearest position of the text
//! and the key itself. Where the text has the fact's own prompt, that position is the key and no other text.
//! The other tokens of the facts count as text, too, and so do the keys of the corrections that lie below.

use std::borrow::Cow;

use sparktune_data::ChatTokenizer;
use sparktune_infer::codebook_file::StoredCodebook;
use sparktune_model::{Codebook, Model, PackedSequence};

use crate::error::EditError;
use crate::host::host;
use crate::stage::Progress;
use crate::tokens::FactTokens;
use crate::value::{Places, Search, find_values};

/// As near to the target as a correction of a late layer comes. Only the places of the target are changed, so
/// nothing has to be kept but the size of the numbers.
const SEARCH: Search =
    Search { steps: 150, enough: 0.005, rate: 0.5, clamp: 30.0, decay: 0.0, kl_factor: 0.0, short: 0.0 };
/// The tokens of text that thresholds are learned from: as many as for the covariance of `memit`. With 4,096
/// one of 50 facts answered for another person, whom the text names later
/// (tests/fixtures/facts/RESULTS.md).
pub(crate) const TEXT_TOKENS: usize = 20_000;
/// The largest threshold: a key is recognised again up to rounding.
const MOST_THRESHOLD: f32 = 0.999;
/// The tokens that are computed at once.
const PIECE: usize = 512;

/// The corrections of facts.
pub(crate) struct Corrections {
    pub book: StoredCodebook,
    /// The entries of each fact.
    pub entries: Vec<usize>,
}

/// Makes the corrections of a layer of a model, which must have none in that layer: the newest entry for a
/// key stands in the place of older ones. `below` are the corrections which the layer has already, all with
/// the same mean. `of_text` are the [inputs](inputs_of) of ordinary text. `tokenizer` says where words end.
///
/// # Errors
/// A loss is not finite, there is no text, or `progress` says no.
pub(crate) fn memory(
    model: &Model,
    layer: usize,
    facts: &[FactTokens],
    of_text: &[f32],
    below: &[&StoredCodebook],
    tokenizer: Option<&ChatTokenizer>,
    progress: Progress<'_>,
) -> Result<Corrections, EditError> {
    let width = model.config().hidden_size;
    if of_text.is_empty() {
        return Err(EditError::request("the text has no tokens", "Name another text with --text"));
    }
    let mean = below.first().map_or_else(|| mean_of(of_text, width), |book| book.mean.clone());
    let mut of_facts: Vec<f32> = below.iter().flat_map(|book| &book.keys).copied().collect();
    let mut codebook = StoredCodebook { layer, mean, ..StoredCodebook::default() };
    let mut entries = Vec::new();
    for (done, fact) in facts.iter().enumerate() {
        let mut go_on = || progress(done);
        let mut fact = Cow::Borrowed(fact);
        let mut own = entries_of(model, &codebook, &fact, &mut go_on)?;
        if let Some(end) = tokenizer.and_then(|words| end_of_word(model, &fact, &own, words)) {
            fact.to_mut().target.push(end);
            own = entries_of(model, &codebook, &fact, &mut go_on)?;
        }
        // An entry must not answer for the other tokens of the facts either: the one that ends a target would
        // say its last token again and again.
        of_facts.extend(host(model.mlp_at(layer, &fact.sequence()).input_TH));
        entries.push(own.thresholds.len());
        codebook.keys.extend(own.keys);
        codebook.values.extend(own.values);
        codebook.thresholds.extend(own.thresholds);
    }
    let found = codebook.codebook();
    let mut nearest = vec![-1.0f32; found.len()];
    let inputs = of_text.chunks_exact(width).chain(of_facts.chunks_exact(width));
    for (number, input) in inputs.enumerate() {
        if number.is_multiple_of(PIECE) && !progress(facts.len()) {
            return Err(EditError::Stopped);
        }
        for (nearest, cosine) in nearest.iter_mut().zip(found.cosines(input)) {
            if !Codebook::is_same(cosine) {
                *nearest = nearest.max(cosine);
            }
        }
    }
    let threshold = |nearest: f32| f32::midpoint(nearest, 1.0).min(MOST_THRESHOLD);
    codebook.thresholds = nearest.into_iter().map(threshold).collect();
    Ok(Corrections { book: codebook, entries })
}

/// Finds the entries of a fact for the layer and with the mean of `book`, with the largest thresholds.
fn entries_of(
    model: &Model,
    book: &StoredCodebook,
    fact: &FactTokens,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<StoredCodebook, EditError> {
    let places = places_of(fact);
    let before = places.before(model, book.layer);
    let deltas = find_values(model, book.layer, &places, &before, SEARCH, go_on)?;
    let narrow = |rows: &[Vec<f64>]| -> Vec<f32> { rows.concat().iter().map(|x| *x as f32).collect() };
    Ok(StoredCodebook {
        layer: book.layer,
        mean: book.mean.clone(),
        keys: narrow(&before.inputs),
        values: narrow(&deltas),
        thresholds: vec![MOST_THRESHOLD; deltas.len()],
    })
}

/// Returns the likeliest token with which the last word of a target ends, if a model with these corrections
/// would go on with it.
fn end_of_word(
    model: &Model,
    fact: &FactTokens,
    corrections: &StoredCodebook,
    tokenizer: &ChatTokenizer,
) -> Option<u32> {
    let target = tokenizer.decode(&fact.target);
    if !target.ends_with(char::is_alphanumeric) {
        return None;
    }
    let mut corrected = model.clone();
    corrected.set_codebook(corrections.layer, Some(corrections.codebook()));
    let sequence = fact.sequence();
    let logits = corrected.logits(corrected.hidden(&sequence).narrow(0, sequence.len() - 1, 1));
    let next = |token: usize| -> Option<char> {
        let text = tokenizer.decode(&[&fact.target[..], &[token as u32]].concat());
        text.strip_prefix(&target)?.chars().next()
    };
    // A token may end within a character, of which nobody knows yet whether it is a letter.
    let is_of_word = |c: char| c.is_alphanumeric() || c == char::REPLACEMENT_CHARACTER;
    let likeliest = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]))?;
    next(likeliest).filter(|c| is_of_word(*c))?;
    let mut tokens: Vec<usize> = (0..logits.len()).collect();
    tokens.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let ends = |token: &usize| next(*token).is_some_and(|c| !is_of_word(c));
    tokens.into_iter().find(ends).map(|token| token as u32)
}

/// Returns the fact with a place for each token of the target: the token before it.
fn places_of(fact: &FactTokens) -> Places {
    let rows = (0..fact.target.len()).map(|i| vec![fact.prompt.len() - 1 + i]).collect();
    Places { sequence: fact.sequence(), rows, subject: None }
}

/// Returns the inputs of an MLP for the first tokens of a text, row by row. Corrections of that MLP change
/// nothing about them.
///
/// # Errors
/// `go_on` says no.
pub(crate) fn inputs_of(
    model: &Model,
    layer: usize,
    text: &[Vec<u32>],
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<f32>, EditError> {
    let (mut inputs, mut tokens) = (Vec::new(), 0);
    for piece in text.iter().flat_map(|ids| ids.chunks(PIECE)) {
        if tokens >= TEXT_TOKENS {
            break;
        }
        if !go_on() {
            return Err(EditError::Stopped);
        }
        tokens += piece.len();
        inputs.extend(host(model.mlp_at(layer, &PackedSequence::single(piece)).input_TH));
    }
    Ok(inputs)
}

fn mean_of(inputs: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0f64; width];
    for input in inputs.chunks_exact(width) {
        sums.iter_mut().zip(input).for_each(|(sum, number)| *sum += f64::from(*number));
    }
    let count = (inputs.len() / width) as f64;
    sums.into_iter().map(|sum| (sum / count) as f32).collect()
}
