//! The drafts of one answer by the MTP head.

use burn::tensor::Tensor;
use sparktune_model::{Drafter, Model, Mtp, MtpCache};

/// What the head has read of an answer so far.
pub(crate) struct Drafts {
    cache: MtpCache,
    /// Hidden states that are not yet paired with the token after them, `[n, H]`, and the tokens that they
    /// belong to.
    fresh: Option<(Tensor<2>, Vec<u32>)>,
}

impl Drafts {
    pub(crate) fn new(model: &Model, head: &Mtp) -> Self {
        Self { cache: head.empty_cache(model.device()), fresh: None }
    }

    /// Takes note of new hidden states, `[n, H]`, and of their tokens.
    pub(crate) fn add(&mut self, hidden: Tensor<2>, input_ids: &[u32]) {
        self.fresh = Some(match self.fresh.take() {
            None => (hidden, input_ids.to_vec()),
            Some((before, mut ids)) => {
                ids.extend_from_slice(input_ids);
                (Tensor::cat(vec![before, hidden], 0), ids)
            }
        });
    }

    /// Lets the head read what it can of the new hidden states: all but the last one, whose next token is not
    /// known yet. Called after each piece of a prompt, so that the head's part of a long prompt takes no more
    /// memory and time at once than the plan has for a piece.
    pub(crate) fn read(&mut self, model: &Model, head: &Mtp) {
        let Some((hidden, ids)) = self.fresh.take() else { return };
        let last = ids.len() - 1;
        if last > 0 {
            let known = hidden.clone().narrow(0, 0, last);
            Drafter::new(model, head).read(known, &ids[1..], &mut self.cache);
        }
        self.fresh = Some((hidden.narrow(0, last, 1), vec![ids[last]]));
    }

    /// Drafts `count` tokens after `newest`.
    pub(crate) fn draft(&mut self, model: &Model, head: &Mtp, newest: u32, count: usize) -> Vec<u32> {
        let Some((hidden, ids)) = self.fresh.take() else { return Vec::new() };
        let mut next_ids = ids[1..].to_vec();
        next_ids.push(newest);
        Drafter::new(model, head).draft(hidden, &next_ids, count, &mut self.cache)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use burn::tensor::Device;
    use sparktune_model::Checkpoint;

    use super::*;

    #[test]
    fn a_prompt_that_is_read_in_pieces_is_drafted_after_as_if_it_were_read_at_once() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen35/checkpoint");
        let checkpoint = Checkpoint::open(&fixture).unwrap();
        let mut model = Model::load(&checkpoint, &Device::flex(), &mut |_, _| ()).unwrap();
        model.set_trainable(false);
        let mut head = Mtp::load(&checkpoint, &Device::flex()).unwrap();
        head.set_trainable(false);
        let prompt: Vec<u32> = (0..50).map(|i| (i * 37 + 11) % 480).collect();
        let hidden = model.hidden(&sparktune_model::PackedSequence::single(&prompt));
        let drafted = |pieces: &[usize]| {
            let mut drafts = Drafts::new(&model, &head);
            let mut from = 0;
            for rows in pieces {
                let piece = &prompt[from..from + rows];
                drafts.add(hidden.clone().narrow(0, from, *rows), piece);
                drafts.read(&model, &head);
                let (left, ids) = drafts.fresh.as_ref().unwrap();
                assert_eq!((left.dims()[0], &ids[..]), (1, &piece[rows - 1..]), "one row waits");
                from += rows;
            }
            if pieces.is_empty() {
                drafts.add(hidden.clone(), &prompt);
            }
            drafts.draft(&model, &head, 7, 3)
        };
        let whole = drafted(&[]);
        assert_eq!(whole.len(), 3);
        assert_eq!(drafted(&[20, 1, 29]), whole);
        assert_eq!(drafted(&[50]), whole);
    }
}
