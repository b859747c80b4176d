//! The pool: which workers there are, and what a request does with them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value};
use sparktune_app::inference::Decoding;
use sparktune_app::models::{OpenableModel, Opening};
use sparktune_app::program::Program;
use sparktune_sampling::SamplingParams;
use sparktune_sampling::protocol::{Generate, Prompt, Ready};
use tokio::sync::mpsc;

use super::answers::Answers;
use super::commands::{Adapter, Command, State};
use super::refusal::Refusal;
use super::slot::{Key, Slot};
use crate::locked::lock;

/// How often a prompt is sent again whose worker had ended before it had it.
const TRIED_AGAIN: usize = 2;

/// The limits of the loaded models.
#[derive(Debug, Clone)]
pub struct ModelLimits {
    /// Workers at a time. Memory is a limit too, which each worker checks itself.
    pub loaded: usize,
    /// Answers that a worker decodes at a time.
    pub answers: usize,
    /// Answers of a worker that may wait.
    pub waiting: usize,
    /// The time after which a worker without answers ends.
    pub idle: Duration,
    /// Where and how the models decode.
    pub decoding: Decoding,
}

impl Default for ModelLimits {
    fn default() -> Self {
        Self {
            loaded: 4,
            answers: 8,
            waiting: 32,
            idle: Duration::from_secs(900),
            decoding: Decoding::default(),
        }
    }
}

/// A model that is loaded.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    /// The ids of the models that were opened with this worker: a base and adapters.
    pub models: Vec<String>,
    /// What the worker said of it.
    pub ready: Ready,
    /// The answers that it has not completed.
    pub answers: usize,
}

/// The loaded models.
pub(crate) struct Workers {
    pub(super) program: Program,
    pub(super) limits: ModelLimits,
    pub(super) slots: Mutex<Vec<Arc<Slot>>>,
    /// Held while a model is loaded, because two at a time would each count on the same memory.
    pub(super) loading: Arc<tokio::sync::Mutex<()>>,
    next_id: AtomicU64,
}

impl Workers {
    /// No models yet.
    pub(crate) fn new(program: Program, limits: ModelLimits) -> Self {
        let (slots, loading) = (Mutex::default(), Arc::default());
        Self { program, limits, slots, loading, next_id: AtomicU64::new(0) }
    }

    /// Begins an answer to each prompt, with the model loaded if necessary. Returns once all are accepted.
    ///
    /// # Errors
    /// The model cannot be loaded, a prompt is refused, or too many answers wait. None is begun then.
    pub(crate) async fn ask(
        &self,
        model: &OpenableModel,
        opening: &Opening,
        asked: &[(Prompt, SamplingParams)],
    ) -> Result<Answers, Refusal> {
        let mut result = self.ask_once(model, opening, asked).await;
        // The worker may have ended unnoticed, or by itself at this moment. Only this is tried again.
        for _ in 0..TRIED_AGAIN {
            if !matches!(result, Err(Refusal::Gone(_))) {
                break;
            }
            result = self.ask_once(model, opening, asked).await;
        }
        result
    }

    async fn ask_once(
        &self,
        model: &OpenableModel,
        opening: &Opening,
        asked: &[(Prompt, SamplingParams)],
    ) -> Result<Answers, Refusal> {
        self.allow(asked.len())?;
        let (slot, ready) = self.load(model, opening).await?;
        let counted = slot.count(asked.len(), self.most_answers())?;
        let (sender, receiver) = mpsc::unbounded_channel();
        let adapter = opening.adapter.clone().map(|folder| Adapter { name: model.id.clone(), folder });
        let mut ids = Vec::new();
        for (index, (prompt, sampling)) in asked.iter().enumerate() {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed).to_string();
            let generate = Generate {
                id: id.clone(),
                prompt: with_kwargs(prompt, opening),
                adapter: adapter.as_ref().map(|adapter| adapter.name.clone()),
                sampling: SamplingParams {
                    max_tokens: sampling.max_tokens.or_else(|| u32::try_from(self.share(&ready)).ok()),
                    ..sampling.clone()
                },
            };
            let (adapter, events) = (adapter.clone(), sender.clone());
            slot.send(Command::Generate { generate: Box::new(generate), adapter, index, events })?;
            ids.push(id);
        }
        // Without a sender here, the end of the worker's thread is the end of the events.
        drop(sender);
        Answers::begin(ids, receiver, slot, counted).await
    }

    /// Checks that a request may ask for so many answers at once.
    ///
    /// # Errors
    /// They are more than a worker takes at a time.
    pub(crate) fn allow(&self, answers: usize) -> Result<(), Refusal> {
        let most = self.most_answers();
        if answers <= most {
            return Ok(());
        }
        Err(Refusal::Invalid(format!("{answers} answers are asked for at once. Ask for at most {most}")))
    }

    /// Returns the most answers of a worker: those that it decodes, and those that wait.
    fn most_answers(&self) -> usize {
        self.limits.answers + self.limits.waiting
    }

    /// Returns the number of tokens of an answer that names none: its share of the memory for answers, so
    /// that others need not wait for it.
    fn share(&self, ready: &Ready) -> usize {
        (ready.cache_tokens / self.limits.answers.max(1)).clamp(1024, ready.cache_tokens.max(1024))
    }

    /// Loads a model if it is not loaded. Returns its worker.
    ///
    /// # Errors
    /// It cannot be loaded, or there is no room for it.
    pub(crate) async fn load(
        &self,
        model: &OpenableModel,
        opening: &Opening,
    ) -> Result<(Arc<Slot>, Ready), Refusal> {
        let slot = match self.slot_of(opening) {
            Some(slot) => slot,
            None => self.start(opening).await?,
        };
        let ready = slot.ready().await?;
        slot.open(&model.id);
        Ok((slot, ready))
    }

    /// Forgets a model, including versions of it that were loaded before its files changed. A worker ends
    /// unless it holds the base of another model in use.
    ///
    /// # Errors
    /// It is answering.
    pub(crate) fn unload(&self, model: &OpenableModel, opening: &Opening) -> Result<(), Refusal> {
        let mut slots = lock(&self.slots);
        let holders = slots.iter().filter(|slot| slot.is_of(&opening.model));
        let answers: usize = holders.map(|slot| slot.answers()).sum();
        if answers > 0 {
            return Err(Refusal::Answering(answers));
        }
        slots.retain(|slot| {
            if !slot.is_of(&opening.model) {
                return true;
            }
            let is_in_use = slot.close(&model.id);
            if !is_in_use {
                slot.end();
            } else if opening.adapter.is_some() {
                let _ = slot.send(Command::Unload { adapter: model.id.clone() });
            }
            is_in_use
        });
        Ok(())
    }

    /// Lists the loaded models.
    pub(crate) fn loaded(&self) -> Vec<Loaded> {
        let slots = self.live();
        let loaded = slots.iter().filter_map(|slot| match slot.state() {
            State::Ready(ready) => Some(Loaded { models: slot.models(), ready, answers: slot.answers() }),
            State::Loading | State::Ended(_) => None,
        });
        loaded.collect()
    }

    pub(super) fn slot_of(&self, opening: &Opening) -> Option<Arc<Slot>> {
        let key = Key::of(opening);
        self.live().into_iter().find(|slot| slot.is_for(&key))
    }

    /// Returns the workers that have not ended.
    pub(super) fn live(&self) -> Vec<Arc<Slot>> {
        let mut slots = lock(&self.slots);
        slots.retain(|slot| !matches!(slot.state(), State::Ended(_)));
        slots.clone()
    }
}

/// Returns a prompt with the variables of the template that an adapter was trained with. Those of the request
/// take precedence.
pub(super) fn with_kwargs(prompt: &Prompt, opening: &Opening) -> Prompt {
    let Prompt::Messages(request) = prompt else { return prompt.clone() };
    let mut request = match request {
        Value::Object(request) => request.clone(),
        messages => Map::from_iter([("messages".to_owned(), messages.clone())]),
    };
    let mut kwargs: Map<String, Value> = opening.template_kwargs.clone().into_iter().collect();
    if let Some(Value::Object(given)) = request.get("chat_template_kwargs") {
        kwargs.extend(given.clone());
    }
    if !kwargs.is_empty() {
        request.insert("chat_template_kwargs".to_owned(), Value::Object(kwargs));
    }
    Prompt::Messages(Value::Object(request))
}
