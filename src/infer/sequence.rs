//! One answer while it is decoded.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use sparktune_data::ChatTokenizer;
use sparktune_model::Cache;
use sparktune_sampling::protocol::{FinishReason, Finished, Token, Usage};
use sparktune_sampling::{Draw, History, SamplingParams, StopStrings};

use crate::drafts::Drafts;
use crate::event::{Event, SequenceId};
use crate::text::TextStream;

/// The number of tokens of prompts that are computed in a step at most, so that other answers go on
/// meanwhile.
pub(crate) const PREFILL: usize = 512;

pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) adapter: Option<String>,
    pub(crate) prompt: Vec<u32>,
    /// The number of tokens of the prompt that are in `cache`.
    pub(crate) prefilled: usize,
    pub(crate) cache: Cache,
    pub(crate) drafts: Option<Drafts>,
    pub(crate) params: SamplingParams,
    pub(crate) seed: u64,
    pub(crate) history: History,
    /// The newest token, which is not in `cache`.
    pub(crate) newest: u32,
    /// The largest number of tokens of the answer.
    pub(crate) most: usize,
    pub(crate) usage: Usage,
    /// Tokens and text that were not handed out yet.
    tokens: Vec<Token>,
    ready: String,
    text: TextStream,
    stops: StopStrings,
    /// The tokens that end the answer.
    ends: BTreeSet<u32>,
    end: Option<(FinishReason, Option<String>)>,
    started: Instant,
    first_token_ms: f64,
}

/// What a new answer needs besides its request.
pub(crate) struct Beginning<'a> {
    pub(crate) id: SequenceId,
    pub(crate) cache: Cache,
    pub(crate) drafts: Option<Drafts>,
    pub(crate) seed: u64,
    pub(crate) most: usize,
    /// The tokens that the model ends its answers with.
    pub(crate) eos: &'a [u32],
    /// Tokens that are not part of the text.
    pub(crate) hidden: &'a BTreeSet<u32>,
}

impl Sequence {
    pub(crate) fn new(
        beginning: Beginning<'_>,
        prompt: Vec<u32>,
        adapter: Option<String>,
        params: SamplingParams,
    ) -> Self {
        let Beginning { id, cache, drafts, seed, most, eos, hidden } = beginning;
        let eos = eos.iter().filter(|_| !params.ignore_eos);
        Self {
            id,
            adapter,
            prefilled: 0,
            cache,
            drafts,
            seed,
            history: History::new(&prompt),
            newest: 0,
            most,
            usage: Usage { prompt_tokens: prompt.len(), ..Usage::default() },
            tokens: Vec::new(),
            ready: String::new(),
            text: TextStream::after(&prompt, hidden),
            stops: StopStrings::new(params.stop.clone()),
            ends: eos.chain(&params.stop_token_ids).copied().collect(),
            end: None,
            started: Instant::now(),
            first_token_ms: 0.0,
            prompt,
            params,
        }
    }

    /// Returns whether the prompt was computed, so that the next step continues from `newest`.
    pub(crate) fn is_decoding(&self) -> bool {
        self.prefilled == self.prompt.len()
    }

    /// Returns which tokens of the prompt are computed next. Pieces are counted from the start of a prompt,
    /// whose bits therefore do not depend on other answers.
    pub(crate) fn piece(&self) -> Range<usize> {
        self.prefilled..(self.prefilled + PREFILL).min(self.prompt.len())
    }

    /// Returns whether the answer is complete.
    pub(crate) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the number of tokens that it may take in the cache.
    pub(crate) fn reserved(&self) -> usize {
        self.prompt.len() + self.most
    }

    /// Returns how many tokens may still follow.
    pub(crate) fn left(&self) -> usize {
        self.most - self.usage.completion_tokens
    }

    /// Adds a token that was drawn, and finds out whether it ends the answer.
    pub(crate) fn push(&mut self, draw: Draw, tokenizer: &ChatTokenizer, hidden: &BTreeSet<u32>) {
        let Draw { token, logprobs } = draw;
        if self.usage.completion_tokens == 0 {
            self.first_token_ms = milliseconds(self.started);
        }
        self.usage.completion_tokens += 1;
        self.history.push(token);
        self.newest = token;
        let (logprob, top_logprobs) = logprobs.map_or((None, Vec::new()), |(own, top)| (Some(own), top));
        self.tokens.push(Token { id: token, logprob, top_logprobs });
        if self.ends.contains(&token) {
            self.flush(tokenizer);
            self.finish(FinishReason::Stop, None);
            return;
        }
        if !hidden.contains(&token) {
            let text = self.text.push(token, tokenizer);
            self.add_text(&text);
        }
        if self.end.is_none() && self.left() == 0 {
            self.flush(tokenizer);
            self.finish(FinishReason::Length, None);
        }
    }

    /// Ends the answer where it is.
    pub(crate) fn cancel(&mut self, tokenizer: &ChatTokenizer) {
        self.flush(tokenizer);
        self.finish(FinishReason::Cancelled, None);
    }

    fn add_text(&mut self, text: &str) {
        let (certain, stop) = self.stops.push(text);
        let stop = stop.map(str::to_owned);
        self.ready.push_str(&certain);
        if stop.is_some() {
            self.finish(FinishReason::Stop, stop);
        }
    }

    /// Hands out what was held back.
    fn flush(&mut self, tokenizer: &ChatTokenizer) {
        let rest = self.text.finish(tokenizer);
        self.add_text(&rest);
        if self.end.is_none() {
            let held = self.stops.finish();
            self.ready.push_str(&held);
        }
    }

    /// Sets the end, unless a stop string was found before.
    fn finish(&mut self, reason: FinishReason, stop: Option<String>) {
        self.end.get_or_insert((reason, stop));
    }

    /// Returns what is new since the last call.
    pub(crate) fn take_event(&mut self) -> Event {
        let finished = self.end.clone().map(|(finish_reason, stop)| {
            self.usage.total_tokens = self.usage.prompt_tokens + self.usage.completion_tokens;
            Finished {
                finish_reason,
                stop,
                usage: self.usage,
                seed: self.seed,
                first_token_ms: self.first_token_ms,
                total_ms: milliseconds(self.started),
            }
        });
        Event {
            id: self.id,
            tokens: std::mem::take(&mut self.tokens),
            text: std::mem::take(&mut self.ready),
            end: finished.map(Ok),
        }
    }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}
