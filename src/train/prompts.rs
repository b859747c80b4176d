//! Where in an example a model can be asked to go on: the prompts of samples and of the measurements of
//! drafts.
//!
//! Pure. Of a conversation, a prompt is everything before a trained turn, as a server gets it. All of a piece
//! of raw text is trained, so its prompts are windows at even distances.

use std::ops::Range;

/// The number of tokens of a window of raw text.
const WINDOW: usize = 64;
/// The smallest distance between two windows, so that no text is measured twice.
const DISTANCE: usize = 192;
/// The largest number of windows of a piece of raw text.
const WINDOWS: usize = 64;

/// A place of an example at which the model goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// The tokens of the prompt.
    pub(crate) prompt: Range<usize>,
    /// The number of tokens that follow in the example: those of the turn, or of the text up to the next
    /// window.
    pub(crate) rest: usize,
    /// Whether it is a window of raw text, and so no answer to what another one asks.
    pub(crate) is_window: bool,
}

/// Returns the places of an example with this mask of trained tokens, in order.
pub(crate) fn places(is_trained: &[bool]) -> Vec<Place> {
    let Some(first) = is_trained.iter().position(|is_trained| *is_trained) else { return Vec::new() };
    if first <= 1 && is_trained[1..].iter().all(|is_trained| *is_trained) {
        return windows(is_trained.len());
    }
    let mut places = Vec::new();
    let mut at = first;
    while at < is_trained.len() {
        let rest = is_trained[at..].iter().take_while(|is_trained| **is_trained).count();
        if rest > 0 && at > 0 {
            places.push(Place { prompt: 0..at, rest, is_window: false });
        }
        at += rest.max(1);
    }
    places
}

/// Returns the windows of a piece of raw text of `length` tokens. A short text is cut in its middle.
fn windows(length: usize) -> Vec<Place> {
    let window = WINDOW.min(length / 2);
    if window == 0 {
        return Vec::new();
    }
    let distance = DISTANCE.max(length / WINDOWS);
    let starts = (0..length - window).step_by(distance);
    let window_at = |start: usize| {
        let end = start + window;
        Place { prompt: start..end, rest: (length - end).min(distance - window), is_window: true }
    };
    starts.map(window_at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(text: &str) -> Vec<bool> {
        text.chars().map(|c| c == '#').collect()
    }

    #[test]
    fn every_trained_turn_of_a_conversation_is_asked_for_behind_all_that_comes_before_it() {
        let of = |text: &str| {
            let places = places(&mask(text));
            assert!(places.iter().all(|place| place.prompt.start == 0 && !place.is_window));
            places.into_iter().map(|place| (place.prompt.end, place.rest)).collect::<Vec<_>>()
        };
        assert_eq!(of("....##..###."), [(4, 2), (8, 3)]);
        assert_eq!(of(".##."), [(1, 2)]);
        assert_eq!(of("##..#"), [(4, 1)], "nothing comes before the first");
        assert_eq!(of("....."), []);
        assert_eq!(of(""), []);
    }

    #[test]
    fn raw_text_has_prompts_of_other_places_and_not_only_its_first_token() {
        let raw = |length: usize| places(&(0..length).map(|i| i > 0).collect::<Vec<_>>());
        let short = raw(10);
        assert_eq!(short, [Place { prompt: 0..5, rest: 5, is_window: true }]);
        let long = raw(1000);
        let prompts: Vec<_> = long.iter().map(|place| place.prompt.clone()).collect();
        assert_eq!(prompts, [0..64, 192..256, 384..448, 576..640, 768..832]);
        assert_eq!(long.last().unwrap().rest, 128);
        let huge = raw(1 << 20);
        assert!(huge.len() <= WINDOWS && huge.last().unwrap().prompt.start > (1 << 20) * 9 / 10);
        assert_eq!((raw(1), raw(0)), (vec![], vec![]));
    }

    #[test]
    fn a_place_has_a_prompt_and_something_after_it_whatever_is_trained() {
        let short = (0..=12).flat_map(|length| (0..1u32 << length).map(move |bits| (length, bits)));
        let long = (13..=1000).step_by(7).map(|length| (length, u32::MAX));
        for (length, bits) in short.chain(long) {
            let mask: Vec<bool> = (0..length).map(|i| i >= 32 || bits >> i & 1 == 1).collect();
            let mut last = 0;
            for place in places(&mask) {
                assert!(place.prompt.end > last && place.rest > 0 && !place.prompt.is_empty(), "{mask:?}");
                assert!(place.prompt.end + place.rest <= mask.len(), "{mask:?}");
                last = place.prompt.end;
            }
        }
    }
}
