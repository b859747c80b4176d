//! What a patch changes: the method's computation on a model with the patches below.

use std::path::Path;

use burn::tensor::Device;
use sparktune_base::units::bytes;
use sparktune_data::ChatTokenizer;
use sparktune_infer::{Engine, Room};
use sparktune_model::{Checkpoint, Model};

use crate::error::EditError;
use crate::key_statistics::KeyStatistics;
use crate::memory::{TEXT_TOKENS, inputs_of, memory};
use crate::patch::{AboutPatch, Method, Patch};
use crate::rome::{Site, memit, rome};
use crate::stack::Stack;
use crate::stage::Stage;
use crate::text::Document;
use crate::tokens::{FactTokens, Rendering};
use crate::ultraedit::ultraedit;

/// The number of contexts in which keys and values are looked for, with the empty one.
const CONTEXTS: usize = 5;
/// The tokens of a context.
const CONTEXT_TOKENS: usize = 10;
/// The tokens of text that the covariance of keys is computed from.
const COVARIANCE_TOKENS: usize = 20_000;
/// Of each so many documents one is held out, to measure the loss.
const HELD_OUT: usize = 5;
/// The most held-out documents whose loss is measured.
const MOST_HELD_OUT: usize = 64;
/// The tokens of a document. What is longer counts as several, since a book without a blank line is too long
/// to be read at once.
const DOCUMENT_TOKENS: usize = 512;
/// The bytes of a document that are read at most, which are more tokens than are needed of all text.
const MOST_DOCUMENT_BYTES: usize = 1 << 20;
/// The held-out documents that stand for neighbours where no fact names any.
const MOST_BEGINNINGS: usize = 32;
/// The most tokens of their beginnings.
const BEGINNING_TOKENS: usize = 32;

/// Text as tokens.
pub(crate) struct Text {
    pub read: Vec<Vec<u32>>,
    pub held_out: Vec<Vec<u32>>,
    /// Prompts from held-out documents: in a chat what the user says, and otherwise how the document begins.
    pub beginnings: Vec<String>,
}

impl Text {
    /// Encodes documents as prompts are read, and holds some of them out. In a chat, a document is what a
    /// user says with the answer: there, what every chat has in common belongs to the ordinary text, such as
    /// the tokens with which an answer begins.
    ///
    /// # Errors
    /// The tokenizer or the template refuses one, or there are none.
    pub(crate) fn of(
        documents: &[Document],
        rendering: Rendering,
        engine: &Engine,
    ) -> Result<Self, EditError> {
        let turns: Vec<(&str, &str)> = match rendering {
            Rendering::Raw => documents.iter().flat_map(Document::messages).map(|said| (said, "")).collect(),
            Rendering::Chat => documents.iter().filter_map(Document::turn).collect(),
        };
        let (mut read, mut held_out, mut tokens) = (Vec::new(), Vec::new(), 0);
        let mut beginnings = Vec::new();
        let mut number = 0usize;
        'text: for (said, answer) in turns {
            let said = start_of(said, MOST_DOCUMENT_BYTES);
            let text = rendering.text(said, engine)? + start_of(answer, MOST_DOCUMENT_BYTES);
            for (piece, ids) in engine.encode(&text)?.chunks(DOCUMENT_TOKENS).enumerate() {
                // More than this is never read.
                if tokens >= COVARIANCE_TOKENS.max(TEXT_TOKENS) && held_out.len() == MOST_HELD_OUT {
                    break 'text;
                }
                number += 1;
                if ids.len() < 2 {
                    continue;
                }
                if !number.is_multiple_of(HELD_OUT) {
                    tokens += ids.len();
                    read.push(ids.to_vec());
                } else if held_out.len() < MOST_HELD_OUT {
                    let beginning = match rendering {
                        Rendering::Raw => {
                            let half = (ids.len() / 2).min(BEGINNING_TOKENS);
                            Some(engine.tokenizer().decode(&ids[..half]))
                        }
                        // A longer message would not be asked in full.
                        Rendering::Chat if piece == 0 && said.len() < DOCUMENT_TOKENS => {
                            Some(said.to_owned())
                        }
                        Rendering::Chat => None,
                    };
                    let is_asked =
                        |text: &String| !text.trim().is_empty() && beginnings.len() < MOST_BEGINNINGS;
                    let beginning = beginning.filter(is_asked);
                    beginnings.extend(beginning);
                    held_out.push(ids.to_vec());
                }
            }
        }
        if read.is_empty() {
            return Err(EditError::request("the text has no documents", "Name another text with --text"));
        }
        Ok(Self { read, held_out, beginnings })
    }

    /// Returns the documents up to a number of tokens.
    fn up_to(&self, tokens: usize) -> &[Vec<u32>] {
        let mut sum = 0;
        let end = self.read.iter().position(|ids| {
            let is_enough = sum >= tokens;
            sum += ids.len();
            is_enough
        });
        &self.read[..end.unwrap_or(self.read.len())]
    }
}

/// Returns a text up to so many bytes, in whole characters.
fn start_of(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Returns the empty context and the starts of some documents.
pub(crate) fn contexts(documents: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let starts = documents.iter().filter(|ids| ids.len() >= CONTEXT_TOKENS);
    let starts = starts.map(|ids| ids[..CONTEXT_TOKENS].to_vec()).take(CONTEXTS - 1);
    std::iter::once(Vec::new()).chain(starts).collect()
}

/// A stack with its model in memory.
pub(crate) struct Loaded {
    pub(crate) stack: Stack,
    checkpoint: Checkpoint,
    pub(crate) model: Model,
}

impl Loaded {
    /// Loads the base of a stack, and folds its patches into it.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub(crate) fn of(stack: Stack) -> Result<Self, EditError> {
        let checkpoint = stack.checkpoint()?;
        let model = stack.load(&checkpoint, &Device::flex())?;
        Ok(Self { stack, checkpoint, model })
    }
}

/// A stack with its model in memory, on which patches are computed one after the other.
pub(crate) struct Writer<'a> {
    pub(crate) stack: Stack,
    checkpoint: Checkpoint,
    model: Model,
    method: Method,
    layers: Vec<usize>,
    text: &'a Text,
    /// What ROME and MEMIT know of their layers.
    sites: Vec<Site>,
    /// The inputs of text in the layer of a memory, once they are known.
    inputs: Vec<f32>,
    /// What says to a memory where words end. A base without a tokenizer has no words.
    tokenizer: Option<ChatTokenizer>,
}

impl<'a> Writer<'a> {
    /// Gets the statistics of the layers if the method needs them.
    ///
    /// # Errors
    /// There is too little memory, the keys of the base are not finite, or `tell` says no.
    pub(crate) fn new(
        Loaded { stack, checkpoint, model }: Loaded,
        method: Method,
        layers: Vec<usize>,
        text: &'a Text,
        cache: Option<&Path>,
        room: &Room,
        tell: &mut dyn FnMut(Stage) -> bool,
    ) -> Result<Self, EditError> {
        let mut sites = Vec::new();
        if matches!(method, Method::Rome | Method::Memit) {
            check_room(&checkpoint, &layers, room)?;
            let (read, prefixes) = (text.up_to(COVARIANCE_TOKENS), contexts(&text.read));
            for layer in &layers {
                let statistics = statistics(&stack, &checkpoint, &model, *layer, read, cache, tell)?;
                let mut site = Site::new(*layer, statistics, prefixes.clone());
                let changes = stack.active().flat_map(|patch| &patch.changes);
                changes.for_each(|change| site.keep(change));
                sites.push(site);
            }
        }
        let tokenizer = match method {
            Method::Memory => ChatTokenizer::open(&stack.base, None).ok(),
            Method::Rome | Method::Memit | Method::Ultraedit => None,
        };
        Ok(Self { stack, checkpoint, model, method, layers, text, sites, inputs: Vec::new(), tokenizer })
    }

    /// Computes what a patch of these facts changes. `about` describes it.
    ///
    /// # Errors
    /// The facts do not fit the model, or `tell` says no.
    pub(crate) fn write(
        &mut self,
        about: AboutPatch,
        facts: &[FactTokens],
        tell: &mut dyn FnMut(Stage) -> bool,
    ) -> Result<Patch, EditError> {
        let mut patch = Patch { about, changes: Vec::new(), codebooks: Vec::new() };
        let mut progress = |done: usize| tell(Stage::Facts(done));
        // A clone shares its numbers with the model until they are changed.
        let mut model = self.model.clone();
        match self.method {
            Method::Rome => {
                let site = self.sites.first_mut().expect("rome has one layer");
                patch.changes.push(rome(&mut model, site, facts, &mut progress)?);
            }
            Method::Memit => patch.changes = memit(&mut model, &mut self.sites, facts, &mut progress)?,
            Method::Ultraedit => {
                patch.changes = ultraedit(&model, &self.layers, facts, &self.text.read, &mut progress)?;
            }
            Method::Memory => {
                let layer = self.layers[0];
                let below = self.stack.active().flat_map(|patch| &patch.codebooks);
                let below: Vec<_> = below.filter(|book| book.layer == layer).collect();
                model.set_codebook(layer, None);
                if self.inputs.is_empty() {
                    self.inputs = inputs_of(&model, layer, &self.text.read, &mut || progress(0))?;
                }
                let words = self.tokenizer.as_ref();
                let found = memory(&model, layer, facts, &self.inputs, &below, words, &mut progress)?;
                patch.codebooks.push(found.book);
                patch.about.entries = found.entries;
            }
        }
        Ok(patch)
    }

    /// Lays a patch on the stack, and what it changes of weights on the model. `path` names it in errors.
    ///
    /// # Errors
    /// Those of [`Stack::push`].
    pub(crate) fn push(&mut self, path: &Path, patch: Patch) -> Result<(), EditError> {
        for change in &patch.changes {
            change.add_to(&mut self.model);
            self.sites.iter_mut().for_each(|site| site.keep(change));
        }
        // Corrections are no part of this model: a patch of memory is computed without those of its layer.
        self.stack.push(path, patch, &self.checkpoint)
    }
}

/// Refuses what does not fit into memory: the weights, and for each layer the covariance with its
/// decomposition and the room that this takes.
fn check_room(checkpoint: &Checkpoint, layers: &[usize], room: &Room) -> Result<(), EditError> {
    /// Matrices of f64 numbers of a layer at a time: covariance, Cholesky's factor, and of the eigenvectors
    /// the matrix that is reduced, the reflections and the vectors.
    const MATRICES: u64 = 5;
    let config = checkpoint.config();
    let weights: u64 = config.tensors().iter().map(|tensor| checkpoint.loaded_bytes(tensor)).sum();
    let square = |layer: &usize| (config.layers[*layer].intermediate_size as u64).pow(2);
    let statistics = layers.iter().map(square).sum::<u64>() * MATRICES * size_of::<f64>() as u64;
    refuse_without(room, weights, statistics, "for the covariance of keys")
}

/// Refuses what needs more memory than there is.
pub(crate) fn refuse_without(room: &Room, weights: u64, more: u64, what: &str) -> Result<(), EditError> {
    if weights + more <= room.available.saturating_sub(room.reserve) {
        return Ok(());
    }
    Err(EditError::request(
        format!(
            "the edit needs {} for the weights and {} {what}, but of the {} that are available {} must stay free for the system{}",
            bytes(weights),
            bytes(more),
            bytes(room.available),
            bytes(room.reserve),
            room.beside
        ),
        "End other programs, name fewer layers with --layer, or choose a smaller model",
    ))
}

/// Returns the statistics of the base, whatever patches are on it.
fn statistics(
    stack: &Stack,
    checkpoint: &Checkpoint,
    model: &Model,
    layer: usize,
    read: &[Vec<u32>],
    cache: Option<&Path>,
    tell: &mut dyn FnMut(Stage) -> bool,
) -> Result<KeyStatistics, EditError> {
    if !tell(Stage::Statistics) {
        return Err(EditError::Stopped);
    }
    let mut hasher = blake3::Hasher::new();
    for ids in read {
        hasher.update(&(ids.len() as u64).to_le_bytes());
        for id in ids {
            hasher.update(&id.to_le_bytes());
        }
    }
    let text = hasher.finalize().to_hex();
    let key = format!("keys-{}-{layer}-{}", stack.base_hash, &text[..16]);
    KeyStatistics::cached(cache, &key, || {
        let mut go_on = || tell(Stage::Statistics);
        if stack.active().next().is_none() {
            return KeyStatistics::of(model, layer, read, &mut go_on);
        }
        let base = Model::load(checkpoint, model.device(), &mut |_, _| ())?;
        KeyStatistics::of(&base, layer, read, &mut go_on)
    })
}
