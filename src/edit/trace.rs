//! Causal tracing (Meng et al. 2022, arXiv 2202.05262, section 2): where a model recalls what it says of a
//! subject.
//!
//! The model reads a prompt once as it is, and again with noise on the embeddings of the subject's tokens,
//! with which it no longer says the same. Then one thing of the first pass is put back at one token and one
//! layer: the residual stream, or the outputs of the MLPs or of the mixers of a few layers around it. The
//! more likely the answer becomes again, the more of what the model recalls passes there.
//!
//! Shapes: `T` tokens of the prompt, `L` layers, `H` hidden_size.

use std::ops::Range;
use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use serde::Serialize;
use sparktune_base::random::SplitMix64;
use sparktune_infer::{Render, Room};
use sparktune_model::{Checkpoint, Model, PackedSequence, Spot};

use crate::compute::refuse_without;
use crate::error::EditError;
use crate::facts::{Facts, shown};
use crate::host::host;
use crate::noise::normal;
use crate::said::{check_lengths, load};
use crate::stack::Stack;
use crate::tokens::{Rendering, subject_range};

/// The passes with noise over which probabilities are averaged; ROME has as many.
const SAMPLES: usize = 10;
/// The size of the noise in standard deviations of the subjects' embeddings; ROME's factor.
const NOISE: f64 = 3.0;
/// Outputs of this share of the layers are put back together. ROME has 10 of 48.
const WINDOW: f64 = 0.2;
/// The most facts that are traced.
pub const MOST_TRACED: usize = 16;
/// The tokens that are computed at once.
const PIECE: usize = 4096;
/// The positions whose logits exist at a time.
const ROWS: usize = 32;

/// What is traced.
pub struct TraceRequest<'a> {
    /// The folder of the model, edited before or not.
    pub model: &'a Path,
    /// Where its base is now, if it has moved.
    pub base: Option<&'a Path>,
    /// The facts, of which prompts and subjects are read.
    pub facts: &'a Facts,
    /// How prompts are read.
    pub rendering: Rendering,
    /// What renders messages by the chat template.
    pub render: Render,
    /// The memory that may be used.
    pub room: Room,
}

/// How likely the answer is with one thing put back: a row for each layer, a number for each token.
pub type Map = Vec<Vec<f64>>;

/// What tracing found out about a prompt.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trace {
    /// The number of the fact, from 0.
    pub fact: usize,
    /// The prompt.
    pub prompt: String,
    /// The subject.
    pub subject: String,
    /// The token that the model says behind the prompt.
    pub answer: String,
    /// The tokens of the prompt.
    pub tokens: Vec<String>,
    /// The first token of the subject, and the one behind its last.
    pub subject_tokens: [usize; 2],
    /// The number of passes with noise.
    pub samples: usize,
    /// The standard deviation of the noise.
    pub noise: f64,
    /// The number of layers whose outputs are put back together.
    pub window: usize,
    /// The probability of the answer.
    pub clean: f64,
    /// The same, with noise on the subject.
    pub corrupted: f64,
    /// The same, with the residual stream behind a layer put back at a token.
    pub state: Map,
    /// The same, with the outputs of MLPs around a layer.
    pub mlp: Map,
    /// The same, with the outputs of attention or DeltaNets around a layer.
    pub mixer: Map,
    /// The MLPs that restore most at the last token of the subject.
    pub best: Best,
}

/// A place of a map.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Best {
    /// The layer in the middle.
    pub layer: usize,
    /// The token.
    pub token: usize,
    /// The share of what the noise took that comes back; 0 if it took nothing.
    pub restored: f64,
}

/// Traces the facts that have a subject, at most [`MOST_TRACED`]. `tell` is called with the number of facts
/// that are done, the percentage of the next one that is done, and the number of all facts; it returns
/// whether to go on.
///
/// # Errors
/// No fact has a subject, the model cannot be loaded, a number is not finite, or `tell` says no.
pub fn trace(
    request: TraceRequest<'_>,
    tell: &mut dyn FnMut(usize, usize, usize) -> bool,
) -> Result<Vec<Trace>, EditError> {
    let facts = request.facts.facts().iter().enumerate().filter(|(_, fact)| fact.subject.is_some());
    let facts: Vec<_> = facts.take(MOST_TRACED).collect();
    if facts.is_empty() {
        return Err(EditError::request(
            "no fact has a subject, and tracing looks for where the model recalls what it knows of one",
            "Add `subject` to the facts",
        ));
    }
    let stack = Stack::open(request.model, request.base)?;
    let checkpoint = stack.checkpoint()?;
    let engine = load(request.model, request.room.clone(), request.render.clone())?;
    check_lengths(request.facts, request.rendering, &engine)?;
    let mut prompts = Vec::new();
    for (number, fact) in facts {
        let text = request.rendering.text(&fact.prompt, &engine)?;
        let ids = engine.encode(&text)?;
        if ids.is_empty() {
            let what = format!("the prompt `{}` has no tokens", shown(&fact.prompt));
            return Err(EditError::request(what, "Write a text that the model's tokenizer knows"));
        }
        let subject = fact.subject.clone().unwrap_or_default();
        let range = subject_range(&subject, &fact.prompt, &text, &ids, engine.tokenizer());
        let tokens = ids.iter().map(|id| engine.tokenizer().decode(&[*id])).collect();
        prompts.push(Prompt { fact: number, prompt: fact.prompt.clone(), subject, ids, tokens, range });
    }
    let longest = prompts.iter().map(|prompt| prompt.ids.len()).max().unwrap_or(0);
    check_room(&checkpoint, longest, &request.room)?;
    let model = stack.load(&checkpoint, &Device::flex())?;
    let noise = NOISE * deviation(&model, prompts.iter().map(|prompt| &prompt.ids[prompt.range.clone()]));
    let count = prompts.len();
    let mut traces = Vec::new();
    for (done, prompt) in prompts.into_iter().enumerate() {
        let mut go_on = |passes: usize, of: usize| tell(done, passes * 100 / of.max(1), count);
        let decode = |id: u32| engine.tokenizer().decode(&[id]);
        traces.push(traced(&model, prompt, noise, &decode, &mut go_on)?);
    }
    Ok(traces)
}

/// Refuses what does not fit into memory: the weights twice, to encode and decode and to trace, and what the
/// passes leave at each layer.
fn check_room(checkpoint: &Checkpoint, longest: usize, room: &Room) -> Result<(), EditError> {
    let config = checkpoint.config();
    let weights: u64 = config.tensors().iter().map(|tensor| checkpoint.loaded_bytes(tensor)).sum();
    let inner = config.layers.iter().map(|layer| layer.intermediate_size).max().unwrap_or(0);
    let left = 3 * config.layers.len() * (SAMPLES + 1) * longest * config.hidden_size;
    // The outputs of a layer and its MLP for all tokens of a piece.
    let working = PIECE.max(SAMPLES * longest) * (3 * inner + 8 * config.hidden_size);
    let more = (left + working) as u64 * size_of::<f32>() as u64;
    refuse_without(room, 2 * weights, more, "for what its passes leave at each layer")
}

/// A prompt as tokens.
pub(crate) struct Prompt {
    pub fact: usize,
    pub prompt: String,
    pub subject: String,
    pub ids: Vec<u32>,
    pub tokens: Vec<String>,
    /// The tokens of the subject.
    pub range: Range<usize>,
}

/// Returns the standard deviation of the embeddings of all subjects.
fn deviation<'a>(model: &Model, subjects: impl Iterator<Item = &'a [u32]>) -> f64 {
    let mut numbers = Vec::new();
    for ids in subjects {
        let sequence = PackedSequence::single(ids);
        numbers.extend(host(model.embeddings(&sequence)).into_iter().map(f64::from));
    }
    let mean = numbers.iter().sum::<f64>() / numbers.len().max(1) as f64;
    (numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / numbers.len().max(1) as f64).sqrt()
}

/// What a pass leaves at each layer.
#[derive(Default)]
struct Pass {
    state: Vec<Tensor<2>>,
    mlp: Vec<Tensor<2>>,
    mixer: Vec<Tensor<2>>,
}

impl Pass {
    /// Runs a model on embeddings, and returns what it leaves with the hidden states.
    fn of(model: &Model, sequence: &PackedSequence, embeddings: Tensor<2>) -> (Self, Tensor<2>) {
        let mut pass = Self::default();
        let hidden = model.run_watched(sequence, 0, embeddings, &mut |_, spot, x_TH| {
            let outputs = match spot {
                Spot::State => &mut pass.state,
                Spot::Mlp => &mut pass.mlp,
                Spot::Mixer => &mut pass.mixer,
            };
            outputs.push(x_TH.clone());
            x_TH
        });
        (pass, hidden)
    }

    fn at(&self, spot: Spot) -> &[Tensor<2>] {
        match spot {
            Spot::State => &self.state,
            Spot::Mlp => &self.mlp,
            Spot::Mixer => &self.mixer,
        }
    }
}

/// A prompt as the model reads it, and with noise on the subject.
struct Noisy<'a> {
    model: &'a Model,
    ids: &'a [u32],
    /// The number of layers whose outputs are put back together.
    window: usize,
    /// The token that the model says behind the prompt, and its probability without and with noise.
    answer: usize,
    clean: f64,
    corrupted: f64,
    kept: Pass,
    embeddings: Tensor<2>,
    noisy: Pass,
}

impl<'a> Noisy<'a> {
    /// Runs the model on both. `subject` is where the noise is.
    ///
    /// # Errors
    /// A probability is not finite.
    fn of(model: &'a Model, ids: &'a [u32], subject: &Range<usize>, noise: f64) -> Result<Self, EditError> {
        let window = ((model.config().layers.len() as f64 * WINDOW).round() as usize).max(1);
        let single = PackedSequence::single(ids);
        let (kept, hidden) = Pass::of(model, &single, model.embeddings(&single));
        let says = last_rows(model, hidden, ids.len()).remove(0);
        let answer = (0..says.len()).max_by(|a, b| says[*a].total_cmp(&says[*b])).unwrap_or(0);
        let sequence = packed(ids, SAMPLES);
        let embeddings = with_noise(model, &sequence, subject, ids.len(), noise);
        let (noisy, hidden) = Pass::of(model, &sequence, embeddings.clone());
        let corrupted = mean_of(&last_rows(model, hidden, ids.len()), answer);
        let clean = says[answer];
        if clean.is_finite() && corrupted.is_finite() {
            return Ok(Self { model, ids, window, answer, clean, corrupted, kept, embeddings, noisy });
        }
        Err(EditError::request(
            "a probability is not finite, so the weights are damaged",
            "Choose another model",
        ))
    }

    /// Returns how likely the answer is with one thing of the pass without noise put back around a layer, at
    /// each of some positions by itself. All of them are computed in one pack, each with all samples.
    fn put_back(&self, spot: Spot, layer: usize, positions: Range<usize>) -> Vec<f64> {
        let around = match spot {
            Spot::State => layer..layer + 1,
            Spot::Mlp | Spot::Mixer => around(layer, self.window, self.model.config().layers.len()),
        };
        // What lies below the first change is as in the pass with noise.
        let (first, stream) = match (spot, around.start) {
            (Spot::State, _) => (layer + 1, &self.noisy.state[layer]),
            (_, 0) => (0, &self.embeddings),
            (_, start) => (start, &self.noisy.state[start - 1]),
        };
        let (count, length) = (positions.len(), self.ids.len());
        let sequence = packed(self.ids, SAMPLES * count);
        let mask = mask(self.model, positions, length);
        let restored = |x: Tensor<2>, clean: &Tensor<2>| {
            let clean = clean.clone().repeat(&[SAMPLES * count, 1]);
            let difference = clean - x.clone();
            x + difference * mask.clone()
        };
        let mut stream = stream.clone().repeat(&[count, 1]);
        if spot == Spot::State {
            stream = restored(stream, &self.kept.state[layer]);
        }
        let kept = self.kept.at(spot);
        let hidden = self.model.run_watched(&sequence, first, stream, &mut |i, at, x| {
            let is_put_back = spot != Spot::State && at == spot && around.contains(&i);
            if is_put_back { restored(x, &kept[i]) } else { x }
        });
        let says = last_rows(self.model, hidden, length);
        says.chunks(SAMPLES).map(|rows| mean_of(rows, self.answer)).collect()
    }
}

/// Returns the mean probability of a token.
fn mean_of(rows: &[Vec<f64>], token: usize) -> f64 {
    rows.iter().map(|row| row[token]).sum::<f64>() / rows.len() as f64
}

/// Traces one prompt; `decode` returns the text of a token.
///
/// # Errors
/// A number is not finite, or `go_on` says no.
pub(crate) fn traced(
    model: &Model,
    prompt: Prompt,
    noise: f64,
    decode: &dyn Fn(u32) -> String,
    go_on: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Trace, EditError> {
    let (layers, length) = (model.config().layers.len(), prompt.ids.len());
    let noisy = Noisy::of(model, &prompt.ids, &prompt.range, noise)?;
    let together = (PIECE / (SAMPLES * length)).clamp(1, length);
    let passes = 3 * layers * length.div_ceil(together);
    let mut done = 0;
    let mut map = |spot: Spot| -> Result<Map, EditError> {
        let mut rows = Vec::new();
        for layer in 0..layers {
            let mut row = Vec::new();
            for start in (0..length).step_by(together) {
                if !go_on(done, passes) {
                    return Err(EditError::Stopped);
                }
                done += 1;
                row.extend(noisy.put_back(spot, layer, start..(start + together).min(length)));
            }
            rows.push(row);
        }
        Ok(rows)
    };
    let (state, mlp, mixer) = (map(Spot::State)?, map(Spot::Mlp)?, map(Spot::Mixer)?);
    let token = prompt.range.end - 1;
    let layer = (0..layers).max_by(|a, b| mlp[*a][token].total_cmp(&mlp[*b][token])).unwrap_or(0);
    let taken = noisy.clean - noisy.corrupted;
    let restored = if taken > 0.0 { (mlp[layer][token] - noisy.corrupted) / taken } else { 0.0 };
    Ok(Trace {
        fact: prompt.fact,
        answer: decode(noisy.answer as u32),
        subject_tokens: [prompt.range.start, prompt.range.end],
        samples: SAMPLES,
        noise,
        window: noisy.window,
        clean: noisy.clean,
        corrupted: noisy.corrupted,
        prompt: prompt.prompt,
        subject: prompt.subject,
        tokens: prompt.tokens,
        state,
        mlp,
        mixer,
        best: Best { layer, token, restored },
    })
}

/// Returns how much more likely the MLPs around each layer make the answer again at the last token of the
/// subject: the mean over prompts with their subjects, of which there is at least one.
///
/// # Errors
/// A number is not finite, or `go_on` says no.
pub(crate) fn recalled(
    model: &Model,
    prompts: &[(&[u32], Range<usize>)],
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<f64>, EditError> {
    let noise = NOISE * deviation(model, prompts.iter().map(|(ids, subject)| &ids[subject.clone()]));
    let mut gains = vec![0.0; model.config().layers.len()];
    for (ids, subject) in prompts {
        let noisy = Noisy::of(model, ids, subject, noise)?;
        for (layer, gain) in gains.iter_mut().enumerate() {
            if !go_on() {
                return Err(EditError::Stopped);
            }
            let back = noisy.put_back(Spot::Mlp, layer, subject.end - 1..subject.end)[0];
            *gain += (back - noisy.corrupted) / prompts.len() as f64;
        }
    }
    Ok(gains)
}

/// Returns `window` layers around one, as far as there are any.
fn around(layer: usize, window: usize, layers: usize) -> Range<usize> {
    let start = layer.saturating_sub((window - 1) / 2);
    start..(start + window).min(layers)
}

/// Packs the same prompt several times.
fn packed(ids: &[u32], times: usize) -> PackedSequence {
    let borders: Vec<u32> = (0..=times).map(|i| (i * ids.len()) as u32).collect();
    PackedSequence::new(&ids.repeat(times), &borders, &vec![false; ids.len() * times])
}

/// Returns the embeddings of all samples, with noise on the subject. The same noise whenever it is asked for.
fn with_noise(
    model: &Model,
    sequence: &PackedSequence,
    subject: &Range<usize>,
    length: usize,
    noise: f64,
) -> Tensor<2> {
    let mut random = SplitMix64::new(1);
    let embeddings = model.embeddings(sequence);
    let [rows, width] = embeddings.dims();
    let mut numbers = vec![0.0f32; rows * width];
    for (row, numbers) in numbers.chunks_exact_mut(width).enumerate() {
        if subject.contains(&(row % length)) {
            numbers.iter_mut().for_each(|number| *number = (noise * normal(&mut random)) as f32);
        }
    }
    let dtype = embeddings.dtype();
    embeddings + tensor(model, numbers, [rows, width]).cast(dtype)
}

/// Returns ones at the rows that are put back, `[P · SAMPLES · T, 1]`: in the samples of each position, that
/// position.
fn mask(model: &Model, positions: Range<usize>, length: usize) -> Tensor<2> {
    let mut ones = vec![0.0f32; positions.len() * SAMPLES * length];
    for (place, position) in positions.enumerate() {
        for sample in 0..SAMPLES {
            ones[(place * SAMPLES + sample) * length + position] = 1.0;
        }
    }
    let rows = ones.len();
    tensor(model, ones, [rows, 1])
}

fn tensor(model: &Model, numbers: Vec<f32>, shape: [usize; 2]) -> Tensor<2> {
    Tensor::from_data(TensorData::new(numbers, shape), &model.device().clone().inner())
}

/// Returns the probabilities of all tokens behind the last row of each prompt.
fn last_rows(model: &Model, hidden: Tensor<2>, length: usize) -> Vec<Vec<f64>> {
    let width = hidden.dims()[1];
    let numbers = host(hidden);
    let last: Vec<&[f32]> = numbers.chunks_exact(width).skip(length - 1).step_by(length).collect();
    let mut rows = Vec::new();
    for piece in last.chunks(ROWS) {
        let logits = model.logits(tensor(model, piece.concat(), [piece.len(), width]));
        rows.extend(logits.chunks_exact(logits.len() / piece.len()).map(|logits| {
            let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let weights: Vec<f64> = logits.iter().map(|logit| (f64::from(*logit) - top).exp()).collect();
            let sum: f64 = weights.iter().sum();
            weights.into_iter().map(|weight| weight / sum).collect()
        }));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_lies_around_its_layer_and_within_the_model() {
        assert_eq!(around(0, 1, 4), 0..1);
        assert_eq!(around(3, 1, 4), 3..4);
        assert_eq!(around(0, 3, 8), 0..3);
        assert_eq!(around(4, 3, 8), 3..6);
        assert_eq!(around(7, 3, 8), 6..8);
    }
}
