//! Greedy speculative decoding with the MTP head: the text of plain greedy decoding in fewer passes of the
//! model.
//!
//! The head drafts `k` tokens. The model scores the newest token and the draft in one pass and accepts the
//! longest run that it would have chosen itself, plus one token of its own (SPEC.md 2.7). The set of tokens
//! that the head may draft affects how many are accepted, but never the text.

use burn::tensor::Tensor;
use sparktune_kernels::embedding::embedding;

use crate::cache::Branches;
use crate::decoder::{Model, scores};
use crate::generate::{argmax, greatest, last_argmax};
use crate::mtp::{Mtp, MtpCache};
use crate::packed_sequence::PackedSequence;

/// The number of drafts that are made at once, which bounds the memory that their scores take.
const ROOTS_AT_ONCE: usize = 32;

/// A model and the MTP head that drafts for it. Both must be frozen.
pub struct Drafter<'a> {
    model: &'a Model,
    mtp: &'a Mtp,
    /// The token ids that may be drafted, and their rows of the output head, `[n, H]`.
    among: Option<(&'a [u32], Tensor<2>)>,
}

impl<'a> Drafter<'a> {
    /// Creates a drafter that may draft every token of the vocabulary.
    pub fn new(model: &'a Model, mtp: &'a Mtp) -> Self {
        Self { model, mtp, among: None }
    }

    /// Creates a drafter that may draft only these token ids (ascending, all in the vocabulary), so that a
    /// draft reads no other rows of the output head.
    pub fn among(model: &'a Model, mtp: &'a Mtp, ids: &'a [u32]) -> Self {
        // The embedding op also selects rows.
        Self { model, mtp, among: Some((ids, embedding(model.head(), &ids.into()))) }
    }

    /// Returns the most likely token after each hidden state of the head, `[n, H]`.
    fn tokens(&self, own: Tensor<2>) -> Vec<u32> {
        match &self.among {
            None => argmax(self.model, own),
            Some((ids, rows)) => {
                let scores = scores(own, rows.clone());
                scores.chunks_exact(ids.len()).map(|row| ids[greatest(row)]).collect()
            }
        }
    }

    /// Returns the most likely token after one hidden state of the head, `[1, H]`.
    fn token(&self, own: Tensor<2>) -> u32 {
        self.tokens(own)[0]
    }

    /// Returns for each token of `text` from `first` to the last but one the number of tokens that a draft of
    /// `draft_length` after it has in common with `text`.
    ///
    /// If `text` from `first` on is the model's own greedy continuation, these are the tokens that it would
    /// accept. All drafts are made at once: one pass of the model, and one step of the head for each drafted
    /// token. `first` must not be 0. The draft after the token `t` is that of [`speculative_greedy`] with
    /// `text[..=t]` known, so the passes of that loop can be read off the result
    /// ([`Acceptance::of_passes`]).
    pub fn accepted_everywhere(&self, text: &[u32], first: usize, draft_length: usize) -> Vec<usize> {
        // The draft before the last token needs no pair with it, because that one is only verified.
        let pairs = text.len().saturating_sub(2);
        if first > pairs {
            return Vec::new();
        }
        let hidden = self.model.hidden(&PackedSequence::single(&text[..pairs]));
        let mut cache = self.mtp.empty_cache(self.model.device());
        let own = self.mtp.continue_from(self.model, hidden, &text[1..=pairs], &mut cache);
        let all: Vec<usize> = (first - 1..pairs).collect();
        let of_chunk = |roots: &[usize]| {
            let own = own.clone().narrow(0, roots[0], roots.len());
            self.accepted_after(text, own, roots, &cache, draft_length)
        };
        all.chunks(ROOTS_AT_ONCE).flat_map(of_chunk).collect()
    }

    /// Like [`accepted_everywhere`](Self::accepted_everywhere) for the tokens of the pairs `roots`, whose
    /// outputs of the head are `own`, `[roots, H]`. The pair `i` has the token `i + 1`.
    fn accepted_after(
        &self,
        text: &[u32],
        own: Tensor<2>,
        roots: &[usize],
        cache: &MtpCache,
        draft_length: usize,
    ) -> Vec<usize> {
        let (mut own, mut branches) = (own, Branches::default());
        let mut accepted = vec![0; roots.len()];
        for k in 0..draft_length {
            let drafted = self.tokens(own.clone());
            for ((accepted, root), token) in accepted.iter_mut().zip(roots).zip(&drafted) {
                if *accepted == k && text.get(root + 2 + k) == Some(token) {
                    *accepted += 1;
                }
            }
            if k + 1 < draft_length {
                own = self.mtp.continue_branches(self.model, own, &drafted, cache, roots, &mut branches);
            }
        }
        accepted
    }

    /// Pairs the new hidden states `[n, H]` with the `n` tokens after them, without drafting, so that a long
    /// prompt can be read in pieces. `cache` has the pairs before them, and gets the new ones.
    pub fn read(&self, fresh: Tensor<2>, next_ids: &[u32], cache: &mut MtpCache) {
        self.mtp.continue_from(self.model, fresh, next_ids, cache);
    }

    /// Pairs the new hidden states `[n, H]` with the `n` tokens after them, and drafts `count` tokens after
    /// the last one. `cache` has the pairs before them, and gets the new ones.
    pub fn draft(&self, fresh: Tensor<2>, next_ids: &[u32], count: usize, cache: &mut MtpCache) -> Vec<u32> {
        let own = self.mtp.continue_from(self.model, fresh, next_ids, cache);
        let mut own = own.clone().narrow(0, own.dims()[0] - 1, 1);
        // Everything after the head's own output is a guess, so it goes into a copy of the cache that is then
        // dropped.
        let mut guesses = cache.clone();
        let mut drafted = Vec::with_capacity(count);
        while drafted.len() < count {
            let token = self.token(own.clone());
            drafted.push(token);
            if drafted.len() < count {
                own = self.mtp.continue_from(self.model, own, &[token], &mut guesses);
            }
        }
        drafted
    }
}

/// The numbers of accepted drafted tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acceptance {
    /// Accepted tokens, one entry per pass of the model; each is at most the draft length.
    pub accepted: Vec<usize>,
}

impl Acceptance {
    /// Returns the passes of speculative decoding with drafts of `draft_length` tokens, from the numbers of
    /// accepted tokens after each token ([`Drafter::accepted_everywhere`]).
    pub fn of_passes(everywhere: &[usize], draft_length: usize) -> Self {
        let (mut accepted, mut at) = (Vec::new(), 0);
        while let Some(here) = everywhere.get(at) {
            let here = *here.min(&draft_length);
            accepted.push(here);
            // The pass also gives one token of the model's own.
            at += here + 1;
        }
        Self { accepted }
    }

    /// Returns the mean number of accepted tokens per pass, or 0 when there was no pass.
    pub fn mean(&self) -> f64 {
        if self.accepted.is_empty() {
            return 0.0;
        }
        self.accepted.iter().sum::<usize>() as f64 / self.accepted.len() as f64
    }
}

/// Decodes `count` tokens after `prompt`, drafting `draft_length` at a time.
///
/// Ends early after a token for which `stop` is true; that token is part of the result.
pub fn speculative_greedy(
    drafter: &Drafter<'_>,
    prompt: &[u32],
    count: usize,
    draft_length: usize,
    stop: impl Fn(u32) -> bool,
) -> (Vec<u32>, Acceptance) {
    let model = drafter.model;
    let mut cache = model.empty_cache();
    let mut mtp_cache = drafter.mtp.empty_cache(model.device());
    // Invariant: `cache` covers every token but the newest; `fresh` contains the hidden states that were not
    // yet paired with the token after them.
    let mut fresh = model.continue_from(prompt, &mut cache);
    let mut fresh_ids: Vec<u32> = prompt.to_vec();
    let mut newest = last_argmax(model, fresh.clone());
    let mut output = vec![newest];
    let mut acceptance = Acceptance::default();
    while output.len() < count && !stop(newest) {
        let wanted = draft_length.min(count - output.len());
        let mut next_ids: Vec<u32> = fresh_ids[1..].to_vec();
        next_ids.push(newest);
        let drafted = drafter.draft(fresh, &next_ids, wanted, &mut mtp_cache);

        let snapshot = cache.clone();
        let mut scored = vec![newest];
        scored.extend(&drafted);
        let hidden = model.continue_from(&scored, &mut cache);
        let choices = argmax(model, hidden.clone());
        let accepted = drafted.iter().zip(&choices).take_while(|(draft, choice)| draft == choice).count();
        acceptance.accepted.push(accepted);
        scored.truncate(accepted + 1);
        if accepted < drafted.len() {
            // State and window of the DeltaNet layers cannot be truncated, so decoding starts again from the
            // snapshot.
            cache = snapshot;
            fresh = model.continue_from(&scored, &mut cache);
        } else {
            fresh = hidden;
        }
        for token in scored[1..].iter().copied().chain([choices[accepted]]) {
            if output.len() < count && !output.last().copied().is_some_and(&stop) {
                output.push(token);
            }
        }
        newest = choices[accepted];
        fresh_ids = scored;
        if output.last().copied().is_some_and(&stop) {
            break;
        }
    }
    (output, acceptance)
}
