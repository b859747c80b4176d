//! What a model says of prompts and of held-out text: a folder, loaded to be judged.

use std::path::Path;

use burn::tensor::Device;
use sparktune_infer::{Engine, EngineOptions, Render, Room, Source};

use crate::compute::Text;
use crate::error::EditError;
use crate::facts::{Fact, Facts, shown};
use crate::judge::{DocumentLoss, Probe, answers, losses};
use crate::tokens::{FactTokens, Rendering, behind};

/// The answers to the prompts, and the losses of the held-out documents.
pub(crate) struct Said {
    pub answers: Vec<String>,
    pub losses: Vec<DocumentLoss>,
}

/// Asks a model.
///
/// # Errors
/// A prompt is refused, a number is not finite, or `go_on` says no.
pub(crate) fn said(
    engine: &mut Engine,
    probes: &[Probe],
    text: &Text,
    rendering: Rendering,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Said, EditError> {
    let answers = answers(engine, probes, rendering, go_on)?;
    Ok(Said { answers, losses: losses(engine, &text.held_out, go_on)? })
}

/// Loads a model, a run or an adapter for decoding on the CPU, whose messages `render` renders.
///
/// # Errors
/// It cannot be loaded, or there is not enough memory.
pub(crate) fn load(folder: &Path, room: Room, render: Render) -> Result<Engine, EditError> {
    let source = Source::open(folder, None)?;
    let options = EngineOptions { max_waiting: usize::MAX, ..EngineOptions::default() };
    let mut engine = Engine::load(&source, options, &room, &Device::flex(), &mut |_, _| ())?;
    engine.render_with(render);
    Ok(engine)
}

/// Returns facts as tokens.
///
/// # Errors
/// The tokenizer or the template refuses one.
pub(crate) fn tokens_of(
    facts: &[Fact],
    rendering: Rendering,
    engine: &Engine,
) -> Result<Vec<FactTokens>, EditError> {
    let tokens = facts.iter().map(|fact| {
        let text = rendering.text(&fact.prompt, engine)?;
        FactTokens::of(fact, &text, engine.tokenizer())
    });
    tokens.collect()
}

/// Checks that each prompt of each fact is short enough for the model, with the answer that it is to have.
///
/// # Errors
/// One is longer than the model's context, or the template refuses it.
pub(crate) fn check_lengths(facts: &Facts, rendering: Rendering, engine: &Engine) -> Result<(), EditError> {
    let most = engine.context_tokens();
    let probes = |(place, fact): (usize, &Fact)| {
        Probe::of(std::slice::from_ref(fact)).into_iter().map(move |probe| (place, probe))
    };
    for (place, probe) in facts.facts().iter().enumerate().flat_map(probes) {
        let answer = probe.answer.as_deref().unwrap_or_default();
        // A token has at least one byte, and a template adds tokens.
        if rendering == Rendering::Raw && probe.prompt.len() + answer.len() < most {
            continue;
        }
        let text = rendering.text(&probe.prompt, engine)?;
        let (prompt, answer) = (engine.encode(&text)?.len(), engine.encode(&behind(&text, answer))?.len());
        if prompt + answer.max(1) > most {
            let begins = shown(&probe.prompt);
            let what = format!(
                "the prompt `{begins}` has {prompt} tokens and its answer {answer}, and the model's context has {most}"
            );
            return Err(EditError::Fact {
                place: facts.place(place),
                what,
                fix: "Shorten it, or choose a model with a longer context",
            });
        }
    }
    Ok(())
}
