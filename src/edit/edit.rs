//! An edit from facts to a folder: compute, write, judge, and keep or refuse.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sparktune_base::units::counted;
use sparktune_compare::Suite;
use sparktune_infer::{Render, Room};

use crate::compute::{Loaded, Text, Writer};
use crate::conflicts::{Conflict, conflicts, same_keys};
use crate::error::EditError;
use crate::facts::{Fact, Facts, shown};
use crate::folder_lock::FolderLock;
use crate::judge::{Aspect, Probe, answers};
use crate::layers::{Chosen, layers_of};
use crate::patch::{Method, Patch, check_name, check_room};
use crate::said::{check_lengths, load, said, tokens_of};
use crate::scores::{LossDrift, Scores, SuiteScore};
use crate::stack::{Stack, check_output};
use crate::stage::Stage;
use crate::suite::suite_share;
use crate::text::Document;
use crate::tokens::Rendering;

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
    /// The layers; without any, the method's own.
    pub layers: &'a [usize],
    /// How prompts are read.
    pub rendering: Rendering,
    /// Documents of ordinary text.
    pub text: &'a [Document],
    /// A general suite, whose share of passed prompts is one of the scores.
    pub suite: Option<&'a Suite>,
    /// Where statistics of text are kept.
    pub cache: Option<&'a Path>,
    /// The name of the patch.
    pub name: &'a str,
    /// The folder to write.
    pub output: &'a Path,
    /// Whether an edit is kept that damages the model, or that changes nothing.
    pub force: bool,
    /// Whether facts are written that the model knows.
    pub write_known: bool,
    /// What renders messages by the chat template.
    pub render: Render,
    /// The memory that may be used.
    pub room: Room,
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
    /// Why these, if nobody has named them.
    pub why_layers: Option<String>,
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
    /// The limit that it passes although it is kept, if so.
    pub damage: Option<String>,
}

/// A prompt with its answers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answered {
    /// What it is to show.
    pub aspect: Aspect,
    /// The number of the fact, from 0; `None` for ordinary text.
    pub fact: Option<usize>,
    /// The prompt.
    pub prompt: String,
    /// The answer without the edit.
    pub before: String,
    /// The answer with it.
    pub after: String,
    /// Whether it is what it should be.
    pub holds: bool,
}

/// Writes facts into a model, judges the result, and keeps it unless it damages the model. `tell` is called
/// with what is being done, and returns whether to go on.
///
/// # Errors
/// The facts do not fit the model, the model cannot be loaded, a file cannot be written, another process is
/// editing the folder, or `tell` says no. An edit that damages the model is no error, but
/// [`Edited::refused`].
pub fn edit(request: EditRequest<'_>, tell: &mut dyn FnMut(Stage) -> bool) -> Result<Edited, EditError> {
    check_name(request.name).map_err(|what| EditError::request(what, "Choose another with --name"))?;
    let _lock = FolderLock::take(request.output)?;
    check_output(request.model, request.output)?;
    let mut stack = Stack::open(request.model, request.base)?;
    // Said before the computation, which may take hours.
    stack.check_name_is_free(request.output, request.name)?;
    check_room(request.facts)?;
    let checkpoint = stack.checkpoint()?;
    let facts = request.facts.facts();
    let method = request.method.unwrap_or(if facts.len() == 1 { Method::Rome } else { Method::Memit });
    layers_of(method, request.layers, checkpoint.config().layers.len())?;

    let mut probes = Probe::of(facts);
    go(tell(Stage::Before))?;
    let mut engine = load(request.model, request.room.clone(), request.render.clone())?;
    check_lengths(request.facts, request.rendering, &engine)?;
    let text = Text::of(request.text, request.rendering, &engine)?;
    let mut before = said(&mut engine, &probes, &text, request.rendering, &mut || tell(Stage::Before))?;
    let known = if request.write_known { Vec::new() } else { known(&probes, &before.answers) };
    if let Some(note) = without_known(&request, &known)? {
        go(tell(Stage::Note(note)))?;
    }
    let is_new = |fact: usize| !known.contains(&fact);
    let stays = |probe: &Probe| probe.fact.is_none_or(is_new);
    let mut stay = probes.iter().map(stays).collect::<Vec<_>>().into_iter();
    before.answers.retain(|_| stay.next() == Some(true));
    probes.retain(stays);
    // The facts that are left may have no neighbours, even if one that the model already knows has some.
    for note in not_judged(&probes, &text) {
        go(tell(Stage::Note(note)))?;
    }
    if !has_neighbours(&probes) {
        let of_text: Vec<Probe> = Probe::of_text(&text.beginnings).collect();
        let more = answers(&mut engine, &of_text, request.rendering, &mut || tell(Stage::Before))?;
        before.answers.extend(more);
        probes.extend(of_text);
    }
    let facts: Vec<Fact> =
        facts.iter().enumerate().filter(|(place, _)| is_new(*place)).map(|(_, fact)| fact.clone()).collect();
    let suite_before = suite_share(&mut engine, request.suite, &mut || tell(Stage::Before))?;
    let tokens = tokens_of(&facts, request.rendering, &engine)?;
    drop(engine);

    // What prompts and subjects say is known before the search, which may take hours.
    let conflicting = |changes: &Patch| conflicts(changes, &stack.patches);
    let asked = Patch {
        about: stack.about(request.name, method, request.rendering, &[], &facts),
        changes: Vec::new(),
        codebooks: Vec::new(),
    };
    let early = conflicting(&asked);
    for conflict in &early {
        go(tell(Stage::Note(conflict.words())))?;
    }

    let loaded = Loaded::of(stack.clone())?;
    let Chosen { layers: changed, why } = Chosen::of(method, request.layers, &loaded.model, &tokens, tell)?;

    let about = stack.about(request.name, method, request.rendering, &changed, &facts);
    let (layers, room) = (changed.clone(), &request.room);
    let mut writer = Writer::new(loaded, method, layers, &text, request.cache, room, tell)?;
    let mut patch = writer.write(about, &tokens, tell)?;
    drop(writer);
    let conflicts = conflicting(&patch);
    for conflict in conflicts.iter().filter(|conflict| !early.contains(conflict)) {
        go(tell(Stage::Note(conflict.words())))?;
    }
    if let Some(note) = same_keys_in_words(&patch) {
        go(tell(Stage::Note(note)))?;
    }
    stack.push(request.output, patch.clone(), &checkpoint)?;

    go(tell(Stage::Writing))?;
    let staged = stack.stage(request.output, &mut || tell(Stage::Writing))?;
    let mut engine = load(staged.folder(), request.room.clone(), request.render.clone())?;
    let after = said(&mut engine, &probes, &text, request.rendering, &mut || tell(Stage::Judging))?;
    let suite_after = suite_share(&mut engine, request.suite, &mut || tell(Stage::Judging))?;
    drop(engine);
    let loss = LossDrift::of(&before.losses, &after.losses);
    let mut scores = Scores::of(&probes, &before.answers, &after.answers, loss);
    let shares = suite_before.zip(suite_after);
    scores.suite = request.suite.zip(shares).map(|(suite, (before, after))| SuiteScore {
        name: suite.name.clone(),
        before,
        after,
    });
    let (refused, damage) = match (scores.damage(), request.force) {
        (damage, true) => (None, damage),
        (damage, false) => (damage, None),
    };
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
        why_layers: why,
        facts: facts.len(),
        output: request.output.to_owned(),
        scores,
        conflicts,
        answers: answers.collect(),
        refused,
        damage,
    })
}

fn has_neighbours(probes: &[Probe]) -> bool {
    probes.iter().any(|probe| probe.aspect == Aspect::Locality)
}

/// Says which damage of an edit would not be noticed, or less.
fn not_judged(probes: &[Probe], text: &Text) -> Vec<String> {
    let mut notes = Vec::new();
    if !has_neighbours(probes) {
        let judged = match text.beginnings.len() {
            0 => "it is not judged what else the edit changes".to_owned(),
            count => {
                let prompts = counted(count as u64, "prompt");
                format!("what else the edit changes is judged by {prompts} from held-out text alone")
            }
        };
        notes.push(format!("no fact has neighbours, so {judged}"));
    }
    if text.held_out.is_empty() {
        let why = "the text has fewer than five documents, so none is held out and the loss is not measured";
        notes.push(why.to_owned());
    }
    notes
}

/// Says which facts of a patch have the same key.
fn same_keys_in_words(patch: &Patch) -> Option<String> {
    let same = same_keys(patch);
    let (layer, [one, other]) = same.first()?;
    let more = match same.len() - 1 {
        0 => String::new(),
        more => format!("; so have {}", counted(more as u64, "other pair")),
    };
    Some(format!(
        "`{}` and `{}` have the same key in layer {layer}, so that they can hardly both hold{more}. Their prompts begin alike up to the subject's end: ask in other words, or use the method memory",
        shown(one),
        shown(other)
    ))
}

fn go(on: bool) -> Result<(), EditError> {
    if on { Ok(()) } else { Err(EditError::Stopped) }
}

/// Returns the facts that the model knows.
fn known(probes: &[Probe], before: &[String]) -> Vec<usize> {
    let own = probes.iter().zip(before).filter(|(probe, _)| probe.aspect == Aspect::Efficacy);
    own.filter(|(probe, answer)| probe.holds(answer, answer)).filter_map(|(probe, _)| probe.fact).collect()
}

/// Says which facts are left out because the model knows them, and refuses to edit if it knows all.
fn without_known(request: &EditRequest<'_>, known: &[usize]) -> Result<Option<String>, EditError> {
    let Some(first) = known.first() else { return Ok(None) };
    let (fact, place) = (&request.facts.facts()[*first], request.facts.place(*first));
    let (prompt, target) = (shown(&fact.prompt), shown(&fact.target));
    let others = match known.len() - 1 {
        0 => String::new(),
        others => format!(" ({} too)", counted(others as u64, "other fact")),
    };
    let what = format!("the model already answers `{prompt}` with `{target}`{others}");
    if known.len() < request.facts.facts().len() {
        let them = if known.len() == 1 { "this fact is" } else { "these facts are" };
        return Ok(Some(format!(
            "{place}: {what}, so {them} left out; --write-known writes what is known too"
        )));
    }
    Err(EditError::Fact {
        place,
        what: format!("{what}, so there is nothing to edit"),
        fix: "Give facts that the model does not know, or write them anyway with --write-known",
    })
}
