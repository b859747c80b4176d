//! An edit from facts to a folder: compute, write, judge, and keep or refuse.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde::Serialize;
use sparktune_base::units::counted;
use sparktune_infer::{Engine, EngineOptions, Room, Source};
use sparktune_model::{Checkpoint, Model};

use crate::conflicts::{Conflict, conflicts};
use crate::error::EditError;
use crate::facts::{Facts, shown};
use crate::judge::{Aspect, DocumentLoss, LossDrift, Probe, Scores, answers, losses};
use crate::key_statistics::KeyStatistics;
use crate::linear_algebra::Matrix;
use crate::low_rank::LowRank;
use crate::memory::memory;
use crate::patch::{AboutPatch, Method, Patch, check_name};
use crate::rome::{Site, memit, rome};
use crate::stack::{Stack, check_output};
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

/// What is asked for.
pub struct EditRequest<'a> {
    /// The folder of the model, edited before or not.
    pub model: &'a Path,
    /// Where its base is now, if it has moved.
    pub base: Option<&'a Path>,
    /// The facts.
    pub facts: &'a Facts,
    /// The method; without one, it follows from the facts.
    pub method: Option<Method>,
    /// The layer; without one, the method's own.
    pub layer: Option<usize>,
    /// How prompts are read.
    pub rendering: Rendering,
    /// Documents of ordinary text.
    pub text: &'a [String],
    /// Where statistics of text are kept.
    pub cache: Option<&'a Path>,
    /// The name of the patch.
    pub name: &'a str,
    /// The folder to write.
    pub output: &'a Path,
    /// Whether an edit is kept that damages the model, or that changes nothing.
    pub force: bool,
    /// The memory that may be used.
    pub room: Room,
}

/// What is being done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// The model answers without the edit.
    Before,
    /// The statistics of a layer are computed.
    Statistics,
    /// This many facts are computed.
    Facts(usize),
    /// Something that may spoil the edit was found, as a sentence.
    Note(String),
    /// The folder is written.
    Writing,
    /// The model answers with the edit.
    Judging,
}

/// What an edit came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Edited {
    /// The name of the patch.
    pub name: String,
    /// The method.
    pub method: Method,
    /// The layers that were changed.
    pub layers: Vec<usize>,
    /// The number of facts.
    pub facts: usize,
    /// The folder.
    pub output: PathBuf,
    /// How well it holds.
    pub scores: Scores,
    /// What it may spoil of other patches.
    pub conflicts: Vec<Conflict>,
    /// Each prompt with the answers without and with the edit.
    pub answers: Vec<Answered>,
    /// Why the edit is not kept, if so.
    pub refused: Option<String>,
}

/// A prompt with its answers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answered {
    /// What it is to show.
    pub aspect: Aspect,
    /// The number of the fact, from 0.
    pub fact: usize,
    /// The prompt.
    pub prompt: String,
    /// The answer without the edit.
    pub before: String,
    /// The answer with it.
    pub after: String,
    /// Whether it is what it should be.
    pub holds: bool,
}

/// Text as tokens.
struct Text {
    read: Vec<Vec<u32>>,
    held_out: Vec<Vec<u32>>,
}

impl Text {
    fn of(documents: &[String], engine: &Engine) -> Result<Self, EditError> {
        let (mut read, mut held_out) = (Vec::new(), Vec::new());
        for (i, document) in documents.iter().enumerate() {
            let is_held_out = i % HELD_OUT == HELD_OUT - 1;
            if is_held_out && held_out.len() == MOST_HELD_OUT {
                continue;
            }
            let ids = engine.encode(document)?;
            if ids.len() > 1 {
                if is_held_out { held_out.push(ids) } else { read.push(ids) }
            }
        }
        Ok(Self { read, held_out })
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

    /// Returns the empty context and the starts of some documents.
    fn contexts(&self) -> Vec<Vec<u32>> {
        let starts = self.read.iter().filter(|ids| ids.len() >= CONTEXT_TOKENS);
        let starts = starts.map(|ids| ids[..CONTEXT_TOKENS].to_vec()).take(CONTEXTS - 1);
        std::iter::once(Vec::new()).chain(starts).collect()
    }
}

/// What a model says of the prompts.
struct Said {
    answers: Vec<String>,
    losses: Vec<DocumentLoss>,
}

/// Writes facts into a model, judges the result, and keeps it unless it damages the model. `tell` is called
/// with what is being done, and returns whether to go on.
///
/// # Errors The facts do not fit the model, the model cannot be loaded, a file cannot be written, or
/// `tell` says no. An edit that damages the model is no error, but [`Edited::refused`].
pub fn edit(request: EditRequest<'_>, tell: &mut dyn FnMut(Stage) -> bool) -> Result<Edited, EditError> {
    check_name(request.name).map_err(|what| EditError::request(what, "Choose another with --name"))?;
    check_output(request.model, request.output)?;
    let mut stack = Stack::open(request.model, request.base)?;
    let checkpoint = stack.checkpoint()?;
    let facts = request.facts.facts();
    let method = request.method.unwrap_or(if facts.len() == 1 { Method::Rome } else { Method::Memit });
    let layers = checkpoint.config().layers.len();
    let changed = match request.layer {
        None => default_layers(method, layers),
        Some(layer) if layer < layers => vec![layer],
        Some(layer) => {
            let what = format!("there is no layer {layer}: the model has {layers}, counted from 0");
            return Err(EditError::request(what, "Name another one with --layer"));
        }
    };

    let probes = Probe::of(facts);
    go(tell(Stage::Before))?;
    let mut engine = load(request.model, request.room.clone())?;
    let text = Text::of(request.text, &engine)?;
    if text.read.is_empty() {
        return Err(EditError::request("the text has no documents", "Name another text with --text"));
    }
    let before = said(&mut engine, &probes, &text, request.rendering, &mut || tell(Stage::Before))?;
    if !request.force {
        refuse_known(&request, &probes, &before.answers)?;
    }
    let tokens: Vec<FactTokens> = facts
        .iter()
        .map(|fact| {
            let text = request.rendering.text(&fact.prompt, &engine)?;
            FactTokens::of(fact, &text, engine.tokenizer())
        })
        .collect::<Result<_, EditError>>()?;
    drop(engine);

    let patch = Patch {
        about: AboutPatch {
            version: 1,
            name: request.name.to_owned(),
            method,
            rendering: request.rendering,
            layers: changed.clone(),
            base: stack.base_hash.clone(),
            base_name: stack.base.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            computed_on: stack.references(),
            facts: facts.to_vec(),
            scores: None,
        },
        changes: Vec::new(),
        codebooks: Vec::new(),
    };
    let mut patch = compute(patch, &stack, &checkpoint, &text, &tokens, request.cache, tell)?;
    let conflicts = conflicts(&patch, &stack.patches);
    for conflict in &conflicts {
        go(tell(Stage::Note(conflict.words())))?;
    }
    stack.push(request.output, patch.clone(), &checkpoint)?;

    go(tell(Stage::Writing))?;
    let staged = stack.stage(request.output, &mut || tell(Stage::Writing))?;
    let mut engine = load(staged.folder(), request.room.clone())?;
    let after = said(&mut engine, &probes, &text, request.rendering, &mut || tell(Stage::Judging))?;
    drop(engine);
    let loss = LossDrift::of(&before.losses, &after.losses);
    let scores = Scores::of(&probes, &before.answers, &after.answers, loss);
    let refused = scores.damage().filter(|_| !request.force);
    if refused.is_none() {
        patch.about.scores = Some(scores.clone());
        staged.rewrite(&patch)?;
        staged.commit()?;
    }
    let answers = probes.iter().zip(before.answers.iter().zip(&after.answers));
    let answers = answers.map(|(probe, (before, after))| Answered {
        aspect: probe.aspect,
        fact: probe.fact,
        prompt: probe.prompt.clone(),
        before: before.clone(),
        after: after.clone(),
        holds: probe.holds(after, before),
    });
    Ok(Edited {
        name: request.name.to_owned(),
        method,
        layers: changed,
        facts: facts.len(),
        output: request.output.to_owned(),
        scores,
        conflicts,
        answers: answers.collect(),
        refused,
    })
}

fn go(on: bool) -> Result<(), EditError> {
    if on { Ok(()) } else { Err(EditError::Stopped) }
}

/// Returns the layers that a method changes if none is named. Facts are recalled in early layers at the
/// subject (ROME, section 2); corrections of single tokens work best where the answer is nearly made.
fn default_layers(method: Method, layers: usize) -> Vec<usize> {
    match method {
        Method::Rome | Method::Memit => vec![layers / 4],
        Method::Ultraedit => (layers / 2..layers).collect(),
        Method::Memory => vec![(layers * 3 / 4).min(layers - 1)],
    }
}

fn load(folder: &Path, room: Room) -> Result<Engine, EditError> {
    let source = Source::open(folder, None)?;
    let options = EngineOptions { max_waiting: usize::MAX, ..EngineOptions::default() };
    Ok(Engine::load(&source, options, &room, &Device::flex(), &mut |_, _| ())?)
}

fn said(
    engine: &mut Engine,
    probes: &[Probe],
    text: &Text,
    rendering: Rendering,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Said, EditError> {
    let answers = answers(engine, probes, rendering, go_on)?;
    Ok(Said { answers, losses: losses(engine, &text.held_out, go_on)? })
}

/// Refuses facts that the model knows.
fn refuse_known(request: &EditRequest<'_>, probes: &[Probe], before: &[String]) -> Result<(), EditError> {
    let own = probes.iter().zip(before).filter(|(probe, _)| probe.aspect == Aspect::Efficacy);
    let known: Vec<usize> =
        own.filter(|(probe, answer)| probe.holds(answer, answer)).map(|(probe, _)| probe.fact).collect();
    let Some(first) = known.first() else { return Ok(()) };
    let fact = &request.facts.facts()[*first];
    let more = match known.len() - 1 {
        0 => String::new(),
        more => format!(" ({} too)", counted(more as u64, "other fact")),
    };
    Err(EditError::Fact {
        place: request.facts.place(*first),
        what: format!(
            "the model already answers `{}` with `{}`, so there is nothing to edit{more}",
            shown(&fact.prompt),
            shown(&fact.target)
        ),
        fix: "Remove the fact, or edit it all the same with --force",
    })
}

/// Computes what a patch changes.
fn compute(
    mut patch: Patch,
    stack: &Stack,
    checkpoint: &Checkpoint,
    text: &Text,
    facts: &[FactTokens],
    cache: Option<&Path>,
    tell: &mut dyn FnMut(Stage) -> bool,
) -> Result<Patch, EditError> {
    let layer = patch.about.layers[0];
    let device = Device::flex();
    let mut model = stack.load(checkpoint, &device)?;
    let progress = |tell: &mut dyn FnMut(Stage) -> bool, done: usize| tell(Stage::Facts(done));
    if patch.about.method == Method::Memory {
        let below = stack.codebooks().into_iter().find(|book| book.layer == layer);
        let book = memory(&model, layer, facts, &text.read, below.map(|book| book.mean), &mut |done| {
            progress(tell, done)
        })?;
        patch.codebooks.push(book);
        return Ok(patch);
    }
    if patch.about.method == Method::Ultraedit {
        let layers = patch.about.layers.clone();
        patch.changes = ultraedit(&model, &layers, facts, &mut |done| progress(tell, done))?;
        return Ok(patch);
    }
    let read = text.up_to(COVARIANCE_TOKENS);
    let statistics = statistics(stack, checkpoint, &model, layer, read, cache, tell)?;
    let prefixes = text.contexts();
    let site = Site { layer, statistics: &statistics, prefixes: &prefixes };
    let change = if patch.about.method == Method::Rome {
        rome(&mut model, &site, facts, &mut |done| progress(tell, done))?
    } else {
        let kept = kept_keys(stack, layer, statistics.covariance.columns());
        memit(&model, &site, facts, &kept, &mut |done| progress(tell, done))?
    };
    patch.changes.push(change);
    Ok(patch)
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
    go(tell(Stage::Statistics))?;
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
        if stack.patches.is_empty() {
            return KeyStatistics::of(model, layer, read, &mut go_on);
        }
        let base = Model::load(checkpoint, model.device(), &mut |_, _| ())?;
        KeyStatistics::of(&base, layer, read, &mut go_on)
    })
}

/// Returns the keys of earlier patches in a layer, `[N, I]`.
fn kept_keys(stack: &Stack, layer: usize, inner: usize) -> Matrix {
    let changes = stack.patches.iter().flat_map(|patch| &patch.changes);
    let rows: Vec<Matrix> = changes.filter(|change| change.layer == layer).map(LowRank::key_matrix).collect();
    let numbers = rows.iter().flat_map(|keys| keys.numbers().iter().copied()).collect();
    Matrix::new(rows.iter().map(Matrix::rows).sum(), inner, numbers)
}
