//! What an edited model is asked, and whether it answers as it should, judged by what it writes when it
//! decodes greedily. What the answers come to is summed up in [`scores`](crate::scores).
//!
//! Teacher-forced figures say that a model could follow a target which it is given; most of what they promise
//! is not there when it decodes by itself (Mirage, arXiv 2502.11177). So an answer counts as the target only
//! if the model writes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sparktune_infer::{Ask, Engine, SequenceId};
use sparktune_sampling::SamplingParams;

use crate::error::EditError;
use crate::facts::{Fact, begins_with, words};
use crate::tokens::{Rendering, behind};

/// The tokens of an answer to a neighbour that have to stay the same.
const NEIGHBOUR_TOKENS: u32 = 8;
/// The tokens of an answer in which an answer that follows from a fact has to be.
const PORTABILITY_TOKENS: u32 = 16;
/// The tokens that an answer may have more than its target.
const MORE_TOKENS: u32 = 3;
/// The documents whose losses are measured between two questions whether to go on.
const TOGETHER: usize = 16;
/// The tokens of a document whose loss is measured at most.
const DOCUMENT_TOKENS: usize = 256;

/// What a prompt is to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aspect {
    /// The prompt of a fact is answered with its target.
    Efficacy,
    /// The prompt in other words is, too.
    Generalisation,
    /// Prompts about something else are answered as before.
    Locality,
    /// Questions whose answers follow from the fact are answered so.
    Portability,
}

/// A prompt with what its answer is held against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// What it is to show.
    pub aspect: Aspect,
    /// The number of the fact; `None` if it is from ordinary text.
    pub fact: Option<usize>,
    /// The prompt.
    pub prompt: String,
    /// The answer; for neighbours it is what the model said before.
    pub answer: Option<String>,
}

impl Probe {
    /// Returns the prompts of facts.
    pub fn of(facts: &[Fact]) -> Vec<Self> {
        let mut probes = Vec::new();
        for (index, fact) in facts.iter().enumerate() {
            let mut add = |aspect, prompt: &str, answer: Option<&str>| {
                let (prompt, answer) = (prompt.to_owned(), answer.map(str::to_owned));
                probes.push(Self { aspect, fact: Some(index), prompt, answer });
            };
            add(Aspect::Efficacy, &fact.prompt, Some(&fact.target));
            for prompt in &fact.paraphrases {
                add(Aspect::Generalisation, prompt, Some(&fact.target));
            }
            fact.neighbours.iter().for_each(|prompt| add(Aspect::Locality, prompt, None));
            for question in &fact.portability {
                add(Aspect::Portability, &question.prompt, Some(&question.answer));
            }
        }
        probes
    }

    /// Returns beginnings of ordinary text as prompts about something else, for facts without neighbours.
    pub(crate) fn of_text(beginnings: &[String]) -> impl Iterator<Item = Self> {
        beginnings.iter().map(|prompt| Self {
            aspect: Aspect::Locality,
            fact: None,
            prompt: prompt.clone(),
            answer: None,
        })
    }

    /// Returns whether an answer is what it should be, where `before` is the one without the edit.
    pub fn holds(&self, answer: &str, before: &str) -> bool {
        match (&self.answer, self.aspect) {
            (Some(wanted), Aspect::Portability) => contains(answer, wanted),
            (Some(wanted), _) => begins_with(answer, wanted),
            (None, _) => answer == before,
        }
    }
}

/// Returns whether a text has an answer in whole words.
fn contains(text: &str, answer: &str) -> bool {
    let (text, answer) = (words(text), words(answer));
    text.match_indices(&answer).any(|(at, _)| {
        let starts = !text[..at].ends_with(char::is_alphanumeric);
        starts && begins_with(&text[at..], &answer)
    })
}

/// Returns the greedy answers to prompts, in order.
///
/// # Errors
/// A prompt is refused, or a number is not finite; [`EditError::Stopped`] when `go_on` says no.
pub fn answers(
    engine: &mut Engine,
    probes: &[Probe],
    rendering: Rendering,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<String>, EditError> {
    let mut prompts = Vec::new();
    for probe in probes {
        let text = rendering.text(&probe.prompt, engine)?;
        let most = match (&probe.answer, probe.aspect) {
            (Some(_), Aspect::Portability) => PORTABILITY_TOKENS,
            (Some(answer), _) => engine.encode(&behind(&text, answer))?.len() as u32 + MORE_TOKENS,
            (None, _) => NEIGHBOUR_TOKENS,
        };
        prompts.push((engine.encode(&text)?, SamplingParams::greedy(most)));
    }
    decode(engine, prompts, go_on)
}

/// Returns the answers to prompts in tokens, in order.
pub(crate) fn decode(
    engine: &mut Engine,
    prompts: Vec<(Vec<u32>, SamplingParams)>,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<String>, EditError> {
    let mut answers = vec![String::new(); prompts.len()];
    let mut places: BTreeMap<SequenceId, usize> = BTreeMap::new();
    for (place, (prompt, sampling)) in prompts.into_iter().enumerate() {
        places.insert(engine.submit(Ask { prompt, adapter: None, sampling })?, place);
    }
    while !engine.is_idle() {
        if !go_on() {
            return Err(EditError::Stopped);
        }
        for event in engine.step() {
            if let Some(place) = places.get(&event.id) {
                answers[*place].push_str(&event.text);
            }
            if let Some(Err(error)) = event.end {
                return Err(error.into());
            }
        }
    }
    Ok(answers)
}

/// The loss of a document.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DocumentLoss {
    /// The sum over its tokens, in nats.
    pub nats: f64,
    /// The number of tokens.
    pub tokens: usize,
}

/// Returns the losses of documents.
///
/// # Errors
/// A number is not finite; [`EditError::Stopped`] when `go_on` says no.
pub fn losses(
    engine: &Engine,
    documents: &[Vec<u32>],
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<DocumentLoss>, EditError> {
    let texts: Vec<&[u32]> = documents
        .iter()
        .filter(|ids| ids.len() > 1)
        .map(|ids| &ids[..ids.len().min(DOCUMENT_TOKENS)])
        .collect();
    let mut losses = Vec::with_capacity(texts.len());
    for texts in texts.chunks(TOGETHER) {
        if !go_on() {
            return Err(EditError::Stopped);
        }
        let nats = engine.score_all(texts)?;
        let found = nats.into_iter().zip(texts);
        losses.extend(found.map(|(nats, ids)| DocumentLoss { nats, tokens: ids.len() - 1 }));
    }
    Ok(losses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_follows_may_stand_anywhere_but_in_whole_words() {
        assert!(contains("it is Italy.", "Italy") && contains("Italy", "Italy"));
        assert!(!contains("Italyan", "Italy") && !contains("unItaly", "Italy"));
    }
}
