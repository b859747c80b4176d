//! Facts beside the weights: a codebook of corrections (GRACE, Hartvigsen et al. 2023, arXiv 2211.11031).
//!
//! Each token of a target has an entry: its key is the input of the MLP at the token before it, its value
//! the change with which the model goes on with it. An answer that has begun with the target's first
//! tokens has the same keys, so it follows the target to its end. How near an input must be is learned
//! from ordinary text: half way between the nearest position of the text and the key itself. Where the text
//! has the fact's own prompt, that position is the key and no other text. The other tokens of the facts count
//! as text, too.

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

/// Makes the codebook of a layer of a model, which must have no corrections in that layer: the newest entry
/// for a key stands in the place of older ones. `mean` is that of the corrections which the layer has
/// already. `of_text` are the [inputs](inputs_of) of ordinary text. Returns the losses of the targets that
/// are left, too, in nats for each token.
///
/// # Errors
/// A loss is not finite, there is no text, or `progress` says no.
pub(crate) fn memory(
    model: &Model,
    layer: usize,
    facts: &[FactTokens],
    of_text: &[f32],
    mean: Option<Vec<f32>>,
    progress: Progress<'_>,
) -> Result<(StoredCodebook, Vec<f64>), EditError> {
    let width = model.config().hidden_size;
    if of_text.is_empty() {
        return Err(EditError::request("the text has no tokens", "Name another text with --text"));
    }
    let mean = mean.unwrap_or_else(|| mean_of(of_text, width));
    let mut of_facts = Vec::new();
    let mut codebook = StoredCodebook { layer, mean, ..StoredCodebook::default() };
    let mut left = Vec::new();
    for (done, fact) in facts.iter().enumerate() {
        let places = places_of(fact);
        let before = places.before(model, layer);
        // An entry must not answer for the other tokens of the facts either: the one that ends a target would
        // say its last token again and again.
        of_facts.extend(host(model.mlp_at(layer, &places.sequence).input_TH));
        let (deltas, loss) = find_values(model, layer, &places, &before, SEARCH, &mut || progress(done))?;
        left.push(loss);
        let narrow = |rows: &[Vec<f64>]| -> Vec<f32> { rows.concat().iter().map(|x| *x as f32).collect() };
        codebook.keys.extend(narrow(&before.inputs));
        codebook.values.extend(narrow(&deltas));
        codebook.thresholds.resize(codebook.keys.len() / width, 0.0);
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
    Ok((codebook, left))
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
