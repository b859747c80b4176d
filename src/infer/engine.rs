//! Decodes several answers at once. Answers join and leave between two tokens.
//!
//! The engine has no threads and no clock of its own: the caller adds requests and calls [`Engine::step`],
//! which computes some pieces of prompts, and one token (with a draft, up to some) of each answer whose
//! prompt is computed.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use burn::tensor::Device;
use serde_json::Value;
use sparktune_data::{ChatTokenizer, Rejection, TemplateKwargs};
use sparktune_model::{Checkpoint, lora_bytes};
use sparktune_sampling::SamplingParams;

use crate::drafts::Drafts;
use crate::error::InferError;
use crate::event::{Event, SequenceId};
use crate::memory::{MemoryPlan, Room};
use crate::models::{Models, Stamp};
use crate::sequence::{Beginning, PREFILL, Sequence};
use crate::source::Source;

/// Renders messages with these variables of the chat template, as [`ChatTokenizer::render_messages`] does.
pub type Render = Arc<dyn Fn(&Value, &TemplateKwargs) -> Result<String, Rejection> + Send + Sync>;

/// The limits of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// The largest number of answers that are decoded at once; more wait.
    pub max_sequences: usize,
    /// The largest number of answers that wait.
    pub max_waiting: usize,
    /// The number of tokens that the MTP head drafts; 0 for none. Ignored if the model has no head.
    pub draft_tokens: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { max_sequences: 8, max_waiting: 256, draft_tokens: 0 }
    }
}

/// A request for an answer.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The tokens to continue ([`Engine::encode`], [`Engine::render_messages`]).
    pub prompt: Vec<u32>,
    /// The name of an adapter, or none for the model as it was loaded.
    pub adapter: Option<String>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
}

/// A loaded model and the answers that are decoded.
pub struct Engine {
    pub(crate) models: Models,
    pub(crate) tokenizer: ChatTokenizer,
    /// What renders messages; without it, the tokenizer does.
    render: Option<Render>,
    pub(crate) options: EngineOptions,
    plan: MemoryPlan,
    /// Bytes of the adapter that the model was loaded with.
    own_adapter: u64,
    name: String,
    context: usize,
    pub(crate) vocab_size: usize,
    eos: Vec<u32>,
    /// Special tokens, which are not part of the text.
    pub(crate) hidden: BTreeSet<u32>,
    waiting: VecDeque<Sequence>,
    pub(crate) running: Vec<Sequence>,
    next_id: u64,
}

impl Engine {
    /// Loads a model if there is room for it. `progress(done, total)` is called after each layer.
    ///
    /// # Errors
    /// The model does not fit into memory, or its files are missing or damaged.
    pub fn load(
        source: &Source,
        options: EngineOptions,
        room: &Room,
        device: &Device,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, InferError> {
        let checkpoint = source.checkpoint()?;
        let options = EngineOptions { max_sequences: options.max_sequences.max(1), ..options };
        let EngineOptions { max_sequences, draft_tokens, .. } = options;
        let adapter = source.adapter.as_deref().map_or(0, lora_bytes);
        let plan = MemoryPlan::new(&checkpoint, adapter, max_sequences, draft_tokens, PREFILL, room)?;
        let tokenizer = source.tokenizer()?;
        let models = Models::load(source, &checkpoint, draft_tokens > 0, device, progress)?;
        Ok(Self::of_parts(source.name.clone(), models, tokenizer, options, plan, &checkpoint))
    }

    fn of_parts(
        name: String,
        models: Models,
        tokenizer: ChatTokenizer,
        options: EngineOptions,
        plan: MemoryPlan,
        checkpoint: &Checkpoint,
    ) -> Self {
        let config = checkpoint.config();
        Self {
            name,
            options: EngineOptions {
                draft_tokens: if models.head.is_some() { options.draft_tokens } else { 0 },
                ..options
            },
            context: config.max_position_embeddings,
            vocab_size: config.vocab_size,
            eos: tokenizer.eos_token_ids().to_vec(),
            hidden: tokenizer.special_token_ids().into_iter().collect(),
            models,
            tokenizer,
            render: None,
            own_adapter: plan.adapters,
            plan,
            waiting: VecDeque::new(),
            running: Vec::new(),
            next_id: 0,
        }
    }

    /// Returns the name of the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the memory that it was planned with.
    pub fn memory(&self) -> &MemoryPlan {
        &self.plan
    }

    /// Returns the largest number of tokens of a prompt with its answer.
    pub fn context_tokens(&self) -> usize {
        self.context.min(self.plan.cache_tokens)
    }

    /// Returns the number of tokens that are drafted in a step; 0 without an MTP head.
    pub fn draft_tokens(&self) -> usize {
        self.options.draft_tokens
    }

    /// Returns the tokenizer with the chat template.
    pub fn tokenizer(&self) -> &ChatTokenizer {
        &self.tokenizer
    }

    /// Returns the tokens of a text, in which special tokens are parsed and none are added.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, InferError> {
        self.tokenizer.encode(text).map_err(InferError::Prompt)
    }

    /// Lets something else render messages from now on.
    pub fn render_with(&mut self, render: Render) {
        self.render = Some(render);
    }

    /// Returns messages in OpenAI's form as text, rendered as a server does that is asked for the next
    /// answer: an array, or an object with `messages`, `tools` and `chat_template_kwargs`.
    ///
    /// # Errors
    /// They are not in that form, or the chat template refuses them.
    pub fn render_messages(&self, messages: &Value) -> Result<String, InferError> {
        let rendered = match &self.render {
            None => self.tokenizer.render_messages(messages),
            Some(render) => render(messages, self.tokenizer.kwargs()),
        };
        rendered.map_err(InferError::Prompt)
    }

    /// Loads an adapter in PEFT's format under a name, unless it is loaded as it is now. One of the same name
    /// is replaced; answers that use it go on with the new one.
    ///
    /// # Errors
    /// The adapter is damaged or does not fit the base, or there is no room for it beside the answers. One of
    /// the same name is forgotten then, and answers that use it end with an error: they would be taken for
    /// those of the new one.
    pub fn load_adapter(&mut self, name: &str, folder: &Path) -> Result<(), InferError> {
        let stamp = Stamp::of(folder);
        self.models.ask(name);
        if self.models.has(name, &stamp) {
            return Ok(());
        }
        let (bytes, left) = (lora_bytes(folder), self.room_without(|other| other == name));
        let loaded = if bytes > left {
            Err(InferError::NoRoomForAdapter { needed: bytes, left })
        } else {
            self.models.add(name, stamp, bytes)
        };
        if loaded.is_err() {
            self.models.remove(name);
        }
        self.count_adapters();
        loaded
    }

    /// Forgets adapters that no answer uses, those first that were not asked for the longest time, until this
    /// one can be loaded. None is forgotten if all of them leave too little.
    pub fn make_room_for_adapter(&mut self, name: &str, folder: &Path) {
        if self.models.has(name, &Stamp::of(folder)) {
            return;
        }
        let bytes = lora_bytes(folder);
        let answers = self.running.iter().chain(&self.waiting);
        let used: BTreeSet<String> = answers.filter_map(|answer| answer.adapter.clone()).collect();
        let is_idle = |other: &str| other != name && !used.contains(other);
        if bytes > self.room_without(|other| other == name || is_idle(other)) {
            return;
        }
        while bytes > self.room_without(|other| other == name) {
            let Some(idle) = self.models.least_asked(is_idle) else { return };
            self.models.remove(&idle);
            self.count_adapters();
        }
    }

    /// Returns the bytes that an adapter may have beside the answers and those others for which `may_go` is
    /// false.
    fn room_without(&self, may_go: impl Fn(&str) -> bool) -> u64 {
        let others = self.own_adapter + self.models.bytes_without(may_go);
        self.plan.bytes_for_adapters(self.tokens_in_use()).saturating_sub(others)
    }

    /// Returns the tokens that the answers need which there are: those that run together, and each that
    /// waits.
    fn tokens_in_use(&self) -> usize {
        self.waiting.iter().map(Sequence::reserved).fold(self.reserved(), usize::max)
    }

    /// Plans the answers to come beside the adapters that are loaded now.
    fn count_adapters(&mut self) {
        let adapters = self.own_adapter + self.models.bytes();
        self.plan = self.plan.with_adapters(adapters).unwrap_or(self.plan);
    }

    /// Forgets an adapter. Answers that use it end with an error.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn unload_adapter(&mut self, name: &str) -> Result<(), InferError> {
        self.models.get(Some(name))?;
        self.models.remove(name);
        self.count_adapters();
        Ok(())
    }

    /// Returns the names of the adapters.
    pub fn adapters(&self) -> Vec<String> {
        self.models.names()
    }

    /// Adds a request. Its answer begins when there is room.
    ///
    /// # Errors
    /// A parameter is outside its range, the prompt is empty or too long, the adapter is unknown, or too many
    /// answers wait.
    pub fn submit(&mut self, ask: Ask) -> Result<SequenceId, InferError> {
        let Ask { prompt, adapter, sampling } = ask;
        sampling.check()?;
        adapter.iter().for_each(|name| self.models.ask(name));
        let decoder = self.models.get(adapter.as_deref())?;
        let model = decoder.model();
        self.check_tokens(&prompt)?;
        let most = most_tokens(prompt.len(), sampling.max_tokens, self.context, self.plan.cache_tokens)?;
        if self.waiting.len() >= self.options.max_waiting {
            return Err(InferError::Busy(self.waiting.len()));
        }
        let beginning = Beginning {
            id: SequenceId(self.next_id),
            cache: model.empty_cache(),
            drafts: self.models.head.as_ref().map(|head| Drafts::new(model, head)),
            // A request without a seed gets one of the system's random numbers.
            seed: sampling.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish()),
            most,
            eos: &self.eos,
            hidden: &self.hidden,
        };
        let id = beginning.id;
        self.waiting.push_back(Sequence::new(beginning, prompt, adapter, sampling));
        self.next_id += 1;
        Ok(id)
    }

    /// Checks that there are tokens and that the model has them.
    pub(crate) fn check_tokens(&self, prompt: &[u32]) -> Result<(), InferError> {
        if prompt.is_empty() {
            return Err(InferError::EmptyPrompt);
        }
        match prompt.iter().find(|token| **token as usize >= self.vocab_size) {
            None => Ok(()),
            Some(token) => Err(InferError::UnknownToken { token: *token, vocab_size: self.vocab_size }),
        }
    }

    /// Returns the number of tokens that running answers may take in their caches.
    pub(crate) fn reserved(&self) -> usize {
        self.running.iter().map(Sequence::reserved).sum()
    }

    /// Ends an answer. Its last event follows in the next step. Nothing happens if it has ended.
    pub fn cancel(&mut self, id: SequenceId) {
        let all = self.running.iter_mut().chain(&mut self.waiting);
        for sequence in all.filter(|sequence| sequence.id == id) {
            sequence.cancel(&self.tokenizer);
        }
    }

    /// Returns whether there is no answer to decode.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Decodes every answer a little further, and returns what is new. The events of an answer that ends are
    /// complete.
    pub fn step(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.admit(&mut events);
        let mut failed = Vec::new();
        // In this order an answer's first token is handed out before the next one is computed.
        self.decode(&mut failed);
        self.prefill(&mut failed);
        for sequence in &mut self.running {
            let mut event = sequence.take_event();
            if let Some(at) = failed.iter().position(|(id, _)| *id == sequence.id) {
                event.end = Some(Err(failed.swap_remove(at).1));
            }
            if !event.tokens.is_empty() || event.end.is_some() {
                events.push(event);
            }
        }
        let ended: BTreeSet<SequenceId> =
            events.iter().filter(|event| event.end.is_some()).map(|event| event.id).collect();
        self.running.retain(|sequence| !ended.contains(&sequence.id));
        events
    }

    /// Lets waiting answers begin, in order, as far as there is room.
    fn admit(&mut self, events: &mut Vec<Event>) {
        let ended = self.waiting.iter_mut().filter(|sequence| sequence.has_ended());
        events.extend(ended.map(Sequence::take_event));
        self.waiting.retain(|sequence| !sequence.has_ended());
        let mut taken = self.reserved();
        while let Some(next) = self.waiting.front() {
            taken += next.reserved();
            if taken > self.plan.cache_tokens || self.running.len() == self.options.max_sequences {
                break;
            }
            self.running.extend(self.waiting.pop_front());
        }
    }
}

/// Returns the largest number of tokens of an answer.
fn most_tokens(
    prompt: usize,
    max_tokens: Option<u32>,
    context: usize,
    cache: usize,
) -> Result<usize, InferError> {
    let too_long = |tokens, what, most, or_memory| InferError::TooLong { tokens, what, most, or_memory };
    if prompt >= context {
        return Err(too_long(prompt, "the model's context", context, ""));
    }
    let or_memory = ", ask for fewer tokens, or free memory and start again";
    if prompt >= cache {
        return Err(too_long(prompt, "the memory that is left for answers", cache, or_memory));
    }
    let wanted = max_tokens.map_or(usize::MAX, |most| most as usize);
    Ok(wanted.min(context - prompt).min(cache - prompt))
}
