//! Compares a speculative text with that of plain greedy decoding, which it must equal.
//!
//! The model scores a draft in one pass and plain decoding in one pass per token. The order of summation, and
//! with it the last bit of a logit, may depend on the number of rows, so two tokens whose logits are equal in
//! bf16 may change places. Any other difference is a defect.

use sparktune_model::{Model, PackedSequence};

/// The distance of neighbouring bf16 numbers relative to their size, at most.
const BF16_STEP: f32 = 1.0 / 128.0;

/// The first place at which a speculative text is not that of plain greedy decoding.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Departure {
    /// The number of the prompt, from 1.
    prompt: usize,
    /// The number of the generated token, from 1.
    position: usize,
    greedy: Choice,
    speculative: Choice,
}

/// A generated token with the model's logit for it; `None` and negative infinity where a text has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Choice {
    id: Option<u32>,
    logit: f32,
}

impl Departure {
    /// Compares the texts after the prompt with this number. `model` must be frozen; it is only used if they
    /// differ.
    pub(crate) fn find(
        model: &Model,
        number: usize,
        prompt: &[u32],
        greedy: &[u32],
        speculative: &[u32],
    ) -> Option<Self> {
        let longest = greedy.len().max(speculative.len());
        let place = (0..longest).find(|place| greedy.get(*place) != speculative.get(*place))?;
        let hidden = model.hidden(&PackedSequence::single(&[prompt, &greedy[..place]].concat()));
        let last = hidden.dims()[0] - 1;
        let logits = model.logits(hidden.narrow(0, last, 1));
        let choice = |text: &[u32]| {
            let id = text.get(place).copied();
            Choice { id, logit: id.map_or(f32::NEG_INFINITY, |id| logits[id as usize]) }
        };
        let (greedy, speculative) = (choice(greedy), choice(speculative));
        Some(Self { prompt: number, position: place + 1, greedy, speculative })
    }

    /// Returns whether the two tokens are equally likely to the precision of bf16, so that either is greedy.
    pub(crate) fn is_tie(&self) -> bool {
        let (one, other) = (self.greedy.logit, self.speculative.logit);
        let distance = (one - other).abs();
        distance.is_finite() && distance <= BF16_STEP * one.abs().max(other.abs())
    }

    /// Describes the place and both tokens.
    pub(crate) fn in_words(&self) -> String {
        let choice = |choice: Choice| match choice.id {
            Some(id) => format!("token {id} (logit {:.4})", choice.logit),
            None => "nothing".to_owned(),
        };
        format!(
            "at token {} after prompt {}, plain decoding chose {} and speculative decoding {}",
            self.position,
            self.prompt,
            choice(self.greedy),
            choice(self.speculative)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn departure(greedy: f32, speculative: f32) -> Departure {
        let choice = |id, logit| Choice { id: Some(id), logit };
        Departure { prompt: 2, position: 7, greedy: choice(11, greedy), speculative: choice(12, speculative) }
    }

    #[test]
    fn two_logits_that_bf16_cannot_tell_apart_are_a_tie_and_others_are_not() {
        assert!(departure(20.0, 20.0).is_tie() && departure(20.0, 19.875).is_tie());
        assert!(!departure(20.0, 19.5).is_tie() && !departure(-0.5, 0.5).is_tie());
        assert!(!departure(20.0, f32::NEG_INFINITY).is_tie() && !departure(20.0, f32::NAN).is_tie());
        assert_eq!(
            departure(20.0, 19.875).in_words(),
            "at token 7 after prompt 2, plain decoding chose token 11 (logit 20.0000) and speculative decoding token 12 (logit 19.8750)"
        );
    }

    #[test]
    fn the_first_difference_is_found_with_the_models_own_logits() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/qwen35/checkpoint");
        let base = sparktune_model::Checkpoint::open(std::path::Path::new(folder)).unwrap();
        let device = burn::tensor::Device::flex();
        let model = Model::load(&base, &device, &mut |_, _| ()).unwrap();
        let prompt = [3, 1, 4];
        let text: Vec<u32> = sparktune_model::Generator::new(&model, &prompt).take(4).collect();
        assert_eq!(Departure::find(&model, 1, &prompt, &text, &text), None);
        let mut other = text.clone();
        other[2] = (text[2] + 1) % 512;
        let found = Departure::find(&model, 1, &prompt, &text, &other).unwrap();
        assert_eq!(
            (found.position, found.greedy.id, found.speculative.id),
            (3, Some(text[2]), Some(other[2]))
        );
        assert!(found.greedy.logit > found.speculative.logit, "{found:?}");
        let shorter = Departure::find(&model, 1, &prompt, &text, &text[..3]).unwrap();
        assert!(
            !shorter.is_tie() && shorter.in_words().ends_with("speculative decoding nothing"),
            "{shorter:?}"
        );
    }
}
